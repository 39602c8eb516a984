//! Converts between the events of a file and ours.

use std::collections::HashMap;

use selvedge_log::strict::MAX_LINE_BYTES;
use selvedge_model::event::Fields;
use selvedge_model::message::Visibility;
use selvedge_model::{Message, MessageId, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::record::FORMAT;
use crate::nova_file::{Event, EventKind, LocatedEvent};

/// What a line of a log needs around an event.
const ROOM: usize = 4 * 1024;
/// A line of a file up to this length fits on a line of a log, however its numbers are written.
const SURE_TO_FIT: u64 = 1 << 20;

/// The origin of a message, as far as the message itself has no field for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Provenance {
    pub(super) id: MessageId,
    pub(super) line: u64,
    pub(super) part: u32,
    /// Absent for a message that had no type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    /// The time that its writer recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) timestamp: Option<String>,
    /// Unknown fields.
    #[serde(default, skip_serializing_if = "Fields::is_empty")]
    pub(super) extra: Fields,
}

/// Whether an event from a line of this many bytes fits on a line of a log.
pub(super) fn fits(event: &Event, line_bytes: u64) -> bool {
    let length = || serde_json::to_vec(event.fields()).map_or(usize::MAX, |bytes| bytes.len());
    line_bytes <= SURE_TO_FIT || length() <= MAX_LINE_BYTES - ROOM
}

/// Whether an event becomes a message.
pub(super) fn is_message(event: &Event) -> bool {
    event.role().is_some()
}

/// What is imported of an event.
pub(super) enum ImportedEvent {
    /// A message and its origin.
    Message(Message, Provenance),
    /// Anything else, complete.
    Action(Fields),
}

/// The event as ours; none if its id is not valid, which a line number always is.
pub(super) fn to_ours(found: LocatedEvent) -> Option<ImportedEvent> {
    let LocatedEvent { line, part, event } = found;
    let Some(role) = event.role() else {
        let event = Value::Object(event.into_fields());
        return match json!({"import": FORMAT, "line": line, "part": part, "event": event}) {
            Value::Object(fields) => Some(ImportedEvent::Action(fields)),
            _ => None,
        };
    };
    let name = if part == 1 { format!("{FORMAT}:{line}") } else { format!("{FORMAT}:{line}.{part}") };
    let id = MessageId::new(name).ok()?;
    let kind = event.kind();
    let mut extra = event.into_fields();
    let mut take = |name: &str| match extra.remove(name) {
        Some(Value::String(text)) => Some(text),
        // A value that is not a text stays where it was.
        Some(other) => {
            extra.insert(name.to_owned(), other);
            None
        }
        None => None,
    };
    let text = take("text").unwrap_or_default();
    let type_name = take("type");
    let timestamp = take("timestamp");
    if kind != EventKind::AssistantText {
        take("role");
    }
    let visibility = if kind == EventKind::AssistantText { Visibility::Internal } else { Visibility::All };
    let message = Message { visibility, ..Message::text(role, text).with_id(id.clone()) };
    Some(ImportedEvent::Message(message, Provenance { id, line, part, kind: type_name, timestamp, extra }))
}

/// The action that records the origin of the messages of a changeset.
pub(super) fn origin_of(messages: Vec<Provenance>) -> Option<Fields> {
    match json!({"import": FORMAT, "messages": messages}) {
        Value::Object(fields) if !messages.is_empty() => Some(fields),
        _ => None,
    }
}

/// What was imported in one changeset, as the file had it.
#[derive(Default)]
pub(super) struct FileEvents {
    origins: HashMap<MessageId, Provenance>,
    events: Vec<(u64, u32, Event)>,
}

impl FileEvents {
    /// Adds a recorded action of an import; other actions are ignored.
    pub(super) fn action(&mut self, fields: &Fields) {
        if fields.get("import").and_then(Value::as_str) != Some(FORMAT) {
            return;
        }
        if let Some(messages) = fields.get("messages")
            && let Ok(origins) = serde_json::from_value::<Vec<Provenance>>(messages.clone())
        {
            self.origins.extend(origins.into_iter().map(|origin| (origin.id.clone(), origin)));
        }
        let number = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or_default();
        if let Some(Value::Object(event)) = fields.get("event")
            && let Some(event) = Event::of(event.clone())
        {
            self.events.push((number("line"), u32::try_from(number("part")).unwrap_or(u32::MAX), event));
        }
    }

    /// Adds a message; false if it was not imported.
    pub(super) fn message(&mut self, message: &Message) -> bool {
        let Some(origin) = message.id.as_ref().and_then(|id| self.origins.remove(id)) else { return false };
        let mut fields = origin.extra;
        fields.insert("text".to_owned(), Value::String(message.plain_text()));
        fields.extend(origin.timestamp.map(|time| ("timestamp".to_owned(), Value::String(time))));
        if origin.kind.as_deref() != Some("assistant_text") {
            let role = if message.role == Role::Assistant { "assistant" } else { "user" };
            fields.insert("role".to_owned(), role.into());
        }
        fields.extend(origin.kind.map(|kind| ("type".to_owned(), Value::String(kind))));
        if let Some(event) = Event::of(fields) {
            self.events.push((origin.line, origin.part, event));
        }
        true
    }

    /// All events in the order of the file.
    pub(super) fn in_order(mut self) -> Vec<Event> {
        self.events.sort_by_key(|(line, part, _)| (*line, *part));
        self.events.into_iter().map(|(_, _, event)| event).collect()
    }
}
