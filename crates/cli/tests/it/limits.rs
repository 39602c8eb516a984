//! Limits: `--limit`, the message when one is reached, and `--raise`.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::running::{TASK, is_orphaned, paid, pay, project, status, thread_of};
use crate::support::{Ran, Sandbox};

const PAY_SIX: &str = "turns:\n  - { calls: [{ tool: pay, arguments: { to: \"n{turn}\" } }], usage: { input_tokens: 90, output_tokens: 10 }, repeat: 6 }\n  - { say: Done., usage: {}, repeat: forever }\n";
const PRICE: &str = "price: { input_per_million_tokens: 100, output_per_million_tokens: 1000 }\n";

fn run(sandbox: &Sandbox, limit: &str) -> Ran {
    sandbox.run(&["run", "task", "--model", "scripted:script.yaml", "--limit", limit, "--json"])
}

/// Why a run waits that reached a ceiling.
#[track_caller]
fn reached(ran: &Ran) -> (String, Value) {
    let error = ran.error_beside_data(8, "limit_reached");
    let last = ran.records().pop().unwrap();
    assert_eq!((&last["type"], &last["status"]), (&json!("ended"), &json!("suspended")), "{ran:?}");
    (error["hint"].as_str().unwrap().to_owned(), last["suspended"].clone())
}

#[test]
fn a_run_stops_at_its_turn_limit_and_continues_when_it_is_raised() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_SIX);
    let ran = run(&sandbox, "turns=2");
    let thread = thread_of(&ran);
    let (hint, why) = reached(&ran);
    assert_eq!((&why["code"], &why["current"], &why["maximum"]), (&json!("turns_exceeded"), &json!(2), &json!(2)));
    assert_eq!(hint, format!("`selvedge resume {thread} --raise turns=…` raises it and continues"));
    assert_eq!(paid(&sandbox), 2);
    let need = sandbox.run(&["inbox", "--json"]).json();
    assert_eq!(
        (&need["reason"], &need["code"], &need["why"]),
        (&json!("limit"), &json!("turns_exceeded"), &json!("2 of 2"))
    );
    assert_eq!(need["commands"], json!([format!("selvedge resume {thread} --raise turns=…")]));
    // Without a raise nothing happens, and a raise that lowers is none.
    reached(&sandbox.run(&["resume", &thread, "--json"]));
    sandbox.run(&["resume", &thread, "--raise", "turns=1", "--json"]).error(2, "limit_not_raised");
    assert_eq!(paid(&sandbox), 2);
    // What was used counts on, in another process too.
    reached(&sandbox.run(&["resume", &thread, "--raise", "turns=5", "--json"]));
    assert_eq!(paid(&sandbox), 5);
    let ran = sandbox.run(&["resume", &thread, "--raise", "turns=9", "--json"]);
    assert_eq!((ran.code, paid(&sandbox)), (Some(0), 6), "{ran:?}");
    let shown = sandbox.run(&["thread", "show", &thread, "--json"]).json();
    assert_eq!(shown["limits"]["turns"], 9);
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}

#[test]
fn text_output_has_the_values_and_the_next_command() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_SIX);
    let ran = sandbox.run(&["run", "task", "--model", "scripted:script.yaml", "--limit", "tokens=150"]);
    assert_eq!(ran.code, Some(8), "{ran:?}");
    assert!(ran.stderr.contains("has reached a limit: tokens_exceeded, 200 of 150"), "{ran:?}");
    assert!(ran.stdout.contains("suspended: limit (tokens_exceeded), 200 of 150"), "{ran:?}");
    assert!(ran.stderr.contains("--raise tokens=…"), "{ran:?}");
    let shown = sandbox.run(&["inbox"]).stdout;
    assert!(shown.contains("limit tokens_exceeded") && shown.contains("200 of 150"), "{shown}");
}

#[test]
fn an_unknown_limit_is_answered_with_the_known_ones() {
    let sandbox = project(TASK, &pay("echo ok"), PAY_SIX);
    for (limit, why) in [
        ("turn=2", "there is no limit `turn`"),
        ("turns", "NAME=VALUE"),
        ("turns=two", "`two` is not a whole number"),
        ("turns=-1", "`-1` is not a whole number"),
        ("spend=cheap", "cheap"),
        ("spend=-1", "-1"),
    ] {
        let error = run(&sandbox, limit).error(2, "usage");
        assert!(error["message"].as_str().unwrap().contains(why), "{limit}: {error}");
    }
    assert_eq!(sandbox.run(&["thread", "list", "--json"]).json()["threads"], json!([]), "nothing was begun");
}

