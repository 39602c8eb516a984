//! Moves the database's write-ahead log into the database before a commit has to.
//!
//! By default SQLite does that within the commit that fills the log, which then waits for thousands of pages and two syncs, and every later
//! commit waits too. Here the worker does it: most of it while commits continue, with a connection of its own, and the remainder under
//! `commit.lock`, so that the next commit starts the log over.
//!
//! A page goes into the database only after the log that has it is synced; that is SQLite's own order. So a crash at any point loses
//! nothing, and what could not be moved is moved next time.

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use selvedge_store::Result;

use crate::core::{Core, lock};
use crate::schema::{self, ConnectionMode, database};

/// The number of frames that are moved, and the number for each thread that committed recently. The more threads commit, the more often the
/// log has the same pages; each is moved once.
const ENOUGH_FRAMES: i64 = 2_000;
const ENOUGH_FRAMES_PER_THREAD: i64 = 125;
/// The maximum, however many threads there are.
const ENOUGH_FRAMES_MAX: i64 = 8_000;

/// Moves the write-ahead log; its connection is opened on first use.
#[derive(Debug, Default)]
pub(crate) struct WalMover {
    connection: Option<Connection>,
}

impl WalMover {
    /// Moves the log if it is long, for a store in which this many threads committed recently.
    pub(crate) fn work(&mut self, core: &Core, threads: usize) -> Result<()> {
        let per_thread = ENOUGH_FRAMES_PER_THREAD.saturating_mul(i64::try_from(threads).unwrap_or(i64::MAX));
        let moved = self.try_work(core, per_thread.clamp(ENOUGH_FRAMES, ENOUGH_FRAMES_MAX));
        if moved.is_err() {
            // After a failed sync nothing is known about the connection.
            self.connection = None;
        }
        moved
    }

    fn try_work(&mut self, core: &Core, enough: i64) -> Result<()> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => schema::open(&core.layout.database(), ConnectionMode::Write)?,
        };
        let connection = self.connection.insert(connection);
        if frames_left(connection, "PRAGMA wal_checkpoint(NOOP)")? < enough {
            return Ok(());
        }
        frames_left(connection, "PRAGMA wal_checkpoint(PASSIVE)")?;
        lock(core.writer()?)
            .exclusive(&core.layout, |_| frames_left(connection, "PRAGMA wal_checkpoint(PASSIVE)").map(|_| ()))
    }
}

/// How many frames may stay in the log on a quick close: half a megabyte. The next process continues with it, or moves it.
const SHORT_FRAMES: i64 = 256;

/// Keeps a short log if this connection is the last one to close: moving it costs two syncs, and starting a new one two more.
pub(crate) fn keep_short(connection: &Connection) -> Result<()> {
    if frames_left(connection, "PRAGMA wal_checkpoint(NOOP)")? < SHORT_FRAMES {
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(database)?;
    }
    Ok(())
}

/// Runs a checkpoint statement; returns how many frames are not in the database afterwards.
fn frames_left(connection: &Connection, statement: &str) -> Result<i64> {
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
    fn a_long_log_is_moved_and_the_next_commit_starts_it_over() {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        let store = open(&folder);
        let core = &store.core;
        let look = schema::open(&core.layout.database(), ConnectionMode::Write).unwrap();
        let left = || frames_left(&look, "PRAGMA wal_checkpoint(NOOP)").unwrap();
        let mut mover = WalMover::default();
        fill(core, 100);
        mover.work(core, 1).unwrap();
        assert!(left() >= 100, "a short log is not moved");
        fill(core, ENOUGH_FRAMES);
        mover.work(core, 64).unwrap();
        assert!(left() >= ENOUGH_FRAMES, "it is short for this many threads");
        mover.work(core, 1).unwrap();
        assert_eq!(left(), 0);
        fill(core, ENOUGH_FRAMES_MAX);
        mover.work(core, usize::MAX).unwrap();
        assert_eq!(left(), 0);
        fill(core, ENOUGH_FRAMES);
        crate::sync::rest(core, &mut mover);
        assert_eq!(left(), 0, "it is moved when idle");
        let length = || std::fs::metadata(core.layout.database().with_extension("db-wal")).unwrap().len();
        let before = length();
        fill(core, 100);
        assert_eq!((left() < 200, length()), (true, before));
    }

    /// A command that ends at once moved the log into the database and started a new one each time: four syncs more than the commit needs.
    #[test]
    fn a_short_log_is_left_to_the_next_process_and_a_long_one_is_moved() {
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
        assert_eq!(length(), 0, "a full close moves any log");
    }
}
