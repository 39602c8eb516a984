//! The local store from outside: the shared suite, damage, crashes, a hostile world.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a skipped test says why, and a child process tells its parent"
)]

mod alive;
mod backup;
mod blobs;
mod bundle;
mod capabilities;
mod conformance;
mod damage;
mod doctor;
mod erase;
mod family;
mod fixture;
mod hardened;
mod heads;
mod inbox;
mod kill;
mod leads;
mod manifest;
mod queue;
mod redo;
mod reindex;
mod repair;
mod rotation;
mod snapshots;
mod support;
mod tampered;
mod upgrade;
mod world;
