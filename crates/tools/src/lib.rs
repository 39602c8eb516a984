//! The tools of an agent, behind the contract of [`selvedge_model::tool`].
//!
//! In reading order:
//!
//! - [`error`]: invalid tool definitions.
//! - [`files`]: reading, writing and listing files inside allowed folders.
//! - [`directive_return`]: returning the outputs of a directive.
//! - [`command`]: programs of the user, declared as tools.
//! - [`process`]: a program behind a gate, in a group of its own; and ending processes that an earlier process of the engine left.
//! - [`sandbox`]: what a program may reach.
//! - [`mcp`]: tools of MCP servers.
//! - [`web`]: pages of the web.
//! - [`schema`]: arguments checked against a tool's JSON Schema.
//!
//! Nothing here reads the environment: what a tool may see of it is passed in.

pub mod command;
pub mod directive_return;
pub mod error;
pub mod files;
mod http;
mod in_process;
pub mod mcp;
pub mod process;
pub mod sandbox;
pub mod schema;
pub mod web;

pub use command::{CommandEnvironment, CommandTool};
pub use directive_return::{DeclaredOutput, DirectiveReturn};
pub use error::InvalidTool;
pub use files::{FileEdit, FileGlob, FileGrep, FileList, FileRead, FileWrite, Folders};
pub use in_process::spec as built_in;
pub use mcp::{McpEnvironment, McpTool, Servers};
pub use process::{Detached, ProcessGroups};
pub use sandbox::Sandbox;
pub use schema::Schema;
pub use web::{Resolve, SystemResolver, WebFetch, WebOptions};
