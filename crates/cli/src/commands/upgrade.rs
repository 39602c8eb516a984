//! `selvedge upgrade`: moves a store of an older format to the one that is written.

use std::sync::Arc;

use selvedge_store_local::LocalStore;
use selvedge_store_local::disk::RealDisk;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;

/// Move a store of an older format to the one that this version writes
///
/// An older store can be read, verified and backed up as it is; to write to it, it must be moved first. The logs are not
/// touched. Refused while another process has the store open to write. Killed anywhere, run it again and it is done.
/// A backup first is a good idea: an older Selvedge can't read the store afterwards.
///
/// JSON: {"from", "to", "changed"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct Moved {
    from: i64,
    to: i64,
    changed: bool,
}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let upgraded = LocalStore::upgrade(&context.project()?, Arc::new(RealDisk))?;
    let moved = Moved { from: upgraded.from, to: upgraded.to, changed: upgraded.from != upgraded.to };
    if context.output.is_json() {
        return context.output.record(&moved);
    }
    match moved.changed {
        true => context
            .output
            .text(format_args!("the store was of format {} and is now of format {}", moved.from, moved.to)),
        false => context.output.text(format_args!("the store is of format {}; there is nothing to do", moved.to)),
    }
}
