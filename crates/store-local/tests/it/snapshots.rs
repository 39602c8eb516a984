//! Snapshots on disk: complete or absent, older ones kept, and what they record about a log that was cut.

use std::fs;

use selvedge_log::document::sign_exact;
use selvedge_log::recovery::Finding;
use selvedge_model::ThreadId;
use selvedge_store::snapshot::{Disposal, KIND, SnapshotFolder};
use selvedge_store::{Commit, Error, Logs, Snapshots};
use selvedge_store_local::{Access, LocalStore, Repair, RepairStep, doctor};
use serde_json::{Value, json};

use crate::support::{Home, thread_with};

fn save(store: &LocalStore, thread: &ThreadId, what: &str) {
    let head = store.head(thread).unwrap();
    let seal = store.seal(thread, &head).unwrap();
    store
        .save(thread, &json!({"log_version": head.version, "log_hash": head.hash, "messages": [what], "seal": seal}))
        .unwrap();
}

/// Signs a snapshot with the right key and writes it as the newest.
fn forge(home: &Home, thread: &ThreadId, body: &Value) {
    let at = "2026-11-15T09:00:00Z".parse().unwrap();
    let text = sign_exact(KIND, thread.as_str(), body, &home.signer(), at).unwrap().0;
    fs::write(home.threads().join(thread.folder()).join("state.json"), text).unwrap();
}

fn append(store: &LocalStore, thread: &ThreadId) {
    use selvedge_model::{Batch, Changeset, Expect, Part, Reason};
    let changeset = Changeset::empty(Reason::Lifecycle);
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, changeset))).unwrap();
}

#[test]
fn the_newest_is_state_json_and_those_before_it_are_checkpoints() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    assert_eq!(store.list_snapshots(&one, "archive").unwrap(), []);
    for number in 0..3 {
        save(&store, &one, &format!("{number}"));
        append(&store, &one);
    }
    let kept = store.list_snapshots(&one, "archive").unwrap();
    let places: Vec<_> = kept.iter().map(|kept| kept.place).collect();
    assert_eq!(places, [SnapshotFolder::Newest, SnapshotFolder::Older, SnapshotFolder::Older]);
    let said: Vec<_> = kept
        .iter()
        .map(|kept| store.read_snapshot(&one, kept, "archive").unwrap().body().unwrap()["messages"][0].clone())
        .collect();
    assert_eq!(said, ["2", "1", "0"]);
    store.dispose(&one, &kept[..2], "archive", Disposal::Archive("archive")).unwrap();
    store.dispose(&one, &kept[2..], "archive", Disposal::Delete).unwrap();
    let places: Vec<_> = store.list_snapshots(&one, "archive").unwrap().iter().map(|kept| kept.place).collect();
    assert_eq!(places, [SnapshotFolder::Archived, SnapshotFolder::Archived]);
    assert!(fs::read_dir(home.threads().join("one/checkpoints")).unwrap().next().is_none());
}

#[test]
fn the_log_after_a_snapshot_is_returned_only_with_the_stores_own_seal() {
    use std::io::Read;
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    save(&store, &one, "x");
    let at = store.head(&one).unwrap();
    append(&store, &one);
    let kept = store.list_snapshots(&one, "archive").unwrap().remove(0);
    let body = store.read_snapshot(&one, &kept, "archive").unwrap().body().unwrap();
    let seal = body["seal"].as_str().unwrap();
    let mut behind = store.log_after(&one, &at, seal).unwrap().unwrap();
    let mut bytes = Vec::new();
    behind.bytes.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, fs::read(home.transcript(&one)).unwrap()[usize::try_from(at.bytes).unwrap()..]);
    assert_eq!((behind.hash.digest(), behind.head), (at.hash, store.head(&one).unwrap()));
    // For another position, or with a changed bit, the seal is invalid.
    let mut elsewhere = at.clone();
    elsewhere.version += 1;
    let flipped = format!("{}{}", if seal.starts_with('0') { '1' } else { '0' }, &seal[1..]);
    assert!(store.log_after(&one, &elsewhere, seal).unwrap().is_none());
    assert!(store.log_after(&one, &at, &flipped).unwrap().is_none());
    assert!(store.log_after(&one, &at, "no hex").unwrap().is_none());
}

