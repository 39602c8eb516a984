//! A hostile environment: full disks, read-only folders, foreign files, other programs' leftovers. Each is a clear error, nothing is lost,
//! and nothing is written outside the store.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use selvedge_log::recovery::Finding;
use selvedge_model::{Batch, Classify, Expect, Kind, Part, ThreadId};
use selvedge_store::{Acquire, Commit, Error, Leases, Logs, Registry};
use selvedge_store_local::disk::{Disk, DiskFile, OpenMode, RealDisk};
use selvedge_store_local::{Access, LocalStore};

use crate::support::{Home, birth, id, says, thread_with};

pub(crate) fn append(store: &LocalStore, thread: &ThreadId, text: &str) -> Result<u64, Error> {
    Ok(store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says(text))))?.versions[0].1)
}

fn refusal(opened: Result<LocalStore, Error>) -> Error {
    match opened {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

pub(crate) fn assert_sound(store: &LocalStore, thread: &ThreadId, version: u64) {
    let verdict = store.verify(thread, &mut |_| {}).unwrap();
    assert_eq!(verdict.judgement.finding, Finding::Sound);
    assert_eq!(verdict.judgement.unchanged_up_to, Some(version));
}

/// Root may write everywhere, so modes matter only if the tests don't run as root.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A disk on which one kind of call fails from the n-th on, or (`sync once`) only the n-th.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) what: &'static str,
    pub(crate) left: Arc<AtomicI64>,
    pub(crate) error: io::ErrorKind,
}

impl Failing {
    fn check(&self, what: &str) -> io::Result<()> {
        let once = self.what.strip_suffix(" once");
        if what != once.unwrap_or(self.what) || self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        if once.is_some() {
            self.left.store(i64::MAX, Ordering::SeqCst);
        }
        Err(io::Error::new(self.error, "made to fail"))
    }
}

#[derive(Debug)]
struct FailingFile {
    inner: Box<dyn DiskFile>,
    rules: Failing,
}

impl Disk for Failing {
    fn open(&self, path: &Path, how: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let rules = Failing { what: self.what, left: self.left.clone(), error: self.error };
        Ok(Box::new(FailingFile { inner: RealDisk.open(path, how)?, rules }))
    }
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.check("folder")?;
        RealDisk.make_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check("rename")?;
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_folder(path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.check("folder sync")?;
        RealDisk.sync_folder(path)
    }
}

impl DiskFile for FailingFile {
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }
    fn length_at(&self, path: &Path) -> io::Result<Option<u64>> {
        self.inner.length_at(path)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(error) = self.rules.check("write") {
            // As on a full disk: some of it is written.
            _ = self.inner.write_at(&bytes[..bytes.len() / 2], offset);
            return Err(error);
        }
        self.inner.write_at(bytes, offset)
    }
    fn truncate(&self, length: u64) -> io::Result<()> {
        self.inner.truncate(length)
    }
    fn sync(&self) -> io::Result<()> {
        self.rules.check("sync")?;
        self.inner.sync()
    }
    fn lock(&self) -> io::Result<()> {
        self.inner.lock()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.inner.try_lock()
    }
    fn is_unlocked(&self) -> io::Result<bool> {
        self.inner.is_unlocked()
    }
    fn unlock(&self) -> io::Result<()> {
        self.inner.unlock()
    }
}

pub(crate) fn open_failing(
    home: &Home,
    what: &'static str,
    after: i64,
    error: io::ErrorKind,
) -> (LocalStore, Arc<AtomicI64>) {
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let mut options = home.options(Access::ReadWrite);
    options.disk = Arc::new(Failing { what, left: left.clone(), error });
    let store = LocalStore::open(options).unwrap();
    left.store(after, Ordering::SeqCst);
    (store, left)
}

#[test]
fn a_disk_that_is_full_when_a_transcript_is_written_loses_no_acknowledged_commit() {
    for after in 0..6 {
        let home = Home::new();
        let setup = home.open();
        let thread = thread_with(&setup, "scribe-0123456789ab", &["one"]);
        setup.close().unwrap();
        let (store, left) = open_failing(&home, "write", after, io::ErrorKind::StorageFull);
        let mut version = 1;
        for text in ["two", "three", "four"] {
            match append(&store, &thread, text) {
                Ok(committed) => version = committed,
                Err(error) => assert!(matches!(error.kind(), Kind::Broken), "{error}"),
            }
        }
        assert_eq!(store.get(&thread).unwrap().version, version, "after {after} writes");
        assert_sound(&store, &thread, version);
        left.store(i64::MAX, Ordering::SeqCst);
        assert_eq!(append(&store, &thread, "room again").unwrap(), version + 1);
        drop(store);
        let store = home.open();
        assert_sound(&store, &thread, version + 1);
        store.close().unwrap();
        assert_sound(&home.read_only(), &thread, version + 1);
    }
}

