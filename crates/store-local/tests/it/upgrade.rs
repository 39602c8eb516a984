//! Stores of older formats: read as they are, refused to writers, moved by an upgrade that can be killed anywhere.

use std::fs;
use std::sync::Arc;

use selvedge_log::recovery::Finding;
use selvedge_model::account::AccountId;
use selvedge_model::{Batch, Classify, CommitKey, Event, Expect, Kind, Part};
use selvedge_store::load::load;
use selvedge_store::{Commit, Error, Feed, Filter, Inbox, Ledger, Logs, Registry};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Upgraded};

use crate::fixture::Kept;
use crate::support::{id, says};

fn outdated(kept: &Kept) -> Error {
    match LocalStore::open(kept.options(Access::ReadWrite)) {
        Ok(_) => panic!("a store of an older format was opened to write"),
        Err(error) => error,
    }
}

fn assert_whole(kept: &Kept, store: &LocalStore) {
    let (ann, bob, gone) = (id("ann-0123456789ab"), id("bob-ba9876543210"), id("gone-00000000000f"));
    let trust = selvedge_log::Trust::of(&[selvedge_log::Signer::from_pem(&kept.pem).unwrap().public()]);
    for thread in [&ann, &bob] {
        let verdict = store.verify(thread, &mut |_| {}).unwrap();
        assert_eq!((verdict.judgement.finding, verdict.erased), (Finding::Sound, 0), "{thread}");
    }
    let loaded = load(store, &ann, &trust, None).unwrap();
    assert_eq!(loaded.thread.state, serde_json::json!({ "answered": true }));
    let blob = loaded.thread.messages.iter().flat_map(|message| &message.content).find_map(|block| match block {
        selvedge_model::message::Block::Image { blob, .. } => Some(*blob),
        _ => None,
    });
    assert_eq!(store.blob(&ann, &blob.unwrap()).unwrap(), b"what may have to be forgotten");
    assert_eq!(store.list(&Filter::default(), None, 10).unwrap().items.len(), 2);
    assert_eq!(store.runs(&ann).unwrap().len(), 1);
    assert!(store.outcome(&CommitKey::new("k1").unwrap()).unwrap().is_some());
    assert_eq!(store.account(&AccountId::new("ann-0123456789ab").unwrap()).unwrap().unwrap().open, 1);
    assert!(store.tombstone(&gone).unwrap().is_some());
    assert!(store.pending(&bob).unwrap().is_empty() && store.position().unwrap() > 0);
}

#[test]
fn a_store_of_format_5_is_read_as_it_is_and_moved_and_its_feed_goes_on() {
    let kept = Kept::of(5);
    let before = kept.read_only();
    assert_whole(&kept, &before);
    let (told, position) = (before.after(0, 100).unwrap(), before.position().unwrap());
    for told in &told {
        // It did not keep which lines a commit has; the log is asked.
        let read = before.read(&told.thread, told.first_line, usize::try_from(told.lines).unwrap()).unwrap();
        let is_it = |line: &selvedge_log::Line| matches!(&line.event, Event::Checkpoint(checkpoint) if checkpoint.version == told.version);
        assert_eq!(read.iter().position(is_it), read.len().checked_sub(1), "{told:?}");
    }
    drop(before);
    let error = outdated(&kept);
    assert_eq!((error.code(), error.kind()), ("store_outdated", Kind::Denied));
    assert!(error.hint().unwrap().contains("selvedge upgrade"), "{error:?}");
    assert_eq!(LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap(), Upgraded { from: 5, to: 6 });
    assert_whole(&kept, &kept.read_only());
    let store = LocalStore::open(kept.options(Access::ReadWrite)).unwrap();
    assert_eq!((store.after(0, 100).unwrap(), store.position().unwrap()), (told.clone(), position));
    store.commit(Batch::of(Part::new(id("bob-ba9876543210"), Expect::Exact(2), says("more")))).unwrap();
    let next = &store.after(position, 100).unwrap()[0];
    let last = told.iter().rfind(|told| told.thread == next.thread).unwrap();
    assert_eq!((next.position, next.first_line, next.lines), (position + 1, last.first_line + last.lines, 2));
    store.close().unwrap();
}

/// What an older program left was not sealed: nothing of it is consumed or signed.
#[test]
fn what_a_store_of_format_5_left_unsealed_goes() {
    let kept = Kept::of(5);
    let database = rusqlite::Connection::open(kept.threads().join("registry.db")).unwrap();
    let body = r#"{"decision":{"call_id":"c","action":"approve","who":"mallory"}}"#;
    database
        .execute("INSERT INTO notes (thread, key, kind, body) SELECT id, 'n', 'decide', ? FROM threads", [body])
        .unwrap();
    let event = r#"{"event_type":"decision","payload":{"call_id":"c","action":"approve","who":"mallory"}}"#;
    database.execute("INSERT INTO leads (thread, event) SELECT id, ? FROM threads", [event]).unwrap();
    drop(database);
    LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap();
    let store = LocalStore::open(kept.options(Access::ReadWrite)).unwrap();
    let bob = id("bob-ba9876543210");
    assert_eq!(store.pending(&bob).unwrap(), []);
    store.commit(Batch::of(Part::new(bob.clone(), Expect::Any, says("more")))).unwrap();
    store.close().unwrap();
    let log = fs::read_to_string(kept.threads().join(bob.folder()).join("transcript.jsonl")).unwrap();
    assert!(!log.contains("mallory"));
}

