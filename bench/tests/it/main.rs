//! A little of what `cargo xtask load` and `cargo xtask bench` do, each in a process of its own, whose memory and descriptors no other test
//! changes.

use std::process::Command;

fn check(what: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output = command.args(["under-load", "--small", "--only", what]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
    assert!(said.contains(what), "nothing was measured: {said}");
}

#[test]
fn many_threads_are_listed_found_and_checked() {
    check("threads");
}

#[test]
fn a_long_thread_is_appended_to_loaded_verified_and_read_from_its_end() {
    check("events");
}

#[test]
fn a_large_transcript_is_verified_in_little_memory() {
    check("transcript");
}

#[test]
fn writers_that_wait_for_one_thread_all_get_a_version_of_their_own() {
    check("writers");
}

#[test]
fn memory_and_descriptors_do_not_grow() {
    check("soak");
}

/// A store with more threads than its cache was twenty times slower, and no measurement showed it.
#[test]
fn the_cost_of_many_live_threads_can_be_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output = command.args(["--quick", "--only", "live"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("320 live threads"));
}

#[test]
fn the_cost_of_waiting_runs_can_be_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output = command.args(["--quick", "--only", "waiting"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("50 runs that wait"));
}

#[test]
fn the_cost_of_streams_can_be_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output = command.args(["--quick", "--only", "streams"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let screen = String::from_utf8_lossy(&output.stdout);
    let line =
        screen.lines().find(|line| line.starts_with("50 streamed answers")).unwrap_or_else(|| panic!("{screen}"));
    assert!(line.contains(" 50 ") && !line.contains("missed"), "all are open at once: {screen}");
    let large = screen.lines().find(|line| line.starts_with("peak memory, an answer of 10 MiB")).unwrap();
    assert!(!large.contains("missed"), "{screen}");
}

#[test]
fn the_cost_of_searches_and_effects_can_be_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output = command.args(["--quick", "--only", "search"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("a search over 10000 messages") && said.contains("the record of a run"), "{said}");
}

/// Measurements that run only when selected failed, unnoticed.
#[test]
fn the_cost_of_families_and_chains_can_be_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-bench"));
    let output =
        command.args(["--quick", "--only", "chains", "--only", "handoffs", "--only", "spawns"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
