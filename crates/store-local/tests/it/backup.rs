//! Backups of live stores, and restoring them.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;

use selvedge_log::recovery::Finding;
use selvedge_model::{Batch, Classify, Expect, Part, ThreadId};
use selvedge_store::{Acquire, Commit, Leases, Logs, Registry};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Options, Restored};
use tempfile::TempDir;

use crate::erase::with_blob;
use crate::support::{Home, birth, id, options, says, thread_with};

/// Restores a backup without failures.
fn restore(backup: &Path, home: &Home) -> Result<TempDir, selvedge_store::Error> {
    let (folder, restored) = restore_some(backup, home)?;
    assert!(restored.failed_checks.is_empty() && !restored.is_rebuilt, "{restored:?}");
    Ok(folder)
}

fn restore_some(backup: &Path, home: &Home) -> Result<(TempDir, Restored), selvedge_store::Error> {
    let folder = tempfile::tempdir().unwrap();
    let restored = LocalStore::restore(
        backup,
        folder.path(),
        &home.trust(),
        Some(home.signer()),
        Arc::new(RealDisk),
        &mut |_, _| {},
    )?;
    Ok((folder, restored))
}

/// Ends the writers, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn assert_sound(store: &LocalStore, thread: &ThreadId) -> u64 {
    let verdict = store.verify(thread, &mut |_| {}).unwrap();
    assert_eq!(verdict.judgement.finding, Finding::Sound, "{thread}");
    assert_eq!(verdict.healed_bytes, 0, "{thread}: the transcript alone is complete");
    verdict.judgement.unchanged_up_to.unwrap()
}

#[test]
fn a_backup_made_while_four_threads_are_written_restores_and_verifies() {
    let home = Home::new();
    let store = home.open();
    let threads: Vec<_> = (0..4).map(|n| id(&format!("writer-{n}-0123456789ab"))).collect();
    threads.iter().for_each(|thread| drop(store.commit(birth(thread)).unwrap()));
    let acked: Vec<_> = (0..4).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let target = tempfile::tempdir().unwrap();
    let rounds = 3;
    // Two handles, as two processes would have.
    let other = home.open();
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        let handles = [&store, &other];
        for (index, thread) in threads.iter().enumerate() {
            let handle = handles[index % 2];
            let acked = &acked[index];
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let part = Part::new(thread.clone(), Expect::Any, says(&"x".repeat(300)));
                    acked.store(handle.commit(Batch::of(part)).unwrap().versions[0].1, Ordering::SeqCst);
                }
            });
        }
        for round in 0..rounds {
            let before: Vec<_> = acked.iter().map(|version| version.load(Ordering::SeqCst)).collect();
            let folder = target.path().join(round.to_string());
            // A read-only handle that can sign.
            let reader = LocalStore::open(home.options(Access::ReadOnly)).unwrap();
            reader.backup(&folder, &mut |_, _| {}).unwrap();
            let restored = restore(&folder, &home).unwrap();
            let copy = LocalStore::open(options(restored.path(), home.pem(), Access::ReadWrite)).unwrap();
            for (thread, before) in threads.iter().zip(before) {
                let version = assert_sound(&copy, thread);
                assert!(version >= before, "{thread}: {before} was acknowledged, {version} is in the backup");
                let live = store.head(thread).unwrap().version;
                assert!(version <= live, "{thread}: {version} is in the backup, {live} in the store");
                copy.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(version), says("on")))).unwrap();
            }
            copy.close().unwrap();
        }
    });
}

#[test]
fn a_backup_has_blobs_manifests_tombstones_and_epochs() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    let gone = thread_with(&store, "gone", &["bye"]);
    store.delete(&gone).unwrap();
    let lease = store.acquire(&thread, Acquire::default()).unwrap();
    let target = tempfile::tempdir().unwrap();
    let made = store.backup(&target.path().join("b"), &mut |_, _| {}).unwrap();
    assert_eq!((made.threads.len(), made.blobs), (1, 1));
    store.close().unwrap();
    let restored = restore(&target.path().join("b"), &home).unwrap();
    let copy = LocalStore::open(options(restored.path(), home.pem(), Access::ReadWrite)).unwrap();
    assert_eq!(copy.blob(&thread, &blob).unwrap(), b"secret");
    assert!(copy.tombstone(&gone).unwrap().is_some());
    let threads = restored.path().join(".ai/agent/threads");
    assert!(
        threads.join("tombstones/gone.json").exists() && threads.join(thread.folder()).join("thread.json").exists()
    );
    assert!(copy.acquire(&thread, Acquire::default()).unwrap().epoch > lease.epoch, "epochs continue");
    copy.close().unwrap();
}

