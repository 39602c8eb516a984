//! Files inside allowed folders.
//!
//! - A path is relative to the project. `..`, absolute paths, NUL and symbolic links are refused, wherever they stand in it.
//! - It is walked folder by folder, each opened by its name within the one before and without following links, so nobody can
//!   swap a folder for a link between the look and the deed.
//! - Whoever may write a folder may write through hard links in it; those can't be told from other files.
//! - `.ai` and `.git` are closed: an agent can't change what it is allowed to do, nor have the next `git` run something.

mod list;
mod path;
mod read;
mod write;

pub use list::FileList;
pub use path::Folders;
pub use read::FileRead;
pub use write::FileWrite;
