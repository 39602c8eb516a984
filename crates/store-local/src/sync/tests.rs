//! Many transcripts that wait for a sync at once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use selvedge_log::{Signer, Trust};
use selvedge_model::event::ManifestChanged;
use selvedge_model::{AgentId, Batch, Changeset, Event, Expect, NewThread, Part};
use selvedge_store::Commit;

use super::*;
use crate::disk::{Disk, DiskFile, RealDisk};
use crate::system::{SystemClock, SystemIds};
use crate::{Access, LocalStore, Options};

/// How many files are being synced now, and the maximum so far; which folders were synced, and whether that fails.
#[derive(Debug, Default)]
struct Syncs {
    now: AtomicUsize,
    most: AtomicUsize,
    folders: Mutex<Vec<PathBuf>>,
    folders_fail: AtomicBool,
}

/// A disk whose syncs take a millisecond and are counted.
#[derive(Debug)]
struct Counting(Arc<Syncs>);

#[derive(Debug)]
struct CountingFile(Box<dyn DiskFile>, Arc<Syncs>);

impl Disk for Counting {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(CountingFile(RealDisk.open(path, mode)?, self.0.clone())))
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.make_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_folder(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        if self.0.folders_fail.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        lock(&self.0.folders).push(path.to_owned());
        RealDisk.sync_folder(path)
    }
}

impl DiskFile for CountingFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn length_at(&self, path: &Path) -> io::Result<Option<u64>> {
        self.0.length_at(path)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        let now = self.1.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.most.fetch_max(now, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(1));
        self.1.now.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn lock(&self) -> io::Result<()> {
        self.0.lock()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.0.try_lock()
    }

    fn is_unlocked(&self) -> io::Result<bool> {
        self.0.is_unlocked()
    }

    fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }
}

fn open(folder: &Path, syncs: &Arc<Syncs>) -> LocalStore {
    let signer = Signer::generate(&SystemIds);
    let disk = Arc::new(Counting(syncs.clone()));
    LocalStore::open(Options {
        project: folder.to_owned(),
        access: Access::ReadWrite,
        trust: Trust::of(&[signer.public()]),
        signer: Some(signer),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        disk,
    })
    .unwrap()
}

fn create(store: &LocalStore, count: usize) {
    for number in 0..count {
        let new = NewThread::of(AgentId::new("scribe").unwrap());
        let part = Part::new(ThreadId::new(format!("t-{number}")).unwrap(), Expect::Absent, Changeset::creating(new));
        store.commit(Batch::of(part)).unwrap();
    }
}

/// Synced one after the other, the transcripts of ten thousand live threads were not synced as fast as they were written.
#[test]
fn many_transcripts_are_synced_in_parallel_and_all_their_redo_is_freed() {
    let folder = tempfile::tempdir().unwrap();
    LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
    let syncs = Arc::new(Syncs::default());
    let store = open(folder.path(), &syncs);
    let core = &store.core;
    // The worker is stopped, so that all of them wait.
    lock(&core.pending).phase = Phase::Abandoned;
    core.pending_changed.notify_all();
    let many = PER_WORKER * 4;
    create(&store, many);
    assert_eq!(lock(&core.pending).threads.len(), many);
    syncs.most.store(0, Ordering::SeqCst);
    core.sync_pending().unwrap();
    assert!(syncs.most.load(Ordering::SeqCst) > 1);
    assert!(lock(&core.pending).threads.is_empty());
    assert_eq!(lock(&core.spares).ids().len(), many);
}

/// No commit waits for the sync of a `thread.json`'s folder. Until that is synced the manifest is marked as stale, so that it is written
/// again after a power failure.
#[test]
fn a_manifest_is_marked_as_written_once_its_folder_is_synced() {
    let folder = tempfile::tempdir().unwrap();
    LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
    let syncs = Arc::new(Syncs::default());
    let store = open(folder.path(), &syncs);
    let core = &store.core;
    lock(&core.pending).phase = Phase::Abandoned;
    core.pending_changed.notify_all();
    let thread = ThreadId::new("t-0").unwrap();
    let path = core.layout.thread(&thread);
    let stale = || {
        let find =
            |connection: &crate::db::Db| rows::exists(connection, "SELECT 1 FROM threads WHERE manifest_stale = 1", []);
        core.read(find).unwrap()
    };
    let synced = || lock(&syncs.folders).drain(..).filter(|folder| *folder == path).count();
    create(&store, 1);
    assert!(core.layout.manifest(&thread).exists());
    assert_eq!((synced(), stale()), (0, true), "a new thread");
    core.sync_pending().unwrap();
    assert_eq!((synced(), stale()), (1, false), "a new thread");
    let title = ManifestChanged { title: Some("renamed".to_owned()), ..Default::default() };
    let renamed = Changeset::of_event(Event::ManifestChanged(title));
    store.commit(Batch::of(Part::new(thread, Expect::Any, renamed))).unwrap();
    assert_eq!((synced(), stale()), (0, true), "an existing thread");
    syncs.folders_fail.store(true, Ordering::SeqCst);
    core.sync_pending().unwrap_err();
    assert_eq!((synced(), stale()), (0, true), "a failed sync");
    syncs.folders_fail.store(false, Ordering::SeqCst);
    core.sync_pending().unwrap();
    assert_eq!((synced(), stale()), (1, false), "an existing thread");
}
