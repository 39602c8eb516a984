//! Reading: the bytes, the lines, the fold and the registry agree.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use selvedge_log::hash::sha256;
use selvedge_log::{Trust, line};
use selvedge_model::event::ManifestChanged;
use selvedge_model::{Event, Message, Thread, ThreadId};
use serde_json::json;

use super::Harness;
use super::support::*;
use crate::contract::{Inbox, Logs, Registry, Store};
use crate::error::{Error, Result};
use crate::load::{each_changeset, load};

/// A thread with some of everything, and its fold at each of its versions.
fn eventful(store: &impl Store, trust: &Trust, name: &str) -> (ThreadId, Vec<Thread>) {
    let thread = create(store, name);
    let mut looked = vec![loaded(store, trust, &thread)];
    let renamed = ManifestChanged { title: Some("Second".to_owned()), ..ManifestChanged::default() };
    for changeset in [
        starts("run-1"),
        says_as("m1", "hello"),
        patches([set("list", json!([])), push("list", json!(1))]),
        empty(),
        finishes("run-1", "natural"),
        with_event(Event::ManifestChanged(renamed)),
        starts("run-2"),
        patches([push("list", json!(2))]),
        says_as("m1", "hello"),
        says("again"),
        finishes("run-2", "error"),
    ] {
        append(store, &thread, changeset);
        looked.push(loaded(store, trust, &thread));
    }
    (thread, looked)
}

/// Every signature of the committed bytes is valid, and the bytes end at the head.
pub fn every_signature_of_the_committed_bytes_is_valid<H: Harness>(harness: &H) {
    let store = harness.open();
    let (thread, looked) = eventful(&store, &harness.trust(), "signed");
    let entries = verified(&store, &harness.trust(), &thread);
    assert_eq!(entries.len(), looked.len(), "one changeset for each version");
    let (head, bytes) = bytes_of(&store, &thread);
    assert_eq!(head, store.head(&thread).unwrap());
    assert_eq!(sha256(&bytes), head.hash, "the head's hash is that of all bytes");
    for (version, entry) in entries.iter().enumerate() {
        let checkpoint = entry.checkpoint().unwrap();
        assert_eq!(checkpoint.version, version as u64);
        let offset = usize::try_from(checkpoint.byte_offset).unwrap();
        assert_eq!(sha256(&bytes[..offset]), checkpoint.hash, "`head -c {offset} | sha256sum` agrees");
    }
}

/// A log with an untrusted signer is not loaded.
pub fn a_log_with_an_untrusted_signer_is_not_loaded<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "doubted");
    let refused = load(&store, &thread, &Trust::default(), None);
    assert_refused!(refused, Error::Log { .. }, "a log signed by a key that is not trusted");
}

/// `read` returns the lines of the committed bytes, page by page.
pub fn lines_are_read_page_by_page<H: Harness>(harness: &H) {
    let store = harness.open();
    let (thread, _) = eventful(&store, &harness.trust(), "paged");
    let (head, bytes) = bytes_of(&store, &thread);
    let decoded: Vec<_> =
        bytes.trim_ascii_end().split(|byte| *byte == b'\n').map(|text| line::decode(text).unwrap()).collect();
    assert_eq!(lines_of(&store, &thread), decoded, "`read` agrees with the bytes");
    assert_eq!(decoded.len() as u64, head.lines);
    assert!(decoded.iter().enumerate().all(|(number, line)| line.seq == number as u64), "lines count from 0");
    for limit in [1, 2, 3, 7, decoded.len(), decoded.len() + 1] {
        let mut paged = Vec::new();
        loop {
            let page = store.read(&thread, paged.len() as u64, limit).unwrap();
            assert!(page.len() <= limit, "a page of {limit} has {}", page.len());
            if page.is_empty() {
                break;
            }
            paged.extend(page);
            assert!(paged.len() <= decoded.len(), "pages of {limit} repeat themselves");
        }
        assert_eq!(paged, decoded, "pages of {limit}");
    }
    assert_eq!(store.read(&thread, 0, 0).unwrap(), [], "a page of none is empty");
    for from in [head.lines, head.lines + 1, u64::MAX] {
        assert_eq!(store.read(&thread, from, 10).unwrap(), [], "there is no line {from}");
    }
}

/// Folding changeset by changeset gives the same as loading.
pub fn loading_equals_folding_in_pieces<H: Harness>(harness: &H) {
    let store = harness.open();
    let trust = harness.trust();
    let (thread, looked) = eventful(&store, &trust, "folded");
    let mut folded: Option<Thread> = None;
    let mut steps = Vec::new();
    let head = each_changeset(&store, &thread, &trust, |entry| {
        for line in &entry.lines {
            match &mut folded {
                Some(folded) => folded.apply(&line.event, line.timestamp).unwrap(),
                None => folded = Some(Thread::begin(&thread, &line.event, line.timestamp).unwrap()),
            }
        }
        steps.extend(folded.clone());
    });
    assert_eq!(head.unwrap(), store.head(&thread).unwrap());
    assert_eq!(steps, looked, "each step is what was loaded when it was new");
    assert_eq!(loaded(&store, &trust, &thread), looked[looked.len() - 1]);
}

