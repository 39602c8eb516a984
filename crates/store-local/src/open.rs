//! Creating, opening and closing a store.

#[cfg(test)]
mod owner_tests;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use selvedge_log::{Signer, Trust};
use selvedge_model::{Clock, Ids, OwnerId, ThreadId};
use selvedge_store::group::Group;
use selvedge_store::lease::LeaseQueue;
use selvedge_store::queue::Queues;
use selvedge_store::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::anchor::AnchorCache;
use crate::core::{Core, DbWriter, Durability, Pending, Phase, Readers, Signing, io_error, lock};
use crate::disk::{self, Disk, DiskFile, OpenMode};
use crate::handles::Handles;
use crate::layout::{Layout, check_folder, is_there, listed, shell_word};
use crate::problems::Problems;
use crate::schema::{self, unusable};
use crate::system::SystemIds;
use crate::{index, rows, sync};

/// The content of `store.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreFile {
    kind: String,
    pub(crate) format: i64,
    /// A random id: rows that were sealed for one store are invalid in any other.
    #[serde(default)]
    pub(crate) id: String,
}

const KIND: &str = "selvedge-local";

/// The mode bits that let group and others write.
const OTHER_WRITE: u32 = 0o022;

/// The mode bit that lets others write.
const ANYONE_WRITE: u32 = 0o002;

/// Whether a store is opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Drains what a crash left, and may commit.
    ReadWrite,
    /// Writes nothing at all.
    ReadOnly,
}

/// The options for opening a store.
pub struct Options {
    /// The folder that holds `.ai`.
    pub project: PathBuf,
    /// Whether it is opened for writing.
    pub access: Access,
    /// The signer; without one, commits are refused.
    pub signer: Option<Signer>,
    /// The trusted keys.
    pub trust: Trust,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of random ids.
    pub ids: Arc<dyn Ids>,
    /// The disk.
    pub disk: Arc<dyn Disk>,
}

/// What was found when a store was opened.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Committed bytes that were missing in a transcript because a process died; bytes that a live process is about to write are not
    /// counted.
    pub drained_bytes: u64,
    /// The number of threads they belong to.
    pub drained_threads: u64,
    /// The number of leases whose holders are dead.
    pub dead_leases: u64,
    /// Other notices for the user.
    pub notices: Vec<String>,
}

/// Threads on one machine.
pub struct LocalStore {
    pub(crate) core: Arc<Core>,
    opened: Opened,
    /// Locked as long as this is open.
    pub(crate) owner_file: Option<Box<dyn DiskFile>>,
    worker: Option<JoinHandle<()>>,
    /// Whether it is closed cleanly when it is dropped; otherwise it is left as a crash would leave it.
    closes_itself: bool,
}

impl LocalStore {
    /// Creates the store of a project; false if it exists already.
    ///
    /// A crash leaves either no `store.json`, and calling this again completes it, or a complete store.
    pub fn init(project: &Path, disk: Arc<dyn Disk>) -> Result<bool> {
        let layout = Layout::of(project);
        check_ancestors(project, &layout)?;
        if is_there(&layout.store_file())? {
            check_kind(&layout, &*disk)?;
            // `store.json` is written last: where it exists there was a database.
            if !is_there(&layout.database())? {
                return Err(Error::Integrity {
                    what: format!("`{}`", layout.database().display()),
                    why: "the store exists, and its database is missing".to_owned(),
                    hint: Some("`selvedge reindex` rebuilds it from the logs".to_owned()),
                });
            }
            return Ok(false);
        }
        for folder in [layout.root().to_owned(), layout.owners(), layout.tombstones()] {
            disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        }
        refuse_network(layout.root())?;
        // Under the lock from here on: of several processes that create the same store at once, one creates it and the others find it.
        let path = layout.commit_lock();
        let queue = disk.open(&path, OpenMode::Create).map_err(io_error("create", &path))?;
        queue.lock().map_err(io_error("lock", &path))?;
        if is_there(&layout.store_file())? {
            return Ok(false);
        }
        refuse_orphans(&layout)?;
        make_database(&layout, &*disk)?;
        disk.sync_folder(layout.root()).map_err(io_error("sync", layout.root()))?;
        write_kind(&layout, &*disk, &SystemIds.hex32())?;
        Ok(true)
    }

