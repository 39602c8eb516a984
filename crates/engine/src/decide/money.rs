//! What an attempt may cost, whether the account holds that, and what it cost.

use selvedge_model::account::{Account, AccountId, Posting};
use selvedge_model::answer::{Answer, Usage};
use selvedge_model::event::{SuspendReason, Suspended};
use selvedge_model::id::ReservationId;
use selvedge_model::limits::SPEND_EXCEEDED;
use selvedge_model::{ModelError, Money, Price};

use crate::decide::{Live, context};
use crate::fold::Fold;
use crate::ledger::OUTPUT_TOKENS;
use crate::run_config::RunConfig;

/// No answer with fewer tokens than this is requested, unless the configured maximum is lower.
const OUTPUT_TOKENS_LEAST: u64 = 256;

/// The cost bound of an attempt that is about to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostBound {
    price: Price,
    /// The most tokens that are sent.
    input_tokens: u64,
    /// The most tokens that may be received.
    output_tokens: u64,
}

/// Why an attempt can't be made: the account does not hold its possible cost.
#[derive(Clone, Debug)]
pub(crate) struct Shortage {
    pub(crate) suspended: Suspended,
    pub(crate) detail: String,
}

/// The money held for an attempt that was issued and is not settled yet.
#[derive(Clone, Debug)]
pub(crate) struct HeldMoney {
    account: AccountId,
    reservation: ReservationId,
    bound: Money,
    price: Price,
}

/// What is known about the cost of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spent {
    /// The provider reported usage.
    Counted(Usage),
    /// The provider reported the charge.
    Charged(Money),
    /// Nothing was charged.
    Nothing,
    /// It is unknown.
    Unknown,
}

/// The settled cost of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    hold: HeldMoney,
    pub(super) amount: Money,
    /// Whether the cost is unknown, and the amount is its bound.
    is_unknown: bool,
}

impl Settled {
    /// The part of it that is unknown.
    pub(super) fn unknown(&self) -> Money {
        if self.is_unknown { self.amount } else { Money::ZERO }
    }

    /// Whether the provider charged more than its bound.
    pub(super) fn is_overcharged(&self) -> bool {
        self.amount > self.hold.bound
    }

    pub(super) fn posting(&self) -> Posting {
        let HeldMoney { account, reservation, .. } = self.hold.clone();
        Posting::Settle { account, reservation, amount: self.amount, unknown: self.is_unknown }
    }
}

impl HeldMoney {
    pub(super) fn settled(self, spent: Spent) -> Settled {
        let (amount, is_unknown) = match spent {
            Spent::Counted(usage) => (self.price.cost(&usage), false),
            Spent::Charged(amount) => (amount, false),
            Spent::Nothing => (Money::ZERO, false),
            Spent::Unknown => (self.bound, true),
        };
        Settled { hold: self, amount, is_unknown }
    }

    pub(super) fn postings(&self) -> [Posting; 2] {
        let account = self.account.clone();
        let reservation = self.reservation.clone();
        [
            Posting::Reserve {
                account: account.clone(),
                reservation: reservation.clone(),
                amount: self.bound,
                child: None,
            },
            Posting::Issue { account, reservation },
        ]
    }
}

impl Spent {
    /// The cost of an attempt with this answer. Without reported usage it is unknown, and not zero.
    pub(super) fn on(answer: &Answer) -> Self {
        let counted = answer.usage.filter(|usage| !usage.estimated).map(Self::Counted);
        answer.charged.map(Self::Charged).or(counted).unwrap_or(Self::Unknown)
    }

    /// The cost of an attempt that failed with this error.
    pub(super) fn by(error: &ModelError) -> Self {
        match error {
            // The request was not received.
            ModelError::Unreached { .. } => Self::Nothing,
            // It failed at the provider, which may have worked for a while.
            ModelError::Status { status: 500.., .. } => Self::Unknown,
            ModelError::Cut { usage: Some(usage), .. } | ModelError::Stopped { usage: Some(usage), .. }
                if !usage.estimated =>
            {
                Self::Counted(*usage)
            }
            // The provider rejected it.
            ModelError::ContextTooLong { .. }
            | ModelError::Status { .. }
            | ModelError::RateLimited { .. }
            | ModelError::SessionRefused { .. }
            | ModelError::Permanent { .. } => Self::Nothing,
            // The provider may have worked for a while, and charge for that.
            ModelError::Transient { .. } | ModelError::Cut { .. } | ModelError::Stopped { .. } => Self::Unknown,
        }
    }
}

impl CostBound {
    /// The cost bound of an attempt with a prompt of this size; none for a free model.
    pub(super) fn of(fold: &Fold, rules: &RunConfig, prompt_bytes: usize) -> Option<Self> {
        let price = rules.price.filter(|price| !price.is_free())?;
        let output_tokens = rules.output_tokens_max.unwrap_or(OUTPUT_TOKENS);
        Some(Self { price, input_tokens: fold.gauge().tokens_at_most(prompt_bytes), output_tokens })
    }

    /// The money to hold for it, and the most tokens of its answer. If the account does not hold all of it, the answer may be shorter, or
    /// the attempt is refused. The previous attempt is settled first, which may free money.
    pub(super) fn reserve(
        self,
        live: &Live,
        account: &Account,
        before: Option<&Settled>,
    ) -> Result<(HeldMoney, u64), Box<Shortage>> {
        let freed = |left: Money| match before {
            Some(before) => left.saturating_add(before.hold.bound).saturating_sub(before.amount),
            None => left,
        };
        let left = account.remaining().map(freed);
        let tokens = match left {
            None => Some(self.output_tokens),
            Some(left) => self.price.affordable(self.input_tokens, self.output_tokens, left),
        };
        let least = OUTPUT_TOKENS_LEAST.min(self.output_tokens);
        // The run id and a number make the reservation id.
        let reservation = ReservationId::new(format!("{}.{}", live.run, live.attempts + 1)).ok();
        match (tokens.filter(|tokens| *tokens >= least), reservation) {
            (Some(tokens), Some(reservation)) => {
                let bound = self.price.bound(self.input_tokens, tokens);
                Ok((HeldMoney { account: account.id.clone(), reservation, bound, price: self.price }, tokens))
            }
            _ => Err(Box::new(self.shortage(account, left.unwrap_or_default()))),
        }
    }

    fn shortage(self, account: &Account, left: Money) -> Shortage {
        let max = account.max.unwrap_or_default();
        let needed = self.price.bound(self.input_tokens, self.output_tokens.min(OUTPUT_TOKENS_LEAST));
        let suspended = Suspended {
            current: Some(max.saturating_sub(left).to_json()),
            maximum: Some(max.to_json()),
            ..Suspended::because(SuspendReason::Budget, SPEND_EXCEEDED)
        };
        let detail = format!("account `{}` has {left} dollars left, and the next call may cost {needed}", account.id);
        Shortage { suspended, detail }
    }
}

/// The most that the next turn may cost.
pub(crate) fn next_turn_cost(fold: &Fold, rules: &crate::decide::Rules) -> Money {
    let bid = CostBound::of(fold, rules, context::prompt_size(fold, rules));
    bid.map_or(Money::ZERO, |bid| bid.price.bound(bid.input_tokens, bid.output_tokens))
}
