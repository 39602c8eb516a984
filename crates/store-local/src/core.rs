//! What all modules of an open store share: paths, keys, connections, the writer connection, and the threads cached between commits.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use selvedge_log::hash::SealKey;
use selvedge_log::{Signer, Trust};
use selvedge_model::account::AccountId;
use selvedge_model::{Clock, Ids, OwnerId, ThreadId};
use selvedge_store::group::Group;
use selvedge_store::lease::LeaseQueue;
use selvedge_store::queue::Queues;
use selvedge_store::{Error, Result};

use crate::anchor::AnchorCache;
pub(crate) use crate::cache::CachedThread;
use crate::cache::ThreadCache;
use crate::commit::{Job, JobOutcome};
use crate::db::{Db, Sealer};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::handles::Handles;
use crate::layout::Layout;
use crate::logged::LoggedMessages;
use crate::problems::Problems;
use crate::redo::{self, Spares};
use crate::schema::{self, ConnectionMode, database};
use crate::watch::Watch;

/// Locks a mutex; a panic of another thread leaves its value consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An I/O error, with the operation that failed.
pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

/// Everything an open store is made of.
pub(crate) struct Core {
    pub(crate) layout: Layout,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) signing: Option<Signing>,
    pub(crate) trust: Trust,
    pub(crate) owner: OwnerId,
    /// Declared, and so closed, before the connection that writes: the last connection to close moves the write-ahead log into the
    /// database, and one that only reads can't.
    pub(crate) readers: Readers,
    /// The only connection that writes; absent in a store that is only read.
    pub(crate) writer: Option<Mutex<DbWriter>>,
    /// Serializes this process's commits to each thread, so that no signature is wasted on a conflict.
    pub(crate) queues: Arc<Queues>,
    pub(crate) lease_queue: LeaseQueue,
    pub(crate) group: Group<Job, JobOutcome>,
    pub(crate) cache: Mutex<ThreadCache>,
    pub(crate) handles: Handles,
    pub(crate) pending: Mutex<Pending>,
    pub(crate) pending_changed: Condvar,
    pub(crate) spares: Mutex<Spares>,
    /// Detects writes of other processes since this store was opened and all redo was drained; none if some redo was left.
    pub(crate) opened: Mutex<Option<DataVersion>>,
    /// Threads that wait for commits of this process or another one.
    pub(crate) watch: Watch,
    /// The newest known version of each account that was used; on first use it is compared with what the logs of its family posted.
    pub(crate) accounts: Mutex<HashMap<AccountId, u64>>,
    /// What this process knows about the anchor.
    pub(crate) anchor: AnchorCache,
    /// The messages of the log that was read last to confirm that one was sent twice.
    pub(crate) logged: Mutex<Option<LoggedMessages>>,
    /// Problems that were found and repaired, until the caller takes them.
    pub(crate) problems: Problems,
}

/// The key of this store and what is derived from it.
pub(crate) struct Signing {
    pub(crate) signer: Signer,
    pub(crate) seal: SealKey,
    /// Seals and checks the rows of this store.
    pub(crate) rows: Arc<Sealer>,
}

impl Signing {
    /// The signer, and the seal keys derived from it for the store of this id.
    pub(crate) fn new(signer: Signer, store: &str) -> Self {
        Self { rows: Sealer::new(&signer, store), seal: signer.seal_key(), signer }
    }
}

/// Bytes that are written to transcripts and not synced yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Per thread: the newest redo row whose bytes are in the transcript, and whether its folder is new.
    pub(crate) threads: HashMap<ThreadId, PendingThread>,
    pub(crate) bytes: u64,
    pub(crate) phase: Phase,
}

/// One thread that waits for a sync.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingThread {
    pub(crate) id: i64,
    /// The redo rows whose bytes this process wrote into the transcript, or found there.
    pub(crate) redo: Vec<redo::RedoRow>,
    pub(crate) is_new: bool,
    /// The manifest that `thread.json` shows, if it was written; it counts as shown once the folder is synced.
    pub(crate) manifest: Option<String>,
}

