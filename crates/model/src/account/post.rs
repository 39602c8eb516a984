//! The effect of each posting, and how a record is turned back into a posting.

use super::{Account, AccountId, AccountStatus, Posted, Posting, PostingError, Record, Reservation, ReservationState};
use crate::event::Event;
use crate::id::ReservationId;
use crate::money::Money;

impl Posting {
    /// The account that it changes.
    pub fn account(&self) -> &AccountId {
        match self {
            Self::Open { account, .. }
            | Self::Reserve { account, .. }
            | Self::Issue { account, .. }
            | Self::Settle { account, .. }
            | Self::Release { account, .. }
            | Self::Correct { account, .. }
            | Self::Close { account }
            | Self::Reopen { account }
            | Self::ReserveAgain { account, .. }
            | Self::Raise { account, .. }
            | Self::Stop { account } => account,
        }
    }

    /// The reservation that it makes, issues or ends.
    pub fn reservation(&self) -> Option<&ReservationId> {
        match self {
            Self::Open { .. } | Self::Close { .. } | Self::Reopen { .. } | Self::Raise { .. } | Self::Stop { .. } => {
                None
            }
            Self::Reserve { reservation, .. }
            | Self::ReserveAgain { reservation, .. }
            | Self::Correct { reservation, .. }
            | Self::Issue { reservation, .. }
            | Self::Settle { reservation, .. }
            | Self::Release { reservation, .. } => Some(reservation),
        }
    }

    /// The type of the event that records it.
    pub fn event_type(&self) -> &'static str {
        match self {
            Self::Open { .. } => "account_opened",
            Self::Reserve { .. } => "reserved",
            Self::Issue { .. } => "issued",
            Self::Settle { .. } => "settled",
            Self::Release { .. } => "released",
            Self::Correct { .. } => "corrected",
            Self::Close { .. } => "account_closed",
            Self::Reopen { .. } => "account_reopened",
            Self::ReserveAgain { .. } => "reserved_again",
            Self::Raise { .. } => "account_raised",
            Self::Stop { .. } => "account_stopped",
        }
    }

    /// The event that records it.
    pub fn event(&self, record: Record) -> Event {
        match self {
            Self::Open { .. } => Event::AccountOpened(record),
            Self::Reserve { .. } => Event::Reserved(record),
            Self::Issue { .. } => Event::Issued(record),
            Self::Settle { .. } => Event::Settled(record),
            Self::Release { .. } => Event::Released(record),
            Self::Correct { .. } => Event::Corrected(record),
            Self::Close { .. } => Event::AccountClosed(record),
            Self::Reopen { .. } => Event::AccountReopened(record),
            Self::ReserveAgain { .. } => Event::ReservedAgain(record),
            Self::Raise { .. } => Event::AccountRaised(record),
            Self::Stop { .. } => Event::AccountStopped(record),
        }
    }

    /// The posting behind a record of this event type; `None` if the record lacks a field that the type needs.
    pub fn from_record(event_type: &str, record: &Record) -> Option<Self> {
        let Record { remaining, reservation, amount, parent, child, unknown, returned, evidence, .. } = record.clone();
        let account = record.account.clone();
        Some(match event_type {
            // Nothing has been spent yet, so what remains is the maximum.
            "account_opened" => Self::Open { account, parent, max: remaining },
            "reserved" => Self::Reserve { account, reservation: reservation?, amount: amount?, child },
            "issued" => Self::Issue { account, reservation: reservation? },
            "settled" => Self::Settle { account, reservation: reservation?, amount: amount?, unknown },
            "released" => Self::Release { account, reservation: reservation? },
            "corrected" => Self::Correct { account, reservation: reservation?, amount: amount?, evidence: evidence? },
            "account_closed" => Self::Close { account },
            "account_reopened" => Self::Reopen { account },
            "reserved_again" => Self::ReserveAgain {
                account,
                reservation: reservation?,
                amount: amount?,
                child: child?,
                returned: returned?,
            },
            "account_raised" => Self::Raise { account, max: amount? },
            "account_stopped" => Self::Stop { account },
            _ => return None,
        })
    }
}

