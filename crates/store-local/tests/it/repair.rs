//! Every kind of file damaged in turn: what may be repaired is repaired, reported and signed; the rest is refused; and no log is ever
//! edited before its last checkpoint.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use selvedge_log::recovery::Finding;
use selvedge_model::event::{ManifestChanged, Recovery};
use selvedge_model::{
    Batch, Changeset, Classify, CommitKey, Event, Expect, Kind, Message, MessageId, Part, Reason, Role, RunId, Status,
    ThreadId,
};
use selvedge_store::load::load;
use selvedge_store::{Acquire, Commit, Error, Feed, Leases, Ledger, Logs, Registry};
use selvedge_store_local::{Access, LocalStore, Provisional, Repair, RepairStep, doctor};

use crate::reindex::{Dying, reindex};
use crate::support::{Home, id, says, thread_with};

const REPAIR: Repair = Repair { accept_loss: false, dry_run: false };
const ACCEPT: Repair = Repair { accept_loss: true, dry_run: false };

struct Sample {
    home: Home,
    thread: ThreadId,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Sample {
    /// A closed store with one thread at version 3.
    fn new() -> Self {
        let home = Home::new();
        let store = home.open();
        let thread = thread_with(&store, "scribe-0123456789ab", &["one", "two", "three"]);
        let mut ends = Vec::new();
        store.verify(&thread, &mut |entry| ends.push(entry.head.bytes as usize)).unwrap();
        store.close().unwrap();
        let bytes = fs::read(home.transcript(&thread)).unwrap();
        Self { home, thread, bytes, ends }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.threads().join(self.thread.folder()).join(name)
    }

    fn put(&self, bytes: &[u8]) {
        fs::write(self.home.transcript(&self.thread), bytes).unwrap();
    }

    /// The log begins with these bytes, is sound, and can be continued.
    fn assert_continues(&self, store: &LocalStore, beginning: &[u8], version: u64) {
        let now = fs::read(self.home.transcript(&self.thread)).unwrap();
        assert!(now.starts_with(beginning), "a log is never edited before its last checkpoint");
        let verdict = store.verify(&self.thread, &mut |_| {}).unwrap();
        assert_eq!(verdict.judgement.finding, Finding::Sound);
        assert_eq!(verdict.judgement.unchanged_up_to, Some(version));
        assert_eq!(append(store, &self.thread).unwrap(), version + 1);
        assert!(store.repair(&self.thread, REPAIR).unwrap().mended.is_empty(), "there is nothing left to repair");
        load(store, &self.thread, &self.home.trust(), None).unwrap();
    }

    fn recoveries(&self, store: &LocalStore) -> Vec<Recovery> {
        let lines = store.read(&self.thread, 0, 1000).unwrap();
        let found = lines.into_iter().filter_map(|line| match line.event {
            Event::Recovery(found) => Some(found),
            _ => None,
        });
        found.collect()
    }
}

fn append(store: &LocalStore, thread: &ThreadId) -> Result<u64, Error> {
    Ok(store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("next"))))?.versions[0].1)
}

#[test]
fn a_sound_thread_is_not_changed() {
    let sample = Sample::new();
    let store = sample.home.open();
    let repaired = store.repair(&sample.thread, ACCEPT).unwrap();
    assert_eq!((repaired.mended.len(), repaired.version), (0, 3));
    store.close().unwrap();
    assert_eq!(fs::read(sample.home.transcript(&sample.thread)).unwrap(), sample.bytes);
    let nothing = sample.home.open().repair(&id("missing-0123456789ab"), REPAIR);
    assert!(matches!(nothing, Err(Error::NoThread(_))));
}

/// A writer that sent a lost changeset again, under its key, was told that it was there.
#[test]
fn a_commit_of_a_lost_version_is_not_answered_as_if_it_were_there() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let proven = fs::read(home.transcript(&thread)).unwrap();
    let keyed = |text: &str, key: &str| {
        let part = Part::new(thread.clone(), Expect::Any, says(text));
        Batch::of(part).with_key(CommitKey::new(key).unwrap())
    };
    store.commit(keyed("two", "k2")).unwrap();
    assert!(store.commit(keyed("two", "k2")).unwrap().replayed);
    store.close().unwrap();
    fs::write(home.transcript(&thread), proven).unwrap();
    let store = home.open();
    store.repair(&thread, ACCEPT).unwrap();
    let refused = store.commit(keyed("two", "k2")).unwrap_err();
    assert!(matches!(refused, Error::VersionLost { version: 2, .. }), "{refused}");
    store.commit(keyed("two", "k2-again")).unwrap();
    assert!(store.commit(keyed("two", "k2-again")).unwrap().replayed);
    store.close().unwrap();
    let log = fs::read_to_string(home.transcript(&thread)).unwrap();
    assert_eq!(log.matches("\"text\":\"two\"").count() + log.matches("\"content\":\"two\"").count(), 1, "{log}");
}

