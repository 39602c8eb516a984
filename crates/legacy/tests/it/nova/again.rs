//! The same content under other names, ids and at the same moment: one thread results.

use std::sync::Barrier;
use std::thread;

use selvedge_store::Filter;

use super::*;

fn threads(store: &dyn Store) -> Vec<ThreadId> {
    let page = store.list(&Filter::default(), None, 100).unwrap();
    page.items.into_iter().map(|summary| summary.manifest.thread_id).collect()
}

#[test]
fn the_same_bytes_under_another_name_are_not_a_second_thread() {
    let (store, trust) = memory();
    let nameless = MANIFEST.replace(r#""id":"pear","#, "");
    let text = format!("{nameless}\n{}\n{}\n", said(1), said(2));
    let first = nova::import(&store, &trust, &file("pear.jsonl", text.clone())).unwrap();
    let head = store.head(&first.thread_id).unwrap();
    for copy in [file("copy.jsonl", text.clone()), file("pear.jsonl.bak", text)] {
        for attempt in [nova::preview, nova::import] {
            let report = attempt(&store, &trust, &copy).unwrap();
            assert_eq!((report.outcome, &report.thread_id), (Outcome::Unchanged, &first.thread_id), "{}", copy.name);
        }
    }
    assert_eq!((threads(&store), store.head(&first.thread_id).unwrap()), (vec![first.thread_id], head));
}

/// The second one was reported as imported already, and its manifest was lost.
#[test]
fn one_word_in_two_files_with_manifests_of_their_own_is_two_threads() {
    let (store, trust) = memory();
    let of = |agent: &str| format!("{{\"agentId\":\"{agent}\",\"title\":\"of {agent}\"}}\n{}\n", said(1));
    for agent in ["alice", "bob"] {
        let source = file(&format!("{agent}.jsonl"), of(agent));
        let report = nova::import(&store, &trust, &source).unwrap();
        assert_eq!((report.outcome, report.thread_id.as_str()), (Outcome::New, agent));
        assert!(exported(&store, &trust, &report.thread_id).contains(&format!("\"of {agent}\"")));
        assert_eq!(nova::import(&store, &trust, &source).unwrap().outcome, Outcome::Unchanged);
    }
    // A copy with a changed title is not the same file: its manifest is added, under any name.
    let retitled = of("alice").replace("of alice", "of hers");
    let report = nova::import(&store, &trust, &file("copy.jsonl", retitled)).unwrap();
    assert_eq!((report.outcome, report.thread_id.as_str()), (Outcome::Extended, "alice"));
    let title = store
        .list(&Filter::default(), None, 100)
        .unwrap()
        .items
        .into_iter()
        .find_map(|one| (one.manifest.thread_id == report.thread_id).then_some(one.manifest.title).flatten());
    assert_eq!(title.as_deref(), Some("of hers"));
}

#[test]
fn a_file_that_grew_under_another_name_adds_its_end_to_its_thread() {
    let (store, trust) = memory();
    let nameless = MANIFEST.replace(r#""id":"pear","#, "");
    // One that is longer than the recorded beginning, and one that was shorter.
    for (name, lines) in [("long", 400), ("short", 2)] {
        let before: String = (0..lines).map(|number| said(number).replace("message", name) + "\n").collect();
        let text = format!("{nameless}\n{before}");
        let first = nova::import(&store, &trust, &file(&format!("{name}.jsonl"), text.clone())).unwrap();
        let more: String = (0..500).map(|number| said(1_000 + number) + "\n").collect();
        let grown = file(&format!("{name}-later.jsonl"), text + &more);
        let report = nova::import(&store, &trust, &grown).unwrap();
        assert_eq!((report.outcome, &report.thread_id), (Outcome::Extended, &first.thread_id));
        assert_eq!(report.added.messages, 500);
        assert_eq!(nova::import(&store, &trust, &grown).unwrap().outcome, Outcome::Unchanged);
    }
    assert_eq!(threads(&store).len(), 2);
}

#[test]
fn a_copy_from_before_the_file_grew_is_known_too() {
    let (store, trust) = memory();
    let text = format!("{}\n{}\n", MANIFEST.replace(r#""id":"pear","#, ""), said(1));
    let first = nova::import(&store, &trust, &file("pear.jsonl", text.clone())).unwrap().thread_id;
    nova::import(&store, &trust, &file("pear.jsonl", format!("{text}{}\n", said(2)))).unwrap();
    let copy = file("copy.jsonl", text);
    let report = nova::import(&store, &trust, &copy).unwrap();
    assert_eq!((report.outcome, &report.thread_id), (Outcome::Unchanged, &first));
    assert_eq!((report.added, threads(&store).len()), (nova::Added::default(), 1));
}

#[test]
fn a_file_that_only_begins_alike_becomes_another_thread() {
    let (store, trust) = memory();
    let first = format!("{MANIFEST}\n{}\n", said(1));
    nova::import(&store, &trust, &file("pear.jsonl", first)).unwrap();
    let other = format!("{}\n{}\n{}\n", MANIFEST.replace("pear", "plum"), said(1), said(2));
    let report = nova::import(&store, &trust, &file("plum.jsonl", other)).unwrap();
    assert_eq!((report.outcome, report.thread_id.as_str()), (Outcome::New, "plum"));
    // Without events only the manifest distinguishes files.
    for name in ["fig", "date"] {
        let empty = MANIFEST.replace("pear", name) + "\n";
        let report = nova::import(&store, &trust, &file(&format!("{name}.jsonl"), empty.clone())).unwrap();
        assert_eq!((report.outcome, report.thread_id.as_str()), (Outcome::New, name));
        let copy = nova::import(&store, &trust, &file("copy.jsonl", empty)).unwrap();
        assert_eq!((copy.outcome, copy.thread_id.as_str()), (Outcome::Unchanged, name));
    }
}

#[test]
fn a_deleted_import_can_be_imported_under_another_name() {
    let (store, trust) = memory();
    let text = format!("{}\n{}\n", MANIFEST.replace(r#""id":"pear","#, ""), said(1));
    for name in ["pear", "plum", "fig"] {
        let report = nova::import(&store, &trust, &file(&format!("{name}.jsonl"), text.clone())).unwrap();
        assert_eq!((report.outcome, report.thread_id.as_str()), (Outcome::New, name));
        let again = nova::import(&store, &trust, &file("again.jsonl", text.clone())).unwrap();
        assert_eq!((again.outcome, again.thread_id.as_str()), (Outcome::Unchanged, name));
        store.delete(&report.thread_id).unwrap();
    }
}

/// Both stored the same bytes under two salted names, and one of them failed in the middle.
#[test]
fn two_processes_that_import_one_file_at_once_create_one_thread() {
    let text = String::from_utf8(long_file(2_000)).unwrap().replace(r#""id":"pear","#, "");
    for names in [["pear.jsonl", "pear.jsonl"], ["pear.jsonl", "plum.jsonl"]] {
        let (store, trust) = memory();
        let start = Barrier::new(names.len());
        let reports: Vec<Report> = thread::scope(|scope| {
            let import = |name: &str| {
                let source = file(name, text.clone());
                start.wait();
                nova::import(&store, &trust, &source).unwrap()
            };
            let running = names.map(|name| scope.spawn(move || import(name)));
            running.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(reports[0].thread_id, reports[1].thread_id);
        assert_eq!(threads(&store), [reports[0].thread_id.clone()]);
        let thread = folded(&store, &trust, &reports[0].thread_id);
        let blobs = thread.state[STATE_KEY]["blobs"].as_array().unwrap();
        let kept: u64 = blobs.iter().map(|piece| piece["bytes"].as_u64().unwrap()).sum();
        assert_eq!(thread.state[STATE_KEY]["bytes"], kept);
        assert_eq!(thread.state[STATE_KEY]["complete"], true);
        let again = nova::import(&store, &trust, &file(names[1], text.clone())).unwrap();
        assert_eq!(again.outcome, Outcome::Unchanged);
    }
}

#[test]
fn lines_witnessed_here_are_distinguished_from_imported_ones() {
    let (store, trust) = memory();
    let before = format!("{MANIFEST}\n{}\n", said(1));
    let thread = nova::import(&store, &trust, &file("pear.jsonl", before.clone())).unwrap().thread_id;
    append(&store, &thread, says("ours"));
    nova::import(&store, &trust, &file("pear.jsonl", format!("{before}{}\n", said(2)))).unwrap();
    let mut out = Vec::new();
    let written = nova::export(&store, &trust, &thread, &mut out).unwrap();
    assert_eq!((written.events, written.imported), (3, 2));
    let log = store.head(&thread).unwrap().log_id;
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let witnessed: Vec<_> = lines.iter().map(|line| line.get("witnessedIn").and_then(Value::as_str)).collect();
    assert_eq!(witnessed, [None, Some(log.as_str()), None]);
    // Imported elsewhere and exported there, it still has where it was witnessed, and no other line claims that.
    let (elsewhere, trust) = memory();
    let there = nova::import(&elsewhere, &trust, &file("pear.jsonl", text.clone())).unwrap().thread_id;
    assert_eq!(exported(&elsewhere, &trust, &there), text);
}
