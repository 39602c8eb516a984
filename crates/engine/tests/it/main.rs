//! Runs on the store without a disk, with a scripted model and tools that remember what they did.

mod commits;
mod failing;
mod recovery;
mod sending;
mod state;
mod support;
