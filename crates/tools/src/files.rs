//! Files inside allowed folders.
//!
//! - A path is relative to the project. `..`, absolute paths, NUL and symbolic links are refused, anywhere in it.
//! - It is walked folder by folder, each opened by its name within the one before and without following links, so no process can replace a
//!   folder by a link between the check and the use.
//! - A tool that may write to a folder may write through hard links in it; those can't be distinguished from other files.
//! - `.ai` and `.git` are closed: an agent can't change its own permissions, nor make the next `git` command run something.

mod list;
mod path;
mod read;
mod write;

pub use list::FileList;
pub use path::Folders;
pub use read::FileRead;
pub use write::FileWrite;
