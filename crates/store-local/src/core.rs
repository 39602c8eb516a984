//! What all parts of an open store share: paths, keys, connections, the gate to writing, and what is remembered of
//! threads between commits.

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
use selvedge_store::lease::Desk;
use selvedge_store::queue::Queues;
use selvedge_store::{Error, Result};

use crate::amiss::Amiss;
use crate::anchor::Known;
use crate::commit::{Job, Outcome};
use crate::db::{Db, Sealer};
use crate::disk::{Disk, DiskFile, How};
use crate::family::Kin;
use crate::handles::Handles;
use crate::layout::Layout;
use crate::memory::Memory;
pub(crate) use crate::memory::Remembered;
use crate::redo::{self, Spares};
use crate::schema::{self, Use, database};
use crate::watch::Watch;

/// Locks a mutex whose value no panic can leave half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error of the operating system, with what was to be done.
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
    /// Declared, and so closed, before the connection that writes: the last one to close folds the write-ahead log into
    /// the database, and one that only reads can't.
    pub(crate) readers: Readers,
    /// The only connection that writes; absent in a store that is only read.
    pub(crate) gate: Option<Mutex<Gate>>,
    /// Commits of this process to one thread, in line, so that no signature is made in vain.
    pub(crate) turns: Arc<Queues>,
    pub(crate) desk: Desk,
    pub(crate) group: Group<Job, Outcome>,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) handles: Handles,
    pub(crate) pending: Mutex<Pending>,
    pub(crate) pending_changed: Condvar,
    pub(crate) spares: Mutex<Spares>,
    /// Who had written when this store was opened and all redo there was had been drained; nothing if some was left.
    pub(crate) opened: Mutex<Option<Others>>,
    /// Those who wait to hear of what is committed, here or by another process.
    pub(crate) watch: Watch,
    /// The newest version that is known of each account that was used; the first look compares it with what the logs of its family posted.
    pub(crate) accounts: Mutex<HashMap<AccountId, u64>>,
    /// Which threads may have posted to which accounts.
    pub(crate) kin: Mutex<Kin>,
    /// What is known of the anchor.
    pub(crate) anchor: Known,
    /// What was found amiss and mended on the way, until a caller asks for it.
    pub(crate) amiss: Amiss,
}

/// The key of this store and what is derived from it.
pub(crate) struct Signing {
    pub(crate) signer: Signer,
    pub(crate) seal: SealKey,
    /// What rows of this store are sealed and checked with.
    pub(crate) rows: Arc<Sealer>,
}

impl Signing {
    /// What the holder of a key seals and signs with in the store of this id.
    pub(crate) fn new(signer: Signer, store: &str) -> Self {
        Self { rows: Sealer::new(&signer, store), seal: signer.seal_key(), signer }
    }
}

/// What is written to transcripts and not synced yet.
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
    pub(crate) redo: Vec<redo::Row>,
    pub(crate) is_new: bool,
    /// The manifest that `thread.json` shows, if it was written; it counts as shown once the folder is synced.
    pub(crate) manifest: Option<String>,
}

/// Where the life of the background worker stands.
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
    /// It survives a power cut.
    Synced,
    /// It survives the death of the process; a power cut ends all owners anyway, or it can be done again.
    Lazy,
}

/// The one place where the database is written.
pub(crate) struct Gate {
    connection: Option<Db>,
    /// What its rows are sealed with.
    sealer: Option<Arc<Sealer>>,
    /// How many there were before this one.
    connections: u64,
    durability: Durability,
    /// A sync of SQLite's write-ahead log failed: frames of earlier, unsynced transactions may be lost behind our back.
    log_is_suspect: bool,
    queue: Box<dyn DiskFile>,
}

/// A number that changes whenever another process has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Others {
    /// Which of our connections says so.
    connection: u64,
    version: i64,
}

/// How a transaction ended.
pub(crate) enum Ended<T, E = Error> {
    /// As its work said.
    Known(Result<T, E>),
    /// Nobody knows: the sync of the commit failed.
    Unknown(T, String),
}

