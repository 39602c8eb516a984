//! What a log folds to, held against the rows that the database has of it. Writes nothing.
//!
//! Only the manifest and the index of messages are compared: what decides what is shown and which message counts as known. Memory
//! depends on how many messages of a thread have an id.

use std::collections::HashMap;

use rusqlite::Connection;
use selvedge_log::Line;
use selvedge_log::hash::sha256;
use selvedge_log::scan::Entry;
use selvedge_model::{Digest, Event, Manifest, MessageId, ThreadId};
use selvedge_store::Result;

use crate::index;
use crate::rows::Row;
use crate::schema::database;

/// The fold of a log, as far as it is compared.
pub(crate) struct Folded<'a> {
    thread: &'a ThreadId,
    manifest: Option<Manifest>,
    messages: HashMap<MessageId, Digest>,
    /// Whether an event did not fit; then there is nothing to compare with.
    failed: bool,
}

impl<'a> Folded<'a> {
    pub(crate) fn new(thread: &'a ThreadId) -> Self {
        Self { thread, manifest: None, messages: HashMap::new(), failed: false }
    }

    /// Takes one changeset in.
    pub(crate) fn take(&mut self, entry: &Entry) {
        entry.lines.iter().for_each(|line| self.line(line));
    }

    /// Takes one line in.
    pub(crate) fn line(&mut self, line: &Line) {
        match (&line.event, &mut self.manifest) {
            (Event::ThreadCreated(created), None) => {
                self.manifest = Some(Manifest::born(self.thread, created, line.timestamp));
            }
            (event, Some(manifest)) => self.failed |= manifest.apply(event, line.timestamp).is_err(),
            (_, None) => self.failed = true,
        }
        if let Event::Message(message) = &line.event
            && let Some(id) = &message.id
        {
            // The first counts, as it does when it is indexed.
            self.messages.entry(id.clone()).or_insert_with(|| sha256(&message.content_bytes()));
        }
    }

    /// What of the rows is not what the log says, if anything, as the end of a sentence about the database.
    pub(crate) fn contradiction(&self, connection: &Connection, row: &Row) -> Result<Option<String>> {
        let Some(manifest) = self.manifest.as_ref().filter(|_| !self.failed) else { return Ok(None) };
        if index::changed(manifest, &row.manifest) {
            return Ok(Some("has another manifest of it".to_owned()));
        }
        let sql = "SELECT message_id, digest FROM messages WHERE thread = ?";
        let mut statement = connection.prepare_cached(sql).map_err(database)?;
        let mut found = statement.query([row.id]).map_err(database)?;
        let mut known = 0;
        while let Some(row) = found.next().map_err(database)? {
            let (id, digest): (String, Vec<u8>) = (row.get(0).map_err(database)?, row.get(1).map_err(database)?);
            let same = MessageId::new(id.as_str()).ok().and_then(|id| self.messages.get(&id));
            if same.is_none_or(|same| same.0[..] != digest[..]) {
                return Ok(Some(format!("knows a message `{id}` that does not stand there")));
            }
            known += 1;
        }
        let missing = self.messages.len() - known;
        Ok((missing > 0).then(|| format!("does not know {missing} of its messages")))
    }
}
