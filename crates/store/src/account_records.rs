//! Accounts, computed from the records of postings in logs, by a backend that imports or rebuilds.
//!
//! The records of one account, in the order of its versions, are posted again by the rules that first posted them. If a record is missing,
//! because its log was deleted or lost, the next one still has, signed, the amount that remained after it: the unknown difference is
//! counted as spent, so that no ceiling rises.

use std::collections::BTreeSet;

use selvedge_model::Money;
use selvedge_model::account::replay::DeletedPostings;
use selvedge_model::account::{Account, AccountId, AccountStatus, Posting, Record, Reservation, post};

/// Whether a record follows from the known state of its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// It does, or was known already.
    Exact,
    /// A record before it is missing.
    Gap,
}

/// An account after a record was applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The account.
    pub account: Account,
    /// The reservation that the posting names, afterwards.
    pub reservation: Option<Reservation>,
    /// Whether the record followed from what was known.
    pub fit: Continuity,
}

/// Applies the record of one posting to what is known of its account and of the reservation that it names. A record that is not newer than
/// the known account must not be passed.
pub fn apply(known: Option<Account>, reservation: Option<Reservation>, posting: &Posting, record: &Record) -> Applied {
    let assumed = if known.is_none() { account_before(record, posting) } else { None };
    let (mut account, reservation, fit) = match post(known.as_ref().or(assumed.as_ref()), reservation.as_ref(), posting)
    {
        Ok(posted) if posted.record == *record && assumed.is_some() => {
            (posted.account, posted.reservation, Continuity::Gap)
        }
        Ok(posted) if posted.record == *record => (posted.account, posted.reservation, Continuity::Exact),
        Ok(posted) => (agreeing(posted.account, record), posted.reservation, Continuity::Gap),
        Err(_) => (agreeing(unposted(known, posting, record), record), reservation, Continuity::Gap),
    };
    account.incomplete |= fit == Continuity::Gap;
    Applied { account, reservation, fit }
}

/// An account of which postings are lost with the end of a log, and no other record shows their effect; none if it has them. Everything that
/// could still be spent is counted as spent: no ceiling rises because a log was cut.
pub fn give_up(known: Option<Account>, lost: &DeletedPostings) -> Option<Account> {
    let mut account = known.filter(|account| account.version < lost.to)?;
    let unknown = account.remaining().unwrap_or(Money::ZERO);
    account.settled = account.settled.checked_add(unknown).unwrap_or(account.settled);
    account.version = lost.to;
    account.incomplete = true;
    Some(account)
}

/// The children named in records of an account: an amount was reserved for them, and not released unused.
#[derive(Debug, Default)]
pub struct Children(BTreeSet<AccountId>);

impl Children {
    /// Adds one record, in the order of the account's versions.
    pub fn note(&mut self, event_type: &str, record: &Record) {
        let Some(child) = &record.child else { return };
        if event_type == "released" {
            self.0.remove(child);
        } else {
            self.0.insert(child.clone());
        }
    }

    /// Their names, in order.
    pub fn names(&self) -> &BTreeSet<AccountId> {
        &self.0
    }

    /// Their names.
    pub fn into_names(self) -> BTreeSet<AccountId> {
        self.0
    }
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
