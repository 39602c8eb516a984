//! Rebuilding the database from the logs.
//!
//! A new database is built next to the old one, synced and moved into its place, all under `commit.lock` and only while no process has the
//! store open for writing. Every log is read whole, every hash and every signature of it, and becomes the rows that its commits wrote
//! ([`crate::replay`]). Memory depends on the longest changeset and the number of threads, not on the size of the store.
//!
//! - Nothing acknowledged is lost: redo in the old database is drained and synced first; requests, answers to commit keys and accounts that
//!   are in no log any more are carried over. An unreadable database is moved aside, and the result says what could not be carried over.
//! - No head is lowered: a log that is shorter than the old database, `thread.json` or another log records, or that fails verification, is
//!   not indexed again. Its old rows are carried over unchanged, if there are any; its folder is left unchanged.
//! - A `store.json` that is missing or unreadable is written again; one that names another kind or a newer format is refused.
//! - No deleted thread comes back: a signed tombstone is final unless the log continues after it.
//!
//! After a crash at any point, the old database is still in place, or none is, or the new one is complete: running it again does what is
//! left to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use selvedge_log::{Signer, Trust};
use selvedge_model::account::AccountId;
use selvedge_model::{Ids, OwnerId, ThreadId};
use selvedge_store::{Error, Result};

use crate::core::{Core, io_error};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::layout::{Layout, is_there, listed};
use crate::open::{self, LocalStore};
use crate::schema;
use crate::system::SystemIds;

mod build;
mod carry;
mod old;
mod tombstones;

use old::OldDatabase;

/// The options for rebuilding a database.
pub struct Rebuild {
    /// The folder that holds `.ai`.
    pub project: PathBuf,
    /// The trusted keys.
    pub trust: Trust,
    /// The signer; without one everything is rebuilt too, and the next append to a thread reads its log once.
    pub signer: Option<Signer>,
    /// The disk.
    pub disk: Arc<dyn Disk>,
}

/// The ids of the stores that rows are sealed for.
#[derive(Clone, Copy)]
struct Stores<'a> {
    /// This store.
    id: &'a str,
    /// The store that the old database was sealed for.
    former: &'a str,
}

/// What a rebuilt database contains, and what could not be included.
#[derive(Clone, Debug, Default)]
pub struct Reindexed {
    /// Threads that were indexed.
    pub threads: u64,
    /// Their changesets.
    pub changesets: u64,
    /// Deleted threads.
    pub tombstones: u64,
    /// Interrupted deletions that were finished.
    pub finished_deletions: u64,
    /// Committed bytes that were missing in a transcript.
    pub drained_bytes: u64,
    /// Requests that were not consumed yet.
    pub requests: u64,
    /// Threads whose end is confirmed by nothing but the log itself: the old database was lost, and `thread.json` is older.
    pub unconfirmed_ends: u64,
    /// Threads that were not indexed again.
    pub left_out: Vec<LeftOut>,
    /// Accounts with missing postings; unknown amounts are counted as spent.
    pub incomplete_accounts: Vec<AccountId>,
    /// Other notices for the user, such as what could not be carried over.
    pub notices: Vec<String>,
}

/// A thread that was not indexed again.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// The thread.
    pub thread: ThreadId,
    /// Why.
    pub why: String,
    /// Whether it is in the database as it was before.
    pub is_known: bool,
}

impl LocalStore {
    /// Rebuilds the database of a project from its logs; refused while a process has the store open for writing. `progress` receives how
    /// many threads of how many are done.
    pub fn reindex(rebuild: &Rebuild, progress: &mut dyn FnMut(u64, u64)) -> Result<Reindexed> {
        let layout = Layout::of(&rebuild.project);
        open::check_ancestors(&rebuild.project, &layout)?;
        let reindexed = Self::reindex_at(&layout, rebuild, None, progress)?;
        // Its cursor is a position in the feed of the replaced database; the next search builds it anew.
        crate::search::remove_files(&layout, &*rebuild.disk)?;
        Core::forget_effects(&layout, &*rebuild.disk)?;
        Ok(reindexed)
    }

