//! Accounts, computed from the records of postings in logs.
//!
//! The records of one account, in the order of its versions, are posted again by the rules that first posted them. If a record is missing,
//! because its log was deleted or lost, the next one still has, signed, the amount that remained after it: the unknown difference is
//! counted as spent, so that no ceiling rises.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_model::Money;
use selvedge_model::account::replay::DeletedPostings;
use selvedge_model::account::{Account, AccountId, AccountStatus, Posting, Record, post};
use selvedge_store::{Error, Result};

use crate::anchor::Bucket;
use crate::core::{Core, lock};
use crate::db::Db;
use crate::family::Family;
use crate::rows::{self, Row};
use crate::schema::REBUILD;

impl Core {
    /// An account as a commit may rely on it. An account that was replaced by an older row, whose seal is valid, is detected by the heads
    /// of its family, which record the newest version that their logs posted to, by logs of the family that continue after their heads,
    /// by what this process has read before, and by the anchor.
    pub(crate) fn known_account(&self, id: &AccountId) -> Result<Option<Account>> {
        let seen = lock(&self.accounts).get(id).copied();
        let family = if seen.is_none() { self.family(id)? } else { Family::default() };
        let (account, rows, anchored) = self.read(|db| {
            let account = rows::accounts(db, "thread_id = ?", id.as_str())?.pop();
            let mut parts = family.parts();
            parts.insert(Bucket::of_account(id));
            let rows = family.rows(db)?;
            let known = rows.iter().map(|row| row.anchor).max().unwrap_or(0);
            let anchored = parts.into_iter().try_for_each(|part| self.check_anchor(db, part, known));
            Ok((account, rows, anchored))
        })?;
        let least = match seen {
            Some(seen) => seen,
            None => posted(&rows, id).max(family.posted_by_deleted()),
        };
        let version = account.as_ref().map_or(0, |account| account.version);
        if version < least {
            return Err(Error::Integrity {
                what: format!("the account of `{id}` in `registry.db`"),
                why: format!("it is older than the logs: version {version}, and a log posted to version {least}"),
                hint: Some(REBUILD.to_owned()),
            });
        }
        // The comparison with the logs gives the more exact error, so it comes first.
        self.check_family(account.as_ref(), &family, &rows)?;
        anchored?;
        if account.is_some() {
            let mut known = lock(&self.accounts);
            let newest = known.entry(id.clone()).or_default();
            *newest = (*newest).max(version);
        }
        Ok(account)
    }
}

/// The newest version of an account that these logs posted to.
fn posted(family: &[Row], id: &AccountId) -> u64 {
    family.iter().filter_map(|row| row.posted.get(id)).copied().max().unwrap_or(0)
}

/// Whether a record follows from the known state of its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// It does, or was known already.
    Exact,
    /// A record before it is missing.
    Gap,
}

/// Applies the record of one posting.
pub(crate) fn take(connection: &Db, event_type: &str, record: &Record) -> Result<Continuity> {
    let known = rows::accounts(connection, "thread_id = ?", record.account.as_str())?.pop();
    let before = known.as_ref().map(|account| account.version);
    if before.is_some_and(|version| version >= record.account_version) {
        return Ok(Continuity::Exact);
    }
    let Some(posting) = Posting::from_record(event_type, record) else { return Ok(Continuity::Gap) };
    let reservation = match posting.reservation() {
        Some(name) => rows::reservation(connection, &record.account, name)?,
        None => None,
    };
    let assumed = if known.is_none() { account_before(record, &posting) } else { None };
    let (mut account, reservation, fit) =
        match post(known.as_ref().or(assumed.as_ref()), reservation.as_ref(), &posting) {
            Ok(posted) if posted.record == *record && assumed.is_some() => {
                (posted.account, posted.reservation, Continuity::Gap)
            }
            Ok(posted) if posted.record == *record => (posted.account, posted.reservation, Continuity::Exact),
            Ok(posted) => (agreeing(posted.account, record), posted.reservation, Continuity::Gap),
            Err(_) => (agreeing(unposted(known, &posting, record), record), reservation, Continuity::Gap),
        };
    account.incomplete |= fit == Continuity::Gap;
    if let Some(name) = posting.reservation() {
        rows::put_reservation(connection, &record.account, name, reservation.as_ref())?;
    }
    rows::put_account(connection, before, &account)?;
    Ok(fit)
}

/// Records that postings of an account are lost with the end of a log; true if no other record shows their effect. Then everything that
/// could still be spent is counted as spent: no ceiling rises because a log was cut.
pub(crate) fn give_up(connection: &Db, lost: &DeletedPostings) -> Result<bool> {
    let known = rows::accounts(connection, "thread_id = ?", lost.account.as_str())?.pop();
    let Some(mut account) = known.filter(|account| account.version < lost.to) else { return Ok(false) };
    let before = account.version;
    let unknown = account.remaining().unwrap_or(Money::ZERO);
    account.settled = account.settled.checked_add(unknown).unwrap_or(account.settled);
    account.version = lost.to;
    account.incomplete = true;
    rows::put_account(connection, Some(before), &account)?;
    Ok(true)
}

/// The children named in records of an account: an amount was reserved for them, and not released unused.
#[derive(Default)]
pub(crate) struct Children(BTreeSet<AccountId>);

impl Children {
    /// Adds one record, in the order of the account's versions.
    pub(crate) fn note(&mut self, event_type: &str, record: &Record) {
        let Some(child) = &record.child else { return };
        if event_type == "released" {
            self.0.remove(child);
        } else {
            self.0.insert(child.clone());
        }
    }

