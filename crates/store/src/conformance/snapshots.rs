//! Snapshots beside a log: the newest, older ones, archived ones, and the log after one.
//!
//! An optional ability, so a suite of its own: [`snapshot_suite!`](crate::snapshot_suite).

use std::io::Read;

use selvedge_model::ThreadId;
use serde_json::{Value, json};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Logs};
use crate::snapshot::{Disposal, SnapshotFolder, SnapshotInfo, Snapshots};

const ARCHIVE: &str = "archive";

/// Saves a snapshot with this content, of the current log.
fn save(store: &(impl Logs + Snapshots), thread: &ThreadId, what: &str) -> crate::snapshot::SavedSnapshot {
    let head = store.head(thread).unwrap();
    let seal = store.seal(thread, &head).unwrap();
    let body = json!({"log_version": head.version, "log_hash": head.hash, "messages": [what], "seal": seal});
    store.save(thread, &body).unwrap()
}

fn body(store: &impl Snapshots, thread: &ThreadId, kept: &SnapshotInfo) -> Value {
    store.read_snapshot(thread, kept, ARCHIVE).unwrap().body().unwrap()
}

fn places(store: &impl Snapshots, thread: &ThreadId) -> Vec<(SnapshotFolder, u64)> {
    store.list_snapshots(thread, ARCHIVE).unwrap().iter().map(|kept| (kept.place, kept.version)).collect()
}

/// A thread whose snapshots fold its versions 1, 2 and 3.
fn with_three(store: &(impl Logs + Commit + Snapshots)) -> ThreadId {
    let thread = create(store, "saved");
    for what in ["first", "second", "third"] {
        append(store, &thread, says(what));
        save(store, &thread, what);
    }
    thread
}

/// The newest comes first, older ones are kept, and each has the content that was saved, for every handle.
pub fn the_newest_comes_first_and_those_before_it_are_kept<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = create(&store, "unsaved");
    assert_eq!(store.list_snapshots(&thread, ARCHIVE).unwrap(), []);
    let thread = with_three(&store);
    let other = harness.open();
    let kept = other.list_snapshots(&thread, ARCHIVE).unwrap();
    assert_eq!(
        places(&other, &thread),
        [(SnapshotFolder::Newest, 3), (SnapshotFolder::Older, 2), (SnapshotFolder::Older, 1)]
    );
    let said: Vec<_> = kept.iter().map(|kept| body(&other, &thread, kept)["messages"][0].clone()).collect();
    assert_eq!(said, ["third", "second", "first"]);
}

/// A snapshot that is read is what was signed, with the hash that saving returned.
pub fn a_snapshot_has_the_hash_that_saving_returned<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = create(&store, "hashed");
    append(&store, &thread, says("something"));
    let saved = save(&store, &thread, "something");
    let kept = store.list_snapshots(&thread, ARCHIVE).unwrap().remove(0);
    let read = store.read_snapshot(&thread, &kept, ARCHIVE).unwrap();
    assert_eq!((read.hash, read.text.len() as u64, kept.bytes), (saved.hash, saved.bytes, saved.bytes));
    let trust = harness.trust();
    assert_eq!(crate::snapshot::verify(&thread, &kept.name, read.text, &trust).unwrap().hash, saved.hash);
}

/// A disposed snapshot is deleted, or is in the archive and can be read there.
pub fn disposed_snapshots_are_deleted_or_archived<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = with_three(&store);
    let kept = store.list_snapshots(&thread, ARCHIVE).unwrap();
    store.dispose(&thread, &kept[..2], ARCHIVE, Disposal::Archive(ARCHIVE)).unwrap();
    store.dispose(&thread, &kept[2..], ARCHIVE, Disposal::Delete).unwrap();
    assert_eq!(places(&store, &thread), [(SnapshotFolder::Archived, 3), (SnapshotFolder::Archived, 2)]);
    assert_eq!(store.list_snapshots(&thread, "elsewhere").unwrap(), [], "another folder is another archive");
    let kept = store.list_snapshots(&thread, ARCHIVE).unwrap();
    assert_eq!(body(&store, &thread, &kept[1])["messages"], json!(["second"]));
    store.dispose(&thread, &kept, ARCHIVE, Disposal::Delete).unwrap();
    assert_eq!(places(&store, &thread), []);
    assert!(store.read_snapshot(&thread, &kept[0], ARCHIVE).is_err(), "it was deleted");
}

/// The log after a snapshot is returned only with the store's own seal for that position.
pub fn reading_the_log_after_a_snapshot_needs_its_seal<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = create(&store, "sealed");
    append(&store, &thread, says("before"));
    let at = store.head(&thread).unwrap();
    save(&store, &thread, "before");
    append(&store, &thread, says("behind"));
    let kept = store.list_snapshots(&thread, ARCHIVE).unwrap().remove(0);
    let seal = body(&store, &thread, &kept)["seal"].as_str().unwrap().to_owned();
    let mut behind = harness.open().log_after(&thread, &at, &seal).unwrap().unwrap();
    let mut rest = Vec::new();
    behind.bytes.read_to_end(&mut rest).unwrap();
    let (head, whole) = bytes_of(&store, &thread);
    assert_eq!(rest, whole[usize::try_from(at.bytes).unwrap()..]);
    assert_eq!((behind.hash.digest(), behind.head), (at.hash, head.clone()));
    let flipped = format!("{}{}", if seal.starts_with('0') { '1' } else { '0' }, &seal[1..]);
    for (place, seal) in [(&head, seal.as_str()), (&at, &flipped), (&at, "no hex"), (&at, "")] {
        assert!(store.log_after(&thread, place, seal).unwrap().is_none());
    }
    // A seal is not issued for a position that is not the end of the log.
    assert_eq!(store.seal(&thread, &at).unwrap(), None);
}

/// Snapshots are deleted with their thread, and another thread has its own.
pub fn snapshots_belong_to_one_thread_and_are_deleted_with_it<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = with_three(&store);
    let other = create(&store, "other");
    append(&store, &other, says("something"));
    save(&store, &other, "mine");
    assert_eq!(places(&store, &other), [(SnapshotFolder::Newest, 1)]);
    store.delete(&thread).unwrap();
    assert_eq!(store.list_snapshots(&thread, ARCHIVE).unwrap_or_default(), []);
    assert_eq!(places(&store, &other), [(SnapshotFolder::Newest, 1)]);
}