/// A thread can be loaded at any of its versions, and at no other.
pub fn a_thread_loads_as_it_was_at_each_version<H: Harness>(harness: &H) {
    let store = harness.open();
    let trust = harness.trust();
    let (thread, looked) = eventful(&store, &trust, "remembered");
    for (version, then) in looked.iter().enumerate() {
        let found = load(&store, &thread, &trust, Some(version as u64)).unwrap();
        assert_eq!(found.thread, *then, "version {version}");
        assert_eq!(found.thread.version, Some(version as u64));
        assert_eq!(found.head, store.head(&thread).unwrap(), "the head is the log's, not the version's");
    }
    let beyond = looked.len() as u64;
    let refused = load(&store, &thread, &trust, Some(beyond));
    let are = |version, latest| (version, latest) == (beyond, beyond - 1);
    assert_refused!(refused, Error::NoVersion { version, latest, .. } if are(version, latest), "version {beyond}");
}

/// Registry and log agree after every commit.
pub fn the_registry_agrees_with_the_log<H: Harness>(harness: &H) {
    let store = harness.open();
    let trust = harness.trust();
    let (thread, looked) = eventful(&store, &trust, "shown");
    let shown = store.get(&thread).unwrap();
    let told = &looked[looked.len() - 1];
    assert_eq!((&shown.manifest, Some(shown.version)), (&told.manifest, told.version));
    let runs: Vec<_> = told.runs.values().cloned().collect();
    assert_eq!(store.runs(&thread).unwrap(), runs, "the index of runs is the fold's");
}

/// An open transcript ends at its head, even if more is committed while it is read.
pub fn an_open_transcript_ends_at_its_head<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "growing");
    append(&store, &thread, says(&"a".repeat(100_000)));
    let (head, mut reader) = store.transcript(&thread).unwrap();
    for _ in 0..3 {
        append(&store, &thread, says(&"b".repeat(100_000)));
    }
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert_eq!((bytes.len() as u64, sha256(&bytes)), (head.bytes, head.hash), "the bytes are those up to the head");
    assert_eq!(head.version, 1);
}

/// A reader sees whole changesets while a writer writes, and never fewer than before.
pub fn readers_see_whole_changesets_while_a_writer_writes<H: Harness>(harness: &H) {
    let writer = harness.open();
    let reader = harness.open();
    let trust = harness.trust();
    let thread = create(&writer, "watched");
    let done = AtomicBool::new(false);
    at_once(2, |worker| {
        if worker == 0 {
            for number in 0..40 {
                append(&writer, &thread, says_as(&format!("m{number}"), &"text ".repeat(number * 20)));
            }
            done.store(true, Ordering::SeqCst);
            return;
        }
        let mut before = 0;
        let began = Instant::now();
        loop {
            let last = done.load(Ordering::SeqCst) || began.elapsed() > TIMEOUT;
            let version = reader.get(&thread).unwrap().version;
            let messages = loaded(&reader, &trust, &thread).messages.len() as u64;
            assert!(before <= version && version <= messages, "versions {before}, {version}, then {messages} messages");
            before = verified(&reader, &trust, &thread).len() as u64 - 1;
            if last {
                break;
            }
        }
        assert_eq!(before, 40);
    });
}

/// A missing thread is absent for every reader.
pub fn a_missing_thread_is_absent_for_every_reader<H: Harness>(harness: &H) {
    let store = harness.open();
    let missing: ThreadId = id("missing");
    let answers: [(&str, Result<()>); 7] = [
        ("head", store.head(&missing).map(drop)),
        ("read", store.read(&missing, 0, 1).map(drop)),
        ("transcript", store.transcript(&missing).map(drop)),
        ("get", store.get(&missing).map(drop)),
        ("runs", store.runs(&missing).map(drop)),
        ("chain", store.chain(&missing).map(drop)),
        ("pending", store.pending(&missing).map(drop)),
    ];
    for (question, answer) in answers {
        assert_refused!(answer, Error::NoThread(name) if name == "missing", "{question}");
    }
    assert_eq!(store.tombstone(&missing).unwrap(), None);
    assert_eq!(store.children(&missing).unwrap(), []);
}

/// A reader that stops in the middle does not block the next.
pub fn a_half_read_transcript_blocks_nothing<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "half");
    append(&store, &thread, says(&"c".repeat(100_000)));
    let (_, mut reader) = store.transcript(&thread).unwrap();
    let mut some = [0; 10];
    reader.read_exact(&mut some).unwrap();
    assert_eq!(append(&store, &thread, says("on")), 2);
    drop(reader);
    let texts: Vec<_> = loaded(&store, &harness.trust(), &thread).messages.iter().map(Message::plain_text).collect();
    assert_eq!(texts.last().map(String::as_str), Some("on"));
}
