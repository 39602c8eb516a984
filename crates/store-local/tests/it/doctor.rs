//! The doctor: each kind of problem is reported, a sound store has none, and checking changes nothing.

use std::fs;
use std::sync::Arc;

use selvedge_model::{Batch, Changeset, Expect, Message, MessageId, Part, Reason, Role, RunId, RunMeta};
use selvedge_store::{Acquire, Commit, Inbox, Leases};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::doctor::{Depth, Finding, Report, Severity, examine};
use selvedge_store_local::{Access, LocalStore, Rebuild};

use crate::erase::with_blob;
use crate::fixture::FixtureCopy;
use crate::support::{Home, says, thread_with};

fn look(home: &Home, deep: bool) -> Report {
    let depth = if deep { Depth::Whole } else { Depth::Ends };
    examine(home.options(Access::ReadOnly), depth, &mut |_, _| {})
}

/// The findings, apart from the free space on this machine's disk.
fn codes(report: &Report) -> Vec<(&'static str, Severity)> {
    let mut codes: Vec<_> = report.findings.iter().map(|finding| (finding.code, finding.severity)).collect();
    codes.retain(|(code, _)| *code != "disk_nearly_full");
    codes.sort();
    codes.dedup();
    codes
}

fn files(folder: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push((path.clone(), fs::read(path).unwrap())) }
    }
    found.retain(|(path, _)| !path.to_string_lossy().contains("registry.db-"));
    found.sort();
    found
}

fn find<'a>(report: &'a Report, code: &str) -> &'a Finding {
    let found = report.findings.iter().find(|finding| finding.code == code);
    found.unwrap_or_else(|| panic!("`{code}` is not among {:?}", report.findings))
}

#[test]
fn a_sound_store_has_no_findings_and_is_not_changed() {
    let home = Home::new();
    let (store, _, _) = with_blob(&home);
    let gone = thread_with(&store, "gone", &["bye"]);
    store.delete(&gone).unwrap();
    store.close().unwrap();
    let before = files(&home.threads());
    for deep in [false, true] {
        let report = look(&home, deep);
        assert_eq!(codes(&report), [], "{:?}", report.findings);
        assert_eq!((report.threads, report.live_owners, report.store_format), (1, 0, Some(8)));
    }
    assert!(files(&home.threads()) == before, "checking changes nothing");
}

#[test]
fn a_store_that_is_written_to_meanwhile_has_no_damage() {
    let home = Home::new();
    let store = home.open();
    let threads: Vec<_> = (0..3).map(|n| thread_with(&store, &format!("busy-{n}"), &["one"])).collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..120 {
                let thread = threads[round % 3].clone();
                store.commit(Batch::of(Part::new(thread, Expect::Any, says("more")))).unwrap();
            }
        });
        while !writer.is_finished() {
            let report = look(&home, false);
            assert!(report.worst().is_none_or(|worst| worst < Severity::Damage), "{:?}", report.findings);
            assert_eq!(report.live_owners, 1);
        }
    });
}

#[test]
fn each_kind_of_damage_is_reported() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    let gone = thread_with(&store, "gone", &["bye"]);
    store.delete(&gone).unwrap();
    store.close().unwrap();
    let folder = home.threads().join(thread.folder());
    let damage = |path: std::path::PathBuf, change: &dyn Fn(&mut Vec<u8>), code: &'static str, deep: bool| {
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        change(&mut bad);
        fs::write(&path, bad).unwrap();
        let report = look(&home, deep);
        let found = find(&report, code);
        assert!(found.help.is_some(), "{found:?}");
        let worst = report.worst();
        fs::write(&path, good).unwrap();
        worst
    };
    let flip = |bytes: &mut Vec<u8>| bytes[35] ^= 1;
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 10);
    let flip_last = |bytes: &mut Vec<u8>| {
        let at = bytes.len() - 20;
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    };
    let log = folder.join("transcript.jsonl");
    let worst = Some(Severity::Damage);
    assert_eq!(damage(log.clone(), &cut, "truncated", false), worst);
    assert_eq!(damage(log.clone(), &flip_last, "log_damaged", false), worst);
    assert_eq!(damage(log.clone(), &flip, "log_damaged", true), worst);
    assert_eq!(damage(log.clone(), &flip, "log_damaged", false), worst, "a short log is hashed whole");
    assert_eq!(damage(log, &|bytes| bytes.extend(b"more"), "foreign_bytes", false), Some(Severity::Warning));
    let manifest = |bytes: &mut Vec<u8>| *bytes = String::from_utf8_lossy(bytes).replace("scribe", "crook").into();
    assert_eq!(damage(folder.join("thread.json"), &manifest, "manifest_refused", false), worst);
    assert_eq!(damage(home.threads().join("tombstones/gone.json"), &cut, "tombstone_refused", false), worst);
    assert_eq!(damage(folder.join("blobs").join(blob.to_string()), &flip, "blob_damaged", true), worst);
    assert_eq!(damage(home.threads().join("store.json"), &cut, "integrity", false), worst);
    assert_eq!(damage(home.threads().join("registry.db"), &|bytes| bytes.fill(0), "integrity", false), worst);
    assert_eq!(codes(&look(&home, true)), []);
}

