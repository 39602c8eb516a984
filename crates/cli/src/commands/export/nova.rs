//! The nova format: a manifest and events in JSON lines.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use selvedge_legacy::nova::{self, Exported, NovaError};
use selvedge_model::ThreadId;
use selvedge_store::Backend;
use selvedge_store_local::Access;
use serde::Serialize;

use super::Args;
use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::Output;
use crate::text::count;

#[derive(Serialize)]
struct NovaReport<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    format: &'static str,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    bytes: u64,
    events: u64,
    imported: u64,
    left_out: u64,
}

/// Writes a thread in the nova format, to a file or to stdout.
pub(crate) fn export(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    let written = match args.file(context) {
        Some(path) => to_file(&path, &thread, &*store, context.output)?,
        None => to_stdout(&thread, &*store, context.output)?,
    };
    if written.imported > 0 && written.imported < written.events {
        let own = count(written.events - written.imported, "line");
        let why = "marked in `witnessedIn`; lines are in the order of the log, which may differ from the order of their times";
        context.output.say(format!("{} imported, {own} recorded here: {why}", count(written.imported, "line")));
    }
    if written.left_out > 0 {
        let pieces = count(written.left_out, "piece");
        let why = "the format has no tool results, system messages, thinking and images";
        context.output.say(format!("{pieces} of messages left out: {why}"));
    }
    Ok(())
}

fn to_stdout(thread: &ThreadId, store: &dyn Backend, output: &Output) -> Result<Exported> {
    if io::stdout().is_terminal() {
        let failure = Failure::usage("a file can't be written to a terminal");
        return Err(failure.hint(format!("write it with `selvedge export {thread} --format nova -o {thread}.jsonl`")));
    }
    let mut out = BufWriter::with_capacity(1 << 16, Stdout(output));
    nova::export(store, store.trust(), thread, &mut out).map_err(failure)
}

/// Writes a new file, durable on return; a partial one is removed.
fn to_file(path: &Path, thread: &ThreadId, store: &dyn Backend, output: &Output) -> Result<Exported> {
    let file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let message = format!("`{}` already exists", path.display());
                Failure::new(Exit::Conflict, "file_exists", message).hint("choose another name; nothing is overwritten")
            }
            _ => Failure::io("write", path, &error),
        })?;
    let written = write(&file, path, thread, store);
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(path);
    }
    let (written, bytes) = written?;
    let Exported { version, events, imported, left_out } = written;
    if output.is_json() {
        output.record(&NovaReport {
            thread_id: thread,
            version,
            format: "nova",
            file: path,
            bytes,
            events,
            imported,
            left_out,
        })?;
    } else {
        output.tell(format_args!("{}, {} after the manifest", count(bytes, "byte"), count(events, "line")));
    }
    Ok(written)
}

fn write(file: &File, path: &Path, thread: &ThreadId, store: &dyn Backend) -> Result<(Exported, u64)> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let written = nova::export(store, store.trust(), thread, &mut out).map_err(failure)?;
    let synced = out.flush().and_then(|()| file.sync_all()).and_then(|()| file.metadata());
    let metadata = synced.map_err(|error| Failure::io("write", path, &error))?;
    Ok((written, metadata.len()))
}

fn failure(error: NovaError) -> Failure {
    match error {
        NovaError::Store(error) => error.into(),
        error => Failure::of(&error),
    }
}

/// Stdout as a writer.
struct Stdout<'a>(&'a Output);

impl Write for Stdout<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.bytes(bytes).map_err(|failure| io::Error::other(failure.message))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
