//! `selvedge backup`: a consistent copy of a store that others go on writing to.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::context::{Context, threads_folder};
use crate::error::{Failure, Result};
use crate::text::count;

/// Copy the store to a new folder while others go on writing
///
/// The copy is of one moment: every thread up to its last commit before that, with manifests, blobs and tombstones. What a
/// backup holds stands in its signed `backup.json`, which is written last: without it, it was not finished. Your keys are not
/// in it: keep a copy of them elsewhere. Nothing is encrypted; whoever can read the folder can read the threads.
///
/// JSON: {"folder", "backup_id", "made_at", "store_format", "threads", "blobs", "bytes"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder that does not exist yet, or is empty
    #[arg(value_name = "DIR")]
    backup: PathBuf,
}

#[derive(Serialize)]
pub(crate) struct Said<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    pub(crate) folder: &'a Path,
    pub(crate) backup_id: &'a str,
    pub(crate) made_at: selvedge_model::Timestamp,
    pub(crate) store_format: i64,
    pub(crate) threads: u64,
    pub(crate) blobs: u64,
    pub(crate) bytes: u64,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let target = place(&context.folder.join(&args.backup))?;
    if target.starts_with(threads_folder(&context.project()?)) {
        return Err(
            Failure::usage("a backup can't lie inside the store that it copies").hint("name a folder elsewhere")
        );
    }
    let store = context.open_to_copy()?;
    let bar = context.output.progress(2, "copying");
    let made = store.backup(&target, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let made = made?;
    let said = Said {
        folder: &target,
        backup_id: &made.backup_id,
        made_at: made.made_at,
        store_format: made.store_format,
        threads: made.threads.len() as u64,
        blobs: made.blobs,
        bytes: made.bytes,
    };
    if context.output.is_json() {
        return context.output.record(&said);
    }
    let held = [count(said.threads, "thread"), count(said.blobs, "blob"), count(said.bytes, "byte")].join(", ");
    context.output.text(format_args!("{held} are copied to {}", target.display()))?;
    context.output.tell("Your keys are not in it: keep a copy of them elsewhere.");
    Ok(())
}

/// A path below the real folder around it, so that no link leads astray.
fn place(path: &Path) -> Result<PathBuf> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::usage(format!("`{}` can't be a new folder", path.display())));
    };
    let above = fs::canonicalize(above).map_err(|error| Failure::io("find", above, &error))?;
    Ok(above.join(name))
}
