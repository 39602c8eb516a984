//! `selvedge heads`: a signed list of the ends of all logs, to detect a rollback.
//!
//! - `selvedge heads export` writes the list, by default into the Selvedge home, where `selvedge doctor` looks for it.
//! - `selvedge heads verify`, and `selvedge verify --heads`, compare a store with one.
//! - `user_lists`: all lists in the user's folder, for `doctor`, `reindex`, `backup` and the commands here.

pub(crate) mod user_lists;

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use selvedge_log::Trust;
use selvedge_log::document::DocumentError;
use selvedge_model::{Digest, ThreadId, Timestamp};
use selvedge_store::Backend;
use selvedge_store::heads::{BYTES_MAX, Comparison, CurrentHeads, Depth, HeadDifference, Heads, SignedHeads};
use selvedge_store_local::disk::{self, RealDisk};
use serde::Serialize;

use crate::context::{Context, User};
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, GOOD, paint};
use crate::text::{clean, count, key, local};

/// Write a signed list of the current end of every log and account
///
/// The list has the store's id, the time, and for every thread the id, version, length and hash of its log; tombstones; and the
/// version and amounts of every account. Keep it where the writers of the store can't change it: another disk, another machine,
/// version control. With it, `selvedge heads verify` detects that a whole store was rolled back, which nothing inside the store can
/// show.
///
/// Without FILE, the list is written to `heads/STORE_ID.json` in your Selvedge home, where `selvedge doctor`, `selvedge reindex` and
/// `selvedge backup` look for it. Existing lists are compared first, those of other store ids for the threads that both have: if the
/// store is older, nothing is written, and the exit code is 6.
///
/// Logs and rows that are not what was signed or sealed are left out and listed, and the exit code is 6.
///
/// JSON: {"file", "store_id", "made_at", "threads", "tombstones", "accounts", "left_out":[…]}
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    /// The file to write
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only this thread; can be repeated
    #[arg(long = "thread", value_name = "THREAD")]
    threads: Vec<String>,
    /// Replace a list that is newer than the store, or of another store
    #[arg(long)]
    force: bool,
}

/// Compare the store with a list that `selvedge heads export` wrote
///
/// Every log in the list must still begin with the same bytes, or be deleted by a signed tombstone of at least the same version; no
/// account may have fewer postings. Differences are listed: missing, shorter, changed. The exit code is 6 if there are any. The list
/// must be signed by a key you trust; you need no signing key. Writes nothing.
///
/// Without FILE, the list in your Selvedge home is used, and lists of other store ids for the threads that both have: a rebuilt or
/// restored store has a new id. `selvedge verify --heads FILE` does the same with one list.
///
/// JSON: {"file", "store_id", "same_store", "made_at", "signer", "threads", "accounts", "differs":[{"thread_id", "version", "how",
/// "message"}]}; "how" is "missing", "shorter", "changed", "other_log", "deleted_before", "undeleted", "account_missing",
/// "account_older", "account_changed" or "unreadable", and "same_store" is false for a list with another store id, such as that of
/// the original of a restored store
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// The list
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only this thread; can be repeated
    #[arg(long = "thread", value_name = "THREAD")]
    threads: Vec<String>,
}

#[derive(Serialize)]
struct HeadsReport<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    store_id: &'a str,
    made_at: Timestamp,
    threads: usize,
    tombstones: usize,
    accounts: usize,
    left_out: &'a [String],
}

#[derive(Serialize)]
struct HeadsVerdict<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    store_id: &'a str,
    same_store: bool,
    made_at: Timestamp,
    signer: Digest,
    threads: u64,
    accounts: u64,
    differs: Vec<ListedDifference<'a>>,
}

/// One thread or account that differs from the list.
#[derive(Serialize)]
pub(crate) struct ListedDifference<'a> {
    thread_id: &'a ThreadId,
    version: u64,
    how: &'static str,
    pub(crate) message: String,
}

impl<'a> From<&'a HeadDifference> for ListedDifference<'a> {
    fn from(differs: &'a HeadDifference) -> Self {
        let HeadDifference { thread, version, how } = differs;
        Self { thread_id: thread, version: *version, how: how.word(), message: differs.to_string() }
    }
}

/// The folder of the user's lists.
pub(crate) fn folder(user: &User) -> PathBuf {
    user.folder.join("heads")
}

fn kept(user: &User, store_id: &str) -> Result<PathBuf> {
    // The id comes from a project, and becomes a file name in the Selvedge home.
    if store_id.is_empty() || !store_id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Failure::usage("the store id in `store.json` is not a valid file name").hint("name a FILE"));
    }
    Ok(folder(user).join(format!("{store_id}.json")))
}

