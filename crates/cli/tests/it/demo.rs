//! `selvedge demo`: the README's first command.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use crate::support::{Ran, Sandbox, contents};

#[test]
fn the_demo_works_as_promised_keeps_its_folder_and_changes_nothing_else() {
    let sandbox = Sandbox::empty();
    let ran = sandbox.run(&["demo"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(!sandbox.home().exists(), "the user's own keys are not touched");
    let folders: Vec<_> = fs::read_dir(sandbox.project()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [folder] = &folders[..] else { panic!("{folders:?}") };
    assert!(ran.stdout.contains(folder.to_str().unwrap()));

    // The suggested commands work.
    let tries: Vec<_> =
        ran.stdout.lines().filter(|line| line.starts_with("  SELVEDGE_HOME=") || line.starts_with("  head ")).collect();
    assert_eq!(tries.len(), 4, "{ran:?}");
    for line in tries {
        let tried = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
        assert!(tried.status.success(), "{line}: {tried:?}");
        if line.starts_with("  head ") {
            let promised = ran.stdout.split("begins with ").nth(1).unwrap().split(':').next().unwrap();
            assert!(String::from_utf8(tried.stdout).unwrap().starts_with(promised));
        }
    }
}

#[test]
fn with_json_there_is_one_object_per_step() {
    let sandbox = Sandbox::empty();
    let ran = sandbox.run(&["demo", "--dir", "here", "--json"]);
    let steps = ran.records();
    let names: Vec<_> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["kill", "resume", "approve", "budget", "handoff", "race", "verify", "tamper", "restore"]);
    assert!(steps.iter().all(|step| step["ok"] == true), "{steps:?}");
    let killed = &steps[0]["details"];
    let resumed = &steps[1]["details"];
    assert_eq!((&killed["paid"], &killed["answers"]), (&json!(["anna 120", "ben 80"]), &json!(1)), "{steps:?}");
    assert_eq!(resumed["paid"], json!(["anna 120", "ben 80", "cara 45"]));
    // Every line has a key of its own: no call was made twice.
    let paid = fs::read_to_string(sandbox.project().join("here/project/paid.txt")).unwrap();
    let keys: BTreeSet<&str> = paid.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!((keys.len(), paid.lines().count()), (3, 3), "{paid}");
    assert_eq!(steps[2]["details"]["given"], json!(["dora 500"]));
    let budget = &steps[3]["details"];
    assert_eq!((&budget["calls"], &budget["spent_nanos"][1]), (&json!(0), &json!(0)), "{budget}");
    assert!(budget["why"].as_str().unwrap().contains("the next call may cost"), "{budget}");
    assert_eq!(budget["verified"]["holds"], true);
    let chain = steps[4]["details"]["chain"].as_array().unwrap();
    assert!(chain.len() > 2, "{chain:?}");
    // Checked with other commands.
    let here = ["-C", "here/project", "--json"];
    let home = sandbox.project().join("here/user");
    let looked = |words: &[&str]| {
        let mut command = sandbox.command(&[&here[..], words].concat());
        Ran::of(command.env("SELVEDGE_HOME", &home).spawn().unwrap())
    };
    let found = looked(&["chain", chain[0].as_str().unwrap()]).json();
    assert_eq!(found["chain_length"], chain.len());
    let child = looked(&["thread", "show", budget["child"].as_str().unwrap()]).json();
    assert_eq!((&child["status"], &child["cost"]["turns"]), (&json!("suspended"), &json!(0)));
    let waits = looked(&["inbox"]).json();
    assert_eq!((&waits["reason"], &waits["thread_id"]), (&json!("budget"), &budget["child"]), "{waits}");
    assert_eq!(looked(&["verify", "--all"]).code, Some(0));
    assert_eq!(steps[0]["folder"].as_str(), sandbox.project().join("here").to_str());
}

#[test]
fn a_folder_that_is_in_use_is_left_alone() {
    let sandbox = Sandbox::empty();
    let folder = sandbox.project().join("mine");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("note"), "mine").unwrap();
    sandbox.run(&["demo", "--dir", "mine", "--json"]).error(2, "folder_in_use");
    assert_eq!(contents(&folder).len(), 1);
}
