//! Finding lines in a log: its bytes count only if their hash is the one of its head.
//!
//! A row of an index says that a log has something. Where that decides what is left out, the log itself is asked: the row may be genuine,
//! and its version lost since.

use std::collections::HashSet;
use std::io::BufReader;

use memchr::memmem::Finder;
use selvedge_log::hash::RunningHash;
use selvedge_log::{line, lines};
use selvedge_model::{Event, LogId, MessageId, ThreadId};
use selvedge_store::{Error, Result};

use crate::core::{Core, io_error, lock};
use crate::rows::{self, Row};
use crate::schema::REBUILD;

/// The ids of the messages in the log that was read last, so that a program that sends a whole conversation again reads it once.
#[derive(Debug)]
pub(crate) struct LoggedMessages {
    log: LogId,
    ids: HashSet<MessageId>,
}

impl Core {
    /// Passes the committed lines of a log that have one of some texts to `each`, without their line feeds; refused if the log is not the
    /// one that was signed.
    pub(crate) fn each_line_with(
        &self,
        thread: &ThreadId,
        row: &Row,
        texts: &[&str],
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let path = self.layout.transcript(thread);
        let (head, overlay) = self.open_log(thread)?.committed();
        let mut reader = BufReader::with_capacity(1 << 16, overlay);
        let mut hash = RunningHash::new();
        let mut buffer = Vec::new();
        let finders: Vec<_> = texts.iter().map(Finder::new).collect();
        while lines::next_line(&mut reader, &mut buffer).map_err(io_error("read", &path))? {
            hash.update(&buffer);
            if finders.iter().any(|finder| finder.find(&buffer).is_some()) {
                each(buffer.strip_suffix(b"\n").unwrap_or(&buffer))?;
            }
        }
        if hash.digest() != head.hash {
            self.hash_again(thread, row)?;
            return Err(rows::bad_row("a head does not belong to its log"));
        }
        Ok(())
    }

    /// Refuses a row that says that the log of a thread has a message, if it has none: the message would be left out as one that was sent
    /// twice. The log is read whole, once for many messages; a message is rarely sent twice.
    pub(crate) fn check_message(&self, thread: &ThreadId, row: &Row, message: &MessageId) -> Result<()> {
        let log = &row.head.log_id;
        let is_known = |known: &LoggedMessages| known.log == *log && known.ids.contains(message);
        if lock(&self.logged).as_ref().is_some_and(is_known) {
            return Ok(());
        }
        let mut ids = HashSet::new();
        self.each_line_with(thread, row, &["message"], &mut |bytes| {
            if let Event::Message(found) = line::decode(bytes)?.event {
                ids.extend(found.id);
            }
            Ok(())
        })?;
        let found = LoggedMessages { log: *log, ids };
        if is_known(&found) {
            *lock(&self.logged) = Some(found);
            return Ok(());
        }
        Err(Error::Integrity {
            what: format!("message `{message}` of `{thread}` in `registry.db`"),
            why: "its log has no such message: another program put the row there".to_owned(),
            hint: Some(REBUILD.to_owned()),
        })
    }

    /// Forgets what the logs say, because versions of one are given up.
    pub(crate) fn forget_logged(&self) {
        *lock(&self.logged) = None;
    }
}
