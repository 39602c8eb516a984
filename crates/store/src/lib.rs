//! What a store of threads must do: the contracts, what every backend shares, the in-memory store and the suite that
//! shows whether a backend keeps its word.
//!
//! In reading order:
//!
//! - [`contract`]: the small traits, and [`Store`], all of them together.
//! - [`prepare`]: from what a caller asks to what a backend must make durable.
//! - [`inbox`]: what every backend shares about requests.
//! - [`load`]: a thread as its log tells it. [`queue`], [`lease`]: waiting in line. [`chain`], [`blob`]: what threads are joined by and
//!   what lies beside their logs. [`buried`]: what goes with a log that is deleted.
//! - [`snapshot`]: what spares whoever loads a long thread most of its log.
//! - `forward`: a store around another one.
//! - [`memory`]: a store without a disk. [`nova`]: threads from files of the older form, and back.
//! - `conformance`: the public suite, behind the feature of that name.

pub mod blob;
mod books;
pub mod buried;
pub mod chain;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
pub mod error;
mod forward;
pub mod inbox;
pub mod lease;
pub mod load;
pub mod memory;
pub mod nova;
pub mod prepare;
pub mod queue;
pub mod snapshot;

pub use contract::{
    Acquire, Arrival, Commit, Commitment, Committed, CommittedPart, Cursor, Feed, Filter, Inbox, Lease, Leases, Ledger,
    Left, Logs, Page, Position, Registry, Store, Summary, Tombstone, Waiting,
};
pub use error::{Error, Result};
#[doc(hidden)]
pub use selvedge_log as log;
#[doc(hidden)]
pub use selvedge_model as model;
pub use snapshot::Snapshots;
