//! What commands need from a store: verifying a thread, archives, its list of heads, signed files, closing.
//!
//! An optional ability, so a suite of its own: [`backend_suite!`](crate::backend_suite). Every case works on a `dyn Backend`, as commands
//! do.

use std::io::Cursor;

use selvedge_log::Trust;
use selvedge_log::recovery::Finding;
use selvedge_model::ThreadId;

use super::Harness;
use super::support::*;
use crate::archive::{Archives, ImportOutcome, verify_archive};
use crate::backend::{Backend, ReadHeads, SignedFiles};
use crate::contract::{Acquire, Commit};
use crate::error::Error;
use crate::heads::{Depth, Heads};
use crate::verify::Document;

/// A thread of three versions.
fn with_three<H: Harness>(store: &H::Store, name: &str) -> ThreadId {
    let thread = create(store, name);
    for what in ["first", "second"] {
        append(store, &thread, says_as(what, what));
    }
    thread
}

fn exported(store: &dyn Backend, thread: &ThreadId) -> Vec<u8> {
    let mut archive = Vec::new();
    let exported = store.export(thread, &mut archive).unwrap();
    assert_eq!((&exported.thread, &exported.head), (thread, &store.head(thread).unwrap()));
    archive
}

/// The finding of an archive, with these keys.
fn finding(archive: &[u8], trust: &Trust) -> Finding {
    verify_archive(&mut Cursor::new(archive), trust, &mut |_| {}).unwrap().0.judgement.finding
}

/// A committed thread is verified as sound, each changeset is passed on, and the verdict has the counts.
pub fn a_committed_thread_verifies_as_sound<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let writer = harness.open();
    let thread = with_three::<H>(&writer, "judged");
    let other = harness.open();
    let store: &dyn Backend = &other;
    let head = store.head(&thread).unwrap();
    let mut versions = Vec::new();
    let verdict = store.verify(&thread, &mut |entry| versions.push(entry.head.version)).unwrap();
    assert_eq!(verdict.judgement.finding, Finding::Sound);
    assert_eq!((verdict.lines, verdict.bytes, verdict.head.as_ref()), (head.lines, head.bytes, Some(&head)));
    assert_eq!((versions, verdict.signers), (vec![0, 1, 2], vec![(head.signer, 3)]));
    assert!(verdict.bad_blobs.is_empty() && verdict.unnamed_blobs.is_empty() && verdict.lost.is_empty());
    assert!(
        !store.is_unindexed(&thread).unwrap() && !store.is_imported(&thread) && store.unindexed().unwrap().is_empty()
    );
}

/// A missing or deleted thread is neither verified nor exported.
pub fn a_deleted_thread_is_not_verified<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let opened = harness.open();
    let thread = create(&opened, "gone");
    let store: &dyn Backend = &opened;
    assert_refused!(store.verify(&id("absent"), &mut |_| {}), Error::NoThread(_), "verifying a missing thread");
    store.delete(&thread).unwrap();
    assert_refused!(store.verify(&thread, &mut |_| {}), Error::Deleted(_), "verifying a deleted thread");
    assert_refused!(store.export(&thread, &mut Vec::new()), Error::Deleted(_), "exporting a deleted thread");
}

/// A blob that no line names is reported; an erased one is removed, the log records that, and it is erased once.
pub fn unnamed_and_erased_blobs_are_reported<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let opened = harness.open();
    let thread = create(&opened, "blobs");
    let store: &dyn Backend = &opened;
    let blob = store.put_blob(&thread, b"content").unwrap();
    assert_eq!(store.verify(&thread, &mut |_| {}).unwrap().unnamed_blobs, [blob]);
    assert_eq!(store.blobs(&thread).unwrap(), [blob]);
    assert_eq!(store.erase(&thread, &blob, "asked to").unwrap(), 1);
    assert_refused!(store.erase(&thread, &blob, "again"), Error::Erased { reason, .. } if reason == "asked to", "twice");
    let unknown = selvedge_log::hash::sha256(b"unknown");
    assert_refused!(store.erase(&thread, &unknown, "asked to"), Error::NoBlob { .. }, "a blob that never existed");
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.judgement.finding, verdict.erased_blobs), (Finding::Sound, vec![blob]));
    assert_eq!((store.blobs(&thread).unwrap(), verdict.unnamed_blobs), (vec![], vec![]));
    assert_eq!(store.head(&thread).unwrap().version, 1, "a refused erasure adds no version");
}

/// An archive has the exact log and can be verified with the file and a key alone; a second export has the same bytes.
pub fn an_archive_is_verified_with_the_file_alone<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let opened = harness.open();
    let thread = with_three::<H>(&opened, "archived");
    let blob = Commit::put_blob(&opened, &thread, b"beside it").unwrap();
    let (head, log) = bytes_of(&opened, &thread);
    let store: &dyn Backend = &opened;
    let archive = exported(store, &thread);
    assert!(archive.windows(log.len()).any(|window| window == log), "it has the log byte for byte");
    let trust = harness.trust();
    let (verdict, _) = verify_archive(&mut Cursor::new(&archive), &trust, &mut |_| {}).unwrap();
    assert_eq!((&verdict.judgement.finding, &verdict.thread), (&Finding::Sound, &thread));
    assert_eq!((verdict.head, verdict.unnamed_blobs), (Some(head), vec![blob]));
    assert!(exported(store, &thread) == archive, "the same thread gives the same archive");
    assert_ne!(finding(&archive, &Trust::default()), Finding::Sound, "without a key nothing is proven");
    let mut changed = archive.clone();
    let at = archive.windows(5).position(|window| window == b"first").unwrap();
    changed[at] ^= 1;
    assert_ne!(finding(&changed, &trust), Finding::Sound, "a changed byte is found");
    assert_refused!(store.import(&mut changed.as_slice(), false), Error::Log { .. }, "a changed archive");
}