#[test]
fn missing_and_superfluous_files_are_reported() {
    let home = Home::new();
    let (store, thread, _) = with_blob(&home);
    let gone = thread_with(&store, "gone", &["bye"]);
    store.delete(&gone).unwrap();
    store.close().unwrap();
    let folder = home.threads().join(thread.folder());
    let away = home.folder.path().join("away");
    let without = |path: &std::path::Path, code: &'static str| {
        fs::rename(path, &away).unwrap();
        let report = look(&home, false);
        let severity = find(&report, code).severity;
        fs::rename(&away, path).unwrap();
        severity
    };
    assert_eq!(without(&folder, "truncated"), Severity::Damage);
    assert_eq!(without(&folder.join("thread.json"), "manifest_missing"), Severity::Warning);
    assert_eq!(without(&home.threads().join("tombstones/gone.json"), "tombstone_missing"), Severity::Damage);
    assert_eq!(without(&home.threads().join("registry.db"), "logs_not_checked"), Severity::Note);
    crate::fixture::copy(&folder, &home.threads().join("copied"));
    fs::create_dir(home.threads().join("gone")).unwrap();
    fs::create_dir(home.threads().join("notes")).unwrap();
    fs::write(folder.join("transcript.quarantine-1"), "x").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let left = fs::File::create(folder.join(".thread.json.1.tmp")).unwrap();
    left.set_modified(old).unwrap();
    let report = look(&home, false);
    let named = ["deletion_unfinished", "folder_unknown", "quarantined", "temporary_file", "thread_not_indexed"];
    assert_eq!(codes(&report).iter().map(|(code, _)| *code).collect::<Vec<_>>(), named);
}

#[test]
fn leftovers_of_dead_processes_are_reported() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let lease = store.acquire(&thread, Acquire::default()).unwrap();
    let meta = RunMeta::started(selvedge_model::AgentId::new("scribe").unwrap(), "user").under_lease();
    let run = Changeset {
        run_id: Some(RunId::new("r1").unwrap()),
        run_meta: Some(meta),
        ..Changeset::empty(Reason::UserMessage)
    };
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, run).under(lease.epoch))).unwrap();
    store.post(crate::reindex::request(&thread)).unwrap();
    let report = look(&home, false);
    assert_eq!(codes(&report), [("requests_queued", Severity::Note)], "its holder is alive");
    // As a crash would leave it.
    drop(store);
    let report = look(&home, false);
    let named = ["lease_orphaned", "processes_dead", "redo_pending", "requests_queued", "thread_stalled"];
    assert_eq!(codes(&report).iter().map(|(code, _)| *code).collect::<Vec<_>>(), named);
    assert_eq!(report.worst(), Some(Severity::Warning));
}

#[test]
fn an_older_store_and_wrong_clocks_are_reported() {
    let kept = FixtureCopy::of(5);
    let report = examine(kept.options(Access::ReadOnly), Depth::Whole, &mut |_, _| {});
    let named = [("logs_not_checked", Severity::Note), ("store_outdated", Severity::Damage)];
    assert_eq!(codes(&report), named, "{:?}", report.findings);
    assert!(find(&report, "store_outdated").help.as_ref().unwrap().contains("selvedge reindex"));

    /// A clock that is slow by this much.
    #[derive(Debug)]
    struct Behind(i64);
    impl selvedge_model::Clock for Behind {
        fn now(&self) -> selvedge_model::Timestamp {
            selvedge_model::Timestamp::from_micros(selvedge_store_local::system::SystemClock.now().as_micros() - self.0)
        }
    }
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    for (behind, found) in [(8_000_000, Vec::new()), (60_000_000, vec![("clock_backwards", Severity::Note)])] {
        let mut options = home.options(Access::ReadWrite);
        options.clock = std::sync::Arc::new(Behind(behind));
        let store = LocalStore::open(options).unwrap();
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("a little earlier")))).unwrap();
        store.close().unwrap();
        assert_eq!(codes(&look(&home, false)), found, "{behind}");
    }

    #[derive(Debug)]
    struct Past;
    impl selvedge_model::Clock for Past {
        fn now(&self) -> selvedge_model::Timestamp {
            selvedge_model::Timestamp::from_micros(1_000_000_000_000_000)
        }
    }
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let mut options = home.options(Access::ReadWrite);
    options.clock = std::sync::Arc::new(Past);
    let store = LocalStore::open(options).unwrap();
    store.commit(Batch::of(Part::new(thread, Expect::Any, says("earlier")))).unwrap();
    store.close().unwrap();
    assert_eq!(codes(&look(&home, false)), [("clock_backwards", Severity::Note)]);
    let mut options = home.options(Access::ReadOnly);
    options.clock = std::sync::Arc::new(Past);
    let store = home.open();
    thread_with(&store, "later", &[]);
    store.close().unwrap();
    let report = examine(options, Depth::Ends, &mut |_, _| {});
    assert_eq!(find(&report, "clock_ahead").subject, "later");
}