#[test]
fn a_backup_never_overwrites_and_a_restore_never_overwrites() {
    let home = Home::new();
    let store = home.open();
    thread_with(&store, "tea", &["one"]);
    let target = tempfile::tempdir().unwrap();
    fs::write(target.path().join("mine"), "").unwrap();
    assert_eq!(store.backup(target.path(), &mut |_, _| {}).unwrap_err().code(), "store_unusable");
    store.backup(&target.path().join("b"), &mut |_, _| {}).unwrap();
    store.close().unwrap();
    let over = LocalStore::restore(
        &target.path().join("b"),
        home.folder.path(),
        &home.trust(),
        Some(home.signer()),
        Arc::new(RealDisk),
        &mut |_, _| {},
    );
    assert_eq!(over.unwrap_err().code(), "store_unusable");
}

#[test]
fn an_unfinished_or_foreign_backup_restores_nothing() {
    let home = Home::new();
    let (store, _, _) = with_blob(&home);
    let target = tempfile::tempdir().unwrap();
    let backup = target.path().join("b");
    store.backup(&backup, &mut |_, _| {}).unwrap();
    store.close().unwrap();
    let stranger = Home::new();
    assert_eq!(restore(&backup, &stranger).unwrap_err().code(), "untrusted_key", "the key is not trusted here");
    let path = backup.join("backup.json");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replacen("\"blobs\": 1", "\"blobs\": 2", 1)).unwrap();
    assert_ne!(fs::read_to_string(&path).unwrap(), good);
    assert_eq!(restore(&backup, &home).unwrap_err().code(), "integrity", "an invalid signature");
    fs::write(&path, good).unwrap();
    restore(&backup, &home).unwrap();
    fs::remove_file(path).unwrap();
    assert_eq!(restore(&backup, &home).unwrap_err().code(), "store_unusable");
}

/// One damaged blob or log on the backup's disk once made the whole backup worthless.
#[test]
fn damaged_parts_of_a_backup_are_left_out_and_the_rest_is_restored() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    let other = thread_with(&store, "other", &["one"]);
    let target = tempfile::tempdir().unwrap();
    let backup = target.path().join("b");
    store.backup(&backup, &mut |_, _| {}).unwrap();
    store.close().unwrap();
    let folder = backup.join("threads").join(thread.folder());
    let flipped = |path: &Path, look: &dyn Fn(&LocalStore, &Restored)| {
        let good = fs::read(path).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::write(path, bad).unwrap();
        assert!(LocalStore::check_backup(&backup, &home.trust(), &RealDisk, &mut |_, _| {}).is_err());
        let (project, restored) = restore_some(&backup, &home).unwrap();
        let copy = LocalStore::open(options(project.path(), home.pem(), Access::ReadWrite)).unwrap();
        assert_sound(&copy, &other);
        look(&copy, &restored);
        // Whatever was left out, the restored threads can continue.
        copy.commit(Batch::of(Part::new(other.clone(), Expect::Exact(1), says("on")))).unwrap();
        copy.close().unwrap();
        fs::write(path, good).unwrap();
    };
    flipped(&folder.join("blobs").join(blob.to_string()), &|copy, restored| {
        assert_eq!(
            (restored.failed_checks.len(), restored.failed_checks[0].blob, restored.threads),
            (1, Some(blob), 2)
        );
        assert_eq!(copy.head(&thread).unwrap().version, 2, "its thread is restored");
        assert_eq!(copy.blob(&thread, &blob).unwrap_err().code(), "blob_not_found");
    });
    flipped(&folder.join("transcript.jsonl"), &|copy, restored| {
        assert_eq!(
            (&restored.failed_checks[0].thread_id, restored.failed_checks[0].blob, restored.threads),
            (&thread, None, 1)
        );
        assert!(restored.failed_checks[0].why.contains("damaged"), "{restored:?}");
        assert_eq!(copy.head(&thread).unwrap_err().code(), "thread_not_found", "it can be imported from elsewhere");
    });
    flipped(&backup.join("threads/registry.db"), &|copy, restored| {
        assert!(restored.is_rebuilt && restored.failed_checks.is_empty(), "{restored:?}");
        assert_sound(copy, &thread);
    });
    fs::remove_dir_all(&folder).unwrap();
    let (_project, restored) = restore_some(&backup, &home).unwrap();
    assert!(restored.failed_checks[0].why.contains("is missing"), "{restored:?}");
}

