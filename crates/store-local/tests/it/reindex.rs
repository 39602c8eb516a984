//! Rebuilding the database: the logs give the same content, whatever was done to a store, and whenever the rebuild is killed.
//!
//! Every case of the shared suite runs here once more; afterwards its store is rebuilt, with and without the old database, and the dumps
//! are compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use selvedge_log::Trust;
use selvedge_log::recovery::Finding;
use selvedge_model::{Batch, Classify, CommitKey, Expect, Ids, Kind, Part, Posted, Request, RequestId, ThreadId};
use selvedge_store::conformance::Harness;
use selvedge_store::{Acquire, Commit, Error, Feed, Inbox, Leases, Logs};
use selvedge_store_local::disk::{Disk, DiskFile, OpenMode, RealDisk};
use selvedge_store_local::system::SystemIds;
use selvedge_store_local::{LocalStore, Rebuild, Reindexed};

use crate::support::{Home, birth, id, says, thread_with};

fn rebuild(home: &Home) -> Rebuild {
    rebuild_with(home, Arc::new(RealDisk))
}

fn rebuild_with(home: &Home, disk: Arc<dyn Disk>) -> Rebuild {
    Rebuild { project: home.folder.path().to_owned(), trust: home.trust(), signer: Some(home.signer()), disk }
}

/// Rebuilds, and waits for owners that only seem alive: a process that another test forks at that moment has their locks until it executes
/// its own program.
pub(crate) fn reindex(home: &Home) -> Reindexed {
    let patience = Instant::now() + Duration::from_secs(5);
    loop {
        match LocalStore::reindex(&rebuild(home), &mut |_, _| {}) {
            Err(Error::Unusable { .. }) if Instant::now() < patience => thread::sleep(Duration::from_millis(5)),
            other => return other.unwrap(),
        }
    }
}

fn dump(home: &Home) -> String {
    home.read_only().dump().unwrap()
}

fn lose_database(home: &Home) {
    for name in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        _ = fs::remove_file(home.threads().join(name));
    }
}

/// The part of a dump that is in logs and tombstones: no requests, no leases, and after a deletion no keys and accounts.
fn in_logs(dump: &str) -> Vec<String> {
    let deleted = dump.lines().any(|line| line.starts_with("tombstones"));
    let outside = |line: &str| {
        ["requests", "leads"].iter().any(|table| line.starts_with(table))
            || (deleted && ["keys", "budget_ledger", "reservations"].iter().any(|table| line.starts_with(table)))
    };
    // Accounts of the suite are named after threads that never existed, and are lost with the database.
    let text = |line: &str| {
        let end = if line.starts_with("budget_ledger") { line.rfind(" | ") } else { line.find(" | epoch ") };
        line[..end.unwrap_or(line.len())].to_owned()
    };
    dump.lines().filter(|line| !outside(line)).map(text).collect()
}

/// A store of the suite that is rebuilt twice before it is dropped.
struct Rebuilt(Home);

impl Harness for Rebuilt {
    type Store = LocalStore;

    fn open(&self) -> LocalStore {
        self.0.open()
    }

    fn trust(&self) -> Trust {
        self.0.trust()
    }
}

impl Drop for Rebuilt {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let home = &self.0;
        home.open().close().unwrap();
        let before = dump(home);
        let rebuilt = reindex(home);
        assert!(rebuilt.left_out.is_empty() && rebuilt.notices.is_empty(), "{rebuilt:?}");
        assert_eq!(dump(home), before, "with the old database");
        lose_database(home);
        let rebuilt = reindex(home);
        assert!(rebuilt.left_out.is_empty(), "{rebuilt:?}");
        assert_eq!(in_logs(&dump(home)), in_logs(&before), "without the old database");
        home.open().close().unwrap();
    }
}

selvedge_store::conformance_suite!(Rebuilt(Home::new()));

/// A store with a little of everything.
fn busy() -> (Home, Vec<ThreadId>) {
    let home = Home::new();
    let store = home.open();
    let threads: Vec<_> = ["one", "two", "three"]
        .map(|name| thread_with(&store, &format!("{name}-0123456789ab"), &["first", "second"]))
        .into();
    let parts = threads.iter().map(|thread| Part::new(thread.clone(), Expect::Any, says("together"))).collect();
    let batch = Batch { parts, ..birth(&threads[0]) };
    store.commit(batch.with_key(CommitKey::new("k1").unwrap())).unwrap();
    let gone = thread_with(&store, "gone-0123456789ab", &["first"]);
    store.delete(&gone).unwrap();
    store.post(request(&threads[0])).unwrap();
    store.close().unwrap();
    (home, threads)
}

