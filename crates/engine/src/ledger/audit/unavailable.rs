//! Postings that can't be posted again because no log of the store has them, and why: their log was deleted, its end was lost, or it is not
//! in this store.
//!
//! None of these is damage. A deletion is proven by a signed tombstone and a loss by a signed `recovery` event. A log that was never imported
//! is known from the links of its relatives, and from the records that name it. What is missing stays unchecked, and is reported.

use std::collections::BTreeSet;
use std::fmt;

use selvedge_model::ThreadId;
use selvedge_model::account::replay::{DeletedPostings, LocatedRecord, unburied};
use selvedge_model::account::{Account, AccountId};
use selvedge_store::{Result, Store, Summary};
use serde::Serialize;

use crate::chain;
use crate::ledger::audit::Branch;

/// Postings that no log of the store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Their log was deleted, by its signed tombstone.
    Deleted {
        /// The deleted thread.
        thread: ThreadId,
        /// The postings; none if the tombstone is too old to name them.
        postings: Option<DeletedPostings>,
    },
    /// They were lost with the end of a log, by a signed `recovery` event in it.
    Lost {
        /// The thread.
        thread: ThreadId,
        /// The postings.
        postings: DeletedPostings,
    },
    /// Logs of the account's family are not in this store.
    NotInStore {
        /// The account.
        account: AccountId,
        /// The threads whose logs are absent.
        threads: Vec<ThreadId>,
        /// The postings that are known to be missing, as first and last versions; there may be more after the last known one.
        postings: Vec<DeletedPostings>,
    },
}

impl Unavailable {
    /// The postings that need not be in any log, for the account of `NotInStore` or any of `accounts`.
    pub(super) fn buried<'a>(&self, accounts: impl Iterator<Item = &'a AccountId>) -> Vec<DeletedPostings> {
        let any = |account: &AccountId| DeletedPostings { account: account.clone(), from: 1, to: u64::MAX };
        match self {
            Self::Deleted { postings: Some(postings), .. } | Self::Lost { postings, .. } => vec![postings.clone()],
            Self::Deleted { postings: None, .. } => accounts.map(any).collect(),
            Self::NotInStore { account, .. } => vec![any(account)],
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted { thread, postings: Some(postings) } => {
                let (what, verb) = in_words(postings);
                write!(f, "account `{}`: {what} {verb} in the log of `{thread}`, which was deleted", postings.account)
            }
            Self::Deleted { thread, postings: None } => {
                write!(f, "the log of `{thread}` was deleted, and its tombstone does not name its postings")
            }
            Self::Lost { thread, postings } => {
                let (what, verb) = in_words(postings);
                write!(f, "account `{}`: {what} {verb} lost with versions of the log of `{thread}`", postings.account)
            }
            Self::NotInStore { account, threads, postings } => {
                let threads: Vec<_> = threads.iter().map(|thread| format!("`{thread}`")).collect();
                let (logs, verb) = if threads.len() == 1 { ("log", "is") } else { ("logs", "are") };
                let absent = format!("the {logs} of {} {verb} not in this store", threads.join(", "));
                let missing: Vec<_> = postings.iter().map(|one| in_words(one).0).collect();
                match &missing[..] {
                    [] => write!(f, "account `{account}`: {absent}, and may have postings of it"),
                    _ => write!(f, "account `{account}`: {absent}; missing: {}", missing.join(", ")),
                }
            }
        }
    }
}

fn in_words(DeletedPostings { from, to, .. }: &DeletedPostings) -> (String, &'static str) {
    if from == to { (format!("posting {from}"), "was") } else { (format!("postings {from} to {to}"), "were") }
}

