//! The database's write-ahead log, moved into the database before a commit has to.
//!
//! Left to itself, SQLite does that within whichever commit fills the log, which then waits for thousands of pages and two
//! syncs, and everybody behind it. Here the worker does it: most of it while others commit, by a connection of its own, and
//! the little that came meanwhile under `commit.lock`, so that the next commit begins the log anew.
//!
//! A page goes into the database only after the log that has it is synced; that is SQLite's own order. So a crash at any
//! point costs nothing, and what could not be moved is moved next time.

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use selvedge_store::Result;

use crate::core::{Core, lock};
use crate::schema::{self, Use, database};

/// How many frames make it worth moving them, and how many for each thread that committed of late. The more commit, the more often
/// the log has the same pages; each is moved once.
const ENOUGH_FRAMES: i64 = 2_000;
const ENOUGH_FRAMES_PER_THREAD: i64 = 125;
/// How many are enough however many threads there are.
const ENOUGH_FRAMES_MAX: i64 = 8_000;

/// Moves the write-ahead log; opened when it is needed first.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    connection: Option<Connection>,
}

impl Mover {
    /// Moves the log if it is long, for a store in which so many threads committed of late.
    pub(crate) fn work(&mut self, core: &Core, threads: usize) -> Result<()> {
        let per_thread = ENOUGH_FRAMES_PER_THREAD.saturating_mul(i64::try_from(threads).unwrap_or(i64::MAX));
        let moved = self.try_work(core, per_thread.clamp(ENOUGH_FRAMES, ENOUGH_FRAMES_MAX));
        if moved.is_err() {
            // Of a connection that failed to sync nothing is known.
            self.connection = None;
        }
        moved
    }

    fn try_work(&mut self, core: &Core, enough: i64) -> Result<()> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::open(&core.layout.database(), Use::Write)?,
        };
        let connection = self.connection.insert(connection);
        if left(connection, "PRAGMA wal_checkpoint(NOOP)")? < enough {
            return Ok(());
        }
        left(connection, "PRAGMA wal_checkpoint(PASSIVE)")?;
        lock(core.gate()?).alone(&core.layout, |_| left(connection, "PRAGMA wal_checkpoint(PASSIVE)").map(|_| ()))
    }
}

/// How many frames may stay in the log when a store is closed in a hurry: half a megabyte. The next process goes on with it, or moves it.
const SHORT_FRAMES: i64 = 256;

/// Lets a short log stay when this connection is the last that is closed: moving it costs two syncs, and beginning it anew two more.
pub(crate) fn keep_short(connection: &Connection) -> Result<()> {
    if left(connection, "PRAGMA wal_checkpoint(NOOP)")? < SHORT_FRAMES {
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(database)?;
    }
    Ok(())
}

/// Runs a statement about the log, and gives how many frames are not in the database afterwards.
fn left(connection: &Connection, statement: &str) -> Result<i64> {
    let mut statement = connection.prepare_cached(statement).map_err(database)?;
    let counted = statement.query_row([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)));
    let (frames, moved) = counted.map_err(database)?;
    Ok(frames - moved)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use selvedge_log::Trust;

    use super::*;
    use crate::core::{Durability, run};
    use crate::disk::RealDisk;
    use crate::system::{SystemClock, SystemIds};
    use crate::{Access, LocalStore, Options};

    fn open(folder: &tempfile::TempDir) -> LocalStore {
        LocalStore::open(Options {
            project: folder.path().to_owned(),
            access: Access::ReadWrite,
            trust: Trust::of(&[]),
            signer: None,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })
        .unwrap()
    }

    /// Fills the log with at least this many frames.
    fn fill(core: &Core, frames: i64) {
        let statement = format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {frames}) \
             INSERT INTO redo (thread, offset, bytes) SELECT -1, i, zeroblob(1900) FROM n"
        );
        core.write(Durability::Lazy, |connection| run(connection, &statement)).unwrap();
    }

    #[test]
    fn a_long_log_is_moved_and_begins_anew_with_the_next_commit() {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        let store = open(&folder);
        let core = &store.core;
        let look = schema::open(&core.layout.database(), Use::Write).unwrap();
        let left = || left(&look, "PRAGMA wal_checkpoint(NOOP)").unwrap();
        let mut mover = Mover::default();
        fill(core, 100);
        mover.work(core, 1).unwrap();
        assert!(left() >= 100, "a short log is not worth it");
        fill(core, ENOUGH_FRAMES);
        mover.work(core, 64).unwrap();
        assert!(left() >= ENOUGH_FRAMES, "it is short for so many");
        mover.work(core, 1).unwrap();
        assert_eq!(left(), 0);
        fill(core, ENOUGH_FRAMES_MAX);
        mover.work(core, usize::MAX).unwrap();
        assert_eq!(left(), 0);
        fill(core, ENOUGH_FRAMES);
        crate::sync::rest(core, &mut mover);
        assert_eq!(left(), 0, "a pause is as good a time");
        let length = || std::fs::metadata(core.layout.database().with_extension("db-wal")).unwrap().len();
        let before = length();
        fill(core, 100);
        assert_eq!((left() < 200, length()), (true, before));
    }

    /// A command that ends at once moved the log into the database and began it anew each time: four syncs more than the commit needs.
    #[test]
    fn a_short_log_stays_for_the_next_process_and_a_long_one_is_moved() {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        let log = folder.path().join(".ai/agent/threads/registry.db-wal");
        let length = || std::fs::metadata(&log).map_or(0, |found| found.len());
        let store = open(&folder);
        fill(&store.core, 10);
        store.close_briefly().unwrap();
        assert!(length() > 0, "a short one stays");
        let store = open(&folder);
        fill(&store.core, SHORT_FRAMES);
        store.close_briefly().unwrap();
        assert_eq!(length(), 0, "a long one is moved");
        let store = open(&folder);
        fill(&store.core, 10);
        store.close().unwrap();
        assert_eq!(length(), 0, "and any one is if the store is closed in order");
    }
}
