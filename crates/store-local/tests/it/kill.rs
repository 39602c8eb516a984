//! Processes that are killed at random moments while they write. Afterwards everything they acknowledged exists, a batch is in both its
//! threads or in neither, the log verifies, and the next append works.
//!
//! The child is this same test binary; an environment variable makes it write instead of test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use selvedge_log::recovery::Finding;
use selvedge_model::{Batch, Expect, Ids, Part, ThreadId};
use selvedge_store::{Commit, Logs, Registry};
use selvedge_store_local::system::SystemIds;
use selvedge_store_local::{Access, LocalStore};

use crate::support::{Home, birth, id, options, says};

const ROLE: &str = "SELVEDGE_TEST_ROLE";

fn spawn(home: &Home, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env("SELVEDGE_TEST_FOLDER", home.folder.path())
        .env("SELVEDGE_TEST_PEM", home.pem())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test by itself: the work of the killed processes.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = std::env::var("SELVEDGE_TEST_FOLDER").unwrap();
    let pem = std::env::var("SELVEDGE_TEST_PEM").unwrap();
    let store = LocalStore::open(options(folder.as_ref(), &pem, Access::ReadWrite)).unwrap();
    let threads: Vec<_> = role.split(',').map(id).collect();
    let mut version = store.get(&threads[0]).unwrap().version;
    let text = "x".repeat(700);
    loop {
        let part = |thread: &ThreadId| Part::new(thread.clone(), Expect::Exact(version), says(&text));
        let batch = Batch { parts: threads.iter().map(part).collect(), ..Batch::of(part(&threads[0])) };
        version = store.commit(batch).unwrap().versions[0].1;
        // One write, so that a line is never torn by the kill.
        std::io::stdout().write_all(format!("\nack {version}\n").as_bytes()).unwrap();
    }
}

/// Starts a child, kills it at a random moment after its first acknowledgement and returns the last version it acknowledged.
fn run_and_kill(home: &Home, role: &str) -> u64 {
    let mut child = spawn(home, role);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let acked = |line: &str| line.strip_prefix("ack ").and_then(|version| version.parse::<u64>().ok());
    let mut last = lines.by_ref().map_while(Result::ok).find_map(|line| acked(&line)).expect("the child writes");
    let mut chance = [0; 2];
    SystemIds.fill(&mut chance);
    thread::sleep(Duration::from_micros(u64::from(u16::from_le_bytes(chance)) / 3));
    child.kill().unwrap();
    for line in lines.map_while(Result::ok) {
        last = acked(&line).unwrap_or(last);
    }
    child.wait().unwrap();
    last
}

fn assert_whole(store: &LocalStore, thread: &ThreadId) {
    let verdict = store.verify(thread, &mut |_| {}).unwrap();
    assert_eq!(verdict.judgement.finding, Finding::Sound, "{thread}");
    assert_eq!(verdict.healed_bytes, 0, "opening has drained everything");
}

#[test]
fn a_process_killed_while_appending_loses_nothing_it_acknowledged() {
    let home = Home::new();
    let thread = id("scribe-0123456789ab");
    home.open().commit(birth(&thread)).unwrap();
    for round in 0..110 {
        let acked = run_and_kill(&home, thread.as_str());
        let store = home.open();
        let version = store.head(&thread).unwrap().version;
        assert!(version == acked || version == acked + 1, "round {round}: acknowledged {acked}, found {version}");
        assert_whole(&store, &thread);
        let next = store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(version), says("next")))).unwrap();
        assert_eq!(next.versions[0].1, version + 1);
        // Sometimes everything is left as a crash would, sometimes the store is closed cleanly.
        if round % 2 == 0 {
            store.close().unwrap();
        }
    }
}

#[test]
fn a_process_killed_while_committing_to_two_threads_leaves_both_or_neither() {
    let home = Home::new();
    let one = id("one-0123456789ab");
    let two = id("two-0123456789ab");
    let store = home.open();
    store.commit(birth(&one)).unwrap();
    store.commit(birth(&two)).unwrap();
    drop(store);
    for round in 0..100 {
        let acked = run_and_kill(&home, &format!("{one},{two}"));
        let store = home.open();
        let versions = [&one, &two].map(|thread| store.head(thread).unwrap().version);
        assert_eq!(versions[0], versions[1], "round {round}: a batch is in both threads or in neither");
        assert!(versions[0] == acked || versions[0] == acked + 1, "round {round}: {acked} {versions:?}");
        assert_whole(&store, &one);
        assert_whole(&store, &two);
    }
}

#[test]
fn parallel_processes_share_one_thread_without_losing_a_version() {
    let home = Home::new();
    let thread = id("scribe-0123456789ab");
    let store = home.open();
    store.commit(birth(&thread)).unwrap();
    // One process is killed again and again while two threads of this one append to the same thread.
    let appended = thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let append =
                        |_| store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says("here")))).unwrap();
                    (0..150).map(append).map(|committed| committed.versions[0].1).collect::<Vec<_>>()
                })
            })
            .collect();
        for _ in 0..8 {
            let mut child = spawn(&home, thread.as_str());
            thread::sleep(Duration::from_millis(60));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let mut unique = appended.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), 300, "every acknowledged version is one commit's own");
    assert!(store.head(&thread).unwrap().version >= 300);
    drop(store);
    assert_whole(&home.open(), &thread);
}
