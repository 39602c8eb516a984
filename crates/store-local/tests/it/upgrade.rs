//! Stores of older formats: refused with their format, and rebuilt from their logs with everything they had acknowledged.

use std::fs;
use std::sync::Arc;

use selvedge_log::Signer;
use selvedge_log::Trust;
use selvedge_log::recovery::Finding;
use selvedge_model::account::AccountId;
use selvedge_model::{Batch, Classify, CommitKey, Expect, Kind, Part};
use selvedge_store::load::load;
use selvedge_store::{Commit, Error, Feed, Filter, Inbox, Ledger, Logs, Registry, Result};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::{Access, LocalStore, Rebuild, Reindexed};

use crate::fixture::FixtureCopy;
use crate::support::{id, says};

fn refused(kept: &FixtureCopy, access: Access) -> Error {
    match LocalStore::open(kept.options(access)) {
        Ok(_) => panic!("a store of an older format was opened"),
        Err(error) => error,
    }
}

fn rebuild(kept: &FixtureCopy) -> Result<Reindexed> {
    let signer = Signer::from_pem(&kept.pem).unwrap();
    let trust = Trust::of(&[signer.public()]);
    let project = kept.project().to_owned();
    LocalStore::reindex(&Rebuild { project, trust, signer: Some(signer), disk: Arc::new(RealDisk) }, &mut |_, _| {})
}

fn assert_whole(kept: &FixtureCopy, store: &LocalStore) {
    let ann = id("ann-0123456789ab");
    let bob = id("bob-ba9876543210");
    let gone = id("gone-00000000000f");
    let trust = Trust::of(&[Signer::from_pem(&kept.pem).unwrap().public()]);
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
fn a_store_of_format_5_is_refused_with_its_format_and_rebuilt_from_its_logs() {
    let kept = FixtureCopy::of(5);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = refused(&kept, access);
        assert_eq!((error.code(), error.kind()), ("store_outdated", Kind::Denied));
        assert!(error.hint().unwrap().contains("selvedge reindex"), "{error:?}");
    }
    let rebuilt = rebuild(&kept).unwrap();
    assert_eq!((rebuilt.threads, rebuilt.left_out.len()), (2, 0), "{rebuilt:?}");
    assert!(rebuilt.notices.iter().any(|notice| notice.contains("format 5")), "{rebuilt:?}");
    assert_whole(&kept, &kept.read_only());
    let store = LocalStore::open(kept.options(Access::ReadWrite)).unwrap();
    let committed = store.commit(Batch::of(Part::new(id("bob-ba9876543210"), Expect::Exact(2), says("more")))).unwrap();
    assert_eq!(committed.versions[0].1, 3);
    store.close().unwrap();
}

/// Committed bytes that were not yet in their transcript are in the old database alone.
#[test]
fn undrained_bytes_of_an_older_database_are_kept() {
    let kept = FixtureCopy::of(5);
    let bob = id("bob-ba9876543210");
    let path = kept.threads().join(bob.folder()).join("transcript.jsonl");
    let whole = fs::read(&path).unwrap();
    let database = rusqlite::Connection::open(kept.threads().join("registry.db")).unwrap();
    let cut = whole.len() - 40;
    database
        .execute(
            "INSERT INTO redo (thread, offset, bytes) SELECT id, ?, ? FROM threads WHERE thread_id = ?",
            rusqlite::params![i64::try_from(cut).unwrap(), &whole[cut..], bob.as_str()],
        )
        .unwrap();
    drop(database);
    fs::write(&path, &whole[..cut]).unwrap();
    let rebuilt = rebuild(&kept).unwrap();
    assert_eq!((rebuilt.drained_bytes, rebuilt.left_out.len()), (40, 0), "{rebuilt:?}");
    assert_eq!(fs::read(&path).unwrap(), whole);
    assert_whole(&kept, &kept.read_only());
}

/// Requests and events of an older program were not sealed: none of them is consumed or signed.
#[test]
fn unsealed_rows_of_a_store_of_format_5_are_dropped() {
    let kept = FixtureCopy::of(5);
    let database = rusqlite::Connection::open(kept.threads().join("registry.db")).unwrap();
    let body = r#"{"decision":{"call_id":"c","action":"approve","who":"mallory"}}"#;
    database
        .execute("INSERT INTO notes (thread, key, kind, body) SELECT id, 'n', 'decide', ? FROM threads", [body])
        .unwrap();
    let event = r#"{"event_type":"decision","payload":{"call_id":"c","action":"approve","who":"mallory"}}"#;
    database.execute("INSERT INTO leads (thread, event) SELECT id, ? FROM threads", [event]).unwrap();
    drop(database);
    rebuild(&kept).unwrap();
    let store = LocalStore::open(kept.options(Access::ReadWrite)).unwrap();
    let bob = id("bob-ba9876543210");
    assert_eq!(store.pending(&bob).unwrap(), []);
    store.commit(Batch::of(Part::new(bob.clone(), Expect::Any, says("more")))).unwrap();
    store.close().unwrap();
    let log = fs::read_to_string(kept.threads().join(bob.folder()).join("transcript.jsonl")).unwrap();
    assert!(!log.contains("mallory"));
}

#[test]
fn a_newer_store_is_neither_read_nor_rebuilt() {
    let kept = FixtureCopy::of(5);
    fs::write(kept.threads().join("store.json"), r#"{"kind":"selvedge-local","format":99}"#).unwrap();
    assert_eq!(rebuild(&kept).unwrap_err().code(), "store_unusable");
    assert!(LocalStore::open(kept.options(Access::ReadOnly)).is_err());
}
