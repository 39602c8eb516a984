//! A program behind a gate, in a process group of its own.
//!
//! ```text
//! start     /bin/sh waits for a line on descriptor 3 ── its pid and start time are known: the intent can be committed
//! dispatch  the line is written: sh becomes the program by `exec`, so the pid stays
//! ```
//!
//! - **Dropped before dispatch, it never ran**: sh is killed. If this process dies, descriptor 3 ends and sh exits.
//! - **Everything in the group dies** when the program ends, is stopped, takes too long or is dropped: first TERM, then KILL. The leader is
//!   buried only after that, so its number can't belong to somebody else yet.
//! - **On a leash**, the group also dies with this process: a watcher in it waits for a pipe to end and kills its group. Pure and
//!   idempotent tools are on one; an at_most_once tool goes on alone, and is ended by its recorded identity.
//! - Output is read as it comes and kept up to a bound; what is over is counted and dropped.
//!
//! What is not possible: a program that leaves the group (`setsid`) is not killed. If it holds the output open, that is noticed and said. One
//! that kills its watcher is off its leash. A descriptor that this process inherited open goes on to the program. Nothing here holds a program back from what the user may do.

mod detached;
mod end;
mod gate;
mod identity;
mod kept;
mod run;

pub use detached::Detached;
pub use end::ProcessGroups;
pub(crate) use gate::{Gated, Plan};
pub(crate) use run::{End, Ended};