/// What was deleted of these chains, by the signed tombstones.
pub(super) fn deleted(store: &dyn Store, roots: &[AccountId]) -> Result<Vec<Unavailable>> {
    let mut gone = Vec::new();
    for root in roots {
        for (Summary { manifest, .. }, is_deleted) in chain::walk(store, root)? {
            let tombstone = if is_deleted { store.tombstone(&manifest.thread_id)? } else { None };
            let Some(tombstone) = tombstone else { continue };
            let one = |postings| Unavailable::Deleted { thread: manifest.thread_id.clone(), postings };
            match tombstone.postings {
                Some(postings) => gone.extend(postings.into_iter().map(|postings| one(Some(postings)))),
                None => gone.push(one(None)),
            }
        }
    }
    Ok(gone)
}

/// What may be in logs that are not here: of an account whose own chain, whose parent's or one of whose children's is absent or continues in a
/// thread that is. `elsewhere` are postings that are known to be deleted or lost.
pub(super) fn not_in_store(
    store: &dyn Store,
    branch: &Branch,
    seen: &[LocatedRecord],
    elsewhere: &[DeletedPostings],
) -> Result<Option<Unavailable>> {
    let id = &branch.account.id;
    let records = || seen.iter().map(|one| &one.record).filter(|record| record.account == *id);
    let mut relatives = BTreeSet::from([id.clone()]);
    relatives.extend(branch.account.parent.clone());
    relatives.extend(branch.reservations.iter().filter_map(|held| held.child.clone()));
    for record in records() {
        relatives.extend(record.parent.iter().chain(&record.child).cloned());
    }
    // The record that names the parent's account is in the parent's log, so the thread itself is asked as well.
    for thread in &branch.threads {
        relatives.extend(store.get(thread)?.manifest.parent_id);
    }
    let mut threads = BTreeSet::new();
    for relative in &relatives {
        threads.extend(absent(store, relative)?);
    }
    if threads.is_empty() {
        return Ok(None);
    }
    let mut known = DeletedPostings::of(records());
    let last = known.iter().map(|one| one.to).max().unwrap_or(0).max(branch.account.version);
    known.extend(elsewhere.iter().cloned());
    let mut postings = Vec::new();
    let mut next = 1;
    while let Some((from, to)) = unburied(id, next, last, &known) {
        postings.push(DeletedPostings { account: id.clone(), from, to });
        next = to.saturating_add(1);
    }
    Ok(Some(Unavailable::NotInStore { account: id.clone(), threads: threads.into_iter().collect(), postings }))
}

/// The threads of a chain that its links name, and that are neither here nor deleted.
fn absent(store: &dyn Store, thread: &ThreadId) -> Result<Vec<ThreadId>> {
    let found = chain::walk(store, thread)?;
    let (Some((first, _)), Some((last, _))) = (found.first(), found.last()) else { return Ok(vec![thread.clone()]) };
    let mut absent = Vec::new();
    for link in first.manifest.continuation_of.clone().into_iter().chain(chain::next(&last.manifest)) {
        if chain::known(store, &link)?.is_none() {
            absent.push(link);
        }
    }
    Ok(absent)
}

/// Why an account is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Logs of its family are not in this store.
    NotInStore,
    /// Versions of a log of its family were lost, and postings with them.
    Lost,
}

/// Why an account is incomplete, if it is. An absent relative comes first: after its import the account may be whole.
pub fn cause(store: &dyn Store, account: &Account) -> Result<Option<Cause>> {
    if !account.incomplete {
        return Ok(None);
    }
    let mut family = BTreeSet::from([account.id.clone()]);
    family.extend(account.parent.clone());
    family.extend(store.tree(&account.id)?.into_iter().map(|below| below.id));
    for (link, _) in chain::walk(store, &account.id)? {
        family.extend(link.manifest.parent_id);
    }
    let mut has_lost = false;
    for relative in &family {
        if !absent(store, relative)?.is_empty() {
            return Ok(Some(Cause::NotInStore));
        }
        has_lost |= chain::walk(store, relative)?.iter().any(|(link, _)| !link.manifest.lost.is_empty());
    }
    Ok(Some(if has_lost { Cause::Lost } else { Cause::NotInStore }))
}
