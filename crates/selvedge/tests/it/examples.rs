//! The examples run, offline and in a folder of their own, so that they can't rot.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example and gives what it said.
fn said_by(name: &str) -> String {
    // Cargo puts examples beside the folder of the tests.
    let tests = std::env::current_exe().unwrap();
    let mut path: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    if !path.exists() {
        let built =
            Command::new(env!("CARGO")).args(["build", "--quiet", "--package", "selvedge", "--example", name]).status();
        assert!(built.unwrap().success());
        path.set_file_name(name);
    }
    let output = Command::new(&path).env_clear().output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_program_runs_an_agent_with_a_tool_of_its_own() {
    let said = said_by("own_tool");
    let has = |text: &str| assert!(said.contains(text), "{text}: {said}");
    ["I did it: the lights in the kitchen are on.", "lamps: {\"kitchen\": true}", "completed"]
        .into_iter()
        .for_each(has);
}

#[test]
fn a_program_embeds_threads_in_a_folder_of_its_own() {
    let said = said_by("embed");
    let has = |text: &str| assert!(said.contains(text), "{text}: {said}");
    ["the same thread: true", "And a thread?", "exactly what was signed"].into_iter().for_each(has);
}

#[test]
fn a_program_registers_its_own_model() {
    let said = said_by("own_model");
    assert!(said.contains("HOLD THE LINE") && said.contains("13 tokens for $0.000065"), "{said}");
}

#[test]
fn a_program_with_a_loop_of_its_own_uses_the_store_alone() {
    let said = said_by("own_loop");
    assert!(said.contains("version 4") && said.contains("unchanged"), "{said}");
}

#[test]
fn a_thread_is_followed_from_another_process() {
    let said = said_by("follow");
    assert!(said.contains("user: hello") && said.contains("assistant: "), "{said}");
}

#[test]
fn one_subscriber_watches_two_threads() {
    let said = said_by("watch");
    let has = |text: &str| assert!(said.contains(text), "{text}: {said}");
    ["a river] draft \"Slow", "a mountain] draft \"Old", "UserMessage", "RunFinished"].into_iter().for_each(has);
    assert_eq!(said.matches("ended: completed").count(), 2, "{said}");
}
