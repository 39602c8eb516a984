//! The ledger: the rules for posting to an account.
//!
//! Defines what a posting does to an account and to a reservation, and the signed record of it in a log. It reads and stores nothing:
//! a store passes in the current account and reservation, and keeps the result only if the account is still at the version that it
//! passed in.
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
//! - Every posting raises the account's version by one. Records ordered by version are the account's whole history;
//!   [`Posting::from_record`] replays it.
//! - `reserved` is the sum of the open reservations and `open` their number.
//! - No reservation exceeds `max`, so `settled + settled_children + reserved` never exceeds the highest `max` the account has had, unless
//!   a provider charged more than was reserved. The overcharge is recorded as it happened; [`Posting::Stop`] then blocks every further
//!   reservation.
//! - An issued call may have cost money, so its reservation can't be released. A reservation for a child account settles at what
//!   the child has spent, so it needs no issue.
//! - An unknown cost is counted at its reserved bound, and corrected only downward, with evidence that is in the log.
//!
//! What holds of a tree, if its batches keep the two sides of a posting together (a store refuses batches that don't, see
//! [`pairs`]): while a child account is not closed, its parent holds reservations for it that cover its maximum; once it is closed,
//! its parent holds none, and the child's spending is in the parent's `settled_children`, once. So everything that a tree has spent or
//! may still spend is within its root's maximum.

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

/// Whether an account still accepts postings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountStatus {
    /// It accepts every posting.
    Active,
    /// Its chain has ended while something is still reserved. It accepts the postings that end those reservations, and is closed after the last.
    Closing,
    /// Its chain and all its child accounts have ended.
    Closed,
}

/// What a chain may spend and has spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The account's id: the root thread of its chain.
    pub id: AccountId,
    /// The account that funds it.
    pub parent: Option<AccountId>,
    /// The spending limit; `None` means no limit.
    pub max: Option<Money>,
    /// What the chain itself has spent.
    pub settled: Money,
    /// What closed child accounts have spent.
    pub settled_children: Money,
    /// The sum of the open reservations, those for child accounts included.
    pub reserved: Money,
    /// The number of open reservations; the reservation of a free call counts too, although its amount is zero.
    pub open: u64,
    /// Whether it still accepts postings.
    pub status: AccountStatus,
    /// The number of postings so far.
    pub version: u64,
    /// Whether postings of it are missing, or a log of its family that may have some is not here: what is not known counts as spent.
    #[serde(default, skip_serializing_if = "is_false")]
    pub incomplete: bool,
}

impl Account {
    /// What the chain and its closed children have spent; children that are still open count in `reserved`.
    pub fn spent(&self) -> Money {
        self.settled.saturating_add(self.settled_children)
    }

    /// What was spent or may still be spent: spent and reserved.
    pub fn used(&self) -> Money {
        self.spent().saturating_add(self.reserved)
    }

    /// What can still be reserved: zero once the maximum is used up or exceeded, `None` if there is no limit.
    pub fn remaining(&self) -> Option<Money> {
        let max = self.max?;
        Some(max.saturating_sub(self.used()))
    }

    /// Whether the account holds money, or its parent holds money for it. Its threads can't be deleted then: nothing could release that
    /// money afterwards.
    pub fn is_in_use(&self) -> bool {
        self.status != AccountStatus::Closed && (self.open > 0 || self.parent.is_some())
    }
}

/// The state of a reservation that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationState {
    /// Nothing has been sent yet.
    Reserved,
    /// The call was or may have been sent.
    Issued,
    /// Settled at its bound because the actual cost is unknown. No longer open; kept so that it can be corrected.
    Unknown,
}

/// An open reservation of an account, or one that was settled with unknown cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its name, which no other open reservation of any account has.
    pub id: ReservationId,
    /// The account whose money it holds.
    pub account: AccountId,
    /// The most that is expected to be spent.
    pub amount: Money,
    /// Its state.
    pub state: ReservationState,
    /// The child account that the money is for.
    pub child: Option<AccountId>,
}

/// A change that a caller requests of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Posting {
    /// Opens an account.
    Open {
        /// The account.
        account: AccountId,
        /// The account that funds it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<AccountId>,
        /// The spending limit; absent means no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<Money>,
    },
    /// Reserves money.
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
    /// Records that the reserved call is about to be sent.
    Issue {
        /// The account.
        account: AccountId,
        /// The reservation.
        reservation: ReservationId,
    },
    /// Ends a reservation with the amount that was spent, even if that is more than was reserved.
    Settle {
        /// The account.
        account: AccountId,
        /// The reservation.
        reservation: ReservationId,
        /// What was spent.
        amount: Money,
        /// Whether the actual cost is unknown, so that the amount is the reserved bound.
        #[serde(default, skip_serializing_if = "is_false")]
        unknown: bool,
    },
    /// Ends a reservation of which nothing was spent.
    Release {
        /// The account.
        account: AccountId,
        /// The reservation.
        reservation: ReservationId,
    },
    /// Corrects a settlement of unknown cost once the cost is known; only downward.
    Correct {
        /// The account.
        account: AccountId,
        /// The reservation that was settled with unknown cost.
        reservation: ReservationId,
        /// What was spent.
        amount: Money,
        /// The evidence for that amount.
        evidence: String,
    },
    /// Closes an account: at once, or when the last reservation has ended.
    Close {
        /// The account.
        account: AccountId,
    },
    /// Reopens an account that is closed or closing.
    Reopen {
        /// The account.
        account: AccountId,
    },
    /// Reserves money again for a child account that was closed: what it had spent counts as reserved from now on.
    ReserveAgain {
        /// The account.
        account: AccountId,
        /// The new reservation's name.
        reservation: ReservationId,
        /// The new limit of what the child may spend in total.
        amount: Money,
        /// The child account.
        child: AccountId,
        /// What the child has spent in total so far.
        returned: Money,
    },
    /// Raises the spending limit.
    Raise {
        /// The account.
        account: AccountId,
        /// The new spending limit.
        max: Money,
    },
    /// Blocks every further reservation, even of money that is released later: the limit becomes what has been spent.
    Stop {
        /// The account.
        account: AccountId,
    },
}

/// The signed record of one posting in a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The account.
    pub account: AccountId,
    /// The account's version after the posting.
    pub account_version: u64,
    /// What could still be reserved after the posting; absent means no limit.
    #[serde(rename = "remaining_nanos", default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Money>,
    /// The reservation that was made, issued or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// The reserved amount; for a settled or corrected reservation the amount spent; for an account the new limit.
    #[serde(rename = "amount_nanos", default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Money>,
    /// The account that funds an opened one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<AccountId>,
    /// The child account that the reservation is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<AccountId>,
    /// Whether the actual cost is unknown.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unknown: bool,
    /// What a child account had spent before money was reserved for it again; for a correction the amount taken back.
    #[serde(rename = "returned_nanos", default, skip_serializing_if = "Option::is_none")]
    pub returned: Option<Money>,
    /// The evidence for the amount spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

/// The result of a posting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The account after the posting, one version later.
    pub account: Account,
    /// The reservation, if it is open or of unknown cost after the posting; otherwise it has ended.
    pub reservation: Option<Reservation>,
    /// The record to append to the log.
    pub record: Record,
}
