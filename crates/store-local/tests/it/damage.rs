//! Every kind of damage to a log of a closed store: nothing is accepted, and the versions that are still proven are reported.

use std::fs;

use selvedge_log::recovery::Finding;
use selvedge_model::{AgentId, Batch, Changeset, Classify, Expect, Kind, Part, Reason, RunId, RunMeta, ThreadId};
use selvedge_store::load::load;
use selvedge_store::{Commit, Error};
use selvedge_store_local::doctor::{Depth, examine};
use selvedge_store_local::{Access, LocalStore, Repair};

use crate::reindex::reindex;
use crate::support::{Home, birth, id, says, thread_with};

/// A closed store with one small thread, its bytes and the ends of its changesets.
struct Sample {
    home: Home,
    thread: ThreadId,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Sample {
    fn new() -> Self {
        let home = Home::new();
        let store = home.open();
        let thread = thread_with(&store, "scribe-0123456789ab", &["one", "two"]);
        let mut ends = Vec::new();
        store.verify(&thread, &mut |entry| ends.push(entry.head.bytes as usize)).unwrap();
        store.close().unwrap();
        let bytes = fs::read(home.transcript(&thread)).unwrap();
        Self { home, thread, bytes, ends }
    }

    /// The finding for other bytes in place of the log, and the version up to which they are reported as unchanged.
    fn judge(&self, store: &LocalStore, bytes: &[u8]) -> (Finding, Option<u64>) {
        fs::write(self.home.transcript(&self.thread), bytes).unwrap();
        let judgement = store.verify(&self.thread, &mut |_| {}).unwrap().judgement;
        (judgement.finding, judgement.unchanged_up_to)
    }

    /// The newest version whose bytes are all unchanged.
    fn untouched(&self, bytes: &[u8]) -> Option<u64> {
        let same = bytes.iter().zip(&self.bytes).take_while(|(a, b)| a == b).count();
        self.ends.iter().rposition(|end| *end <= same).map(|version| version as u64)
    }

    /// Nothing of `bytes` is accepted, by verification or by loading, and exactly the unchanged versions are proven.
    fn assert_refused(&self, store: &LocalStore, bytes: &[u8], what: &str) {
        let (finding, unchanged) = self.judge(store, bytes);
        assert_ne!(finding, Finding::Sound, "{what}");
        assert_eq!(unchanged, self.untouched(bytes), "{what}: {finding:?}");
        let foreign = matches!(finding, Finding::Foreign { .. });
        let loaded = load(store, &self.thread, &self.home.trust(), None);
        assert_eq!(loaded.is_ok(), foreign, "{what}: {finding:?}");
    }

    fn lines(&self) -> Vec<Vec<u8>> {
        self.bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }
}

#[test]
fn every_flipped_bit_is_found_and_located() {
    let sample = Sample::new();
    let store = sample.home.read_only();
    for at in 0..sample.bytes.len() {
        for bit in 0..8 {
            let mut bytes = sample.bytes.clone();
            bytes[at] ^= 1 << bit;
            let (finding, unchanged) = sample.judge(&store, &bytes);
            let Finding::Damaged(damage) = &finding else { panic!("byte {at} bit {bit}: {finding:?}") };
            assert_eq!(unchanged, sample.untouched(&bytes), "byte {at} bit {bit}: {finding:?}");
            assert_eq!(damage.version, unchanged.map_or(0, |version| version + 1), "byte {at} bit {bit}: {finding:?}");
            let start = damage.byte as usize;
            assert!(
                start <= sample.bytes.len() && damage.first_line() <= damage.line,
                "byte {at} bit {bit}: {finding:?}"
            );
        }
    }
}

#[test]
fn every_truncation_is_found() {
    let sample = Sample::new();
    let store = sample.home.read_only();
    for length in 0..sample.bytes.len() {
        let (finding, unchanged) = sample.judge(&store, &sample.bytes[..length]);
        assert!(matches!(&finding, Finding::Truncated { version: 2, .. }), "{length}: {finding:?}");
        assert_eq!(unchanged, sample.untouched(&sample.bytes[..length]), "{length}");
    }
}

#[test]
fn a_line_removed_doubled_or_swapped_is_found() {
    let sample = Sample::new();
    let store = sample.home.read_only();
    let lines = sample.lines();
    for at in 0..lines.len() {
        let mut removed = lines.clone();
        removed.remove(at);
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at].clone());
        sample.assert_refused(&store, &removed.concat(), &format!("line {at} removed"));
        sample.assert_refused(&store, &doubled.concat(), &format!("line {at} doubled"));
        for other in at + 1..lines.len() {
            let mut swapped = lines.clone();
            swapped.swap(at, other);
            sample.assert_refused(&store, &swapped.concat(), &format!("lines {at} and {other} swapped"));
        }
    }
}