/// Opening a store to write once looked at every thread.
#[test]
fn stale_manifests_are_found_by_an_index_in_a_new_and_in_an_upgraded_store() {
    let kept = Kept::of(5);
    LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap();
    let fresh = crate::support::Home::new();
    for threads in [kept.threads(), fresh.threads()] {
        let database = rusqlite::Connection::open(threads.join("registry.db")).unwrap();
        let sql = "EXPLAIN QUERY PLAN SELECT t.id, h.version FROM threads AS t JOIN heads AS h ON h.id = t.id WHERE t.manifest_stale = 1";
        let mut statement = database.prepare(sql).unwrap();
        let plan: Vec<String> = statement.query_map([], |row| row.get(3)).unwrap().map(Result::unwrap).collect();
        assert!(plan.iter().any(|step| step.contains("threads_stale")), "{plan:?}");
    }
}

#[test]
fn an_upgraded_store_has_everything_it_had_and_is_written_again() {
    let kept = Kept::of(5);
    let upgrade = || LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap();
    assert_eq!(upgrade(), Upgraded { from: 5, to: 6 });
    assert_eq!(upgrade(), Upgraded { from: 6, to: 6 }, "a second time there is nothing to do");
    assert_whole(&kept, &kept.read_only());
    let store = LocalStore::open(kept.options(Access::ReadWrite)).unwrap();
    let bob = id("bob-ba9876543210");
    let committed = store.commit(Batch::of(Part::new(bob.clone(), Expect::Exact(2), says("more")))).unwrap();
    assert_eq!(committed.versions[0].1, 3);
    let blob = store.blobs(&id("ann-0123456789ab")).unwrap()[0];
    store.erase(&id("ann-0123456789ab"), &blob, "to see that it can be").unwrap();
    store.close().unwrap();
}

#[test]
fn an_upgrade_cut_between_database_and_store_file_is_completed() {
    let kept = Kept::of(5);
    let named = fs::read(kept.threads().join("store.json")).unwrap();
    LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap();
    fs::write(kept.threads().join("store.json"), named).unwrap();
    assert_eq!(outdated(&kept).code(), "store_outdated");
    assert_whole(&kept, &kept.read_only());
    assert_eq!(LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap(), Upgraded { from: 5, to: 6 });
    LocalStore::open(kept.options(Access::ReadWrite)).unwrap().close().unwrap();
}

#[test]
fn a_store_that_somebody_has_open_to_write_is_not_moved() {
    let kept = Kept::of(5);
    let path = kept.threads().join("owners").join("0".repeat(32));
    let owner = fs::File::create(&path).unwrap();
    owner.lock().unwrap();
    let refused = LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap_err();
    assert_eq!(refused.kind(), Kind::Denied, "{refused}");
    assert_eq!(outdated(&kept).code(), "store_outdated", "nothing was moved");
    drop(owner);
    LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap();
}

#[test]
fn a_newer_store_is_neither_read_nor_moved() {
    let kept = Kept::of(5);
    fs::write(kept.threads().join("store.json"), r#"{"kind":"selvedge-local","format":99}"#).unwrap();
    assert_eq!(LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap_err().code(), "store_unusable");
    assert!(LocalStore::open(kept.options(Access::ReadOnly)).is_err());
}

/// Not a test by itself: what the killed processes do.
#[test]
fn child() {
    let Ok(project) = std::env::var("SELVEDGE_TEST_UPGRADE") else { return };
    LocalStore::upgrade(project.as_ref(), Arc::new(RealDisk)).unwrap();
}

#[test]
fn an_upgrade_killed_at_any_moment_is_done_by_running_it_again() {
    for round in 0..24 {
        let kept = Kept::of(5);
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "upgrade::child", "--test-threads=1"])
            .env("SELVEDGE_TEST_UPGRADE", kept.project())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // From before it has begun to after it has ended.
        std::thread::sleep(std::time::Duration::from_micros(round * 1_200));
        _ = child.kill();
        child.wait().unwrap();
        assert_whole(&kept, &kept.read_only());
        LocalStore::upgrade(kept.project(), Arc::new(RealDisk)).unwrap();
        assert_whole(&kept, &kept.read_only());
        LocalStore::open(kept.options(Access::ReadWrite)).unwrap().close().unwrap();
    }
}