/// The bytes inside a log were not checked unless everything was read, and that was not reported.
#[test]
fn the_read_part_of_a_long_log_is_checked_and_the_rest_is_reported() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "long", &[&"x".repeat(400_000)]);
    thread_with(&store, "short", &["one"]);
    store.close().unwrap();
    // A state is saved with the commit that changes it, and so is the running hash.
    let store = home.open();
    let patch: selvedge_model::Patch =
        serde_json::from_value(serde_json::json!({ "ops": [{ "op": "set", "path": ["n"], "value": 1 }] })).unwrap();
    let changed = Changeset { patches: vec![patch], ..Changeset::empty(Reason::ToolResultsCommitted) };
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, changed))).unwrap();
    crate::world::append(&store, &thread, "the last words").unwrap();
    store.close().unwrap();
    let sound = look(&home, false);
    assert_eq!((codes(&sound), sound.not_read_whole, look(&home, true).not_read_whole), (vec![], 1, 0));
    let path = home.transcript(&thread);
    let log = fs::read(&path).unwrap();
    let flipped = |at: usize, deep: bool| {
        let mut bad = log.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        let report = look(&home, deep);
        fs::write(&path, &log).unwrap();
        codes(&report).contains(&("log_damaged", Severity::Damage))
    };
    let early = log.len() / 2;
    assert_eq!((flipped(early, false), flipped(early, true)), (false, true), "as reported");
    let words = log.windows(4).rposition(|window| window == b"last").unwrap();
    assert!(flipped(words, false), "the last changeset is hashed from where the state was saved");
    let hash = log.windows(8).rposition(|window| window == b"\"hash\":\"").unwrap() + 8;
    let mut bad = log.clone();
    bad[hash] = if bad[hash] == b'0' { b'1' } else { b'0' };
    fs::write(&path, &bad).unwrap();
    assert!(codes(&look(&home, false)).contains(&("log_damaged", Severity::Damage)), "the last signature covers it");
}

/// Each thread was reported as damaged, with `repair` as the hint, which refuses such a log.
#[test]
fn untrusted_keys_are_reported_once_and_are_no_damage() {
    let home = Home::new();
    let store = home.open();
    let threads: Vec<_> = (0..3).map(|n| thread_with(&store, &format!("thread-{n}"), &["one"])).collect();
    let gone = thread_with(&store, "gone", &["bye"]);
    store.delete(&gone).unwrap();
    store.close().unwrap();
    for depth in [Depth::Ends, Depth::Whole] {
        let mut options = home.options(Access::ReadOnly);
        options.trust = Default::default();
        options.signer = None;
        let report = examine(options, depth, &mut |_, _| {});
        assert_eq!(codes(&report), [("untrusted_key", Severity::Warning)], "{:?}", report.findings);
        let found = find(&report, "untrusted_key");
        assert!(found.what.contains("4 threads"), "{found:?}");
        assert!(found.help.as_ref().unwrap().contains("selvedge keys trust"), "{found:?}");
    }
    let unsigned = |home: &Home| {
        let mut options = home.options(Access::ReadOnly);
        options.trust = Default::default();
        options.signer = None;
        examine(options, Depth::Unsigned, &mut |_, _| {})
    };
    assert_eq!(codes(&unsigned(&home)), [("signatures_not_checked", Severity::Warning)]);
    let path = home.transcript(&threads[1]);
    let mut log = fs::read(&path).unwrap();
    log[40] ^= 1;
    fs::write(&path, log).unwrap();
    let report = unsigned(&home);
    assert_eq!(find(&report, "log_damaged").subject, threads[1].as_str(), "bytes are compared without any signature");
}