/// One damaged log once made every backup of its store fail.
#[test]
fn damaged_parts_of_a_store_are_listed_in_its_backup_and_the_rest_is_copied() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    let [other, gone, cut] = ["other", "gone", "cut"].map(|name| thread_with(&store, name, &["one", "two"]));
    store.close().unwrap();
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    flip(&home.threads().join(thread.folder()).join("blobs").join(blob.to_string()));
    let log = fs::read(home.transcript(&cut)).unwrap();
    fs::write(home.transcript(&cut), &log[..log.len() - 30]).unwrap();
    fs::remove_dir_all(home.threads().join("gone")).unwrap();
    let target = tempfile::tempdir().unwrap();
    let backup = target.path().join("b");
    let made = home.read_only().backup(&backup, &mut |_, _| {}).unwrap();
    let bad: Vec<_> = made.failed_checks.iter().map(|bad| (bad.thread_id.as_str(), bad.blob, bad.copied)).collect();
    assert_eq!(bad, [(thread.as_str(), Some(blob), true), (gone.as_str(), None, false), (cut.as_str(), None, true)]);
    assert_eq!(fs::read(backup.join("threads/cut/transcript.jsonl")).unwrap(), log[..log.len() - 30], "as it is");
    let listed: serde_json::Value = serde_json::from_slice(&fs::read(backup.join("backup.json")).unwrap()).unwrap();
    assert_eq!(listed["failed_checks"].as_array().unwrap().len(), 3, "the backup lists them");
    let (project, restored) = restore_some(&backup, &home).unwrap();
    assert_eq!((restored.failed_checks.len(), restored.threads), (3, 2));
    let copy = LocalStore::open(options(project.path(), home.pem(), Access::ReadWrite)).unwrap();
    assert_sound(&copy, &other);
    assert_eq!(copy.head(&thread).unwrap().version, 2);
    copy.close().unwrap();
}

#[test]
fn a_log_that_cannot_be_read_is_left_out_and_a_backup_that_cannot_be_written_fails() {
    let home = Home::new();
    let store = home.open();
    let [one, other] = ["one", "other"].map(|name| thread_with(&store, name, &["one"]));
    store.close().unwrap();
    let log = fs::read(home.transcript(&one)).unwrap();
    fs::remove_file(home.transcript(&one)).unwrap();
    fs::create_dir(home.transcript(&one)).unwrap();
    let target = tempfile::tempdir().unwrap();
    let made = home.read_only().backup(&target.path().join("b"), &mut |_, _| {}).unwrap();
    assert_eq!(made.failed_checks.iter().map(|bad| (&bad.thread_id, bad.copied)).collect::<Vec<_>>(), [(&one, false)]);
    assert_eq!(made.threads.iter().map(|thread| &thread.thread_id).collect::<Vec<_>>(), [&other]);
    let (_project, restored) = restore_some(&target.path().join("b"), &home).unwrap();
    assert_eq!((restored.threads, &restored.failed_checks[0].thread_id), (1, &one));
    fs::remove_dir(home.transcript(&one)).unwrap();
    fs::write(home.transcript(&one), log).unwrap();
    // A full disk is not damage of the store: no backup is created.
    let mut failed = 0;
    for after in 0..12 {
        let left = Arc::new(std::sync::atomic::AtomicI64::new(after));
        let error = std::io::ErrorKind::StorageFull;
        let mut options = home.options(Access::ReadOnly);
        options.disk = Arc::new(crate::world::Failing { what: "write", left, error });
        let folder = target.path().join(format!("full-{after}"));
        let partial = format!("full-{after}.partial");
        match LocalStore::open(options).unwrap().backup(&folder, &mut |_, _| {}) {
            Ok(made) => assert_eq!(made.failed_checks, []),
            Err(error) => {
                assert_eq!(error.code(), "io", "{error}");
                assert!(!folder.exists() && !target.path().join(partial).exists());
                failed += 1;
            }
        }
    }
    assert!(failed > 4, "{failed}");
}

#[test]
fn a_backup_made_without_the_private_key_can_be_restored() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    store.close().unwrap();
    let target = tempfile::tempdir().unwrap();
    let backup = target.path().join("b");
    let reader = LocalStore::open(Options { signer: None, ..home.options(Access::ReadOnly) }).unwrap();
    assert!(!reader.can_sign());
    reader.backup(&backup, &mut |_, _| {}).unwrap();
    let (project, restored) = restore_some(&backup, &home).unwrap();
    assert!(!restored.is_signed && restored.failed_checks.is_empty() && !restored.is_rebuilt, "{restored:?}");
    let copy = LocalStore::open(options(project.path(), home.pem(), Access::ReadWrite)).unwrap();
    assert_sound(&copy, &thread);
    assert_eq!(copy.blob(&thread, &blob).unwrap(), b"secret");
    copy.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(2), says("on")))).unwrap();
    copy.close().unwrap();
    // Its logs are trusted because they are signed, not because they are in it.
    let stranger = Home::new();
    let (_project, restored) = restore_some(&backup, &stranger).unwrap();
    assert_eq!((restored.threads, restored.failed_checks.len()), (0, 1));
}