#[test]
fn lines_of_another_thread_of_the_same_key_are_found() {
    let sample = Sample::new();
    let store = sample.home.open();
    let other = thread_with(&store, "scribe-ba9876543210", &["one", "two"]);
    store.close().unwrap();
    let theirs = fs::read(sample.home.transcript(&other)).unwrap();
    let their_lines: Vec<_> = theirs.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let store = sample.home.read_only();
    let lines = sample.lines();
    for at in 0..lines.len() {
        let mut spliced = lines.clone();
        spliced[at] = their_lines[at].clone();
        sample.assert_refused(&store, &spliced.concat(), &format!("line {at} of another thread"));
        let renamed =
            String::from_utf8(their_lines[at].clone()).unwrap().replace(other.as_str(), sample.thread.as_str());
        spliced[at] = renamed.into_bytes();
        sample.assert_refused(&store, &spliced.concat(), &format!("line {at} of another thread, renamed"));
    }
    sample.assert_refused(&store, &theirs, "the whole log of another thread");
    let renamed = String::from_utf8(theirs).unwrap().replace(other.as_str(), sample.thread.as_str());
    sample.assert_refused(&store, renamed.as_bytes(), "the whole log of another thread, renamed");
}

#[test]
fn a_log_without_its_checkpoints_is_refused() {
    let sample = Sample::new();
    let store = sample.home.read_only();
    let stripped = sample.lines().into_iter().filter(|line| !line.windows(10).any(|part| part == b"checkpoint"));
    sample.assert_refused(&store, &stripped.collect::<Vec<_>>().concat(), "all checkpoints stripped");
    sample.assert_refused(&store, b"", "empty");
    fs::remove_file(sample.home.transcript(&sample.thread)).unwrap();
    let judgement = store.verify(&sample.thread, &mut |_| {}).unwrap().judgement;
    assert!(matches!(judgement.finding, Finding::Truncated { have: None, .. }), "{judgement:?}");
}

#[test]
fn an_append_to_a_damaged_log_never_signs_the_damage() {
    let sample = Sample::new();
    let mut bytes = sample.bytes.clone();
    let at = sample.ends[0] + bytes[sample.ends[0]..].windows(3).position(|part| part == b"one").unwrap();
    bytes[at] = b'O';
    fs::write(sample.home.transcript(&sample.thread), &bytes).unwrap();
    let store = sample.home.open();
    // The saved hash continues the signed bytes, so an append neither hides nor adopts the change.
    _ = store.commit(Batch::of(Part::new(sample.thread.clone(), Expect::Any, says("three"))));
    let judgement = store.verify(&sample.thread, &mut |_| {}).unwrap().judgement;
    assert!(matches!(&judgement.finding, Finding::Damaged(damage) if damage.version == 1), "{judgement:?}");
    assert_eq!(judgement.unchanged_up_to, Some(0));
}

