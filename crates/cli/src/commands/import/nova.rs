//! The older form, `manifest + events` in JSON lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use selvedge_legacy::nova::{Importer, NovaError, Outcome, Report, Source};
use selvedge_legacy::nova_file::{Counts, RemarkKind};
use selvedge_model::ThreadId;
use selvedge_store_local::Access;
use serde::Serialize;

use super::Args;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{BAD, BOLD, DIM, WARN, paint};
use crate::text::{clean, count, shell_word};

const BUFFER_BYTES: usize = 64 * 1024;
/// How many remarks are shown as text; JSON has all.
const PLACES: usize = 5;

/// A file on the disk.
struct DiskFile<'a> {
    path: &'a Path,
    name: String,
}

impl<'a> DiskFile<'a> {
    fn new(path: &'a Path) -> Result<Self> {
        let metadata = path.metadata().map_err(|error| Failure::io("read", path, &error))?;
        if !metadata.is_file() {
            let failure = Failure::usage(format!("`{}` is not a file", path.display()));
            return Err(failure.hint("it must be read more than once: write it to a file first"));
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { path, name })
    }
}

impl Source for DiskFile<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, File::open(self.path)?)))
    }
}

#[derive(Serialize)]
struct Imported<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    thread_id: &'a ThreadId,
    outcome: &'static str,
    version: Option<u64>,
    messages_added: u64,
    events_added: u64,
    bytes_added: u64,
    too_large: u64,
    witnessed: bool,
    counts: &'a Counts,
}

#[derive(Serialize)]
struct Refused<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    outcome: &'static str,
    error: serde_json::Value,
}

/// Imports nova files, each independently: a refused one does not affect the others.
pub(crate) fn import(args: &Args, context: &Context<'_>) -> Result<()> {
    let access = if args.dry_run { Access::ReadOnly } else { Access::ReadWrite };
    let store = context.open(access)?;
    let bar = context.output.progress(args.files.len() as u64, "importing");
    let mut failures = Vec::new();
    let mut importer = Importer::new(&*store, store.trust());
    for file in &args.files {
        let imported = one(&context.folder.join(file), args.dry_run, &mut importer);
        if let Err(failure) = &imported
            && context.is_overtaken_by_rotation(failure)
        {
            return Err(failure.clone());
        }
        let shown = bar.suspend(|| match imported {
            Ok(report) => show(file, &report, args.dry_run, context),
            Err(failure) => refuse(file, failure, args.files.len(), &mut failures, context),
        });
        shown?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !args.dry_run {
        context.close(store);
    }
    conclude(failures, &args.files)
}

fn one(path: &Path, dry_run: bool, importer: &mut Importer<'_>) -> Result<Report> {
    let source = DiskFile::new(path)?;
    let done = if dry_run { importer.preview(&source) } else { importer.import(&source) };
    done.map_err(|error| match error {
        NovaError::Store(error) => error.into(),
        error => Failure::of(&error),
    })
}

fn refuse(
    path: &Path,
    failure: Failure,
    files: usize,
    failures: &mut Vec<Failure>,
    context: &Context<'_>,
) -> Result<()> {
    let shown = if context.output.is_json() {
        let error: serde_json::Value = serde_json::from_str(&failure.to_json()).unwrap_or_default();
        context.output.record(&Refused { file: path, outcome: "refused", error: error["error"].clone() })
    } else if files == 1 {
        Ok(())
    } else {
        let name = clean(&path.display().to_string());
        context.output.text(format!("{}: {}", paint(BOLD, name), paint(BAD, clean(&failure.message))))
    };
    failures.push(failure);
    shown
}

fn conclude(failures: Vec<Failure>, files: &[PathBuf]) -> Result<()> {
    let several = failures.len() > 1;
    let refused = count(failures.len() as u64, "file");
    let Some(first) = failures.into_iter().next() else { return Ok(()) };
    if !several {
        return Err(first);
    }
    let message = format!("{refused} of {} refused; the first: {}", files.len(), first.message);
    Err(Failure { message, ..first })
}

fn word(outcome: Outcome, dry_run: bool) -> &'static str {
    match (outcome, dry_run) {
        (Outcome::New, false) => "imported",
        (Outcome::New, true) => "would_import",
        (Outcome::Resumed, false) => "resumed",
        (Outcome::Resumed, true) => "would_resume",
        (Outcome::Extended, false) => "extended",
        (Outcome::Extended, true) => "would_extend",
        (Outcome::Unchanged, _) => "unchanged",
    }
}

