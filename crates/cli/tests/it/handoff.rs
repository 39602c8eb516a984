//! A run that is too long for its model's context is handed off from thread to thread, also when it is killed again and again.

use std::collections::HashSet;
use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kills::{Chance, Stand, killed_until_done};
use crate::running::put;
use crate::support::{Ran, Sandbox};

const DIRECTIVE: &str = "---\nname: count\nversion: 1.0.0\nmodel: scripted:script.yaml\npermissions: [tool.count]\ninputs:\n  - { name: most, required: true }\n---\nThe task is to count to {input:most}.\n";
const COUNT: &str = "sleep 0.02\necho \"$SELVEDGE_CALL_KEY\" >> counted.txt\necho \"at $(wc -l < counted.txt).\"\n";
const WAS_IT: &str = "place=$(grep -n \"^$SELVEDGE_CALL_KEY$\" counted.txt | cut -d: -f1)\nif [ -n \"$place\" ]; then echo \"{\\\"done\\\": true, \\\"result\\\": \\\"at $place.\\\"}\"; else echo '{\"done\": false}'; fi\n";
pub(crate) const MOST: usize = 16;

/// A project with a directive that counts by a tool, and a model with a small context.
pub(crate) fn counting(context_tokens: u64) -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/count.md", DIRECTIVE);
    let tool = json!({
        "name": "count", "description": "Counts on.", "class": "at_most_once", "input_schema": {"type": "object"},
        "environment": ["PATH"], "command": ["sh", "count.sh"], "reconcile": ["sh", "was-it.sh"],
    });
    put(&sandbox, ".ai/tools/count.yaml", &tool.to_string());
    put(&sandbox, "count.sh", COUNT);
    put(&sandbox, "was-it.sh", WAS_IT);
    let filler = "so that the context of the model fills up with words of no importance, one by one ".repeat(2);
    let script = format!(
        "context_tokens_max: {context_tokens}\nturns:\n  - {{ when: {{ user: {{ contains: again }} }}, say: Heard., repeat: forever }}\n  - {{ when: {{ result: {{ contains: \"at {MOST}.\" }} }}, say: Done., repeat: forever }}\n  - {{ say: \"I go on, {filler}\", calls: [{{ tool: count, arguments: {{}} }}], repeat: forever }}\n"
    );
    put(&sandbox, "script.yaml", &script);
    sandbox
}

pub(crate) const RUN: [&str; 5] = ["run", "count", "--input", "most=16", "--json"];

