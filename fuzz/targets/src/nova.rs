//! Files of the older format, `manifest + events` in JSON lines.
//!
//! Whatever is in them, every byte and every line is accounted for; what was parsed and written again is read without a repair; an import
//! adds what its preview reported, and a second one nothing.

use std::io::{self, BufRead};

use selvedge_legacy::nova::{Outcome, Source, import, preview};
use selvedge_legacy::nova_file::{Counts, Manifest, Reader, write_event, write_manifest};
use selvedge_store::memory::MemoryStore;

use crate::golden::{self, ConstantClock, SeededIds, TRUST};

struct File<'a>(&'a [u8]);

impl Source for File<'_> {
    fn name(&self) -> &str {
        "0123456789ab.jsonl"
    }

    fn open(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(self.0))
    }
}

/// Reads a file, writes it again, imports it.
pub fn run(bytes: &[u8]) {
    let (counts, written) = read(bytes);
    let (again, rewritten) = read(&written);
    assert_eq!(again.skipped() + again.repaired(), 0, "a written file has to be repaired");
    assert_eq!(again.parsed, counts.parsed, "a written file has other events");
    assert_eq!(rewritten, written, "writing it twice gives two files");
    imported(bytes, &counts);
}

/// Reads all of it; returns the counts, and the file written again.
fn read(bytes: &[u8]) -> (Counts, Vec<u8>) {
    let mut reader = Reader::new(bytes).expect("memory can be read");
    let mut written = Vec::new();
    // A manifest is always written: without it, the first event could be taken for one.
    let manifest = reader.manifest().cloned().unwrap_or_else(|| Manifest::of(serde_json::Map::new()));
    write_manifest(&mut written, &manifest).expect("memory can be written");
    let mut events = 0;
    while let Some(line) = reader.next_line().expect("memory can be read") {
        for found in line.events {
            events += 1;
            write_event(&mut written, &found.event).expect("memory can be written");
        }
    }
    let counts = reader.counts().clone();
    assert_eq!(reader.head_bytes() + reader.events_bytes(), bytes.len() as u64, "some bytes are not accounted for");
    assert_eq!(
        counts.lines,
        counts.blank + counts.clean + counts.repaired() + counts.lost,
        "some lines are not accounted for"
    );
    let kinds =
        counts.messages + counts.legacy + counts.tool_uses + counts.assistant_texts + counts.results + counts.opaque;
    assert_eq!((counts.parsed, events), (kinds, kinds), "some events are not accounted for");
    (counts, written)
}

fn imported(bytes: &[u8], counts: &Counts) {
    let store = MemoryStore::new(golden::signer(), Box::new(ConstantClock), Box::new(SeededIds::from(1)));
    let file = File(bytes);
    let Ok(expected) = preview(&store, &TRUST, &file) else {
        assert!(import(&store, &TRUST, &file).is_err(), "an import succeeded whose preview failed");
        return;
    };
    assert_eq!(expected.counts.parsed, counts.parsed, "an import has other counts than a reader");
    let done = import(&store, &TRUST, &file).expect("an import with a preview succeeds");
    assert_eq!((&done.added, done.too_large, &done.counts), (&expected.added, expected.too_large, &expected.counts));
    assert_eq!(import(&store, &TRUST, &file).expect("it was imported before").outcome, Outcome::Unchanged);
}

/// Files of every kind of damage.
pub fn seeds() -> Vec<Vec<u8>> {
    let manifest = r#"{"id":"0123456789ab","agentId":"scribe","title":"t","createdAt":"2026-01-01T00:00:00Z","updatedAt":"2026-01-01T00:00:01Z","channel":"x","extra":{"a":1}}"#;
    let events = [
        r#"{"type":"message","role":"user","text":"hello","timestamp":"2026-01-01T00:00:00Z"}"#,
        r#"{"role":"assistant","text":"legacy","timestamp":"2026-01-01T00:00:01Z"}"#,
        r#"{"type":"tool_use","name":"read","input":{"path":"a"},"timestamp":"2026-01-01T00:00:02Z"}"#,
        r#"{"type":"assistant_text","text":"beside","timestamp":"2026-01-01T00:00:03Z"}"#,
        r#"{"type":"result","inputTokens":1,"outputTokens":2,"durationMs":3,"timestamp":"2026-01-01T00:00:04Z"}"#,
        r#"{"type":"unknown","x":[1,18446744073709551616,"\ud800"]}"#,
    ];
    let whole = format!("{manifest}\n{}\n", events.join("\n"));
    let glued = format!("{manifest}{}{}\n\0\0{}\n{{\"type\":\"message\",\"ro", events[0], events[1], events[2]);
    let headless = format!("{}\n\n{}\n", events[1], events[0]);
    [whole, glued, headless, String::new()].map(String::into_bytes).to_vec()
}