#[test]
fn foreign_bytes_go_to_a_quarantine_file_and_the_log_records_that() {
    let sample = Sample::new();
    sample.put(&[&sample.bytes[..], b"garbage\nmore"].concat());
    let store = sample.home.open();
    let dry = store.repair(&sample.thread, Repair { dry_run: true, ..REPAIR }).unwrap();
    assert_eq!(dry.mended, [RepairStep::ForeignBytes { bytes: 12 }]);
    assert_eq!(store.head(&sample.thread).unwrap().version, 3, "nothing is done yet");
    let repaired = store.repair(&sample.thread, REPAIR).unwrap();
    assert_eq!((repaired.mended, repaired.version), (dry.mended, 4));
    assert_eq!(fs::read(sample.file("transcript.quarantine-3")).unwrap(), b"garbage\nmore");
    assert_eq!(sample.recoveries(&store)[0].quarantine.as_deref(), Some("transcript.quarantine-3"));
    sample.assert_continues(&store, &sample.bytes, 4);
}

#[test]
fn a_missing_or_invalid_manifest_is_moved_aside_and_written_again() {
    type Damage = fn(&str) -> Option<String>;
    let damages: [(&str, Damage); 3] = [
        ("missing", |_| None),
        ("changed", |text| Some(text.replace("\"log_version\"", "\"log_versions\""))),
        ("garbage", |_| Some("garbage".to_owned())),
    ];
    for (what, damage) in damages {
        let sample = Sample::new();
        let path = sample.file("thread.json");
        let damaged = damage(&fs::read_to_string(&path).unwrap());
        match &damaged {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let store = sample.home.open();
        let repaired = store.repair(&sample.thread, REPAIR).unwrap();
        let [RepairStep::Manifest { aside, .. }] = &repaired.mended[..] else { panic!("{what}: {repaired:?}") };
        let kept = aside.as_ref().map(|name| fs::read_to_string(sample.file(name)).unwrap());
        assert_eq!(kept, damaged, "{what}");
        assert!(sample.recoveries(&store)[0].found.starts_with("manifest"), "{what}");
        sample.assert_continues(&store, &sample.bytes, 4);
    }
}

#[test]
fn an_outdated_manifest_is_written_again() {
    let sample = Sample::new();
    let old = fs::read(sample.file("thread.json")).unwrap();
    let store = sample.home.open();
    let change = selvedge_model::event::ManifestChanged { title: Some("New".to_owned()), ..Default::default() };
    let changeset = selvedge_model::Changeset::of_event(Event::ManifestChanged(change));
    store.commit(Batch::of(Part::new(sample.thread.clone(), Expect::Any, changeset))).unwrap();
    store.close().unwrap();
    fs::write(sample.file("thread.json"), &old).unwrap();
    let store = sample.home.open();
    let repaired = store.repair(&sample.thread, REPAIR).unwrap();
    let [RepairStep::Manifest { aside: Some(aside), .. }] = &repaired.mended[..] else { panic!("{repaired:?}") };
    assert_eq!(fs::read(sample.file(aside)).unwrap(), old);
    assert!(fs::read_to_string(sample.file("thread.json")).unwrap().contains("\"New\""));
    sample.assert_continues(&store, &sample.bytes, 5);
}

#[test]
fn a_database_older_than_the_log_is_updated_from_it() {
    let sample = Sample::new();
    let database = sample.home.threads().join("registry.db");
    let old = fs::read(&database).unwrap();
    let store = sample.home.open();
    // Leases raise the epoch that the log is signed under above the old database's.
    for _ in 0..5 {
        let lease = store.acquire(&sample.thread, Acquire::default()).unwrap();
        let part = Part::new(sample.thread.clone(), Expect::Any, says("later")).under(lease.epoch);
        store.commit(Batch::of(part)).unwrap();
        store.release(&lease).unwrap();
    }
    store.close().unwrap();
    let whole = fs::read(sample.home.transcript(&sample.thread)).unwrap();
    fs::write(&database, old).unwrap();
    let store = sample.home.open();
    assert_eq!(append(&store, &sample.thread).unwrap_err().code(), "database_behind");
    let repaired = store.repair(&sample.thread, REPAIR).unwrap();
    assert_eq!((&repaired.mended[0], repaired.version), (&RepairStep::DatabaseBehind { database: 3, file: 8 }, 9));
    assert_eq!(store.get(&sample.thread).unwrap().version, 9);
    sample.assert_continues(&store, &whole, 9);
    store.close().unwrap();
    let before = sample.home.read_only().dump().unwrap();
    reindex(&sample.home);
    assert_eq!(sample.home.read_only().dump().unwrap(), before, "it equals a rebuilt one");
}

#[test]
fn a_cut_log_continues_only_if_the_loss_is_accepted_and_records_it_for_good() {
    for torn in [0, 40] {
        let sample = Sample::new();
        sample.put(&sample.bytes[..sample.ends[1] + torn]);
        let store = sample.home.open();
        let refused = store.repair(&sample.thread, REPAIR).unwrap_err();
        assert_eq!(refused.code(), "truncated");
        assert!(refused.hint().unwrap().contains("--accept-loss"), "{refused}: {:?}", refused.hint());
        assert_eq!(append(&store, &sample.thread).unwrap_err().kind(), Kind::Integrity);
        let repaired = store.repair(&sample.thread, ACCEPT).unwrap();
        let RepairStep::Loss { from_version: 2, to_version: 3, by } = &repaired.mended[0] else {
            panic!("{repaired:?}")
        };
        assert_eq!(by, "the database");
        assert_eq!(repaired.version, 4, "it continues after the recorded version");
        let recoveries = sample.recoveries(&store);
        let loss = recoveries.iter().find(|found| found.is_loss()).unwrap();
        assert_eq!((loss.from_version, loss.to_version), (Some(2), Some(3)));
        assert_eq!(loss.bytes as usize, sample.bytes.len() - sample.ends[1]);
        assert_eq!(recoveries.len(), if torn > 0 { 3 } else { 2 }, "{recoveries:?}");
        sample.assert_continues(&store, &sample.bytes[..sample.ends[1]], 4);
        let loaded = load(&store, &sample.thread, &sample.home.trust(), None).unwrap();
        assert_eq!(loaded.thread.messages.len(), 2, "one from before, one from after");
        store.close().unwrap();
        // It is the same in a rebuilt database.
        let before = sample.home.read_only().dump().unwrap();
        fs::remove_file(sample.home.threads().join("registry.db")).unwrap();
        reindex(&sample.home);
        let rows = |dump: &str| dump.replace(" | epoch 1", " | epoch _");
        assert_eq!(rows(&sample.home.read_only().dump().unwrap()), rows(&before));
    }
}

/// A loss that was accepted once is reported by every later verdict, of an export too, and by doctor.
#[test]
fn lost_versions_are_always_reported() {
    let sample = Sample::new();
    sample.put(&sample.bytes[..sample.ends[1]]);
    let store = sample.home.open();
    store.repair(&sample.thread, ACCEPT).unwrap();
    append(&store, &sample.thread).unwrap();
    let verdict = store.verify(&sample.thread, &mut |_| {}).unwrap();
    assert_eq!(verdict.judgement.finding, Finding::Sound);
    let lost: Vec<_> = verdict.lost.iter().map(|lost| (lost.from_version, lost.to_version)).collect();
    assert_eq!(lost, [(2, 3)]);
    let recorded = store.read(&sample.thread, 0, 100).unwrap().into_iter().find(|line| match &line.event {
        Event::Recovery(found) => found.is_loss(),
        _ => false,
    });
    assert_eq!(verdict.lost[0].since, recorded.unwrap().timestamp);
    assert_eq!(store.get(&sample.thread).unwrap().manifest.lost, verdict.lost);
    let mut archive = Vec::new();
    store.export(&sample.thread, &mut archive).unwrap();
    let exported =
        selvedge_store::archive::verify_archive(&mut std::io::Cursor::new(archive), &sample.home.trust(), &mut |_| {});
    assert_eq!(exported.unwrap().0.lost, verdict.lost);
    store.close().unwrap();
    fs::remove_file(sample.home.threads().join("registry.db")).unwrap();
    reindex(&sample.home);
    let report = doctor::examine(sample.home.options(Access::ReadOnly), doctor::Depth::Ends, &mut |_, _| {});
    let found: Vec<_> = report.findings.iter().filter(|found| found.code == "versions_lost").collect();
    assert!(found.len() == 1 && found[0].what.contains("versions 2 to 3"), "{report:?}");
    assert_eq!(report.worst(), Some(doctor::Severity::Note), "{report:?}");
}

/// The database has the postings of a lost version. Without it their effect is unknown: no ceiling rises.
#[test]
fn what_was_spent_in_lost_versions_stays_spent() {
    let (home, threads) = crate::family::with_budgets();
    let parent = &threads[0];
    let truth = home.read_only().account(parent).unwrap().unwrap();
    let mut ends = Vec::new();
    home.read_only().verify(parent, &mut |entry| ends.push(entry.head.bytes as usize)).unwrap();
    let whole = fs::read(home.transcript(parent)).unwrap();
    fs::write(home.transcript(parent), &whole[..ends[ends.len() - 2]]).unwrap();
    let store = home.open();
    store.repair(parent, ACCEPT).unwrap();
    assert_eq!(store.account(parent).unwrap().unwrap(), truth);
    let lines = store.read(parent, 0, 100).unwrap();
    let lost = lines.into_iter().find_map(|line| match line.event {
        Event::Recovery(found) if found.is_loss() => Some(found.postings),
        _ => None,
    });
    let lost = lost.unwrap();
    assert_eq!((lost.len(), &lost[0].account, lost[0].to), (1, parent, truth.version), "{lost:?}");
    store.close().unwrap();
    // With the old database the account is what it was; without it, nothing is left to be spent.
    for is_gone in [false, true] {
        if is_gone {
            fs::remove_file(home.threads().join("registry.db")).unwrap();
        }
        let rebuilt = reindex(&home);
        assert_eq!(rebuilt.incomplete_accounts.contains(parent), is_gone, "{rebuilt:?}");
        let account = home.read_only().account(parent).unwrap().unwrap();
        assert!(account.remaining() <= truth.remaining() && account.version == truth.version, "{account:?}");
    }
}

/// The log is cut back to a version at which the thread ran; its row and its manifest record that a person killed it since.
#[test]
fn a_thread_that_was_killed_in_a_lost_version_stays_killed() {
    for forgets_row in [false, true] {
        let sample = Sample::new();
        let store = sample.home.open();
        let older = fs::read(sample.home.threads().join("registry.db")).unwrap();
        let run = |status| {
            let meta = format!(r#"{{"agent_id":"scribe","origin":"user","status":"{status}","outcome":"killed"}}"#);
            let meta = if status == "done" { meta } else { meta.replace(r#","outcome":"killed""#, "") };
            Changeset {
                run_id: Some(RunId::new("r1").unwrap()),
                run_meta: Some(serde_json::from_str(&meta).unwrap()),
                ..Changeset::empty(if status == "done" { Reason::RunFinished } else { Reason::UserMessage })
            }
        };
        let commit = |changeset| store.commit(Batch::of(Part::new(sample.thread.clone(), Expect::Any, changeset)));
        commit(run("running")).unwrap();
        let proven = fs::read(sample.home.transcript(&sample.thread)).unwrap();
        commit(run("done")).unwrap();
        assert_eq!(store.get(&sample.thread).unwrap().manifest.status, Status::Killed);
        store.close().unwrap();
        sample.put(&proven);
        if forgets_row {
            fs::write(sample.home.threads().join("registry.db"), older).unwrap();
        }
        let store = sample.home.open();
        store.repair(&sample.thread, ACCEPT).unwrap();
        let manifest = store.get(&sample.thread).unwrap().manifest;
        assert_eq!((manifest.status, manifest.run_id), (Status::Killed, None), "{forgets_row}");
        assert_eq!(store.verify(&sample.thread, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
        store.close().unwrap();
    }
}

#[test]
fn content_of_a_snapshot_is_restored_once_and_marked_as_provisional() {
    let sample = Sample::new();
    sample.put(&sample.bytes[..sample.ends[1]]);
    let store = sample.home.open();
    let message = |text: &str, id: &str| Message::text(Role::User, text).with_id(MessageId::new(id).unwrap());
    let held = Provisional {
        name: "state.json".to_owned(),
        log_version: 3,
        log_hash: selvedge_log::hash::sha256(b"then"),
        messages: vec![Message::text(Role::User, "one"), message("two", "m2"), message("three", "m3")],
        state: serde_json::json!({"answered": true}),
    };
    let dry = store.repair_from(&sample.thread, Repair { dry_run: true, ..ACCEPT }, Some(&held)).unwrap();
    let repaired = store.repair_from(&sample.thread, ACCEPT, Some(&held)).unwrap();
    let brought = RepairStep::Provisional { log_version: 3, messages: 2, by: "state.json".to_owned() };
    assert!(dry.mended.contains(&brought) && repaired.mended.contains(&brought), "{repaired:?}");
    let loaded = load(&store, &sample.thread, &sample.home.trust(), None).unwrap();
    assert_eq!(loaded.thread.messages.len(), 3);
    assert_eq!(loaded.thread.state, held.state);
    let notes = store.read(&sample.thread, 0, 100).unwrap().into_iter().filter_map(|line| match line.event {
        Event::StateAction(action) => Some(serde_json::json!(action)),
        _ => None,
    });
    let notes: Vec<_> = notes.collect();
    assert_eq!((notes.len(), &notes[0]["provisional"]["log_version"]), (1, &3.into()), "{notes:?}");
    let again = store.repair_from(&sample.thread, ACCEPT, Some(&held)).unwrap();
    assert!(again.mended.is_empty(), "{again:?}");
    let other = Provisional { log_version: 1, ..held };
    assert!(store.repair_from(&sample.thread, ACCEPT, Some(&other)).unwrap().mended.is_empty(), "it is not lost");
    store.close().unwrap();
}

/// Both at once: the database was replaced by an older one, and the end of the log is lost. The versions of a thread in the feed, after
/// checking their lines: they are consecutive and give each changeset.
fn feed_versions(store: &LocalStore, thread: &ThreadId) -> Vec<u64> {
    let told: Vec<_> = store.after(0, 100).unwrap().into_iter().filter(|told| told.thread == *thread).collect();
    let mut end = 0;
    for told in &told {
        assert_eq!(told.first_line, end, "{told:?}");
        end += told.lines;
        let lines = store.read(thread, told.first_line, usize::try_from(told.lines).unwrap()).unwrap();
        let versions: Vec<_> = lines
            .iter()
            .filter_map(|line| match &line.event {
                Event::Checkpoint(checkpoint) => Some(checkpoint.version),
                _ => None,
            })
            .collect();
        assert_eq!(versions, [told.version], "{told:?}");
    }
    assert_eq!(end, store.head(thread).unwrap().lines);
    told.iter().map(|told| told.version).collect()
}

#[test]
fn the_feed_has_every_proven_version_after_an_older_database() {
    let sample = Sample::new();
    let store = sample.home.open();
    let other = thread_with(&store, "other-ba9876543210", &["hello"]);
    store.close().unwrap();
    let database = sample.home.threads().join("registry.db");
    let older = fs::read(&database).unwrap();
    let store = sample.home.open();
    for _ in 4..=5 {
        append(&store, &sample.thread).unwrap();
    }
    let proven = fs::read(sample.home.transcript(&sample.thread)).unwrap();
    let title = ManifestChanged { title: Some("remembered".to_owned()), ..Default::default() };
    let renamed = Changeset::of_event(Event::ManifestChanged(title));
    store.commit(Batch::of(Part::new(sample.thread.clone(), Expect::Any, renamed))).unwrap();
    store.close().unwrap();
    fs::write(&database, older).unwrap();
    sample.put(&proven);
    let store = sample.home.open();
    let repaired = store.repair(&sample.thread, ACCEPT).unwrap();
    assert!(matches!(repaired.mended[0], RepairStep::Loss { from_version: 6, to_version: 6, .. }), "{repaired:?}");
    append(&store, &other).unwrap();
    assert_eq!(feed_versions(&store, &sample.thread), [0, 1, 2, 3, 4, 5, 7]);
    store.close().unwrap();
}

#[test]
fn after_a_failure_at_any_call_a_second_run_completes() {
    let damages: [fn(&Sample); 3] = [
        |sample| sample.put(&[&sample.bytes[..], b"garbage"].concat()),
        |sample| fs::write(sample.file("thread.json"), "garbage").unwrap(),
        |sample| sample.put(&sample.bytes[..sample.ends[1] + 40]),
    ];
    for (case, damage) in damages.iter().enumerate() {
        for calls in 0.. {
            let sample = Sample::new();
            damage(&sample);
            let left = Arc::new(AtomicI64::new(i64::MAX));
            let mut options = sample.home.options(Access::ReadWrite);
            options.disk = Arc::new(Dying(left.clone()));
            let store = LocalStore::open(options).unwrap();
            left.store(calls, Ordering::SeqCst);
            let tried = store.repair(&sample.thread, ACCEPT);
            drop(store);
            let store = sample.home.open();
            store.repair(&sample.thread, ACCEPT).unwrap();
            let proven = if case == 2 { sample.ends[1] } else { sample.bytes.len() };
            let now = fs::read(sample.home.transcript(&sample.thread)).unwrap();
            assert!(now.starts_with(&sample.bytes[..proven]), "case {case}, {calls} calls");
            let verdict = store.verify(&sample.thread, &mut |_| {}).unwrap();
            assert_eq!(verdict.judgement.finding, Finding::Sound, "case {case}, {calls} calls: {tried:?}");
            let lost = sample.recoveries(&store).iter().filter(|found| found.is_loss()).count();
            let version = append(&store, &sample.thread).unwrap();
            assert_eq!((lost, version >= 4), (usize::from(case == 2), true), "case {case}, {calls} calls");
            if tried.is_ok() && left.load(Ordering::SeqCst) > 0 {
                assert!(calls > 2, "case {case}: {calls} calls");
                break;
            }
        }
    }
}

#[test]
fn a_log_without_a_single_proven_version_is_not_continued() {
    let sample = Sample::new();
    for length in [0, sample.ends[0] - 1] {
        sample.put(&sample.bytes[..length]);
        let store = sample.home.open();
        assert_eq!(store.repair(&sample.thread, ACCEPT).unwrap_err().code(), "truncated");
        drop(store);
        assert_eq!(fs::read(sample.home.transcript(&sample.thread)).unwrap(), sample.bytes[..length]);
    }
}

#[test]
fn damage_before_the_last_checkpoint_is_never_edited() {
    let sample = Sample::new();
    for at in [10, sample.ends[0] + 5, sample.ends[1] + 5, sample.ends[2] + 5, sample.bytes.len() - 20] {
        let mut damaged = sample.bytes.clone();
        damaged[at] ^= 1;
        sample.put(&damaged);
        let store = sample.home.open();
        for how in [REPAIR, ACCEPT] {
            let refused = store.repair(&sample.thread, how).unwrap_err();
            assert_eq!(refused.code(), "log_damaged", "byte {at}");
        }
        store.close().unwrap();
        assert_eq!(fs::read(sample.home.transcript(&sample.thread)).unwrap(), damaged, "byte {at}");
    }
}

#[test]
fn a_log_without_rows_is_indexed() {
    let sample = Sample::new();
    let database = rusqlite::Connection::open(sample.home.threads().join("registry.db")).unwrap();
    for (table, column) in
        [("redo", "thread"), ("messages", "thread"), ("feed", "thread"), ("heads", "id"), ("threads", "id")]
    {
        database.execute(&format!("DELETE FROM {table} WHERE {column} > 0"), []).unwrap();
    }
    drop(database);
    let store = sample.home.open();
    assert!(matches!(store.head(&sample.thread), Err(Error::NoThread(_))));
    let repaired = store.repair(&sample.thread, REPAIR).unwrap();
    assert_eq!((&repaired.mended[0], repaired.version), (&RepairStep::NotIndexed { version: 3 }, 4));
    sample.assert_continues(&store, &sample.bytes, 4);
}

#[test]
fn a_leased_thread_is_not_repaired() {
    let sample = Sample::new();
    sample.put(&[&sample.bytes[..], b"garbage"].concat());
    let ours = sample.home.open();
    let theirs = sample.home.open();
    let lease = theirs.acquire(&sample.thread, Acquire::default()).unwrap();
    let refused = ours.repair(&sample.thread, REPAIR).unwrap_err();
    assert!(matches!(&refused, Error::LeaseHeld { holder, .. } if holder == theirs.owner()), "{refused}");
    theirs.release(&lease).unwrap();
    assert_eq!(ours.repair(&sample.thread, REPAIR).unwrap().version, 4);
    theirs.acquire(&sample.thread, Acquire::default()).unwrap();
}
