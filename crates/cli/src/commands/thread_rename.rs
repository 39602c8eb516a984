//! `selvedge thread rename`: a new title, or a request for one to whoever holds the thread.

use std::time::Duration;

use selvedge_model::event::ManifestChanged;
use selvedge_model::{Batch, Changeset, Event, Expect, Ids, Note, NoteKey, Part, ThreadId};
use selvedge_store::{Error, Notes, Registry};
use selvedge_store_local::system::SystemIds;
use selvedge_store_local::{Access, LocalStore};
use serde::Serialize;
use serde_json::json;

use crate::commit::commit_within;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::text::clean;

const TITLE_BYTES_MAX: usize = 1000;

/// Give a thread a new title
///
/// While another process holds the thread, the new title is left as a note that it takes in with its next commit.
///
/// JSON: {"thread_id", "title", "version", "note"}; "note" is the key of the note if one was left, and "version" is null then.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// The new title
    #[arg(value_parser = check_title)]
    title: String,
    /// How long to wait for whoever holds the thread
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    wait: u32,
}

#[derive(Serialize)]
struct Renamed<'a> {
    thread_id: &'a ThreadId,
    title: &'a str,
    version: Option<u64>,
    note: Option<NoteKey>,
}

/// Checks that a title can be shown on one line.
pub(crate) fn check_title(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("a title can't be empty".to_owned());
    }
    if text.len() > TITLE_BYTES_MAX {
        return Err(format!("a title can't be longer than {TITLE_BYTES_MAX} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("a title can't have control characters".to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadWrite)?;
    let thread = store.resolve(&args.thread)?;
    let wait = Duration::from_secs(args.wait.into());
    let change = ManifestChanged { title: Some(args.title.clone()), ..ManifestChanged::default() };
    let part = Part::new(thread.clone(), Expect::Any, Changeset::of_event(Event::ManifestChanged(change)));
    let (version, note) = match commit_within(&store, &Batch::of(part), wait) {
        Ok(committed) => (committed.version_of(&thread), None),
        Err(Error::LeaseHeld { .. }) => (None, Some(leave_note(&thread, &args.title, &store)?)),
        Err(error) => return Err(error.into()),
    };
    context.close(store);
    let renamed = Renamed { thread_id: &thread, title: &args.title, version, note };
    if context.output.is_json() {
        return context.output.record(&renamed);
    }
    match version {
        Some(version) => {
            context.output.text(format_args!("{thread} is now called \"{}\" (version {version})", clean(&args.title)))
        }
        None => context.output.text(format_args!(
            "{thread} is held by another process, which was left a note: it takes the title in with its next commit"
        )),
    }
}

fn leave_note(thread: &ThreadId, title: &str, store: &LocalStore) -> Result<NoteKey> {
    let key = NoteKey::new(SystemIds.hex32()).map_err(|error| Failure::usage(error.to_string()))?;
    let note =
        Note { thread: thread.clone(), key: key.clone(), kind: "rename".to_owned(), body: json!({ "title": title }) };
    store.post(note)?;
    Ok(key)
}
