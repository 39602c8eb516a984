//! `selvedge restore`: creates a store from a backup.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use selvedge_store::heads::HeadDifference;
use selvedge_store_local::LocalStore;
use selvedge_store_local::disk::RealDisk;
use serde::Serialize;

use super::backup::Summary;
use super::heads::ListedDifference;
use super::init::write_gitignore;
use crate::context::{Context, User, threads_folder};
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, paint};
use crate::project_files::{self, FOLDERS, FileTotals};
use crate::text::{clean, count};

/// Create the store of this folder from a backup
///
/// Refused if there is a store already. Everything is checked before anything is written: that the backup is complete, that it is
/// signed by a key you trust (a backup made without a key is not signed, and a notice says so), its database, every signature of
/// every log, every blob, manifest and tombstone. If it is killed, there is either no store, and it can be run again, or a complete
/// one.
///
/// A thread or a blob that is not what was signed is left out and listed, everything else is restored, and the exit code is 6. If the
/// database does not match, it is rebuilt from the logs; queued requests are lost then.
///
/// With --project, also restores the agents, directives, tools, knowledge and configuration that `selvedge backup --project`
/// included. Their list must be signed by a key you trust and belong to this backup, and every file must match it. Nothing is
/// overwritten: if a different file is in the place of one of them, nothing is restored.
///
/// At the end, the store is compared with the list of heads in the backup, as by `selvedge heads verify`: anything on the list that
/// is missing is reported, and the exit code is 6.
///
/// If the original store is still in use, the two diverge from here on: don't write to both.
///
/// JSON: {"folder", "backup_id", "made_at", "store_format", "threads", "blobs", "bytes", "signed", "failed_checks":[{"thread_id", "blob",
/// "file", "why", "copied"}], "project":{"files", "bytes"}, "rebuilt", "differs":[{"thread_id", "version", "how", "message"}]};
/// "folder" is the project, "project" is null without --project, "rebuilt" says whether the database was rebuilt, and "differs" lists
/// what is on the backup's list of heads and not in the backup.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder that `selvedge backup` wrote
    #[arg(value_name = "DIR")]
    backup: PathBuf,
    /// Also restore the project's agents, directives, tools, knowledge and configuration
    #[arg(long)]
    project: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    context.refuse_server()?;
    let asked = context.folder.join(&args.backup);
    let backup = fs::canonicalize(&asked).map_err(|error| Failure::io("restore", &asked, &error))?;
    let user = User::find()?;
    user.check_apart_from(&context.folder)?;
    let trust = user.trust()?;
    let has_files = project_files::is_in(&backup);
    let files = args.project.then(|| project_files::check(&backup, &trust)).transpose()?;
    if let Some((listed, contents)) = &files {
        project_files::check_free(&context.folder, listed, contents)?;
        // Before the store: an interrupted restore is run again, which is refused once there is a store.
        project_files::put(&context.folder, listed, contents)?;
    }
    let bar = context.output.progress(2, "checking");
    // No key is needed to restore; rows are sealed when the store is opened for writing with one.
    let signer = user.signer().ok();
    let restored =
        LocalStore::restore(&backup, &context.folder, &trust, signer, Arc::new(RealDisk), &mut |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        });
    bar.finish_and_clear();
    let restored = restored?;
    let project = files.map(|(listed, _)| listed.held());
    write_gitignore(&context.folder.join(".ai").join(".gitignore"))?;
    let backup = &restored.backup;
    let summary = Summary {
        folder: &context.folder,
        backup_id: &backup.backup_id,
        made_at: backup.made_at,
        store_format: backup.store_format,
        threads: restored.threads,
        blobs: restored.blobs,
        bytes: backup.bytes,
        signed: restored.is_signed,
        failed_checks: &restored.failed_checks,
        project,
    };
    let differs = restored.differs.iter().map(ListedDifference::from).collect();
    show(&RestoreReport { summary: &summary, rebuilt: restored.is_rebuilt, differs }, context)?;
    if has_files && !args.project {
        context.output.tell(
            "The backup also includes files of the project: `--project` restores them, in a folder without a store.",
        );
    }
    let Some(first) = restored.failed_checks.first() else { return check_heads(&restored.differs) };
    let left = if restored.failed_checks.len() == 1 {
        "one object is".to_owned()
    } else {
        format!("{} objects are", restored.failed_checks.len())
    };
    let message = format!("the rest is restored, but {left} left out; the first: {}", clean(&first.why));
    let failure =
        Failure::new(Exit::Integrity, "threads_skipped", message).detail("thread_id", first.thread_id.as_str());
    Err(failure.hint(match (first.blob, first.file.as_deref()) {
        (_, Some("thread.json")) => "it is derived from the log: the next command that writes creates a new one".to_owned(),
        (_, Some(_)) => {
            "`selvedge reindex` writes it again if the restored database still has it; otherwise copy it from another backup".to_owned()
        }
        (Some(blob), None) => format!(
            "copy it from another backup or an export into `{}` as `{blob}`",
            threads_folder(&context.folder).join(first.thread_id.folder()).join("blobs").display()
        ),
        (None, None) => "import it from an export, `selvedge import FILE`, or use another backup; if only its key is not trusted, trust it and \
                 restore again into another folder"
            .to_owned(),
    }))
}

/// What was restored, and how.
#[derive(Serialize)]
struct RestoreReport<'a> {
    #[serde(flatten)]
    summary: &'a Summary<'a>,
    rebuilt: bool,
    differs: Vec<ListedDifference<'a>>,
}

/// The failure if the backup lacks data that its own list of heads names.
fn check_heads(differs: &[HeadDifference]) -> Result<()> {
    let Some(first) = differs.first() else { return Ok(()) };
    let number = differs.len();
    let message = format!(
        "{number} of the heads on the backup's list are missing in the backup; the first: {}",
        clean(&first.to_string())
    );
    let failure = Failure::new(Exit::Integrity, "rolled_back", message).detail("differs", number as u64);
    Err(failure.hint("the rest is restored; look for the missing data in another backup or an export"))
}

fn show(whole: &RestoreReport<'_>, context: &Context<'_>) -> Result<()> {
    let RestoreReport { summary, rebuilt, differs } = whole;
    if context.output.is_json() {
        return context.output.record(whole);
    }
    let held = [count(summary.threads, "thread"), count(summary.blobs, "blob")].join(", ");
    context.output.text(format_args!("{held} are restored as of {}", crate::text::local(summary.made_at)))?;
    if let Some(FileTotals { files, .. }) = summary.project {
        let files = count(files, "file");
        context.output.text(format_args!("{files} of the project's {} are back", FOLDERS.join(", ")))?;
    }
    for bad in summary.failed_checks {
        context.output.text(format_args!("{} {}", paint(BAD, "left out:"), clean(&bad.why)))?;
    }
    for differs in differs {
        context.output.text(format_args!("{} {}", paint(BAD, "missing:"), clean(&differs.message)))?;
    }
    if *rebuilt {
        context.output.say("the backup's database does not match its list; it was rebuilt from the logs");
    }
    if !summary.signed {
        context.output.say("the backup's list is not signed; every log in it is signed");
    }
    Ok(())
}