impl Gate {
    /// Says that `owner` lives and opens the database, both while no other process writes: whoever rebuilds the database
    /// holds the same lock, and finds either nobody or somebody alive, never somebody with the database that was.
    pub(crate) fn enter(
        layout: &Layout,
        disk: &dyn Disk,
        owner: &OwnerId,
        sealer: Option<Arc<Sealer>>,
    ) -> Result<(Self, Box<dyn DiskFile>)> {
        let path = layout.commit_lock();
        let queue = disk.open(&path, How::Make).map_err(io_error("open", &path))?;
        queue.lock().map_err(io_error("lock", &path))?;
        let entered = say_alive(layout, disk, owner).and_then(|file| Ok((open_to_write(layout, disk)?, file)));
        // Closing the file would free the lock as well.
        _ = queue.unlock();
        if entered.is_err() {
            // An owner that is dead and holds nothing; who opens the store next would tidy it away too.
            _ = disk.remove(&layout.owner(owner));
        }
        let (connection, file) = entered?;
        let gate = Self {
            connection: Some(Db::new(connection, sealer.clone())),
            sealer,
            connections: 0,
            durability: Durability::Synced,
            log_is_suspect: false,
            queue,
        };
        Ok((gate, file))
    }

    /// Runs `work` while no other process writes.
    pub(crate) fn alone<T>(&mut self, layout: &Layout, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let path = layout.commit_lock();
        self.queue.lock().map_err(io_error("lock", &path))?;
        let result = work(self);
        // Closing the file would free the lock as well; an error here changes nothing that was decided.
        _ = self.queue.unlock();
        result
    }

    /// Runs `work` in a transaction; must be called from within [`Gate::alone`].
    pub(crate) fn transaction<T, E: From<Error>>(
        &mut self,
        layout: &Layout,
        durability: Durability,
        work: impl FnOnce(&Db) -> Result<T, E>,
    ) -> Ended<T, E> {
        let connection = match self.ready(layout, durability) {
            Ok(connection) => connection,
            Err(error) => return Ended::Known(Err(error.into())),
        };
        if let Err(error) = run(connection, "BEGIN IMMEDIATE") {
            // SQLite opens what it can't open to write for reading, and stays with that, also after a moment of too many open files.
            if matches!(error, Error::Io { .. }) {
                self.connection = None;
            }
            return Ended::Known(Err(error.into()));
        }
        match work(connection) {
            Ok(value) => match run(connection, "COMMIT") {
                Ok(()) => Ended::Known(Ok(value)),
                // Nothing was written for good: SQLite says so itself by being out of the transaction or still in it.
                Err(error @ Error::Io { .. }) => {
                    _ = run(connection, "ROLLBACK");
                    Ended::Known(Err(error.into()))
                }
                Err(error) => {
                    // After a failed sync the pages in memory prove nothing: this connection is not used again.
                    self.connection = None;
                    self.log_is_suspect = true;
                    // Whoever commits next, in whichever process, must not write behind frames that may be lost; what
                    // can't be done now is done before this process writes again.
                    _ = self.ready(layout, durability);
                    Ended::Unknown(value, error.to_string())
                }
            },
            Err(error) => {
                if run(connection, "ROLLBACK").is_err() {
                    self.connection = None;
                }
                Ended::Known(Err(error))
            }
        }
    }

    /// Lets the write-ahead log stay, if it is short, when the database is closed.
    pub(crate) fn keep_short_log(&self) -> Result<()> {
        self.connection.as_ref().map_or(Ok(()), |connection| crate::wal::keep_short(connection))
    }

