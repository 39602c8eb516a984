//! `selvedge backup`: a consistent copy of a store while other processes write to it.

use std::fs;
use std::path::{Path, PathBuf};

use selvedge_store_local::FailedCheck;
use serde::Serialize;

use crate::commands::heads::user_lists;
use crate::context::{Context, User, threads_folder};
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, paint};
use crate::project_files::{self, FOLDERS, FileTotals};
use crate::text::{clean, count};

/// Copy the store to a new folder while other processes write to it
///
/// The copy is consistent: every thread up to its last commit at one moment, with manifests, blobs and tombstones. Its `backup.json`
/// lists the content, signed with your key, or unsigned if you have none; logs are signed themselves. Its `heads.json`, also signed,
/// is a list as of `selvedge heads export`: keep a copy of it elsewhere. The backup is built in DIR.partial and renamed when it is
/// complete; if it is interrupted, run it again. Nothing is encrypted: anyone who can read the folder can read the threads.
///
/// A backup contains the threads. It does not contain your keys, your own items and configuration (the folder that SELVEDGE_HOME
/// names), nor the project's agents, directives, tools, knowledge and configuration. --project adds those of the project, with a
/// signed list of their hashes; symbolic links among them are refused. Files outside of `.ai`, such as scripts that a tool runs, are
/// never included.
///
/// Every log, blob, manifest and tombstone is verified. Anything that does not verify, and any log that is not in the database, is
/// copied as it is, or left out if it can't be read; everything else is copied. It is listed, here and in the backup, and the exit
/// code is 6. The lists of heads in your Selvedge home (`selvedge heads export`) are compared with the store: if it is behind one, the
/// backup is made, and the exit code is 6.
///
/// JSON: {"folder", "backup_id", "made_at", "store_format", "threads", "blobs", "bytes", "signed", "failed_checks":[{"thread_id", "blob",
/// "file", "why", "copied"}], "project":{"files", "bytes"}, "not_included":[TEXT…]}; "file" is "thread.json" or "tombstone", and without
/// "blob" and "file" it is the log itself. "project" is null without --project; "not_included" lists what the backup does not contain.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder that does not exist yet, or is empty
    #[arg(value_name = "DIR")]
    backup: PathBuf,
    /// Include the project's agents, directives, tools, knowledge and configuration
    #[arg(long)]
    project: bool,
}

#[derive(Serialize)]
pub(crate) struct Summary<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    pub(crate) folder: &'a Path,
    pub(crate) backup_id: &'a str,
    pub(crate) made_at: selvedge_model::Timestamp,
    pub(crate) store_format: i64,
    pub(crate) threads: u64,
    pub(crate) blobs: u64,
    pub(crate) bytes: u64,
    pub(crate) signed: bool,
    pub(crate) failed_checks: &'a [FailedCheck],
    /// The included files of the project.
    pub(crate) project: Option<FileTotals>,
}

impl Summary<'_> {
    /// Its size, for people.
    pub(crate) fn held(&self) -> String {
        [count(self.threads, "thread"), count(self.blobs, "blob"), count(self.bytes, "byte")].join(", ")
    }
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    context.refuse_server()?;
    let target = place(&context.folder.join(&args.backup))?;
    if target.starts_with(threads_folder(&context.project()?)) {
        return Err(Failure::usage("a backup can't be inside the store that it copies").hint("name another folder"));
    }
    let taken =
        if args.project { Some((project_files::find(&context.project()?)?, User::find()?.signer()?)) } else { None };
    let store = context.open_local_to_copy()?;
    let bar = context.output.progress(2, "copying");
    let made = store.backup(&target, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let made = made?;
    let project = match &taken {
        Some((files, signer)) => {
            let project = context.project()?;
            let at = made.made_at.whole_seconds();
            Some(project_files::copy(&project, files, &target, &made.backup_id, signer, at)?.held())
        }
        None => None,
    };
    let summary = Summary {
        folder: &target,
        backup_id: &made.backup_id,
        made_at: made.made_at,
        store_format: made.store_format,
        threads: made.threads.len() as u64,
        blobs: made.blobs,
        bytes: made.bytes,
        signed: store.can_sign(),
        failed_checks: &made.failed_checks,
        project,
    };
    show(&summary, context)?;
    let Some(first) = made.failed_checks.first() else {
        let behind = user_lists::failure(&store).map(|failure| {
            let message = format!("the backup was made, of an older state: {}", failure.message);
            Failure { message, ..failure }
        });
        return behind.map_or(Ok(()), Err);
    };
    let message = format!(
        "the rest is copied, but {} not verify; the first: {}",
        if made.failed_checks.len() == 1 {
            "one object does".to_owned()
        } else {
            format!("{} objects do", made.failed_checks.len())
        },
        clean(&first.why)
    );
    let failure =
        Failure::new(Exit::Integrity, "threads_skipped", message).detail("thread_id", first.thread_id.as_str());
    // A quick check does not hash large blobs.
    let deep = if first.blob.is_some() { " --deep" } else { "" };
    let says = match first.file.as_deref() {
        Some("tombstone") => String::new(),
        _ => format!("`selvedge verify {}` shows what is wrong, and ", first.thread_id),
    };
    Err(failure.hint(format!("keep older backups; {says}`selvedge doctor{deep}` shows what to do")))
}

fn show(summary: &Summary<'_>, context: &Context<'_>) -> Result<()> {
    let without = without(summary.project.is_some());
    if context.output.is_json() {
        return context.output.record(&Copied { summary, not_included: without });
    }
    context.output.text(format_args!("{} are copied to {}", summary.held(), summary.folder.display()))?;
    if let Some(FileTotals { files, bytes }) = summary.project {
        let held = format!("{}, {}", count(files, "file"), count(bytes, "byte"));
        context.output.text(format_args!("{held} of the project's {} are included", FOLDERS.join(", ")))?;
    }
    for bad in summary.failed_checks {
        let what = if bad.copied { "copied as it is:" } else { "left out:" };
        context.output.text(format_args!("{} {}", paint(BAD, what), clean(&bad.why)))?;
    }
    if !summary.signed {
        context.output.say("there is no signing key: the logs are signed, but the backup's list is not");
    }
    context.output.tell(format_args!("Not included, back up separately: {}.", without.join("; ")));
    Ok(())
}

/// A backup, and what it does not include.
#[derive(Serialize)]
struct Copied<'a> {
    #[serde(flatten)]
    summary: &'a Summary<'a>,
    not_included: Vec<String>,
}

/// What a backup does not include, each with its location.
fn without(has_project: bool) -> Vec<String> {
    let home = User::find().map(|user| format!(" (`{}`)", user.folder.display())).unwrap_or_default();
    let mut without = vec![format!("your keys, and your own items and configuration{home}")];
    if !has_project {
        without.push(format!("the project's {} (`--project` includes them)", FOLDERS.join(", ")));
    }
    without.push("files outside of `.ai`".to_owned());
    without
}

/// The path with its parent folder canonicalized, so that symbolic links are resolved.
fn place(path: &Path) -> Result<PathBuf> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::usage(format!("`{}` is not a valid folder name", path.display())));
    };
    if path.is_file() {
        let failure = Failure::usage(format!("`{}` is a file; a backup is a folder", path.display()));
        return Err(failure.hint("name a folder that does not exist yet"));
    }
    let above = fs::canonicalize(above).map_err(|error| Failure::io("find", above, &error))?;
    Ok(above.join(name))
}
