//! `selvedge restore`: a store from a backup.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use selvedge_store_local::LocalStore;
use selvedge_store_local::disk::RealDisk;

use super::backup::Said;
use super::init::write_gitignore;
use crate::context::{Context, User};
use crate::error::{Failure, Result};
use crate::text::count;

/// Make the store of this folder from a backup
///
/// Refused if there are threads already. Everything is checked before anything is written: that the backup was finished,
/// that it is signed by a key you trust, its database, every signature of every log, every blob. Killed anywhere, there is
/// either no store, and restoring again begins anew, or a whole one.
///
/// If the original goes on somewhere else, it and this one part from here on: don't write to both.
///
/// JSON: {"folder", "backup_id", "made_at", "store_format", "threads", "blobs", "bytes"}; "folder" is the project.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What `selvedge backup` wrote
    #[arg(value_name = "DIR")]
    backup: PathBuf,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let asked = context.folder.join(&args.backup);
    let backup = fs::canonicalize(&asked).map_err(|error| Failure::io("restore", &asked, &error))?;
    let user = User::find()?;
    user.check_apart_from(&context.folder)?;
    let trust = user.trust()?;
    let bar = context.output.progress(2, "checking");
    let restored = LocalStore::restore(&backup, &context.folder, &trust, Arc::new(RealDisk), &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let restored = restored?;
    write_gitignore(&context.folder.join(".ai").join(".gitignore"))?;
    let said = Said {
        folder: &context.folder,
        backup_id: &restored.backup_id,
        made_at: restored.made_at,
        store_format: restored.store_format,
        threads: restored.threads.len() as u64,
        blobs: restored.blobs,
        bytes: restored.bytes,
    };
    if context.output.is_json() {
        return context.output.record(&said);
    }
    let held = [count(said.threads, "thread"), count(said.blobs, "blob"), count(said.bytes, "byte")].join(", ");
    context.output.text(format_args!("{held} are restored as of {}", crate::text::local(said.made_at)))
}
