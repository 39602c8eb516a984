//! The native format: a tar archive with the exact log.

use std::io::BufReader;
use std::path::Path;

use selvedge_log::Trust;
use selvedge_log::recovery::Finding;
use selvedge_log::scan::{Damage, Flaw};
use selvedge_model::account::AccountId;
use selvedge_model::{Digest, ThreadId};
use selvedge_store::archive::{Accounts, ArchivedKeys, ImportOutcome, ImportReport, verify_archive};
use selvedge_store::{Backend, Error};
use selvedge_store_local::Access;
use serde::Serialize;
use serde_json::Value;

use super::Args;
use crate::context::{Context, User};
use crate::error::{Failure, Result};
use crate::input;
use crate::output::{BAD, BOLD, DIM, paint};
use crate::text::{clean, count, shell_word};

#[derive(Serialize)]
struct Imported<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    thread_id: &'a ThreadId,
    version: u64,
    outcome: &'static str,
    bytes: u64,
    blobs: u64,
    signers: &'a [Digest],
    writable: bool,
    incomplete_accounts: Vec<&'a AccountId>,
}

#[derive(Serialize)]
struct Refused<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    outcome: &'static str,
    error: Value,
}

/// Imports archives, each independently: a refused one does not affect the others.
pub(crate) fn import(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(if args.dry_run { Access::ReadOnly } else { Access::ReadWrite })?;
    // Without a signing key every imported thread is read-only.
    let signer = User::find()?.signer().ok();
    let is_ours = |key: &Digest| signer.as_ref().is_some_and(|own| own.fingerprint() == *key || own.succeeds(key));
    let mut failures = Vec::new();
    let mut accounts = Accounts::new();
    for file in &args.files {
        match one(&context.folder.join(file), args.dry_run, &*store) {
            Ok(arrived) => {
                show(file, &arrived, is_ours(&arrived.head.signer), context)?;
                accounts.extend(arrived.accounts);
            }
            Err(failure) if context.is_overtaken_by_rotation(&failure) => return Err(failure),
            Err(failure) => {
                refuse(file, &failure, args.files.len(), context)?;
                failures.push(failure);
            }
        }
    }
    if !args.dry_run {
        context.close(store);
    }
    // Known after the last file: those of a family may be imported in any order.
    for (account, _) in accounts.iter().filter(|(_, is_whole)| !**is_whole) {
        let why = "logs of its family are not in this store";
        context.output.say(format!("the account of `{account}` is incomplete: {why}; import the rest of its family"));
    }
    conclude(failures, args.files.len())
}

fn one(path: &Path, dry_run: bool, store: &dyn Backend) -> Result<ImportReport> {
    let mut archive = BufReader::with_capacity(1 << 16, input::open(path)?);
    store.import(&mut archive, !dry_run).map_err(|error| explain(path, error, store.trust()))
}

/// The failure with all keys that are needed, and where to find them.
fn explain(path: &Path, error: Error, trust: &Trust) -> Failure {
    let needed = match &error {
        Error::Log { finding: Finding::Damaged(Damage { flaw: Flaw::Untrusted(key), .. }), .. } => *key,
        _ => return of_archive(path, error),
    };
    let (missing, all_signed_for) = missing_keys(path, trust).unwrap_or_else(|| (vec![needed], false));
    let names = missing.iter().map(Digest::to_string).collect::<Vec<_>>();
    let files = names.iter().map(|name| format!("…/keys/{name}.pem")).collect::<Vec<_>>().join(" ");
    let compare = if all_signed_for {
        "a key that you trust has signed for them".to_owned()
    } else {
        format!("compare {} with their owner", names.join(", "))
    };
    let keys = count(missing.len() as u64, "key");
    let file = shell_word(&path.display().to_string());
    let hint = format!(
        "{keys} must be trusted: unpack the file (`tar xf {file}`), {compare}, then `selvedge keys trust {files} --owner NAME`; \
         `selvedge verify {file} --public-key PUBLIC.pem` verifies it without importing it"
    );
    Failure::from(error).hint(hint).detail("key", needed.to_string()).detail("keys", names)
}