#[test]
fn events_that_wait_to_be_recorded_are_reported() {
    let home = Home::new();
    let thread = crate::leading_events::leave_recovery(&home);
    let report = look(&home, false);
    assert_eq!(codes(&report), [("pending_event", Severity::Note), ("quarantined", Severity::Note)]);
    assert_eq!(find(&report, "pending_event").subject, "tea");
    let store = home.open();
    crate::world::append(&store, &thread, "two").unwrap();
    store.close().unwrap();
    assert_eq!(codes(&look(&home, true)), [("quarantined", Severity::Note)]);
    assert!(fs::read_to_string(home.transcript(&thread)).unwrap().contains("foreign_bytes"));
    // An unsealed one is damage, and never recorded.
    crate::leading_events::plant(
        &home,
        r#"{"event_type":"recovery","payload":{"found":"forged","bytes":0}}"#,
        &[7; 32],
    );
    assert_eq!(
        codes(&look(&home, false)),
        [("pending_event_unsealed", Severity::Damage), ("quarantined", Severity::Note)]
    );
}

#[test]
fn a_manifest_of_another_log_is_reported_and_the_hint_helps() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "tea", &["one"]);
    store.close().unwrap();
    let path = home.threads().join("tea/thread.json");
    let mut shown: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let head = home.read_only().verify(&thread, &mut |_| {}).unwrap().head.unwrap();
    shown["log_version"] = head.version.into();
    shown["log_hash"] = "ab".repeat(32).into();
    shown.as_object_mut().unwrap().remove("_signature");
    let kind = selvedge_log::document::DocumentKind::new("thread");
    let at = selvedge_model::Timestamp::from_micros(0);
    fs::write(&path, selvedge_log::document::sign_json(kind, "tea", shown, &home.signer(), at).unwrap()).unwrap();
    let report = look(&home, false);
    assert_eq!(codes(&report), [("thread_file_differs", Severity::Damage)]);
    assert!(find(&report, "thread_file_differs").help.as_ref().unwrap().contains("selvedge repair tea"));
    let store = home.open();
    store.repair(&thread, Default::default()).unwrap();
    store.close().unwrap();
    assert_eq!(codes(&look(&home, true)), []);
}

#[test]
fn a_tombstone_that_is_not_in_the_database_is_reported_and_the_hint_helps() {
    let home = Home::new();
    let store = home.open();
    let gone = thread_with(&store, "gone", &["bye"]);
    store.delete(&gone).unwrap();
    store.close().unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    database.execute("DELETE FROM tombstones", []).unwrap();
    drop(database);
    assert_eq!(codes(&look(&home, false)), [], "it may be being written");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::options()
        .append(true)
        .open(home.threads().join("tombstones/gone.json"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    let report = look(&home, false);
    assert_eq!(codes(&report), [("tombstone_not_indexed", Severity::Damage)]);
    assert!(find(&report, "tombstone_not_indexed").help.as_ref().unwrap().contains("selvedge reindex"));
    crate::reindex::reindex(&home);
    assert_eq!(codes(&look(&home, false)), []);
}

/// The hint was `repair --accept-loss`, which refuses a log of which nothing is left.
#[test]
fn the_hint_for_a_missing_log_helps() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "tea", &["one"]);
    store.close().unwrap();
    fs::remove_dir_all(home.threads().join("tea")).unwrap();
    let help = find(&look(&home, false), "truncated").help.clone().unwrap();
    assert!(help.contains("selvedge thread delete tea") && !help.contains("accept-loss"), "{help}");
    let store = home.open();
    store.delete(&thread).unwrap();
    store.close().unwrap();
    assert_eq!(codes(&look(&home, true)), []);
}

#[test]
fn damage_inside_a_log_has_no_hint_to_repair() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "tea", &["one", "two"]);
    store.close().unwrap();
    let mut log = fs::read(home.transcript(&thread)).unwrap();
    log[200] ^= 1;
    fs::write(home.transcript(&thread), log).unwrap();
    let help = find(&look(&home, false), "log_damaged").help.clone().unwrap();
    assert!(help.contains("from a backup") && !help.contains("selvedge repair"), "{help}");
}