    /// The same for a store at this path, whose database may have been sealed for another store.
    pub(crate) fn reindex_at(
        layout: &Layout,
        rebuild: &Rebuild,
        former: Option<&str>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Reindexed> {
        let disk = &*rebuild.disk;
        if !is_there(layout.root())? {
            return Err(Error::NoStore { path: layout.root().display().to_string() });
        }
        open::refuse_network(layout.root())?;
        let (id, lost) = known_kind(layout, disk)?;
        for folder in [layout.owners(), layout.tombstones()] {
            disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        }
        let path = layout.commit_lock();
        let queue = disk.open(&path, OpenMode::Create).map_err(io_error("open", &path))?;
        queue.lock().map_err(io_error("lock", &path))?;
        let rebuilt = rebuild_locked(layout, rebuild, Stores { id: &id, former: former.unwrap_or(&id) }, progress);
        // Closing the file would release the lock as well.
        _ = queue.unlock();
        let mut rebuilt = rebuilt?;
        rebuilt.notices.extend(lost);
        Ok(rebuilt)
    }
}

/// The id of the store, and what was wrong with `store.json`, which is then written again with another id; one that names another kind of
/// store or a newer format is refused.
fn known_kind(layout: &Layout, disk: &dyn Disk) -> Result<(String, Option<String>)> {
    if !is_there(&layout.store_file())? {
        return Ok((SystemIds.hex32(), Some("`store.json` was missing, and is written again".to_owned())));
    }
    match open::check_kind(layout, disk) {
        Ok(kind) => Ok((kind.id, None)),
        Err(Error::Integrity { why, .. }) => {
            Ok((SystemIds.hex32(), Some(format!("`store.json` is written again: {why}"))))
        }
        Err(Error::Outdated { found, .. }) => Ok((SystemIds.hex32(), Some(format!("the store had format {found}")))),
        Err(error) => Err(error),
    }
}

/// Rebuilds while no other process can write.
fn rebuild_locked(
    layout: &Layout,
    rebuild: &Rebuild,
    stores: Stores<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Reindexed> {
    let disk = &*rebuild.disk;
    if let Some(owner) = live_owner(layout, disk)? {
        return Err(Error::Unusable {
            what: "the store".to_owned(),
            why: format!("a process has it open for writing, as owner {owner}"),
            hint: Some("let it finish, then run `selvedge reindex` again".to_owned()),
        });
    }
    let mut result = Reindexed::default();
    let mut old = OldDatabase::inspect(layout, disk, &rebuild.trust, &mut result)?;
    let inspected = result.clone();
    let beside = layout.database().with_extension("db.new");
    let mut build = |old: &OldDatabase, result: &mut Reindexed| -> Result<String> {
        remove_database(disk, &beside)?;
        disk.open(&beside, OpenMode::CreateNew).map_err(io_error("create", &beside))?;
        // Rows of a lost database may reappear: a new store id makes their seals invalid. The same holds for a database that another
        // program wrote to: only rows that are sealed again now are valid.
        let is_kept = *old == OldDatabase::Readable && old.is_sealed(layout, rebuild, stores.former)?;
        let id = if is_kept { stores.id.to_owned() } else { SystemIds.hex32() };
        build::build(layout, rebuild, Stores { id: &id, ..stores }, old, &beside, result, progress)?;
        Ok(id)
    };
    let mut built = build(&old, &mut result);
    if old == OldDatabase::Readable && built.as_ref().is_err_and(crate::rows::is_bad_row) {
        // A temporary read error looks like this too: only a database that fails twice is moved aside.
        result = inspected.clone();
        built = build(&old, &mut result);
    }
    let id = match built {
        // A row of the old database has a value that no program of ours writes. What it had committed is in the transcripts.
        Err(error) if old == OldDatabase::Readable && crate::rows::is_bad_row(&error) => {
            old = OldDatabase::Unreadable;
            result = inspected;
            result.notices.push(format!(
                "the old database has rows that can't be read ({error}): requests that were not consumed must be sent again; it is moved aside"
            ));
            build(&old, &mut result)?
        }
        built => built?,
    };
    let file = disk.open(&beside, OpenMode::Write).map_err(io_error("open", &beside))?;
    file.sync().map_err(io_error("sync", &beside))?;
    open::write_kind(layout, disk, &id)?;
    old.move_aside(layout, disk, &mut result)?;
    disk.rename(&beside, &layout.database()).map_err(io_error("replace", &layout.database()))?;
    disk.sync_folder(layout.root()).map_err(io_error("sync", layout.root()))?;
    Ok(result)
}

/// The write-ahead log, its index and the journal of a database.
pub(crate) fn companions(database: &Path) -> [PathBuf; 3] {
    ["-wal", "-shm", "-journal"].map(|end| {
        let mut name = database.as_os_str().to_owned();
        name.push(end);
        name.into()
    })
}

/// Removes the leftovers of an earlier attempt.
fn remove_database(disk: &dyn Disk, database: &Path) -> Result<()> {
    for path in companions(database).iter().map(PathBuf::as_path).chain([database]) {
        disk.remove(path).map_err(io_error("remove", path))?;
    }
    Ok(())
}

/// Refuses to replace a database that another process still reads: then its write-ahead log is not empty.
fn refuse_readers(database: &Path) -> Result<()> {
    let [log, ..] = companions(database);
    match fs::symlink_metadata(&log) {
        Ok(found) if found.len() > 0 => Err(Error::Database {
            why: "the database can't be replaced while another process reads it".to_owned(),
            retryable: true,
        }),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("check", &log)(error)),
        _ => Ok(()),
    }
}

/// Whether an error says that a database is damaged, and not that access is denied or must wait.
fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::Integrity { .. } | Error::Database { retryable: false, .. })
}

