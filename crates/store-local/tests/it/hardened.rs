//! Findings of a security review: each of these once lost, forged or blocked something.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use selvedge_log::document::{self, DocumentKind};
use selvedge_log::recovery::Finding;
use selvedge_model::event::ManifestChanged;
use selvedge_model::{Batch, Changeset, Classify, Clock, Event, Expect, Kind, Part, Patch, Reason, ThreadId};
use selvedge_store::load::load;
use selvedge_store::{Commit, Error, Registry};
use selvedge_store_local::LocalStore;
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::SystemClock;
use serde_json::{Value, json};

use crate::support::{Home, birth, id, says, thread_with};
use crate::world::{append, assert_sound, open_failing};

fn patched(op: Value) -> Changeset {
    let patch: Patch = serde_json::from_value(json!({"ops": [op]})).unwrap();
    Changeset { patches: vec![patch], ..Changeset::empty(Reason::ToolResultsCommitted) }
}

fn renamed(title: &str) -> Changeset {
    let change = ManifestChanged { title: Some(title.to_owned()), ..ManifestChanged::default() };
    Changeset::of_event(Event::ManifestChanged(change))
}

fn commit(store: &LocalStore, thread: &ThreadId, changeset: Changeset) -> Result<u64, Error> {
    Ok(store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, changeset)))?.versions[0].1)
}

/// A crash left redo and a file of the right length with the wrong bytes; the disk was full when the store was opened, and had space again
/// at the next append. The redo of the earlier commit was deleted with the later one's.
#[test]
fn redo_that_could_not_be_drained_outlives_later_commits() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    drop(store);
    let mut bytes = fs::read(home.transcript(&thread)).unwrap();
    let last = bytes.len() - 20;
    bytes[last..].fill(0);
    fs::write(home.transcript(&thread), &bytes).unwrap();
    let (_, left) = open_failing(&home, "write", i64::MAX, io::ErrorKind::StorageFull);
    drop(left);
    let left = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let mut options = home.options(selvedge_store_local::Access::ReadWrite);
    options.disk =
        Arc::new(crate::world::Failing { what: "write", left: left.clone(), error: io::ErrorKind::StorageFull });
    fs::write(home.transcript(&thread), &bytes).unwrap();
    let store = LocalStore::open(options).unwrap();
    left.store(i64::MAX, Ordering::SeqCst);
    _ = append(&store, &thread, "two");
    _ = store.close();
    let store = home.open();
    let version = store.get(&thread).unwrap().version;
    assert!(version >= 1);
    assert_sound(&store, &thread, version);
    store.close().unwrap();
    assert_sound(&home.read_only(), &thread, version);
}

#[test]
fn of_several_processes_that_create_the_same_store_one_creates_it_and_nothing_is_lost() {
    for _ in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let made = thread::scope(|scope| {
            let make = || LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
            let makers: Vec<_> = (0..6).map(|_| scope.spawn(make)).collect();
            makers.into_iter().filter(|_| true).map(|maker| maker.join().unwrap()).filter(|made| *made).count()
        });
        assert_eq!(made, 1);
    }
    // Next to a store that is in use, creating it again changes nothing, even if its `store.json` was lost.
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    fs::remove_file(home.threads().join("store.json")).unwrap();
    assert!(
        LocalStore::init(home.folder.path(), Arc::new(RealDisk)).is_err(),
        "there are threads, so it is not a new store"
    );
    assert_eq!(append(&store, &thread, "two").unwrap(), 2);
}

#[test]
fn names_of_the_stores_own_files_are_no_thread_ids() {
    let home = Home::new();
    let store = home.open();
    for name in ["owners", "tombstones", "store.json", "registry.db", "registry.db-wal", "commit.lock", "search.db"] {
        let refused = store.commit(birth(&id(name))).unwrap_err();
        assert_eq!(refused.kind(), Kind::Denied, "{name}: {refused}");
    }
    assert!(ThreadId::new("-x").is_err(), "it could not be typed after a command");
}

#[test]
fn a_log_without_rows_is_not_overwritten() {
    let home = Home::new();
    let store = home.open();
    let thread = id("note");
    fs::create_dir(home.threads().join("note")).unwrap();
    fs::write(home.transcript(&thread), "another file").unwrap();
    assert_eq!(store.commit(birth(&thread)).unwrap_err().kind(), Kind::Integrity);
    assert_eq!(fs::read_to_string(home.transcript(&thread)).unwrap(), "another file");
    fs::write(home.threads().join("tombstones").join("gone.json"), "{}").unwrap();
    assert!(matches!(store.commit(birth(&id("gone"))), Err(Error::Deleted(_))));
}

