//! Who may spend what: the rules of posting to an account.
//!
//! Owns what a posting does to an account and to a reservation, and the record of it that stands signed in a log. It
//! looks nothing up and stores nothing: a store hands in what it has, and keeps what comes back only if the account is
//! still at the version it handed in.
//!
//! ```text
//!             ┌── release ──▶ gone
//! reserve ──▶ Reserved ── issue ──▶ Issued ── settle ──▶ gone, the actual amount is spent
//!             │                         └──── settle, unknown ──▶ Unknown, the bound is spent ── correct ──▶ gone
//!             └── settle, only when it is for a child account ──▶ gone
//!
//! open ──▶ Active ── close ──▶ Closing, while anything is reserved ──▶ Closed, once nothing is
//!             ▲                    │                                      │  ▲
//!             └───── reopen ───────┴──────────────────────────────────────┘  └── a child's reservation is made again: Closing
//! ```
//!
//! What holds of each account, after any postings in any order:
//!
//! - An account belongs to the root thread of a chain and is named by it, so continuation moves no money.
//! - Every posting raises the account's version by one; records ordered by it tell the account's whole history, and
//!   [`Posting::from_record`] replays it.
//! - `reserved` is the sum of the open reservations and `open` their number.
//! - Nothing is reserved beyond `max`, so `settled + settled_children + reserved` never exceeds the highest that it was, unless somebody
//!   was charged more than was reserved. That is recorded as it happened; [`Posting::Stop`] then keeps anything from being reserved.
//! - What was issued may have been spent, so it can't be released. A reservation for a child account settles at what
//!   the child has spent, so it needs no issue.
//! - What nobody knows is counted at its bound, and corrected only downward, by evidence that stands in the log.
//!
//! What holds of a tree, if its batches keep the two sides of a posting together (a store refuses those that don't, see
//! [`pairs`]): while a child account is not closed, its parent holds reservations for it that cover its maximum; once it is closed,
//! its parent holds none, and what the child spent is in the parent's `settled_children`, once. So all that a tree has spent or may
//! still spend is within its root's maximum.

use serde::{Deserialize, Serialize};

use crate::id::{ReservationId, ThreadId};
use crate::money::Money;

mod error;
pub mod pairs;
mod post;
pub mod replay;
#[cfg(test)]
mod tests;

pub use error::PostingError;
pub use post::post;

/// An account, named by the root thread of the chain that it belongs to.
pub type AccountId = ThreadId;

/// Whether an account still takes postings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountStatus {
    /// It does.
    Active,
    /// Its chain is done, and something is still reserved: it takes what ends that, and is closed then.
    Closing,
    /// Its chain is done, and so is everything below it.
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
    /// What the chain and its children have spent; children that are not done count in `reserved`.
    pub fn spent(&self) -> Money {
        self.settled.saturating_add(self.settled_children)
    }

    /// What is gone or may go: spent and reserved.
    pub fn used(&self) -> Money {
        self.spent().saturating_add(self.reserved)
    }

    /// What can still be reserved, zero when more than the maximum was spent; nothing here means without limit.
    pub fn remaining(&self) -> Option<Money> {
        let max = self.max?;
        Some(max.saturating_sub(self.used()))
    }

    /// Whether money is held by it or for it. Were its threads gone, that would be held for ever, so none of them is deleted.
    pub fn is_in_use(&self) -> bool {
        self.status != AccountStatus::Closed && (self.open > 0 || self.parent.is_some())
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
    /// It was settled at its bound because nobody knows what was spent; it is open no more, and kept to be corrected.
    Unknown,
}

/// An open hold on an account, or one that was settled without anybody knowing what was spent.
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
    /// Says what a settlement that nobody knew really was; only less than was put down.
    Correct {
        /// The account.
        account: AccountId,
        /// The reservation that was settled so.
        reservation: ReservationId,
        /// What was spent.
        amount: Money,
        /// How that is known.
        evidence: String,
    },
    /// Closes an account: at once, or when the last reservation has ended.
    Close {
        /// The account.
        account: AccountId,
    },
    /// Opens an account again that is closed or closing.
    Reopen {
        /// The account.
        account: AccountId,
    },
    /// Sets money aside again for a child account that was closed: what it had spent counts as reserved from now on.
    ReserveAgain {
        /// The account.
        account: AccountId,
        /// The new reservation's name.
        reservation: ReservationId,
        /// The most that the child may have spent in the end.
        amount: Money,
        /// The child account.
        child: AccountId,
        /// What the child had spent, of all its life.
        returned: Money,
    },
    /// Lets more be spent.
    Raise {
        /// The account.
        account: AccountId,
        /// What may be spent at most from now on.
        max: Money,
    },
    /// Lets nothing further be reserved, whatever is given back: the maximum becomes what is spent.
    Stop {
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
    /// What was reserved; for a settled or corrected reservation what was spent; for an account the new maximum.
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
    /// What a child account had spent before money was set aside for it again; for a corrected reservation what was put down too much.
    #[serde(rename = "returned_nanos", default, skip_serializing_if = "Option::is_none")]
    pub returned: Option<Money>,
    /// How it is known what was spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

/// What a posting makes of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The account afterwards, one version on.
    pub account: Account,
    /// The reservation, if it is open or unknown afterwards; otherwise it is gone.
    pub reservation: Option<Reservation>,
    /// What goes into the log.
    pub record: Record,
}