#[test]
fn a_forged_saved_hash_is_not_used() {
    let sample = Sample::new();
    // The log is edited and, in the database, the hash that the next commit would continue from.
    let mut bytes = sample.bytes.clone();
    let at = bytes.windows(3).position(|part| part == b"two").unwrap();
    bytes[at] = b'T';
    fs::write(sample.home.transcript(&sample.thread), &bytes).unwrap();
    let database = rusqlite::Connection::open(sample.home.threads().join("registry.db")).unwrap();
    let mut hash = selvedge_log::hash::RunningHash::new();
    hash.update(&bytes);
    let forged = selvedge_log::Signer::generate(&selvedge_store_local::system::SystemIds).seal_key();
    let head = sample.home.read_only();
    let head = selvedge_store::Logs::head(&head, &sample.thread).unwrap();
    let binding = selvedge_log::hash::Binding {
        log_id: head.log_id.as_str(),
        segment: 0,
        version: head.version,
        offset: head.bytes,
    };
    let sealed = forged.seal(&binding, &hash);
    database.execute("UPDATE heads SET sealed = ?, hash = ?", (sealed, &hash.digest().0[..])).unwrap();
    drop(database);
    let store = sample.home.open();
    let refused = store.commit(Batch::of(Part::new(sample.thread.clone(), Expect::Any, says("three")))).unwrap_err();
    assert_eq!(refused.kind(), Kind::Integrity, "{refused}");
    assert_eq!(fs::read(sample.home.transcript(&sample.thread)).unwrap(), bytes);
}

#[test]
fn with_redo_pending_a_cut_is_healed_and_reported() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one", "two"]);
    let whole = fs::read(home.transcript(&thread)).unwrap();
    drop(store);
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        fs::write(home.transcript(&thread), &whole[..length]).unwrap();
        let reader = home.read_only();
        let verdict = reader.verify(&thread, &mut |_| {}).unwrap();
        assert_eq!(verdict.judgement.finding, Finding::Sound, "{length}");
        assert!(verdict.healed_bytes as usize >= whole.len() - length, "{length}");
        assert_eq!(fs::read(home.transcript(&thread)).unwrap().len(), length, "verification writes nothing");
    }
    let store = home.open();
    assert_eq!((store.opened().drained_threads, store.opened().drained_bytes), (1, 1));
    assert_eq!(fs::read(home.transcript(&thread)).unwrap(), whole);
    store.close().unwrap();
}

/// It was reported as a crash whenever another process was between its commit and its file.
#[test]
fn bytes_that_a_live_process_has_not_written_yet_are_no_crash() {
    let home = Home::new();
    let live = home.open();
    let thread = thread_with(&live, "scribe-0123456789ab", &["one", "two"]);
    let whole = fs::read(home.transcript(&thread)).unwrap();
    fs::write(home.transcript(&thread), &whole[..whole.len() - 40]).unwrap();
    let other = home.open();
    assert_eq!(fs::read(home.transcript(&thread)).unwrap(), whole);
    assert_eq!((other.opened().drained_threads, other.opened().drained_bytes), (0, 0), "the process lives");
    other.close().unwrap();
    live.close().unwrap();
}

#[test]
fn foreign_bytes_are_quarantined_by_the_next_append_which_records_that() {
    let sample = Sample::new();
    for tail in [&b"garbage"[..], b"{\"seq\":5}\n", b"\0\0\0\0\n\0", &sample.lines()[2]] {
        let before = fs::read(sample.home.transcript(&sample.thread)).unwrap();
        fs::write(sample.home.transcript(&sample.thread), [&before, tail].concat()).unwrap();
        let store = sample.home.open();
        let verdict = store.verify(&sample.thread, &mut |_| {}).unwrap();
        assert_eq!(verdict.judgement.finding, Finding::Foreign { bytes: tail.len() as u64 });
        store.commit(Batch::of(Part::new(sample.thread.clone(), Expect::Any, says("more")))).unwrap();
        let verdict = store.verify(&sample.thread, &mut |_| {}).unwrap();
        assert_eq!(verdict.judgement.finding, Finding::Sound);
        store.close().unwrap();
        let after = fs::read(sample.home.transcript(&sample.thread)).unwrap();
        let added = String::from_utf8(after[before.len()..].to_vec()).unwrap();
        assert!(added.contains(r#""event_type":"recovery""#), "{added}");
        let folder = sample.home.threads().join(sample.thread.folder());
        let kept = fs::read_dir(folder).unwrap().flatten().filter(|entry| {
            entry.file_name().to_string_lossy().contains("quarantine") && fs::read(entry.path()).unwrap() == tail
        });
        assert_eq!(kept.count(), 1, "the bytes are kept beside the log");
    }
}

/// A line of more than 8 MiB was taken for a torn one, and the signed versions after it for unsigned bytes: they were moved away, and
/// others were signed in their place.
#[test]
fn signed_versions_after_an_overlong_line_are_damage_and_are_not_moved() {
    for line in [&vec![b'x'; 9 << 20][..], b"garbage", b"{}"] {
        for (has_end, is_rebuilt) in [(true, true), (false, true), (true, false)] {
            let sample = Sample::new();
            let end: &[u8] = if has_end { b"\n" } else { b"" };
            let damaged = [&sample.bytes[..sample.ends[0]], line, end, &sample.bytes[sample.ends[0]..]].concat();
            fs::write(sample.home.transcript(&sample.thread), &damaged).unwrap();
            if is_rebuilt {
                fs::remove_file(sample.home.threads().join("registry.db")).unwrap();
                let left_out = reindex(&sample.home).left_out;
                assert!(left_out.iter().any(|one| one.why.contains("up to version 2")), "{left_out:?}");
            }
            let store = sample.home.open();
            let refused = store.commit(Batch::of(Part::new(sample.thread.clone(), Expect::Any, says("three"))));
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), Kind::Integrity, "{refused}");
            let repaired = store.repair(&sample.thread, Repair { accept_loss: true, ..Repair::default() });
            assert_eq!(repaired.unwrap_err().kind(), Kind::Integrity);
            let finding = store.verify(&sample.thread, &mut |_| {}).unwrap().judgement.finding;
            assert!(matches!(&finding, Finding::Damaged(damage) if damage.signed_after() == Some(2)), "{finding:?}");
            store.close().unwrap();
            assert_eq!(fs::read(sample.home.transcript(&sample.thread)).unwrap(), damaged, "not a byte is moved");
        }
    }
}