#[test]
fn a_call_that_the_account_can_not_cover_is_not_made() {
    let sandbox = project(TASK, &pay("echo ok"), &format!("{PRICE}{PAY_SIX}"));
    // A turn costs 90 · $100 + 10 · $1000 for a million tokens: 1.9 cents; at most it may cost far more.
    let ran = run(&sandbox, "spend=0.35");
    let thread = thread_of(&ran);
    let (hint, why) = reached(&ran);
    assert_eq!(
        (&why["reason"], &why["code"], &why["maximum"]),
        (&json!("budget"), &json!("spend_exceeded"), &json!(0.35))
    );
    assert!(hint.contains(&format!("selvedge resume {thread} --raise spend=…")), "{hint}");
    let spent = sandbox.run(&["thread", "show", &thread, "--json"]).json()["cost"]["spend"].as_f64().unwrap();
    assert!(spent <= 0.35, "{spent}");
    let before = paid(&sandbox);
    assert!((1..6).contains(&before), "{before}");
    let ran = sandbox.run(&["resume", &thread, "--raise", "spend=100", "--json"]);
    assert_eq!((ran.code, paid(&sandbox)), (Some(0), 6), "{ran:?}");
    let books = sandbox.run(&["budget", &thread, "--verify", "--json"]).json();
    let account = &books["accounts"][0];
    assert_eq!(
        (&account["max_nanos"], &account["reserved_nanos"]),
        (&json!(100_000_000_000_u64), &json!(0)),
        "{books}"
    );
    assert_eq!(account["own_nanos"], json!(6 * 19_000_000_u64), "{books}");
    assert_eq!(books["verified"]["holds"], true, "{books}");
    let shown = sandbox.run(&["budget", &thread, "--verify"]).stdout;
    assert!(shown.contains("$0.114 spent") && shown.contains("no ceiling was exceeded at any posting"), "{shown}");
}

#[test]
fn a_raise_reaches_a_run_in_another_process() {
    let sandbox = project(TASK, &pay("[ -e fast ] || while [ ! -e go ]; do sleep 0.02; done; echo ok"), PAY_SIX);
    let mut command =
        sandbox.command(&["run", "task", "--model", "scripted:script.yaml", "--limit", "turns=2", "--json"]);
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    while paid(&sandbox) == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    let raised = sandbox.run(&["resume", "task", "--raise", "turns=9"]);
    assert_eq!(raised.code, Some(0), "{raised:?}");
    assert!(raised.stderr.contains("queued: the process running task-"), "{raised:?}");
    fs::write(sandbox.project().join("fast"), "").unwrap();
    fs::write(sandbox.project().join("go"), "").unwrap();
    let ran = Ran::of(child);
    assert_eq!((ran.code, paid(&sandbox)), (Some(0), 6), "{ran:?}");
    let shown = sandbox.run(&["thread", "show", &thread_of(&ran), "--json"]).json();
    assert_eq!((&shown["limits"]["turns"], &shown["requests"]), (&json!(9), &json!([])));
}

/// All but one of several concurrent raises were refused, because another process held the thread.
#[test]
fn concurrent_raises_all_count() {
    const RAISES: [&str; 6] = ["turns=50", "tokens=300000", "spend=3", "spawns=60", "depth=12", "duration=3000"];
    for round in 0..5 {
        let sandbox = project(TASK, &pay("[ ! -e slow ] || while [ ! -e go ]; do sleep 0.02; done; echo ok"), PAY_SIX);
        let ran = run(&sandbox, "turns=2");
        let thread = thread_of(&ran);
        let _ = reached(&ran);
        fs::write(sandbox.project().join("slow"), "").unwrap();
        let raise = |raise| sandbox.command(&["resume", &thread, "--raise", raise, "--json"]).spawn().unwrap();
        let mut raising = RAISES.map(raise);
        // Any one of them resumes the thread.
        while raising.iter_mut().filter_map(|child| child.try_wait().unwrap()).count() < RAISES.len() - 1 {
            thread::sleep(Duration::from_millis(10));
        }
        fs::write(sandbox.project().join("go"), "").unwrap();
        let raised = raising.map(Ran::of);
        for (ran, raise) in raised.iter().zip(RAISES) {
            // A command before the raise reports that the limit is reached.
            assert!(matches!(ran.code, Some(0 | 8)), "round {round}, {raise}: {ran:?}");
        }
        let shown = sandbox.run(&["thread", "show", &thread, "--json"]).json();
        let names = ["turns", "tokens", "spend", "spawns", "depth", "duration_seconds"];
        let limits = names.map(|name| shown["limits"][name].as_f64().unwrap());
        assert_eq!(limits, [50.0, 300_000.0, 3.0, 60.0, 12.0, 3_000.0], "round {round}: {raised:?}");
        assert_eq!(shown["requests"], json!([]));
        assert_eq!(status(&sandbox, &thread), "completed", "round {round}: {raised:?}");
        assert_eq!(paid(&sandbox), 6);
    }
}

