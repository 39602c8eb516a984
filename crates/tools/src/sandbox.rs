//! A process that can reach only what its definition declares.
//!
//! ```text
//! gate ─exec▶ outer helper ─▶ inner helper ─▶ program       one executable, started again: nothing is done between fork and exec
//!             namespaces      own session     private TMPDIR, allowed folders, no sockets, limits
//!             waits, ends     restricts       …
//!             what is left    itself
//! ```
//!
//! - `support` finds out, by trying, what this machine can enforce. `plan` makes a declaration and that into the exact restrictions, and
//!   into the level that is recorded before the program is dispatched. The helper applies the plan or the program is not started.
//! - The outer helper is the recorded process. It passes TERM on. If it dies, the kernel kills the inner helper, which is the first process
//!   of a process namespace; with it everything in there is killed, whatever group or session it went to.
//! - Without such namespaces the outer helper is the subreaper of the program: it ends all descendants before it exits.
//!
//! What is not possible: a program that may write the project may write `.ai` in it. Paths of the system's programs, `/etc` and `/proc` are
//! readable, so command lines of other processes are. Other operating systems than Linux enforce nothing, and `required` refuses.

#[cfg(target_os = "linux")]
mod apply;
pub mod helper;
mod plan;
mod support;
mod temporary;
pub mod trial;

pub(crate) use plan::{reached_nothing, refuse_less};
pub use support::{Sandbox, Support};
pub(crate) use temporary::Folder;