    /// Opens the store of a project. On return everything that was ever acknowledged is in its transcript.
    pub fn open(options: Options) -> Result<Self> {
        let Options { project, access, signer, trust, clock, ids, disk } = options;
        let layout = Layout::of(&project);
        check_ancestors(&project, &layout)?;
        let id = check_kind(&layout, &*disk)?.id;
        refuse_network(layout.root())?;
        check_guarded(&layout)?;
        if !is_there(&layout.database())? {
            return Err(Error::Integrity {
                what: format!("`{}` is missing", layout.database().display()),
                why: "the threads exist, their database does not".to_owned(),
                hint: Some(schema::REBUILD.to_owned()),
            });
        }
        let owner = OwnerId::of_process(std::process::id(), &ids.hex32()).map_err(rows::bad_row)?;
        if access == Access::ReadWrite {
            make_folders(&layout, &*disk)?;
            if signer.is_some()
                && schema::is_unsealed(&schema::open(&layout.database(), schema::ConnectionMode::Read)?)?
            {
                return Err(Error::Integrity {
                    what: "`registry.db`".to_owned(),
                    why: "a program without a key wrote it, so none of its rows is sealed".to_owned(),
                    hint: Some(schema::REBUILD.to_owned()),
                });
            }
        }
        let signing = signer.map(|signer| Signing::new(signer, &id));
        let sealer = signing.as_ref().map(|signing| signing.rows.clone());
        let (writer, owner_file) = match access {
            Access::ReadWrite => Some(DbWriter::open(&layout, &*disk, &owner, sealer.clone())?),
            Access::ReadOnly => None,
        }
        .unzip();
        let core = Core {
            layout,
            disk,
            clock,
            ids,
            signing,
            trust,
            owner,
            writer: writer.map(Mutex::new),
            readers: Readers::new(sealer),
            queues: Arc::new(Queues::default()),
            lease_queue: LeaseQueue::default(),
            group: Group::default(),
            cache: Mutex::default(),
            handles: Handles::default(),
            pending: Mutex::new(Pending::default()),
            pending_changed: Condvar::new(),
            spares: Mutex::default(),
            opened: Mutex::default(),
            watch: crate::watch::Watch::default(),
            accounts: Mutex::default(),
            anchor: AnchorCache::default(),
            logged: Mutex::default(),
            problems: Problems::default(),
        };
        let mut store =
            Self { core: Arc::new(core), opened: Opened::default(), owner_file, worker: None, closes_itself: false };
        match access {
            Access::ReadWrite => store.recover()?,
            Access::ReadOnly => store.core.read(|_| Ok(()))?,
        }
        Ok(store)
    }

    /// What was found when the store was opened.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The problems that this store finds; they can be taken after the store is closed, too.
    pub fn problems(&self) -> Problems {
        self.core.problems.clone()
    }

    /// The trusted keys.
    pub fn trust(&self) -> &Trust {
        &self.core.trust
    }

    /// The owner id of this handle in leases.
    pub fn owner(&self) -> &OwnerId {
        &self.core.owner
    }

    /// The folder of a thread.
    pub fn thread_folder(&self, thread: &ThreadId) -> PathBuf {
        self.core.layout.thread(thread)
    }

    /// The same store, closed cleanly if it is dropped without [`LocalStore::close`], for example after an error.
    #[must_use]
    pub fn closing_itself(mut self) -> Self {
        self.closes_itself = true;
        self
    }

    /// Makes every transcript durable, releases leases, moves the database's write-ahead log into the database and closes the store.
    pub fn close(mut self) -> Result<()> {
        self.finish()
    }

    /// The same for a program that ends now and will be started again: a short write-ahead log is left to the next process, which saves
    /// four syncs. No commit depends on it being moved.
    pub fn close_briefly(mut self) -> Result<()> {
        self.end_briefly()
    }

