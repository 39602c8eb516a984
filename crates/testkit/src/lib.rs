//! The crash laboratory: what Selvedge promises, put to the test where it hurts.
//!
//! In reading order:
//!
//! - [`home`]: a store and its keys in one folder. [`fact`]: what somebody was told, and what must therefore be true.
//! - [`scenario`]: the list of what is done to a store while it is cut. [`check`]: what must hold afterwards.
//! - [`shim`], [`trace`]: a hand on a real process, and what it saw.
//! - [`tree`], [`disk`]: files as values, and what may be left of them after a power cut.
//! - [`run`]: the experiments. [`tally`]: what they came to.
//!
//! `docs/LABORATORY.md` says what is simulated and what is not.

pub mod check;
pub mod disk;
pub mod fact;
pub mod home;
pub mod run;
pub mod scenario;
pub mod shim;
pub mod tally;
pub mod trace;
pub mod tree;

/// What goes wrong in the laboratory itself, or in what it tries.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// An attempt.
pub type Tried<T = ()> = Result<T, Trouble>;