/// The state of the background sync worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Open,
    /// Sync what is pending, then end.
    Closing,
    /// End at once, as a crash would.
    Abandoned,
}

/// Whether a transaction is synced before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It survives a power failure.
    Synced,
    /// It survives the death of the process. A power failure ends all lease holders anyway, or the work can be repeated.
    Lazy,
}

/// The only connection that writes to the database, and the lock that serializes writers.
pub(crate) struct DbWriter {
    connection: Option<Db>,
    /// Seals its rows.
    sealer: Option<Arc<Sealer>>,
    /// How many connections there were before this one.
    connections: u64,
    durability: Durability,
    /// A sync of SQLite's write-ahead log failed: frames of earlier, unsynced transactions may be lost without notice.
    log_is_suspect: bool,
    queue: Box<dyn DiskFile>,
}

/// A number that changes whenever another process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataVersion {
    /// The connection that it was read from.
    connection: u64,
    version: i64,
}

/// How a transaction ended.
pub(crate) enum TransactionEnd<T, E = Error> {
    /// With this result.
    Known(Result<T, E>),
    /// The outcome is unknown: the sync of the commit failed.
    Unknown(T, String),
}

impl DbWriter {
    /// Registers `owner` as alive and opens the database, both while no other process writes. A process that rebuilds the database holds
    /// the same lock, so it sees this owner either not at all or alive, and no owner is left with the replaced database.
    pub(crate) fn open(
        layout: &Layout,
        disk: &dyn Disk,
        owner: &OwnerId,
        sealer: Option<Arc<Sealer>>,
    ) -> Result<(Self, Box<dyn DiskFile>)> {
        let path = layout.commit_lock();
        let queue = disk.open(&path, OpenMode::Create).map_err(io_error("open", &path))?;
        queue.lock().map_err(io_error("lock", &path))?;
        let entered = register_owner(layout, disk, owner).and_then(|file| Ok((open_to_write(layout, disk)?, file)));
        // Closing the file would release the lock as well.
        _ = queue.unlock();
        if entered.is_err() {
            // This owner holds nothing; the next process that opens the store would remove the file too.
            _ = disk.remove(&layout.owner(owner));
        }
        let (connection, file) = entered?;
        let writer = Self {
            connection: Some(Db::new(connection, sealer.clone())),
            sealer,
            connections: 0,
            durability: Durability::Synced,
            log_is_suspect: false,
            queue,
        };
        Ok((writer, file))
    }

    /// Runs `work` while no other process can write.
    pub(crate) fn exclusive<T>(&mut self, layout: &Layout, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let path = layout.commit_lock();
        self.queue.lock().map_err(io_error("lock", &path))?;
        let result = work(self);
        // Closing the file would release the lock as well; an error here changes nothing that was decided.
        _ = self.queue.unlock();
        result
    }

    /// Runs `work` in a transaction; must be called from within [`DbWriter::exclusive`].
    pub(crate) fn transaction<T, E: From<Error>>(
        &mut self,
        layout: &Layout,
        durability: Durability,
        work: impl FnOnce(&Db) -> Result<T, E>,
    ) -> TransactionEnd<T, E> {
        let connection = match self.ready(layout, durability) {
            Ok(connection) => connection,
            Err(error) => return TransactionEnd::Known(Err(error.into())),
        };
        if let Err(error) = run(connection, "BEGIN IMMEDIATE") {
            // If SQLite can't open the database for writing, it opens it for reading and keeps that mode, even if the cause was temporary.
            if matches!(error, Error::Io { .. }) {
                self.connection = None;
            }
            return TransactionEnd::Known(Err(error.into()));
        }
        match work(connection) {
            Ok(value) => match run(connection, "COMMIT") {
                Ok(()) => TransactionEnd::Known(Ok(value)),
                // Nothing was committed.
                Err(error @ Error::Io { .. }) => {
                    _ = run(connection, "ROLLBACK");
                    TransactionEnd::Known(Err(error.into()))
                }
                Err(error) => {
                    // After a failed sync the pages in memory prove nothing: this connection is not used again.
                    self.connection = None;
                    self.log_is_suspect = true;
                    // The next commit, in any process, must not append after frames that may be lost. If this fails now, it is repeated
                    // before this process writes again.
                    _ = self.ready(layout, durability);
                    TransactionEnd::Unknown(value, error.to_string())
                }
            },
            Err(error) => {
                if run(connection, "ROLLBACK").is_err() {
                    self.connection = None;
                }
                TransactionEnd::Known(Err(error))
            }
        }
    }