#[test]
fn a_raise_with_a_message_reaches_a_run_in_another_process_and_the_message_is_queued() {
    let sandbox = project(TASK, &pay("[ -e fast ] || while [ ! -e go ]; do sleep 0.02; done; echo ok"), PAY_SIX);
    let mut command =
        sandbox.command(&["run", "task", "--model", "scripted:script.yaml", "--limit", "turns=2", "--json"]);
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    while paid(&sandbox) == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    let mut command = sandbox.command(&["resume", "task", "and thank them", "--raise", "turns=9", "--json"]);
    let raising = command.stdin(Stdio::null()).spawn().unwrap();
    let shown = || sandbox.run(&["thread", "show", "task", "--json"]).json();
    let deadline = Instant::now() + Duration::from_secs(20);
    while shown()["requests"].as_array().unwrap().len() < 2 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    fs::write(sandbox.project().join("fast"), "").unwrap();
    fs::write(sandbox.project().join("go"), "").unwrap();
    let ran = Ran::of(child);
    let raised = Ran::of(raising);
    assert_eq!((ran.code, raised.code, paid(&sandbox)), (Some(0), Some(0), 6), "{ran:?} {raised:?}");
    assert_eq!((&shown()["limits"]["turns"], &shown()["requests"]), (&json!(9), &json!([])));
    let log = sandbox.run(&["log", "task", "--json"]).stdout;
    assert_eq!(log.matches("and thank them").count(), 1, "{log}");
}

#[test]
fn a_stuck_tool_is_killed_at_the_time_limit() {
    let sandbox = project(TASK, &pay("sleep 600"), PAY_SIX);
    let begun = Instant::now();
    let ran = run(&sandbox, "duration=1");
    let (hint, why) = reached(&ran);
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    assert_eq!((&why["code"], &why["maximum"]), (&json!("duration_exceeded"), &json!(1)));
    assert!(hint.contains("--raise duration=…"), "{hint}");
    assert!(!is_orphaned(&sandbox), "the tool was left behind");
    let thread = thread_of(&ran);
    assert_eq!(status(&sandbox, &thread), "suspended");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    // Running time counts over restarts.
    reached(&sandbox.run(&["resume", &thread, "--json"]));
    assert_eq!(paid(&sandbox), 1);
}

/// How long each run of a thread went on, in milliseconds, as its log says.
fn durations(sandbox: &Sandbox, thread: &str) -> Vec<u64> {
    let log = fs::read_to_string(sandbox.transcript(thread)).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let finished = events.filter(|event| event["event_type"] == "run_finished");
    finished.map(|event| event["payload"]["meta"]["cost"]["duration_ms"].as_u64().unwrap()).collect()
}

#[test]
fn running_time_counts_though_a_process_is_killed_in_the_middle_of_a_call() {
    let slow = pay("sleep 600").replace("at_most_once", "idempotent");
    let sandbox = project(TASK, &slow, PAY_SIX);
    let killed = |args: &[&str], lives: usize| {
        let mut child = sandbox.command(args).stdin(Stdio::null()).spawn().unwrap();
        while paid(&sandbox) < lives {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(2200));
        child.kill().unwrap();
        Ran::of(child)
    };
    let run = ["run", "task", "--model", "scripted:script.yaml", "--limit", "duration=5", "--json"];
    let thread = thread_of(&killed(&run, 1));
    killed(&["resume", &thread, "--json"], 2);
    let begun = Instant::now();
    let (_, why) = reached(&sandbox.run(&["resume", &thread, "--json"]));
    assert_eq!((&why["code"], &why["maximum"]), (&json!("duration_exceeded"), &json!(5)));
    let counted = durations(&sandbox, &thread);
    // At most a second of each life is lost.
    assert!(counted.len() == 3 && counted[..2].iter().all(|ran| (1000..5000).contains(ran)), "{counted:?}");
    assert!(counted[2] < 3500, "the two lives before left it no more time: {counted:?}, {:?}", begun.elapsed());
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    let again = sandbox.run(&["replay", &thread]);
    assert_eq!(again.code, Some(0), "{again:?}");
}
