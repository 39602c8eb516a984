//! Runs on the store without a disk, with a scripted model and tools that remember what they did.

mod approvals;
mod asking;
mod chains;
mod circles;
mod commits;
mod events;
mod failing;
mod families;
mod limits;
mod opaque;
mod opened;
mod orphans;
mod panicking;
mod recovery;
mod refusing;
mod replay;
mod saving;
mod sending;
mod spawning;
mod spending;
mod state;
mod support;
mod thousand;
mod trees;
mod waiting;
mod watching;
