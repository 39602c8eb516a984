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
/// A native file is checked with the keys you trust, every hash and every signature, before anything of it is kept; a key
/// inside the file proves nothing. The log arrives byte for byte. It can be gone on with if it was signed with your own
/// key, and is read-only otherwise. Budgets are worked out from the logs that are here, in whatever order they come; the account of a
/// family of which logs are missing is incomplete, and what is not known of it counts as spent.
///
/// A file of the older form (nova) becomes a thread that says it was imported and not witnessed. What crashes left in it is
/// repaired where it can be told apart and skipped otherwise, both are counted, and the original bytes are kept. Imported
/// again, the same file adds nothing and a grown one its end, also under another name; one that differs is refused.
///
/// JSON (native), one object per file: {"file", "thread_id", "version", "outcome", "bytes", "blobs", "signers",
/// "writable", "incomplete_accounts":[…]}, where "outcome" is "imported", "would_import", "unchanged" or "refused", and then "error" says why.
/// JSON (nova): {"file", "thread_id", "outcome", "version", "messages_added", "events_added", "bytes_added", "too_large",
/// "witnessed":false, "counts":{"lines", "blank", "clean", "repaired_glued", "repaired_nul", "repaired_value", "lost", "manifests", "parsed",
/// "messages", "legacy", "tool_uses", "assistant_texts", "results", "opaque", "skipped_torn", "skipped_nul",
/// "skipped_invalid", "skipped_long", "mended_text", "mended_number", "remarks":[{"line", "what"}]}}, where "outcome" may also be "extended", "resumed",
/// "would_extend" or "would_resume".
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The form of the files; told from their first bytes if it is not given
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Check everything and keep nothing
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

/// The form that all files have.
fn detect_all(files: &[PathBuf], folder: &Path) -> Result<Format> {
    let mut found = None;
    for file in files {
        let format = detect(&folder.join(file))?;
        if *found.get_or_insert(format) != format {
            let failure = Failure::usage("the files have different forms");
            return Err(failure.hint("import them one form at a time, or name it with `--format`"));
        }
    }
    found.ok_or_else(|| Failure::usage("there is no file to import"))
}

/// The form of a file, from its first bytes: a tar archive says so itself, and JSON lines begin with a brace.
fn detect(path: &Path) -> Result<Format> {
    let failed = |error: std::io::Error| Failure::io("read", path, &error);
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if !kind.is_file() {
        // Opening a pipe would wait until another process writes to it.
        let what = if kind.is_dir() { "a folder" } else { "no plain file" };
        let failure = Failure::usage(format!("`{}` is {what}, and an archive is a file", path.display()));
        return Err(
            failure.hint("name the file that `selvedge export` wrote; a backup is a folder: `selvedge restore DIR`")
        );
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
            let failure = Failure::usage(format!("`{}` is no archive of a thread", path.display()));
            Err(failure.hint(
                "an archive is a tar file that `selvedge export` wrote, or JSON lines of the older form; `--format` names it if it does \
                 not begin like one",
            ))
        }
    }
}
