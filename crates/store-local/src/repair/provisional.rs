//! What a signed snapshot still holds of versions that are lost.
//!
//! A snapshot is a projection: it was signed, but it is not the log. So what is brought back from one is provisional, and the changeset that
//! brings it says so in a `state_action`: which version it is of, the hash that the log had there, and which messages it added.

use std::collections::BTreeSet;

use selvedge_model::{Changeset, Digest, Event, Message, Reason, ThreadId};
use selvedge_store::Result;
use serde_json::{Map, Value, json};

use super::Mended;
use crate::core::{Core, io_error};
use crate::replay::read_log;

/// What a snapshot of a lost version says, its signature checked.
#[derive(Clone, Debug)]
pub struct Provisional {
    /// What it is called.
    pub name: String,
    /// The version of the log that it folds.
    pub log_version: u64,
    /// The hash of the log at that version.
    pub log_hash: Digest,
    /// The messages, in order.
    pub messages: Vec<Message>,
    /// The state.
    pub state: Value,
}

/// What a log has of what a snapshot says.
#[derive(Default)]
struct Known {
    messages: BTreeSet<String>,
    ids: BTreeSet<String>,
    brought: BTreeSet<u64>,
}

impl Core {
    /// What is to be brought back, if anything is: nothing twice.
    pub(super) fn missing_of(&self, thread: &ThreadId, from: &Provisional) -> Result<Option<Mended>> {
        let known = self.known_messages(thread)?;
        let messages = from.messages.iter().filter(|message| !known.has(message)).count() as u64;
        let is_new = !known.brought.contains(&from.log_version);
        Ok(is_new.then(|| Mended::Provisional { log_version: from.log_version, messages, by: from.name.clone() }))
    }

    /// The changeset that brings it back.
    pub(super) fn bring_back(&self, thread: &ThreadId, from: &Provisional) -> Result<Changeset> {
        let known = self.known_messages(thread)?;
        let messages: Vec<Message> = from.messages.iter().filter(|message| !known.has(message)).cloned().collect();
        let ids: Vec<_> = messages.iter().filter_map(|message| message.id.clone()).collect();
        let about = json!({
            "from": from.name,
            "log_version": from.log_version,
            "log_hash": from.log_hash,
            "messages": messages.len(),
            "ids": ids,
        });
        let note = Map::from_iter([("provisional".to_owned(), about)]);
        Ok(Changeset {
            messages,
            snapshot: Some(from.state.clone()),
            state_actions: vec![note],
            ..Changeset::empty(Reason::Lifecycle)
        })
    }

    fn known_messages(&self, thread: &ThreadId) -> Result<Known> {
        let mut known = Known::default();
        let path = self.layout.transcript(thread);
        let read = read_log(&*self.disk, &self.layout, thread, &self.trust, None, |entry| {
            for line in &entry.lines {
                match &line.event {
                    Event::Message(message) => known.take(message),
                    Event::StateAction(action) => {
                        let version = json!(action)["provisional"]["log_version"].as_u64();
                        known.brought.extend(version);
                    }
                    _ => {}
                }
            }
        });
        read.map_err(io_error("read", &path))?;
        Ok(known)
    }
}

impl Known {
    fn take(&mut self, message: &Message) {
        match &message.id {
            Some(id) => _ = self.ids.insert(id.to_string()),
            None => _ = self.messages.insert(content(message)),
        }
    }

    fn has(&self, message: &Message) -> bool {
        match &message.id {
            Some(id) => self.ids.contains(id.as_str()),
            None => self.messages.contains(&content(message)),
        }
    }
}

/// What tells a message without an id from others.
fn content(message: &Message) -> String {
    json!([message.role, message.content]).to_string()
}