/// Runs SQLite's own check of a database.
fn check_whole(connection: &rusqlite::Connection) -> Result<()> {
    let found: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(schema::database)?;
    match found.as_str() {
        "ok" => Ok(()),
        _ => Err(crate::rows::bad_row(found)),
    }
}

/// How often, and how far apart, a lock is checked before it counts as held.
const LOCK_CHECKS: u32 = 5;
const LOCK_CHECK_PAUSE: Duration = Duration::from_millis(20);

/// Whether a lock is held for longer than a moment: a process that starts another one shares its locks with it until that one executes its
/// program, even if they were released in between.
fn is_held(file: &dyn DiskFile) -> std::io::Result<bool> {
    for _ in 0..LOCK_CHECKS {
        if file.is_unlocked()? {
            return Ok(false);
        }
        std::thread::sleep(LOCK_CHECK_PAUSE);
    }
    Ok(true)
}

/// An owner that has the store open for writing.
fn live_owner(layout: &Layout, disk: &dyn Disk) -> Result<Option<OwnerId>> {
    let folder = layout.owners();
    if !is_there(&folder)? {
        return Ok(None);
    }
    for entry in listed(&folder)? {
        let Ok(owner) = OwnerId::new(entry.file_name().to_string_lossy()) else { continue };
        let path = layout.owner(&owner);
        match disk.open(&path, OpenMode::Read) {
            Ok(file) if is_held(&*file).map_err(io_error("check the lock of", &path))? => return Ok(Some(owner)),
            // An owner that closed meanwhile has removed its file; anything but a plain file was not created by an owner.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound && !crate::disk::is_no_file(&error) => {
                return Err(io_error("open", &path)(error));
            }
            _ => {}
        }
    }
    Ok(None)
}
