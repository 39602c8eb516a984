//! `selvedge init`: creates a signing key, trusts it, and creates a store for threads.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::keys::{KeyError, KeyFolder};
use selvedge_log::{Signer, Trust};
use selvedge_model::{Clock, Digest};
use selvedge_store_local::LocalStore;
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Failure, Result};
use crate::new_file::write_item;
use crate::output::{BOLD, Output, paint};
use crate::scaffold::SAMPLES;
use crate::visible_models::visible_models;

/// The name under which the user's own key is trusted.
const OWNER: &str = "self";

/// The files of a store that belong to this machine and not into version control.
const IGNORED: &str = "\
# The logs are the record. Databases, locks and the names of live processes belong to this machine.
agent/threads/*.db
agent/threads/*.db-*
agent/threads/*.db.*
agent/threads/*.lock
agent/threads/owners/
";

/// Create a project: a signing key, a store, and an agent, a directive and a tool that run at once
///
/// Creates a signing key in your Selvedge home if there is none, trusts it, and creates the folder `.ai` with the store for the threads of
/// this project. Adds the agent `guide`, the directive `hello` with its script, and the tool `greet`: they work offline. Existing files are
/// not changed; in an existing project only what is missing is added.
///
/// JSON: {"project", "store_created", "user", "key", "key_created", "gitignore_created", "files_created":[…]}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Create only the key and the store
    #[arg(long)]
    bare: bool,
}

/// What was created and what existed.
#[derive(Debug, Serialize)]
pub(crate) struct InitReport {
    #[serde(serialize_with = "crate::text::in_json")]
    pub(crate) project: PathBuf,
    pub(crate) store_created: bool,
    #[serde(serialize_with = "crate::text::in_json")]
    pub(crate) user: PathBuf,
    pub(crate) key: Digest,
    pub(crate) key_created: bool,
    pub(crate) gitignore_created: bool,
    /// The files to begin with that were not there, by their path in the project.
    pub(crate) files_created: Vec<String>,
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let around = context.find_project().filter(|project| *project != context.folder);
    let mut made = make(&context.folder, &User::find()?)?;
    if !args.bare {
        made.files_created = add_samples(&made.project)?;
    }
    show(&made, args.bare, context.output)?;
    context.output.tell(visible_models(context)?);
    if let Some(around) = around.filter(|_| made.store_created) {
        context.output.say(format!("`{}` has a store too; in this folder, the new one is used", around.display()));
    }
    Ok(())
}

/// Creates what is missing.
pub(crate) fn make(project: &Path, user: &User) -> Result<InitReport> {
    user.check_apart_from(project)?;
    let (signer, key_created) = find_or_make_key(&user.signing())?;
    Trust::add(&user.trusted(), &signer.public(), OWNER, SystemClock.now())?;
    let store_created = LocalStore::init(project, Arc::new(RealDisk))?;
    Ok(InitReport {
        gitignore_created: write_gitignore(&project.join(".ai").join(".gitignore"))?,
        project: project.to_owned(),
        store_created,
        user: user.folder.clone(),
        key: signer.fingerprint(),
        key_created,
        files_created: Vec::new(),
    })
}

/// Writes the files to begin with that are not there yet; gives their paths.
fn add_samples(project: &Path) -> Result<Vec<String>> {
    let mut added = Vec::new();
    for (path, text) in SAMPLES {
        let path = format!(".ai/{path}");
        match write_item(project, &project.join(&path), text) {
            Ok(()) => added.push(path),
            // What is there, or lies behind a link, is the user's own.
            Err(failure) if matches!(failure.code, "file_exists" | "symbolic_link") => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(added)
}

fn find_or_make_key(folder: &Path) -> Result<(Signer, bool)> {
    match KeyFolder::load(folder) {
        Ok(signer) => Ok((signer, false)),
        Err(KeyError::Absent { .. }) => match KeyFolder::create(folder, &SystemIds) {
            Ok(signer) => Ok((signer, true)),
            // Another `init` was faster; its key is complete.
            Err(KeyError::Exists { .. }) => Ok((KeyFolder::load(folder)?, false)),
            Err(error) => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

/// Writes the file unless there is one, which the user may have written.
pub(crate) fn write_gitignore(path: &Path) -> Result<bool> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => {
            let written = file.write_all(IGNORED.as_bytes()).and_then(|()| file.sync_all());
            written.map(|()| true).map_err(|error| {
                // A partial file would be taken for the user's own the next time.
                let _ = fs::remove_file(path);
                Failure::io("write", path, &error)
            })
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Failure::io("write", path, &error)),
    }
}

fn show(made: &InitReport, is_bare: bool, output: &Output) -> Result<()> {
    if output.is_json() {
        return output.record(made);
    }
    let was = |created: bool| if created { "created" } else { "already there" };
    let key_folder = made.user.join("keys");
    let store = made.project.join(".ai");
    output.text(format_args!(
        "{}  {} ({}, in {})",
        paint(BOLD, "key  "),
        made.key.short(),
        was(made.key_created),
        key_folder.display()
    ))?;
    output.text(format_args!("{}  {} ({})", paint(BOLD, "store"), store.display(), was(made.store_created)))?;
    if made.key_created {
        output.tell("Keep a copy of the key: without it, threads that it signed can't be continued.");
    }
    if is_bare {
        output.tell("Next: `selvedge thread new --agent scribe`");
        return Ok(());
    }
    for file in &made.files_created {
        output.text(format_args!("{}  {file} (created)", paint(BOLD, "file ")))?;
    }
    output.tell("Next: `selvedge run hello`, then `selvedge chat`");
    Ok(())
}
