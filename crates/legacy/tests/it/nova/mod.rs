//! Files of the older format, imported: once, twice, grown, diverged, interrupted after every commit; and exported again.

mod again;
mod fragile;

use std::io::{self, BufRead};
use std::path::Path;

use selvedge_legacy::nova::{self, NovaError, Outcome, Report, STATE_KEY, Source};
use selvedge_log::{Signer, Trust};
use selvedge_model::message::{Block, Visibility};
use selvedge_model::{Classify, Event, Message, Role, Thread, ThreadId};
use selvedge_store::conformance::support::{ScriptedClock, SeededIds, append, create, id, says};
use selvedge_store::load::load;
use selvedge_store::memory::MemoryStore;
use selvedge_store::{Commit, Logs, Registry, Store};
use serde_json::{Value, json};

use fragile::Fragile;

struct File {
    name: String,
    bytes: Vec<u8>,
}

impl Source for File {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(self.bytes.as_slice()))
    }
}

fn file(name: &str, bytes: impl Into<Vec<u8>>) -> File {
    File { name: name.to_owned(), bytes: bytes.into() }
}

fn fixture(name: &str) -> File {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nova");
    let name = format!("{name}.jsonl");
    file(&name, std::fs::read(folder.join(&name)).unwrap())
}

fn memory() -> (MemoryStore, Trust) {
    let ids = SeededIds::new(1);
    let signer = Signer::generate(&ids);
    let trust = Trust::of(&[signer.public()]);
    (MemoryStore::new(signer, Box::new(ScriptedClock::default()), Box::new(ids)), trust)
}

fn folded(store: &dyn Store, trust: &Trust, thread: &ThreadId) -> Thread {
    load(store, thread, trust, None).unwrap().thread
}

