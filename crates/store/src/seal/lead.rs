//! The events that wait to lead the next changeset of a thread: each is marked for its log, at its head, until it is signed there.

use selvedge_log::Head;
use selvedge_log::hash::{Binding, Seals};
use selvedge_model::event::LineOrder;
use selvedge_model::{Digest, Event};

/// The mark of an event, as it is stored, that waits at a head.
pub fn lead(seals: &Seals, head: &Head, event: &str) -> Digest {
    seals.mark(&binding(head), &content(event))
}

/// The event of a stored text, if its mark was made for it at this head, and it is of a kind that leads a changeset.
pub fn valid_lead(seals: &Seals, head: &Head, event: &str, mark: &Digest) -> Option<Event> {
    if !seals.is_marked(&binding(head), &content(event), mark) {
        return None;
    }
    let event: Event = serde_json::from_str(event).ok()?;
    (event.place() == LineOrder::Lead).then_some(event)
}

fn binding(head: &Head) -> Binding<'_> {
    Binding { log_id: head.log_id.as_str(), segment: head.segment, version: head.version, offset: head.bytes }
}

/// The content that is marked, with a prefix that separates it from other marked content.
fn content(event: &str) -> Vec<u8> {
    [b"lead\0", event.as_bytes()].concat()
}