#[test]
fn a_transcript_that_cannot_be_synced_keeps_its_redo() {
    let home = Home::new();
    let (store, left) = open_failing(&home, "sync", i64::MAX, io::ErrorKind::Other);
    let thread = thread_with(&store, "scribe-0123456789ab", &["one", "two"]);
    left.store(0, Ordering::SeqCst);
    assert!(store.close().is_err(), "nothing can be synced, and that is an error");
    // The redo still exists, so cutting the unsynced file loses nothing.
    let bytes = fs::read(home.transcript(&thread)).unwrap();
    fs::write(home.transcript(&thread), &bytes[..bytes.len() - 100]).unwrap();
    let store = home.open();
    assert_sound(&store, &thread, 2);
    store.close().unwrap();
    assert_eq!(fs::read(home.transcript(&thread)).unwrap(), bytes);
}

#[test]
fn a_transcript_whose_sync_failed_is_rebuilt_next_to_the_old_one() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(home.transcript(&thread)).unwrap());
    let before = inode();
    let (store, left) = open_failing(&home, "sync once", i64::MAX, io::ErrorKind::Other);
    assert_eq!(append(&store, &thread, "two").unwrap(), 2);
    let whole = fs::read(home.transcript(&thread)).unwrap();
    left.store(0, Ordering::SeqCst);
    store.close().unwrap();
    assert_ne!(inode(), before, "a file whose sync failed is not trusted");
    assert_eq!(fs::read(home.transcript(&thread)).unwrap(), whole);
    assert_sound(&home.read_only(), &thread, 2);
}

#[test]
fn a_full_disk_refuses_commits_and_continues_when_there_is_space() {
    let home = Home::new();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
        .arg(home.folder.path())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("skipped: this machine does not let a test mount a small disk");
        return;
    }
    let unmount = || _ = Command::new("umount").arg("-l").arg(home.folder.path()).status();
    let result = std::panic::catch_unwind(|| {
        LocalStore::init(home.folder.path(), Arc::new(RealDisk)).unwrap();
        let store = home.open();
        let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
        let big = "x".repeat(50_000);
        let mut version = 1;
        let refused = loop {
            match append(&store, &thread, &big) {
                Ok(committed) => version = committed,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), Kind::Broken, "{refused}");
        assert!(refused.hint().is_some(), "{refused}");
        drop(store);
        Command::new("mount").args(["-o", "remount,size=8m"]).arg(home.folder.path()).status().unwrap();
        let store = home.open();
        assert_sound(&store, &thread, version);
        assert_eq!(append(&store, &thread, "room again").unwrap(), version + 1);
        store.close().unwrap();
    });
    unmount();
    result.unwrap();
}

#[test]
fn a_folder_that_is_not_writable_is_reported() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    if is_root() {
        eprintln!("skipped: root may write everywhere");
        return;
    }
    fs::set_permissions(home.threads(), Permissions::from_mode(0o500)).unwrap();
    let refused = LocalStore::open(home.options(Access::ReadWrite)).map(|_| ()).unwrap_err();
    fs::set_permissions(home.threads(), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(refused.kind(), Kind::Denied, "{refused}");
    assert_sound(&home.read_only(), &thread, 1);
}

#[test]
fn a_store_on_a_read_only_disk_is_read() {
    let home = Home::new();
    let mount = |options: &[&str]| {
        let mounted = Command::new("mount").args(options).arg(home.folder.path()).status();
        mounted.is_ok_and(|status| status.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=8m", "tmpfs"]) {
        eprintln!("skipped: this machine does not let a test mount a disk");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        LocalStore::init(home.folder.path(), Arc::new(RealDisk)).unwrap();
        let store = home.open();
        let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
        store.close().unwrap();
        assert!(mount(&["-o", "remount,ro"]));
        let reader = home.read_only();
        assert_sound(&reader, &thread, 1);
        assert_eq!(reader.list(&Default::default(), None, 10).unwrap().items.len(), 1);
        assert_eq!(reader.read(&thread, 0, 10).unwrap().len(), 4);
        drop(reader);
        let refused = refusal(LocalStore::open(home.options(Access::ReadWrite)));
        assert_eq!(refused.kind(), Kind::Denied, "{refused}");
    });
    _ = Command::new("umount").arg("-l").arg(home.folder.path()).status();
    result.unwrap();
}