/// The row of a thread is its own, with a valid seal, of an earlier version; a line was inserted between that version and the next.
#[test]
fn signed_versions_after_an_outdated_head_are_never_moved_away() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let older = fs::read(home.threads().join("registry.db")).unwrap();
    let end = fs::metadata(home.transcript(&thread)).unwrap().len() as usize;
    let store = home.open();
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(1), says("two")))).unwrap();
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(2), says("three")))).unwrap();
    store.close().unwrap();
    let whole = fs::read(home.transcript(&thread)).unwrap();
    for line in [&b""[..], b"garbage\n", b"garbage"] {
        fs::write(home.threads().join("registry.db"), &older).unwrap();
        let found = [&whole[..end], line, &whole[end..]].concat();
        fs::write(home.transcript(&thread), &found).unwrap();
        let store = home.open();
        let refused = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("four")))).unwrap_err();
        let is_named = match &refused {
            Error::Log { finding: Finding::Damaged(damage), .. } => damage.signed_after() == Some(3),
            Error::Log { finding, .. } => *finding == Finding::DatabaseBehind { database: 1, file: 3 },
            _ => false,
        };
        assert!(is_named, "{refused}");
        store.close().unwrap();
        assert_eq!(fs::read(home.transcript(&thread)).unwrap(), found, "not a byte is moved");
        let folder = fs::read_dir(home.threads().join(thread.folder())).unwrap().flatten();
        assert!(folder.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains("quarantine")));
    }
}

/// A signed line of the log that is repeated proves nothing about what follows: it is not a version after the existing ones.
#[test]
fn an_older_checkpoint_after_the_end_is_foreign() {
    let sample = Sample::new();
    let doubled = [&sample.bytes[..], &sample.lines()[3]].concat();
    let finding = sample.judge(&sample.home.read_only(), &doubled).0;
    assert!(matches!(finding, Finding::Foreign { .. }), "{finding:?}");
}

#[test]
fn a_database_older_than_the_log_is_refused() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let old = fs::read(home.threads().join("registry.db")).unwrap();
    let store = home.open();
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(1), says("two")))).unwrap();
    store.close().unwrap();
    fs::write(home.threads().join("registry.db"), old).unwrap();
    let store = home.open();
    let refused = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("three")))).unwrap_err();
    let found = Finding::DatabaseBehind { database: 1, file: 2 };
    assert!(matches!(&refused, Error::Log { finding, .. } if *finding == found), "{refused}");
    assert_eq!(store.verify(&thread, &mut |_| {}).unwrap().judgement.finding, found);
}