/// Applies a posting to the account and the reservation that it names, if they exist. Returns both as they are afterwards, and the record.
///
/// # Panics
///
/// If the account or the reservation is not the one that the posting names; that is a bug in the store.
pub fn post(
    account: Option<&Account>,
    reservation: Option<&Reservation>,
    posting: &Posting,
) -> Result<Posted, PostingError> {
    assert!(account.is_none_or(|account| account.id == *posting.account()), "the posting names another account");
    assert!(
        reservation.is_none_or(|reservation| Some(&reservation.id) == posting.reservation()),
        "the posting names another reservation"
    );
    match posting {
        Posting::Open { account: id, parent, max } => open(account, id, parent.as_ref(), *max),
        Posting::Reserve { reservation: id, amount, child, .. } => {
            // A closing account may still raise what its children may spend.
            let account = if child.is_some() { unclosed(account, posting) } else { active(account, posting) }?;
            reserve(account, reservation, id, *amount, child.as_ref())
        }
        Posting::ReserveAgain { reservation: id, amount, child, returned, .. } => {
            reserve_again(known(account, posting)?, reservation, id, (*amount, *returned), child)
        }
        Posting::Issue { .. } => {
            let account = active(account, posting)?;
            issue(account, held(account, reservation, posting)?)
        }
        Posting::Settle { amount, unknown, .. } => {
            let account = unclosed(account, posting)?;
            settle(account, held(account, reservation, posting)?, *amount, *unknown)
        }
        Posting::Release { .. } => {
            let account = unclosed(account, posting)?;
            release(account, held(account, reservation, posting)?)
        }
        Posting::Correct { reservation: id, amount, evidence, .. } => {
            // Evidence may arrive long after the account was closed.
            let account = known(account, posting)?;
            match reservation.filter(|held| held.account == account.id && held.state == ReservationState::Unknown) {
                Some(reservation) => correct(account, reservation, *amount, evidence),
                None => Err(PostingError::UnknownReservation { account: account.id.clone(), reservation: id.clone() }),
            }
        }
        Posting::Close { .. } => Ok(close(active(account, posting)?)),
        Posting::Reopen { .. } => reopen(known(account, posting)?),
        Posting::Raise { max, .. } => raise(unclosed(account, posting)?, *max),
        Posting::Stop { .. } => Ok(stop(unclosed(account, posting)?)),
    }
}

fn open(
    known: Option<&Account>,
    id: &AccountId,
    parent: Option<&AccountId>,
    max: Option<Money>,
) -> Result<Posted, PostingError> {
    if known.is_some() {
        return Err(PostingError::AccountExists { account: id.clone() });
    }
    if parent == Some(id) {
        return Err(PostingError::OwnChild { account: id.clone() });
    }
    let account = Account {
        id: id.clone(),
        parent: parent.cloned(),
        max,
        settled: Money::ZERO,
        settled_children: Money::ZERO,
        reserved: Money::ZERO,
        open: 0,
        status: AccountStatus::Active,
        version: 0,
        incomplete: false,
    };
    let mut posted = posted(account, None);
    posted.record.parent = parent.cloned();
    Ok(posted)
}

fn reserve(
    account: &Account,
    known: Option<&Reservation>,
    id: &ReservationId,
    amount: Money,
    child: Option<&AccountId>,
) -> Result<Posted, PostingError> {
    if known.is_some() {
        return Err(PostingError::ReservationExists { reservation: id.clone() });
    }
    if child == Some(&account.id) {
        return Err(PostingError::OwnChild { account: account.id.clone() });
    }
    if let Some(remaining) = account.remaining().filter(|remaining| *remaining < amount) {
        return Err(PostingError::Insufficient { account: account.id.clone(), remaining, requested: amount });
    }
    reserve_unchecked(account, id, amount, child)
}