pub(crate) fn request(thread: &ThreadId) -> Posted {
    let id = RequestId::new("n1").unwrap();
    let at = selvedge_model::Timestamp::from_micros(7);
    Posted { thread: thread.clone(), id, at, request: Request::Rename { title: "new".to_owned() } }
}

fn append(store: &LocalStore, thread: &ThreadId) -> Result<u64, Error> {
    Ok(store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("next"))))?.versions[0].1)
}

fn assert_sound(store: &LocalStore, thread: &ThreadId) {
    assert_eq!(store.verify(thread, &mut |_| {}).unwrap().judgement.finding, Finding::Sound, "{thread}");
}

#[test]
fn without_database_and_manifests_everything_is_restored() {
    let (home, threads) = busy();
    let before = dump(&home);
    lose_database(&home);
    fs::remove_file(home.threads().join("store.json")).unwrap();
    for thread in &threads {
        fs::remove_file(home.threads().join(thread.folder()).join("thread.json")).unwrap();
    }
    let refused = LocalStore::init(home.folder.path(), Arc::new(RealDisk)).unwrap_err();
    assert!(refused.hint().unwrap().contains("selvedge reindex"), "{refused}");
    let rebuilt = reindex(&home);
    assert_eq!((rebuilt.threads, rebuilt.tombstones), (3, 1));
    assert_eq!(in_logs(&dump(&home)), in_logs(&before));
    let store = home.open();
    for thread in &threads {
        assert!(home.threads().join(thread.folder()).join("thread.json").exists());
        assert_sound(&store, thread);
        assert_eq!(append(&store, thread).unwrap(), 4);
    }
    let again = store.commit(birth(&id("gone-0123456789ab")));
    assert!(matches!(again, Err(Error::Deleted(_))), "ids are never reused");
    // The answer to a commit key is found again, in the order of its parts.
    let parts = threads.iter().rev().map(|thread| Part::new(thread.clone(), Expect::Any, says("together"))).collect();
    let batch = Batch { parts, ..birth(&threads[0]) }.with_key(CommitKey::new("k1").unwrap());
    assert!(matches!(store.commit(batch), Err(Error::KeyReused(_))), "another order is another request");
    let outcome = store.outcome(&CommitKey::new("k1").unwrap()).unwrap().unwrap();
    assert_eq!(outcome.versions.len(), 3);
}

/// A log that was cut at a checkpoint, with a lost database and an older `thread.json`, looks complete: at least it is reported that
/// nothing confirms its end.
#[test]
fn the_number_of_threads_whose_end_only_the_log_confirms_is_reported() {
    let (home, threads) = busy();
    assert_eq!(reindex(&home).unconfirmed_ends, 0, "the old database confirms all");
    lose_database(&home);
    assert_eq!(reindex(&home).unconfirmed_ends, threads.len() as u64, "their manifests are older than their logs");
}

#[test]
fn requests_epochs_and_feed_positions_are_carried_over() {
    let (home, threads) = busy();
    let store = home.open();
    let lease = store.acquire(&threads[1], Acquire::default()).unwrap();
    store.release(&lease).unwrap();
    let position = store.position().unwrap();
    store.close().unwrap();
    let before = dump(&home);
    let rebuilt = reindex(&home);
    assert_eq!((rebuilt.requests, rebuilt.notices.as_slice()), (1, &[][..]));
    assert_eq!(dump(&home), before);
    let store = home.open();
    let carried = selvedge_store::QueuedRequest { posted: request(&threads[0]), is_sealed: true };
    assert_eq!(store.pending(&threads[0]).unwrap(), [carried]);
    assert!(store.acquire(&threads[1], Acquire::default()).unwrap().epoch > lease.epoch);
    assert!(store.after(position, 100).unwrap().len() >= 12, "a follower misses nothing");
}

#[test]
fn committed_bytes_that_are_not_drained_are_not_lost() {
    let (home, threads) = busy();
    let store = home.open();
    assert_eq!(append(&store, &threads[0]).unwrap(), 4);
    drop(store);
    // As after a power failure: the transcript lacks the bytes of the redo.
    let path = home.transcript(&threads[0]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 300]).unwrap();
    let rebuilt = reindex(&home);
    assert_eq!((rebuilt.drained_bytes, rebuilt.left_out.len()), (300, 0));
    assert_eq!(fs::read(&path).unwrap(), whole);
    assert_sound(&home.open(), &threads[0]);
}

