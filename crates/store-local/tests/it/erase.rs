//! Erasing one blob: removed for every reader, recorded in a log that still verifies, finished by the next writer after a crash.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use selvedge_log::recovery::Finding;
use selvedge_model::event::{BlobErased, Handoff};
use selvedge_model::message::Block;
use selvedge_model::{Batch, Changeset, Classify, Digest, Event, Expect, Kind, Message, Part, Reason, Role, ThreadId};
use selvedge_store::{Commit, Error, Logs};
use selvedge_store_local::disk::{Disk, DiskFile, OpenMode, RealDisk};
use selvedge_store_local::doctor::{Depth, examine};
use selvedge_store_local::{Access, LocalStore};

use crate::support::{Home, id, options, thread_with};

/// A thread with a message that shows a blob.
pub(crate) fn with_blob(home: &Home) -> (LocalStore, ThreadId, Digest) {
    let store = home.open();
    let thread = thread_with(&store, "scribe-0123456789ab", &["one"]);
    let blob = store.put_blob(&thread, b"secret").unwrap();
    let image = Block::Image { blob, media_type: "text/plain".to_owned() };
    let message = Message { content: vec![image], ..Message::text(Role::User, "") };
    let shown = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(1), shown))).unwrap();
    (store, thread, blob)
}

fn file(home: &Home, thread: &ThreadId, blob: &Digest) -> std::path::PathBuf {
    home.threads().join(thread.folder()).join("blobs").join(blob.to_string())
}

#[test]
fn an_erased_blob_is_removed_and_its_log_verifies_and_records_it() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    let left = file(&home, &thread, &blob).with_file_name(format!(".{blob}.99.tmp"));
    fs::write(&left, b"half of it").unwrap();
    assert_eq!(store.erase(&thread, &blob, "asked to").unwrap(), 3);
    assert!(!file(&home, &thread, &blob).exists() && !left.exists());
    let refused = store.blob(&thread, &blob).unwrap_err();
    assert_eq!((refused.code(), refused.kind()), ("blob_erased", Kind::Absent));
    assert!(refused.to_string().contains("asked to"), "{refused}");
    assert_eq!(store.erase(&thread, &blob, "again").unwrap_err().code(), "blob_erased");
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.judgement.finding, verdict.erased), (Finding::Sound, 1));
    store.close().unwrap();
    assert!(fs::read_to_string(home.transcript(&thread)).unwrap().contains("asked to"));
    assert_eq!(home.read_only().blob(&thread, &blob).unwrap_err().code(), "blob_erased");
}

#[test]
fn an_erasure_interrupted_after_its_commit_is_finished_by_the_next_writer() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    let content = fs::read(file(&home, &thread, &blob)).unwrap();
    store.erase(&thread, &blob, "asked to").unwrap();
    store.close().unwrap();
    // As if the process had been killed between the commit and removing the file.
    fs::write(file(&home, &thread, &blob), content).unwrap();
    let database = rusqlite::Connection::open(home.threads().join("registry.db")).unwrap();
    database.execute("UPDATE erasures SET done = 0", []).unwrap();
    drop(database);
    assert_eq!(home.read_only().blob(&thread, &blob).unwrap_err().code(), "blob_erased", "it is not returned");
    let report = examine(home.options(Access::ReadOnly), Depth::Ends, &mut |_, _| {});
    assert!(report.findings.iter().any(|finding| finding.code == "erasure_unfinished"), "{:?}", report.findings);
    home.open().close().unwrap();
    assert!(!file(&home, &thread, &blob).exists());
}

#[test]
fn a_blob_that_is_missing_or_changed_without_an_erasure_is_damage() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    store.close().unwrap();
    let path = file(&home, &thread, &blob);
    let content = fs::read(&path).unwrap();
    fs::write(&path, b"another").unwrap();
    let finding = |home: &Home| home.read_only().verify(&thread, &mut |_| {}).unwrap().judgement.finding;
    assert!(matches!(finding(&home), Finding::Blob { blob: found, version: 2, .. } if found == blob));
    fs::remove_file(&path).unwrap();
    let missing = finding(&home);
    assert!(matches!(&missing, Finding::Blob { why, .. } if why == "is missing"), "{missing:?}");
    fs::write(&path, content).unwrap();
    assert_eq!(finding(&home), Finding::Sound);
}

/// A blob that was lost for good could not be erased: the log was damaged for ever.
#[test]
fn a_named_blob_that_is_lost_can_be_erased_and_an_unnamed_one_can_not() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    fs::remove_file(file(&home, &thread, &blob)).unwrap();
    let refused = store.erase(&thread, &Digest([7; 32]), "never named").unwrap_err();
    assert_eq!(refused.code(), "blob_not_found");
    store.erase(&thread, &blob, "its disk died").unwrap();
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.judgement.finding, verdict.erased_blobs), (Finding::Sound, vec![blob]));
    assert_eq!(store.erase(&thread, &blob, "again").unwrap_err().code(), "blob_erased");
    store.close().unwrap();
}

