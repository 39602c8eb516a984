//! `selvedge restore`: a store from a backup.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use selvedge_store::heads::HeadDifference;
use selvedge_store_local::LocalStore;
use selvedge_store_local::disk::RealDisk;
use serde::Serialize;

use super::backup::Said;
use super::heads::Named;
use super::init::write_gitignore;
use crate::context::{Context, User, threads_folder};
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, paint};
use crate::project_files::{self, FOLDERS, Held};
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
/// With --project the agents, directives, tools, knowledge and configuration come back too that `selvedge backup --project` took along. Their
/// list must be signed by a key you trust and belong to this backup, and every file must be the one that was signed for. Nothing is
/// overwritten: if another file is in the place of one of them, nothing is restored at all.
///
/// At the end the store is compared with the list of heads in the backup, as `selvedge heads verify` does: what that tells of and is not there is
/// named, and the exit code is 6.
///
/// If the original goes on somewhere else, it and this one part from here on: don't write to both.
///
/// JSON: {"folder", "backup_id", "made_at", "store_format", "threads", "blobs", "bytes", "signed", "bad":[{"thread_id", "blob", "file",
/// "why", "copied"}], "project":{"files", "bytes"}, "rebuilt", "differs":[{"thread_id", "version", "how", "message"}]}; "folder" is the project,
/// "project" is null without --project, "rebuilt" says whether the database was built anew, and "differs" what the backup's list of heads
/// tells of and the backup did not hold.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What `selvedge backup` wrote
    #[arg(value_name = "DIR")]
    backup: PathBuf,
    /// Bring the project's agents, directives, tools, knowledge and configuration back too
    #[arg(long)]
    project: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let asked = context.folder.join(&args.backup);
    let backup = fs::canonicalize(&asked).map_err(|error| Failure::io("restore", &asked, &error))?;
    let user = User::find()?;
    user.check_apart_from(&context.folder)?;
    let trust = user.trust()?;
    let has_files = project_files::is_in(&backup);
    let files = args.project.then(|| project_files::check(&backup, &trust)).transpose()?;
    if let Some((listed, contents)) = &files {
        project_files::check_free(&context.folder, listed, contents)?;
        // Before the store: a restore that is cut short is run again, which is refused once there is one.
        project_files::put(&context.folder, listed, contents)?;
    }
    let bar = context.output.progress(2, "checking");
    // Without a key everything is restored too; who has one seals it when the store is opened to write.
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
        project,
    };
    let differs = restored.differs.iter().map(Named::from).collect();
    show(&Whole { said: &said, rebuilt: restored.is_rebuilt, differs }, context)?;
    if has_files && !args.project {
        context
            .output
            .tell("The backup holds files of the project too: `--project` restores them, in a folder without a store.");
    }
    let Some(first) = restored.bad.first() else { return behind(&restored.differs) };
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
    differs: Vec<Named<'a>>,
}

/// What is restored is less than the backup's own list of heads.
fn behind(differs: &[HeadDifference]) -> Result<()> {
    let Some(first) = differs.first() else { return Ok(()) };
    let number = differs.len();
    let message =
        format!("{number} of what the backup remembers is not in it; the first: {}", clean(&first.to_string()));
    let failure = Failure::new(Exit::Integrity, "rolled_back", message).detail("differs", number as u64);
    Err(failure.hint("the rest is restored; look for what is missing in another backup or an export"))
}

fn show(whole: &Whole<'_>, context: &Context<'_>) -> Result<()> {
    let Whole { said, rebuilt, differs } = whole;
    if context.output.is_json() {
        return context.output.record(whole);
    }
    let held = [count(said.threads, "thread"), count(said.blobs, "blob")].join(", ");
    context.output.text(format_args!("{held} are restored as of {}", crate::text::local(said.made_at)))?;
    if let Some(Held { files, .. }) = said.project {
        let files = count(files, "file");
        context.output.text(format_args!("{files} of the project's {} are back", FOLDERS.join(", ")))?;
    }
    for bad in said.bad {
        context.output.text(format_args!("{} {}", paint(BAD, "left out:"), clean(&bad.why)))?;
    }
    for differs in differs {
        context.output.text(format_args!("{} {}", paint(BAD, "missing:"), clean(&differs.message)))?;
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
