//! The blobs that a log names: those of an import as well as those of messages; a missing one is found by every check.
//!
//! An import keeps the bytes of its file as blobs that only its record names. They could be deleted or changed, and every check of the
//! thread reported it as sound.

use std::fs;
use std::io::{BufRead, Cursor};
use std::path::PathBuf;

use selvedge_legacy::nova::{self, Source};
use selvedge_log::recovery::Finding;
use selvedge_model::{Classify, Digest, ThreadId};
use selvedge_store_local::doctor::{Depth, Report, examine};
use selvedge_store_local::{Access, LocalStore};

use crate::erase::with_blob;
use crate::support::{Home, id};

struct Text(&'static str);

impl Source for Text {
    fn name(&self) -> &str {
        "pear.jsonl"
    }

    fn open(&self) -> std::io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(Cursor::new(self.0.as_bytes())))
    }
}

/// An imported thread; one of its blobs has the head of the file, the other the rest.
fn imported(home: &Home) -> (ThreadId, Vec<Digest>) {
    let store = home.open();
    let file = Text(concat!(
        r#"{"id":"pear","agentId":"gardener","title":"Pears","createdAt":"c","updatedAt":"u"}"#,
        "\n",
        r#"{"role":"user","text":"one","timestamp":"t"}"#,
        "\n"
    ));
    nova::import(&store, &home.trust(), &file).unwrap();
    let thread = id("pear");
    let blobs = store.blobs(&thread).unwrap();
    assert_eq!(blobs.len(), 2, "one for its head, one for its events");
    store.close().unwrap();
    (thread, blobs)
}

fn path(home: &Home, thread: &ThreadId, blob: &Digest) -> PathBuf {
    home.threads().join(thread.folder()).join("blobs").join(blob.to_string())
}

fn look(home: &Home, depth: Depth) -> Vec<&'static str> {
    let report: Report = examine(home.options(Access::ReadOnly), depth, &mut |_, _| {});
    report.findings.iter().map(|finding| finding.code).filter(|code| *code != "disk_nearly_full").collect()
}

#[test]
fn a_missing_blob_that_only_an_import_names_is_found_by_every_check() {
    let home = Home::new();
    let (thread, blobs) = imported(&home);
    let sound = home.read_only().verify(&thread, &mut |_| {}).unwrap();
    assert_eq!(
        (sound.judgement.finding, look(&home, Depth::Ends), look(&home, Depth::Whole)),
        (Finding::Sound, vec![], vec![])
    );
    for blob in &blobs {
        let path = path(&home, &thread, blob);
        let content = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let store = home.read_only();
        let verdict = store.verify(&thread, &mut |_| {}).unwrap();
        assert!(
            matches!(&verdict.judgement.finding, Finding::Blob { blob: found, .. } if found == blob),
            "{verdict:?}"
        );
        assert_eq!(verdict.bad_blobs.iter().map(|bad| bad.blob).collect::<Vec<_>>(), [*blob]);
        assert_eq!(store.export(&thread, &mut Vec::new()).unwrap_err().code(), "blob_damaged");
        assert_eq!(look(&home, Depth::Ends), ["blob_missing"], "without reading the log whole");
        assert_eq!(look(&home, Depth::Whole), ["blob_damaged"]);
        let writer = home.open();
        let refused = writer.repair(&thread, selvedge_store_local::Repair::default()).unwrap_err();
        writer.close().unwrap();
        assert_eq!(refused.code(), "blob_damaged", "a thread that can't be repaired is not reported as sound");
        let mut changed = content.clone();
        changed[40] ^= 1;
        fs::write(&path, changed).unwrap();
        assert_eq!(store.verify(&thread, &mut |_| {}).unwrap().bad_blobs[0].why, "does not match its name");
        assert_eq!(look(&home, Depth::Whole), ["blob_damaged"]);
        fs::write(&path, content).unwrap();
    }
}

#[test]
fn a_missing_blob_of_an_import_far_back_in_a_long_log_is_found() {
    let home = Home::new();
    let (thread, blobs) = imported(&home);
    let store = home.open();
    let text = "x".repeat(60_000);
    for _ in 0..6 {
        crate::world::append(&store, &thread, &text).unwrap();
    }
    store.close().unwrap();
    assert!(fs::metadata(home.transcript(&thread)).unwrap().len() > 300_000);
    assert_eq!(look(&home, Depth::Ends), Vec::<&str>::new());
    fs::remove_file(path(&home, &thread, &blobs[0])).unwrap();
    assert_eq!(look(&home, Depth::Ends), ["blob_missing"], "the saved state names it");
}

#[test]
fn every_missing_changed_and_erased_blob_is_reported() {
    let home = Home::new();
    let (thread, blobs) = imported(&home);
    let store = home.open();
    store.erase(&thread, &blobs[0], "asked to").unwrap();
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.judgement.finding, verdict.erased_blobs), (Finding::Sound, vec![blobs[0]]));
    store.close().unwrap();
    assert_eq!((look(&home, Depth::Ends), look(&home, Depth::Whole)), (vec![], vec!["blobs_erased"]));
    fs::write(path(&home, &thread, &blobs[1]), "another").unwrap();
    let verdict = home.read_only().verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.bad_blobs.len(), verdict.bad_blobs[0].blob, verdict.erased), (1, blobs[1], 1));
    assert_eq!(look(&home, Depth::Whole), ["blob_damaged", "blobs_erased"]);
}

#[test]
fn an_archive_without_a_blob_that_its_log_names_is_refused() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    let mut archive = Vec::new();
    assert_eq!(store.export(&thread, &mut archive).unwrap().blobs, 1);
    store.close().unwrap();
    // The entry is removed: a header, and a content of less than one block.
    let name = format!("blobs/{blob}");
    let at = archive.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
    archive.drain(at..at + 1024);
    let there = Home::new();
    let mut options = there.options(Access::ReadWrite);
    options.trust = home.trust();
    let store = LocalStore::open(options).unwrap();
    let refused = store.import(&mut Cursor::new(&archive), true).unwrap_err();
    assert_eq!(refused.code(), "blob_damaged", "{refused}");
    assert!(!there.transcript(&thread).exists());
}
