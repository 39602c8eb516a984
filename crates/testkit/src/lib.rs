//! The crash laboratory: tests the promises of Selvedge under crashes, failures and damage.
//!
//! In reading order:
//!
//! - [`home`]: a store and its keys in one folder. [`fact`]: what a store has acknowledged, and what must therefore be true.
//! - [`scenario`]: what is done to a store while it is interrupted. [`check`]: what must be true afterwards.
//! - [`shim`], [`trace`]: injects faults into a real process, and records its system calls.
//! - [`tree`], [`disk`]: files as values, and what may be left of them after a power failure.
//! - [`run`]: the experiments. [`tally`]: their results. [`page`]: where those are written down.
//!
//! `docs/LABORATORY.md` describes what is simulated and what is not.

pub mod check;
pub mod disk;
pub mod fact;
pub mod home;
pub mod page;
pub mod run;
pub mod scenario;
pub mod shim;
pub mod tally;
pub mod trace;
pub mod tree;

/// An error of the laboratory itself, or of what it tests.
pub type LabError = Box<dyn std::error::Error + Send + Sync>;

/// The result of a step.
pub type LabResult<T = ()> = Result<T, LabError>;