#[test]
fn a_damaged_or_cut_log_keeps_its_old_rows() {
    let (home, threads) = busy();
    let before = dump(&home);
    let damaged = home.transcript(&threads[0]);
    let mut bytes = fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&damaged, &bytes).unwrap();
    let cut = home.transcript(&threads[1]);
    let whole = fs::read(&cut).unwrap();
    let ends: Vec<_> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
    fs::write(&cut, &whole[..=ends[ends.len() - 3]]).unwrap();
    let rebuilt = reindex(&home);
    let left_out: BTreeSet<_> = rebuilt.left_out.iter().map(|left| (&left.thread, left.is_known)).collect();
    assert_eq!(left_out, BTreeSet::from([(&threads[0], true), (&threads[1], true)]), "{rebuilt:?}");
    assert_eq!(dump(&home), before, "no head is lowered");
    assert_eq!(fs::read(&damaged).unwrap(), bytes, "the folder is not changed");
    let store = home.open();
    assert_eq!(append(&store, &threads[1]).unwrap_err().kind(), Kind::Integrity);
    drop(store);
    // Without the old database, another log of the batch still records what was cut, and the damaged one is left out.
    lose_database(&home);
    fs::remove_file(home.threads().join(threads[1].folder()).join("thread.json")).unwrap();
    let rebuilt = reindex(&home);
    let left_out: BTreeSet<_> = rebuilt.left_out.iter().map(|left| (&left.thread, left.is_known)).collect();
    assert_eq!(left_out, BTreeSet::from([(&threads[0], false), (&threads[1], false)]), "{rebuilt:?}");
    assert_eq!(rebuilt.threads, 1);
    let store = home.open();
    assert!(matches!(store.head(&threads[0]), Err(Error::NoThread(_))));
    let again = store.commit(birth(&threads[0])).unwrap_err();
    assert_eq!(again.kind(), Kind::Integrity, "{again}");
    assert_eq!(fs::read(&damaged).unwrap(), bytes, "a log without rows is not overwritten");
}

#[test]
fn an_interrupted_deletion_is_finished_and_nothing_comes_back() {
    let (home, threads) = busy();
    let saved = home.folder.path().join("saved");
    let folder = home.threads().join(threads[2].folder());
    copy(&folder, &saved);
    let store = home.open();
    store.delete(&threads[2]).unwrap();
    store.close().unwrap();
    copy(&saved, &folder);
    lose_database(&home);
    let rebuilt = reindex(&home);
    assert_eq!((rebuilt.threads, rebuilt.tombstones, rebuilt.finished_deletions), (2, 2, 1));
    assert!(!folder.exists());
    assert!(matches!(home.open().head(&threads[2]), Err(Error::Deleted(_))));
    // A tombstone of an untrusted signer deletes nothing.
    let other = home.threads().join("tombstones").join(format!("{}.json", threads[0].folder()));
    let forged = fs::read_to_string(home.threads().join("tombstones").join(format!("{}.json", threads[2].folder())));
    fs::write(other, forged.unwrap().replace(threads[2].as_str(), threads[0].as_str())).unwrap();
    let rebuilt = reindex(&home);
    assert_eq!((rebuilt.threads, rebuilt.tombstones, rebuilt.notices.len()), (2, 2, 1), "{rebuilt:?}");
}

#[test]
fn an_unreadable_database_is_moved_aside() {
    let (home, threads) = busy();
    let before = dump(&home);
    let database = home.threads().join("registry.db");
    let damaged: Vec<u8> = fs::read(&database)
        .unwrap()
        .iter()
        .enumerate()
        .map(|(at, byte)| if at > 4096 { byte ^ 0x55 } else { *byte })
        .collect();
    fs::write(&database, &damaged).unwrap();
    let rebuilt = reindex(&home);
    assert!(rebuilt.notices.iter().any(|notice| notice.contains("could not be carried over")), "{rebuilt:?}");
    assert_eq!(fs::read(home.threads().join("registry.db.unreadable")).unwrap(), damaged);
    assert_eq!(in_logs(&dump(&home)), in_logs(&before));
    assert_eq!(append(&home.open(), &threads[0]).unwrap(), 4);
}

#[test]
fn a_store_that_is_open_for_writing_is_not_rebuilt() {
    let (home, _) = busy();
    let store = home.open();
    let refused = LocalStore::reindex(&rebuild(&home), &mut |_, _| {}).unwrap_err();
    assert_eq!(refused.kind(), Kind::Denied);
    assert!(refused.to_string().contains(store.owner().as_str()), "{refused}");
    store.close().unwrap();
    reindex(&home);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { _ = fs::copy(entry.path(), target).unwrap() }
    }
}

