//! Many processes at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::Value;

use crate::support::{Ran, Sandbox};

const PROCESSES: u64 = 8;

fn changeset(writer: u64, number: u64) -> String {
    format!(
        r#"{{"reason":"UserMessage","messages":[{{"id":"{writer}-{number}","role":"user","content":"{writer} says {number}"}}]}}"#
    )
}

fn append(sandbox: &Sandbox, thread: &str, expect: u64, changeset: &str) -> Ran {
    sandbox
        .run_with(&["append", thread, "--expect", &expect.to_string(), "--wait", "60", "--json"], changeset.as_bytes())
}

#[test]
fn eight_writers_of_one_thread_win_every_version_exactly_once() {
    const WINS: u64 = 5;
    let (sandbox, id) = Sandbox::with_thread();
    let conflicts = AtomicU64::new(0);
    let write = |writer: u64| {
        let mut won = Vec::new();
        let mut expect = 0;
        while (won.len() as u64) < WINS {
            let ran = append(&sandbox, &id, expect, &changeset(writer, won.len() as u64));
            match ran.code {
                Some(0) => {
                    expect = ran.json()["version"].as_u64().unwrap();
                    won.push(expect);
                }
                _ => {
                    expect = ran.error(5, "version_conflict")["actual"].as_u64().unwrap();
                    conflicts.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        won
    };
    let mut won: Vec<u64> = thread::scope(|scope| {
        let writers: Vec<_> = (0..PROCESSES).map(|writer| scope.spawn(move || write(writer))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    won.sort_unstable();
    assert_eq!(won, (1..=PROCESSES * WINS).collect::<Vec<_>>());
    assert!(conflicts.load(Ordering::Relaxed) > 0, "there was no race");
    let verdict = sandbox.run(&["verify", &id, "--json"]).json();
    assert_eq!(verdict["unchanged_up_to"], PROCESSES * WINS);
    let messages = sandbox.run(&["state", &id, "--json"]).json()["messages"].clone();
    let mut ids: Vec<&Value> = messages.as_array().unwrap().iter().map(|message| &message["id"]).collect();
    ids.sort_by_key(|id| id.as_str());
    ids.dedup();
    assert_eq!(ids.len() as u64, PROCESSES * WINS, "every winner's message is there once, and no loser's");
}

#[test]
fn eight_writers_of_eight_threads_all_succeed() {
    const WRITES: u64 = 5;
    let sandbox = Sandbox::new();
    let ids: Vec<_> = (0..PROCESSES).map(|_| sandbox.new_thread("scribe")).collect();
    thread::scope(|scope| {
        for (writer, id) in ids.iter().enumerate() {
            let sandbox = &sandbox;
            scope.spawn(move || {
                for number in 0..WRITES {
                    let ran = append(sandbox, id, number, &changeset(writer as u64, number));
                    assert_eq!(ran.json()["version"], number + 1);
                }
            });
        }
    });
    let verdicts = sandbox.run(&["verify", "--all", "--json"]).records();
    assert_eq!(verdicts.len() as u64, PROCESSES);
    assert!(verdicts.iter().all(|verdict| verdict["unchanged_up_to"] == WRITES), "{verdicts:?}");
}

/// Thirty of ninety parallel appends said that something was mended after a crash, because another process was between its commit and
/// its transcript.
#[test]
fn a_thousand_appends_by_eight_processes_at_a_time_print_nothing_but_their_versions() {
    const RUNS: u64 = 125;
    let sandbox = Sandbox::new();
    // Four write to one thread, and the others to one each.
    let shared = sandbox.new_thread("scribe");
    let own: Vec<_> = (0..PROCESSES / 2).map(|_| sandbox.new_thread("scribe")).collect();
    thread::scope(|scope| {
        for writer in 0..PROCESSES {
            let (sandbox, id) = (&sandbox, own.get(writer as usize).unwrap_or(&shared));
            scope.spawn(move || {
                for number in 0..RUNS {
                    let input = changeset(writer, number);
                    let ran = sandbox.run_with(&["append", id, "--expect", "any", "--wait", "60"], input.as_bytes());
                    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
                }
            });
        }
    });
    for id in own.iter().chain([&shared]) {
        let writers = if *id == shared { PROCESSES - own.len() as u64 } else { 1 };
        let verdict = sandbox.run(&["verify", id, "--json"]).json();
        assert_eq!(verdict["unchanged_up_to"], writers * RUNS, "{verdict}");
    }
}
