//! What an agent can do, behind the contract of [`selvedge_model::tool`].
//!
//! In reading order:
//!
//! - [`error`]: a tool that can't be one.
//! - [`files`]: reading, writing and listing files inside allowed folders.
//! - [`directive_return`]: giving back what a directive asked for.
//! - [`command`]: programs of the user, declared as tools.
//! - [`process`]: a program behind a gate, in a group of its own; and ending what an earlier life left behind.
//!
//! Nothing here reads the environment: what a tool may see of it is handed in.

pub mod command;
pub mod directive_return;
pub mod error;
pub mod files;
pub mod process;
mod ready;
mod schema;

pub use command::{CommandTool, Surroundings};
pub use directive_return::{DeclaredOutput, DirectiveReturn};
pub use error::InvalidTool;
pub use files::{FileList, FileRead, FileWrite, Folders};
pub use process::{Detached, ProcessGroups};
pub use ready::spec as built_in;
