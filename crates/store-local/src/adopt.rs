//! Taking in a thread whose log exists already: one that arrives from elsewhere, or one that the database does not know.
//!
//! The folder is put in place first, then one transaction indexes it. Killed in between, there is a folder that the database does
//! not know: it is not written over, and `reindex`, or arriving again, takes it in.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, params};
use selvedge_log::Head;
use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_model::ThreadId;
use selvedge_store::{Error, Result};

use crate::blobs::hash_file;
use crate::core::{Core, Durability, io_error, lock};
use crate::feed::Place;
use crate::layout::check_folder;
use crate::replay::{Gathered, Into, Replay, Replayed, read_log};
use crate::{ledger, manifest, rows};

/// What is asked of a log before it is taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Least {
    /// It is all that `thread.json` remembers, and nothing is behind its last checkpoint.
    Whole,
    /// It holds up to its last checkpoint; what it lacks is somebody else's business.
    Proven,
}

impl Core {
    /// Takes in a thread that was put together in the folder `staged`, which is on the same disk and synced.
    pub(crate) fn adopt(&self, thread: &ThreadId, head: &Head, staged: &Path) -> Result<Head> {
        let _turn = self.turns.enter(thread, None);
        self.read(|connection| refuse_known(connection, thread))?;
        let folder = self.layout.thread(thread);
        if check_folder(&folder)? {
            // Of an arrival that was cut short, if it is the same log.
            let path = self.layout.transcript(thread);
            return match hash_file(&*self.disk, &path).map_err(io_error("read", &path))? == head.hash {
                true => self.index_folder(thread, Least::Whole),
                false => Err(crate::view::unindexed(thread)),
            };
        }
        self.disk.rename(staged, &folder).map_err(io_error("put in place", &folder))?;
        let taken = self
            .disk
            .sync_folder(self.layout.root())
            .map_err(io_error("sync", self.layout.root()))
            .and_then(|()| self.index_folder(thread, Least::Whole));
        if taken.is_err() {
            // Back to where whoever staged it tidies up, unless it is known: another process may have found it here and taken it in, or it
            // is not certain that we did not. Nobody can come between, and if it fails it lies where it is not written over.
            _ = lock(self.gate()?).alone(&self.layout, |_| {
                self.read(|connection| refuse_known(connection, thread))?;
                self.disk.rename(&folder, staged).map_err(io_error("put back", &folder))
            });
        }
        taken
    }

    /// Reads the log of a thread that has a folder and no rows into the database, in one transaction.
    pub(crate) fn index_folder(&self, thread: &ThreadId, least: Least) -> Result<Head> {
        let path = self.layout.transcript(thread);
        let head = self.write(Durability::Synced, |connection| {
            refuse_known(connection, thread)?;
            let shown = match manifest::read(&self.layout, &*self.disk, &self.trust, thread) {
                Err(Error::Unbelieved { .. }) => None,
                Err(Error::Integrity { .. }) if least == Least::Proven => None,
                other => other?,
            };
            let newest = Place::newest(connection)?;
            let mut replay = Replay::new(connection, thread, Into::Fresh);
            let read = read_log(&*self.disk, &self.layout, thread, &self.trust, None, |entry| replay.entry(entry));
            let examined = read.map_err(io_error("read", &path))?;
            let remembered: Vec<_> = shown.iter().map(|shown| shown.memory.clone()).collect();
            let finding =
                judge(&examined, Evidence { remembered: &remembered, ..Evidence::default() }, Mode::Strict).finding;
            let is_enough = matches!(
                (&finding, least),
                (Finding::Sound, _) | (Finding::Foreign { .. } | Finding::Truncated { .. }, Least::Proven)
            );
            let Some(tail) = examined.tail.as_ref().filter(|_| is_enough) else {
                return Err(Error::Log { thread: thread.clone(), finding });
            };
            let seal = self.signing.as_ref().map(|signing| &signing.seal);
            let Replayed { id, gathered, .. } = replay.finish(tail, seal, 0)?;
            take_in(connection, newest, id, gathered)?;
            let has_manifest = fs::symlink_metadata(self.layout.manifest(thread)).is_ok();
            let sql = "UPDATE threads SET manifest_stale = ? WHERE id = ?";
            rows::execute(connection, sql, params![!has_manifest, id])?;
            Ok(rows::existing(connection, thread)?.head)
        })?;
        self.forget(thread);
        self.tell();
        Ok(head)
    }
}

fn refuse_known(connection: &Connection, thread: &ThreadId) -> Result<()> {
    match (rows::find(connection, thread)?, rows::tombstone(connection, thread)?) {
        (Some(_), _) => Err(Error::Exists(thread.clone())),
        (_, Some(_)) => Err(Error::Deleted(thread.clone())),
        _ => Ok(()),
    }
}

/// Takes in what a log says that belongs to no thread alone. Postings that other logs tell of too are known already; where
/// some are missing, `reindex` has the exact account once all its logs are there. `newest` is the newest place in the feed before the head
/// of the thread was moved.
pub(crate) fn take_in(connection: &Connection, mut newest: Place, id: i64, mut gathered: Gathered) -> Result<()> {
    for arrival in &gathered.arrivals {
        newest.announce_moved(connection, id, arrival.version, &arrival.lines)?;
    }
    gathered
        .postings
        .sort_by(|(_, one), (_, two)| (&one.account, one.account_version).cmp(&(&two.account, two.account_version)));
    for (event_type, record) in &gathered.postings {
        ledger::take(connection, event_type, record)?;
    }
    Ok(())
}
