//! `selvedge doctor`: checks everything, changes nothing, names the remedies.
//!
//! - `heads`: the user's lists of heads, compared with the store.
//! - `keys`: the user's signing key and trusted keys.

mod heads;
mod keys;

use selvedge_store::doctor::{Depth, Finding, Report, Severity};
use selvedge_store_local::Options;
use selvedge_store_local::doctor;
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, BOLD, DIM, WARN, paint};
use crate::text::{clean, count};

/// Check keys, store and threads; report problems and their remedies
///
/// Changes nothing. Checks keys and trust, the store and its database, and every thread: the end of its log against its file, its
/// database row, its manifest and its pending writes; also leases of dead processes, tombstones, quarantined bytes, temporary files, disk space and clocks.
///
/// Of each log the last 256 KiB are read, which is all of most logs: the last signature is verified, the bytes are hashed, and the
/// blobs named there must exist; up to 1 MiB of blobs per thread is hashed. The report says how many logs are longer and how many
/// blobs were not hashed. The database is compared with each log that was read whole. With --deep, every log is verified whole, as by
/// `selvedge verify --all`, and every blob is hashed.
///
/// Lists of heads in your Selvedge home (`selvedge heads export`) are compared with the store: only they show that a whole store was
/// rolled back.
///
/// Exit code: 0 if there are no findings, or only notes; 1 if there are warnings: something needs attention, and nothing is lost; 6
/// if something is damaged.
///
/// JSON: {"worst", "store_format", "sqlite", "threads", "deep", "not_read_whole", "blobs_not_hashed", "live_processes",
/// "findings":[{"severity", "code", "subject", "what", "why", "help"}]}; "severity" and "worst" are "note", "warning" or "damage",
/// "worst" is null if there are no findings, "not_read_whole" is the number of logs of which only the end was read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Verify every log whole, and hash every blob
    #[arg(long)]
    deep: bool,
}

#[derive(Serialize)]
struct DoctorReport<'a> {
    worst: Option<Severity>,
    store_format: Option<i64>,
    sqlite: &'a str,
    threads: u64,
    deep: bool,
    not_read_whole: u64,
    blobs_not_hashed: u64,
    live_processes: u64,
    findings: &'a [Finding],
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    context.refuse_server()?;
    let project = context.project()?;
    let keys::KeyFindings { mut findings, trust, signer } = keys::look(&project);
    let depth = match (&trust, args.deep) {
        (None, _) => Depth::Unsigned,
        (Some(_), true) => Depth::Whole,
        (Some(_), false) => Depth::Ends,
    };
    let bar = context.output.progress(2, "checking");
    let trust = trust.unwrap_or_default();
    if depth != Depth::Unsigned {
        findings.append(&mut heads::look(&project, &trust, depth, context));
    }
    let options = context.options_to_look(project, trust);
    let mut report = doctor::examine(Options { signer, ..options }, depth, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    findings.append(&mut report.findings);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    report.findings = findings;
    show(&report, depth, context)?;
    conclude(&report)
}

fn show(report: &Report, depth: Depth, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        return context.output.record(&DoctorReport {
            worst: report.worst(),
            store_format: report.store_format,
            sqlite: doctor::sqlite_version(),
            threads: report.threads,
            deep: depth == Depth::Whole,
            not_read_whole: report.not_read_whole,
            blobs_not_hashed: report.blobs_not_hashed,
            live_processes: report.live_owners,
            findings: &report.findings,
        });
    }
    for finding in &report.findings {
        context.output.text(text(finding))?;
    }
    let format = report.store_format.map_or_else(|| "unknown".to_owned(), |format| format.to_string());
    let looked = format!(
        "Checked {}; store format {format}, SQLite {}, open for writing by {}",
        count(report.threads, "thread"),
        doctor::sqlite_version(),
        match report.live_owners {
            0 => "no process".to_owned(),
            1 => "1 live process".to_owned(),
            several => format!("{several} live processes"),
        },
    );
    context.output.text(paint(DIM, looked))?;
    context.output.text(paint(DIM, read(report, depth)))?;
    context.output.text(summary(report))
}

/// What was checked, and what was not.
fn read(report: &Report, depth: Depth) -> String {
    let signatures = match depth {
        _ if report.threads == 0 => return "No log was checked".to_owned(),
        Depth::Whole => return "Every log was verified whole and every blob was hashed".to_owned(),
        Depth::Unsigned => "no signature was verified",
        Depth::Ends => "only the last signature of each was verified",
    };
    let logs = match report.not_read_whole {
        0 => "All logs were hashed".to_owned(),
        longer => format!("Only the end was read of {longer} of {} logs", report.threads),
    };
    let blobs = match (report.blobs_not_hashed, report.not_read_whole) {
        (0, 0) => "blobs were hashed".to_owned(),
        (0, _) => "blobs named there were hashed".to_owned(),
        (left, _) => {
            format!("{} not hashed", if left == 1 { "1 blob was".to_owned() } else { format!("{left} blobs were") })
        }
    };
    format!("{logs}; {signatures}; {blobs}; `selvedge doctor --deep` checks everything")
}

fn text(finding: &Finding) -> String {
    let (style, word) = match finding.severity {
        Severity::Note => (DIM, "note"),
        Severity::Warning => (WARN, "warning"),
        Severity::Damage => (BAD, "damage"),
    };
    let mut lines = vec![
        format!("{}: {}: {}", paint(style, word), paint(BOLD, clean(&finding.subject)), clean(&finding.what)),
        clean(&finding.why),
    ];
    lines.extend(finding.help.as_ref().map(|help| format!("help: {}", clean(help))));
    lines.join("\n  ")
}

fn number(report: &Report, severity: Severity) -> u64 {
    report.findings.iter().filter(|finding| finding.severity == severity).count() as u64
}

fn summary(report: &Report) -> String {
    let [damage, warnings, notes] =
        [Severity::Damage, Severity::Warning, Severity::Note].map(|severity| number(report, severity));
    match report.worst() {
        None => "No problems found.".to_owned(),
        Some(_) => {
            format!("{damage} damaged, {}, {}", count(warnings, "warning"), count(notes, "note"))
        }
    }
}

fn conclude(report: &Report) -> Result<()> {
    let (exit, code) = match report.worst() {
        None | Some(Severity::Note) => return Ok(()),
        Some(Severity::Warning) => (Exit::Failed, "doctor_warnings"),
        Some(Severity::Damage) => (Exit::Integrity, "doctor_damage"),
    };
    let failure = Failure::new(exit, code, format!("problems found: {}", summary(report)));
    let help = report.findings.first().and_then(|finding| finding.help.clone());
    Err(help.into_iter().fold(failure, Failure::hint))
}