    /// Whether all of them are in the store or were deleted.
    pub(crate) fn are_known(&self, connection: &Db) -> Result<bool> {
        for child in &self.0 {
            if !has_chain(connection, child)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Their names.
    pub(crate) fn into_names(self) -> BTreeSet<AccountId> {
        self.0
    }
}

/// Whether every log that may have postings of an account is in the store or was deleted: its own chain, its parent's and its children's.
fn has_all_logs(connection: &Db, account: &Account, children: &Children) -> Result<bool> {
    for chain in [&account.id].into_iter().chain(&account.parent) {
        if !has_chain(connection, chain)? {
            return Ok(false);
        }
    }
    children.are_known(connection)
}

/// Whether the threads of a chain, from its root on, are in the store or were deleted.
fn has_chain(connection: &Db, root: &AccountId) -> Result<bool> {
    let is_known = "SELECT 1 FROM threads WHERE thread_id = ?1 UNION ALL SELECT 1 FROM tombstones WHERE thread_id = ?1";
    if !rows::exists(connection, is_known, [root.as_str()])? {
        return Ok(false);
    }
    let continues_elsewhere = "SELECT 1 FROM threads AS t WHERE t.chain_root_id = ? AND t.continuation_thread_id IS NOT NULL \
                             AND t.continuation_thread_id NOT IN (SELECT thread_id FROM threads) \
                             AND t.continuation_thread_id NOT IN (SELECT thread_id FROM tombstones)";
    Ok(!rows::exists(connection, continues_elsewhere, [root.as_str()])?)
}

/// Records in an account whether it is incomplete: postings are missing, or a log that may have some is not in the store. Returns which it
/// is.
pub(crate) fn note_incomplete(connection: &Db, id: &AccountId, children: &Children) -> Result<bool> {
    let Some(account) = rows::accounts(connection, "thread_id = ?", id.as_str())?.pop() else { return Ok(false) };
    let incomplete = account.incomplete || !has_all_logs(connection, &account, children)?;
    if incomplete != account.incomplete {
        rows::put_account(connection, Some(account.version), &Account { incomplete, ..account })?;
    }
    Ok(incomplete)
}

/// Computes an account again from all its records; false if it is incomplete. The known state stays if it is newer.
pub(crate) fn settle(connection: &Db, id: &AccountId, records: &BTreeMap<u64, (&'static str, Record)>) -> Result<bool> {
    let known = rows::accounts(connection, "thread_id = ?", id.as_str())?.pop();
    let before = rows::reservations(connection, id)?;
    rows::remove_account(connection, id)?;
    let mut is_whole = true;
    let mut children = Children::default();
    for (event_type, record) in records.values() {
        is_whole &= take(connection, event_type, record)? == Continuity::Exact;
        children.note(event_type, record);
    }
    let newest = records.keys().next_back().copied().unwrap_or(0);
    if let Some(known) = known.filter(|known| known.version > newest || (!is_whole && known.version == newest)) {
        rows::replace_account(connection, &known, &before)?;
    }
    Ok(!note_incomplete(connection, id, &children)?)
}

/// An account of which nothing is known.
fn unknown_account(record: &Record) -> Account {
    Account {
        id: record.account.clone(),
        parent: record.parent.clone(),
        max: None,
        settled: Money::ZERO,
        settled_children: Money::ZERO,
        reserved: Money::ZERO,
        open: 0,
        status: AccountStatus::Active,
        version: 0,
        incomplete: true,
    }
}

/// An account of which nothing is known, before an amount was reserved: what remained then is what remained afterwards and the amount.
fn account_before(record: &Record, posting: &Posting) -> Option<Account> {
    let Posting::Reserve { amount, .. } = posting else { return None };
    let version = record.account_version.checked_sub(1)?;
    let max = record.remaining.and_then(|remaining| remaining.checked_add(*amount));
    Some(Account { max, version, ..unknown_account(record) })
}

/// The account after a posting that does not follow from its known state.
fn unposted(known: Option<Account>, posting: &Posting, record: &Record) -> Account {
    let mut account = known.unwrap_or_else(|| unknown_account(record));
    match posting {
        Posting::Settle { amount, .. } => {
            let into = if record.child.is_some() { &mut account.settled_children } else { &mut account.settled };
            *into = into.checked_add(*amount).unwrap_or(*into);
        }
        Posting::Close { .. } => account.status = AccountStatus::Closed,
        Posting::Reopen { .. } => account.status = AccountStatus::Active,
        Posting::Raise { max, .. } => account.max = Some(*max),
        Posting::Stop { .. } => account.max = record.amount,
        _ => {}
    }
    account
}

/// The account at the version of a record, with the remaining amount that the record has.
fn agreeing(mut account: Account, record: &Record) -> Account {
    account.version = record.account_version;
    let Some(remaining) = record.remaining else { return account };
    let held = [account.settled_children, account.reserved].into_iter().try_fold(account.settled, Money::checked_add);
    let (Some(held), Some(max)) = (held, account.max) else {
        // The record of its opening is missing: the remaining amount and the known spending make its maximum.
        account.max = held.and_then(|held| held.checked_add(remaining));
        return account;
    };
    let used = max.saturating_sub(remaining);
    match used.checked_sub(held) {
        Some(unknown) => account.settled = account.settled.checked_add(unknown).unwrap_or(account.settled),
        None => account.settled = account.settled.saturating_sub(held.saturating_sub(used)),
    }
    account
}
