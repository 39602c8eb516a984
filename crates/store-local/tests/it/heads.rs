//! Heads remembered elsewhere: what a list finds that nothing inside a store can show, and what it must not be alarmed by.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use selvedge_log::recovery::Finding;
use selvedge_log::{Signer, Trust};
use selvedge_model::account::Posting;
use selvedge_model::{Batch, Changeset, Expect, Money, Part, Reason, ThreadId};
use selvedge_store::Commit;
use selvedge_store::heads::{Compared, Depth, Difference, Heads};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::SystemIds;
use selvedge_store_local::{Access, LocalStore, Options};

use crate::support::{Home, birth, id, says, thread_with};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => _ = fs::copy(&path, &target).unwrap(),
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

/// A store that is only looked at, by somebody who has no key.
fn without_key(home: &Home) -> LocalStore {
    LocalStore::open(Options { signer: None, ..home.options(Access::ReadOnly) }).unwrap()
}

fn noted(store: &LocalStore) -> Heads {
    let noted = store.heads().unwrap();
    assert!(noted.left_out.is_empty(), "{noted:?}");
    noted.heads
}

fn ways(compared: &Compared) -> Vec<(&str, Difference)> {
    compared.differs.iter().map(|differs| (differs.thread.as_str(), differs.how.clone())).collect()
}

/// Logs and database together, as a snapshot of the file system leaves them: every log verifies, and only a list that was kept
/// elsewhere knows better.
#[test]
fn a_store_that_is_rolled_back_as_a_whole_is_found_by_a_list_and_by_nothing_else() {
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
    let text = store.sign_heads(&noted(&store)).unwrap();
    store.close().unwrap();

    let heads = Heads::read(text.as_bytes(), &home.trust()).unwrap().heads;
    assert_eq!(without_key(&home).compare_heads(&heads, Depth::Whole).differs, [], "nothing is behind yet");

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
        assert_eq!(ways(&compared), expected, "{depth:?}");
    }
    let only = heads.only(&[two.clone()].into());
    assert_eq!(ways(&store.compare_heads(&only, Depth::Whole)), [(two.as_str(), Difference::Missing)]);
}

#[test]
fn a_store_that_only_went_on_is_not_behind_its_list() {
    let home = Home::new();
    let store = home.open();
    let [one, two, three] =
        ["one", "two", "three"].map(|name| thread_with(&store, &format!("{name}-0123456789ab"), &["a"]));
    post(&store, &three, open(&three));
    store.delete(&two).unwrap();
    let heads = noted(&store);
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

/// The holder of the key can sign another history; the list of the first one finds it.
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
    let heads = noted(&store);
    store.close().unwrap();
    fs::remove_dir_all(home.threads()).unwrap();
    copy(&before, &home.threads());
    let store = home.open();
    say(&store, &one, "what is told instead, and is longer than that");
    assert_eq!(ways(&store.compare_heads(&heads, Depth::UpTo(0))), [(one.as_str(), Difference::Changed)]);
    say(&store, &one, "and more");
    assert_eq!(ways(&store.compare_heads(&heads, Depth::Whole)), [(one.as_str(), Difference::Changed)]);
    let mut other = heads.clone();
    other.threads.iter_mut().for_each(|head| head.log_id = "0".repeat(32).parse().unwrap());
    let found = store.compare_heads(&other, Depth::Whole);
    assert_eq!(ways(&found), [(one.as_str(), Difference::OtherLog), (two.as_str(), Difference::OtherLog)]);
}

#[test]
fn a_tombstone_that_is_taken_away_is_named() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one-0123456789ab", &["a"]);
    store.delete(&one).unwrap();
    let heads = noted(&store);
    store.close().unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    database.execute("DELETE FROM tombstones", []).unwrap();
    let store = without_key(&home);
    assert_eq!(ways(&store.compare_heads(&heads, Depth::Whole)), [(one.as_str(), Difference::Undeleted)]);
}

/// A forged row must not be signed as a head: a store that is at version 1 would seem rolled back from version 9.
#[test]
fn a_row_that_was_not_sealed_is_left_out_of_the_list_and_named() {
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
    let noted = home.read_only().heads().unwrap();
    assert_eq!(noted.left_out.len(), 2, "{noted:?}");
    assert!(noted.left_out.iter().any(|why| why.contains(one.as_str())), "{noted:?}");
    assert_eq!(noted.heads.threads.iter().map(|head| &head.thread_id).collect::<Vec<_>>(), [&two]);
    assert_eq!(noted.heads.accounts, []);
}

#[test]
fn a_list_is_believed_only_as_it_was_signed_by_a_trusted_key_and_as_a_list() {
    let home = Home::new();
    let store = home.open();
    thread_with(&store, "one-0123456789ab", &["a"]);
    let text = store.sign_heads(&noted(&store)).unwrap();
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

/// A tombstone that is removed from a backup would bring nothing back, and nobody would know that there had been a thread.
#[test]
fn a_backup_has_a_list_and_a_restore_names_what_it_tells_of_and_is_not_there() {
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

/// One that was cut short has a list too, and was taken for something else that is in the way.
#[test]
fn a_backup_that_was_cut_short_after_its_list_is_begun_anew() {
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