/// The hint was `init`, which refuses where there are threads.
#[test]
fn a_store_without_store_json_has_the_hint_to_reindex_which_writes_it() {
    let home = Home::new();
    let store = home.open();
    thread_with(&store, "tea", &["one"]);
    store.close().unwrap();
    let path = home.threads().join("store.json");
    for damage in [None, Some("{\"kind\":"), Some("")] {
        match damage {
            None => fs::remove_file(&path).unwrap(),
            Some(text) => fs::write(&path, text).unwrap(),
        }
        let report = look(&home, false);
        let help = find(&report, "integrity").help.clone().unwrap();
        assert!(help.contains("selvedge reindex"), "{damage:?}: {help}");
        assert!(crate::reindex::reindex(&home).notices.iter().any(|notice| notice.contains("store.json")));
        assert_eq!(codes(&look(&home, true)), [], "{damage:?}");
    }
}

/// Takes a minute to write; `cargo test -- --ignored ten_thousand` prints how long the check takes.
#[test]
#[ignore = "it takes a minute"]
fn ten_thousand_threads_are_checked_in_seconds() {
    let home = Home::new();
    let store = home.open();
    std::thread::scope(|scope| {
        for worker in 0..20 {
            let store = &store;
            scope.spawn(move || {
                (0..500).for_each(|n| drop(thread_with(store, &format!("thread-{worker}-{n}"), &["one"])));
            });
        }
    });
    store.close().unwrap();
    let begun = std::time::Instant::now();
    let report = look(&home, false);
    let took = begun.elapsed();
    println!("{} threads in {took:?}", report.threads);
    assert_eq!((report.threads, codes(&report)), (10_000, Vec::new()));
    assert!(took < std::time::Duration::from_secs(30), "{took:?}");
}

#[test]
fn a_database_that_contradicts_a_log_is_found_and_a_rebuilt_one_does_not() {
    for sql in ["UPDATE threads SET manifest = json_set(manifest, '$.title', 'another')", "DELETE FROM messages"] {
        let home = Home::new();
        let store = home.open();
        let thread = thread_with(&store, "ann", &[]);
        let message = Message::text(Role::User, "hello").with_id(MessageId::new("m1").unwrap());
        let told = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, told))).unwrap();
        store.close().unwrap();
        assert_eq!(codes(&look(&home, true)), []);
        let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
        assert_eq!(database.execute(sql, []).unwrap(), 1, "{sql}");
        drop(database);
        for deep in [false, true] {
            let report = look(&home, deep);
            let found = find(&report, "database_differs");
            assert!(
                found.severity == Severity::Damage && found.help.as_ref().unwrap().contains("selvedge reindex"),
                "{found:?}"
            );
        }
        let rebuild = Rebuild {
            project: home.folder.path().to_owned(),
            trust: home.trust(),
            signer: Some(home.signer()),
            disk: Arc::new(RealDisk),
        };
        LocalStore::reindex(&rebuild, &mut |_, _| {}).unwrap();
        home.open().close().unwrap();
        assert_eq!(codes(&look(&home, true)), [], "{sql}");
    }
}

#[test]
fn an_interrupted_import_is_reported() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "ann", &["hello"]);
    store.close().unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    for (complete, severity) in [("true", None), ("false", Some(Severity::Warning))] {
        let state = format!(r#"{{"mark":"","hash":"","state":{{"__import":{{"complete":{complete}}}}}}}"#);
        let sql = "INSERT OR REPLACE INTO states (thread, version, bytes, state) SELECT id, 1, 1, ? FROM threads";
        database.execute(sql, [state]).unwrap();
        let report = look(&home, false);
        let found = report.findings.iter().find(|found| found.code == "import_unfinished");
        assert_eq!(found.map(|found| found.severity), severity, "{:?}", report.findings);
        assert!(found.is_none_or(|found| found.subject == thread.as_str()));
    }
}

/// There was one finding for each thread.
#[test]
fn a_wrong_database_is_one_finding_however_many_threads_it_affects() {
    for sql in ["DELETE FROM messages", "UPDATE heads SET bytes = bytes + 1"] {
        let home = Home::new();
        let store = home.open();
        for name in ["ann", "bob", "eve"] {
            let thread = thread_with(&store, name, &[]);
            let message = Message::text(Role::User, "hello").with_id(MessageId::new("m1").unwrap());
            let told = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
            store.commit(Batch::of(Part::new(thread, Expect::Any, told))).unwrap();
        }
        store.close().unwrap();
        let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
        assert_eq!(database.execute(sql, []).unwrap(), 3, "{sql}");
        drop(database);
        for deep in [false, true] {
            let report = look(&home, deep);
            let damage: Vec<_> = report.findings.iter().filter(|found| found.severity == Severity::Damage).collect();
            assert_eq!(damage.len(), 1, "{sql}: {damage:?}");
            assert!(["`ann`", "`bob`", "`eve`"].iter().all(|name| damage[0].what.contains(name)), "{damage:?}");
        }
    }
}
