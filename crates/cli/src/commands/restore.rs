//! `selvedge restore`: a store from a backup.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use selvedge_store_local::LocalStore;
use selvedge_store_local::disk::RealDisk;
use serde::Serialize;

use super::backup::Said;
use super::init::write_gitignore;
use crate::context::{Context, User, threads_folder};
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, paint};
use crate::text::{clean, count};

/// Make the store of this folder from a backup
///
/// Refused if there are threads already. Everything is checked before anything is written: that the backup was finished,
/// that it is signed by a key you trust (one that was made without a key is not signed at all, and that is said), its database, every
/// signature of every log, every blob, manifest and tombstone. Killed anywhere, there is either no store, and restoring again begins anew, or a whole one.
///
/// A thread or a blob that is not what was signed is left out and named, all else is restored, and the exit code is 6. A database that
/// is not the right one is built anew from the logs, which loses requests that were not consumed.
///
/// If the original goes on somewhere else, it and this one part from here on: don't write to both.
///
/// JSON: {"folder", "backup_id", "made_at", "store_format", "threads", "blobs", "bytes", "signed", "bad":[{"thread_id", "blob", "file",
/// "why", "copied"}], "rebuilt"}; "folder" is the project, "rebuilt" whether the database was built anew.
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
    let backup = &restored.backup;
    let said = Said {
        folder: &context.folder,
        backup_id: &backup.backup_id,
        made_at: backup.made_at,
        store_format: backup.store_format,
        threads: restored.threads,
        blobs: restored.blobs,
        bytes: backup.bytes,
        signed: restored.is_signed,
        bad: &restored.bad,
    };
    show(&Whole { said: &said, rebuilt: restored.is_rebuilt }, context)?;
    let Some(first) = restored.bad.first() else { return Ok(()) };
    let left =
        if restored.bad.len() == 1 { "one thing is".to_owned() } else { format!("{} things are", restored.bad.len()) };
    let message = format!("the rest is restored, but {left} left out; the first: {}", clean(&first.why));
    let failure = Failure::new(Exit::Integrity, "left_out", message).detail("thread_id", first.thread_id.as_str());
    Err(failure.hint(match (first.blob, first.file.as_deref()) {
        (_, Some("thread.json")) => "it is only a projection of the log: the next writing command writes it anew".to_owned(),
        (_, Some(_)) => {
            "`selvedge reindex` writes it anew if the restored database still has it; otherwise take it from another backup".to_owned()
        }
        (Some(blob), None) => format!(
            "look for it in another backup or an export, and put it into `{}` as `{blob}`",
            threads_folder(&context.folder).join(first.thread_id.folder()).join("blobs").display()
        ),
        (None, None) => "take it from another backup or an export: `selvedge import FILE`; if only its key is not trusted, trust it and \
                 restore again into another folder"
            .to_owned(),
    }))
}

/// What was restored, and how.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    said: &'a Said<'a>,
    rebuilt: bool,
}

fn show(Whole { said, rebuilt }: &Whole<'_>, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        return context.output.record(&Whole { said, rebuilt: *rebuilt });
    }
    let held = [count(said.threads, "thread"), count(said.blobs, "blob")].join(", ");
    context.output.text(format_args!("{held} are restored as of {}", crate::text::local(said.made_at)))?;
    for bad in said.bad {
        context.output.text(format_args!("{} {}", paint(BAD, "left out:"), clean(&bad.why)))?;
    }
    if *rebuilt {
        context.output.say("the backup's database is not the one it tells of; it is built anew from the logs");
    }
    if !said.signed {
        context
            .output
            .say("the backup is not signed: nobody vouches for its list; every log in it is signed by itself");
    }
    Ok(())
}
