//! The native format: a tar archive with the exact log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use selvedge_model::{Digest, Manifest, ThreadId};
use selvedge_store::archive::Exported;
use selvedge_store::{Backend, Filter};
use selvedge_store_local::Access;
use serde::Serialize;

use super::Args;
use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::Output;
use crate::text::{count, shell_word};

/// How many threads are listed at once.
const PAGE: usize = 1000;

#[derive(Serialize)]
struct NativeReport<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    format: &'static str,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    bytes: u64,
    blobs: u64,
    signers: &'a [Digest],
}

/// Writes a thread as an archive, to a file or to stdout.
pub(crate) fn export(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    if args.chain || args.tree {
        return family(args, &thread, &*store, context);
    }
    match args.file(context) {
        Some(path) => to_file(&path, &thread, &*store, context.output),
        None => to_stdout(&thread, &*store, context.output),
    }
}

/// Writes every thread of a chain or a family, each as a file in a new folder.
fn family(args: &Args, thread: &ThreadId, store: &dyn Backend, context: &Context<'_>) -> Result<()> {
    let Some(folder) = args.file(context) else {
        return Err(
            Failure::usage("several files can't be written to stdout").hint("name a new folder with `-o FOLDER`")
        );
    };
    let of = store.get(thread)?.manifest;
    let is_of_it = |one: &Manifest| {
        if args.chain { one.chain_root_id == of.chain_root_id } else { one.family_root() == of.family_root() }
    };
    let mut threads = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        let found = page.items.into_iter().map(|one| one.manifest).filter(|one| is_of_it(one));
        threads.extend(found.map(|one| one.thread_id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    made.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(&folder),
        _ => Failure::io("create", &folder, &error),
    })?;
    threads
        .iter()
        .try_for_each(|one| to_file(&folder.join(format!("{}.tar", one.folder())), one, store, context.output))
}

fn to_stdout(thread: &ThreadId, store: &dyn Backend, output: &Output) -> Result<()> {
    if io::stdout().is_terminal() {
        let failure = Failure::usage("an archive can't be written to a terminal");
        return Err(failure.hint(format!("write it with `selvedge export {thread} -o {}.tar`", thread.folder())));
    }
    store.export(thread, &mut BufWriter::with_capacity(1 << 16, Stdout(output)))?;
    Ok(())
}

/// Writes a new file, durable on return; a partial one is removed.
fn to_file(path: &Path, thread: &ThreadId, store: &dyn Backend, output: &Output) -> Result<()> {
    let file = new_file(path)?;
    let written = write(&file, path, thread, store);
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(path);
    }
    let (Exported { thread, head, blobs, signers }, bytes) = written?;
    if output.is_json() {
        let version = head.version;
        let signers = &signers;
        return output.record(&NativeReport {
            thread_id: &thread,
            version,
            format: "selvedge",
            file: path,
            bytes,
            blobs,
            signers,
        });
    }
    let held = [count(head.lines, "line"), count(blobs, "blob"), count(bytes, "byte")].join(", ");
    output.text(format_args!("{thread} at version {} is in {}: {held}", head.version, path.display()))?;
    let file = shell_word(&path.display().to_string());
    output.tell(format_args!(
        "To import it: `selvedge import {file}`, in a store that trusts the key. It is a plain tar archive."
    ));
    Ok(())
}

fn new_file(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::io("write", path, &error),
    })
}

fn exists(path: &Path) -> Failure {
    let message = format!("`{}` already exists", path.display());
    Failure::new(Exit::Conflict, "file_exists", message).hint("choose another name; nothing is overwritten")
}

fn write(file: &File, path: &Path, thread: &ThreadId, store: &dyn Backend) -> Result<(Exported, u64)> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let exported = store.export(thread, &mut out)?;
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or(PathBuf::from("."), Path::to_owned);
    let synced = out
        .flush()
        .and_then(|()| file.sync_all())
        .and_then(|()| File::open(&folder)?.sync_all())
        .and_then(|()| file.metadata());
    let metadata = synced.map_err(|error| Failure::io("write", path, &error))?;
    Ok((exported, metadata.len()))
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
