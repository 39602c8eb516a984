//! Runs AI agents as durable threads on signed logs.
//!
//! Every step of a thread is committed to a signed, append-only log before it is reported to a caller. Kill the process at any moment:
//! the next process continues the same execution, and no finished effect is repeated.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! use selvedge::{Script, Scripted, Selvedge, Tool, json};
//!
//! // A scripted model takes the place of a real one.
//! let script = "turns: [{calls: [{tool: add, arguments: {a: 2, b: 3}}]}, {say: 'It is {result}.'}]";
//!
//! let selvedge = Selvedge::builder()
//!     .project(folder.path())
//!     .model("scripted-adder", Scripted::new(Script::parse(script)?))
//!     .tool(
//!         Tool::function(
//!             "add",
//!             "Adds two integers.",
//!             json!({
//!                 "type": "object",
//!                 "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
//!                 "required": ["a", "b"],
//!             }),
//!             |arguments, _| json!(arguments["a"].as_i64().zip(arguments["b"].as_i64()).map(|(a, b)| a + b)),
//!         )
//!         .pure(),
//!     )
//!     .open()?;
//!
//! let outcome = selvedge.run("What is 2 + 3?").join()?;
//! assert_eq!(outcome.result.as_deref(), Some("It is 5."));
//! assert!(selvedge.verify(&outcome.thread_id).join()?.is_sound);
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//!
//! A *thread* is one log, owned by one agent. A *run* is one activation of it: a message comes in, the model answers, tools are called, until
//! the run completes or is suspended. A thread outlives its runs, its process and its machine.
//!
//! | call | returns when |
//! |---|---|
//! | [`Selvedge::run`] | a new thread has answered |
//! | [`Selvedge::start`] | a new thread is durable; its run continues in the background |
//! | [`Selvedge::create`] | a new thread is durable; nothing runs |
//! | [`Selvedge::send`] | the thread has answered a message |
//! | [`Selvedge::submit`] | the message is durable; its run continues in the background |
//! | [`Selvedge::resume`] | the resumed run of a suspended thread has ended |
//! | [`Selvedge::wait`] | the active run, in this process or another, has ended |
//! | [`Selvedge::cancel`] | the run has been asked to stop |
//!
//! Each returns a [`Pending`]: await it on any runtime, or [`join`](Pending::join) it. The call has already begun, and *dropping it does not
//! stop it*.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! use selvedge::{Job, Limit, Selvedge, Status};
//!
//! // A program that registers no model gets an offline one, which echoes its input.
//! let selvedge = Selvedge::open(folder.path())?;
//! let thread = selvedge.start(Job::say("Hello.").title("greeting").limit(Limit::Turns(3))).join()?;
//! assert_eq!(selvedge.wait(&thread).join()?.status, Status::Completed);
//! selvedge.send(&thread, "And again.").join()?;
//! assert_eq!(selvedge.messages(&thread).join()?.len(), 4);
//! # Ok(())
//! # }
//! ```
//!
//! How a run ended is an [`Outcome`], not an error: a thread that is suspended for an approval or a limit can be resumed. A call that fails
//! returns an [`Error`] with a stable [`code`](Error::code).
//!
//! When a process dies, the next [`Selvedge::open`] suspends the threads that it ran and lists them
//! ([`Selvedge::recovered`]); [`Selvedge::resume`] with [`Input::nothing`] continues one.
//!
//! # Models
//!
//! A model implements [`Model`]: it gets a prompt, streams drafts, and returns one answer or one error. It is registered under a name with
//! [`Builder::model`], or with its price with [`Builder::priced_model`]; each thread records the name. A [`ModelError`] says whether a retry
//! helps; the engine retries. See `examples/own_model.rs`.
//!
//! Models on the network need no code: they are named `anthropic:MODEL`, `openai:MODEL`, `openai-responses:MODEL`, by a host of the
//! configuration (`models.providers`), or by a tier such as `fast`, with [`Builder::default_model`] or [`Job::model`]. Their keys are looked
//! for among the variables that [`Builder::environment`] is given, and never reach a log.
//!
//! # Tools
//!
//! A tool is a closure ([`Tool::function`], [`Tool::async_function`]) or an implementation of [`model::Tool`]. Its arguments are checked against
//! its JSON Schema before it is called; on an error the model gets the path and the reason, and can correct itself.
//!
//! A tool declares its effect class, which decides what happens after a crash in the middle of a call:
//!
//! | declared | after a crash |
//! |---|---|
//! | [`Tool::pure`] | the call is repeated |
//! | [`Tool::idempotent`] | the call is repeated, with the same [`CallContext::key`] |
//! | neither: at most once | [`Tool::reconcile`] is called; if the outcome stays unknown, the thread is suspended until a person resolves the call |
//!
//! See `examples/own_tool.rs`.
//!
//! # Approvals
//!
//! [`Tool::needs_approval`], or a rule in the project's configuration, suspends the thread before a call is made. The approval is bound to
//! the exact call; the first decision counts. It may come a week later, from another process.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! use selvedge::{Choice, Input, Script, Scripted, Selvedge, Status, Tool, json};
//!
//! let script = "turns: [{calls: [{tool: deploy}]}, {say: 'Result: {result}.'}]";
//! let selvedge = Selvedge::builder()
//!     .project(folder.path())
//!     .model("scripted-deployer", Scripted::new(Script::parse(script)?))
//!     .tool(Tool::function("deploy", "Deploys.", json!({"type": "object"}), |_, _| "deployed").needs_approval("production"))
//!     .open()?;
//!
//! let asked = selvedge.run("Deploy it.").join()?;
//! assert_eq!(asked.status, Status::Suspended);
//! let (thread, call) = (&asked.thread_id, &asked.asks[0].call_id);
//! selvedge.decide(thread, call, Choice::Approve(None), "ann").join()?;
//! assert_eq!(selvedge.resume(thread, Input::nothing()).join()?.result.as_deref(), Some("Result: deployed."));
//! # Ok(())
//! # }
//! ```
//!
//! # Following
//!
//! - [`Selvedge::subscribe`] returns the events of *this process*: drafts, calls, commits, ends. A run never waits for a subscriber; a slow
//!   one is told what it missed.
//! - [`Selvedge::follow`] returns the committed lines of a thread that *any process* runs, each once and in order. A program that only reads
//!   opens the project with [`Builder::read_only`].
//!
//! See `examples/watch.rs` and `examples/follow.rs`.
//!
//! # Verifying
//!
//! [`Selvedge::verify`] checks every signature and every blob of a thread. [`Selvedge::export`] writes it to one file, which can be verified
//! with the public key and without this program's store. [`Selvedge::messages`] and [`Selvedge::status`] verify the log too: nothing of an
//! edited log is returned.
//!
//! The signing key is in `.selvedge` in the project's folder, or in the folder of [`Builder::home`]. Keep a copy: without it, the threads that
//! it signed can't be continued.
//!
//! # In axum and tokio
//!
//! Keep one [`Selvedge`] as the state of the router, and await its calls in handlers. Don't wrap them in `spawn_blocking`: its pool is
//! bounded, long runs fill it, and then the handler that cancels one of them has to wait for them to end.
//!
//! ```no_run
//! # mod axum { pub mod extract { pub struct State<T>(pub T); } pub struct Json<T>(pub T); }
//! use axum::{Json, extract::State};
//! use selvedge::{Outcome, Result, Selvedge, ThreadId};
//!
//! // Durable when the response is sent; a client that disconnects does not stop the run.
//! async fn start(State(selvedge): State<Selvedge>, text: String) -> Result<Json<ThreadId>> {
//!     Ok(Json(selvedge.start(text).await?))
//! }
//!
//! async fn wait(selvedge: Selvedge, thread: ThreadId) -> Result<Json<Outcome>> {
//!     Ok(Json(selvedge.wait(&thread).await?))
//! }
//!
//! async fn cancel(selvedge: Selvedge, thread: ThreadId) -> Result<()> {
//!     selvedge.cancel(&thread).await.map(drop)
//! }
//! ```
//!
//! - *No call blocks the runtime*: blocking work of the store runs on Selvedge's own threads, and waiting needs no thread.
//! - *Dropping a future does not stop the call*, so after a timeout, or when a client disconnects, the thread keeps running.
//! - *Open it inside the runtime*: async tools and models then run in the program's runtime, with its sockets and timers.
//! - *Shut down in this order*: stop accepting connections (`with_graceful_shutdown`), then [`Selvedge::shut_down`]. Waits end at once, runs may
//!   finish during the grace period; a run that is cut off is continued by the next process.
//!
//! A whole server with these handlers is in `tests/outside/tests/it/axum_handler.rs`.
//!
//! # Below the façade
//!
//! - **The store alone**, for a program with its own agent loop: [`store::Commit`] on a [`LocalStore`]. See
//!   `examples/own_loop.rs`.
//! - **The engine**, for a program that assembles each run itself: [`Engine`] with a [`RunConfig`].
//! - **A project's directives**, as the command line runs them: [`project::Project`].
//!
//! The crates below are re-exported whole ([`engine`], [`items`], [`log`], [`mod@model`], [`providers`], [`store`], [`store_local`], [`tools`]), so
//! that every type can be named through this one.

