//! Snapshots beside a log: the newest, those before it, those that were put away, and the log behind one.
//!
//! An ability of its own, so a suite of its own: [`snapshot_suite!`](crate::snapshot_suite).

use std::io::Read;

use selvedge_model::ThreadId;
use serde_json::{Value, json};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Logs};
use crate::snapshot::{Away, Kept, Place, Snapshots};

const ARCHIVE: &str = "archive";

/// Saves a snapshot that says this, of the log as it is.
fn save(store: &(impl Logs + Snapshots), thread: &ThreadId, what: &str) -> crate::snapshot::Saved {
    let head = store.head(thread).unwrap();
    let seal = store.seal(thread, &head).unwrap();
    let body = json!({"log_version": head.version, "log_hash": head.hash, "messages": [what], "seal": seal});
    store.save(thread, &body).unwrap()
}

fn body(store: &impl Snapshots, thread: &ThreadId, kept: &Kept) -> Value {
    store.read_snapshot(thread, kept, ARCHIVE).unwrap().body().unwrap()
}

fn places(store: &impl Snapshots, thread: &ThreadId) -> Vec<(Place, u64)> {
    store.kept(thread, ARCHIVE).unwrap().iter().map(|kept| (kept.place, kept.version)).collect()
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

/// The newest comes first, those before it are kept, and each says what was saved, to every handle.
pub fn the_newest_comes_first_and_those_before_it_are_kept<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = create(&store, "unsaved");
    assert_eq!(store.kept(&thread, ARCHIVE).unwrap(), []);
    let thread = with_three(&store);
    let other = harness.open();
    let kept = other.kept(&thread, ARCHIVE).unwrap();
    assert_eq!(places(&other, &thread), [(Place::Newest, 3), (Place::Older, 2), (Place::Older, 1)]);
    let said: Vec<_> = kept.iter().map(|kept| body(&other, &thread, kept)["messages"][0].clone()).collect();
    assert_eq!(said, ["third", "second", "first"]);
}

/// What is given back is what was signed, under the hash that saving gave.
pub fn a_snapshot_is_known_by_the_hash_that_saving_gave<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = create(&store, "hashed");
    append(&store, &thread, says("something"));
    let saved = save(&store, &thread, "something");
    let kept = store.kept(&thread, ARCHIVE).unwrap().remove(0);
    let read = store.read_snapshot(&thread, &kept, ARCHIVE).unwrap();
    assert_eq!((read.hash, read.text.len() as u64, kept.bytes), (saved.hash, saved.bytes, saved.bytes));
    let trust = harness.trust();
    assert_eq!(crate::snapshot::verify(&thread, &kept.name, read.text, &trust).unwrap().hash, saved.hash);
}

/// What is put away is gone, or lies in the archive and can be read there.
pub fn what_is_put_away_is_gone_or_in_the_archive<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = with_three(&store);
    let kept = store.kept(&thread, ARCHIVE).unwrap();
    store.put_away(&thread, &kept[..2], ARCHIVE, Away::Archive(ARCHIVE)).unwrap();
    store.put_away(&thread, &kept[2..], ARCHIVE, Away::Delete).unwrap();
    assert_eq!(places(&store, &thread), [(Place::Archived, 3), (Place::Archived, 2)]);
    assert_eq!(store.kept(&thread, "elsewhere").unwrap(), [], "another folder is another archive");
    let kept = store.kept(&thread, ARCHIVE).unwrap();
    assert_eq!(body(&store, &thread, &kept[1])["messages"], json!(["second"]));
    store.put_away(&thread, &kept, ARCHIVE, Away::Delete).unwrap();
    assert_eq!(places(&store, &thread), []);
    assert!(store.read_snapshot(&thread, &kept[0], ARCHIVE).is_err(), "it is gone");
}

/// The log behind a snapshot is given to whoever brings the store's own seal for that very place.
pub fn the_log_behind_a_snapshot_needs_the_seal_of_that_place<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = create(&store, "sealed");
    append(&store, &thread, says("before"));
    let at = store.head(&thread).unwrap();
    save(&store, &thread, "before");
    append(&store, &thread, says("behind"));
    let kept = store.kept(&thread, ARCHIVE).unwrap().remove(0);
    let seal = body(&store, &thread, &kept)["seal"].as_str().unwrap().to_owned();
    let mut behind = harness.open().behind(&thread, &at, &seal).unwrap().unwrap();
    let mut rest = Vec::new();
    behind.bytes.read_to_end(&mut rest).unwrap();
    let (head, whole) = bytes_of(&store, &thread);
    assert_eq!(rest, whole[usize::try_from(at.bytes).unwrap()..]);
    assert_eq!((behind.hash.digest(), behind.head), (at.hash, head.clone()));
    let flipped = format!("{}{}", if seal.starts_with('0') { '1' } else { '0' }, &seal[1..]);
    for (place, seal) in [(&head, seal.as_str()), (&at, &flipped), (&at, "no hex"), (&at, "")] {
        assert!(store.behind(&thread, place, seal).unwrap().is_none());
    }
    // For a place that the log has left nobody vouches any more.
    assert_eq!(store.seal(&thread, &at).unwrap(), None);
}

/// Snapshots go with their thread, and another thread has its own.
pub fn snapshots_belong_to_one_thread_and_go_with_it<H: Harness>(harness: &H)
where
    H::Store: Snapshots,
{
    let store = harness.open();
    let thread = with_three(&store);
    let other = create(&store, "other");
    append(&store, &other, says("something"));
    save(&store, &other, "mine");
    assert_eq!(places(&store, &other), [(Place::Newest, 1)]);
    store.delete(&thread).unwrap();
    assert_eq!(store.kept(&thread, ARCHIVE).unwrap_or_default(), []);
    assert_eq!(places(&store, &other), [(Place::Newest, 1)]);
}
