//! `selvedge export`: one thread as one file.

use std::path::PathBuf;

use crate::context::Context;
use crate::error::{Failure, Result};

mod native;
mod nova;

/// Export a thread as one file
///
/// The native format is a plain tar archive with one folder: the exact bytes of the log, its manifest, its blobs, the public
/// keys of its signers and the statements with which one took over from the other. It is the same file whenever it is exported
/// at the same version and with the same keys. Whoever has any one of the keys checks it with `selvedge verify FILE --key PUBLIC.pem`,
/// without a store, or with nothing but FORMAT.md. `nova` is the older form, `manifest + events` in JSON lines.
///
/// With --chain every thread of its chain is exported, with --tree every thread of its family, each as a file of its own in the new folder
/// that -o names: `selvedge import FOLDER/*.tar` takes them in, in any order.
///
/// Without -o, or with `-o -`, the file goes to stdout, unless that is a terminal. In nova's form, lines of an imported thread
/// that were witnessed here say so in "witnessedIn".
///
/// JSON (with -o FILE): {"thread_id", "version", "format", "file", "bytes", "blobs", "signers"}; nova has
/// "events", "imported" (how many of them were) and "left_out" instead of the last two
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    pub(crate) thread: String,
    /// Every thread of its chain, into a new folder
    #[arg(long, conflicts_with = "tree", requires = "output")]
    pub(crate) chain: bool,
    /// Every thread of its family, into a new folder
    #[arg(long, requires = "output")]
    pub(crate) tree: bool,
    /// The form of the file
    #[arg(long, value_enum, default_value_t = Format::Selvedge)]
    pub(crate) format: Format,
    /// Write to FILE, which must not exist; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

impl Args {
    /// The file to write; nothing if that is stdout.
    fn file(&self, context: &Context<'_>) -> Option<PathBuf> {
        self.output.as_ref().filter(|path| path.as_os_str() != "-").map(|path| context.folder.join(path))
    }
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
        Format::Nova if args.chain || args.tree => {
            Err(Failure::usage("--chain and --tree export the native form; nova's has one thread in a file"))
        }
        Format::Nova => nova::export(args, context),
    }
}
