//! Properties of every parser that reads untrusted input, for any input.
//!
//! Each module is one target: `run` takes any bytes and panics if a property is violated; `seeds` gives a few valid inputs to start from,
//! made from the golden files. libFuzzer drives them in `cargo xtask fuzz`; the ordinary tests run every input that ever failed, and some
//! thousand mutations of the seeds, always the same ones.
//!
//! In reading order:
//!
//! - [`golden`]: the keys, the thread and the files that all targets start from. [`mutate`]: small damage, from a seed.
//! - [`mod@line`], [`log`], [`sealed_log`], [`differential`]: lines and logs; compared with the verifier in Python.
//! - [`changeset`]: what `selvedge append` reads.
//! - [`document`], [`trust`], [`keychain`]: signed documents, and which keys are trusted.
//! - [`nova`], [`archive`]: imports. [`restore`], [`store_json`]: a backup, and `store.json`.
//! - [`config`], [`item`]: the configuration of a project, and the files that its users write.
//! - [`snapshot`]: the snapshots that a run starts from.

pub mod archive;
pub mod changeset;
pub mod config;
pub mod differential;
pub mod document;
pub mod golden;
pub mod item;
pub mod keychain;
pub mod line;
pub mod log;
pub mod mutate;
pub mod nova;
pub mod restore;
pub mod sealed_log;
pub mod snapshot;
pub mod store_json;
pub mod trust;

/// One fuzz target.
pub struct Target {
    /// Its name, as a module here and as a program in `fuzz_targets`.
    pub name: &'static str,
    /// Takes any bytes; panics if a property is violated.
    pub run: fn(&[u8]),
    /// Valid inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How many mutations the ordinary tests run.
    pub mutations: u64,
}

/// All targets.
pub const TARGETS: [Target; 15] = [
    Target { name: "line", run: line::run, seeds: line::seeds, mutations: 4_000 },
    Target { name: "log", run: log::run, seeds: log::seeds, mutations: 2_000 },
    Target { name: "sealed_log", run: sealed_log::run, seeds: sealed_log::seeds, mutations: 2_000 },
    Target { name: "changeset", run: changeset::run, seeds: changeset::seeds, mutations: 2_000 },
    Target { name: "document", run: document::run, seeds: document::seeds, mutations: 2_000 },
    Target { name: "trust", run: trust::run, seeds: trust::seeds, mutations: 1_000 },
    Target { name: "keychain", run: keychain::run, seeds: keychain::seeds, mutations: 1_000 },
    Target { name: "nova", run: nova::run, seeds: nova::seeds, mutations: 1_000 },
    Target { name: "archive", run: archive::run, seeds: archive::seeds, mutations: 1_000 },
    Target { name: "config", run: config::run, seeds: config::seeds, mutations: 400 },
    Target { name: "item", run: item::run, seeds: item::seeds, mutations: 4_000 },
    Target { name: "snapshot", run: snapshot::run, seeds: snapshot::seeds, mutations: 2_000 },
    Target { name: "restore", run: restore::run, seeds: restore::seeds, mutations: 150 },
    Target { name: "store_json", run: store_json::run, seeds: store_json::seeds, mutations: 400 },
    Target { name: "differential", run: differential::run, seeds: sealed_log::seeds, mutations: 400 },
];
