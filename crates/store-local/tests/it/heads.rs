//! Lists of heads kept elsewhere: what they detect that nothing inside a store can show, and what they must not report.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use selvedge_log::recovery::Finding;
use selvedge_log::{Signer, Trust};
use selvedge_model::account::Posting;
use selvedge_model::{Batch, Changeset, Expect, Money, Part, Reason, ThreadId};
use selvedge_store::Commit;
use selvedge_store::heads::{Comparison, Depth, Difference, Heads};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::SystemIds;
use selvedge_store_local::{Access, LocalStore, Options};

use crate::support::{Home, birth, id, says, thread_with};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn say(store: &LocalStore, thread: &ThreadId, text: &str) {
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says(text)))).unwrap();
}

fn post(store: &LocalStore, thread: &ThreadId, posting: Posting) {
    let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Reserved));
    store.commit(Batch::of(Part { postings: vec![posting], ..part })).unwrap();
}

fn open(thread: &ThreadId) -> Posting {
    Posting::Open { account: thread.clone(), parent: None, max: Some(Money::from_nanos(1_000_000).unwrap()) }
}

fn raise(thread: &ThreadId, nanos: i64) -> Posting {
    Posting::Raise { account: thread.clone(), max: Money::from_nanos(nanos).unwrap() }
}

/// A store that is opened for reading, without a key.
fn without_key(home: &Home) -> LocalStore {
    LocalStore::open(Options { signer: None, ..home.options(Access::ReadOnly) }).unwrap()
}

fn current_heads(store: &LocalStore) -> Heads {
    let current = store.heads().unwrap();
    assert!(current.left_out.is_empty(), "{current:?}");
    current.heads
}

fn differences(compared: &Comparison) -> Vec<(&str, Difference)> {
    compared.differs.iter().map(|differs| (differs.thread.as_str(), differs.how.clone())).collect()
}

/// Logs and database together, as a snapshot of the file system leaves them: every log verifies, and only a list that was kept elsewhere
/// detects it.
#[test]
fn a_store_that_is_rolled_back_as_a_whole_is_detected_only_by_a_list() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one-0123456789ab", &["hello"]);
    post(&store, &one, open(&one));
    store.close().unwrap();
    let before = home.folder.path().join("before");
    copy(&home.threads(), &before);
    let store = home.open();
    say(&store, &one, "more");
    post(&store, &one, raise(&one, 2_000_000));
    let two = thread_with(&store, "two-0123456789ab", &[]);
    let text = store.sign_heads(&current_heads(&store)).unwrap();
    store.close().unwrap();

    let heads = Heads::read(text.as_bytes(), &home.trust()).unwrap().heads;
    assert_eq!(without_key(&home).compare_heads(&heads, Depth::Whole).differs, [], "nothing is older yet");

    fs::remove_dir_all(home.threads()).unwrap();
    copy(&before, &home.threads());
    let store = without_key(&home);
    assert_eq!(store.verify(&one, &mut |_| {}).unwrap().judgement.finding, Finding::Sound);
    for depth in [Depth::Whole, Depth::UpTo(0)] {
        let compared = store.compare_heads(&heads, depth);
        let expected = [
            ("one-0123456789ab", Difference::Shorter { have: 2 }),
            (two.as_str(), Difference::Missing),
            ("one-0123456789ab", Difference::AccountOlder { have: 1 }),
        ];
        assert_eq!(differences(&compared), expected, "{depth:?}");
    }
    let only = heads.only(&[two.clone()].into());
    assert_eq!(differences(&store.compare_heads(&only, Depth::Whole)), [(two.as_str(), Difference::Missing)]);
}

#[test]
fn a_store_that_only_grew_matches_its_list() {
    let home = Home::new();
    let store = home.open();
    let [one, two, three] =
        ["one", "two", "three"].map(|name| thread_with(&store, &format!("{name}-0123456789ab"), &["a"]));
    post(&store, &three, open(&three));
    store.delete(&two).unwrap();
    let heads = current_heads(&store);
    assert_eq!((heads.threads.len(), heads.tombstones.len(), heads.accounts.len()), (2, 1, 1));
    say(&store, &one, "more");
    store.delete(&three).unwrap();
    store.commit(birth(&id("four-0123456789ab"))).unwrap();
    assert_eq!(store.compare_heads(&heads, Depth::Whole).differs, []);
    store.close().unwrap();
    LocalStore::reindex(
        &selvedge_store_local::Rebuild {
            project: home.folder.path().to_owned(),
            trust: home.trust(),
            signer: Some(home.signer()),
            disk: Arc::new(RealDisk),
        },
        &mut |_, _| {},
    )
    .unwrap();
    assert_eq!(without_key(&home).compare_heads(&heads, Depth::Whole).differs, [], "also after a reindex");
}

/// The holder of the key can sign another history; a list of the first one detects it.
#[test]
fn another_history_under_the_same_key_is_other_content_or_another_log() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one-0123456789ab", &["first"]);
    let two = thread_with(&store, "two-0123456789ab", &[]);
    store.close().unwrap();
    let before = home.folder.path().join("before");
    copy(&home.threads(), &before);
    let store = home.open();
    say(&store, &one, "what was said");
    let heads = current_heads(&store);
    store.close().unwrap();
    fs::remove_dir_all(home.threads()).unwrap();
    copy(&before, &home.threads());
    let store = home.open();
    say(&store, &one, "other content, which is longer than that");
    assert_eq!(differences(&store.compare_heads(&heads, Depth::UpTo(0))), [(one.as_str(), Difference::Changed)]);
    say(&store, &one, "and more");
    assert_eq!(differences(&store.compare_heads(&heads, Depth::Whole)), [(one.as_str(), Difference::Changed)]);
    let mut other = heads.clone();
    other.threads.iter_mut().for_each(|head| head.log_id = "0".repeat(32).parse().unwrap());
    let found = store.compare_heads(&other, Depth::Whole);
    assert_eq!(differences(&found), [(one.as_str(), Difference::OtherLog), (two.as_str(), Difference::OtherLog)]);
}