    pub(crate) fn end_briefly(&mut self) -> Result<()> {
        if let Some(writer) = &self.core.writer {
            lock(writer).keep_short_log()?;
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        self.closes_itself = false;
        self.end_worker(Phase::Closing);
        if self.core.writer.is_none() {
            return Ok(());
        }
        let mut synced = self.core.sync_pending();
        // Redo of dead processes was drained by the first pass, and is synced by a second.
        if synced.is_ok() && !lock(&self.core.pending).threads.is_empty() {
            synced = self.core.sync_pending();
        }
        self.core.drop_spares()?;
        self.core.release_all()?;
        let path = self.core.layout.owner(&self.core.owner);
        self.core.disk.remove(&path).map_err(io_error("remove", &path))?;
        synced
    }

    /// Finishes the work that dead processes left, when the store is opened.
    fn recover(&mut self) -> Result<()> {
        let core = self.core.clone();
        let drained = core.drain_all(&mut lock(core.writer()?), &mut self.opened.notices)?;
        if drained.is_crash {
            self.opened.drained_bytes = drained.bytes;
            self.opened.drained_threads = drained.threads;
        }
        // A failure here does not prevent writing; it is reported, and retried next time.
        let tidied = [
            ("deletions can't be finished", core.finish_deletions()),
            ("erasures can't be finished", core.finish_erasures()),
            (
                "manifests can't be written",
                core.signing.as_ref().map_or(Ok(0), |_| core.show_stale_manifests()).map(|_| ()),
            ),
            ("files of dead owners can't be removed", core.remove_dead_owners()),
        ];
        for (what, result) in tidied {
            self.opened.notices.extend(result.err().map(|error| format!("{what}: {error}")));
        }
        self.opened.dead_leases = core.dead_leases()?.len() as u64;
        self.worker = Some(sync::start(&core).map_err(io_error("start a thread for", core.layout.root()))?);
        Ok(())
    }

    fn end_worker(&mut self, phase: Phase) {
        lock(&self.core.pending).phase = phase;
        self.core.pending_changed.notify_all();
        if let Some(worker) = self.worker.take() {
            // If the worker panicked, the redo still has everything.
            _ = worker.join();
        }
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        if self.closes_itself {
            // What fails now is finished by the next process that opens the store.
            _ = self.finish();
        }
        self.end_worker(Phase::Abandoned);
    }
}

impl Core {
    fn release_all(&self) -> Result<()> {
        self.write(Durability::Lazy, |db| {
            for row in rows::select_any(db, "h.owner = ?", [self.owner.as_str()])? {
                // A row that fails its seal is left unchanged, as evidence.
                if db.seals().is_some_and(|seals| row.is_sealed(seals)) {
                    index::set_lease(db, &row, None, row.epoch)?;
                }
            }
            Ok(())
        })
    }

    /// Removes the files of dead owners that hold no lease.
    ///
    /// Under the commit lock, as an owner creates and locks its file: a file that was created and is not locked yet would be taken for
    /// that of a dead owner, and its owner would count as dead from then on.
    fn remove_dead_owners(&self) -> Result<()> {
        let Ok(entries) = fs::read_dir(self.layout.owners()) else { return Ok(()) };
        let owners = entries.flatten().filter_map(|entry| OwnerId::new(entry.file_name().to_string_lossy()).ok());
        let mut removable = Vec::new();
        for owner in owners {
            if self.is_removable(&owner)? {
                removable.push(owner);
            }
        }
        if removable.is_empty() {
            return Ok(());
        }
        lock(self.writer()?).exclusive(&self.layout, |_| {
            for owner in removable {
                if self.is_removable(&owner)? {
                    // Another opener may have been faster; a file that stays is checked again by the next one.
                    _ = self.disk.remove(&self.layout.owner(&owner));
                }
            }
            Ok(())
        })
    }

