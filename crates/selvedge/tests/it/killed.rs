//! An agent that pays three times, killed by SIGKILL before and after every commit and at random moments. After it is
//! resumed, every payment was made exactly once, the log is complete, and nothing is left running.
//!
//! The child is this same test binary, told by its environment to run the agent instead of testing. A breach was seen by a user as a
//! payment made twice, or never.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use selvedge::Input;
use selvedge::model::{Cancel, Ids, Message, MessageId, Role, Status, ThreadId};
use selvedge::store::Registry;
use selvedge::store_local::system::SystemIds;
use serde_json::json;

use crate::support::{House, Watched, results};

const ROLE: &str = "SELVEDGE_TEST_DIES";
const FOLDER: &str = "SELVEDGE_TEST_FOLDER";
/// Commits of an undisturbed run: the message, three rounds of answer, intent and result, the last answer, the end.
const COMMITS: u64 = 12;
const PAY: &str = "[ ! -e slow ] || sleep 0.02; printf '%s %s\\n' \"$SELVEDGE_CALL_KEY\" \"$1\" >> paid; [ ! -e slow ] || sleep 0.02; echo paid";
const PAID: &str = "if grep -qs \"^$SELVEDGE_CALL_KEY \" paid; then echo '{\"done\": true, \"result\": \"paid\"}'; else echo '{\"done\": false}'; fi";

/// A project whose agent pays 5, 7 and 9, with its thread made and nothing run.
fn house() -> (House, ThreadId) {
    let house = House::new();
    house.tool("pay", "at_most_once", PAY, json!({"reconcile": ["/bin/sh", "-c", PAID]}));
    house.directive("pay", &["pay"], "Pay what is due.");
    let pay = |amount: u64| json!({"calls": [{"tool": "pay", "arguments": {"a": amount}}]});
    house.script(&json!([pay(5), pay(7), pay(9), {"say": "All paid."}]));
    let thread = house.engine(Arc::new(house.open())).create(house.prepare("pay").unwrap().thread, Vec::new()).unwrap();
    house.write("thread", thread.as_str());
    (house, thread)
}

/// Starts a process that runs the agent as far as it comes; `dies` says when it kills itself.
fn spawn(house: &House, dies: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--nocapture", "--test-threads=1"])
        .env(ROLE, dies)
        .env(FOLDER, &house.root)
        .stdout(Stdio::null())
        .stderr(File::create(house.root.join("stderr")).unwrap())
        .spawn()
        .unwrap()
}

/// Not a test by itself: what the killed processes do.
#[test]
fn child() {
    let Ok(dies) = std::env::var(ROLE) else { return };
    let house = House::at(&PathBuf::from(std::env::var_os(FOLDER).unwrap()));
    let mut store = Watched::new(house.open());
    let at = |word: &str| dies.strip_prefix(word).and_then(|number| number.parse().ok()).unwrap_or(u64::MAX);
    let before = at("before ");
    let after = at("after ");
    store.before = Box::new(move |number| die_if(number == before));
    store.after = Box::new(move |number| die_if(number == after));
    let thread = ThreadId::new(fs::read_to_string(house.root.join("thread")).unwrap()).unwrap();
    let engine = house.engine(Arc::new(store));
    engine.recover().unwrap();
    let manifest = engine.store().get(&thread).unwrap().manifest;
    let work = house.project().run_config(&manifest).unwrap();
    let ended = match manifest.status {
        Status::Created => {
            let task = Message::text(Role::User, house.prepare("pay").unwrap().task);
            let input = Input::messages(vec![task.with_id(MessageId::new("task").unwrap())]);
            engine.send(&thread, input, &work, &Cancel::new(), &mut |_| {})
        }
        Status::Completed => return,
        _ => engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}),
    };
    assert_eq!(ended.unwrap().status, Status::Completed);
}

