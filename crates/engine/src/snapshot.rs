//! Snapshots: `state.json`, the fold of a log at a version, for people, for other programs, and to load a long thread without reading most of
//! its log.
//!
//! In reading order:
//!
//! - [`trigger`]: when one is saved. `body`: its content. [`schema`]: checks the content.
//! - [`form`]: incremental and compressed snapshots. [`retain`]: which older ones are removed.
//! - `keeper`: saves one. `open`: loads a thread from one, and the rest of the log.
//!
//! Invariants:
//!
//! - A snapshot is never trusted over the log: it is signed, it names the version and the hash of the log that it folds, and the store's
//!   seal covers the log before that; otherwise the log is read from its beginning.
//! - Nothing that the schema refuses is saved, or used.
//! - A snapshot that can't be saved never fails a run. The failure is recorded in the thread and published.

mod body;
pub mod form;
mod keeper;
mod open;
pub mod retain;
pub mod schema;
pub mod trigger;

pub use keeper::Keeper;
pub(crate) use keeper::{LastSave, NewestState, SaveFailure};
pub(crate) use open::Loaded;
pub use open::{Newest, examined, from_log, newest, newest_of};
pub use schema::{Schema, SchemaError};
pub use trigger::Trigger;

/// A log shorter than this is read whole, which is as fast and verifies every byte; it gets no snapshot because of its length alone.
pub const WORTH_BYTES: u64 = 64 << 10;
