//! Files inside allowed folders.
//!
//! - A path is relative to the project. `..`, absolute paths, NUL and symbolic links are refused, anywhere in it.
//! - It is opened by `openat2` below the project's folder, without following links, or walked folder by folder where the kernel has no such
//!   call; so no process can replace a folder by a link between the check and the use.
//! - A tool that may write to a folder may write through hard links in it; those can't be distinguished from other files.
//! - `.ai` and `.git` are closed: an agent can't change its own permissions, nor make the next `git` command run something.
//! - Everything that is returned is bounded, and what was left out is said.

mod edit;
mod glob;
mod grep;
mod lines;
mod list;
mod path;
mod pattern;
mod read;
mod walk;
mod write;

pub use edit::FileEdit;
pub use glob::FileGlob;
pub use grep::FileGrep;
pub use list::FileList;
pub use path::Folders;
pub use read::FileRead;
pub use write::FileWrite;