#[test]
fn a_blob_can_be_erased_in_a_continued_thread() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    let next = crate::support::id("next");
    let handoff = Handoff {
        new_thread_id: next.clone(),
        reason: None,
        directive: None,
        trailing_turns: 0,
        details: Default::default(),
    };
    let begin = selvedge_model::RunMeta::started(selvedge_model::AgentId::new("scribe").unwrap(), "user");
    let run = Changeset {
        run_id: Some(selvedge_model::RunId::new("r1").unwrap()),
        run_meta: Some(begin),
        ..Changeset::empty(Reason::UserMessage)
    };
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, run))).unwrap();
    let continued = Changeset::of_event(Event::ThreadHandoff(handoff));
    store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, continued))).unwrap();
    let more = Part::new(thread.clone(), Expect::Any, crate::support::says("more"));
    assert!(matches!(store.commit(Batch::of(more)), Err(Error::Fold { .. })));
    let erased = Event::BlobErased(BlobErased { blob, reason: "smuggled".to_owned() });
    let with_words = Changeset { events: vec![erased], ..crate::support::says("more") };
    let smuggled = Part::new(thread.clone(), Expect::Any, with_words);
    assert!(matches!(store.commit(Batch::of(smuggled)), Err(Error::Fold { .. })));
    store.erase(&thread, &blob, "asked to").unwrap();
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.judgement.finding, verdict.erased), (Finding::Sound, 1));
    store.close().unwrap();
    assert!(LocalStore::open(home.options(Access::ReadOnly)).is_ok());
}

/// A disk that prints when a blob is to be removed, and then blocks.
#[derive(Debug)]
struct Halting;

impl Disk for Halting {
    fn open(&self, path: &Path, how: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.open(path, how)
    }
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.make_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        if path.parent().is_some_and(|folder| folder.ends_with("blobs")) {
            say("removing");
            loop {
                std::thread::park();
            }
        }
        RealDisk.remove(path)
    }
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_folder(path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_folder(path)
    }
}

/// One write, so that a line is never torn by the kill.
fn say(line: &str) {
    io::stdout().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

/// Not a test by itself: the work of the killed processes.
#[test]
fn child() {
    let Ok(role) = std::env::var("SELVEDGE_TEST_ERASE") else { return };
    let folder = std::env::var("SELVEDGE_TEST_FOLDER").unwrap();
    let mut options = options(folder.as_ref(), &std::env::var("SELVEDGE_TEST_PEM").unwrap(), Access::ReadWrite);
    if role == "halt" {
        options.disk = Arc::new(Halting);
    }
    let store = LocalStore::open(options).unwrap();
    let thread = id("scribe-0123456789ab");
    for blob in store.blobs(&thread).unwrap() {
        store.erase(&thread, &blob, "asked to").unwrap();
        say(&format!("erased {blob}"));
    }
}

fn spawn(home: &Home, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "erase::child", "--nocapture", "--test-threads=1"])
        .env("SELVEDGE_TEST_ERASE", role)
        .env("SELVEDGE_TEST_FOLDER", home.folder.path())
        .env("SELVEDGE_TEST_PEM", home.pem())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_process_killed_between_commit_and_unlink_leaves_an_erasure_that_the_next_writer_finishes() {
    let home = Home::new();
    let (store, thread, blob) = with_blob(&home);
    store.close().unwrap();
    let mut child = spawn(&home, "halt");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "removing"), "it gets as far as removing the file");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(file(&home, &thread, &blob).exists(), "it was killed before the file was removed");
    let store = home.read_only();
    assert_eq!(store.blob(&thread, &blob).unwrap_err().code(), "blob_erased", "it is not returned");
    let verdict = store.verify(&thread, &mut |_| {}).unwrap();
    assert_eq!((verdict.judgement.finding, verdict.erased_blobs), (Finding::Sound, vec![blob]));
    let mut archive = Vec::new();
    assert_eq!(store.export(&thread, &mut archive).unwrap().blobs, 0, "it is not exported either");
    let backup = tempfile::tempdir().unwrap();
    let made = store.backup(&backup.path().join("b"), &mut |_, _| {}).unwrap();
    assert_eq!((made.blobs, made.failed_checks), (0, vec![]));
    let report = examine(home.options(Access::ReadOnly), Depth::Ends, &mut |_, _| {});
    assert!(report.findings.iter().any(|finding| finding.code == "erasure_unfinished"), "{:?}", report.findings);
    home.open().close().unwrap();
    assert!(!file(&home, &thread, &blob).exists());
    let report = examine(home.options(Access::ReadOnly), Depth::Whole, &mut |_, _| {});
    let codes: Vec<_> =
        report.findings.iter().map(|finding| finding.code).filter(|code| *code != "disk_nearly_full").collect();
    assert_eq!(codes, ["blobs_erased"]);
}

#[test]
fn a_process_killed_at_any_moment_of_erasing_leaves_each_blob_complete_or_erased() {
    let mut cut = 0;
    for round in 0..12 {
        let home = Home::new();
        let (store, thread, _) = with_blob(&home);
        let blobs: Vec<_> = (0..6).map(|n| store.put_blob(&thread, &[n; 100]).unwrap()).collect();
        store.close().unwrap();
        let mut child = spawn(&home, "erase");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let told = |line: &str| line.strip_prefix("erased ").and_then(|blob| blob.parse::<Digest>().ok());
        let mut acknowledged: Vec<_> = lines.by_ref().find_map(|line| told(&line)).into_iter().collect();
        std::thread::sleep(Duration::from_micros(round * 700));
        child.kill().unwrap();
        acknowledged.extend(lines.filter_map(|line| told(&line)));
        child.wait().unwrap();
        let store = home.open();
        let erased = store.verify(&thread, &mut |_| {}).unwrap().erased_blobs;
        for blob in &acknowledged {
            assert!(erased.contains(blob), "round {round}: {} was acknowledged", blob.short());
        }
        for blob in &blobs {
            assert_eq!(file(&home, &thread, blob).exists(), !erased.contains(blob), "round {round}");
            assert_eq!(store.blob(&thread, blob).is_ok(), !erased.contains(blob), "round {round}");
        }
        cut += u32::from(erased.len() < 7);
        store.close().unwrap();
    }
    assert!(cut > 0, "none was interrupted");
}