    /// Keeps a short write-ahead log when the database is closed.
    pub(crate) fn keep_short_log(&self) -> Result<()> {
        self.connection.as_ref().map_or(Ok(()), |connection| crate::wal::keep_short(connection))
    }

    /// A value that changes when another process writes; must be called from within [`DbWriter::exclusive`].
    pub(crate) fn data_version(&mut self, layout: &Layout) -> Result<DataVersion> {
        let durability = self.durability;
        let connection = self.ready(layout, durability)?;
        let version = connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(database)?;
        Ok(DataVersion { connection: self.connections, version })
    }

    fn ready(&mut self, layout: &Layout, durability: Durability) -> Result<&Db> {
        if self.connection.is_none() {
            self.connection = Some(Db::open(&layout.database(), ConnectionMode::Write, self.sealer.clone())?);
            self.connections += 1;
            self.durability = Durability::Synced;
        }
        if self.log_is_suspect {
            let connection = self.connection.take();
            if let Some(connection) = &connection {
                restart_log(connection)?;
            }
            self.connection = connection;
            self.log_is_suspect = false;
        }
        let connection = self
            .connection
            .as_ref()
            .ok_or_else(|| Error::Database { why: "there is no connection".to_owned(), retryable: true })?;
        if self.durability != durability {
            let level = if durability == Durability::Synced { "FULL" } else { "NORMAL" };
            connection.pragma_update(None, "synchronous", level).map_err(database)?;
            self.durability = durability;
        }
        Ok(connection)
    }
}

/// Moves everything in the write-ahead log into the database, synced, and starts a new log.
fn restart_log(connection: &Connection) -> Result<()> {
    let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    match busy.map_err(database)? {
        0 => Ok(()),
        _ => Err(Error::Database { why: "checkpoint blocked by a long-running reader".to_owned(), retryable: true }),
    }
}

/// Creates and locks the file of an owner; the owner is alive as long as the file is locked. Under the commit lock.
fn register_owner(layout: &Layout, disk: &dyn Disk, owner: &OwnerId) -> Result<Box<dyn DiskFile>> {
    let path = layout.owner(owner);
    let file = disk.open(&path, OpenMode::CreateNew).map_err(io_error("create", &path))?;
    // The file is new, so no other process is its owner; one that checks whether it is locked holds it for a moment.
    file.lock().map_err(io_error("lock", &path))?;
    Ok(file)
}

/// Opens the database for writing. SQLite syncs the name of a new write-ahead log itself, but ignores a failure, so the folder is synced
/// again.
fn open_to_write(layout: &Layout, disk: &dyn Disk) -> Result<Connection> {
    let had_log = layout.database().with_extension("db-wal").exists();
    let connection = schema::open(&layout.database(), ConnectionMode::Write)?;
    // The file itself says how it is written; another program may have changed that, and readers would block writers.
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(database)?;
    if mode != "wal" {
        connection.pragma_update(None, "journal_mode", "wal").map_err(database)?;
    }
    // If SQLite can't open the database for writing, it opens it for reading and keeps that mode; the index of its log stays read-only as
    // long as this process has any connection. Detected here, while a second attempt still helps.
    run(&connection, "BEGIN IMMEDIATE").and_then(|()| run(&connection, "ROLLBACK"))?;
    if !had_log {
        disk.sync_folder(layout.root()).map_err(io_error("sync", layout.root()))?;
    }
    Ok(connection)
}

