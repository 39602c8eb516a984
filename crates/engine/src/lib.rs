//! Runs threads. One message, in order: admit, lease, decide and do, commit, tell.
//!
//! In reading order:
//!
//! - [`assignment`]: what a run is done with: the model, the tools, the limits. `start`: what starts a run.
//! - [`engine`]: the handle, and the verbs: `send`, `resume`, `cancel`, `kill`, `settle`, `recover`.
//! - `links`: the threads of a chain, run one after another. `held`: a thread under lease; the one place where a run commits. `fold` and `conversation`: what is known of it,
//!   kept between commits and between runs, so that the next turn costs what the first did.
//! - [`inbox`]: requests to a thread, delivered, drained and answered. [`deciding`]: what people decide about calls; `approval`: what such
//!   a decision is bound to and what it means.
//! - `watcher`: one thread that looks at the inboxes and the running time of all runs; `beat`: how long a run went on whose process died.
//! - `continuation`: a thread that goes on in another one; `carry`: what that one takes along.
//! - `decide`: what a run does next, a pure function of the fold, of what this process knows and of the rules; `stops`: whether it goes in
//!   circles. `run` does what is decided and waits: `turn` is what it has asked the model, `calls` makes the calls of a turn. `names`: the
//!   ids that a run makes.
//! - `tasks`: where runs go on; `within`: how what they wait for is stopped; `feed` wakes what waits for commits. [`submitted`](Submitted):
//!   what goes on by itself for a caller.
//! - [`circles`]: whether a wait leads back to whoever waits. [`orphans`]: what dead processes left, settled by whoever finds it.
//! - [`outcome`]: how a thread ended or stands, in one form for every door.
//! - [`chain`], [`search`], [`wait`], [`standing`], [`transcript`]: what is asked of threads and their chains by whoever does not run
//!   them; they only read, and are the same through every door.
//! - [`snapshot`]: the fold of a log, saved and read back; `saving`: when, beside a run or before it goes on.
//! - [`replay`]: a recorded thread run again, offline, and compared step by step.
//! - [`events`]: what runs do and what is committed, for any number of subscribers.
//! - [`redact`]: what must never reach a log; `mask` keeps it out of drafts.
//!
//! What holds:
//!
//! - Nothing is told as done before its commit returned. Drafts are marked as drafts.
//! - A delta is never dropped: it is committed, then forgotten, in this order.
//! - A call that may run at most once is dispatched only right after its intent was committed.
//! - A thread can be taken up after a kill at any moment: what has an outcome is not done again.
//!
//! The verbs of [`Engine`] block until they are done, and need no runtime of their own; [`Engine::submit`] returns at once, and what it gives
//! can be awaited on any runtime. Runs go on in tasks of the engine's own, and a run that waits costs no thread.

mod approval;
pub mod assignment;
mod beat;
mod calls;
mod carry;
pub mod chain;
pub mod circles;
mod continuation;
mod conversation;
mod decide;
pub mod deciding;
pub mod engine;
pub mod error;
pub mod events;
mod feed;
mod fold;
mod follow;
mod handover;
mod held;
pub mod inbox;
pub mod ledger;
mod links;
mod mask;
mod names;
pub mod orphans;
pub mod outcome;
mod places;
pub mod redact;
pub mod replay;
mod run;
mod saving;
pub mod search;
pub mod snapshot;
pub mod spawn;
pub mod standing;
mod start;
mod stopping;
mod stops;
mod submitted;
mod tasks;
pub mod transcript;
mod turn;
pub mod wait;
mod watcher;
mod within;

pub use assignment::{Assignment, Permission};
pub use deciding::{Choice, Decided, Recorded};
pub use engine::{Engine, Options};
pub use error::{Error, Result};
pub use events::{NoticeKind, RunEvent, Subscription, Watched};
pub use inbox::Delivered;
pub use outcome::{Outcome, Resumed};
pub use redact::Redactor;
pub use selvedge_model::Input;
pub use stopping::Stopped;
pub use submitted::{Submitted, Tell};
