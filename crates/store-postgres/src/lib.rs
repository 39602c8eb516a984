//! Threads on PostgreSQL, for workers on any number of machines.
//!
//! The log of a thread is the same bytes as in every store, a row for each commit. What a batch becomes is decided by
//! [`selvedge_store::prepare`]; this crate compares the rows that it was prepared from and writes, in one call of one function of the
//! database. The signing key never reaches the server: every row that decides something is sealed by the client.
//!
//! In reading order:
//! - `open`: migrations, opening. `address`, `tls`, `pool`, `error`: the connection.
//! - `core`, `rows`, `view`: what a commit is prepared from. `commit`: how it becomes durable. `migrations/`: the function that does it.
//! - `lease`, `pulse`: who may write. `inbox`, `ledger`: requests and accounts.
//! - `feed`, `watch`: following. `registry`, `logs`, `delete`, `documents`, `verify`, `import`: reading, removing, moving threads.
//! - `search`, `effects`, `pages`: what is derived.
//! - `sealed`: how every column of the database is protected.
//! - `contracts`: the traits. `test_server`, behind a feature: servers for tests.

mod address;
mod commit;
mod contracts;
mod core;
mod delete;
mod documents;
mod effects;
mod error;
mod feed;
mod import;
mod inbox;
mod lease;
mod ledger;
mod logs;
mod open;
mod pages;
mod pool;
mod pulse;
mod registry;
mod rows;
#[cfg(all(test, feature = "test-server"))]
mod sealed;
mod search;
#[cfg(feature = "test-server")]
pub mod test_server;
mod tls;
mod verify;
mod view;
mod watch;

pub use address::shown;
pub use open::{LEASE, Options, PostgresStore, Problems, Replication, replication};
