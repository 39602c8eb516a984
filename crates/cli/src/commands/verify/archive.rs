//! The verdict on an archive, with the keys that the user trusts or that of `--public-key`.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use selvedge_legacy::nova::origin_in;
use selvedge_log::Trust;
use selvedge_log::scan::ScannedChangeset;
use selvedge_store::archive::verify_archive;
use serde::Serialize;

use super::statement::Statement;
use super::verdict::{self, ThreadVerdict};
use super::{Args, document};
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::input;
use crate::output::{BAD, BOLD, paint};
use crate::text::clean;

/// An archive that could not be read.
#[derive(Serialize)]
struct UnreadableArchive<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    archive: &'a Path,
    thread_id: Option<&'a str>,
    sound: bool,
    code: &'a str,
    message: &'a str,
}

/// The arguments that are archives, if any. With `--public-key` all are: threads in a store are verified with the trusted keys.
pub(super) fn named(args: &Args, context: &Context<'_>) -> Result<Option<Vec<PathBuf>>> {
    let paths: Vec<PathBuf> = args.threads.iter().map(|word| context.folder.join(word)).collect();
    // A pipe or a device is never a thread, and opening one would wait.
    let is_special = |path: &&PathBuf| path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
    if let Some(path) = paths.iter().find(is_special) {
        return Err(input::not_regular(path));
    }
    let is_archive = |path: &&PathBuf| path.extension().is_some_and(|end| end == "tar") && path.is_file();
    let archives = if args.public_key.is_some() { paths.len() } else { paths.iter().filter(is_archive).count() };
    match archives {
        0 => Ok(None),
        all if all == paths.len() => Ok(Some(paths)),
        _ => Err(Failure::usage("archives and threads can't be verified by one command")),
    }
}

/// Verifies archives, without a store. Writes nothing.
pub(super) fn run(archives: &[PathBuf], args: &Args, context: &Context<'_>) -> Result<()> {
    let (trust, names) = match &args.public_key {
        // The user who names the key knows its owner.
        Some(file) => {
            let key = document::read_key(&context.folder.join(file))?;
            document::tell_if_revoked(&key, context);
            // What the user revoked stays revoked, wherever the chain of the named key leads.
            let own = document::trust_of_user(context).unwrap_or_default();
            (Trust::of(&[key]).without_revoked(&own), Some(Trust::default()))
        }
        None => (document::trust_of_user(context)?, None),
    };
    let mut checked = Vec::new();
    let mut failures = Vec::new();
    for path in archives {
        match check(path, args.explain, &trust, names.as_ref()) {
            Ok(one) => {
                let one = one.in_archive(args.public_key.as_deref());
                one.show(context.output)?;
                checked.push(one);
            }
            Err(failure) => {
                refuse(path, &failure, context)?;
                failures.push(failure);
            }
        }
    }
    if !checked.is_empty() && !context.output.is_json() {
        context.output.text(verdict::closing(&checked))?;
    }
    failures.extend(checked.iter().filter_map(ThreadVerdict::failure));
    super::conclude(failures, archives.len(), || {
        "`selvedge verify FILE --explain` shows what is still proven of each".to_owned()
    })
}

fn check(path: &Path, explain: bool, trust: &Trust, names: Option<&Trust>) -> Result<ThreadVerdict> {
    let file = input::open(path).map_err(|failure| match failure.code {
        "usage" => failure,
        _ => failure.hint(
            "`--public-key` is for archives and documents; threads of a store are verified with the keys you trust",
        ),
    })?;
    let mut statements = Vec::new();
    let mut origin = None;
    let mut is_first = true;
    let mut each = |entry: &ScannedChangeset| {
        if std::mem::take(&mut is_first) {
            origin = origin_in(&entry.lines);
        }
        if explain {
            statements.extend(Statement::of(entry));
        }
    };
    let (verdict, believed) = verify_archive(&mut BufReader::with_capacity(1 << 16, file), trust, &mut each)?;
    let thread = verdict.thread.clone();
    let names = names.unwrap_or(&believed);
    let statements = explain.then_some(statements);
    Ok(ThreadVerdict::new(thread, path.to_owned(), Ok(verdict), statements, names).imported(origin))
}

fn refuse(path: &Path, failure: &Failure, context: &Context<'_>) -> Result<()> {
    let Failure { code, message, .. } = failure;
    if context.output.is_json() {
        let record = UnreadableArchive { archive: path, thread_id: None, sound: false, code, message };
        return context.output.record(&record);
    }
    let name = clean(&path.display().to_string());
    context.output.text(format!("{}: {}", paint(BOLD, name), paint(BAD, clean(message))))
}
