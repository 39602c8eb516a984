//! The short form of the laboratory, in the ordinary tests: every experiment on every scenario, at some of their calls. The long form
//! is `cargo xtask crash --long`.

use std::path::Path;
use std::time::Duration;

use selvedge_testkit::Tried;
use selvedge_testkit::run::{Plan, Ready, crowd, damage, fail, kill, power, shutdown};
use selvedge_testkit::scenario;
use selvedge_testkit::shim::Bench;
use selvedge_testkit::tally::Tally;

fn plan(stride: u64, states: usize) -> Plan {
    let bench = Bench::set_up(Path::new(env!("CARGO_BIN_EXE_lab"))).unwrap();
    Plan { bench, seed: 7, stride, only: None, states, first: false }
}

fn on_every_scenario(plan: &Plan, run: impl Fn(&Plan, &Ready) -> Tried<Tally>) -> Tally {
    let mut tally = Tally::default();
    for scenario in scenario::ALL {
        let ready = Ready::make(plan, scenario).unwrap();
        tally.join(run(plan, &ready).unwrap());
    }
    tally
}

/// Nothing was broken, and so much was looked at that something could have been.
fn assert_held(tally: &Tally, least: u64) {
    assert!(tally.breaches.is_empty(), "{tally}");
    assert!(tally.states() >= least, "only {} states were looked at", tally.states());
}

#[test]
fn a_process_killed_at_a_call_loses_nothing_it_was_told() {
    assert_held(&on_every_scenario(&plan(43, 1), kill::run), 80);
}

/// Handoffs by an agent and by hand, children that are waited for and that are not, and calls that are paid for. What must hold is in
/// `check::all_whole`: never an orphan, never a blend, no money without its thread, none set aside twice.
#[test]
fn killed_at_each_commit_of_a_handoff_a_spawn_and_a_settle_there_is_never_an_orphan_nor_a_blend() {
    let plan = plan(1, 1);
    let mut tally = Tally::default();
    for name in ["over", "handoff", "spawn", "detach", "priced"] {
        let ready = Ready::make(&plan, scenario::named(name).unwrap()).unwrap();
        let killed = kill::at_commits(&plan, &ready).unwrap();
        assert!(killed.states() >= 10, "`{name}`: only {} states", killed.states());
        tally.join(killed);
    }
    assert_held(&tally, 130);
}

#[test]
fn a_call_that_fails_costs_nothing_that_was_told_and_the_store_goes_on() {
    assert_held(&on_every_scenario(&plan(53, 2), fail::run), 100);
}

#[test]
fn a_disk_that_loses_power_keeps_what_was_told_and_blends_nothing() {
    assert_held(&on_every_scenario(&plan(17, 3), power::run), 200);
}

#[test]
fn a_real_file_system_that_loses_power_keeps_what_was_told() {
    let plan = plan(41, 1);
    let ready = Ready::make(&plan, scenario::named("batch").unwrap()).unwrap();
    let tally = shutdown::run(&plan, &ready).unwrap();
    assert!(tally.breaches.is_empty(), "{tally}");
    assert!(tally.states() > 0 || !tally.skipped.is_empty(), "it is done, or says why not");
}

#[test]
fn damage_of_any_kind_is_found() {
    assert_held(&damage::run(&plan(29, 1)).unwrap(), 700);
}

#[test]
fn a_crowd_that_is_put_to_sleep_and_killed_agrees_in_the_end() {
    assert_held(&crowd::run(&plan(1, 1), 1, Duration::from_secs(3)).unwrap(), 20);
}
