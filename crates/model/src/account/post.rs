//! What each posting does, and how a record becomes a posting again.

use super::{Account, AccountId, AccountStatus, Posted, Posting, PostingError, Record, Reservation, ReservationState};
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
            | Self::Close { account } => account,
        }
    }

    /// The reservation that it makes, moves on or ends.
    pub fn reservation(&self) -> Option<&ReservationId> {
        match self {
            Self::Open { .. } | Self::Close { .. } => None,
            Self::Reserve { reservation, .. }
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
            Self::Close { .. } => "account_closed",
        }
    }

    /// The posting that a record of this event type was made of; nothing if the record lacks what the type needs.
    pub fn from_record(event_type: &str, record: &Record) -> Option<Self> {
        let Record { remaining, reservation, amount, parent, child, unknown, .. } = record.clone();
        let account = record.account.clone();
        Some(match event_type {
            // Nothing has been spent yet, so what remains is the maximum.
            "account_opened" => Self::Open { account, parent, max: remaining },
            "reserved" => Self::Reserve { account, reservation: reservation?, amount: amount?, child },
            "issued" => Self::Issue { account, reservation: reservation? },
            "settled" => Self::Settle { account, reservation: reservation?, amount: amount?, unknown },
            "released" => Self::Release { account, reservation: reservation? },
            "account_closed" => Self::Close { account },
            _ => return None,
        })
    }
}

/// Applies a posting to the account and the reservation that it names, as far as they exist.
///
/// # Panics
///
/// If what is handed in is not what the posting names; that is a bug of the store.
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
            reserve(active(account, posting)?, reservation, id, *amount, child.as_ref())
        }
        Posting::Issue { .. } => {
            let account = active(account, posting)?;
            issue(account, held(account, reservation, posting)?)
        }
        Posting::Settle { amount, unknown, .. } => {
            let account = active(account, posting)?;
            settle(account, held(account, reservation, posting)?, *amount, *unknown)
        }
        Posting::Release { .. } => {
            let account = active(account, posting)?;
            release(account, held(account, reservation, posting)?)
        }
        Posting::Close { .. } => close(active(account, posting)?),
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
    Ok(posted)
}

fn release(account: &Account, reservation: &Reservation) -> Result<Posted, PostingError> {
    refuse_issued(reservation)?;
    Ok(posted(without(account, reservation)?, Some(reservation)))
}

fn close(account: &Account) -> Result<Posted, PostingError> {
    if account.open > 0 {
        return Err(PostingError::StillReserved { account: account.id.clone(), open: account.open });
    }
    Ok(posted(Account { status: AccountStatus::Closed, ..account.clone() }, None))
}

/// The account, if it exists and still takes postings.
fn active<'a>(account: Option<&'a Account>, posting: &Posting) -> Result<&'a Account, PostingError> {
    let id = || posting.account().clone();
    match account {
        None => Err(PostingError::UnknownAccount { account: id() }),
        Some(account) if account.status == AccountStatus::Closed => Err(PostingError::AccountClosed { account: id() }),
        Some(account) => Ok(account),
    }
}

/// The reservation that the posting names, if it is an open one of this account.
fn held<'a>(
    account: &Account,
    reservation: Option<&'a Reservation>,
    posting: &Posting,
) -> Result<&'a Reservation, PostingError> {
    match (reservation, posting.reservation()) {
        (Some(reservation), _) if reservation.account == account.id => Ok(reservation),
        (_, Some(id)) => Err(PostingError::UnknownReservation { account: account.id.clone(), reservation: id.clone() }),
        (_, None) => unreachable!("only postings with a reservation ask for one"),
    }
}

fn refuse_issued(reservation: &Reservation) -> Result<(), PostingError> {
    match reservation.state {
        ReservationState::Reserved => Ok(()),
        ReservationState::Issued => Err(PostingError::AlreadyIssued { reservation: reservation.id.clone() }),
    }
}

/// The account once the reservation has ended.
fn without(account: &Account, reservation: &Reservation) -> Result<Account, PostingError> {
    match (account.reserved.checked_sub(reservation.amount), account.open.checked_sub(1)) {
        (Some(reserved), Some(open)) => Ok(Account { reserved, open, ..account.clone() }),
        _ => Err(PostingError::Inconsistent { account: account.id.clone(), reservation: reservation.id.clone() }),
    }
}

fn sum(account: &Account, left: Money, right: Money) -> Result<Money, PostingError> {
    left.checked_add(right).ok_or_else(|| PostingError::TooLarge { account: account.id.clone() })
}

/// Raises the account's version and records what it is then; nothing of the reservation stays open.
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
    };
    Posted { account, reservation: None, record }
}
