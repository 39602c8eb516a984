//! A little of what `cargo xtask load` and `cargo xtask bench` do, each in a process of its own, whose memory and descriptors nobody else
//! changes.

use std::process::Command;

fn holds(what: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output = command.args(["under-load", "--small", "--only", what]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
    assert!(said.contains(what), "nothing was done: {said}");
}

#[test]
fn many_threads_are_listed_found_and_looked_at() {
    holds("threads");
}

#[test]
fn a_long_thread_is_appended_to_loaded_verified_and_read_from_its_end() {
    holds("events");
}

#[test]
fn a_large_transcript_is_verified_in_little_memory() {
    holds("transcript");
}

#[test]
fn writers_who_wait_for_one_thread_all_get_a_version_of_their_own() {
    holds("writers");
}

#[test]
fn memory_and_descriptors_do_not_grow() {
    holds("soak");
}

/// A store that held more threads than it remembered was twenty times slower, and nobody measured it.
#[test]
fn what_many_live_threads_cost_can_be_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output = command.args(["--quick", "--only", "live"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("320 live threads"));
}

#[test]
fn what_runs_that_wait_cost_can_be_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output = command.args(["--quick", "--only", "waiting"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("50 runs that wait"));
}

/// What is measured only when somebody asks for it failed, and nobody saw it.
#[test]
fn what_families_and_chains_cost_can_be_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output =
        command.args(["--quick", "--only", "chains", "--only", "handoffs", "--only", "spawns"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
