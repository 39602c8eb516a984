//! A backup of which one file is anything at all.
//!
//! The first byte says which file, the rest is what stands there. Whatever is restored was signed, byte for byte; and of a backup whose list
//! is signed, what is not restored is named.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use selvedge_model::{AgentId, Batch, Changeset, Expect, Message, NewThread, Part, Reason, Role, ThreadId};
use selvedge_store::{Commit, Logs, Registry};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Options};
use tempfile::TempDir;

use crate::golden::{self, Counted, Still, THREAD, TRUST};

struct Place {
    /// Every file of a good backup.
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The log in it.
    log: Vec<u8>,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let folder = place();
    let store = with_thread(&folder);
    let gone = ThreadId::new("gone-0123456789ab").expect("the id is well formed");
    store.commit(birth(&gone)).expect("a thread can be created");
    store.delete(&gone).expect("a thread can be deleted");
    let target = folder.path().join("backup");
    store.backup(&target, &mut |_, _| {}).expect("a store can be backed up");
    let mut files = Vec::new();
    collect(&target, &target, &mut files);
    files.sort();
    Place { files, log: log_of(&store) }
});

/// A folder in memory, if the machine has such a place: every state is synced.
pub(crate) fn place() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("there is a temporary folder")
}

fn birth(thread: &ThreadId) -> Batch {
    let agent = AgentId::new("scribe").expect("the id is well formed");
    Batch::of(Part::new(thread.clone(), Expect::Absent, Changeset::creating(NewThread::of(agent))))
}

/// A store with a thread of two versions and a blob.
pub(crate) fn with_thread(folder: &TempDir) -> LocalStore {
    LocalStore::init(folder.path(), Arc::new(RealDisk)).expect("a store can be made");
    let store = LocalStore::open(options(folder.path(), Access::ReadWrite, 1)).expect("a store can be opened");
    store.commit(birth(&THREAD)).expect("a thread can be created");
    store.put_blob(&THREAD, b"a blob").expect("a blob can be kept");
    let message = Message::text(Role::User, "a kept edge");
    let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    store.commit(Batch::of(Part::new(THREAD.clone(), Expect::Exact(0), changeset))).expect("it can be appended to");
    store
}

pub(crate) fn options(project: &Path, access: Access, seed: u64) -> Options {
    Options {
        project: project.to_owned(),
        access,
        signer: Some(golden::signer()),
        trust: TRUST.clone(),
        clock: Arc::new(Still),
        ids: Arc::new(Counted::from(seed)),
        disk: Arc::new(RealDisk),
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("a folder can be read").path();
        match path.is_dir() {
            true => collect(root, &path, files),
            false => {
                let below = path.strip_prefix(root).expect("it lies below").to_owned();
                files.push((below, fs::read(&path).expect("a file can be read")));
            }
        }
    }
}

fn log_of(store: &LocalStore) -> Vec<u8> {
    let mut log = Vec::new();
    store.transcript(&THREAD).expect("it is there").1.read_to_end(&mut log).expect("it can be read");
    log
}

/// Restores a backup with one file replaced.
pub fn run(bytes: &[u8]) {
    let Some((which, content)) = bytes.split_first() else { return };
    let place = &*PLACE;
    let folder = self::place();
    let backup = folder.path().join("backup");
    let project = folder.path().join("project");
    let which = usize::from(*which) % place.files.len();
    for (at, (path, good)) in place.files.iter().enumerate() {
        let path = backup.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&backup)).expect("a folder can be made");
        fs::write(&path, if at == which { content } else { good }).expect("a file can be written");
    }
    fs::create_dir(&project).expect("a folder can be made");
    let restored =
        LocalStore::restore(&backup, &project, &TRUST, Some(golden::signer()), Arc::new(RealDisk), &mut |_, _| {});
    let Ok(restored) = restored else { return };
    let store = LocalStore::open(options(&project, Access::ReadWrite, 7)).expect("what was restored can be opened");
    let is_there = store.get(&THREAD).is_ok();
    if is_there {
        assert!(place.log.starts_with(&log_of(&store)), "a log was restored that nobody signed");
    }
    let is_named = !restored.bad.is_empty() || !restored.differs.is_empty();
    if restored.is_signed {
        assert!(is_there && log_of(&store) == place.log || is_named, "something is missing and not named");
    }
}

/// Every file as it is, and some of them cut.
pub fn seeds() -> Vec<Vec<u8>> {
    let files = PLACE.files.iter().enumerate();
    files.map(|(at, (_, content))| [&[at as u8], content.as_slice()].concat()).collect()
}
