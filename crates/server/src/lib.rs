//! Serves the threads of a project over HTTP: an API under `/v1`, live events, and a page for people.
//!
//! The server adds no meaning: every request becomes a call of [`selvedge::Selvedge`], with the same JSON and the same error codes as the
//! command line.
//!
//! In reading order:
//!
//! - [`token`]: who may do what. A token has a scope; its hash is in a file of the user.
//! - `access`: which requests are let in: the names of the host, the origin of a page, one-time links, tokens.
//! - `routes`: the table of all routes, each with the scope that it needs.
//! - `threads`, `log`, `decisions`: what the routes do. `inbox`: what waits for a person.
//! - `live`: the event stream. `feed`: one thread that follows the store for all streams.
//! - `page`: the files of the page, which are part of the program.
//! - `listen`: connections, their limits, and the shutdown.
//! - `problem`: errors as responses.
//!
//! Invariants:
//!
//! - No route is reachable without a token of its scope, except those that hand out the page's own files and exchange a one-time code.
//! - A committed event is sent to a stream once, in order, or the stream is told from where to read again.
//! - No request blocks the runtime: what blocks runs on threads of its own.

mod access;
mod decisions;
mod feed;
mod inbox;
mod listen;
mod live;
mod log;
mod page;
mod problem;
mod routes;
mod threads;
pub mod token;

pub use listen::{Options, ServeError, Server};
pub use routes::{ROUTES, Route};
pub use token::{Scope, TokenError, Tokens};