mod builder;
pub mod effects;
mod error;
mod facade;
mod follow;
pub mod graph_view;
mod home;
mod job;
pub mod knowledge;
pub mod markdown;
pub mod needs;
pub mod orchestrator;
pub mod pages;
mod pending;
pub mod project;
mod proof;
mod runtime;
mod tool;

pub use builder::Builder;
pub use error::{Error, Result};
pub use facade::Selvedge;
pub use follow::Follow;
pub use job::{Job, Limit};
pub use pending::Pending;
pub use proof::{Archive, Proof};
pub use tool::{CallContext, IntoOutput, Tool};

pub use selvedge_engine as engine;
pub use selvedge_engine::events;
pub use selvedge_engine::hooks;
pub use selvedge_engine::replay;
pub use selvedge_engine::snapshot;
pub use selvedge_engine::{
    Choice, Decided, Delivered, Engine, Error as EngineError, Input, NoticeKind, Options as EngineOptions, Outcome,
    Permission, Recorded, Redactor, Resumed, RunConfig, RunEvent, Stopped, Submitted, Subscription, Watched,
    outcome::Outcomes,
    thread_search::{ThreadFound, ThreadsFound},
    thread_state::ThreadState,
};
pub use selvedge_items as items;
pub use selvedge_log as log;
pub use selvedge_log::Line;
pub use selvedge_model as model;
pub use selvedge_model::answer::{Drafts, End, Usage};
pub use selvedge_model::blocking::BoxFuture;
pub use selvedge_model::event::{Ask, EffectClass, SuspendReason, Suspended};
pub use selvedge_model::limits::{Cost, Limits};
pub use selvedge_model::message::Block;
pub use selvedge_model::tool::{Reconciled, Risk};
pub use selvedge_model::{
    AgentId, Answer, CallId, Cancel, Digest, DirectiveId, Draft, Event, Kind, Message, Model, ModelError, Money,
    Output, Price, Prompt, Reason, Role, RunId, Status, Stop, ThreadId, Timestamp,
};
pub use selvedge_providers as providers;
pub use selvedge_providers::{Script, Scripted};
pub use selvedge_store as store;
pub use selvedge_store::{Cursor, Filter, Page, Store, Summary};
pub use selvedge_store_local::{self as store_local, Access, LocalStore};
pub use selvedge_tools as tools;
pub use serde_json::{self, Value, json};
