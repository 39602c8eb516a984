//! Runs threads. One message, in order: admit, lease, decide and do, commit, tell.
//!
//! In reading order:
//!
//! - [`assignment`]: what a run is done with: the model, the tools, the limits. [`input`]: what starts a run.
//! - [`engine`]: the handle, and the verbs: `send`, `resume`, `cancel`, `kill`, `settle`, `recover`.
//! - `held`: a thread under lease; the one place where a run commits. `fold` and `conversation`: what is known of it,
//!   kept between commits and between runs, so that the next turn costs what the first did.
//! - `run`: one run as a list of named steps. `turn`: one answer of the model. `calls`: the tool calls of a turn, new ones
//!   and those that an earlier life left open.
//! - [`redact`]: what must never reach a log; `mask` keeps it from whoever watches. [`told`]: what is told to whoever watches.
//!
//! What holds:
//!
//! - Nothing is told as done before its commit returned. Drafts are marked as drafts.
//! - A delta is never dropped: it is committed, then forgotten, in this order.
//! - A call that may run at most once is dispatched only right after its intent was committed.
//! - A thread can be taken up after a kill at any moment: what has an outcome is not done again.
//!
//! Everything here blocks, as the store does; a program with an async runtime gives a run a thread of its own.

pub mod assignment;
mod calls;
mod conversation;
pub mod engine;
pub mod error;
mod fold;
mod follow;
mod held;
pub mod input;
mod mask;
pub mod redact;
mod run;
pub mod told;
mod turn;

pub use assignment::{Assignment, Permission};
pub use engine::{Engine, Options};
pub use error::{Error, Result};
pub use input::Input;
pub use redact::Redactor;
pub use told::{Ended, Told};