pub(crate) fn counted(sandbox: &Sandbox) -> Vec<String> {
    let text = fs::read_to_string(sandbox.project().join("counted.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The links of a chain: id and status.
pub(crate) fn chain(sandbox: &Sandbox, thread: &str) -> Vec<(String, String)> {
    let shown = sandbox.run(&["chain", thread, "--json"]).json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    shown["chain"].as_array().unwrap().iter().map(|link| (text(&link["thread_id"]), text(&link["status"]))).collect()
}

/// Every link but the last is continued, the last is not, and nothing that is acknowledged is doubted.
#[track_caller]
fn is_whole(sandbox: &Sandbox, links: &[(String, String)]) {
    let (last, earlier) = links.split_last().unwrap();
    assert!(earlier.iter().all(|(_, status)| status == "continued"), "{links:?}");
    assert_ne!(last.1, "continued", "{links:?}");
    for (thread, _) in links {
        let ran = sandbox.run(&["verify", thread]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

#[test]
fn a_run_is_handed_off_from_thread_to_thread_and_keeps_its_task() {
    let sandbox = counting(440);
    let ran = sandbox.run(&RUN);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let records = ran.records();
    let ended = records.last().unwrap();
    assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!("Done.")));
    let first = records[0]["thread_id"].as_str().unwrap();
    let links = chain(&sandbox, first);
    assert!(links.len() >= 4, "{links:?}");
    assert_eq!(ended["thread_id"], json!(links.last().unwrap().0));
    is_whole(&sandbox, &links);
    assert_eq!(counted(&sandbox).len(), MOST);
    assert_eq!(counted(&sandbox).iter().collect::<HashSet<_>>().len(), MOST, "each call has a key of its own");
    for (thread, _) in &links {
        let page = sandbox.threads().join(thread).join("capabilities.md");
        assert_eq!(sandbox.run(&["verify", "--document", page.to_str().unwrap()]).code, Some(0), "{thread}");
        let log = sandbox.run(&["log", thread, "--json"]).records();
        let said = |line: &Value| line["payload"].to_string().contains("The task is to count to 16.");
        assert!(log.iter().any(|line| line["event_type"] == "message" && said(line)), "{thread}");
        let shown = sandbox.run(&["thread", "show", thread, "--json"]).json();
        assert_eq!((&shown["inputs"], &shown["parent_id"]), (&json!({"most": "16"}), &Value::Null));
        assert_eq!(shown["chain_root_id"], json!(first));
    }
    // It is the same chain from each of its threads.
    assert_eq!(chain(&sandbox, &links[2].0), links);
    let shown = sandbox.run(&["chain", first]).stdout;
    assert!(shown.contains("handoff, ") && shown.contains(" carried"), "{shown}");
    let waited = sandbox.run(&["wait", first, "--json"]).json();
    assert_eq!(waited["results"][first]["thread_id"], ended["thread_id"]);
    let found = sandbox.run(&["chain", "search", first, "at 7.", "--json"]).json();
    assert!(!found["results"].as_array().unwrap().is_empty(), "{found}");
}

/// The blobs of what a successor took along in short were named in prose only: with all of them deleted, `verify` found nothing.
#[test]
fn a_deleted_blob_that_was_carried_over_to_a_successor_is_reported() {
    let sandbox = counting(440);
    let most = format!("most=16 {}", "and not further ".repeat(200));
    let ran = sandbox.run(&["run", "count", "--input", &most, "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let links = chain(&sandbox, ran.records()[0]["thread_id"].as_str().unwrap());
    is_whole(&sandbox, &links);
    let last = &links.last().unwrap().0;
    let blobs: Vec<_> = fs::read_dir(sandbox.threads().join(last).join("blobs")).unwrap().collect();
    assert!(!blobs.is_empty());
    for blob in blobs {
        fs::remove_file(blob.unwrap().path()).unwrap();
    }
    assert_ne!(sandbox.run(&["verify", last]).code, Some(0));
    assert_ne!(sandbox.run(&["doctor", "--deep"]).code, Some(0));
}

#[test]
fn waiting_for_the_first_thread_returns_the_answer_of_the_last() {
    let sandbox = counting(440);
    let running = sandbox.command(&RUN).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while counted(&sandbox).is_empty() {
        thread::sleep(Duration::from_millis(5));
    }
    let listed = sandbox.run(&["thread", "list", "--json"]).json();
    let first = listed["threads"].as_array().unwrap().last().unwrap()["thread_id"].as_str().unwrap().to_owned();
    let waited = sandbox.run(&["wait", &first, "--timeout", "100", "--json"]).json();
    let outcome = &waited["results"][&first];
    assert_eq!((&outcome["status"], &outcome["result"]), (&json!("completed"), &json!("Done.")), "{waited}");
    let links = chain(&sandbox, &first);
    assert_eq!((&outcome["thread_id"], links.len() > 2), (&json!(links.last().unwrap().0), true));
    assert_eq!(outcome["cost"]["turns"], MOST + 1, "that of the whole chain: {waited}");
    assert_eq!(Ran::of(running).code, Some(0));
}

#[test]
fn a_chain_that_is_cancelled_during_a_handoff_stays_cancelled() {
    let sandbox = counting(440);
    let running = sandbox.command(&RUN).stdin(Stdio::null()).spawn().unwrap();
    while counted(&sandbox).len() < 4 {
        thread::sleep(Duration::from_millis(5));
    }
    let listed = sandbox.run(&["thread", "list", "--json"]).json();
    let first = listed["threads"][0]["chain_root_id"].as_str().unwrap().to_owned();
    assert_eq!(sandbox.run(&["cancel", &first]).code, Some(0));
    let ran = Ran::of(running);
    let error = ran.error_beside_data(130, "run_cancelled");
    let links = chain(&sandbox, &first);
    is_whole(&sandbox, &links);
    assert_eq!(links.last().unwrap().1, "cancelled", "{error}");
    let counted = counted(&sandbox);
    assert!(counted.len() < MOST, "{counted:?}");
}

#[test]
fn resuming_the_first_thread_resumes_the_last_and_names_both() {
    let sandbox = counting(440);
    let ran = sandbox.run(&RUN);
    let first = ran.records()[0]["thread_id"].as_str().unwrap().to_owned();
    let last = chain(&sandbox, &first).pop().unwrap().0;
    assert_ne!(first, last);
    let error = sandbox.run(&["resume", &first, "--json"]).error(4, "not_runnable");
    assert!(error["hint"].as_str().unwrap().contains("selvedge resume"), "{error}");
    let ran = sandbox.run(&["resume", &first, "once again", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ended = ran.records().pop().unwrap();
    let resumed = &ended["resumed"];
    assert_eq!(resumed["original_thread_id"], json!(first), "{ended}");
    assert_eq!((&resumed["resolved_thread_id"], &resumed["old_thread_id"]), (&json!(last), &json!(last)));
    assert_eq!((&resumed["directive"], &ended["result"]), (&json!("count"), &json!("Heard.")));
    let links = chain(&sandbox, &first);
    assert_eq!(json!(links.last().unwrap().0), ended["thread_id"]);
    assert_eq!(links[links.len() - 2].0, last);
    is_whole(&sandbox, &links);
    // What the directive was given is still known, and what it counted is not counted again.
    assert_eq!(counted(&sandbox).len(), MOST);
    let shown = sandbox.run(&["thread", "show", &links.last().unwrap().0, "--json"]).json();
    assert_eq!(shown["inputs"], json!({"most": "16"}));
}

#[test]
fn required_inputs_survive_a_resume() {
    let sandbox = counting(100_000);
    let first = sandbox.run(&RUN).records()[0]["thread_id"].as_str().unwrap().to_owned();
    // Without it the directive does not run at all.
    sandbox.run(&["run", "count", "--json"]).error(2, "inputs_invalid");
    let ended = sandbox.run(&["resume", &first, "once again", "--json"]).records().pop().unwrap();
    let successor = ended["thread_id"].as_str().unwrap();
    assert_ne!(successor, first);
    for thread in [&first, successor] {
        let shown = sandbox.run(&["thread", "show", thread, "--json"]).json();
        assert_eq!(shown["inputs"], json!({"most": "16"}), "{thread}");
    }
    let log = sandbox.run(&["log", successor, "--json"]).records();
    assert_eq!(log[0]["payload"]["inputs"], json!({"most": "16"}), "signed, in its first line");
}

/// Under the strict rules, which are the default: every signature, and nothing beyond the last checkpoint.
#[test]
fn strict_verification_passes_after_a_normal_finish_a_handoff_a_resume_and_a_crash() {
    let sandbox = counting(440);
    let strict = sandbox.run(&["config", "get", "coordination.transcript_integrity", "--json"]).json();
    assert!(strict.to_string().contains("strict"), "{strict}");
    let holds = |when: &str, thread: &str| {
        let links = chain(&sandbox, thread);
        is_whole(&sandbox, &links);
        let ran = sandbox.run(&["verify", "--all"]);
        assert_eq!(ran.code, Some(0), "{when}: {ran:?}");
        let manifest = sandbox.threads().join(&links.last().unwrap().0).join("thread.json");
        let ran = sandbox.run(&["verify", "--document", manifest.to_str().unwrap()]);
        assert_eq!(ran.code, Some(0), "{when}: {ran:?}");
        links.len()
    };
    let first = sandbox.run(&RUN).records()[0]["thread_id"].as_str().unwrap().to_owned();
    let length = holds("finished, handed over", &first);
    assert!(length > 1);
    let ran = sandbox.run(&["resume", &first, "once again", "--json"]);
    assert_eq!((ran.code, holds("resumed", &first)), (Some(0), length + 1), "{ran:?}");
    // Another one is killed in the middle, is whole as it lies there, and goes on under the same rules.
    fs::remove_file(sandbox.project().join("counted.txt")).unwrap();
    let mut running = sandbox.command(&RUN).stdin(Stdio::null()).spawn().unwrap();
    while counted(&sandbox).len() < 5 {
        thread::sleep(Duration::from_millis(5));
    }
    running.kill().unwrap();
    let killed = Ran::of(running).records()[0]["thread_id"].as_str().unwrap().to_owned();
    holds("killed", &killed);
    let ran = sandbox.run(&["resume", &killed, "--json"]);
    assert_eq!((ran.code, counted(&sandbox).len()), (Some(0), MOST), "{ran:?}");
    holds("gone on after a kill", &killed);
}

#[test]
fn a_message_to_the_first_thread_of_a_chain_is_served_by_the_last() {
    let sandbox = counting(440);
    let first = sandbox.run(&RUN).records()[0]["thread_id"].as_str().unwrap().to_owned();
    let before = chain(&sandbox, &first);
    let ran = sandbox.run(&["send", &first, "once again", "--json"]);
    let ended = ran.records().pop().unwrap();
    assert_eq!((ran.code, &ended["result"]), (Some(0), &json!("Heard.")), "{ran:?}");
    assert_eq!((&ended["thread_id"], &ended["resumed"]), (&json!(before.last().unwrap().0), &Value::Null));
    assert_eq!(chain(&sandbox, &first), before);
}

#[test]
fn a_limit_counts_over_all_threads_of_a_chain_and_is_raised_at_its_end() {
    let sandbox = counting(440);
    let ran = sandbox.run(&[&RUN[..], &["--limit", "turns=13"]].concat());
    ran.error_beside_data(8, "limit_reached");
    let first = ran.records()[0]["thread_id"].as_str().unwrap().to_owned();
    let links = chain(&sandbox, &first);
    assert!(links.len() > 2 && counted(&sandbox).len() == 13, "{links:?}");
    is_whole(&sandbox, &links);
    let ran = sandbox.run(&["resume", &first, "--raise", "turns=40", "--json"]);
    assert_eq!((ran.code, counted(&sandbox).len()), (Some(0), MOST), "{ran:?}");
    let end = chain(&sandbox, &first).pop().unwrap();
    let shown = sandbox.run(&["thread", "show", &end.0, "--json"]).json();
    assert_eq!((&shown["limits"]["turns"], end.1.as_str()), (&json!(40), "completed"));
}

#[test]
fn a_context_window_that_is_too_small_suspends_the_thread_and_does_not_loop() {
    let sandbox = counting(60);
    let ran = sandbox.run(&RUN);
    let error = ran.error_beside_data(1, "run_suspended");
    assert!(error["message"].as_str().unwrap().contains("context_too_small"), "{error}");
    let chains = sandbox.run(&["thread", "list", "--json"]).json()["threads"].as_array().unwrap().len();
    assert!(chains <= 2, "{chains}");
    // Nothing is left of a successor that was not made.
    let entries = fs::read_dir(sandbox.threads()).unwrap().map(|entry| entry.unwrap().file_name());
    let folders = entries.filter(|name| name.to_string_lossy().starts_with("count-"));
    assert_eq!(folders.count(), chains);
}

#[test]
fn killed_again_and_again_during_handoffs_it_counts_every_number_once() {
    let sandbox = counting(440);
    let first = || {
        let listed = sandbox.run(&["thread", "list", "--json"]).json();
        listed["threads"].as_array().unwrap().last().map(|found| found["chain_root_id"].as_str().unwrap().to_owned())
    };
    let next = || match first() {
        None => RUN.map(str::to_owned).to_vec(),
        Some(thread) => vec!["resume".to_owned(), thread, "--json".to_owned()],
    };
    let look = || {
        let Some(thread) = first() else { return Stand::Unborn };
        let links = chain(&sandbox, &thread);
        is_whole(&sandbox, &links);
        if links.last().unwrap().1 == "completed" { Stand::Done(links) } else { Stand::Going }
    };
    let (links, kills) = killed_until_done(&sandbox, &mut Chance::new(0x5eed), next, look);
    assert!(kills >= 3 && links.len() >= 4, "{kills} kills, {links:?}");
    let counted = counted(&sandbox);
    assert_eq!((counted.len(), counted.iter().collect::<HashSet<_>>().len()), (MOST, MOST), "{counted:?}");
    let threads = sandbox.run(&["thread", "list", "--json"]).json()["threads"].as_array().unwrap().len();
    assert_eq!(threads, links.len(), "a thread beside the chain");
}