#[test]
fn an_interrupted_backup_is_started_over_and_nothing_else_is_removed() {
    let home = Home::new();
    let (store, _, _) = with_blob(&home);
    store.close().unwrap();
    let target = tempfile::tempdir().unwrap();
    let backup = target.path().join("b");
    let partial = target.path().join("b.partial");
    fs::create_dir_all(partial.join("threads/left/blobs")).unwrap();
    fs::write(partial.join("threads/left/transcript.jsonl"), "half").unwrap();
    fs::write(partial.join("backup.lock"), "").unwrap();
    home.read_only().backup(&backup, &mut |_, _| {}).unwrap();
    assert!(!partial.exists() && !backup.join("threads/left").exists() && !backup.join("backup.lock").exists());
    restore(&backup, &home).unwrap();
    let other = target.path().join("c");
    let strange = target.path().join("c.partial");
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("mine"), "").unwrap();
    let refused = home.read_only().backup(&other, &mut |_, _| {}).unwrap_err();
    assert_eq!(refused.code(), "store_unusable");
    assert!(strange.join("mine").exists(), "files of no backup are not changed");
    // Two at once: the second does not remove what the first writes.
    let third = target.path().join("d");
    let mut second = None;
    home.read_only()
        .backup(&third, &mut |_, _| second = Some(home.read_only().backup(&third, &mut |_, _| {}).unwrap_err()))
        .unwrap();
    assert!(second.unwrap().to_string().contains("another process"));
    restore(&third, &home).unwrap();
}

/// Not a test by itself: the work of the killed processes.
#[test]
fn child() {
    let Ok(project) = std::env::var("SELVEDGE_TEST_BACKUP") else { return };
    let pem = std::env::var("SELVEDGE_TEST_PEM").unwrap();
    let target = std::env::var("SELVEDGE_TEST_TARGET").unwrap();
    match std::env::var("SELVEDGE_TEST_SOURCE") {
        Ok(source) => {
            let signer = selvedge_log::Signer::from_pem(&pem).unwrap();
            let trust = selvedge_log::Trust::of(&[signer.public()]);
            let disk = Arc::new(RealDisk);
            LocalStore::restore(source.as_ref(), target.as_ref(), &trust, Some(signer), disk, &mut |_, _| {}).unwrap();
        }
        Err(_) => {
            let store = LocalStore::open(options(project.as_ref(), &pem, Access::ReadOnly)).unwrap();
            store.backup(target.as_ref(), &mut |_, _| {}).unwrap();
        }
    }
}

fn run_and_kill(home: &Home, target: &Path, source: Option<&Path>, after: std::time::Duration) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "backup::child", "--test-threads=1"]);
    command.env("SELVEDGE_TEST_BACKUP", home.folder.path()).env("SELVEDGE_TEST_PEM", home.pem());
    command.env("SELVEDGE_TEST_TARGET", target).stdout(std::process::Stdio::null());
    if let Some(source) = source {
        command.env("SELVEDGE_TEST_SOURCE", source);
    }
    let mut child = command.spawn().unwrap();
    thread::sleep(after);
    _ = child.kill();
    child.wait().unwrap();
}

