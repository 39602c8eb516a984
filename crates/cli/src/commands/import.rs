//! `selvedge import`: threads from files.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::commands::export::Format;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::input;

mod native;
mod nova;

/// Import threads from files
///
/// A native file is verified with the keys you trust, every hash and every signature, before any of it is stored; a key inside the
/// file proves nothing. The log is stored byte for byte. The thread can be continued if it was signed with your own key, and is
/// read-only otherwise. Budgets are computed from the available logs, in any order of import; while logs of its family are missing,
/// an account is incomplete, and unknown postings count as spent.
///
/// A nova file becomes a thread that is marked as imported and not witnessed. Damage left by crashes is repaired where possible and
/// skipped otherwise; both are counted, and the original bytes are kept. When it is imported again, the same file adds nothing and a
/// longer one adds its end, also under another name; one that differs is refused.
///
/// JSON (native), one object per file: {"file", "thread_id", "version", "outcome", "bytes", "blobs", "signers", "writable",
/// "incomplete_accounts":[…]}, where "outcome" is "imported", "would_import", "unchanged" or "refused", then with "error". JSON
/// (nova): {"file", "thread_id", "outcome", "version", "messages_added", "events_added", "bytes_added", "too_large",
/// "witnessed":false, "counts":{"lines", "blank", "clean", "repaired_joined", "repaired_nul", "repaired_value", "lost", "manifests",
/// "parsed", "messages", "legacy", "tool_uses", "assistant_texts", "results", "opaque", "skipped_torn", "skipped_nul",
/// "skipped_invalid", "skipped_long", "replaced_text", "replaced_number", "remarks":[{"line", "what"}]}}, where "outcome" may also be
/// "extended", "resumed", "would_extend" or "would_resume".
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The file format; default: detected from the first bytes
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Check everything and store nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let format = match args.format {
        Some(format) => format,
        None => detect_all(&args.files, &context.folder)?,
    };
    match format {
        Format::Selvedge => native::import(args, context),
        Format::Nova => nova::import(args, context),
    }
}

/// The format of all files.
fn detect_all(files: &[PathBuf], folder: &Path) -> Result<Format> {
    let mut found = None;
    for file in files {
        let format = detect(&folder.join(file))?;
        if *found.get_or_insert(format) != format {
            let failure = Failure::usage("the files have different formats");
            return Err(failure.hint("import one format at a time, or name it with `--format`"));
        }
    }
    found.ok_or_else(|| Failure::usage("there is no file to import"))
}

/// The format of a file, from its first bytes: a tar archive has a magic number, and JSON lines begin with a brace.
fn detect(path: &Path) -> Result<Format> {
    let failed = |error: std::io::Error| Failure::io("read", path, &error);
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if !kind.is_file() {
        // Opening a pipe would wait until another process writes to it.
        let what = if kind.is_dir() { "a folder" } else { "not a regular file" };
        let failure = Failure::usage(format!("`{}` is {what}; an archive is a file", path.display()));
        return Err(failure.hint(
            "name a file that `selvedge export` wrote; to restore a backup, which is a folder: `selvedge restore DIR`",
        ));
    }
    let mut beginning = Vec::new();
    input::open(path)?.take(512).read_to_end(&mut beginning).map_err(failed)?;
    if beginning.get(257..262) == Some(b"ustar") {
        return Ok(Format::Selvedge);
    }
    let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&beginning);
    match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => Ok(Format::Nova),
        _ => {
            let failure = Failure::usage(format!("`{}` is not an archive of a thread", path.display()));
            Err(failure.hint(
                "an archive is a tar file that `selvedge export` wrote, or JSON lines in the nova format; use `--format` if it does \
                 not begin like one",
            ))
        }
    }
}
