//! `selvedge backup`: a consistent copy of a store that others go on writing to.

use std::fs;
use std::path::{Path, PathBuf};

use selvedge_store_local::Bad;
use serde::Serialize;

use crate::context::{Context, threads_folder};
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, paint};
use crate::text::{clean, count};

/// Copy the store to a new folder while others go on writing
///
/// The copy is of one moment: every thread up to its last commit before that, with manifests, blobs and tombstones. What a
/// backup holds stands in its `backup.json`, signed with your key, or not signed if you have none here; logs are signed
/// themselves. It is built in DIR.partial and gets its name when it is whole: one that was cut short is run again. Your keys are
/// not in it: keep a copy of them elsewhere. Nothing is encrypted; whoever can read the folder can read the threads.
///
/// Every log, blob, manifest and tombstone is checked on the way. What does not verify, and any log that the database does not know,
/// keeps nothing else from being copied: it is copied as it is, or left out if it can't be read; it is named, here and in the backup, and
/// the exit code is 6.
///
/// JSON: {"folder", "backup_id", "made_at", "store_format", "threads", "blobs", "bytes", "signed", "bad":[{"thread_id", "blob", "file",
/// "why", "copied"}]}; "file" is "thread.json" or "tombstone", and without "blob" and "file" it is the log itself
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
    pub(crate) signed: bool,
    pub(crate) bad: &'a [Bad],
}

impl Said<'_> {
    /// What it holds, in words.
    pub(crate) fn held(&self) -> String {
        [count(self.threads, "thread"), count(self.blobs, "blob"), count(self.bytes, "byte")].join(", ")
    }
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
        signed: store.can_sign(),
        bad: &made.bad,
    };
    show(&said, context)?;
    let Some(first) = made.bad.first() else { return Ok(()) };
    let message = format!(
        "the rest is copied, but {} not verify; the first: {}",
        if made.bad.len() == 1 { "one thing does".to_owned() } else { format!("{} things do", made.bad.len()) },
        clean(&first.why)
    );
    let failure = Failure::new(Exit::Integrity, "left_out", message).detail("thread_id", first.thread_id.as_str());
    // A changed blob may be too large for a look at everything that must be quick.
    let deep = if first.blob.is_some() { " --deep" } else { "" };
    let says = match first.file.as_deref() {
        Some("tombstone") => String::new(),
        _ => format!("`selvedge verify {}` says what is wrong, and ", first.thread_id),
    };
    Err(failure.hint(format!("keep older backups; {says}`selvedge doctor{deep}` says what to do")))
}

fn show(said: &Said<'_>, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        return context.output.record(said);
    }
    context.output.text(format_args!("{} are copied to {}", said.held(), said.folder.display()))?;
    for bad in said.bad {
        let what = if bad.copied { "copied as it is:" } else { "left out:" };
        context.output.text(format_args!("{} {}", paint(BAD, what), clean(&bad.why)))?;
    }
    match said.signed {
        true => context.output.tell("Your keys are not in it: keep a copy of them elsewhere."),
        false => context.output.say("there is no key to sign it with; its logs are signed, its list is not"),
    }
    Ok(())
}

/// A path below the real folder around it, so that no link leads astray.
fn place(path: &Path) -> Result<PathBuf> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::usage(format!("`{}` can't be a new folder", path.display())));
    };
    if path.is_file() {
        let failure = Failure::usage(format!("`{}` is a file, and a backup is a folder", path.display()));
        return Err(failure.hint("name a folder that does not exist yet"));
    }
    let above = fs::canonicalize(above).map_err(|error| Failure::io("find", above, &error))?;
    Ok(above.join(name))
}