#[test]
fn a_backup_or_restore_killed_at_any_moment_is_complete_or_recognised() {
    let home = Home::new();
    let (store, thread, _) = with_blob(&home);
    (0..8).for_each(|n| drop(thread_with(&store, &format!("more-{n}"), &["one", "two"])));
    store.close().unwrap();
    let target = tempfile::tempdir().unwrap();
    let mut finished = None;
    let mut cut = 0;
    for round in 0..24 {
        let folder = target.path().join(round.to_string());
        run_and_kill(&home, &folder, None, std::time::Duration::from_millis(round * 3));
        match restore(&folder, &home) {
            Ok(restored) => {
                let copy = LocalStore::open(options(restored.path(), home.pem(), Access::ReadOnly)).unwrap();
                assert_sound(&copy, &thread);
                finished = Some(folder);
            }
            Err(error) => {
                assert_eq!(error.code(), "store_unusable", "an unfinished backup is recognised: {error}");
                home.read_only().backup(&folder, &mut |_, _| {}).unwrap();
                restore(&folder, &home).unwrap();
                cut += 1;
            }
        }
    }
    assert!(cut > 0, "none was interrupted");
    let finished = finished.unwrap_or_else(|| {
        home.read_only().backup(&target.path().join("whole"), &mut |_, _| {}).unwrap();
        target.path().join("whole")
    });
    for round in 0..24 {
        let project = tempfile::tempdir().unwrap();
        run_and_kill(&home, project.path(), Some(&finished), std::time::Duration::from_millis(round * 3));
        if LocalStore::open(options(project.path(), home.pem(), Access::ReadOnly)).is_err() {
            let trust = home.trust();
            let disk = Arc::new(RealDisk);
            LocalStore::restore(&finished, project.path(), &trust, Some(home.signer()), disk, &mut |_, _| {}).unwrap();
        }
        let copy = LocalStore::open(options(project.path(), home.pem(), Access::ReadWrite)).unwrap();
        assert_sound(&copy, &thread);
        copy.close().unwrap();
    }
}

#[test]
fn a_thread_deleted_during_a_backup_is_deleted_in_the_copy() {
    let home = Home::new();
    let store = home.open();
    let threads: Vec<_> = (0..3).map(|n| thread_with(&store, &format!("thread-{n}"), &["one"])).collect();
    let target = tempfile::tempdir().unwrap();
    let made = home
        .read_only()
        .backup(&target.path().join("b"), &mut |done, _| {
            if done == 1 {
                // One that was copied already, and one that was not.
                store.delete(&threads[0]).unwrap();
                store.delete(&threads[2]).unwrap();
            }
        })
        .unwrap();
    assert_eq!(made.threads.iter().map(|thread| &thread.thread_id).collect::<Vec<_>>(), [&threads[1]]);
    let restored = restore(&target.path().join("b"), &home).unwrap();
    let copy = LocalStore::open(options(restored.path(), home.pem(), Access::ReadWrite)).unwrap();
    assert!(copy.tombstone(&threads[0]).unwrap().is_some() && copy.tombstone(&threads[2]).unwrap().is_some());
    assert_sound(&copy, &threads[1]);
    copy.close().unwrap();
}

#[test]
fn a_backup_has_nothing_that_was_erased_while_it_was_made() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    thread_with(&store, "other", &["one"]);
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("b");
    let refused = home.read_only().backup(&folder, &mut |done, _| {
        if done == 1 {
            store.erase(&thread, &blob, "asked to").unwrap();
        }
    });
    assert!(refused.unwrap_err().to_string().contains("erased while it was made"));
    assert!(!folder.exists() && !target.path().join("b.partial").exists());
    let made = home.read_only().backup(&folder, &mut |_, _| {}).unwrap();
    assert_eq!((made.threads.len(), made.blobs), (2, 0));
    let restored = restore(&folder, &home).unwrap();
    let copy = LocalStore::open(options(restored.path(), home.pem(), Access::ReadOnly)).unwrap();
    assert_eq!(copy.blob(&thread, &blob).unwrap_err().code(), "blob_erased");
    assert_sound(&copy, &thread);
}

/// The folder that holds the backup could not be synced, and its name was reported as durable all the same.
#[test]
fn a_backup_fails_when_one_of_its_folders_can_not_be_synced() {
    let home = Home::new();
    let store = home.open();
    thread_with(&store, "kept-0123456789ab", &["one", "two"]);
    // Nothing is left for the worker of the next store, whose syncs would be counted too.
    store.close().unwrap();
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let failing = crate::world::Failing { what: "folder sync once", left: left.clone(), error: io::ErrorKind::Other };
    let mut options = home.options(Access::ReadWrite);
    options.disk = Arc::new(failing);
    let store = LocalStore::open(options).unwrap();
    let target = tempfile::tempdir().unwrap();
    let made = |n: i64| {
        left.store(n, Ordering::SeqCst);
        let folder = target.path().join(n.to_string());
        let made = store.backup(&folder, &mut |_, _| {});
        assert_eq!(made.is_ok(), folder.exists());
        made
    };
    let mut syncs = 0;
    // Each of them fails once, until there are no more.
    while made(syncs).is_err() {
        syncs += 1;
    }
    assert!(syncs >= 5 && left.load(Ordering::SeqCst) <= syncs, "{syncs}");
    assert_eq!(left.load(Ordering::SeqCst), 0, "every folder was synced, the parent included");
}