/// A disk that fails from the n-th changing call on, as if the process died there.
#[derive(Debug)]
pub(crate) struct Dying(pub(crate) Arc<AtomicI64>);

#[derive(Debug)]
struct DyingFile(Box<dyn DiskFile>, Dying);

impl Dying {
    fn check(&self) -> io::Result<()> {
        if self.0.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Err(io::Error::other("made to fail"));
        }
        Ok(())
    }
}

impl Disk for Dying {
    fn open(&self, path: &Path, how: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        if how != OpenMode::Read {
            self.check()?;
        }
        Ok(Box::new(DyingFile(RealDisk.open(path, how)?, Self(self.0.clone()))))
    }
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.check()?;
        RealDisk.make_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check()?;
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check()?;
        RealDisk.remove(path)
    }
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.check()?;
        RealDisk.remove_folder(path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.check()?;
        RealDisk.sync_folder(path)
    }
}

impl DiskFile for DyingFile {
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
        if let Err(error) = self.1.check() {
            _ = self.0.write_at(&bytes[..bytes.len() / 2], offset);
            return Err(error);
        }
        self.0.write_at(bytes, offset)
    }
    fn truncate(&self, length: u64) -> io::Result<()> {
        self.1.check()?;
        self.0.truncate(length)
    }
    fn sync(&self) -> io::Result<()> {
        self.1.check()?;
        self.0.sync()
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

/// Leaves a store as a crash does: undrained bytes, an unfinished deletion.
fn crashed() -> (Home, Vec<ThreadId>, String) {
    let (home, threads) = busy();
    let store = home.open();
    append(&store, &threads[0]).unwrap();
    drop(store);
    let path = home.transcript(&threads[0]);
    let bytes = fs::read(&path).unwrap();
    let store = home.read_only();
    let before = store.dump().unwrap();
    drop(store);
    fs::write(&path, &bytes[..bytes.len() - 200]).unwrap();
    (home, threads, before)
}

#[test]
fn after_a_failure_at_any_call_a_second_run_completes() {
    for lost in [false, true] {
        let mut calls = 0;
        loop {
            let (home, threads, before) = crashed();
            if lost {
                // A lost database can't have had undrained redo.
                home.open().close().unwrap();
                lose_database(&home);
            }
            let left = Arc::new(AtomicI64::new(calls));
            let tried = LocalStore::reindex(&rebuild_with(&home, Arc::new(Dying(left))), &mut |_, _| {});
            let done = tried.is_ok();
            if !done {
                reindex(&home);
            }
            if lost {
                assert_eq!(in_logs(&dump(&home)), in_logs(&before), "after {calls} calls");
            } else {
                assert_eq!(dump(&home), before, "after {calls} calls");
            }
            let store = home.open();
            threads.iter().for_each(|thread| assert_sound(&store, thread));
            if done {
                break;
            }
            calls += 1;
        }
        assert!(calls > 8, "{calls} calls");
    }
}

/// Not a test by itself: the work of the killed processes.
#[test]
fn child() {
    let Ok(folder) = std::env::var("SELVEDGE_TEST_REINDEX") else { return };
    let pem = std::env::var("SELVEDGE_TEST_PEM").unwrap();
    let options = crate::support::options(folder.as_ref(), &pem, selvedge_store_local::Access::ReadWrite);
    let rebuild =
        Rebuild { project: options.project, trust: options.trust, signer: options.signer, disk: options.disk };
    loop {
        LocalStore::reindex(&rebuild, &mut |_, _| {}).unwrap();
    }
}

#[test]
fn after_a_kill_at_any_moment_a_second_run_completes() {
    let (home, threads, before) = crashed();
    for round in 0..25 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "reindex::child", "--test-threads=1"])
            .env("SELVEDGE_TEST_REINDEX", home.folder.path())
            .env("SELVEDGE_TEST_PEM", home.pem())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut chance = [0; 1];
        SystemIds.fill(&mut chance);
        thread::sleep(Duration::from_micros(8_000 + u64::from(chance[0]) * 200));
        child.kill().unwrap();
        child.wait().unwrap();
        reindex(&home);
        assert_eq!(dump(&home), before, "round {round}");
    }
    let store = home.open();
    threads.iter().for_each(|thread| assert_sound(&store, thread));
}
