//! Who may spend what: the rules of posting to an account.
//!
//! Owns what a posting does to an account and to a reservation, and the record of it that stands signed in a log. It
//! looks nothing up and stores nothing: a store hands in what it has, and keeps what comes back only if the account is
//! still at the version it handed in.
//!
//! ```text
//!             ┌── release ──▶ gone
//! reserve ──▶ Reserved ── issue ──▶ Issued ── settle ──▶ gone, the actual amount is spent
//!             └── settle, only when it is for a child account ──▶ gone
//! ```
//!
//! - An account belongs to the root thread of a chain and is named by it, so continuation moves no money.
//! - Every posting raises the account's version by one; records ordered by it tell the account's whole history, and
//!   [`Posting::from_record`] replays it.
//! - `reserved` is the sum of the open reservations and `open` their number.
//! - `settled + settled_children + reserved` never exceeds `max`, unless somebody was charged more than was reserved.
//!   That is recorded as it happened, and nothing can be reserved afterwards.
//! - What was issued may have been spent, so it can't be released. A reservation for a child account settles at what
//!   the child has spent, so it needs no issue.

use serde::{Deserialize, Serialize};

use crate::error::{Classify, Kind};
use crate::id::{ReservationId, ThreadId};
use crate::money::Money;

mod post;
#[cfg(test)]
mod tests;

pub use post::post;

/// An account, named by the root thread of the chain that it belongs to.
pub type AccountId = ThreadId;

/// Whether an account still takes postings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountStatus {
    /// It does.
    Active,
    /// Its chain is done.
    Closed,
}

/// What a chain may spend and has spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Whose it is.
    pub id: AccountId,
    /// The account that it was given its money from.
    pub parent: Option<AccountId>,
    /// What may be spent at most; nothing here means without limit.
    pub max: Option<Money>,
    /// What the chain itself has spent.
    pub settled: Money,
    /// What child accounts have spent that are done.
    pub settled_children: Money,
    /// The sum of the open reservations, those for child accounts included.
    pub reserved: Money,
    /// The number of open reservations; one of a free call has no amount and counts too.
    pub open: u64,
    /// Whether it still takes postings.
    pub status: AccountStatus,
    /// How many postings it has had.
    pub version: u64,
}

impl Account {
    /// What can still be reserved, zero when more than the maximum was spent; nothing here means without limit.
    pub fn remaining(&self) -> Option<Money> {
        let max = self.max?;
        Some(max.saturating_sub(self.settled).saturating_sub(self.settled_children).saturating_sub(self.reserved))
    }
}

/// How far an open reservation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationState {
    /// Nothing has been sent yet.
    Reserved,
    /// The call was or may have been sent.
    Issued,
}

/// An open hold on an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its name, which no other open reservation of any account has.
    pub id: ReservationId,
    /// The account that it holds money of.
    pub account: AccountId,
    /// The most that is expected to be spent.
    pub amount: Money,
    /// How far it has come.
    pub state: ReservationState,
    /// The child account that the money is for.
    pub child: Option<AccountId>,
}

/// What a caller asks of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Posting {
    /// Opens an account.
    Open {
        /// The account.
        account: AccountId,
        /// The account that it is given its money from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<AccountId>,
        /// What may be spent at most; absent means without limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<Money>,
    },
    /// Sets money aside.
    Reserve {
        /// The account.
        account: AccountId,
        /// The new reservation's name.
        reservation: ReservationId,
        /// The most that is expected to be spent.
        amount: Money,
        /// The child account that the money is for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        child: Option<AccountId>,
    },
    /// Says that the reserved call is about to be sent.
    Issue {
        /// The account.
        account: AccountId,
        /// The reservation.
        reservation: ReservationId,
    },
    /// Turns a reservation into what was spent, even if that is more.
    Settle {
        /// The account.
        account: AccountId,
        /// The reservation.
        reservation: ReservationId,
        /// What was spent.
        amount: Money,
        /// Whether nobody knows what was spent, and the amount is the bound that was reserved.
        #[serde(default, skip_serializing_if = "is_false")]
        unknown: bool,
    },
    /// Gives a reservation back of which nothing was spent.
    Release {
        /// The account.
        account: AccountId,
        /// The reservation.
        reservation: ReservationId,
    },
    /// Closes an account.
    Close {
        /// The account.
        account: AccountId,
    },
}