#[test]
fn a_log_replaced_together_with_its_database_is_not_continued_while_its_manifest_records_more() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let old = (fs::read(home.threads().join("registry.db")).unwrap(), fs::read(home.transcript(&thread)).unwrap());
    let store = home.open();
    commit(&store, &thread, renamed("later")).unwrap();
    store.close().unwrap();
    fs::write(home.threads().join("registry.db"), old.0).unwrap();
    fs::write(home.transcript(&thread), old.1).unwrap();
    let store = home.open();
    let refused = append(&store, &thread, "another history").unwrap_err();
    assert!(matches!(&refused, Error::Log { finding: Finding::Truncated { version: 2, .. }, .. }), "{refused}");
}

#[test]
fn anything_but_a_plain_file_is_refused_at_once_and_before_the_commit() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let path = home.transcript(&thread);
    fs::rename(&path, path.with_extension("aside")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(&path).status();
    if pipe.is_ok_and(|made| made.success()) {
        let began = std::time::Instant::now();
        assert!(append(&store, &thread, "two").is_err());
        assert!(store.verify(&thread, &mut |_| {}).is_err());
        assert!(began.elapsed() < Duration::from_secs(5), "no operation waits for a pipe");
        fs::remove_file(&path).unwrap();
    }
    fs::rename(path.with_extension("aside"), &path).unwrap();
    assert_eq!(store.get(&thread).unwrap().version, 1, "nothing was committed");
    std::os::unix::fs::symlink("/etc/hostname", home.threads().join("owners/zz")).unwrap();
    drop(store);
    let store = home.open();
    assert_eq!(append(&store, &thread, "two").unwrap(), 2);
}

/// A program that edits the saved state must not make the next commit sign a patch that does not apply to the log.
#[test]
fn an_edited_saved_state_is_not_used() {
    let home = Home::new();
    let store = home.open();
    let thread = id("scribe-0123456789ab");
    store.commit(birth(&thread)).unwrap();
    commit(&store, &thread, patched(json!({"op": "set", "path": ["n"], "value": "five"}))).unwrap();
    store.close().unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    let text: String = database.query_row("SELECT state FROM states", [], |row| row.get(0)).unwrap();
    for forged in [text.replace("\"five\"", "5"), "{\"n\":5}".to_owned(), String::new()] {
        database.execute("UPDATE states SET state = ?", [&forged]).unwrap();
        let store = home.open();
        let counted = commit(&store, &thread, patched(json!({"op": "increment", "path": ["n"], "amount": 1})));
        assert_eq!(counted.unwrap_err().kind(), Kind::Invalid, "{forged}");
        drop(store);
    }
    drop(database);
    let store = home.open();
    commit(&store, &thread, patched(json!({"op": "set", "path": ["n"], "value": 1}))).unwrap();
    commit(&store, &thread, patched(json!({"op": "increment", "path": ["n"], "amount": 1}))).unwrap();
    store.close().unwrap();
    let loaded = selvedge_store::load::load(&home.read_only(), &thread, &home.trust(), None).unwrap();
    assert_eq!(loaded.thread.state, json!({"n": 2}));
}

#[test]
fn of_several_renames_at_once_the_manifest_shows_the_last() {
    let home = Home::new();
    let stores: Vec<_> = (0..3).map(|_| home.open()).collect();
    let thread = id("scribe-0123456789ab");
    stores[0].commit(birth(&thread)).unwrap();
    for round in 0..20 {
        thread::scope(|scope| {
            for (number, store) in stores.iter().enumerate() {
                let thread = &thread;
                scope.spawn(move || commit(store, thread, renamed(&format!("{round} by {number}"))).unwrap());
            }
        });
        let path = home.threads().join(thread.folder()).join("thread.json");
        let shown: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let title = stores[0].get(&thread).unwrap().manifest.title;
        assert_eq!(shown["title"].as_str(), title.as_deref(), "round {round}");
    }
}

#[test]
fn a_writer_without_a_lease_moves_nothing_aside() {
    let home = Home::new();
    let ours = home.open();
    let theirs = home.open();
    let thread = thread_with(&ours, "scribe-0123456789ab", &["one"]);
    let lease = selvedge_store::Leases::acquire(&theirs, &thread, Default::default()).unwrap();
    let path = home.transcript(&thread);
    let bytes = [fs::read(&path).unwrap(), b"foreign".to_vec()].concat();
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(append(&ours, &thread, "two"), Err(Error::LeaseHeld { .. })));
    assert_eq!(fs::read(&path).unwrap(), bytes, "only a writer with the right repairs the file");
    theirs.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(1), says("two")).under(lease.epoch))).unwrap();
    assert_sound(&theirs, &thread, 2);
}

