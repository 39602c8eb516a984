//! Rebuilding the database from the logs.
//!
//! A new database is built beside the old one, synced and put in its place, all under `commit.lock` and only while nobody
//! has the store open to write. Every log is read whole, every hash and every signature of it, and becomes the rows that
//! its commits wrote ([`crate::replay`]). Memory depends on the longest changeset and the number of threads, not on the
//! store.
//!
//! - Nothing acknowledged is lost: what the old database has not drained yet is drained and synced first; requests, answers to
//!   keys and accounts that no log tells of any more are carried over. If it can't be read it is kept aside, and the
//!   result says what could not be carried over.
//! - No head is lowered: a log that is shorter than the old database, `thread.json` or another log remembers, or that does not
//!   hold, is not indexed anew. Its old rows are carried over as they are, if there are any; its folder is left alone.
//! - A `store.json` that is missing or can't be read is written anew; one that names another kind or a newer format is refused.
//! - No deleted thread comes back: a signed tombstone counts unless the log goes on behind it.
//!
//! Killed anywhere, the old database is still in its place, or none is, or the new one is whole: running it again does all
//! that is left to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::{Signer, Trust};
use selvedge_model::account::AccountId;
use selvedge_model::{Ids, OwnerId, ThreadId};
use selvedge_store::{Error, Result};

use crate::core::io_error;
use crate::disk::{Disk, How};
use crate::layout::{Layout, is_there, listed};
use crate::open::{self, LocalStore};
use crate::schema;
use crate::system::SystemIds;

mod build;
mod carry;
mod old;
mod tombs;

use old::Old;

/// How a database is rebuilt.
pub struct Rebuild {
    /// The folder that holds `.ai`.
    pub project: PathBuf,
    /// Whose signatures count.
    pub trust: Trust,
    /// Who signs; without one everything is rebuilt too, and the next append to a thread reads its log once.
    pub signer: Option<Signer>,
    /// The disk.
    pub disk: Arc<dyn Disk>,
}

/// The stores whose rows are sealed.
#[derive(Clone, Copy)]
struct Stores<'a> {
    /// This one.
    id: &'a str,
    /// The one that the old database was sealed for.
    former: &'a str,
}

/// What a rebuilt database holds, and what it could not hold.
#[derive(Clone, Debug, Default)]
pub struct Reindexed {
    /// Threads that were indexed.
    pub threads: u64,
    /// Their changesets.
    pub changesets: u64,
    /// Deleted threads.
    pub tombstones: u64,
    /// Deletions that had been cut short and were finished.
    pub finished_deletions: u64,
    /// Bytes that were committed and missing in a transcript.
    pub drained_bytes: u64,
    /// Requests that were not consumed yet.
    pub requests: u64,
    /// Threads of whose end nobody but the log itself tells: the old database was lost, and `thread.json` is older.
    pub unvouched: u64,
    /// Threads that were not indexed anew.
    pub left_out: Vec<LeftOut>,
    /// Accounts of which postings are missing; what is not known is put down as spent.
    pub incomplete_accounts: Vec<AccountId>,
    /// What else somebody should know, such as what could not be carried over.
    pub notices: Vec<String>,
}

/// A thread that was not indexed anew.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// The thread.
    pub thread: ThreadId,
    /// Why.
    pub why: String,
    /// Whether the old database knew it, so that it is known as it was before.
    pub is_known: bool,
}

impl LocalStore {
    /// Rebuilds the database of a project from its logs; refused while somebody has the store open to write. `progress` hears how
    /// many threads of how many are done.
    pub fn reindex(rebuild: &Rebuild, progress: &mut dyn FnMut(u64, u64)) -> Result<Reindexed> {
        let layout = Layout::of(&rebuild.project);
        open::check_ancestors(&rebuild.project, &layout)?;
        Self::reindex_at(&layout, rebuild, None, progress)
    }

    /// The same, of a store that lies here and whose database may have been sealed as that of another store.
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
        let queue = disk.open(&path, How::Make).map_err(io_error("open", &path))?;
        queue.lock().map_err(io_error("lock", &path))?;
        let rebuilt = rebuild_alone(layout, rebuild, Stores { id: &id, former: former.unwrap_or(&id) }, progress);
        // Closing the file would free the lock as well.
        _ = queue.unlock();
        let mut rebuilt = rebuilt?;
        rebuilt.notices.extend(lost);
        Ok(rebuilt)
    }
}

