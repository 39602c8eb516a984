//! Restores what a signed snapshot still has of lost versions.
//!
//! A snapshot is derived from the log: it was signed, but it is not the log. So what is restored from one is provisional, and the changeset
//! that restores it records that in a `state_action`: the version of the snapshot, the hash of the log at it, and the messages it added.

use std::collections::BTreeSet;

use selvedge_model::{Changeset, Digest, Event, Message, Reason, ThreadId};
use selvedge_store::Result;
use serde_json::{Map, Value, json};

use super::RepairStep;
use crate::core::{Core, io_error};
use crate::replay::read_log;

/// The content of a snapshot of a lost version, its signature verified.
#[derive(Clone, Debug)]
pub struct Provisional {
    /// Its file name.
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

/// What the log already has of a snapshot's content.
#[derive(Default)]
struct KnownMessages {
    messages: BTreeSet<String>,
    ids: BTreeSet<String>,
    restored: BTreeSet<u64>,
}

impl Core {
    /// What is to be restored, if anything; nothing is restored twice.
    pub(super) fn missing_of(&self, thread: &ThreadId, from: &Provisional) -> Result<Option<RepairStep>> {
        let known = self.known_messages(thread)?;
        let messages = from.messages.iter().filter(|message| !known.has(message)).count() as u64;
        let is_new = !known.restored.contains(&from.log_version);
        Ok(is_new.then(|| RepairStep::Provisional { log_version: from.log_version, messages, by: from.name.clone() }))
    }

    /// The changeset that restores it.
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

    fn known_messages(&self, thread: &ThreadId) -> Result<KnownMessages> {
        let mut known = KnownMessages::default();
        let path = self.layout.transcript(thread);
        let read = read_log(&*self.disk, &self.layout, thread, &self.trust, None, |entry| {
            for line in &entry.lines {
                match &line.event {
                    Event::Message(message) => known.take(message),
                    Event::StateAction(action) => {
                        let version = json!(action)["provisional"]["log_version"].as_u64();
                        known.restored.extend(version);
                    }
                    _ => {}
                }
            }
        });
        read.map_err(io_error("read", &path))?;
        Ok(known)
    }
}

impl KnownMessages {
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

/// Identifies a message without an id.
fn content(message: &Message) -> String {
    json!([message.role, message.content]).to_string()
}
