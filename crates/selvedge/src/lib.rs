//! Agent threads that never lose their place.
//!
//! Every step of a thread is committed to a signed, append-only log before anyone hears of it. Kill the process anywhere: the
//! same execution goes on, and no finished effect is repeated.
//!
//! Three ways in, from the least to the most:
//!
//! - **The store alone**, for a program that has an agent loop of its own: [`store::Commit`] on a [`LocalStore`]. See
//!   `examples/own_loop.rs`.
//! - **The engine**, for a program that brings its own tools and model: [`Engine`] with an [`Assignment`]. See
//!   `examples/own_tool.rs`.
//! - **A project's directives**, as the command line runs them: [`workshop::Workshop`].
//!
//! Watching what an engine does, drafts included, by any number of subscribers: [`Engine::subscribe`]. See `examples/watch.rs`.
//! Following what is committed, from any process: [`store::Feed`]. See `examples/follow.rs`.
//!
//! What holds everywhere: when a commit returns, its lines are signed, durable and visible; on an error nothing of it is there,
//! now or later. After a crash a thread is taken up with [`Engine::resume`].

pub mod orchestrator;
pub mod workshop;

pub use selvedge_engine::events;
pub use selvedge_engine::replay;
pub use selvedge_engine::snapshot;
pub use selvedge_engine::{
    Assignment, Choice, Decided, Delivered, Engine, Error as EngineError, Input, NoticeKind, Options as EngineOptions,
    Outcome, Permission, Recorded, Redactor, Resumed, RunEvent, Stopped, Submitted, Subscription, Watched,
};
pub use selvedge_items as items;
pub use selvedge_log as log;
pub use selvedge_model as model;
pub use selvedge_providers as providers;
pub use selvedge_store as store;
pub use selvedge_store_local::{self as store_local, Access, LocalStore};
pub use selvedge_tools as tools;