/// The id of the store, and what was wrong with `store.json`, which is written anew then, with another id; one that names another kind of
/// store or a newer format is refused.
fn known_kind(layout: &Layout, disk: &dyn Disk) -> Result<(String, Option<String>)> {
    if !is_there(&layout.store_file())? {
        return Ok((SystemIds.hex32(), Some("`store.json` was missing, and is written anew".to_owned())));
    }
    match open::check_kind(layout, disk) {
        Ok(kind) => Ok((kind.id, None)),
        Err(Error::Integrity { why, .. }) => {
            Ok((SystemIds.hex32(), Some(format!("`store.json` is written anew: {why}"))))
        }
        Err(Error::Outdated { found, .. }) => Ok((SystemIds.hex32(), Some(format!("the store had format {found}")))),
        Err(error) => Err(error),
    }
}

/// Rebuilds while nobody else writes.
fn rebuild_alone(
    layout: &Layout,
    rebuild: &Rebuild,
    stores: Stores<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Reindexed> {
    let disk = &*rebuild.disk;
    if let Some(owner) = live_owner(layout, disk)? {
        return Err(Error::Unusable {
            what: "the store".to_owned(),
            why: format!("a process has it open to write, as owner {owner}"),
            hint: Some("let it finish, then run `selvedge reindex` again".to_owned()),
        });
    }
    let mut result = Reindexed::default();
    let old = Old::look(layout, disk, &rebuild.trust, &mut result)?;
    let beside = layout.database().with_extension("db.new");
    remove_database(disk, &beside)?;
    disk.open(&beside, How::MakeNew).map_err(io_error("create", &beside))?;
    // Rows of a database that is lost may turn up again: they are sealed for a store that is no more.
    // So may those of one that another program wrote to: nothing of it counts but what is sealed anew now.
    let is_kept = old == Old::Readable && old.is_sealed(layout, rebuild, stores.former)?;
    let id = if is_kept { stores.id.to_owned() } else { SystemIds.hex32() };
    build::build(layout, rebuild, Stores { id: &id, ..stores }, &old, &beside, &mut result, progress)?;
    let file = disk.open(&beside, How::Write).map_err(io_error("open", &beside))?;
    file.sync().map_err(io_error("sync", &beside))?;
    open::write_kind(layout, disk, &id)?;
    old.make_way(layout, disk, &mut result)?;
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

/// Removes what an earlier attempt left.
fn remove_database(disk: &dyn Disk, database: &Path) -> Result<()> {
    for path in companions(database).iter().map(PathBuf::as_path).chain([database]) {
        disk.remove(path).map_err(io_error("remove", path))?;
    }
    Ok(())
}

/// A database that nobody has open any more has nothing beside it.
fn refuse_readers(database: &Path) -> Result<()> {
    let [log, ..] = companions(database);
    match fs::symlink_metadata(&log) {
        Ok(found) if found.len() > 0 => Err(Error::Database {
            why: "somebody reads the database and keeps it from being replaced".to_owned(),
            retryable: true,
        }),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("look at", &log)(error)),
        _ => Ok(()),
    }
}

/// Whether an error says that a database can't be read, and not that it may not or must wait.
fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::Integrity { .. } | Error::Database { retryable: false, .. })
}

/// Asks SQLite itself whether a database is whole.
fn check_whole(connection: &rusqlite::Connection) -> Result<()> {
    let found: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(schema::database)?;
    match found.as_str() {
        "ok" => Ok(()),
        _ => Err(crate::rows::bad_row(found)),
    }
}

/// An owner that has the store open to write.
fn live_owner(layout: &Layout, disk: &dyn Disk) -> Result<Option<OwnerId>> {
    let folder = layout.owners();
    if !is_there(&folder)? {
        return Ok(None);
    }
    for entry in listed(&folder)? {
        let Ok(owner) = OwnerId::new(entry.file_name().to_string_lossy()) else { continue };
        let path = layout.owner(&owner);
        match disk.open(&path, How::Read) {
            Ok(file) if !file.is_unlocked().map_err(io_error("look at the lock of", &path))? => return Ok(Some(owner)),
            // One that closed meanwhile has taken its file along, and what is no plain file was not put there by an owner.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound && !crate::disk::is_no_file(&error) => {
                return Err(io_error("open", &path)(error));
            }
            _ => {}
        }
    }
    Ok(None)
}
