//! Snapshots: `state.json`, the fold of a log at a version, for people, for other programs, and to spare whoever loads a long thread most
//! of its log.
//!
//! In reading order:
//!
//! - [`trigger`]: when one is saved. `body`: what it says. [`schema`]: whether it may say so.
//! - [`form`]: only what changed, and packed. [`retain`]: which older ones go.
//! - `keeper`: saving one. `open`: a thread from one, and the log behind it.
//!
//! What holds:
//!
//! - A snapshot is never trusted over the log: it is signed, it names the version and the hash of the log that it folds, and the store
//!   vouches for what stands before it, or the log is read from its beginning.
//! - Nothing is saved that the schema refuses, and nothing is used that it refuses.
//! - A snapshot that can't be saved never fails a run. That is recorded in the thread and told to whoever watches.

mod body;
pub mod form;
mod keeper;
mod open;
pub mod retain;
pub mod schema;
pub mod trigger;

pub use keeper::Keeper;
pub(crate) use keeper::{Failure, Last, NewestIs};
pub(crate) use open::Begun;
pub use open::{Newest, examined, from_log, newest};
pub use schema::{Schema, SchemaError};
pub use trigger::Trigger;

/// A log shorter than this is read whole, which is as fast and checks every byte of it; so that long it is not worth a snapshot by itself.
pub const WORTH_BYTES: u64 = 64 << 10;