#[test]
fn an_unreadable_file_is_reported_and_other_threads_continue() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let other = thread_with(&store, "scribe-ba9876543210", &["one"]);
    // A folder in place of the file can't be read by any user, root included.
    let path = home.transcript(&thread);
    fs::rename(&path, path.with_extension("aside")).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(append(&store, &thread, "two").is_err());
    assert_eq!(append(&store, &other, "two").unwrap(), 2);
    drop(store);
    let store = home.open();
    assert!(store.verify(&thread, &mut |_| {}).is_err());
    assert_sound(&store, &other, 2);
    fs::remove_dir(&path).unwrap();
    fs::rename(path.with_extension("aside"), &path).unwrap();
    assert_eq!(append(&store, &thread, "two").unwrap(), 2);
    assert_sound(&store, &thread, 2);
}

#[test]
fn foreign_files_in_the_folders_are_not_changed() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let foreign = [
        home.threads().join("notes.txt"),
        home.threads().join("Not A Thread"),
        home.threads().join(thread.folder()).join("README"),
        home.threads().join("owners").join("UPPER case"),
        home.threads().join("tombstones").join("x.json"),
    ];
    for path in &foreign {
        fs::write(path, "mine").unwrap();
    }
    store.close().unwrap();
    let store = home.open();
    assert_eq!(append(&store, &thread, "two").unwrap(), 2);
    assert_sound(&store, &thread, 2);
    assert_eq!(store.list(&Default::default(), None, 10).unwrap().items.len(), 1);
    store.close().unwrap();
    assert!(foreign.iter().all(|path| fs::read_to_string(path).unwrap() == "mine"));
}

#[test]
fn waiting_for_a_lease_of_another_process_is_bounded_and_names_the_holder() {
    let home = Home::new();
    let ours = home.open();
    let theirs = home.open();
    let thread = thread_with(&ours, "scribe-0123456789ab", &["one"]);
    let lease = theirs.acquire(&thread, Acquire::default()).unwrap();
    let refused = append(&ours, &thread, "two").unwrap_err();
    assert!(matches!(&refused, Error::LeaseHeld { holder, .. } if holder == theirs.owner()), "{refused}");
    assert!(refused.retryable());
    let how = Acquire { wait: Duration::from_millis(30), take_over: false };
    assert!(matches!(ours.acquire(&thread, how), Err(Error::LeaseHeld { .. })));
    theirs.release(&lease).unwrap();
    assert_eq!(append(&ours, &thread, "two").unwrap(), 2);
}

#[test]
fn a_database_that_is_corrupt_or_missing_is_never_a_fresh_start() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let database = home.threads().join("registry.db");
    let whole = fs::read(&database).unwrap();
    let log = fs::read(home.transcript(&thread)).unwrap();
    let damages: [(&str, Option<Vec<u8>>); 4] = [
        ("missing", None),
        ("empty", Some(Vec::new())),
        ("no database", Some(b"this is no database, and it is long enough to be looked at as one".repeat(100))),
        ("overwritten in the middle", Some([&whole[..4096], &vec![0xaa; whole.len() - 4096]].concat())),
    ];
    for (what, damage) in damages {
        match damage {
            Some(bytes) => fs::write(&database, bytes).unwrap(),
            None => fs::remove_file(&database).unwrap(),
        }
        let tried = LocalStore::open(home.options(Access::ReadWrite)).and_then(|store| append(&store, &thread, "two"));
        let refused = tried.unwrap_err();
        assert_eq!(refused.kind(), Kind::Integrity, "{what}: {refused}");
        assert!(refused.hint().is_some(), "{what}: {refused}");
        assert!(!LocalStore::init(home.folder.path(), Arc::new(RealDisk)).unwrap_or(false), "{what}: a fresh start");
        assert_eq!(fs::read(home.transcript(&thread)).unwrap(), log, "{what}: the log is unchanged");
        for left_over in ["registry.db-wal", "registry.db-shm"] {
            _ = fs::remove_file(home.threads().join(left_over));
        }
        fs::write(&database, &whole).unwrap();
    }
    let store_file = home.threads().join("store.json");
    fs::remove_file(&store_file).unwrap();
    fs::remove_file(&database).unwrap();
    let refused = LocalStore::init(home.folder.path(), Arc::new(RealDisk)).unwrap_err();
    assert_eq!(refused.kind(), Kind::Integrity, "{refused}");
    assert_eq!(fs::read(home.transcript(&thread)).unwrap(), log);
}

