//! What a store of threads must do: the contracts, what every backend shares, the in-memory store and the suite that
//! shows whether a backend keeps its word.
//!
//! In reading order:
//!
//! - [`contract`]: the small traits, and [`Store`], all of them together.
//! - [`prepare`]: from what a caller asks to what a backend must make durable.
//! - [`group`]: jobs that wait at the same time are committed together. [`inbox`]: what every backend shares about requests.
//! - [`load`]: a thread as its log tells it. [`queue`], [`lease`]: waiting in line. [`chain`], [`blob`]: what threads are joined by and
//!   what lies beside their logs. [`buried`]: what goes with a log that is deleted.
//! - [`heads`]: where every log ended, signed and kept elsewhere.
//! - [`snapshot`]: what spares whoever loads a long thread most of its log.
//! - [`newest`]: threads named by their age.
//! - [`manifest`], [`capabilities`]: the signed pages beside a log. [`verify`]: judging a thread, with [`folded`]: what its log folds to.
//!   [`archive`]: a thread as one file.
//! - [`backend`]: all that commands ask of a store. [`doctor`]: what an examination of one finds.
//! - `forward`: a store around another one.
//! - [`memory`]: a store without a disk.
//! - `conformance`: the public suite, behind the feature of that name.

pub mod archive;
pub mod backend;
pub mod blob;
mod books;
pub mod buried;
pub mod capabilities;
pub mod chain;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
pub mod doctor;
pub mod error;
pub mod folded;
mod forward;
pub mod group;
pub mod heads;
pub mod inbox;
pub mod lease;
pub mod load;
pub mod manifest;
pub mod memory;
pub mod newest;
pub mod prepare;
pub mod queue;
pub mod seal;
pub mod snapshot;
pub mod verify;

pub use archive::Archives;
pub use backend::{Attest, Backend, Erase, Handle, Pages};
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
pub use verify::{Stored, Verify};
