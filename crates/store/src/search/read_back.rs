//! Reading a hit back from the log: an index is never believed.

use selvedge_log::Trust;
use selvedge_model::{AgentId, Event};

use super::contract::Hit;
use super::document::{PassageKind, digest, text_of_blob};
use super::event_texts::said;
use crate::contract::Logs;
use crate::error::Result;
use crate::load::each_changeset;

/// The passage of a hit, as the verified log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBack {
    /// The passage.
    pub text: String,
    /// The agent that the thread was created for.
    pub agent: Option<AgentId>,
    /// The message before the line of the hit.
    pub before: Option<String>,
    /// The message after it.
    pub after: Option<String>,
}

/// Reads the passage of a hit from the verified log; nothing if the log has no such passage, so that the index is wrong about this thread.
///
/// The log is read whole: every hash and its last signature are checked before the passage counts. An error of the log itself is returned:
/// the caller marks the hit.
pub fn read_back(logs: &dyn Logs, trust: &Trust, hit: &Hit) -> Result<Option<ReadBack>> {
    let mut found = None;
    let mut agent = None;
    let mut before = None;
    let mut after = None;
    each_changeset(logs, &hit.thread, trust, |entry| {
        for line in entry.lines {
            match (&line.event, line.seq.cmp(&hit.line)) {
                (Event::ThreadCreated(created), _) => agent = Some(created.thread.agent_id.clone()),
                (event, std::cmp::Ordering::Equal) if entry.head.version == hit.version => found = Some(event.clone()),
                (Event::Message(_), std::cmp::Ordering::Less) => before = said(&line.event).or(before.take()),
                (Event::Message(_), std::cmp::Ordering::Greater) if after.is_none() => after = said(&line.event),
                _ => {}
            }
        }
    })?;
    let passage = found.map(|event| passage(logs, &event, hit)).transpose()?.flatten();
    Ok(passage.map(|text| ReadBack { text, agent, before, after }))
}

/// The passage of a hit whose log can't be verified, for display with a mark; nothing if its line can't be read or has another text.
pub fn read_unverified(logs: &dyn Logs, hit: &Hit) -> Option<String> {
    let line = logs.read(&hit.thread, hit.line, 1).ok()?.into_iter().find(|line| line.seq == hit.line)?;
    passage(logs, &line.event, hit).ok().flatten()
}

/// The passage of a hit in an event.
fn passage(logs: &dyn Logs, event: &Event, hit: &Hit) -> Result<Option<String>> {
    let text = match (hit.kind, &hit.blob) {
        (PassageKind::Message, None) => said(event),
        (PassageKind::Blob, Some(blob)) if event.blobs().contains(blob) => {
            text_of_blob(&logs.blob(&hit.thread, blob)?).map(|(text, _)| text.to_owned())
        }
        _ => None,
    };
    let from = usize::try_from(hit.offset).unwrap_or(usize::MAX);
    let to = from.saturating_add(usize::try_from(hit.bytes).unwrap_or(usize::MAX));
    let passage = text.as_deref().and_then(|text| text.get(from..to));
    Ok(passage.filter(|passage| digest(passage) == hit.digest).map(str::to_owned))
}