/// A thread that the store has with the same head is left unchanged; another version of it is refused, and so is a deleted one.
pub fn an_existing_thread_is_not_imported_again<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let opened = harness.open();
    let thread = with_three::<H>(&opened, "again");
    let archive = exported(&opened, &thread);
    for keep in [false, true] {
        let arrived = Archives::import(&opened, &mut archive.as_slice(), keep).unwrap();
        assert_eq!((arrived.thread, arrived.arrival), (thread.clone(), ImportOutcome::Unchanged), "keep: {keep}");
    }
    append(&opened, &thread, says("third"));
    assert_refused!(Archives::import(&opened, &mut archive.as_slice(), true), Error::Exists(_), "an older version");
    Commit::delete(&opened, &thread).unwrap();
    assert_refused!(Archives::import(&opened, &mut archive.as_slice(), true), Error::Deleted(_), "a deleted thread");
}

/// The capabilities of a thread are written once, are included in its archive, and do not affect its verdict.
pub fn capabilities_are_written_once<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let opened = harness.open();
    let thread = create(&opened, "page");
    let store: &dyn Backend = &opened;
    assert_eq!(store.document(&thread, Document::Capabilities).unwrap(), None);
    assert!(store.write_capabilities(&thread, &|| "# May call nothing\n".to_owned()).unwrap());
    let other = harness.open();
    let again = SignedFiles::write_capabilities(&other, &thread, &|| "# May call everything\n".to_owned());
    assert!(!again.unwrap(), "it exists");
    let page = store.document(&thread, Document::Capabilities).unwrap().unwrap();
    let text = String::from_utf8(page).unwrap();
    assert!(text.contains("# May call nothing") && !text.contains("everything"), "{text}");
    assert_eq!(store.verify(&thread, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
    let archive = exported(store, &thread);
    assert!(archive.windows(18).any(|window| window == b"# May call nothing"), "it is included");
    assert_eq!(finding(&archive, &harness.trust()), Finding::Sound);
}

/// A store accepts a manifest that agrees with its log, and no other.
pub fn a_manifest_that_agrees_with_its_log_is_accepted<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let opened = harness.open();
    let thread = create(&opened, "vouched");
    let store: &dyn Backend = &opened;
    let recorded = loaded(&opened, &harness.trust(), &thread).manifest;
    store.check_manifest(&recorded).unwrap();
    let mut other = recorded;
    other.parent_id = Some(id("stranger"));
    assert_refused!(store.check_manifest(&other), Error::Integrity { .. }, "a thread with another parent");
    assert_eq!(store.missing_manifest(&thread), None);
}

/// A list of heads is signed, still matches after logs grow or are deleted, and differs from another store's logs.
pub fn a_list_of_heads_stays_valid_while_logs_grow<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let opened = harness.open();
    let one = with_three::<H>(&opened, "one");
    let two = with_three::<H>(&opened, "two");
    let store: &dyn Backend = &opened;
    let noted = store.heads().unwrap();
    assert!(noted.left_out.is_empty(), "{:?}", noted.left_out);
    assert_eq!(noted.heads.threads.iter().map(|head| &head.thread_id).collect::<Vec<_>>(), [&one, &two]);
    assert_eq!(noted.heads.store_id, ReadHeads::store_id(&harness.open()).unwrap(), "every handle has the same id");
    let text = store.sign_heads(&noted.heads).unwrap();
    let mut heads = Heads::read(text.as_bytes(), &harness.trust()).unwrap().heads;
    append(&opened, &one, says("more"));
    store.delete(&two).unwrap();
    assert!(store.compare_heads(&heads, Depth::Whole).differs.is_empty(), "growing and deleting is allowed");
    heads.threads[0].hash = selvedge_log::hash::sha256(b"another log");
    assert_eq!(store.compare_heads(&heads, Depth::Whole).differs.len(), 1);
    assert_eq!(store.heads().unwrap().heads.tombstones.len(), 1);
}

/// A handle that is closed releases its leases, and committed data stays.
pub fn shutting_down_releases_leases<H: Harness>(harness: &H)
where
    H::Store: Backend,
{
    let mut opened = harness.open();
    let thread = with_three::<H>(&opened, "left");
    let store: &mut dyn Backend = &mut opened;
    store.acquire(&thread, Acquire::default()).unwrap();
    store.shut_down().unwrap();
    let other = harness.open();
    let other: &dyn Backend = &other;
    assert_eq!(other.holder(&thread).unwrap(), None);
    assert!(other.expired().unwrap().is_empty(), "a released lease has not expired");
    let lease = other.acquire(&thread, Acquire::default()).unwrap();
    assert_eq!(lease.taken_from, None, "it was not taken over");
    assert_eq!(other.head(&thread).unwrap().version, 2);
}