/// Reserves an amount without checking that the account can cover it.
fn reserve_unchecked(
    account: &Account,
    id: &ReservationId,
    amount: Money,
    child: Option<&AccountId>,
) -> Result<Posted, PostingError> {
    let mut account = account.clone();
    account.reserved = sum(&account, account.reserved, amount)?;
    account.open += 1;
    let reservation = Reservation {
        id: id.clone(),
        account: account.id.clone(),
        amount,
        state: ReservationState::Reserved,
        child: child.cloned(),
    };
    let mut posted = posted(account, Some(&reservation));
    posted.reservation = Some(reservation);
    Ok(posted)
}

/// Moves what the child had spent from settled to reserved, and reserves the rest anew.
fn reserve_again(
    account: &Account,
    known: Option<&Reservation>,
    id: &ReservationId,
    (amount, returned): (Money, Money),
    child: &AccountId,
) -> Result<Posted, PostingError> {
    let Some(settled_children) = account.settled_children.checked_sub(returned) else {
        return Err(PostingError::Inconsistent { account: account.id.clone(), reservation: id.clone() });
    };
    let status = if account.status == AccountStatus::Closed { AccountStatus::Closing } else { account.status };
    let account = Account { settled_children, status, ..account.clone() };
    // What the child had already spent can always be reserved again, even if it exceeds the limit.
    let mut posted = if known.is_none() && *child != account.id && amount <= returned {
        reserve_unchecked(&account, id, amount, Some(child))?
    } else {
        reserve(&account, known, id, amount, Some(child))?
    };
    posted.record.returned = Some(returned);
    Ok(posted)
}

fn issue(account: &Account, reservation: &Reservation) -> Result<Posted, PostingError> {
    refuse_issued(reservation)?;
    let mut posted = posted(account.clone(), Some(reservation));
    posted.reservation = Some(Reservation { state: ReservationState::Issued, ..reservation.clone() });
    Ok(posted)
}

fn settle(account: &Account, reservation: &Reservation, amount: Money, unknown: bool) -> Result<Posted, PostingError> {
    if reservation.state == ReservationState::Reserved && reservation.child.is_none() {
        return Err(PostingError::NotIssued { reservation: reservation.id.clone() });
    }
    let mut account = without(account, reservation)?;
    match reservation.child {
        Some(_) => account.settled_children = sum(&account, account.settled_children, amount)?,
        None => account.settled = sum(&account, account.settled, amount)?,
    }
    let mut posted = posted(account, Some(reservation));
    posted.record.amount = Some(amount);
    posted.record.unknown = unknown;
    posted.reservation =
        unknown.then(|| Reservation { amount, state: ReservationState::Unknown, ..reservation.clone() });
    Ok(posted)
}

fn release(account: &Account, reservation: &Reservation) -> Result<Posted, PostingError> {
    refuse_issued(reservation)?;
    Ok(posted(without(account, reservation)?, Some(reservation)))
}

fn correct(
    account: &Account,
    reservation: &Reservation,
    amount: Money,
    evidence: &str,
) -> Result<Posted, PostingError> {
    let too_much = match reservation.amount.checked_sub(amount) {
        Some(too_much) if !evidence.trim().is_empty() => too_much,
        _ => {
            return Err(PostingError::NotCorrected { reservation: reservation.id.clone(), bound: reservation.amount });
        }
    };
    let Some(settled) = account.settled.checked_sub(too_much) else {
        return Err(PostingError::Inconsistent { account: account.id.clone(), reservation: reservation.id.clone() });
    };
    let mut posted = posted(Account { settled, ..account.clone() }, Some(reservation));
    posted.record.amount = Some(amount);
    posted.record.returned = Some(too_much);
    posted.record.evidence = Some(evidence.to_owned());
    Ok(posted)
}

fn close(account: &Account) -> Posted {
    let status = if account.open > 0 { AccountStatus::Closing } else { AccountStatus::Closed };
    posted(Account { status, ..account.clone() }, None)
}

fn reopen(account: &Account) -> Result<Posted, PostingError> {
    match account.status {
        AccountStatus::Active => Err(PostingError::NotClosed { account: account.id.clone() }),
        AccountStatus::Closing | AccountStatus::Closed => {
            Ok(posted(Account { status: AccountStatus::Active, ..account.clone() }, None))
        }
    }
}

