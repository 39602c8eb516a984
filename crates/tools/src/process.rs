//! A program behind a gate, in a process group of its own.
//!
//! ```text
//! start     /bin/sh waits for a line on descriptor 3 ── its pid and start time are known: the intent can be committed
//! dispatch  the line is written: sh becomes the program by `exec`, so the pid stays
//! ```
//!
//! - **Dropped before dispatch, it never ran**: sh is killed. If this process dies, descriptor 3 is closed and sh exits.
//! - **Everything in the group dies** when the program ends, is stopped, exceeds its time limit or is dropped: first TERM, then KILL. The
//!   leader is reaped only after that, so its process id can't be reused before.
//! - **On a leash**, the group also dies with this process: a watcher in it waits for a pipe to close and kills its group. Pure and idempotent
//!   tools are on one; an at_most_once tool continues alone, and is ended by its recorded identity.
//! - Output is read as it comes and kept up to a bound; the excess is counted and dropped.
//!
//! What is not possible without a [sandbox](crate::sandbox): a program that leaves the group (`setsid`) is not killed. If it holds the output
//! open, that is noticed and reported. One that kills its watcher is off its leash. A descriptor that this process inherited open is passed
//! on to the program. Nothing here restricts a program further than the user is restricted.

pub(crate) mod bounded_output;
mod detached;
mod end;
mod gate;
mod identity;
mod run;
mod serve;

pub use detached::Detached;
pub use end::ProcessGroups;
pub(crate) use gate::{Confinement, Gated, ProcessSpec};
pub(crate) use identity::descendants;
pub(crate) use run::{EndedProcess, ProcessEnd};
pub(crate) use serve::{Ends, Serving};