pub(crate) fn export(args: &Export, context: &Context<'_>) -> Result<()> {
    let user = User::find()?;
    user.signer()?;
    let store = context.open_to_copy()?;
    let CurrentHeads { mut heads, left_out } = store.heads()?;
    let file = match &args.file {
        Some(file) => context.folder.join(file),
        None => kept(&user, &heads.store_id)?,
    };
    if !args.threads.is_empty() {
        heads = heads.only(&named(&args.threads, &*store)?);
    }
    if !args.force {
        refuse_to_forget(&file, &heads.store_id, &*store)?;
        if args.file.is_none()
            && let Some(failure) = user_lists::failure(&*store)
        {
            return Err(failure);
        }
    }
    write(&file, args.file.is_none(), store.sign_heads(&heads)?.as_bytes())?;
    let written = HeadsReport {
        file: &file,
        store_id: &heads.store_id,
        made_at: heads.made_at,
        threads: heads.threads.len(),
        tombstones: heads.tombstones.len(),
        accounts: heads.accounts.len(),
        left_out: &left_out,
    };
    if context.output.is_json() {
        context.output.record(&written)?;
    } else {
        let held = [count(written.threads as u64, "thread"), count(written.accounts as u64, "account")].join(", ");
        context.output.text(format_args!("{held} written to {}", file.display()))?;
        for why in &left_out {
            context.output.text(format_args!("{} {}", paint(BAD, "left out:"), clean(why)))?;
        }
        context.output.tell("Keep a copy where the writers of this store can't change it.");
    }
    let Some(first) = left_out.first() else { return Ok(()) };
    let message = format!("{} left out; the first: {}", left_out.len(), clean(first));
    Err(Failure::new(Exit::Integrity, "threads_skipped", message).hint("`selvedge doctor` shows what to do"))
}

/// Threads by the prefixes of their ids.
fn named(prefixes: &[String], store: &dyn Backend) -> Result<BTreeSet<ThreadId>> {
    prefixes.iter().map(|prefix| Ok(store.resolve(prefix)?)).collect()
}

/// Refuses to overwrite a list that is newer than the store: it may be the only evidence of a loss.
fn refuse_to_forget(file: &Path, store_id: &str, store: &dyn Backend) -> Result<()> {
    let bytes = match disk::read(&RealDisk, file, BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| Failure::io("read", file, &error))?,
    };
    let before = Heads::read(&bytes, store.trust()).map_err(|error| {
        let failure = refused(file, &error);
        failure.hint("it is not replaced: name another FILE, or use --force")
    })?;
    if before.heads.store_id != store_id {
        let message = format!("`{}` is the list of another store", file.display());
        return Err(Failure::usage(message).hint("name another FILE, or use --force"));
    }
    let compared = store.compare_heads(&before.heads, Depth::Whole);
    if compared.differs.is_empty() {
        Ok(())
    } else {
        Err(rolled_back(&compared, file).hint(
            "nothing was written, to keep the evidence; `selvedge heads verify` lists all differences, and --force replaces the list",
        ))
    }
}

fn write(file: &Path, is_kept: bool, bytes: &[u8]) -> Result<()> {
    if is_kept && let Some(folder) = file.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| Failure::io("create", folder, &error))?;
    }
    disk::replace(&RealDisk, file, bytes).map_err(|error| Failure::io("write", file, &error))
}

pub(crate) fn verify(args: &Verify, context: &Context<'_>) -> Result<()> {
    check(args.file.as_deref(), &args.threads, context)
}

/// Compares the store with a list, or with some threads of it.
pub(crate) fn check(file: Option<&Path>, threads: &[String], context: &Context<'_>) -> Result<()> {
    let store = context.open(selvedge_store_local::Access::ReadOnly)?;
    let store_id = store.store_id()?;
    let file = match file {
        Some(file) => context.folder.join(file),
        None => {
            let user = User::find()?;
            let others = check_others(&user, threads, &*store, context)?;
            match kept(&user, &store_id)? {
                file if others && !file.exists() => return Ok(()),
                file => file,
            }
        }
    };
    let SignedHeads { heads, signer } = read(&file, store.trust())?;
    let heads = match threads {
        [] => heads,
        prefixes => {
            let chosen = chosen(prefixes, &heads, &file)?;
            heads.only(&chosen)
        }
    };
    let compared = store.compare_heads(&heads, Depth::Whole);
    show(&file, &heads, signer, &store_id, &compared, store.trust(), context)?;
    if compared.differs.is_empty() {
        Ok(())
    } else {
        Err(rolled_back(&compared, &file).hint(what_to_do(&compared, &*store)))
    }
}

/// Compares the store with the kept lists of other store ids; true if there are any that know threads of it.
fn check_others(user: &User, threads: &[String], store: &dyn Backend, context: &Context<'_>) -> Result<bool> {
    let (lists, _) = user_lists::compare(user, store, Depth::Whole);
    let others: Vec<_> = lists.iter().filter(|kept| !kept.is_ours && !kept.is_superseded).collect();
    let store_id = store.store_id()?;
    let named = named(threads, store).unwrap_or_default();
    for other in &others {
        let is_meant = |differs: &&HeadDifference| threads.is_empty() || named.contains(&differs.thread);
        if other.compared.differs.iter().any(|differs| is_meant(&differs)) {
            let SignedHeads { heads, signer } = &other.signed;
            show(&other.file, heads, *signer, &store_id, &other.compared, store.trust(), context)?;
            return Err(rolled_back(&other.compared, &other.file).hint(user_lists::remedy(other, store)));
        }
    }
    let own = kept(user, &store_id)?;
    if let Some(other) = others.first().filter(|_| !own.exists()) {
        let SignedHeads { heads, signer } = &other.signed;
        show(&other.file, heads, *signer, &store_id, &other.compared, store.trust(), context)?;
    }
    Ok(!others.is_empty())
}

