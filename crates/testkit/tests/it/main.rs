//! The short form of the laboratory, in the ordinary tests: every experiment on every scenario, at some of the calls. The long form
//! is `cargo xtask crash --long`.

use std::path::Path;
use std::time::Duration;

use selvedge_testkit::LabResult;
use selvedge_testkit::run::{Plan, Ready, concurrent, damage, fail, kill, power, shutdown};
use selvedge_testkit::scenario;
use selvedge_testkit::shim::Bench;
use selvedge_testkit::tally::Tally;
use selvedge_testkit::trace::{Call, Record};

fn plan(stride: u64, states: usize) -> Plan {
    let bench = Bench::set_up(Path::new(env!("CARGO_BIN_EXE_lab"))).unwrap();
    Plan { bench, seed: 7, stride, only: None, states, first: false }
}

fn on_every_scenario(plan: &Plan, run: impl Fn(&Plan, &Ready) -> LabResult<Tally>) -> Tally {
    let mut tally = Tally::default();
    for scenario in scenario::ALL {
        let ready = Ready::make(plan, scenario).unwrap();
        tally.join(run(plan, &ready).unwrap());
    }
    tally
}

/// Checks that no promise was broken, and that enough states were checked.
fn assert_held(tally: &Tally, least: u64) {
    assert!(tally.breaches.is_empty(), "{tally}");
    assert!(tally.states() >= least, "only {} states were checked", tally.states());
}

#[test]
fn a_process_killed_at_a_call_loses_nothing_acknowledged() {
    assert_held(&on_every_scenario(&plan(43, 1), kill::run), 80);
}

/// Handoffs by an agent and by hand, children with and without a waiting parent, and priced calls. `check::all_consistent` defines what must
/// be true: no orphans, no partial changes, no money without its thread, none reserved twice.
#[test]
fn killed_at_each_commit_of_a_handoff_a_spawn_and_a_settlement_no_orphan_and_no_partial_change_is_left() {
    let plan = plan(1, 1);
    let mut tally = Tally::default();
    for name in ["over", "handoff", "spawn", "detach", "priced", "streamed"] {
        let ready = Ready::make(&plan, scenario::named(name).unwrap()).unwrap();
        let killed = kill::at_commits(&plan, &ready).unwrap();
        assert!(killed.states() >= 10, "`{name}`: only {} states", killed.states());
        tally.join(killed);
    }
    assert_held(&tally, 150);
}

/// The host has charged for what the log knows nothing of but the intent: the attempt is counted at its bound and marked unknown, or its
/// cost is exact.
#[test]
fn killed_in_the_middle_of_a_stream_every_attempt_is_charged_exactly_or_as_unknown() {
    let plan = plan(1, 1);
    let ready = Ready::make(&plan, scenario::named("streamed").unwrap()).unwrap();
    assert_held(&kill::in_streams(&plan, &ready).unwrap(), 60);
}

#[test]
fn a_failing_call_loses_nothing_acknowledged_and_the_store_stays_usable() {
    assert_held(&on_every_scenario(&plan(109, 2), fail::run), 100);
}

#[test]
fn a_failing_or_short_read_loses_nothing_acknowledged_and_the_store_stays_usable() {
    assert_held(&on_every_scenario(&plan(149, 1), fail::looks), 80);
}

/// Lets some reading calls of a scenario fail, all of them or every `stride`th.
fn looks(name: &str, stride: u64, least: u64, wanted: impl Fn(&Record) -> bool) {
    let plan = plan(stride, 1);
    let ready = Ready::make(&plan, scenario::named(name).unwrap()).unwrap();
    assert_held(&fail::looks_at(&plan, &ready, wanted).unwrap(), least);
}

fn is_at(record: &Record, end: &str) -> bool {
    record.path.to_string_lossy().ends_with(end)
}

/// A page that could not be read for a moment was taken for a damaged database, and a failed stat for a missing one: `reindex` put the
/// database aside, and its requests were lost.
#[test]
fn a_rebuild_does_not_lose_requests_because_the_old_database_can_t_be_read_for_a_moment() {
    looks("reindex", 5, 40, |record| is_at(record, "threads/registry.db"));
}

/// A folder of owners that could not be listed counted as one without live owners, a `store.json` that could not be read as a missing one,
/// and threads that a failed listing did not return were left out silently.
#[test]
fn a_rebuild_takes_nothing_for_absent_that_it_could_not_read() {
    looks("reindex", 1, 20, |record| {
        matches!(record.call, Call::List | Call::Stat)
            && ["owners", "store.json", "threads", "tombstones", "transcript.jsonl"]
                .iter()
                .any(|end| is_at(record, end))
    });
}

/// SQLite opens a database read-only if it can't open it for writing, and every later commit of the process was refused.
#[test]
fn a_database_that_can_t_be_opened_to_write_for_a_moment_can_be_written_afterwards() {
    looks("append", 1, 6, |record| {
        record.call == Call::Open
            && ["registry.db", "registry.db-wal", "registry.db-shm"].iter().any(|end| is_at(record, end))
    });
}

/// After one failed read SQLite used the file without the write-ahead log, and the process never saw later commits.
#[test]
fn a_reader_that_could_not_read_once_sees_what_is_committed_later() {
    looks("import", 3, 20, |record| is_at(record, "threads/registry.db"));
}

/// Without the rotated key its seals seemed forged, and the command reported that.
#[test]
fn a_retired_key_that_can_t_be_read_for_a_moment_makes_no_seal_seem_forged() {
    looks("rotation", 1, 6, |record| record.path.starts_with("keys/retired"));
}

#[test]
fn a_blob_that_can_t_be_read_is_not_taken_for_absent() {
    looks("blob", 1, 3, |record| record.path.to_string_lossy().contains("/blobs"));
}

/// Usage records, titles, embeddings and the search index, killed at some calls; at every call in the long form.
#[test]
fn effects_killed_at_a_call_lose_and_double_no_record() {
    let plan = plan(17, 1);
    let ready = Ready::make(&plan, scenario::named("effects").unwrap()).unwrap();
    assert_held(&kill::run(&plan, &ready).unwrap(), 20);
}

#[test]
fn a_disk_that_loses_power_twice_keeps_everything_acknowledged() {
    assert_held(&on_every_scenario(&plan(307, 2), power::twice), 60);
}

#[test]
fn a_disk_that_loses_power_keeps_everything_acknowledged_and_nothing_in_part() {
    assert_held(&on_every_scenario(&plan(17, 3), power::run), 200);
}

#[test]
fn a_real_file_system_that_loses_power_keeps_everything_acknowledged() {
    let plan = plan(41, 1);
    let ready = Ready::make(&plan, scenario::named("batch").unwrap()).unwrap();
    let tally = shutdown::run(&plan, &ready).unwrap();
    assert!(tally.breaches.is_empty(), "{tally}");
    assert!(tally.states() > 0 || !tally.skipped.is_empty(), "it runs, or is skipped with a reason");
}

#[test]
fn damage_of_any_kind_is_found() {
    assert_held(&damage::run(&plan(29, 1)).unwrap(), 700);
}

#[test]
fn concurrent_processes_that_are_paused_and_killed_agree_in_the_end() {
    assert_held(&concurrent::run(&plan(1, 1), 1, Duration::from_secs(3)).unwrap(), 20);
}
