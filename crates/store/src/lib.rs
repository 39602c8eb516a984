//! The store of threads: its contracts, what every backend shares, the in-memory store and the suite that tests whether a backend fulfils
//! the contracts.
//!
//! In reading order:
//!
//! - [`contract`]: the small traits, and [`Store`], all of them together.
//! - [`prepare`]: from a caller's batch to what a backend must make durable.
//! - [`group`]: jobs that wait at the same time are committed together. [`inbox`]: what every backend shares about requests.
//! - [`load`]: a thread, folded from its log. [`queue`], [`lease`]: queues and leases. [`chain`], [`blob`]: chains of continued threads,
//!   and the blobs beside their logs. [`tombstone`]: what is signed about a deleted thread.
//! - [`derived`]: the rows of a thread, and [`account_records`]: accounts, both computed from logs.
//! - [`heads`]: the head of every log, signed and kept elsewhere.
//! - [`newest`]: threads named by their age.
//! - [`seal`]: the marks by which rows of a database count, written once for every backend; [`saved_state`]: a folded state with such a mark.
//! - [`snapshot`]: folds of long logs, so that loading them reads only what was appended since.
//! - [`manifest`], [`capabilities`]: the signed files beside a log. [`verify`]: verifying a thread, with [`folded`]: the fold of its log.
//!   [`archive`]: a thread as one file.
//! - [`backend`]: everything that commands need from a store. [`doctor`]: the findings of an examination.
//! - [`search`]: full-text search: the query grammar, documents, ranking and the contract of an index.
//! - [`effects`]: what is done after a run, and how far; [`usage`]: what runs used; [`pages`]: what people read of a thread.
//! - `forward`: a store that wraps another one.
//! - [`memory`]: a store without a disk.
//! - `conformance`: the public suite, behind the feature of that name.

pub mod account_records;
pub mod archive;
pub mod backend;
mod batch_accounts;
pub mod blob;
pub mod capabilities;
pub mod chain;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
pub mod derived;
pub mod doctor;
pub mod effects;
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
pub mod pages;
pub mod prepare;
pub mod queue;
pub mod saved_state;
pub mod seal;
pub mod search;
pub mod snapshot;
pub mod tombstone;
pub mod usage;
pub mod verify;

pub use archive::Archives;
pub use backend::{Backend, Erase, Handle, ReadHeads, SignedFiles};
pub use contract::{
    Acquire, Commit, Committed, CommittedPart, Cursor, Delivery, Feed, FeedEntry, Filter, Inbox, Lease, Leases, Ledger,
    Logs, Page, Position, PostedNotice, QueuedRequest, Registry, Store, Summary, Tombstone,
};
pub use error::{Error, Result};
pub use pages::Pages;
#[doc(hidden)]
pub use selvedge_log as log;
#[doc(hidden)]
pub use selvedge_model as model;
pub use snapshot::Snapshots;
pub use verify::{StoredThread, Verify};