/// What stands signed in the log about one posting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The account.
    pub account: AccountId,
    /// The account's version after the posting.
    pub account_version: u64,
    /// What could still be reserved after the posting; absent means without limit.
    #[serde(rename = "remaining_nanos", default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Money>,
    /// The reservation that was made, moved on or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// What was reserved; for a settled reservation what was spent.
    #[serde(rename = "amount_nanos", default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Money>,
    /// The account that an opened one is given its money from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<AccountId>,
    /// The child account that the reservation is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<AccountId>,
    /// Whether nobody knows what was spent.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unknown: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// What a posting makes of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The account afterwards, one version on.
    pub account: Account,
    /// The reservation, if it is open afterwards; otherwise it is gone.
    pub reservation: Option<Reservation>,
    /// What goes into the log.
    pub record: Record,
}

/// Why a posting is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostingError {
    /// Not enough is left.
    #[error("account `{account}` has {remaining} dollars left, and {requested} are needed")]
    Insufficient {
        /// The account.
        account: AccountId,
        /// What can still be reserved.
        remaining: Money,
        /// What was asked for.
        requested: Money,
    },
    /// There is no such account.
    #[error("there is no account `{account}`")]
    UnknownAccount {
        /// The account.
        account: AccountId,
    },
    /// There is such an account already.
    #[error("account `{account}` exists already")]
    AccountExists {
        /// The account.
        account: AccountId,
    },
    /// The account takes no more postings.
    #[error("account `{account}` is closed")]
    AccountClosed {
        /// The account.
        account: AccountId,
    },
    /// An account can't give money to itself.
    #[error("account `{account}` can't be its own child")]
    OwnChild {
        /// The account.
        account: AccountId,
    },
    /// The account can't be closed yet.
    #[error("account `{account}` can't be closed while {open} of its reservations are open")]
    StillReserved {
        /// The account.
        account: AccountId,
        /// How many reservations are open.
        open: u64,
    },
    /// There is an open reservation of this name already.
    #[error("reservation `{reservation}` is open already")]
    ReservationExists {
        /// The reservation.
        reservation: ReservationId,
    },
    /// The account has no such open reservation.
    #[error("account `{account}` has no open reservation `{reservation}`")]
    UnknownReservation {
        /// The account.
        account: AccountId,
        /// The reservation.
        reservation: ReservationId,
    },
    /// The call may have been sent, so this comes too late.
    #[error("reservation `{reservation}` was issued before")]
    AlreadyIssued {
        /// The reservation.
        reservation: ReservationId,
    },
    /// The call was never sent, so nothing can have been spent.
    #[error("reservation `{reservation}` was never issued: release it")]
    NotIssued {
        /// The reservation.
        reservation: ReservationId,
    },
    /// The sum is larger than an account can hold.
    #[error("account `{account}` can't hold so large a sum")]
    TooLarge {
        /// The account.
        account: AccountId,
    },
    /// The account doesn't hold what the reservation says.
    #[error("account `{account}` holds less than its reservation `{reservation}`")]
    Inconsistent {
        /// The account.
        account: AccountId,
        /// The reservation.
        reservation: ReservationId,
    },
}

impl Classify for PostingError {
    fn kind(&self) -> Kind {
        match self {
            Self::Insufficient { .. } => Kind::Exhausted,
            Self::UnknownAccount { .. } | Self::UnknownReservation { .. } => Kind::Absent,
            Self::AccountExists { .. } | Self::ReservationExists { .. } => Kind::Conflict,
            Self::AccountClosed { .. }
            | Self::StillReserved { .. }
            | Self::AlreadyIssued { .. }
            | Self::NotIssued { .. } => Kind::Denied,
            Self::OwnChild { .. } | Self::TooLarge { .. } => Kind::Invalid,
            Self::Inconsistent { .. } => Kind::Integrity,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Insufficient { .. } => "budget_exceeded",
            Self::UnknownAccount { .. } => "account_unknown",
            Self::AccountExists { .. } => "account_exists",
            Self::AccountClosed { .. } => "account_closed",
            Self::OwnChild { .. } => "account_own_child",
            Self::StillReserved { .. } => "account_still_reserved",
            Self::ReservationExists { .. } => "reservation_exists",
            Self::UnknownReservation { .. } => "reservation_unknown",
            Self::AlreadyIssued { .. } => "reservation_issued",
            Self::NotIssued { .. } => "reservation_not_issued",
            Self::TooLarge { .. } => "account_too_large",
            Self::Inconsistent { .. } => "account_inconsistent",
        }
    }
}
