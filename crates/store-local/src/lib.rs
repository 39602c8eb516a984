//! Threads on one machine: signed files, with SQLite as commit point and index.
//!
//! In reading order:
//!
//! - [`layout`]: where everything lies. [`disk`]: the one door to files. [`system`]: the machine's clock and chance.
//! - `open`: making, opening and closing a store. `core`: what its parts share.
//! - `schema`, `rows`: the database.
//! - `commit`: how a batch becomes durable and visible, with `view` before it, `group` around it, `drain` and `sync` behind it.
//! - `overlay`: a transcript with its redo laid over it. `settle`: a transcript that is not as long as it should be.
//! - `contracts`, `lease`, `registry`, `blobs`, `delete`, `manifest`: the rest of what a store does.
//! - `verify`: judging a log without writing.

pub mod disk;
pub mod layout;
pub mod system;

mod blobs;
mod commit;
mod contracts;
mod core;
mod delete;
mod drain;
mod group;
mod lease;
mod manifest;
mod open;
mod overlay;
mod registry;
mod rows;
mod schema;
mod settle;
mod sync;
mod verify;
mod view;

pub use open::{Access, LocalStore, Opened, Options};
pub use verify::Verdict;