fn exported(store: &dyn Store, trust: &Trust, thread: &ThreadId) -> String {
    let mut out = Vec::new();
    nova::export(store, trust, thread, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

const MANIFEST: &str = r#"{"id":"pear","agentId":"gardener","createdAt":"c","updatedAt":"u"}"#;

fn said(number: usize) -> String {
    format!(r#"{{"role":"user","text":"message {number}","timestamp":"t{number}"}}"#)
}

fn long_file(events: usize) -> Vec<u8> {
    let mut text = format!("{MANIFEST}\n");
    for number in 0..events {
        let line = match number % 5 {
            3 => format!(r#"{{"type":"tool_use","name":"dig","input":{{"n":{number}}},"timestamp":"t{number}"}}"#),
            4 => format!(r#"{{"type":"assistant_text","text":"n{number}","timestamp":"t{number}"}}"#),
            _ => said(number),
        };
        text += &line;
        text.push('\n');
    }
    text.into_bytes()
}

#[test]
fn a_sound_file_becomes_a_thread_that_is_marked_as_imported() {
    let (store, trust) = memory();
    let source = fixture("sound");
    let report = nova::import(&store, &trust, &source).unwrap();
    assert_eq!((report.outcome, report.thread_id.as_str()), (Outcome::New, "4f6a0c1d2e3b"));
    assert_eq!((report.added.messages, report.added.events), (3, 2));
    let thread = folded(&store, &trust, &report.thread_id);
    assert_eq!(Some(report.version.unwrap()), thread.version);
    let manifest = &thread.manifest;
    assert_eq!((manifest.agent_id.as_str(), manifest.title.as_deref()), ("gardener", Some("Pruning the old pear")));
    assert_eq!(manifest.task_id.as_ref().map(|task| task.as_str()), Some("task-9"));
    assert_eq!(manifest.session_id.as_deref(), Some("s-17"));
    let messages: Vec<_> =
        thread.messages.iter().map(|m| (m.id.as_ref().unwrap().as_str(), m.role, m.visibility)).collect();
    let all = Visibility::All;
    assert_eq!(
        messages,
        [
            ("nova:2", Role::User, all),
            ("nova:3", Role::Assistant, Visibility::Internal),
            ("nova:5", Role::Assistant, all)
        ]
    );
    // A call whose result was not kept must not be executed by a run.
    assert!(thread.calls.is_empty() && thread.runs.is_empty());
    assert!(thread.messages.iter().all(|m| m.content.iter().all(|block| matches!(block, Block::Text { .. }))));
    let record = &thread.state[STATE_KEY];
    assert_eq!((&record["format"], &record["source"]), (&json!("nova"), &json!("sound.jsonl")));
    assert_eq!((&record["witnessed"], &record["complete"]), (&json!(false), &json!(true)));
    assert_eq!(record["counts"]["parsed"], 5);
    assert_eq!(record["manifest"]["updatedAt"], "2026-03-01T08:09:00.000Z");
    let origin = nova::origin(&store, &report.thread_id).unwrap().unwrap();
    assert_eq!((origin.source.as_str(), origin.witnessed), ("sound.jsonl", false));
}

#[test]
fn the_original_bytes_are_kept() {
    let (store, trust) = memory();
    let source = fixture("nul");
    let report = nova::import(&store, &trust, &source).unwrap();
    let record = folded(&store, &trust, &report.thread_id).state[STATE_KEY].clone();
    let blobs = record["head_blobs"].as_array().unwrap().iter().chain(record["blobs"].as_array().unwrap());
    let bytes =
        blobs.map(|piece| store.blob(&report.thread_id, &piece["blob"].as_str().unwrap().parse().unwrap()).unwrap());
    assert_eq!(bytes.collect::<Vec<_>>().concat(), source.bytes);
}

#[test]
fn original_times_and_unknown_fields_are_in_the_log() {
    let (store, trust) = memory();
    let thread = nova::import(&store, &trust, &fixture("unknown")).unwrap().thread_id;
    let lines = store.read(&thread, 0, 100).unwrap();
    let actions: Vec<_> = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::StateAction(fields) => Some(Value::Object(fields.clone())),
            _ => None,
        })
        .collect();
    let first = json!({"id": "nova:2", "line": 2, "part": 1, "type": "message", "timestamp": "2026-03-01T08:01:00.000Z",
                       "extra": {"attachments": ["leaf.png"]}});
    assert_eq!(actions[0]["messages"][0], first);
    assert_eq!((&actions[1]["line"], &actions[1]["event"]["from"]), (&json!(3), &json!("ann")));
}

#[test]
fn the_same_file_adds_nothing() {
    for name in ["sound", "torn_end", "no_final_newline", "glued_manifest", "nul", "no_manifest", "manifest_only"] {
        let (store, trust) = memory();
        let source = fixture(name);
        let first = nova::import(&store, &trust, &source).unwrap();
        let position = selvedge_store::Feed::position(&store).unwrap();
        let second = nova::import(&store, &trust, &source).unwrap();
        assert_eq!((second.outcome, second.version), (Outcome::Unchanged, first.version), "{name}");
        assert_eq!(second.added, nova::Added::default());
        assert_eq!(selvedge_store::Feed::position(&store).unwrap(), position);
    }
}

/// A program rewrites the manifest after every run, so a grown file never has the first line it had.
#[test]
fn of_a_grown_file_only_the_end_is_added() {
    let (store, trust) = memory();
    let short = format!("{MANIFEST}\n{}\n{}\n", said(1), said(2));
    nova::import(&store, &trust, &file("pear.jsonl", short.clone())).unwrap();
    let manifest =
        r#"{"id":"pear","agentId":"gardener","sessionId":"s2","title":"Named","createdAt":"c","updatedAt":"later"}"#;
    let grown = format!("{}{}\n", short.replace(MANIFEST, manifest), said(3));
    let source = file("pear.jsonl", grown.clone());
    let preview = nova::preview(&store, &trust, &source).unwrap();
    let report = nova::import(&store, &trust, &source).unwrap();
    assert_eq!(Report { version: report.version, ..preview }, report);
    assert_eq!((report.outcome, report.added.messages), (Outcome::Extended, 1));
    assert_eq!(report.added.bytes, said(3).len() as u64 + 1);
    let thread = folded(&store, &trust, &report.thread_id);
    assert_eq!(thread.messages.len(), 3);
    assert_eq!((thread.manifest.title.as_deref(), thread.manifest.session_id.as_deref()), (Some("Named"), Some("s2")));
    assert_eq!(exported(&store, &trust, &report.thread_id), grown);
    let again = nova::import(&store, &trust, &source).unwrap();
    assert_eq!(again.outcome, Outcome::Unchanged);
}

/// Imported while its program was writing, a file ends anywhere; later content must neither be lost nor duplicated.
#[test]
fn a_file_that_grows_in_the_middle_of_lines_gives_the_same_thread() {
    let whole =
        format!("{MANIFEST}{}\n\n{}{}\n{{\"type\":\"mes{}\n\0\0{}", said(1), said(2), said(3), said(4), said(5));
    let (store, trust) = memory();
    let at_once = nova::import(&store, &trust, &file("pear.jsonl", whole.clone())).unwrap().thread_id;
    let expected = exported(&store, &trust, &at_once);
    for step in [5, 7] {
        let (store, trust) = memory();
        let mut end = MANIFEST.len();
        while end < whole.len() {
            nova::import(&store, &trust, &file("pear.jsonl", &whole.as_bytes()[..end])).unwrap();
            end += step;
        }
        let report = nova::import(&store, &trust, &file("pear.jsonl", whole.clone())).unwrap();
        assert_eq!(exported(&store, &trust, &report.thread_id), expected);
        assert_eq!(report.counts.parsed, 5);
    }
}

#[test]
fn a_file_that_is_not_a_grown_version_of_the_imported_one_is_refused() {
    let (store, trust) = memory();
    let original = format!("{MANIFEST}\n{}\n{}\n", said(1), said(2));
    let thread = nova::import(&store, &trust, &file("pear.jsonl", original.clone())).unwrap().thread_id;
    let before = store.head(&thread).unwrap();
    let edited = original.replace("message 1", "massage 1");
    let cut = original[..original.len() - 5].to_owned();
    for other in [edited, cut] {
        for attempt in [nova::preview, nova::import] {
            let error = attempt(&store, &trust, &file("pear.jsonl", other.clone())).unwrap_err();
            assert!(matches!(error, NovaError::Diverged { .. }), "{error:?}");
            assert_eq!(error.code(), "import_diverged");
            assert!(error.hint().unwrap().contains("selvedge export pear --format nova"));
        }
    }
    assert_eq!(store.head(&thread).unwrap(), before);
}

#[test]
fn a_dry_run_reports_exactly_what_would_happen_and_writes_nothing() {
    for name in ["sound", "legacy", "unknown", "glued_torn", "glued_whole", "nul", "bad_json", "blank"] {
        let (store, trust) = memory();
        let source = fixture(name);
        let preview = nova::preview(&store, &trust, &source).unwrap();
        assert_eq!(preview.version, None);
        assert!(matches!(store.get(&preview.thread_id), Err(selvedge_store::Error::NoThread(_))));
        let report = nova::import(&store, &trust, &source).unwrap();
        assert_eq!(Report { version: report.version, ..preview }, report, "{name}");
        let thread = folded(&store, &trust, &report.thread_id);
        assert_eq!(thread.messages.len() as u64, report.added.messages);
    }
}

/// The record, with everything masked that depends on interruptions: salted names, and the number of commits.
fn masked(thread: &Thread) -> Value {
    let mut state = thread.state.clone();
    let record = &mut state[STATE_KEY];
    record["log_version"] = Value::Null;
    for list in ["blobs", "head_blobs"] {
        record[list].as_array_mut().unwrap().iter_mut().for_each(|piece| piece["blob"] = Value::Null);
    }
    state
}

#[test]
fn an_import_interrupted_after_any_commit_gives_the_same_result() {
    let whole = file("pear.jsonl", long_file(1_700));
    let (store, trust) = memory();
    let thread = nova::import(&store, &trust, &whole).unwrap().thread_id;
    let expected = folded(&store, &trust, &thread);
    let text = exported(&store, &trust, &thread);
    let commits = expected.version.unwrap() + 1;
    assert_eq!(commits, 6, "birth, one blob, three chunks and the last");
    for is_committed in [false, true] {
        for cut in 0..commits {
            let (store, trust) = memory();
            let store = Fragile::new(store, cut, is_committed);
            let error = nova::import(&store, &trust, &whole).unwrap_err();
            assert_eq!(error.code(), "database");
            let report = nova::import(&store, &trust, &whole).unwrap();
            let finished = is_committed && cut + 1 == commits;
            let outcome = match cut {
                0 if !is_committed => Outcome::New,
                _ if finished => Outcome::Unchanged,
                _ => Outcome::Resumed,
            };
            assert_eq!(report.outcome, outcome, "cut at {cut}, committed: {is_committed}");
            let thread = folded(&store, &trust, &report.thread_id);
            assert_eq!(thread.messages, expected.messages);
            assert_eq!(masked(&thread), masked(&expected));
            assert_eq!(exported(&store, &trust, &report.thread_id), text);
            assert_eq!(nova::import(&store, &trust, &whole).unwrap().outcome, Outcome::Unchanged);
        }
    }
}

#[test]
fn a_lost_answer_is_looked_up_and_committed_once() {
    let whole = file("pear.jsonl", long_file(1_200));
    let (store, trust) = memory();
    let store = Fragile::losing_every_answer(store);
    let report = nova::import(&store, &trust, &whole).unwrap();
    assert_eq!(folded(&store, &trust, &report.thread_id).messages.len() as u64, report.added.messages);
}

#[test]
fn a_large_file_is_stored_in_several_blobs_and_imported_across_their_boundaries() {
    let mut text = format!("{MANIFEST}\n");
    for number in 0..40 {
        text += &format!("{{\"role\":\"user\",\"text\":\"{}\",\"timestamp\":\"t{number}\"}}\n", "pear ".repeat(50_000));
    }
    let (store, trust) = memory();
    let report = nova::import(&store, &trust, &file("pear.jsonl", text.clone())).unwrap();
    let thread = folded(&store, &trust, &report.thread_id);
    assert_eq!(thread.messages.len(), 40);
    assert_eq!(thread.state[STATE_KEY]["blobs"].as_array().unwrap().len(), 3);
    assert_eq!(exported(&store, &trust, &report.thread_id), text);
}

#[test]
fn an_event_that_fits_on_no_line_of_a_log_is_stored_in_the_blobs_and_counted() {
    let numbers = vec!["1e15"; 500_000].join(",");
    let text = format!("{MANIFEST}\n{{\"type\":\"measured\",\"timestamp\":\"t\",\"all\":[{numbers}]}}\n{}\n", said(1));
    let (store, trust) = memory();
    let report = nova::import(&store, &trust, &file("pear.jsonl", text)).unwrap();
    assert_eq!((report.counts.parsed, report.added.messages, report.added.events, report.too_large), (2, 1, 0, 1));
    assert_eq!(folded(&store, &trust, &report.thread_id).state[STATE_KEY]["too_large"], 1);
}

#[test]
fn an_exported_import_is_the_normalised_file() {
    let with_times = |name: &str| !matches!(name, "torn_manifest" | "no_manifest");
    for name in [
        "sound",
        "unknown",
        "torn_end",
        "no_final_newline",
        "glued_torn",
        "glued_whole",
        "glued_ambiguous",
        "glued_manifest",
        "nul",
        "blank",
        "not_utf8",
        "bad_json",
        "manifest_only",
        "escapes",
        "odd_values",
        "torn_manifest",
        "no_manifest",
    ] {
        let (store, trust) = memory();
        let source = fixture(name);
        let thread = nova::import(&store, &trust, &source).unwrap().thread_id;
        let text = exported(&store, &trust, &thread);
        let mut reader = selvedge_legacy::nova_file::Reader::new(source.bytes.as_slice()).unwrap();
        let mut normalised = Vec::new();
        if let Some(manifest) = reader.manifest().cloned().filter(|_| with_times(name)) {
            selvedge_legacy::nova_file::write_manifest(&mut normalised, &manifest).unwrap();
        } else {
            normalised.extend_from_slice(text.lines().next().unwrap().as_bytes());
            normalised.push(b'\n');
        }
        while let Some(line) = reader.next_line().unwrap() {
            line.events
                .iter()
                .for_each(|found| selvedge_legacy::nova_file::write_event(&mut normalised, &found.event).unwrap());
        }
        assert_eq!(text, String::from_utf8(normalised).unwrap(), "{name}");
        let (other, trust) = memory();
        let again = nova::import(&other, &trust, &file("copy.jsonl", text.clone())).unwrap().thread_id;
        assert_eq!(exported(&other, &trust, &again), text, "{name}");
        let contents =
            |thread: Thread| thread.messages.into_iter().map(|m| (m.role, m.content, m.visibility)).collect::<Vec<_>>();
        let (first, trust) = memory();
        let thread = nova::import(&first, &trust, &source).unwrap().thread_id;
        assert_eq!(contents(folded(&first, &trust, &thread)), contents(folded(&other, &trust, &again)), "{name}");
    }
}

#[test]
fn a_thread_of_ours_is_exported_as_closely_as_the_format_allows() {
    let (store, trust) = memory();
    let thread = create(&store, "scribe-0123456789ab");
    append(&store, &thread, says("hello"));
    let call = Block::tool_call(id("c1"), "dig", json!({"depth": 2}));
    let text = Block::text("I dig.");
    let asks = Message { content: vec![text, call], ..Message::text(Role::Assistant, "") };
    let result = Block::tool_result(id("c1"), json!("done"));
    let answers = Message { content: vec![result], ..Message::text(Role::Tool, "") };
    append(&store, &thread, selvedge_model::Changeset { messages: vec![asks, answers], ..says("") });
    append(
        &store,
        &thread,
        selvedge_model::Changeset { messages: vec![Message::text(Role::Assistant, "Dug.")], ..says("") },
    );
    let mut out = Vec::new();
    let written = nova::export(&store, &trust, &thread, &mut out).unwrap();
    assert_eq!((written.events, written.left_out), (4, 1));
    let lines: Vec<Value> =
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["id"], &lines[0]["agentId"]), (&json!("scribe-0123456789ab"), &json!("scribe")));
    let shapes: Vec<_> = lines[1..].iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(shapes, ["message", "assistant_text", "tool_use", "message"]);
    assert_eq!(lines[3]["input"], json!({"depth": 2}));
}

/// The usage of a waiting run was lost, and so were its cached tokens.
#[test]
fn a_waiting_run_has_its_result_and_cached_tokens_are_kept() {
    let (store, trust) = memory();
    let thread = create(&store, "scribe-0123456789ab");
    let run = |status: &str, turns: u64, input: u64| -> selvedge_model::RunMeta {
        let cost = json!({"turns": turns, "input_tokens": input, "output_tokens": 5 * turns, "spend": 0.25, "duration_ms": 10 * turns});
        serde_json::from_value(json!({"agent_id": "scribe", "origin": "user", "status": status, "cost": cost})).unwrap()
    };
    let usage = |read: u64, written: u64| -> Event {
        let payload = json!({"model": "m", "turns": 1, "cache_read_tokens": read, "cache_write_tokens": written});
        serde_json::from_value(json!({"event_type": "usage", "payload": payload})).unwrap()
    };
    let changeset = |meta, events| selvedge_model::Changeset {
        run_id: Some(selvedge_model::RunId::new("r1").unwrap()),
        run_meta: Some(meta),
        events,
        ..says("")
    };
    append(&store, &thread, changeset(run("running", 0, 0), vec![]));
    append(&store, &thread, changeset(run("waiting", 1, 40), vec![usage(30, 7)]));
    append(&store, &thread, changeset(run("running", 1, 40), vec![]));
    append(&store, &thread, changeset(run("done", 3, 100), vec![usage(20, 0)]));
    let text = exported(&store, &trust, &thread);
    let results: Vec<Value> = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect();
    let results: Vec<&Value> = results.iter().filter(|line| line["type"] == "result").collect();
    let fields = ["turns", "inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "cost"];
    let shown: Vec<Value> = results.iter().map(|result| fields.map(|field| result[field].clone()).into()).collect();
    // The second one has the usage on top of the first.
    assert_eq!(shown, [json!([1, 40, 5, 30, 7, 0.25]), json!([2, 60, 10, 20, null, null])]);
}

#[test]
fn lines_added_here_follow_the_imported_ones() {
    let (store, trust) = memory();
    let thread = nova::import(&store, &trust, &fixture("sound")).unwrap().thread_id;
    append(&store, &thread, says("and here we go on"));
    let text = exported(&store, &trust, &thread);
    assert!(text.lines().last().unwrap().contains("and here we go on"));
    assert!(!text.contains("08:09:00.000Z"), "the thread was updated since");
    assert_eq!(nova::import(&store, &trust, &fixture("sound")).unwrap().outcome, Outcome::Unchanged);
}

#[test]
fn invalid_ids_are_made_valid_the_same_way_every_time() {
    let (store, trust) = memory();
    let text = format!("{{\"agentId\":\"The Gardener!\",\"createdAt\":\"c\"}}\n{}\n", said(1));
    let source = file("My Pear (old).jsonl", text);
    let report = nova::import(&store, &trust, &source).unwrap();
    assert!(report.thread_id.as_str().starts_with("my-pear-old-"), "{}", report.thread_id);
    let thread = folded(&store, &trust, &report.thread_id);
    assert_eq!(thread.manifest.agent_id.as_str(), "the-gardener");
    assert_eq!(thread.state[STATE_KEY]["manifest"]["agentId"], "The Gardener!");
    assert_eq!(thread.state[STATE_KEY]["original_id"], "My Pear (old)");
    assert_eq!(nova::import(&store, &trust, &source).unwrap().outcome, Outcome::Unchanged);
    let escape = file("x.jsonl", format!("{{\"id\":\"../../etc\",\"agentId\":\"..\"}}\n{}\n", said(2)));
    let report = nova::import(&store, &trust, &escape).unwrap();
    assert!(report.thread_id.as_str().starts_with("etc-"), "{}", report.thread_id);
    assert_eq!(folded(&store, &trust, &report.thread_id).manifest.agent_id.as_str(), "unknown");
}

#[test]
fn a_thread_that_was_not_imported_and_a_deleted_one_are_not_changed() {
    let (store, trust) = memory();
    let thread = create(&store, "4f6a0c1d2e3b");
    let error = nova::import(&store, &trust, &fixture("sound")).unwrap_err();
    assert!(matches!(error, NovaError::Taken { .. }), "{error:?}");
    store.delete(&thread).unwrap();
    let error = nova::import(&store, &trust, &fixture("sound")).unwrap_err();
    assert_eq!(error.code(), "thread_deleted");
    assert_eq!(nova::origin(&store, &create(&store, "ours")).unwrap(), None);
}

#[test]
fn a_file_of_another_format_is_refused() {
    let (store, trust) = memory();
    for bytes in ["", "\n\n", "plain words\n", "\0\0\0"] {
        let error = nova::import(&store, &trust, &file("x.jsonl", bytes)).unwrap_err();
        assert!(matches!(error, NovaError::NotNova { .. }), "{bytes:?}: {error:?}");
    }
    assert!(matches!(store.get(&id("x")), Err(selvedge_store::Error::NoThread(_))));
}

/// A writer may patch the state; with a forged record it gets a refusal, not another file's messages.
#[test]
fn a_forged_record_does_not_allow_additions() {
    let (store, trust) = memory();
    let thread = nova::import(&store, &trust, &fixture("sound")).unwrap().thread_id;
    let forged = selvedge_model::op::Op::Delete { path: selvedge_model::path::Path::keys([STATE_KEY]) };
    append(&store, &thread, selvedge_store::conformance::support::patches([forged]));
    let error = nova::import(&store, &trust, &fixture("sound")).unwrap_err();
    assert!(matches!(error, NovaError::Taken { .. }), "{error:?}");
    assert!(nova::origin(&store, &thread).unwrap().is_some(), "the origin can't be removed");
}
