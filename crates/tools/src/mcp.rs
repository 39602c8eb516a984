//! Tools of MCP servers: programs of other authors that offer tools over JSON-RPC.
//!
//! In reading order: `message`, what is said in both eras of the protocol; `waiting`, an answer that is waited for; `stdio` and `http`, how a
//! server is reached; `connection`, a server that was greeted; [`Servers`], the servers of this process; `definition` and [`McpTool`], their
//! tools; `result`, what a call came to.
//!
//! - **Both eras.** 2026-07-28 is stateless: every request says what it is. 2025-11-25 and older begin with `initialize`. A server is asked
//!   `server/discover` first; one that does not know it, or dies of it, is greeted the older way.
//! - **A server starts when the first call needs it**, is shared by all runs of this process, and dies with it. One that dies is started again
//!   after a while that grows; one that says nothing for 30 seconds, not even when asked, is ended.
//! - **What it offers is pinned.** A tool is offered as it was approved. If the server describes it otherwise now, the call is not sent.
//! - **Before a request is handed over, a failure means that nothing happened; after that, without an answer, its outcome is unknown.**
//! - Everything is bounded: messages, tools, pages, stderr, time. A server that exceeds a bound is ended. Nothing that it asks for (sampling,
//!   roots, elicitation) is offered.

mod connection;
mod definition;
mod http;
mod message;
mod result;
mod servers;
mod stdio;
mod tool;
mod waiting;

pub use definition::{digest, tool_name};
pub use servers::{Listed, McpEnvironment, Servers};
pub use tool::McpTool;
