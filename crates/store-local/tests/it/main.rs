//! The local store from outside: the shared suite, damage, crashes, a hostile world.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a skipped test says why, and a child process tells its parent"
)]

mod conformance;
mod damage;
mod kill;
mod smoke;
mod support;
mod world;
