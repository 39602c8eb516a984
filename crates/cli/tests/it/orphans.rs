//! Never an orphan: a parent with money starts children in processes of their own, which are handed off in a tiny context window. Parent
//! and children are killed by SIGKILL at random moments. Whichever command is run next, no dead thread is shown as running, no
//! call of a suspended thread holds money, and everything verifies; and in the end every thread can be brought to an end.
//!
//! `SELVEDGE_TEST_KILLS` says how many rounds, `SELVEDGE_TEST_SEED` where chance begins.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::{Manifest, Status, ThreadId};
use selvedge_store::{Leases, Registry, Summary};
use serde_json::{Value, json};

use crate::children::{SLEEPS, SPAWN, SPAWN_ASYNC, calling, eventually, family, has, keyed};
use crate::kills::Chance;
use crate::running::{put, status, thread_of};
use crate::support::Sandbox;

const PRICE: &str = "price: { input_per_million_tokens: 0.1, output_per_million_tokens: 0.1 }\n";

/// A parent that starts two children which it does not wait for, and one for which it does; each of them goes on in another thread after
/// every payment.
fn project() -> Sandbox {
    let script = format!(
        "{PRICE}turns:\n  - {{ calls: [{SPAWN_ASYNC}, {SPAWN_ASYNC}, {SPAWN}] }}\n  - {{ say: They are on their way., repeat: forever }}\n"
    );
    let filler = "so that the context of the model fills up with words of no importance, one by one ".repeat(2);
    let child = format!(
        "{PRICE}context_tokens_max: 440\nturns:\n  - {{ when: {{ result: {{ contains: enough }} }}, say: Done., repeat: forever }}\n  - {{ say: \"I go on, {filler}\", calls: [{{ tool: pay, arguments: {{ to: anna }} }}], repeat: forever }}\n"
    );
    let sandbox = family(&script, &child);
    let directive = fs::read_to_string(sandbox.project().join(".ai/directives/child.md")).unwrap();
    let limits = "permissions: [tool.pay]\nlimits: { turns: 100000, tokens: 100000000 }";
    put(&sandbox, ".ai/directives/child.md", &directive.replace("permissions: [tool.pay, tool.slow]", limits));
    let paying = "echo \"$SELVEDGE_CALL_KEY\" >> paid.txt; if [ -e fast ]; then echo enough; else echo more; fi";
    put(
        &sandbox,
        ".ai/tools/pay.yaml",
        &keyed().replace("echo \\\"$SELVEDGE_CALL_KEY\\\" >> paid.txt; echo ok", &paying.replace('"', "\\\"")),
    );
    put(&sandbox, ".ai/config/agent/coordination.yaml", "coordination:\n  continuation: { chain_max: 10000 }\n");
    sandbox
}

/// The processes of this project that run one of these threads.
fn processes(sandbox: &Sandbox, threads: &[ThreadId]) -> Vec<u32> {
    let folder = sandbox.project();
    let runs = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let is_here = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder);
        is_here && words.contains(&&b"resume"[..]) && threads.iter().any(|id| words.contains(&id.as_str().as_bytes()))
    };
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(runs).collect()
}

/// Kills a process and waits until it is dead: what is looked at before that is alive.
fn sigkill(pid: u32) {
    _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
    eventually("it is dead", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        status.is_empty() || (status.contains("State:\tZ") && threads <= 1)
    });
}