#[test]
fn a_snapshot_that_records_more_than_the_log_shows_that_the_log_was_cut() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    let head = store.head(&one).unwrap();
    forge(&home, &one, &json!({"log_version": head.version + 2, "log_hash": head.hash}));
    let finding = store.verify(&one, &mut |_| {}).unwrap().judgement.finding;
    let cut = Finding::Truncated { have: Some(head.version), version: head.version + 2, by: "state.json".to_owned() };
    assert_eq!(finding, cut);
    let report = doctor::examine(home.options(Access::ReadOnly), doctor::Depth::Ends, &mut |_, _| {});
    assert!(report.findings.iter().any(|found| found.code == "truncated"), "{:?}", report.findings);
    drop(store);
    // Nothing is appended to a log that was cut, by any process.
    let store = home.open();
    use selvedge_model::{Batch, Changeset, Expect, Part, Reason};
    let part = Part::new(one.clone(), Expect::Any, Changeset::empty(Reason::Lifecycle));
    let refused = store.commit(Batch::of(part)).unwrap_err();
    assert!(matches!(refused, Error::Log { finding: Finding::Truncated { .. }, .. }), "{refused}");
    let repaired = store.repair(&one, Repair { accept_loss: true, dry_run: false }).unwrap();
    assert!(matches!(repaired.mended[0], RepairStep::Loss { to_version, .. } if to_version == head.version + 2));
    assert_eq!(store.verify(&one, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
}

#[test]
fn a_snapshot_of_another_log_is_a_contradiction_and_is_moved_aside() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    let head = store.head(&one).unwrap();
    forge(&home, &one, &json!({"log_version": head.version, "log_hash": "00".repeat(32)}));
    let finding = store.verify(&one, &mut |_| {}).unwrap().judgement.finding;
    assert!(matches!(&finding, Finding::Contradicted { by, .. } if by == "state.json"), "{finding:?}");
    let repaired = store.repair(&one, Repair { accept_loss: false, dry_run: false }).unwrap();
    assert!(matches!(&repaired.mended[..], [RepairStep::Snapshot { aside: Some(_), .. }]), "{:?}", repaired.mended);
    assert_eq!(store.verify(&one, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
}

#[test]
fn an_unsigned_snapshot_is_reported_by_doctor_and_does_no_harm() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    for bad in ["{", "{\"log_version\":99}", "", "{\"_signature\":\"selvedge:signed:1:state:x\",\"log_version\":99}"] {
        fs::write(home.threads().join("one/state.json"), bad).unwrap();
        assert_eq!(store.verify(&one, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
        let report = doctor::examine(home.options(Access::ReadOnly), doctor::Depth::Ends, &mut |_, _| {});
        assert!(report.findings.iter().any(|found| found.code == "snapshot_refused"), "{bad}: {:?}", report.findings);
        append(&store, &one);
    }
    // The next one replaces it, and a file that was not a snapshot is not kept.
    save(&store, &one, "good");
    assert_eq!(store.list_snapshots(&one, "archive").unwrap().len(), 1);
}

#[test]
fn a_file_in_place_of_the_newest_is_listed_first_and_never_becomes_an_older_one() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    let path = home.threads().join("one/state.json");
    save(&store, &one, "first");
    append(&store, &one);
    save(&store, &one, "second");
    let good = fs::read(&path).unwrap();
    let edited = String::from_utf8(good.clone()).unwrap().replace("second", "edited").into_bytes();
    let cuts = [0, 1, 50, 100, 200, good.len() - 2].map(|bytes| good[..bytes].to_vec());
    for bad in cuts.into_iter().chain([edited]) {
        fs::write(&path, &bad).unwrap();
        let kept = store.list_snapshots(&one, "archive").unwrap();
        assert_eq!((kept.len(), kept[0].place, kept[0].bytes), (2, SnapshotFolder::Newest, bad.len() as u64));
        assert!(store.read_snapshot(&one, &kept[0], "archive").is_err());
        save(&store, &one, "third");
        assert_eq!(store.list_snapshots(&one, "archive").unwrap().len(), 2, "{}", bad.len());
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("somebodys"), "mine").unwrap();
    let kept = store.list_snapshots(&one, "archive").unwrap();
    assert_eq!((kept.len(), kept[0].place, kept[0].is_snapshot()), (2, SnapshotFolder::Newest, false));
    assert!(store.read_snapshot(&one, &kept[0], "archive").is_err());
    save(&store, &one, "fourth");
    let kept = store.list_snapshots(&one, "archive").unwrap();
    assert_eq!(store.read_snapshot(&one, &kept[0], "archive").unwrap().body().unwrap()["messages"][0], "fourth");
    let beside = fs::read_dir(home.threads().join("one")).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(beside.filter(|path| path.join("somebodys").exists()).count(), 1);
}

#[test]
fn a_link_in_its_place_is_replaced_and_not_followed() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    let elsewhere = home.folder.path().join("elsewhere");
    fs::write(&elsewhere, "mine").unwrap();
    std::os::unix::fs::symlink(&elsewhere, home.threads().join("one/state.json")).unwrap();
    save(&store, &one, "x");
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
    assert!(!fs::symlink_metadata(home.threads().join("one/state.json")).unwrap().is_symlink());
    fs::create_dir_all(home.folder.path().join("out")).unwrap();
    std::os::unix::fs::symlink(home.folder.path().join("out"), home.threads().join("one/checkpoints")).unwrap();
    append(&store, &one);
    let head = store.head(&one).unwrap();
    assert!(store.save(&one, &json!({"log_version": head.version})).is_err());
    assert!(fs::read_dir(home.folder.path().join("out")).unwrap().next().is_none());
}

/// A backup has the logs and what can't be derived from them; snapshots are made again. A file called `archive` made the list fail, and it
/// was not reported why the snapshots of a completed thread were not archived.
#[test]
fn a_file_in_place_of_a_folder_has_no_snapshots_and_is_reported() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    save(&store, &one, "x");
    let file = home.threads().join("one/archive");
    fs::write(&file, "mine").unwrap();
    let kept = store.list_snapshots(&one, "archive").unwrap();
    assert_eq!(kept.len(), 1);
    let refused = store.dispose(&one, &kept, "archive", Disposal::Archive("archive")).unwrap_err();
    assert!(matches!(refused, Error::Unusable { .. }), "{refused}");
    assert_eq!(
        (store.list_snapshots(&one, "archive").unwrap(), fs::read(&file).unwrap()),
        (kept.clone(), b"mine".to_vec())
    );
    store.close().unwrap();
    let report = doctor::examine(home.options(Access::ReadOnly), doctor::Depth::Ends, &mut |_, _| {});
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].code, "snapshot_folder_refused");
    assert!(report.findings[0].what.contains("archive"), "{:?}", report.findings);
    // The hint helps.
    fs::remove_file(&file).unwrap();
    let store = home.open();
    store.dispose(&one, &kept, "archive", Disposal::Archive("archive")).unwrap();
    store.close().unwrap();
    let report = doctor::examine(home.options(Access::ReadOnly), doctor::Depth::Ends, &mut |_, _| {});
    assert_eq!(report.findings, []);
}

#[test]
fn copies_and_deletions_do_not_include_snapshots() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    save(&store, &one, "x");
    let mut archive = Vec::new();
    store.export(&one, &mut archive).unwrap();
    assert!(!archive.windows(10).any(|bytes| bytes == b"state.json"));
    store.delete(&one).unwrap();
    assert!(!home.threads().join("one").exists());
}