/// `thread.json` and `state.json` remember what the log still has: doctor said that the log was cut off, and advised to give up what is there.
#[test]
fn a_log_that_goes_on_after_an_older_head_is_not_called_cut_off() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let old = fs::read(home.threads().join("registry.db")).unwrap();
    let store = home.open();
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(1), says("two")))).unwrap();
    let status = Changeset {
        run_id: Some(RunId::new("r1").unwrap()),
        run_meta: Some(RunMeta::started(AgentId::new("scribe").unwrap(), "user")),
        ..Changeset::empty(Reason::UserMessage)
    };
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(2), status))).unwrap();
    store.close().unwrap();
    fs::write(home.threads().join("registry.db"), old).unwrap();
    let report = examine(home.options(Access::ReadOnly), Depth::Ends, &mut |_, _| {});
    let codes: Vec<_> = report.findings.iter().map(|finding| finding.code).collect();
    assert!(codes.contains(&"database_behind"), "{codes:?}");
    assert!(!codes.contains(&"truncated"), "{:?}", report.findings);
    // A log that ends before what they remember is cut off, also with an older head.
    let whole = fs::read_to_string(home.transcript(&thread)).unwrap();
    let second = whole.match_indices("\"event_type\":\"checkpoint\"").nth(2).unwrap().0;
    let end = second + whole[second..].find('\n').unwrap() + 1;
    fs::write(home.transcript(&thread), &whole[..end]).unwrap();
    let report = examine(home.options(Access::ReadOnly), Depth::Ends, &mut |_, _| {});
    assert!(report.findings.iter().any(|finding| finding.code == "truncated"), "{:?}", report.findings);
}

#[test]
fn a_log_and_database_that_are_both_replaced_by_older_ones_are_detected_by_the_manifest() {
    let home = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let old = (fs::read(home.threads().join("registry.db")).unwrap(), fs::read(home.transcript(&thread)).unwrap());
    let store = home.open();
    let title = selvedge_model::event::ManifestChanged { title: Some("t".to_owned()), ..Default::default() };
    let renamed = selvedge_model::Changeset::of_event(selvedge_model::Event::ManifestChanged(title));
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(1), renamed))).unwrap();
    store.close().unwrap();
    fs::write(home.threads().join("registry.db"), old.0).unwrap();
    fs::write(home.transcript(&thread), old.1).unwrap();
    let store = home.read_only();
    let finding = store.verify(&thread, &mut |_| {}).unwrap().judgement.finding;
    assert!(matches!(&finding, Finding::Truncated { version: 2, by, .. } if by == "thread.json"), "{finding:?}");
}

#[test]
fn a_changed_manifest_is_refused() {
    let sample = Sample::new();
    let path = sample.home.threads().join(sample.thread.folder()).join("thread.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"agent_id\": \"scribe\"", "\"agent_id\": \"crook\"")).unwrap();
    let store = sample.home.read_only();
    let judgement = store.verify(&sample.thread, &mut |_| {}).unwrap().judgement;
    assert!(matches!(&judgement.finding, Finding::Contradicted { by, .. } if by == "thread.json"), "{judgement:?}");
    assert_eq!(judgement.unchanged_up_to, Some(2), "the log itself is valid");
}

#[test]
fn a_log_signed_by_an_unknown_key_is_not_trusted() {
    let home = Home::new();
    let stranger = Home::new();
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    store.close().unwrap();
    let mut options = home.options(Access::ReadWrite);
    options.trust = stranger.trust();
    options.signer = Some(stranger.signer());
    fs::remove_file(home.threads().join(thread.folder()).join("thread.json")).unwrap();
    let store = LocalStore::open(options).unwrap();
    let finding = store.verify(&thread, &mut |_| {}).unwrap().judgement.finding;
    assert!(matches!(&finding, Finding::Damaged(damage) if damage.code() == "untrusted_key"), "{finding:?}");
    let refused = store.commit(Batch::of(Part::new(thread, Expect::Any, says("two")))).unwrap_err();
    assert_eq!(refused.code(), "other_signer", "{refused}");
    store.commit(birth(&id("other"))).unwrap();
}
