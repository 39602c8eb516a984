//! Runs threads. For each message, in order: admit, lease, decide, perform, commit, publish.
//!
//! In reading order:
//!
//! - [`run_config`]: what a run works with: the model, the tools, the limits. `start`: what starts a run.
//! - [`engine`]: the handle and its operations: `send`, `resume`, `cancel`, `kill`, `settle`, `recover`.
//! - `chain_run`: runs the threads of a chain, one after another. `held`: a thread under lease; the only place where a run commits.
//!   `fold` and `conversation`: the folded state of a thread, kept between commits and between runs, so that a late turn costs no more than
//!   the first.
//! - [`inbox`]: requests to a thread: delivered, drained and answered. [`decisions`]: decisions about tool calls; `approval`: the action that
//!   a decision is bound to, and its effect.
//! - `watcher`: one thread that tells runs of their requests, and tasks of commits and freed leases; `heartbeat`: how long a run lasted whose
//!   process died.
//! - `continuation`: a thread that continues in a successor; `carryover`: the messages that the successor starts with.
//! - `decide`: what a run does next and what it commits, a pure function of the fold, of what this process knows and of the rules; `stop_policy`:
//!   whether a run repeats itself. `run` performs what was decided and waits; `calls` makes the tool calls of a turn. `derived_ids`: derives the
//!   ids that a run assigns; `answer_size`: bounds what is recorded of an answer.
//! - [`hooks`]: the actions at the events of a run; `decide/hooks` decides when they fire and what follows.
//! - [`graph`]: the graph that a run walks; `decide/graph` decides its steps.
//! - `tasks`: the thread pool that polls runs; `grace`: how a pending operation is stopped;
//!   [`submitted`](Submitted): work that continues in the background for a caller.
//! - [`deadlock`]: whether a wait would be a deadlock. [`orphans`]: runs that dead processes left, settled by the next process that finds them.
//! - [`outcome`]: how a thread ended, or its state; one form for the library, the CLI and HTTP.
//! - [`chain`], [`search`], [`thread_search`], [`wait`], [`thread_state`], [`transcript`], [`transcript_entries`], [`blobs`]: read-only queries about threads and
//!   chains, for callers that don't run them.
//! - [`titles`]: a title for a thread without one.
//! - [`snapshot`]: the fold of a log, saved and read back; `snapshot_saving`: when one is saved.
//! - [`replay`]: runs a recorded thread again, offline, and compares it step by step.
//! - [`events`]: what runs do and commit, for any number of subscribers.
//! - [`redact`]: removes secrets before they reach a log; `draft_mask`: before they reach a draft.
//!
//! Invariants:
//!
//! - Nothing is published as done before its commit returned. Drafts are marked as drafts.
//! - A delta is never dropped: it is committed, then cleared, in this order.
//! - A call that may run at most once is dispatched only right after its intent was committed.
//! - A thread can be resumed after a kill at any moment: a call that has an outcome is not made again.
//!
//! The methods of [`Engine`] block until they are done, and need no runtime; [`Engine::submit`] returns at once, and its result can be
//! awaited on any runtime. Runs are tasks of the engine, and a waiting run occupies no thread.

mod answer_size;
mod approval;
pub mod blobs;
mod calls;
mod carryover;
pub mod chain;
mod chain_run;
mod chain_wait;
mod child_slots;
mod continuation;
mod conversation;
pub mod deadlock;
mod decide;
pub mod decisions;
mod derived_ids;
mod draft_mask;
pub mod engine;
pub mod error;
pub mod events;
mod fold;
mod grace;
pub mod graph;
mod heartbeat;
mod held;
pub mod hooks;
pub mod inbox;
pub mod ledger;
mod log_follower;
pub mod orphans;
pub mod outcome;
pub mod probed;
pub mod redact;
pub mod replay;
mod run;
pub mod run_config;
pub mod search;
pub mod snapshot;
mod snapshot_saving;
pub mod spawn;
mod start;
mod stop;
mod stop_policy;
mod submitted;
mod tasks;
pub mod thread_search;
pub mod thread_state;
pub mod titles;
pub mod transcript;
pub mod transcript_entries;
pub mod wait;
mod watcher;

pub use decisions::{Choice, Decided, Recorded};
pub use engine::{Engine, Options};
pub use error::{Error, Result};
pub use events::{NoticeKind, RunEvent, Subscription, Watched};
pub use inbox::Delivered;
pub use outcome::{Outcome, Resumed};
pub use redact::Redactor;
pub use run_config::{Permission, RunConfig};
pub use selvedge_model::Input;
pub use stop::Stopped;
pub use submitted::{EventHandler, Submitted};
pub use watcher::Waiter;