#[test]
fn a_newer_format_is_refused() {
    let home = Home::new();
    home.open().close().unwrap();
    let store_file = home.threads().join("store.json");
    let ours = fs::read_to_string(&store_file).unwrap();
    fs::write(&store_file, ours.replace("\"format\":8", "\"format\":99")).unwrap();
    let refused = refusal(LocalStore::open(home.options(Access::ReadWrite)));
    assert!(refused.to_string().contains("format 99"), "{refused}");
    fs::write(&store_file, ours.replace("selvedge-local", "another-kind")).unwrap();
    assert!(refusal(LocalStore::open(home.options(Access::ReadWrite))).to_string().contains("another-kind"));
    fs::write(&store_file, ours).unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    drop(database);
    let refused = refusal(LocalStore::open(home.options(Access::ReadWrite)));
    assert!(refused.to_string().contains("format 99"), "{refused}");
}

#[test]
fn a_symbolic_link_in_place_of_a_folder_or_file_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    // The whole store is a link.
    let project = tempfile::tempdir().unwrap();
    symlink(outside.path(), project.path().join(".ai")).unwrap();
    assert!(LocalStore::init(project.path(), Arc::new(RealDisk)).is_err());
    // A thread's folder is a link before the thread is created.
    let home = Home::new();
    let store = home.open();
    let thread = id("scribe-0123456789ab");
    symlink(outside.path(), home.threads().join(thread.folder())).unwrap();
    assert_eq!(store.commit(birth(&thread)).unwrap_err().kind(), Kind::Denied);
    // A transcript becomes a link.
    let other = thread_with(&store, "scribe-ba9876543210", &["one"]);
    let target = outside.path().join("target.jsonl");
    fs::copy(home.transcript(&other), &target).unwrap();
    let before = fs::read(&target).unwrap();
    fs::remove_file(home.transcript(&other)).unwrap();
    symlink(&target, home.transcript(&other)).unwrap();
    assert!(append(&store, &other, "two").is_err());
    assert!(store.verify(&other, &mut |_| {}).is_err());
    drop(store);
    assert_eq!(fs::read(&target).unwrap(), before);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "nothing was written outside the store");
}

#[test]
fn ids_with_path_components_never_become_a_path() {
    for bad in ["../../x", "/etc/x", "a/../../x", "..", ".", "a\0b", "~", "a/./b", "\u{202e}x"] {
        assert!(ThreadId::new(bad).is_err(), "{bad:?}");
        let home = Home::new();
        assert!(matches!(home.open().resolve(bad), Err(Error::NoThread(_))), "{bad:?}");
    }
}

#[test]
fn a_store_opened_for_reading_writes_nothing() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let listing = || {
        let mut names: Vec<_> = walk(home.folder.path());
        names.sort();
        names
    };
    let before = listing();
    let reader = home.read_only();
    assert_sound(&reader, &thread, 1);
    assert_eq!(reader.head(&thread).unwrap().version, 1);
    assert!(append(&reader, &thread, "two").is_err());
    assert!(reader.delete(&thread).is_err());
    assert!(reader.acquire(&thread, Acquire::default()).is_err());
    drop(reader);
    assert_eq!(listing(), before);
}

fn walk(folder: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let kind = entry.metadata().unwrap();
        if kind.is_dir() {
            found.extend(walk(&entry.path()));
        } else if !entry.file_name().to_string_lossy().starts_with("registry.db-") {
            // SQLite's own index of its write-ahead log comes and goes with its connections, so those files are skipped.
            found.push((entry.path().display().to_string(), kind.len()));
        }
    }
    found
}

/// What another user may write is not trusted. (Owners are covered by a test that needs no second user.)
#[test]
fn a_database_that_other_users_can_write_is_refused_with_a_hint() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    for (name, mode) in [("registry.db", 0o666), ("registry.db", 0o620), ("store.json", 0o646)] {
        let path = home.threads().join(name);
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let refused = refusal(LocalStore::open(home.options(access)));
            let said = refused.to_string();
            let hint = refused.hint().unwrap_or_default();
            assert!(said.contains(name) && said.contains(&format!("{mode:04o}")), "{said}");
            assert!(hint.contains("chmod go-w") && hint.contains(&path.display().to_string()), "{hint}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }
    assert_sound(&home.read_only(), &thread, 1);
}