    /// Whether an owner is dead and holds no lease.
    fn is_removable(&self, owner: &OwnerId) -> Result<bool> {
        let holds = self.read(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT 1 FROM heads WHERE owner = ? LIMIT 1").map_err(schema::database)?;
            statement.exists([owner.as_str()]).map_err(schema::database)
        })?;
        // Anything but a plain file was not created by an owner.
        Ok(!holds && !self.is_alive(owner).unwrap_or(true))
    }
}

/// Creates the folders that may be missing without loss: version control does not keep empty ones.
pub(crate) fn make_folders(layout: &Layout, disk: &dyn Disk) -> Result<()> {
    for folder in [layout.owners(), layout.tombstones()] {
        if !check_folder(&folder)? {
            disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        }
    }
    Ok(())
}

/// Creates the database of a new store; a complete one from an earlier attempt is kept, and anything else is left unchanged.
fn make_database(layout: &Layout, disk: &dyn Disk) -> Result<()> {
    let database = layout.database();
    match fs::symlink_metadata(&database) {
        Ok(found) if found.is_file() && found.len() > 0 => {
            return schema::open(&database, schema::ConnectionMode::Write).map(|_| ());
        }
        Ok(_) => {}
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(io_error("check", &database)(error));
        }
        Err(_) => drop(disk.open(&database, OpenMode::CreateNew).map_err(io_error("create", &database))?),
    }
    schema::create(&database)
}

pub(crate) fn check_ancestors(project: &Path, layout: &Layout) -> Result<()> {
    for folder in [project.join(".ai"), project.join(".ai/agent"), layout.root().to_owned()] {
        check_folder(&folder)?;
    }
    for folder in [layout.owners(), layout.tombstones()] {
        check_folder(&folder)?;
    }
    Ok(())
}

/// The text of `store.json` in a store of this format.
pub(crate) fn kind_text(format: i64, id: &str) -> Result<String> {
    let kind = StoreFile { kind: KIND.to_owned(), format, id: id.to_owned() };
    Ok(serde_json::to_string(&kind).map_err(rows::bad_row)? + "\n")
}

/// Writes `store.json` with the format that this program writes.
pub(crate) fn write_kind(layout: &Layout, disk: &dyn Disk, id: &str) -> Result<()> {
    let text = kind_text(schema::FORMAT, id)?;
    let path = layout.store_file();
    disk::replace(disk, &path, text.as_bytes()).map_err(io_error("write", &path))
}

pub(crate) fn check_kind(layout: &Layout, disk: &dyn Disk) -> Result<StoreFile> {
    let path = layout.store_file();
    let bytes = match disk::read(disk, &path, 4096) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Where there are threads there was a store.
            refuse_orphans(layout)?;
            return Err(Error::NoStore { path: layout.root().display().to_string() });
        }
        Err(error) => return Err(io_error("read", &path)(error)),
    };
    let what = format!("`{}`", path.display());
    let kind: StoreFile = serde_json::from_slice(&bytes).map_err(|error| Error::Integrity {
        what: what.clone(),
        why: format!("it does not name the kind of the store: {error}"),
        hint: Some("`selvedge reindex` writes it again; the logs are not changed".to_owned()),
    })?;
    match kind {
        StoreFile { kind, .. } if kind != KIND => {
            Err(unusable(&what, format!("it is a store of kind `{kind}`; this program reads `{KIND}`"), None))
        }
        StoreFile { format, .. } if format > schema::FORMAT => Err(unusable(
            &what,
            format!("the store has format {format}, and this program reads formats up to {}", schema::FORMAT),
            Some("use the newer Selvedge that wrote it"),
        )),
        StoreFile { format, .. } if format < schema::FORMAT => {
            Err(Error::Outdated { found: format, current: schema::FORMAT })
        }
        StoreFile { id, .. } if id.is_empty() => {
            Err(Error::Integrity { what, why: "it has no store id".to_owned(), hint: Some(schema::REBUILD.to_owned()) })
        }
        kind => Ok(kind),
    }
}

