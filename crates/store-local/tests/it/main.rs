//! The local store from outside: the shared suite, damage, crashes, a hostile environment.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a skipped test prints why, and a child process reports to its parent"
)]

mod alive;
mod backup;
mod blobs;
mod capabilities;
mod conformance;
mod damage;
mod doctor;
mod erase;
mod family;
mod fixture;
mod hardened;
mod heads;
mod import_archive;
mod inbox;
mod kill;
mod leading_events;
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