/// The failure names the archive: a thread of the same id in the store is a different one, and not affected.
fn of_archive(path: &Path, error: Error) -> Failure {
    let archive = format!("the archive `{}`", path.display());
    let file = shell_word(&path.display().to_string());
    let of_store = match &error {
        Error::Log { thread, .. } => format!("the log of `{thread}`"),
        Error::Integrity { .. } => "the archive".to_owned(),
        // The id is in every signed line, so an import can't change it.
        Error::Unusable { .. } => {
            return Failure::from(error).hint(format!(
                "a thread of this id can't be imported; `selvedge verify {file}` checks it without importing it"
            ));
        }
        _ => return error.into(),
    };
    let is_not_understood = matches!(&error, Error::Log { finding: Finding::Unread(_), .. });
    let of_archive = match &error {
        Error::Log { .. } => format!("{of_store} in {archive}"),
        _ => archive,
    };
    let failure = Failure::from(error);
    let message = failure.message.replacen(&of_store, &of_archive, 1);
    if is_not_understood {
        return Failure { message, ..failure };
    }
    Failure { message, ..failure }.hint(format!(
        "nothing was imported; `selvedge verify {file} --explain` shows which versions are still proven; get the file again"
    ))
}

/// The untrusted signers of an archive, and whether a trusted key has signed for each.
fn missing_keys(path: &Path, trust: &Trust) -> Option<(Vec<Digest>, bool)> {
    let mut archive = BufReader::new(input::open(path).ok()?);
    let archived = ArchivedKeys::read(&mut archive).ok()?;
    // The keys in the archive only identify the signers.
    let (verdict, _) = verify_archive(&mut archive, &Trust::of(&archived.keys), &mut |_| {}).ok()?;
    let extended = trust.extended_by(&archived.statements, &archived.keys).ok()?;
    let signers = verdict.signers.into_iter().map(|(signer, _)| signer);
    let missing: Vec<Digest> = signers.filter(|signer| trust.known(signer).is_none()).collect();
    let all_signed_for = missing.iter().all(|key| extended.key(key).is_some());
    (!missing.is_empty()).then_some((missing, all_signed_for))
}

fn word(arrival: ImportOutcome) -> &'static str {
    match arrival {
        ImportOutcome::Imported => "imported",
        ImportOutcome::WouldImport => "would_import",
        ImportOutcome::Unchanged => "unchanged",
    }
}

fn show(file: &Path, arrived: &ImportReport, writable: bool, context: &Context<'_>) -> Result<()> {
    let ImportReport { thread, head, blobs, signers, arrival, accounts } = arrived;
    let incomplete = accounts.iter().filter(|(_, is_whole)| !**is_whole).map(|(account, _)| account);
    if context.output.is_json() {
        return context.output.record(&Imported {
            file,
            thread_id: thread,
            version: head.version,
            outcome: word(*arrival),
            bytes: head.bytes,
            blobs: *blobs,
            signers,
            writable,
            incomplete_accounts: incomplete.collect(),
        });
    }
    let outcome = match arrival {
        ImportOutcome::Imported => format!("imported as thread `{thread}`"),
        ImportOutcome::WouldImport => format!("would be imported as thread `{thread}`"),
        ImportOutcome::Unchanged => format!("already imported as thread `{thread}`"),
    };
    let name = clean(&file.display().to_string());
    let held = [count(head.lines, "line"), count(*blobs, "blob")].join(", ");
    let proven = format!("unchanged up to version {} since it was signed; {held}", head.version);
    let mut lines = vec![format!("{}: {outcome}", paint(BOLD, name)), paint(DIM, proven)];
    if !writable {
        lines.push(paint(DIM, format!("read-only: signed by key {}, not yours", head.signer.short())));
    }
    context.output.text(lines.join("\n  "))?;
    if *arrival == ImportOutcome::WouldImport {
        let file = shell_word(&file.display().to_string());
        context.output.tell(format_args!("Nothing was written. Next: `selvedge import {file}`"));
    }
    Ok(())
}

fn refuse(file: &Path, failure: &Failure, files: usize, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        let error: Value = serde_json::from_str(&failure.to_json()).unwrap_or_default();
        return context.output.record(&Refused { file, outcome: "refused", error: error["error"].clone() });
    }
    // One file's refusal is the command's.
    if files == 1 {
        return Ok(());
    }
    let name = clean(&file.display().to_string());
    context.output.text(format!("{}: {}", paint(BOLD, name), paint(BAD, clean(&failure.message))))
}

fn conclude(failures: Vec<Failure>, files: usize) -> Result<()> {
    let refused = count(failures.len() as u64, "file");
    let several = failures.len() > 1;
    let Some(first) = failures.into_iter().next() else { return Ok(()) };
    if !several {
        return Err(first);
    }
    let message = format!("{refused} of {files} refused; the first: {}", first.message);
    Err(Failure { message, ..first })
}
