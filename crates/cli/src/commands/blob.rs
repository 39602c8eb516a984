//! `selvedge blob`: what was too large for a line of the log.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use selvedge_engine::blobs::blobs_named;
use selvedge_model::{Digest, ThreadId};
use selvedge_store_local::Access;
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Exit, Failure, Result};
use crate::new_file;
use crate::text::{clean, count, shell_word};

/// Show a blob: content that was too large for a line of the log
///
/// A blob is named in the log of its thread, and in `selvedge transcript`. Its bytes are checked against its name. In a pipe they are
/// written as they are; on a terminal, control characters are escaped, and binary content is not shown. A blob that was erased is refused
/// with the time and the reason.
///
/// A model reads the blobs of its own thread with the tool `blob_read`.
///
/// JSON: {"thread_id", "blob", "bytes", "text", "file"}; "text" is null if the blob is not text, or if it was written to "file".
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// The blob's name, or any unique prefix of it
    #[arg(value_name = "DIGEST")]
    blob: String,
    /// Write it to FILE, which must not exist
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct BlobReport<'a> {
    thread_id: &'a ThreadId,
    blob: Digest,
    bytes: usize,
    text: Option<&'a str>,
    #[serde(serialize_with = "file_in_json")]
    file: Option<&'a Path>,
}

fn file_in_json<S: serde::Serializer>(file: &Option<&Path>, serializer: S) -> Result<S::Ok, S::Error> {
    match file {
        Some(file) => crate::text::in_json(file, serializer),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    let named = blobs_named(&*store, &User::find()?.trust()?, &thread, &args.blob.to_lowercase())?;
    let blob = one(&named, &thread, &args.blob)?;
    let bytes = store.blob(&thread, &blob)?;
    let file = args.output.as_ref().map(|file| context.folder.join(file));
    if let Some(file) = &file {
        new_file::write(file, &bytes, 0o600)?;
    }
    let text = std::str::from_utf8(&bytes).ok();
    if context.output.is_json() {
        let text = text.filter(|_| file.is_none());
        let file = file.as_deref();
        return context.output.record(&BlobReport { thread_id: &thread, blob, bytes: bytes.len(), text, file });
    }
    match (file, text) {
        (Some(file), _) => {
            let bytes = count(bytes.len() as u64, "byte");
            context.output.text(format_args!("blob {} of {thread} is in {}: {bytes}", blob.short(), file.display()))
        }
        (None, _) if !io::stdout().is_terminal() => context.output.bytes(&bytes),
        (None, Some(text)) => context.output.text(clean(text).trim_end_matches('\n')),
        (None, None) => {
            let message = format!("blob {} is not text, and is not written to a terminal", blob.short());
            let name = blob.short();
            let file = shell_word(&format!("{}.bin", blob.short()));
            Err(Failure::usage(message).hint(format!("write it with `selvedge blob {thread} {name} -o {file}`")))
        }
    }
}

/// The one blob among those whose names begin as it was typed.
fn one(named: &BTreeSet<Digest>, thread: &ThreadId, typed: &str) -> Result<Digest> {
    let mut found = named.iter().copied();
    match (found.next().filter(|_| !typed.is_empty()), named.len()) {
        (Some(one), 1) => Ok(one),
        (None, _) => {
            let message = format!("the log of `{thread}` names no blob that begins with `{typed}`");
            let failure = Failure::new(Exit::NotFound, "blob_not_found", message);
            Err(failure.hint(format!("`selvedge transcript {thread}` names its blobs")))
        }
        (Some(_), several) => {
            let message = format!("`{typed}` names {several} blobs of thread `{thread}`");
            Err(Failure::new(Exit::NotFound, "ambiguous", message).hint("type more of the name"))
        }
    }
}
