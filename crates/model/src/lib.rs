//! The types of Selvedge and the pure rules between them. Nothing here touches a disk, a clock or a network.
//!
//! In reading order:
//!
//! - [`id`], [`time`], [`digest`], [`money`]: the small values.
//! - [`message`], [`path`], [`op`], [`patch`], [`scope`]: the messages and the state of a thread.
//! - [`event`], [`changeset`], [`batch`]: one line, one thread's part of a commit, one commit. [`blob`]: the blobs that a log names.
//! - [`request`]: requests to a thread.
//! - [`status`], [`run`], [`limits`], [`manifest`], [`fold`]: what is derived from the events.
//! - [`account`]: postings and the rules that keep a tree of threads within its budget.
//! - [`error`]: the questions every error answers. [`clock_and_ids`]: the clock and random numbers, as they are passed in. [`shell`]: quoting in
//!   commands that people paste.
//! - [`answer`], [`tool`], [`embed`]: the contracts of a language model, a tool and an embedder. [`price`]: what tokens cost. [`cancel`]: how their work is cancelled.
//!   [`secrets`]: secrets that are learned while the program runs.

pub mod account;
pub mod answer;
pub mod batch;
pub mod blob;
pub mod blocking;
pub mod cancel;
pub mod changeset;
pub mod clock_and_ids;
pub mod digest;
pub mod embed;
pub mod error;
pub mod event;
pub mod fold;
mod from_text;
pub mod id;
pub mod limits;
pub mod manifest;
pub mod message;
pub mod money;
pub mod op;
pub mod patch;
pub mod path;
pub mod price;
pub mod request;
pub mod run;
pub mod scope;
pub mod secrets;
pub mod shell;
pub mod status;
pub mod time;
pub mod token_estimate;
pub mod tool;

pub use answer::{Answer, Draft, Model, ModelError, Prompt};
pub use batch::{Batch, Expect, Part, Right};
pub use blob::NamedBlobs;
pub use cancel::{Cancel, Stop};
pub use changeset::{Changeset, Reason};
pub use clock_and_ids::{Clock, Ids};
pub use digest::Digest;
pub use embed::{EmbedError, Embedder};
pub use error::{Classify, Kind};
pub use event::{Event, NewThread};
pub use fold::Thread;
pub use id::{AgentId, CallId, CommitKey, DirectiveId, LogId, MessageId, OwnerId, RequestId, RunId, TaskId, ThreadId};
pub use manifest::Manifest;
pub use message::{Message, Role};
pub use money::Money;
pub use patch::Patch;
pub use price::Price;
pub use request::{Answered, Input, Origin, Posted, Request, RequestKind, Verdict};
pub use run::{Run, RunMeta};
pub use secrets::Secrets;
pub use status::{RunStatus, Status};
pub use time::Timestamp;
pub use tool::{Call, Output, Tool, ToolError, ToolKind, ToolSpec};
