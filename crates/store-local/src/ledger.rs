//! Accounts from the records of postings that stand in logs.
//!
//! Records of one account, in the order of its versions, are posted again by the rules that first posted them. Where a
//! record is missing, because its log was deleted or lost, the next one still says, signed, what could be reserved after it:
//! what is not known of the account is put down as spent, so that no ceiling rises.

use rusqlite::Connection;
use selvedge_model::Money;
use selvedge_model::account::{Account, AccountStatus, Posting, Record, post};
use selvedge_store::Result;

use crate::rows;

/// Whether a record followed from what was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It did, or was known already.
    Exact,
    /// Something between was missing.
    Gap,
}

/// Takes in the record of one posting.
pub(crate) fn take(connection: &Connection, event_type: &str, record: &Record) -> Result<Fit> {
    let known = rows::accounts(connection, "thread_id = ?", record.account.as_str())?.pop();
    let before = known.as_ref().map(|account| account.version);
    if before.is_some_and(|version| version >= record.account_version) {
        return Ok(Fit::Exact);
    }
    let Some(posting) = Posting::from_record(event_type, record) else { return Ok(Fit::Gap) };
    let reservation = match posting.reservation() {
        Some(name) => rows::reservation(connection, &record.account, name)?,
        None => None,
    };
    let (account, reservation, fit) = match post(known.as_ref(), reservation.as_ref(), &posting) {
        Ok(posted) if posted.record == *record => (posted.account, posted.reservation, Fit::Exact),
        Ok(posted) => (agreeing(posted.account, record), posted.reservation, Fit::Gap),
        Err(_) => (agreeing(unposted(known, &posting, record), record), reservation, Fit::Gap),
    };
    rows::put_account(connection, before, &account)?;
    if let Some(name) = posting.reservation() {
        rows::put_reservation(connection, &record.account, name, reservation.as_ref())?;
    }
    Ok(fit)
}

/// The account after a posting that does not follow from what is known of it.
fn unposted(known: Option<Account>, posting: &Posting, record: &Record) -> Account {
    let mut account = known.unwrap_or_else(|| Account {
        id: record.account.clone(),
        parent: record.parent.clone(),
        max: None,
        settled: Money::ZERO,
        settled_children: Money::ZERO,
        reserved: Money::ZERO,
        open: 0,
        status: AccountStatus::Active,
        version: 0,
    });
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

/// The account at the version of a record, with as much left as the record says.
fn agreeing(mut account: Account, record: &Record) -> Account {
    account.version = record.account_version;
    let Some(remaining) = record.remaining else { return account };
    let held = [account.settled_children, account.reserved].into_iter().try_fold(account.settled, Money::checked_add);
    let (Some(held), Some(max)) = (held, account.max) else {
        // The record of its opening is missing: what is left and what is known to be gone make its maximum.
        account.max = held.and_then(|held| held.checked_add(remaining));
        return account;
    };
    let gone = max.saturating_sub(remaining);
    match gone.checked_sub(held) {
        Some(unknown) => account.settled = account.settled.checked_add(unknown).unwrap_or(account.settled),
        None => account.settled = account.settled.saturating_sub(held.saturating_sub(gone)),
    }
    account
}
