//! The list of what is done to a store while it is cut.
//!
//! A scenario prepares a home, acts on it in a child process, and may look at more than [`crate::check`] looks at anyway. Acting
//! again after any cut must come to the same end: that is what commit keys are for. To add one: write `prepare` and `act`
//! below, and a line in [`ALL`].

use selvedge_store_local::LocalStore;

use crate::Tried;
use crate::check::Held;
use crate::fact::{Fact, Teller};
use crate::home::Home;

mod appending;
mod keeping;
mod orchestrating;
mod running;
mod spending;
mod witnessed;

/// Something that is done to a store.
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// Makes the home it begins with; the store is left without an owner.
    pub prepare: fn(&Home) -> Tried,
    /// Does it, and tells what the store told.
    pub act: fn(&Home, &mut Teller) -> Tried,
    /// What must hold besides.
    pub check: fn(&Home, &LocalStore, &[Fact]) -> Held,
    /// Whether a store that was cut may need it done again before all is as it must be.
    pub unsettled: bool,
}

fn nothing(_: &Home, _: &LocalStore, _: &[Fact]) -> Held {
    Ok(())
}

const fn plain(name: &'static str, prepare: fn(&Home) -> Tried, act: fn(&Home, &mut Teller) -> Tried) -> Scenario {
    Scenario { name, prepare, act, check: nothing, unsettled: false }
}

/// Every scenario.
pub static ALL: &[Scenario] = &[
    plain("create", appending::empty, appending::create),
    plain("append", appending::two_threads, appending::append),
    plain("batch", appending::two_threads, appending::batch),
    Scenario { check: spending::requests_agree, ..plain("posting", spending::account, spending::post) },
    plain("drain", appending::undrained, appending::drain),
    plain("sync", appending::two_threads, appending::sync),
    plain("lease", appending::two_threads, appending::lease),
    Scenario { check: keeping::buried, ..plain("delete", appending::two_threads, keeping::delete) },
    Scenario { check: keeping::title_shown, ..plain("manifest", appending::two_threads, keeping::rename) },
    plain("blob", appending::two_threads, keeping::blob),
    Scenario { unsettled: true, ..plain("rotation", appending::two_threads, keeping::rotate) },
    Scenario { unsettled: true, check: keeping::quarantined, ..plain("repair", keeping::damaged, keeping::repair) },
    plain("import", keeping::with_file, keeping::import),
    Scenario { unsettled: true, ..plain("reindex", spending::account, keeping::reindex) },
    plain("backup", appending::undrained, keeping::backup),
    Scenario { check: running::paid_once, ..plain("run", running::unpaid, running::run) },
    Scenario { check: running::conserved, ..plain("priced", running::unpaid, running::run_priced) },
    Scenario { check: running::saved, ..plain("snapshot", running::unpaid, running::run_saving) },
    Scenario { check: orchestrating::whole, ..plain("approve", running::unpaid, orchestrating::approve) },
    Scenario { check: orchestrating::whole, ..plain("over", running::unpaid, orchestrating::hand_over) },
    Scenario { check: orchestrating::raised, ..plain("spawn", running::unpaid, orchestrating::spawn) },
    Scenario { check: orchestrating::raised, ..plain("detach", running::unpaid, orchestrating::detach) },
    Scenario { check: spending::chain_agrees, ..plain("handoff", appending::two_threads, spending::handoff) },
];

/// The scenario of this name.
pub fn named(name: &str) -> Tried<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name).ok_or_else(|| format!("there is no scenario `{name}`").into())
}
