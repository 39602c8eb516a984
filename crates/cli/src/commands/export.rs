//! `selvedge export`: writes threads to files.

use std::path::PathBuf;

use crate::context::Context;
use crate::error::{Failure, Result};

mod native;
mod nova;

/// Export a thread to a file
///
/// The native format is a plain tar archive with one folder: the exact bytes of the log, its manifest, its blobs, the public keys of
/// its signers and the rotations between them. The same version and keys always give the same file. With any one of the keys it can
/// be verified without a store: `selvedge verify FILE --public-key PUBLIC.pem`, or with a program of your own, from FORMAT.md. `nova` is the
/// format of an earlier system, a manifest and events in JSON lines.
///
/// With --chain, exports every thread of its chain, with --tree every thread of its family, each as a file in the new folder that -o
/// names: `selvedge import FOLDER/*.tar` imports them, in any order.
///
/// Without -o, or with `-o -`, the file goes to stdout, unless that is a terminal. In the nova format, lines of an imported thread
/// that were recorded here are marked with "witnessedIn".
///
/// JSON (with -o FILE): {"thread_id", "version", "format", "file", "bytes", "blobs", "signers"}; nova has "events", "imported" (how
/// many of them were imported) and "left_out" instead of the last two
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    pub(crate) thread: String,
    /// Export every thread of its chain to a new folder
    #[arg(long, conflicts_with = "tree", requires = "output")]
    pub(crate) chain: bool,
    /// Export every thread of its family to a new folder
    #[arg(long, requires = "output")]
    pub(crate) tree: bool,
    /// The file format
    #[arg(long, value_enum, default_value_t = Format::Selvedge)]
    pub(crate) format: Format,
    /// The file to write, which must not exist; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

impl Args {
    /// The file to write; `None` for stdout.
    fn file(&self, context: &Context<'_>) -> Option<PathBuf> {
        self.output.as_ref().filter(|path| path.as_os_str() != "-").map(|path| context.folder.join(path))
    }
}

/// The file formats of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A tar archive with the exact log
    Selvedge,
    /// The format of an earlier system: a manifest and events in JSON lines
    Nova,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    match args.format {
        Format::Selvedge => native::export(args, context),
        Format::Nova if args.chain || args.tree => {
            Err(Failure::usage("--chain and --tree need the native format: a nova file has one thread"))
        }
        Format::Nova => nova::export(args, context),
    }
}
