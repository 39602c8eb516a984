//! Runs on the store without a disk, with a scripted model and tools that remember what they did.

mod approvals;
mod asking;
mod chains;
mod commits;
mod failing;
mod limits;
mod recovery;
mod replay;
mod sending;
mod spawning;
mod spending;
mod state;
mod support;
mod trees;
mod waiting;
