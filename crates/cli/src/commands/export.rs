//! `selvedge export`: one thread as one file.

use std::path::PathBuf;

use crate::context::Context;
use crate::error::Result;

mod native;
mod nova;

/// Export a thread as one file
///
/// The native format is a plain tar archive with one folder: the exact bytes of the log, its manifest, its blobs and the
/// public keys of its signers. It is the same file whenever it is exported at the same version, and whoever trusts the
/// key can check it with nothing but FORMAT.md. `nova` is the older form, `manifest + events` in JSON lines.
///
/// Without -o the file goes to stdout, unless that is a terminal.
///
/// JSON (with -o): {"thread_id", "version", "format", "file", "bytes", "blobs", "signers"}; nova has
/// "events" and "left_out" instead of the last two
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    pub(crate) thread: String,
    /// The form of the file
    #[arg(long, value_enum, default_value_t = Format::Selvedge)]
    pub(crate) format: Format,
    /// Write to FILE, which must not exist
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The forms in which a thread can leave and arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A tar archive with the exact log
    Selvedge,
    /// The older `manifest + events` in JSON lines
    Nova,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    match args.format {
        Format::Selvedge => native::export(args, context),
        Format::Nova => nova::export(args, context),
    }
}
