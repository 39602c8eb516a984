//! The scenarios: what is done to a store while it is interrupted.
//!
//! A scenario prepares a home, acts on it in a child process, and may check more than [`crate::check`] does. Acting
//! again after any interruption must have the same result: that is what commit keys are for. To add one: write `prepare` and `act`
//! below, and a line in [`ALL`].

use selvedge_store_local::LocalStore;

use crate::LabResult;
use crate::check::CheckResult;
use crate::fact::{Fact, FactRecorder};
use crate::home::Home;

mod accounts;
mod appends;
mod coordination;
mod effects;
mod maintenance;
mod recording_store;
mod runs;
pub(crate) mod streams;

/// One scenario.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Creates its initial home; no process has the store open afterwards.
    pub prepare: fn(&Home) -> LabResult,
    /// Executes it, and records what the store acknowledges.
    pub act: fn(&Home, &mut FactRecorder) -> LabResult,
    /// Additional checks.
    pub check: fn(&Home, &LocalStore, &[Fact]) -> CheckResult,
    /// Whether the checks may only succeed after it was executed again.
    pub unsettled: bool,
}

fn nothing(_: &Home, _: &LocalStore, _: &[Fact]) -> CheckResult {
    Ok(())
}

const fn plain(
    name: &'static str,
    prepare: fn(&Home) -> LabResult,
    act: fn(&Home, &mut FactRecorder) -> LabResult,
) -> Scenario {
    Scenario { name, prepare, act, check: nothing, unsettled: false }
}

/// All scenarios.
pub static ALL: &[Scenario] = &[
    plain("create", appends::empty, appends::create),
    plain("append", appends::two_threads, appends::append),
    plain("batch", appends::two_threads, appends::batch),
    Scenario { check: accounts::requests_agree, ..plain("posting", accounts::account, accounts::post) },
    plain("drain", appends::undrained, appends::drain),
    plain("sync", appends::two_threads, appends::sync),
    plain("lease", appends::two_threads, appends::lease),
    Scenario { check: maintenance::buried, ..plain("delete", appends::two_threads, maintenance::delete) },
    Scenario { check: maintenance::title_shown, ..plain("manifest", appends::two_threads, maintenance::rename) },
    plain("blob", appends::two_threads, maintenance::blob),
    Scenario { check: effects::whole, ..plain("effects", effects::unrecorded, effects::effects) },
    Scenario { unsettled: true, ..plain("rotation", appends::two_threads, maintenance::rotate) },
    Scenario {
        unsettled: true,
        check: maintenance::quarantined,
        ..plain("repair", maintenance::damaged, maintenance::repair)
    },
    plain("import", maintenance::with_file, maintenance::import),
    Scenario { unsettled: true, ..plain("reindex", accounts::account, maintenance::reindex) },
    plain("backup", appends::undrained, maintenance::backup),
    Scenario { check: runs::paid_once, ..plain("run", runs::unpaid, runs::run) },
    Scenario { check: runs::conserved, ..plain("priced", runs::unpaid, runs::run_priced) },
    Scenario { check: streams::charged, ..plain("streamed", runs::unpaid, streams::run) },
    Scenario { check: runs::paid_once_by_each_call, ..plain("hooks", runs::unpaid, runs::run_hooks) },
    Scenario { check: runs::saved, ..plain("snapshot", runs::unpaid, runs::run_saving) },
    Scenario { check: coordination::whole, ..plain("approve", runs::unpaid, coordination::approve) },
    Scenario { check: coordination::whole, ..plain("over", runs::unpaid, coordination::hand_over) },
    Scenario { check: coordination::raised, ..plain("spawn", runs::unpaid, coordination::spawn) },
    Scenario { check: coordination::raised, ..plain("detach", runs::unpaid, coordination::detach) },
    Scenario { check: accounts::chain_agrees, ..plain("handoff", appends::two_threads, accounts::handoff) },
];

/// The scenario with this name.
pub fn named(name: &str) -> LabResult<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name).ok_or_else(|| format!("there is no scenario `{name}`").into())
}
