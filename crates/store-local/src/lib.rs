//! Threads on one machine: signed files, with SQLite as commit point and index.
//!
//! In reading order:
//!
//! - [`layout`]: where everything lies. [`disk`]: the one door to files. [`system`]: the machine's clock and chance.
//! - `open`: making, opening and closing a store. `core`: what its parts share.
//! - `schema`, `rows`: the database. `sealed`: why each column of it may be believed.
//! - `commit`: how a batch becomes durable and visible, with `view` before it, `selvedge_store::group` around it, `drain` and `sync` behind it.
//! - `redo`: what is committed and perhaps not yet durable in its transcript. `overlay`: a transcript with it laid over. `settle`: a transcript that is not as long as it should be.
//! - `watch`: waiting for what is committed, here or by another process.
//! - `inbox`: requests to threads.
//! - `contracts`, `lease`, `registry`, `blobs`, `delete`, `manifest`, `capabilities`: the rest of what a store does.
//! - `verify`: judging a log without writing, with `folded`: what it says against its rows. `strays`: logs that the database does not know.
//! - `leads`: what the next changeset of a thread leads with.
//! - `index`: the rows of a thread, written in one place. `replay`, `ledger`: a log read into them. `reindex`: all logs.
//! - `heads`: where every log ends, for a list that is kept elsewhere.
//! - [`doctor`], `backup`, `restore` (with `copied` for both), `erase`: looking at everything, copies, and what must be forgotten.

pub mod disk;
pub mod doctor;
pub mod layout;
pub mod system;

mod adopt;
mod amiss;
mod anchor;
mod backup;
mod blobs;
mod bundle;
mod capabilities;
mod commit;
mod contracts;
mod copied;
mod core;
mod db;
mod delete;
mod drain;
mod dump;
mod erase;
mod family;
mod feed;
mod folded;
mod handles;
mod heads;
mod inbox;
mod index;
mod leads;
mod lease;
mod ledger;
mod manifest;
mod memory;
mod open;
mod overlay;
#[cfg(test)]
mod plans;
mod recent;
mod redo;
mod registry;
mod reindex;
mod repair;
mod replay;
mod restore;
mod rows;
mod saved_state;
mod schema;
mod sealed;
mod settle;
mod shape;
mod snapshots;
mod strays;
mod sync;
#[cfg(test)]
mod testing;
mod verify;
mod view;
mod wal;
mod watch;

pub use amiss::Amiss;
pub use backup::{BackedUp, Backup};
pub use copied::Bad;
pub use erase::Erasure;
pub use open::{Access, LocalStore, Opened, Options};
pub use reindex::{LeftOut, Rebuild, Reindexed};
pub use repair::{Mended, Provisional, Repair, Repaired};
pub use restore::Restored;
