//! Threads on one machine: signed files, with SQLite as commit point and index.
//!
//! In reading order:
//!
//! - [`layout`]: the paths of a store. [`disk`]: the only access to files. [`system`]: the machine's clock and random source.
//! - `open`: creating, opening and closing a store. `core`: what its modules share.
//! - `schema`, `rows`: the database. `sealed`: which key or signature protects each column.
//! - `commit`: how a batch becomes durable and visible, with `view` before it, `selvedge_store::group` around it, `drain` and `sync` after
//!   it.
//! - `redo`: committed bytes that may not be durable in their transcript yet. `overlay`: a transcript with its redo applied.
//!   `transcript_repair`: repairs a transcript that does not have the expected length.
//! - `watch`: waiting for commits of this process or another one.
//! - `inbox`: requests to threads.
//! - `contracts`, `lease`, `registry`, `blobs`, `delete`, `manifest`, `capabilities`: the other operations of a store.
//! - `verify`: verifies a log without writing; `row_comparison` compares it with its rows. `unindexed`: logs without rows in the database.
//! - `leading_events`: the events that the next changeset of a thread leads with.
//! - `index`: writes the rows of a thread. `replay`, `ledger`: a log read into them. `reindex`: all logs.
//! - `heads`: the head of every log, for a list that is kept elsewhere.
//! - `search`: the full-text index, `search.db`. `effects`: usage records, embeddings, and how far effects are.
//! - [`doctor`], `backup`, `restore` (with `copy_check` for both), `erase`: checking everything, copies, and erasing content.

pub mod disk;
pub mod doctor;
pub mod layout;
pub mod system;

mod anchor;
mod backup;
mod blobs;
mod cache;
mod capabilities;
mod commit;
mod contracts;
mod copy_check;
mod core;
mod db;
mod delete;
mod drain;
mod dump;
mod effects;
mod erase;
mod family;
mod feed;
mod handles;
mod heads;
mod import_archive;
mod import_log;
mod inbox;
mod index;
mod knowledge;
mod leading_events;
mod lease;
mod ledger;
mod logged;
mod lru;
mod manifest;
mod open;
mod overlay;
mod pages;
mod problems;
#[cfg(test)]
mod query_plans;
mod redo;
mod registry;
mod reindex;
mod repair;
mod replay;
mod restore;
mod row_comparison;
mod rows;
mod schema;
mod schema_check;
mod sealed;
mod search;
mod snapshots;
mod sync;
#[cfg(test)]
mod testing;
mod transcript_repair;
mod unindexed;
mod verify;
mod view;
mod wal;
mod watch;

pub use backup::{BackedUp, Backup};
pub use copy_check::FailedCheck;
pub use erase::Erasure;
pub use open::{Access, LocalStore, Opened, Options};
pub use problems::Problems;
pub use reindex::{LeftOut, Rebuild, Reindexed};
pub use repair::{Provisional, Repair, RepairStep, Repaired};
pub use restore::Restored;