fn show(path: &Path, report: &Report, dry_run: bool, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        return context.output.record(&Imported {
            file: path,
            thread_id: &report.thread_id,
            outcome: word(report.outcome, dry_run),
            version: report.version,
            messages_added: report.added.messages,
            events_added: report.added.events,
            bytes_added: report.added.bytes,
            too_large: report.too_large,
            witnessed: false,
            counts: &report.counts,
        });
    }
    let name = clean(&path.display().to_string());
    let mut lines = vec![format!("{}: {}", paint(BOLD, name), headline(report, dry_run))];
    lines.push(paint(DIM, found(&report.counts)));
    lines.extend(trouble(report).map(|text| paint(WARN, text)));
    context.output.text(lines.join("\n  "))?;
    if dry_run && report.outcome != Outcome::Unchanged {
        let file = shell_word(&path.display().to_string());
        context.output.tell(format_args!("Nothing was written. Next: `selvedge import {file} --format nova`"));
    }
    Ok(())
}

fn headline(report: &Report, dry_run: bool) -> String {
    let thread = &report.thread_id;
    let added =
        format!("{} and {}", count(report.added.messages, "message"), count(report.added.events, "other event"));
    match (report.outcome, dry_run) {
        (Outcome::Unchanged, _) => format!("already imported as thread `{thread}`; nothing to add"),
        (Outcome::New, false) => format!("imported as thread `{thread}`: {added}"),
        (Outcome::New, true) => format!("would be imported as thread `{thread}`: {added}"),
        (Outcome::Resumed, false) => format!("continued the import of thread `{thread}`: {added}"),
        (Outcome::Resumed, true) => format!("would continue the import of thread `{thread}`: {added}"),
        (Outcome::Extended, false) => format!("added to thread `{thread}`: {added}"),
        (Outcome::Extended, true) => format!("would add to thread `{thread}`: {added}"),
    }
}

/// What the file holds, in one line.
fn found(counts: &Counts) -> String {
    let lines = count(counts.lines, "line");
    let parts =
        [(counts.clean, "clean"), (counts.repaired(), "repaired"), (counts.lost, "lost"), (counts.blank, "blank")];
    let parts = parts.into_iter().filter(|(number, _)| *number > 0);
    let parts: Vec<_> = parts.map(|(number, what)| format!("{number} {what}")).collect();
    let manifest = if counts.manifests == 0 { "; no manifest" } else { "" };
    format!("{lines} ({}), {}{manifest}", parts.join(", "), count(counts.parsed, "event"))
}

/// What was repaired or skipped, if anything was.
fn trouble(report: &Report) -> Option<String> {
    let counts = &report.counts;
    let skipped = [
        (counts.skipped_torn, "torn piece"),
        (counts.skipped_nul, "stretch of zero bytes"),
        (counts.skipped_invalid, "unreadable piece"),
        (counts.skipped_long, "line too long"),
        (report.too_large, "event too large for a log"),
    ];
    let skipped = skipped.into_iter().filter(|(number, _)| *number > 0);
    let mut parts: Vec<_> = skipped.map(|(number, what)| format!("{number} × {what}")).collect();
    let mended = [
        (counts.repaired_joined + counts.repaired_nul, "joined line split"),
        (counts.replaced_text, "unpaired surrogate replaced by U+FFFD"),
        (counts.replaced_number, "number out of range rounded"),
    ];
    let mended = mended.into_iter().filter(|(number, _)| *number > 0);
    parts.splice(0..0, mended.map(|(number, what)| format!("{number} × {what}")));
    let places =
        counts.remarks.iter().take(PLACES).map(|remark| format!("line {}: {}", remark.line, what(remark.what)));
    let places = places.collect::<Vec<_>>().join(", ");
    (!parts.is_empty()).then(|| {
        if places.is_empty() {
            format!("{}; the original bytes are kept", parts.join(", "))
        } else {
            format!("{} ({places}); the original bytes are kept", parts.join(", "))
        }
    })
}

fn what(what: RemarkKind) -> &'static str {
    match what {
        RemarkKind::Joined => "joined lines",
        RemarkKind::Torn => "torn",
        RemarkKind::Nul => "zero bytes",
        RemarkKind::Invalid => "unreadable",
        RemarkKind::Long => "too long",
        RemarkKind::Surrogate => "unpaired surrogate",
        RemarkKind::Number => "number out of range",
    }
}
