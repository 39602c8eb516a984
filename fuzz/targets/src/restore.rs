//! A backup in which one file has any content.
//!
//! The first byte selects the file, the rest is its content. Whatever is restored was signed, byte for byte; and of a backup with a signed
//! list, what is not restored is reported.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use selvedge_model::{AgentId, Batch, Changeset, Expect, Message, NewThread, Part, Reason, Role, ThreadId};
use selvedge_store::{Commit, Logs, Registry};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Options};
use tempfile::TempDir;

use crate::golden::{self, ConstantClock, SeededIds, THREAD, TRUST};

struct Sample {
    /// Every file of a valid backup.
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The log in it.
    log: Vec<u8>,
}

static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let folder = temporary_folder();
    let store = with_thread(&folder);
    let gone = ThreadId::new("gone-0123456789ab").expect("the id is well formed");
    store.commit(birth(&gone)).expect("a thread can be created");
    store.delete(&gone).expect("a thread can be deleted");
    let target = folder.path().join("backup");
    store.backup(&target, &mut |_, _| {}).expect("a store can be backed up");
    let mut files = Vec::new();
    collect(&target, &target, &mut files);
    files.sort();
    Sample { files, log: log_of(&store) }
});

/// A temporary folder in memory, if the machine has one: every state is synced.
pub(crate) fn temporary_folder() -> TempDir {
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
        clock: Arc::new(ConstantClock),
        ids: Arc::new(SeededIds::from(seed)),
        disk: Arc::new(RealDisk),
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let below = path.strip_prefix(root).expect("it is below the root").to_owned();
            files.push((below, fs::read(&path).expect("a file can be read")));
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
    let sample = &*SAMPLE;
    let folder = temporary_folder();
    let backup = folder.path().join("backup");
    let project = folder.path().join("project");
    let which = usize::from(*which) % sample.files.len();
    for (at, (path, good)) in sample.files.iter().enumerate() {
        let path = backup.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&backup)).expect("a folder can be made");
        fs::write(&path, if at == which { content } else { good }).expect("a file can be written");
    }
    fs::create_dir(&project).expect("a folder can be made");
    let restored =
        LocalStore::restore(&backup, &project, &TRUST, Some(golden::signer()), Arc::new(RealDisk), &mut |_, _| {});
    let Ok(restored) = restored else { return };
    let store = LocalStore::open(options(&project, Access::ReadWrite, 7)).expect("a restored store can be opened");
    let is_there = store.get(&THREAD).is_ok();
    if is_there {
        assert!(sample.log.starts_with(&log_of(&store)), "an unsigned log was restored");
    }
    let is_named = !restored.failed_checks.is_empty() || !restored.differs.is_empty();
    if restored.is_signed {
        assert!(is_there && log_of(&store) == sample.log || is_named, "something is missing and not reported");
    }
}

/// Every file unchanged, and some of them cut.
pub fn seeds() -> Vec<Vec<u8>> {
    let files = SAMPLE.files.iter().enumerate();
    files.map(|(at, (_, content))| [&[at as u8], content.as_slice()].concat()).collect()
}
