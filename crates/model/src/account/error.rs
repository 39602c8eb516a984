//! Why a posting is refused.

use super::AccountId;
use crate::error::{Classify, Kind};
use crate::id::ReservationId;
use crate::money::Money;

/// Why a posting is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostingError {
    /// The account can't cover the amount.
    #[error("account `{account}` has {remaining} dollars left, and {requested} are needed")]
    Insufficient {
        /// The account.
        account: AccountId,
        /// What can still be reserved.
        remaining: Money,
        /// What was requested.
        requested: Money,
    },
    /// There is no such account.
    #[error("there is no account `{account}`")]
    UnknownAccount {
        /// The account.
        account: AccountId,
    },
    /// The account exists already.
    #[error("account `{account}` exists already")]
    AccountExists {
        /// The account.
        account: AccountId,
    },
    /// The account accepts no further postings.
    #[error("account `{account}` is closed")]
    AccountClosed {
        /// The account.
        account: AccountId,
    },
    /// An account can't fund itself.
    #[error("account `{account}` can't be its own child")]
    OwnChild {
        /// The account.
        account: AccountId,
    },
    /// The account is not closed, so it can't be reopened.
    #[error("account `{account}` is not closed")]
    NotClosed {
        /// The account.
        account: AccountId,
    },
    /// A raise must set a higher limit.
    #[error("account `{account}` has {} already: a raise must set a higher limit", shown(.max))]
    NotRaised {
        /// The account.
        account: AccountId,
        /// The current limit.
        max: Option<Money>,
    },
    /// A correction must be lower than the bound, and give evidence.
    #[error(
        "reservation `{reservation}` was settled at its bound of {bound} dollars: a correction must be lower and give evidence"
    )]
    NotCorrected {
        /// The reservation.
        reservation: ReservationId,
        /// The amount it was settled at.
        bound: Money,
    },
    /// A reservation with this id is open already.
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
    /// The call may have been sent, so it is too late for this posting.
    #[error("reservation `{reservation}` has already been issued")]
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
    #[error("the sum is too large for account `{account}`")]
    TooLarge {
        /// The account.
        account: AccountId,
    },
    /// The account holds less than the reservation.
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
            | Self::NotClosed { .. }
            | Self::AlreadyIssued { .. }
            | Self::NotIssued { .. } => Kind::Denied,
            Self::OwnChild { .. } | Self::TooLarge { .. } | Self::NotRaised { .. } | Self::NotCorrected { .. } => {
                Kind::Invalid
            }
            Self::Inconsistent { .. } => Kind::Integrity,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Insufficient { .. } => "budget_exceeded",
            Self::UnknownAccount { .. } => "account_not_found",
            Self::AccountExists { .. } => "account_exists",
            Self::AccountClosed { .. } => "account_closed",
            Self::OwnChild { .. } => "account_own_child",
            Self::NotClosed { .. } => "account_not_closed",
            Self::NotRaised { .. } => "account_not_raised",
            Self::NotCorrected { .. } => "correction_refused",
            Self::ReservationExists { .. } => "reservation_exists",
            Self::UnknownReservation { .. } => "reservation_not_found",
            Self::AlreadyIssued { .. } => "reservation_issued",
            Self::NotIssued { .. } => "reservation_not_issued",
            Self::TooLarge { .. } => "account_too_large",
            Self::Inconsistent { .. } => "account_inconsistent",
        }
    }
}

fn shown(max: &Option<Money>) -> String {
    max.map_or_else(|| "no limit".to_owned(), |max| format!("a limit of {max} dollars"))
}