/// Runs a statement without parameters.
pub(crate) fn run(connection: &Connection, statement: &str) -> Result<()> {
    connection.prepare_cached(statement).and_then(|mut statement| statement.execute([])).map_err(database)?;
    Ok(())
}

/// A pool of read-only connections.
pub(crate) struct Readers {
    /// Checks the seals of rows.
    sealer: Option<Arc<Sealer>>,
    idle: Mutex<Vec<Db>>,
    returned: Condvar,
    made: Mutex<usize>,
}

/// The maximum number of connections that read at once.
const READERS_MAX: usize = 4;

impl Readers {
    pub(crate) fn new(sealer: Option<Arc<Sealer>>) -> Self {
        Self { sealer, idle: Mutex::default(), returned: Condvar::new(), made: Mutex::new(0) }
    }

    /// Runs `work` with a read-only connection, in one transaction: everything it reads is of one moment. Rows that are checked against
    /// each other would seem inconsistent if a commit came between them.
    pub(crate) fn with<T>(&self, layout: &Layout, work: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        let connection = self.take(layout)?;
        let result = run(&connection, "BEGIN").and_then(|()| work(&connection));
        // After an error SQLite may have ended the transaction itself.
        if !connection.is_autocommit() && run(&connection, "COMMIT").is_err() {
            drop(connection);
            *lock(&self.made) -= 1;
        } else {
            lock(&self.idle).push(connection);
        }
        self.returned.notify_one();
        result
    }

    fn take(&self, layout: &Layout) -> Result<Db> {
        let mut idle = lock(&self.idle);
        loop {
            if let Some(connection) = idle.pop() {
                return Ok(connection);
            }
            let mut made = lock(&self.made);
            if *made < READERS_MAX {
                let connection = Db::open(&layout.database(), ConnectionMode::Read, self.sealer.clone())?;
                *made += 1;
                return Ok(connection);
            }
            drop(made);
            idle = self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Core {
    /// Reads the database as of one moment.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        self.readers.with(&self.layout, work)
    }

    /// Writes to the database, for everything that is not a commit.
    pub(crate) fn write<T>(&self, durability: Durability, work: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        let mut writer = lock(self.writer()?);
        writer.exclusive(&self.layout, |writer| match writer.transaction(&self.layout, durability, work) {
            TransactionEnd::Known(result) => result,
            TransactionEnd::Unknown(_, why) => Err(Error::OutcomeUnknown { why }),
        })
    }

    pub(crate) fn writer(&self) -> Result<&Mutex<DbWriter>> {
        self.writer
            .as_ref()
            .ok_or_else(|| schema::unusable("the store", "it was opened for reading only".to_owned(), None))
    }

    pub(crate) fn signing(&self) -> Result<&Signing> {
        let hint = Some("`selvedge init` creates a key");
        self.signing
            .as_ref()
            .ok_or_else(|| schema::unusable("the store", "there is no key to sign with".to_owned(), hint))
    }

    /// Whether the process of `owner` is alive, by its file lock, not by a clock.
    pub(crate) fn is_alive(&self, owner: &OwnerId) -> Result<bool> {
        if *owner == self.owner && self.writer.is_some() {
            return Ok(true);
        }
        let path = self.layout.owner(owner);
        match self.disk.open(&path, OpenMode::Read) {
            Ok(file) => Ok(!file.is_unlocked().map_err(io_error("check the lock of", &path))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error("open", &path)(error)),
        }
    }

    /// Wakes the threads of this process that wait for commits.
    pub(crate) fn notify_waiters(&self) {
        self.watch.ring();
    }
}