/// Reads a list that a trusted key signed.
pub(crate) fn read(file: &Path, trust: &Trust) -> Result<SignedHeads> {
    let bytes = disk::read(&RealDisk, file, BYTES_MAX).map_err(|error| Failure::io("read", file, &error))?;
    Heads::read(&bytes, trust).map_err(|error| refused(file, &error))
}

fn refused(file: &Path, error: &DocumentError) -> Failure {
    let failure = Failure::of(error);
    let message = format!("`{}` is not accepted: {}", file.display(), failure.message);
    Failure { message, ..failure }
}

/// Threads of a list by the prefixes of their ids, including those that the store has lost.
fn chosen(prefixes: &[String], heads: &Heads, file: &Path) -> Result<BTreeSet<ThreadId>> {
    let all = || heads.threads.iter().chain(&heads.tombstones).map(|head| &head.thread_id);
    let mut chosen = BTreeSet::new();
    for prefix in prefixes {
        let begins = |thread: &&ThreadId| {
            let id = thread.as_str();
            id.starts_with(prefix.as_str()) || id.rsplit('-').next().is_some_and(|hex| hex.starts_with(prefix.as_str()))
        };
        let found: Vec<&ThreadId> = all().filter(begins).collect();
        match found.as_slice() {
            [one] => _ = chosen.insert((*one).clone()),
            [] => {
                let message = format!("`{}` lists no thread `{}`", file.display(), clean(prefix));
                let failure = Failure::new(Exit::NotFound, "thread_not_found", message);
                return Err(failure.hint("it is newer than the list, or was left out of it"));
            }
            many => match many.iter().find(|thread| thread.as_str() == prefix) {
                Some(exact) => _ = chosen.insert((*exact).clone()),
                None => {
                    let message = format!("`{}` begins more than one thread of the list", clean(prefix));
                    return Err(Failure::new(Exit::NotFound, "ambiguous", message).hint("type more of the id"));
                }
            },
        }
    }
    Ok(chosen)
}

fn show(
    file: &Path,
    heads: &Heads,
    signer: Digest,
    store_id: &str,
    compared: &Comparison,
    trust: &Trust,
    context: &Context<'_>,
) -> Result<()> {
    let same_store = heads.store_id == store_id;
    let threads = compared.threads;
    let accounts = compared.accounts;
    if context.output.is_json() {
        let differs = compared.differs.iter().map(ListedDifference::from).collect();
        let store_id = heads.store_id.as_str();
        let made_at = heads.made_at;
        return context.output.record(&HeadsVerdict {
            file,
            store_id,
            same_store,
            made_at,
            signer,
            threads,
            accounts,
            differs,
        });
    }
    for differs in &compared.differs {
        context.output.text(format_args!("{} {}", paint(BAD, "rolled back:"), clean(&differs.to_string())))?;
    }
    if compared.differs.is_empty() {
        let held = [count(threads, "thread"), count(accounts, "account")].join(", ");
        let summary = format!("{held}: no rollback since {}", local(heads.made_at));
        context.output.text(paint(GOOD, summary))?;
    }
    context.output.tell(format_args!("The list is signed by key {}", key(&signer, trust)));
    if !same_store {
        context
            .output
            .say("the list has another store id: it belongs to another store, such as the original of a restored one");
    }
    Ok(())
}

fn rolled_back(compared: &Comparison, file: &Path) -> Failure {
    let number = compared.differs.len();
    let first = compared.differs.first().map(ToString::to_string).unwrap_or_default();
    let message = match number {
        1 => format!("the store is older than `{}`: {}", file.display(), clean(&first)),
        _ => format!("the store is older than `{}` in {number} places; the first: {}", file.display(), clean(&first)),
    };
    Failure::new(Exit::Integrity, "rolled_back", message).detail("differs", number as u64)
}

/// The hint: it depends on whether logs are older, or only the derived accounts.
pub(crate) fn what_to_do(compared: &Comparison, store: &dyn Backend) -> String {
    let is_behind = |differs: &&HeadDifference| !differs.how.is_of_account();
    let mut logs = compared.differs.iter().filter(is_behind).peekable();
    if logs.peek().is_none() {
        return "every log is valid, only the database is older: `selvedge reindex` derives the accounts again"
            .to_owned();
    }
    if logs.all(|differs| store.is_unindexed(&differs.thread).unwrap_or(false)) {
        return "the logs exist but are not in the database: `selvedge reindex`, then compare again".to_owned();
    }
    "write nothing to this store: set it aside, and `selvedge restore` a backup that is as new as the list into another folder; \
     `selvedge verify --all` shows what is still valid here"
        .to_owned()
}