fn raise(account: &Account, max: Money) -> Result<Posted, PostingError> {
    if account.max.is_none_or(|now| max <= now) {
        return Err(PostingError::NotRaised { account: account.id.clone(), max: account.max });
    }
    Ok(with_max(account, max))
}

fn stop(account: &Account) -> Posted {
    // The limit excludes what is reserved, so that money that is released can't be reserved again.
    with_max(account, account.spent())
}

fn with_max(account: &Account, max: Money) -> Posted {
    let mut posted = posted(Account { max: Some(max), ..account.clone() }, None);
    posted.record.amount = Some(max);
    posted
}

/// The account, if it exists.
fn known<'a>(account: Option<&'a Account>, posting: &Posting) -> Result<&'a Account, PostingError> {
    account.ok_or_else(|| PostingError::UnknownAccount { account: posting.account().clone() })
}

/// The account, if it exists and is not closed.
fn unclosed<'a>(account: Option<&'a Account>, posting: &Posting) -> Result<&'a Account, PostingError> {
    match known(account, posting)? {
        account if account.status == AccountStatus::Closed => {
            Err(PostingError::AccountClosed { account: account.id.clone() })
        }
        account => Ok(account),
    }
}

/// The account, if it exists and is active.
fn active<'a>(account: Option<&'a Account>, posting: &Posting) -> Result<&'a Account, PostingError> {
    match unclosed(account, posting)? {
        account if account.status == AccountStatus::Closing => {
            Err(PostingError::AccountClosed { account: account.id.clone() })
        }
        account => Ok(account),
    }
}

/// The reservation that the posting names, if it is an open one of this account.
fn held<'a>(
    account: &Account,
    reservation: Option<&'a Reservation>,
    posting: &Posting,
) -> Result<&'a Reservation, PostingError> {
    match (reservation, posting.reservation()) {
        (Some(reservation), _)
            if reservation.account == account.id && reservation.state != ReservationState::Unknown =>
        {
            Ok(reservation)
        }
        (_, Some(id)) => Err(PostingError::UnknownReservation { account: account.id.clone(), reservation: id.clone() }),
        (_, None) => unreachable!("every posting handled here names a reservation"),
    }
}

fn refuse_issued(reservation: &Reservation) -> Result<(), PostingError> {
    match reservation.state {
        ReservationState::Reserved => Ok(()),
        ReservationState::Issued | ReservationState::Unknown => {
            Err(PostingError::AlreadyIssued { reservation: reservation.id.clone() })
        }
    }
}

/// The account after the reservation has ended; a closing account is closed after its last one.
fn without(account: &Account, reservation: &Reservation) -> Result<Account, PostingError> {
    match (account.reserved.checked_sub(reservation.amount), account.open.checked_sub(1)) {
        (Some(reserved), Some(open)) => {
            let status = match account.status {
                AccountStatus::Closing if open == 0 => AccountStatus::Closed,
                status => status,
            };
            Ok(Account { reserved, open, status, ..account.clone() })
        }
        _ => Err(PostingError::Inconsistent { account: account.id.clone(), reservation: reservation.id.clone() }),
    }
}

fn sum(account: &Account, left: Money, right: Money) -> Result<Money, PostingError> {
    left.checked_add(right).ok_or_else(|| PostingError::TooLarge { account: account.id.clone() })
}

/// Raises the account's version and builds the record of that version; no reservation stays open.
fn posted(mut account: Account, reservation: Option<&Reservation>) -> Posted {
    account.version += 1;
    let record = Record {
        account: account.id.clone(),
        account_version: account.version,
        remaining: account.remaining(),
        reservation: reservation.map(|reservation| reservation.id.clone()),
        amount: reservation.map(|reservation| reservation.amount),
        parent: None,
        child: reservation.and_then(|reservation| reservation.child.clone()),
        unknown: false,
        returned: None,
        evidence: None,
    };
    Posted { account, reservation: None, record }
}