#[test]
fn a_removed_tombstone_is_reported() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one-0123456789ab", &["a"]);
    store.delete(&one).unwrap();
    let heads = current_heads(&store);
    store.close().unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    database.execute("DELETE FROM tombstones", []).unwrap();
    let store = without_key(&home);
    assert_eq!(differences(&store.compare_heads(&heads, Depth::Whole)), [(one.as_str(), Difference::Undeleted)]);
}

/// A forged row must not be signed as a head: a store at version 1 would seem rolled back from version 9.
#[test]
fn an_unsealed_row_is_left_out_of_the_list_and_reported() {
    let home = Home::new();
    let store = home.open();
    let [one, two] = ["one", "two"].map(|name| thread_with(&store, &format!("{name}-0123456789ab"), &["a"]));
    post(&store, &two, open(&two));
    store.close().unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    let sql = "UPDATE heads SET version = 9 WHERE id = (SELECT id FROM threads WHERE thread_id = ?)";
    assert_eq!(database.execute(sql, [one.as_str()]).unwrap(), 1);
    assert_eq!(database.execute("UPDATE budget_ledger SET max_spend = 5", []).unwrap(), 1);
    drop(database);
    let current = home.read_only().heads().unwrap();
    assert_eq!(current.left_out.len(), 2, "{current:?}");
    assert!(current.left_out.iter().any(|why| why.contains(one.as_str())), "{current:?}");
    assert_eq!(current.heads.threads.iter().map(|head| &head.thread_id).collect::<Vec<_>>(), [&two]);
    assert_eq!(current.heads.accounts, []);
}

#[test]
fn a_list_is_accepted_only_as_signed_by_a_trusted_key_and_as_a_list() {
    let home = Home::new();
    let store = home.open();
    thread_with(&store, "one-0123456789ab", &["a"]);
    let text = store.sign_heads(&current_heads(&store)).unwrap();
    assert!(Heads::read(text.as_bytes(), &home.trust()).is_ok());
    let stranger = Trust::of(&[Signer::generate(&SystemIds).public()]);
    assert!(Heads::read(text.as_bytes(), &stranger).is_err());
    for (from, to) in [("\"version\": 1", "\"version\": 0"), ("heads", "state"), ("\"threads\"", "\"Threads\"")] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        assert!(Heads::read(changed.as_bytes(), &home.trust()).is_err(), "{from}");
    }
    let tombstone = text.replace(":heads:", ":tombstone:");
    assert!(Heads::read(tombstone.as_bytes(), &home.trust()).is_err());
}

/// Removing a tombstone from a backup brings nothing back, but hides that there was a thread.
#[test]
fn a_restore_compares_with_the_list_of_its_backup() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one-0123456789ab", &["a"]);
    let two = thread_with(&store, "two-0123456789ab", &["a"]);
    post(&store, &two, open(&two));
    store.delete(&one).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    let made = store.backup(&backup, &mut |_, _| {}).unwrap();
    assert!(made.heads.is_some());
    let list = fs::read(backup.join("heads.json")).unwrap();
    let heads = Heads::read(&list, &home.trust()).unwrap().heads;
    assert_eq!((heads.threads.len(), heads.tombstones.len(), heads.accounts.len()), (1, 1, 1));
    let restore = |name: &str| {
        let project = folder.path().join(name);
        fs::create_dir(&project).unwrap();
        let trust = home.trust();
        let signer = Some(home.signer());
        LocalStore::restore(&backup, &project, &trust, signer, Arc::new(RealDisk), &mut |_, _| {})
    };
    assert_eq!(restore("whole").unwrap().differs, []);

    fs::remove_file(backup.join("threads/tombstones").join(format!("{}.json", one.folder()))).unwrap();
    let database = rusqlite::Connection::open(backup.join("threads/registry.db")).unwrap();
    database.execute("DELETE FROM tombstones", []).unwrap();
    drop(database);
    let restored = restore("without").unwrap();
    assert_eq!(restored.differs.len(), 1, "{restored:?}");
    assert_eq!((&restored.differs[0].thread, &restored.differs[0].how), (&one, &Difference::Undeleted));

    fs::remove_file(backup.join("heads.json")).unwrap();
    let refused = restore("unlisted").unwrap_err().to_string();
    assert!(refused.contains("heads.json"), "{refused}");
}

/// An interrupted backup may have a list, and was taken for foreign files.
#[test]
fn a_backup_that_was_interrupted_after_its_list_is_started_over() {
    let home = Home::new();
    let store = home.open();
    thread_with(&store, "one-0123456789ab", &["a"]);
    let folder = tempfile::tempdir().unwrap();
    let partial = folder.path().join("backup.partial");
    fs::create_dir(&partial).unwrap();
    for name in ["heads.json", ".heads.json.77-1.tmp", "backup.lock"] {
        fs::write(partial.join(name), "half").unwrap();
    }
    let made = store.backup(&folder.path().join("backup"), &mut |_, _| {}).unwrap();
    assert_eq!(made.threads.len(), 1);
    assert!(!partial.exists() && !folder.path().join("backup/.heads.json.77-1.tmp").exists());
}