fn die_if(it_is_time: bool) {
    if it_is_time {
        kill_process(getpid(), Signal::KILL).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Waits for a process; whether it was killed. Anything else that goes wrong in it fails the test.
fn was_killed(house: &House, mut child: Child) -> bool {
    let status = child.wait().unwrap();
    let said = || fs::read_to_string(house.root.join("stderr")).unwrap_or_default();
    let killed = status.signal() == Some(Signal::KILL.as_raw());
    assert!(killed || status.success(), "{status}: {}", said());
    killed
}

/// Lets the thread be taken up by one process after the other, each dying as it is told, until one comes to the end; gives how many died.
fn until_done(house: &House, dies: impl Fn(usize) -> String) -> usize {
    let died = (0..60).take_while(|life| was_killed(house, spawn(house, &dies(*life)))).count();
    assert!(died < 60, "the thread never comes to its end");
    died
}

/// Each payment was made once, and the thread says so.
fn assert_paid_once(house: &House, thread: &ThreadId, how: &str) {
    let paid = fs::read_to_string(house.root.join("paid")).unwrap();
    let (mut keys, amounts): (Vec<_>, Vec<_>) = paid.lines().map(|line| line.split_once(' ').unwrap()).unzip();
    assert_eq!(amounts, ["5", "7", "9"], "{how}");
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 3, "{how}: each call has a key of its own");
    house.assert_settled();
    let store = house.open();
    assert_eq!(store.get(thread).unwrap().manifest.status, Status::Completed, "{how}");
    let loaded = selvedge::store::load::load(&store, thread, &house.trust(), None).unwrap().thread;
    let results = results(&loaded);
    assert!(results.len() == 3 && results.iter().all(|(text, failed)| text.trim() == "paid" && !failed), "{results:?}");
    assert_eq!(loaded.messages.last().unwrap().plain_text(), "All paid.", "{how}");
}

#[test]
fn an_undisturbed_run_has_twelve_commits() {
    let (house, thread) = house();
    assert!(was_killed(&house, spawn(&house, &format!("after {COMMITS}"))), "it has that many");
    assert!(!was_killed(&house, spawn(&house, "")));
    assert_paid_once(&house, &thread, "undisturbed");
}

#[test]
fn killed_before_and_after_every_commit_each_payment_is_made_once() {
    for at in 1..=COMMITS {
        for when in ["before", "after"] {
            let (house, thread) = house();
            let how = format!("{when} {at}");
            let died = until_done(&house, |life| if life == 0 { how.clone() } else { String::new() });
            assert_eq!(died, 1, "{how}");
            assert_paid_once(&house, &thread, &how);
        }
    }
}

#[test]
fn killed_in_every_process_it_still_completes() {
    // The process that resumes the thread commits the recovery, the start of a run, an intent and a result.
    for dies in ["after 4", "before 5"] {
        let (house, thread) = house();
        assert!(until_done(&house, |_| dies.to_owned()) >= 3);
        assert_paid_once(&house, &thread, dies);
    }
}

#[test]
fn killed_at_random_moments_each_payment_is_made_once() {
    let (house, thread) = house();
    house.write("slow", "");
    let began = Instant::now();
    assert_eq!(until_done(&house, |_| String::new()), 0);
    let whole = began.elapsed().as_micros() as u64;
    assert_paid_once(&house, &thread, "undisturbed");
    let mut kills = 0;
    while kills < 100 {
        let (house, thread) = self::house();
        house.write("slow", "");
        // A later process has less to do, so it is killed sooner.
        for life in 1.. {
            let mut child = spawn(&house, "");
            std::thread::sleep(Duration::from_micros(chance() % (whole / life)));
            child.kill().unwrap();
            if was_killed(&house, child) && life < 6 { kills += 1 } else { break }
        }
        until_done(&house, |_| String::new());
        assert_paid_once(&house, &thread, "at random");
    }
}

fn chance() -> u64 {
    let mut bytes = [0; 8];
    SystemIds.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