fn start(sandbox: &Sandbox, args: &[&str]) -> Child {
    sandbox.command(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Every thread below the parent, successors too.
fn below(sandbox: &Sandbox, parent: &ThreadId) -> Vec<Manifest> {
    let store = sandbox.open_to_look();
    store.children(parent).unwrap().into_iter().map(|child| child.manifest).collect()
}

/// No dead thread is shown as running, no call of a suspended one holds money, and the books agree.
#[track_caller]
fn holds_after(sandbox: &Sandbox, parent: &ThreadId, said: &str) {
    let store = sandbox.open_to_look();
    let mut all = store.children(parent).unwrap();
    all.push(store.get(parent).unwrap());
    for id in all.iter().map(|thread| &thread.manifest.thread_id) {
        let is_held = || store.holder(id).unwrap().is_some();
        let before = is_held();
        let shown = status(sandbox, id.as_str());
        assert!(shown != "running" || before || is_held(), "after `{said}` {id} is shown as running and is dead");
    }
    drop(store);
    let ran = sandbox.run(&["budget", parent.as_str(), "--verify", "--json"]);
    assert_eq!((ran.code, &ran.json()["verified"]["holds"]), (Some(0), &json!(true)), "after `{said}`: {ran:?}");
    for account in ran.json()["accounts"].as_array().unwrap() {
        let end = ThreadId::new(account["threads"].as_array().unwrap().last().unwrap().as_str().unwrap()).unwrap();
        // Another process may have resumed it since.
        let is_unchanged = |before: &Summary| sandbox.open_to_look().get(&end).unwrap().version == before.version;
        let before = all.iter().find(|thread| thread.manifest.thread_id == end);
        let waits = before.is_some_and(|before| before.manifest.status == Status::Suspended && is_unchanged(before));
        let calls = account["reservations"].as_array().unwrap().iter().filter(|held| held["child"].is_null());
        let open = calls.filter(|held| held["state"] == "reserved" || held["state"] == "issued").count();
        assert!(!waits || open == 0, "after `{said}` a dead call of {end} holds money: {account}");
    }
}

#[test]
fn after_any_kill_no_command_shows_a_dead_thread_as_running() {
    let rounds = std::env::var("SELVEDGE_TEST_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(8);
    let sandbox = project();
    let mut chance = Chance::any();
    let parent = start(
        &sandbox,
        &["run", "parent", "--limit", "spend=100", "--limit", "turns=100000", "--limit", "tokens=100000000"],
    );
    let find = || {
        sandbox.run(&["thread", "list", "--json"]).json()["threads"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| found["thread_id"].as_str().unwrap().to_owned())
            .find(|id| id.starts_with("parent"))
    };
    eventually("the parent is there", || find().is_some());
    let id = ThreadId::new(find().unwrap()).unwrap();
    let mut running = parent;
    let mut killed = 0;
    let mut others = Vec::new();
    for round in 0..rounds {
        if round == rounds / 2 {
            // However slow the machine is, the other half is of chains. One that is killed and not settled is said to run; one that runs
            // is not taken from its process.
            let is_left = |child: &Manifest| !child.status.is_terminal();
            let waiting = below(&sandbox, &id).into_iter().filter(is_left);
            others.extend(waiting.map(|child| start(&sandbox, &["resume", child.thread_id.as_str()])));
            // A parent that was killed before it had children, and was not resumed by chance, has them now.
            if sandbox.open_to_look().holder(&id).unwrap().is_none() {
                _ = running.kill();
                _ = running.wait();
                running = start(&sandbox, &["resume", id.as_str()]);
            }
            let is_chain = |child: Manifest| child.continuation_of.is_some();
            let until = Instant::now() + Duration::from_secs(60);
            while !below(&sandbox, &id).into_iter().any(is_chain) {
                assert!(Instant::now() < until, "no child is handed off: {:?}", sandbox.run(&["tree", id.as_str()]));
                thread::sleep(Duration::from_millis(20));
            }
        }
        thread::sleep(Duration::from_millis(chance.below(250)));
        let children: Vec<ThreadId> = below(&sandbox, &id).into_iter().map(|child| child.thread_id).collect();
        let kills = 1 + chance.below(3);
        if kills != 2 {
            _ = running.kill();
            _ = running.wait();
        }
        if kills != 1 {
            for pid in processes(&sandbox, &children) {
                if chance.below(3) > 0 {
                    sigkill(pid);
                    killed += 1;
                }
            }
        }
        let said = [&["tree"][..], &["budget"], &["thread", "show"], &["wait", "--timeout", "0.1"], &["resume"]];
        let said = [said[chance.below(5) as usize], &[id.as_str()]].concat();
        let is_held = sandbox.open_to_look().holder(&id).unwrap().is_some();
        let ran = if said[0] == "resume" {
            running = start(&sandbox, &said);
            // It has looked at its children once it has asked for anything.
            thread::sleep(Duration::from_millis(250));
            sandbox.run(&["tree", id.as_str()])
        } else {
            sandbox.run(&said)
        };
        holds_after(&sandbox, &id, &format!("{} (round {round}, held before: {is_held}): {ran:?}", said.join(" ")));
    }
    put(&sandbox, "fast", "");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut open: Vec<Manifest> =
            below(&sandbox, &id).into_iter().filter(|child| !child.status.is_terminal()).collect();
        open.push(sandbox.open_to_look().get(&id).unwrap().manifest);
        open.retain(|thread| !thread.status.is_terminal());
        if open.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "they never come to their end: {open:?}");
        for thread in open {
            sandbox.run(&["resume", thread.thread_id.as_str()]);
        }
    }
    others.into_iter().chain([running]).for_each(|mut run| _ = run.wait());
    let books = sandbox.run(&["budget", id.as_str(), "--verify", "--json"]).json();
    assert_eq!(books["verified"]["holds"], true, "{books}");
    for account in books["accounts"].as_array().unwrap() {
        assert_eq!((&account["reserved_nanos"], &account["status"]), (&json!(0), &json!("closed")), "{books}");
    }
    let all = below(&sandbox, &id);
    let handed_over = all.iter().filter(|thread| thread.continuation_of.is_some()).count();
    assert!(killed > 0 && handed_over > 0, "the test shows nothing: {killed} killed, {handed_over} handed over");
    assert_eq!(all.len() - handed_over, 3, "every child is there once");
    let text = fs::read_to_string(sandbox.project().join("paid.txt")).unwrap_or_default();
    let keys: std::collections::HashSet<&str> = text.lines().collect();
    assert_eq!(text.lines().count(), keys.len(), "a payment was made twice");
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

/// What a dead child holds stays held, as it waits; who holds it and what frees it is said where one looks, and that helps.
#[test]
fn budget_and_tree_show_who_keeps_money_and_what_frees_it() {
    let script = format!("{PRICE}{}", calling(SPAWN_ASYNC));
    let sandbox = family(&script, &format!("{PRICE}{SLEEPS}"));
    let directive = fs::read_to_string(sandbox.project().join(".ai/directives/parent.md")).unwrap();
    put(&sandbox, ".ai/directives/parent.md", &directive.replace("tool.pay", "tool.pay, tool.slow"));
    let parent = ThreadId::new(thread_of(&sandbox.run(&["run", "parent", "--limit", "spend=1", "--json"]))).unwrap();
    eventually("the child runs", || has(&sandbox, "begun.txt"));
    let child = below(&sandbox, &parent).remove(0).thread_id;
    processes(&sandbox, std::slice::from_ref(&child)).into_iter().for_each(sigkill);
    let free = format!("`selvedge cancel {child}` ends it and frees its money");
    let shown = sandbox.run(&["tree", parent.as_str()]);
    assert!(shown.stdout.contains(&format!("{child} stalled")) && shown.stdout.contains(&free), "{shown:?}");
    let shown = sandbox.run(&["budget", parent.as_str()]);
    assert!(shown.stdout.contains("closing") && shown.stdout.contains(&free), "{shown:?}");
    assert!(
        shown.stdout.contains(&format!("suspended (process_lost): `selvedge resume {child}` continues it")),
        "{shown:?}"
    );
    let needs = |books: &Value| books["accounts"][1]["needs"].clone();
    let books = sandbox.run(&["budget", parent.as_str(), "--json"]).json();
    assert_eq!(needs(&books)["commands"], json!([format!("selvedge resume {child}")]), "{books}");
    let ran = sandbox.run(&["cancel", child.as_str()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let books = sandbox.run(&["budget", parent.as_str(), "--verify", "--json"]).json();
    assert_eq!((&needs(&books), &books["accounts"][0]["status"]), (&Value::Null, &json!("closed")), "{books}");
    assert_eq!(books["accounts"][0]["reserved_nanos"], json!(0), "{books}");
}