/// Another process rebuilt the file after a failed sync: what is written into the old one is lost.
#[test]
fn a_log_that_was_replaced_by_a_rebuilt_one_is_the_one_that_is_written() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    append(&store, &thread, "two").unwrap();
    let path = home.transcript(&thread);
    let beside = path.with_extension("rebuild");
    fs::copy(&path, &beside).unwrap();
    fs::rename(&beside, &path).unwrap();
    append(&store, &thread, "three").unwrap();
    let head = selvedge_store::Logs::head(&store, &thread).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), head.bytes, "acknowledged means visible in the transcript");
    store.close().unwrap();
    assert_sound(&home.open(), &thread, 3);
}

/// A byte in the middle of a log was changed while the store was closed. Appends continued from the saved hash, and restoring the right
/// file afterwards looked like a cut.
#[test]
fn an_edited_short_log_is_not_continued() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one", "two"]);
    // Synced, so that no redo heals it.
    store.close().unwrap();
    let path = home.transcript(&thread);
    let sound = fs::read(&path).unwrap();
    let mut edited = sound.clone();
    edited[200] ^= 1;
    fs::write(&path, &edited).unwrap();
    let store = home.open();
    let refused = append(&store, &thread, "three").unwrap_err();
    assert_eq!(refused.kind(), Kind::Integrity, "{refused}");
    assert_eq!(fs::read(&path).unwrap(), edited, "nothing is appended to it");
    fs::write(&path, &sound).unwrap();
    append(&store, &thread, "three").unwrap();
    assert_sound(&store, &thread, 3);
}

/// A deleted thread is proven by its signed tombstone; the other columns of its row are not trusted.
#[test]
fn an_unsigned_tombstone_is_refused() {
    let home = Home::new();
    let thread = {
        let store = home.open();
        let thread = thread_with(&store, "gone", &["one"]);
        store.delete(&thread).unwrap();
        assert_eq!(store.tombstone(&thread).unwrap().unwrap().postings, Some(Vec::new()), "it had none");
        thread
    };
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    let edit = "UPDATE tombstones SET document = replace(document, 'postings', 'hostings')";
    assert_eq!(database.execute(edit, []).unwrap(), 1);
    let error = home.open().tombstone(&thread).unwrap_err();
    assert_eq!(error.kind(), Kind::Integrity, "{error}");
}

/// `thread.json` is derived from the log: a missing one is written again before it is used, and one that grants more than the log is
/// refused, even with a valid signature.
#[test]
fn a_manifest_must_grant_what_its_log_grants() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "parent", &["one"]);
    let recorded = load(&store, &thread, store.trust(), None).unwrap().thread.manifest;
    store.check_manifest(&recorded).unwrap();
    let path = home.threads().join(thread.folder()).join("thread.json");
    fs::remove_file(&path).unwrap();
    store.check_manifest(&recorded).unwrap();
    store.check_manifest(&recorded).unwrap();
    let shown = fs::read(&path).expect("it was written again");
    // Signed by the same key, and wider.
    let signed: Value = serde_json::from_slice(&shown).unwrap();
    let sign = |change: &dyn Fn(&mut Value)| {
        let mut value = signed.clone();
        value.as_object_mut().unwrap().remove("_signature");
        change(&mut value);
        let kind = DocumentKind::new("thread");
        fs::write(&path, document::sign_json(kind, thread.as_str(), value, &home.signer(), SystemClock.now()).unwrap())
            .unwrap();
    };
    sign(&|_| {});
    store.check_manifest(&recorded).unwrap();
    let wider: [&dyn Fn(&mut Value); 4] = [
        &|value| value["capabilities"] = json!(["tool.*"]),
        &|value| value["acknowledged"] = json!(["dangerous"]),
        &|value| value["limits"] = json!({"depth": 90}),
        &|value| value["status"] = json!("of another program"),
    ];
    for change in wider {
        sign(change);
        let error = store.check_manifest(&recorded).unwrap_err();
        assert_eq!(error.kind(), Kind::Integrity);
        assert!(error.hint().unwrap().contains(&format!("`selvedge repair {thread}`")), "{error:?}");
    }
    // A database that grants more than the log writes no new one.
    fs::remove_file(&path).unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    database
        .execute("UPDATE threads SET manifest = json_set(manifest, '$.capabilities', json('[\"tool.*\"]'))", [])
        .unwrap();
    let error = store.check_manifest(&recorded).unwrap_err();
    assert!(error.hint().unwrap().contains("`selvedge reindex`") && !path.exists(), "{error:?}");
}
