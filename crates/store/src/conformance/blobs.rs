//! Blobs: read back exactly, by their names, from their own thread.

use selvedge_model::event::BlobErased;
use selvedge_model::{Changeset, Digest, Event, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Feed, Logs};
use crate::error::Error;

/// Bytes are read back as they were stored, by every handle and after the writer's death.
pub fn a_blob_is_read_back<H: Harness>(harness: &H) {
    let writer = harness.open();
    let store = harness.open();
    let thread = create(&writer, "blobs");
    let all_bytes: Vec<u8> = (0..=255).collect();
    let contents = [vec![], vec![0], b"line\nline\r\n".to_vec(), all_bytes, vec![7; 3 * 1024 * 1024]];
    let names: Vec<Digest> = contents.iter().map(|content| writer.put_blob(&thread, content).unwrap()).collect();
    for (name, content) in names.iter().zip(&contents) {
        assert!(store.blob(&thread, name).unwrap() == *content, "a blob of {} bytes", content.len());
    }
    drop(writer);
    assert!(store.blob(&thread, &names[3]).unwrap() == contents[3], "it outlives its writer");
}

/// The name of no blob is refused.
pub fn an_unknown_blob_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "blobs");
    let content = store.put_blob(&thread, b"content").unwrap();
    for name in [Digest([0; 32]), Digest([255; 32]), selvedge_log::hash::sha256(b"content")] {
        assert_ne!(name, content, "a name does not reveal the content");
        let answer = store.blob(&thread, &name);
        assert_refused!(answer, Error::NoBlob { thread: found, blob } if found == thread && blob == name, "{name}");
    }
    assert_refused!(store.blob(&id("missing"), &content), Error::NoThread(_), "a blob of a missing thread");
}

/// Blobs may be stored before their thread is created; a deleted thread gets none.
pub fn a_blob_may_come_before_its_thread<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread: ThreadId = id("to-come");
    let content = store.put_blob(&thread, b"content").unwrap();
    assert_refused!(store.blob(&thread, &content), Error::NoThread(_), "a blob of a missing thread");
    create(&store, "to-come");
    assert_eq!(store.blob(&thread, &content).unwrap(), b"content");
    store.delete(&thread).unwrap();
    assert_refused!(store.put_blob(&thread, b"late"), Error::Deleted(_), "a blob for a deleted thread");
}

/// A blob belongs to its thread and can't be read from another.
pub fn a_blob_is_not_read_from_another_thread<H: Harness>(harness: &H) {
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    let name = store.put_blob(&one, b"secret").unwrap();
    store.put_blob(&two, b"secret").unwrap();
    assert_refused!(store.blob(&two, &name), Error::NoBlob { .. }, "another thread's blob");
    assert_eq!(store.blob(&one, &name).unwrap(), b"secret");
    store.delete(&two).unwrap();
    assert_eq!(store.blob(&one, &name).unwrap(), b"secret", "deleting another thread removes nothing");
}

/// The same bytes stored twice have two names, so that erasing one reveals nothing about the other.
pub fn the_same_bytes_have_two_names<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "blobs");
    let one = store.put_blob(&thread, b"same").unwrap();
    let two = store.put_blob(&thread, b"same").unwrap();
    assert_ne!(one, two);
    assert_eq!(store.blob(&thread, &one).unwrap(), store.blob(&thread, &two).unwrap());
}

/// A blob is not a commit: it adds no version and wakes no follower.
pub fn a_blob_makes_no_version<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "blobs");
    let head = store.head(&thread).unwrap();
    let position = store.position().unwrap();
    store.put_blob(&thread, b"beside").unwrap();
    assert_eq!((store.head(&thread).unwrap(), store.position().unwrap()), (head, position));
    assert_eq!(append(&store, &thread, empty()), 1);
    verified(&store, &harness.trust(), &thread);
}

/// An erased blob is removed, its log records that and still verifies, and other blobs stay.
pub fn an_erased_blob_is_removed_and_the_log_records_it<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "blobs");
    let secret = store.put_blob(&thread, b"secret").unwrap();
    let other = store.put_blob(&thread, b"other").unwrap();
    let erased = BlobErased { blob: secret, reason: "asked to".to_owned() };
    assert_eq!(append(&store, &thread, Changeset::of_event(Event::BlobErased(erased))), 1);
    assert_refused!(store.blob(&thread, &secret), Error::Erased { reason, .. } if reason == "asked to", "erased");
    assert_eq!(store.blob(&thread, &other).unwrap(), b"other");
    verified(&store, &harness.trust(), &thread);
    let again = harness.open();
    assert_refused!(again.blob(&thread, &secret), Error::Erased { .. }, "erased, for another handle");
}

/// Blobs stored at once are all kept.
pub fn blobs_put_at_once_are_all_kept<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "blobs");
    let names = at_once(4, |worker| {
        let put = |number: u8| {
            let content = vec![number; 1_000 * (worker + 1)];
            (stores[worker % 2].put_blob(&thread, &content).unwrap(), content)
        };
        (0..5).map(put).collect::<Vec<_>>()
    });
    for (name, content) in names.into_iter().flatten() {
        assert!(stores[0].blob(&thread, &name).unwrap() == content, "{name}");
    }
}
