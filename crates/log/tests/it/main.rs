//! The log from outside: the worked example of `FORMAT.md`, and every way to damage a log.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a skipped test says why, and a child process reports to its parent"
)]

mod browser;
mod gap;
mod golden;
mod odd;
mod order;
mod page;
mod python;
mod rotation;