    /// What tells whether another process has written; must be called from within [`Gate::alone`].
    pub(crate) fn others(&mut self, layout: &Layout) -> Result<Others> {
        let durability = self.durability;
        let connection = self.ready(layout, durability)?;
        let asked = connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut asked| asked.query_row([], |row| row.get(0)));
        let version = asked.map_err(database)?;
        Ok(Others { connection: self.connections, version })
    }

    fn ready(&mut self, layout: &Layout, durability: Durability) -> Result<&Db> {
        if self.connection.is_none() {
            self.connection = Some(Db::open(&layout.database(), Use::Write, self.sealer.clone())?);
            self.connections += 1;
            self.durability = Durability::Synced;
        }
        if self.log_is_suspect {
            let connection = self.connection.take();
            if let Some(connection) = &connection {
                begin_log_anew(connection)?;
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

/// Moves everything in the write-ahead log into the database, synced there, and begins the log anew.
fn begin_log_anew(connection: &Connection) -> Result<()> {
    let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    match busy.map_err(database)? {
        0 => Ok(()),
        _ => Err(Error::Database { why: "somebody reads for too long".to_owned(), retryable: true }),
    }
}

/// Makes the file of an owner and locks it; the owner lives as long as the file is open.
fn say_alive(layout: &Layout, disk: &dyn Disk, owner: &OwnerId) -> Result<Box<dyn DiskFile>> {
    let path = layout.owner(owner);
    let file = disk.open(&path, How::MakeNew).map_err(io_error("create", &path))?;
    match file.try_lock().map_err(io_error("lock", &path))? {
        true => Ok(file),
        false => Err(schema::unusable("the store", "somebody else has our name".to_owned(), Some("try again"))),
    }
}

/// Opens the database to write. SQLite syncs the name of a new write-ahead log itself, and does not look whether that failed.
fn open_to_write(layout: &Layout, disk: &dyn Disk) -> Result<Connection> {
    let had_log = layout.database().with_extension("db-wal").exists();
    let connection = schema::open(&layout.database(), Use::Write)?;
    // What SQLite can't open to write it opens for reading and stays with that, the index of its log for as long as this process has any
    // connection: that is found out now, while a second try still helps.
    run(&connection, "BEGIN IMMEDIATE").and_then(|()| run(&connection, "ROLLBACK"))?;
    if !had_log {
        disk.sync_folder(layout.root()).map_err(io_error("sync", layout.root()))?;
    }
    Ok(connection)
}

/// Runs a statement without values.
pub(crate) fn run(connection: &Connection, statement: &str) -> Result<()> {
    connection.prepare_cached(statement).and_then(|mut statement| statement.execute([])).map_err(database)?;
    Ok(())
}

/// Connections that only read, used in turn.
pub(crate) struct Readers {
    /// What rows are checked with.
    sealer: Option<Arc<Sealer>>,
    idle: Mutex<Vec<Db>>,
    returned: Condvar,
    made: Mutex<usize>,
}

/// How many connections read at once at most.
const READERS_MAX: usize = 4;

impl Readers {
    pub(crate) fn new(sealer: Option<Arc<Sealer>>) -> Self {
        Self { sealer, idle: Mutex::default(), returned: Condvar::new(), made: Mutex::new(0) }
    }

    /// Runs `work` with a connection that only reads, in one transaction: everything it reads is of one moment. Rows that are checked
    /// against each other would contradict each other if a commit came between them.
    pub(crate) fn with<T>(&self, layout: &Layout, work: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        let connection = self.take(layout)?;
        let result = run(&connection, "BEGIN").and_then(|()| work(&connection));
        // After an error SQLite may have left the transaction by itself.
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
                let connection = Db::open(&layout.database(), Use::Read, self.sealer.clone())?;
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

    /// Writes the database, for everything that is not a commit.
    pub(crate) fn write<T>(&self, durability: Durability, work: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        let mut gate = lock(self.gate()?);
        gate.alone(&self.layout, |gate| match gate.transaction(&self.layout, durability, work) {
            Ended::Known(result) => result,
            Ended::Unknown(_, why) => Err(Error::OutcomeUnknown { why }),
        })
    }

    pub(crate) fn gate(&self) -> Result<&Mutex<Gate>> {
        self.gate
            .as_ref()
            .ok_or_else(|| schema::unusable("the store", "it was opened for reading only".to_owned(), None))
    }

    pub(crate) fn signing(&self) -> Result<&Signing> {
        let hint = Some("`selvedge init` makes a key");
        self.signing
            .as_ref()
            .ok_or_else(|| schema::unusable("the store", "there is no key to sign with".to_owned(), hint))
    }

    /// Whether the process that made `owner` lives; asked of the operating system, not of a clock.
    pub(crate) fn is_alive(&self, owner: &OwnerId) -> Result<bool> {
        if *owner == self.owner && self.gate.is_some() {
            return Ok(true);
        }
        let path = self.layout.owner(owner);
        match self.disk.open(&path, How::Read) {
            Ok(file) => Ok(!file.is_unlocked().map_err(io_error("look at the lock of", &path))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error("open", &path)(error)),
        }
    }

    /// Tells those who wait in this process that something was committed.
    pub(crate) fn tell(&self) {
        self.watch.ring();
    }
}