/// Refuses a database or a `store.json` that another user could have written.
fn check_guarded(layout: &Layout) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let database = layout.database();
    let kind = layout.store_file();
    let beside = crate::reindex::companions(&database);
    for path in [&kind, &database].into_iter().chain(&beside) {
        // A missing file is reported where it is opened.
        let Ok(found) = fs::symlink_metadata(path) else { continue };
        if found.is_symlink() {
            let why = "it is a symbolic link".to_owned();
            return Err(unusable(&format!("`{}`", path.display()), why, Some("put the file itself in its place")));
        }
        // `store.json` is kept in version control, which writes it with the user's own umask: often the user's group may write it.
        let forbidden = if *path == kind { ANYONE_WRITE } else { OTHER_WRITE };
        let wrong = unguarded(found.uid(), found.mode() & (forbidden | !OTHER_WRITE), user);
        if let Some((why, help)) = wrong.filter(|_| found.is_file()) {
            let help = help.replace("FILE", &shell_word(path));
            return Err(unusable(&format!("`{}`", path.display()), why, Some(&help)));
        }
    }
    Ok(())
}

/// What is wrong with the owner or the mode of a file that only `user` may write, and what helps.
fn unguarded(owner: u32, mode: u32, user: u32) -> Option<(String, &'static str)> {
    if owner != user {
        let why = format!("it belongs to the user with id {owner}, and you are {user}: that user can change it");
        return Some((
            why,
            "inspect it; if it is yours all the same, `chown \"$(id -u)\" FILE`, then `selvedge reindex`",
        ));
    }
    if mode & OTHER_WRITE != 0 {
        let why = format!("its mode is {:04o}: other users can change it", mode & 0o777);
        return Some((
            why,
            "`chmod go-w FILE`; if another user changed it, `selvedge reindex` rebuilds it from the logs",
        ));
    }
    None
}

/// Refuses to create a store where there are threads without one.
fn refuse_orphans(layout: &Layout) -> Result<()> {
    if !is_there(layout.root())? {
        return Ok(());
    }
    let mut orphan = None;
    for entry in listed(layout.root())? {
        let is_folder = entry.file_type().map_err(io_error("check", &entry.path()))?.is_dir();
        if orphan.is_none() && is_folder && is_there(&entry.path().join("transcript.jsonl"))? {
            orphan = Some(entry);
        }
    }
    match orphan {
        Some(orphan) => Err(Error::Integrity {
            what: format!("`{}` is missing", layout.store_file().display()),
            why: format!("there are threads, such as `{}`, but no store", orphan.file_name().to_string_lossy()),
            hint: Some(schema::REBUILD.to_owned()),
        }),
        None => Ok(()),
    }
}

/// Refuses network file systems, which neither lock nor sync as this store needs.
pub(crate) fn refuse_network(path: &Path) -> Result<()> {
    const NETWORK: [(u64, &str); 7] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x0102_1997, "9p"),
        (0x5346_414f, "AFS"),
        (0x7375_7245, "Coda"),
    ];
    let Ok(found) = rustix::fs::statfs(path) else { return Ok(()) };
    let kind = found.f_type.cast_unsigned() & 0xffff_ffff;
    match NETWORK.iter().find(|(number, _)| *number == kind) {
        Some((_, name)) => Err(unusable(
            &format!("`{}`", path.display()),
            format!("it is on a network file system ({name}), which neither locks nor syncs reliably"),
            Some("use a folder on a local disk"),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_another_user_could_have_written_are_refused() {
        for (owner, mode) in [(1000, 0o100_600), (1000, 0o100_644), (1000, 0o100_755)] {
            assert_eq!(unguarded(owner, mode, 1000), None, "{owner} {mode:o}");
        }
        for (owner, mode, said) in [
            (0, 0o100_600, "belongs to the user with id 0"),
            (1001, 0o100_600, "belongs to the user with id 1001"),
            (1000, 0o100_620, "mode is 0620"),
            (1000, 0o100_666, "mode is 0666"),
        ] {
            let (why, help) = unguarded(owner, mode, 1000).unwrap();
            assert!(why.contains(said), "{why}");
            assert!(help.contains("FILE") && help.contains("selvedge reindex"), "{help}");
        }
    }
}
