//! What a run pays: nothing is asked of a model that was not reserved before.
//!
//! ```text
//! begin       account opened, opened again or raised          with the run's first commit
//! attempt     Reserve + Issue of the most it can cost         Reserved, a commit of its own, before the provider is asked
//! answer      Settle at what it cost                          with AssistantTurnCommitted
//! failure     Settle at nothing, or at the bound as unknown   with the next commit, whichever it is
//! end         Close; a child settles with its parent          with the commit that ends the chain
//! lost run    Release or Settle at the bound as unknown       with the commit that settles the run
//! ```
//!
//! - An account belongs to the root of a chain. A thread whose calls cost nothing makes no postings and needs no account.
//! - What the next call may cost is worked out before it; if the account does not hold it, the answer is allowed to be shorter, and if that is
//!   not enough the call is not made and the thread waits.
//! - Killed anywhere, what was reserved is either still reserved under the name of the lost run, or settled.
//!
//! [`book`] works out postings that concern more than one account: what a spawn, a raise and the end of a chain need. [`correct`] says what a
//! lost call really cost. [`audit`] shows what was posted, by the database and by the signed logs alone.

use selvedge_model::account::{Account, AccountId, AccountStatus, Posting, PostingError, ReservationState};
use selvedge_model::answer::{Answer, Usage};
use selvedge_model::event::{SuspendReason, Suspended};
use selvedge_model::id::ReservationId;
use selvedge_model::limits::{Limits, SPEND_EXCEEDED};
use selvedge_model::{Batch, Event, ModelError, Money, Price, Reason, RunId, Status};
use selvedge_store::{Committed, Error as StoreError};

use crate::assignment::Assignment;
use crate::error::{Error, Result};
use crate::held::{Held, Of};

pub mod audit;
pub mod book;
mod correction;
mod differences;

pub use book::{Book, short_above};
pub use correction::correct;

/// How many tokens a model may answer with when nobody says how many.
pub const OUTPUT_TOKENS: u64 = 8_192;

/// An answer that is not allowed at least this many tokens is not asked for, unless even that many were never wanted.
const OUTPUT_TOKENS_LEAST: u64 = 256;

/// How often postings are worked out anew when others are faster.
const TRIES: u32 = 64;

/// A call that is about to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bid {
    pub(crate) price: Price,
    /// How many tokens are sent at most.
    pub(crate) input_tokens: u64,
    /// How many tokens may be received at most.
    pub(crate) output_tokens: u64,
}

/// Whether a call may be made.
#[derive(Debug)]
pub(crate) enum Allowed {
    /// It may, and its answer may have this many tokens.
    Up(u64),
    /// It may not: the account does not hold it.
    Refused(Refused),
}

/// A call that was not made.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) suspended: Suspended,
    pub(crate) detail: String,
}

/// What a call is paid with that was made and is not settled yet.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    reservation: ReservationId,
    bound: Money,
    price: Price,
}

/// What became of a call, as far as money is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spent {
    /// The provider counted.
    Counted(Usage),
    /// The provider said what it charges.
    Charged(Money),
    /// The provider did nothing.
    Nothing,
    /// Nobody knows.
    Unknown,
}

/// What a call was settled at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) amount: Money,
    /// Whether nobody knows, and the amount is the most it can have cost.
    is_unknown: bool,
}

impl Settled {
    /// What of it nobody knows.
    pub(crate) fn unknown(self) -> Money {
        if self.is_unknown { self.amount } else { Money::ZERO }
    }
}

impl Spent {
    /// What a call has spent that was answered so. A provider that does not count has not worked for nothing.
    pub(crate) fn on(answer: &Answer) -> Self {
        let counted = answer.usage.filter(|usage| !usage.estimated).map(Self::Counted);
        answer.charged.map(Self::Charged).or(counted).unwrap_or(Self::Unknown)
    }

    /// What a call that failed so has spent.
    pub(crate) fn by(error: &ModelError) -> Self {
        match error {
            // It was not asked.
            ModelError::Unreached { .. } => Self::Nothing,
            // It failed there, and may have worked for a while.
            ModelError::Status { status: 500.., .. } => Self::Unknown,
            // It answered, and said no.
            ModelError::Status { .. }
            | ModelError::RateLimited { .. }
            | ModelError::SessionRefused { .. }
            | ModelError::Permanent { .. } => Self::Nothing,
            // It may have worked for a while, and charges for that.
            ModelError::Transient { .. } | ModelError::Cut { .. } | ModelError::Stopped { .. } => Self::Unknown,
        }
    }
}

impl Held {
    /// The account that the thread's chain spends from.
    pub(crate) fn account_id(&self) -> AccountId {
        self.fold.manifest().chain_root_id.clone()
    }

    /// Refuses a model without a price under a ceiling of money.
    pub(crate) fn check_price(&self, work: &Assignment) -> Result<()> {
        if self.limits(work).spend.is_some() && work.price.is_none() {
            return Err(Error::NoPrice { thread: self.thread().clone(), model: work.model_name.clone() });
        }
        Ok(())
    }

    /// Puts into the delta what the account of the chain needs for a run: it is opened or opened again if the model costs anything, and
    /// raised if somebody says so.
    pub(crate) fn fund(&mut self, work: &Assignment, raise: Option<&Limits>) -> Result<()> {
        let engine = self.engine.clone();
        let id = self.account_id();
        let raised = raise.and_then(|raise| raise.spend);
        let mut book = Book::over(&*engine.store, &*engine.ids);
        if work.is_paid() {
            let max = raised.or(self.limits(work).spend);
            match self.payer(&mut book)? {
                Some(parent) => {
                    book.ensure(&parent, None)?;
                    book.spawn(&parent, &id, max)?;
                }
                None => book.ensure(&id, max)?,
            }
        }
        if let Some(max) = raised {
            book.raise(&id, max)?;
        }
        self.delta.postings.extend(book.into_postings());
        Ok(())
    }

    /// The account that must pay for a thread which was started by another one and was given no account.
    fn payer(&self, book: &mut Book<'_>) -> Result<Option<AccountId>> {
        let Some(parent) = self.fold.manifest().parent_id.clone() else { return Ok(None) };
        if book.account(&self.account_id())?.is_some() {
            return Ok(None);
        }
        let parent = match self.engine.store.get(&parent) {
            Ok(parent) => parent.manifest.chain_root_id,
            Err(_) => return Ok(None),
        };
        Ok(book.account(&parent)?.map(|account| account.id))
    }

    /// Puts into the delta what a raise of the thread's ceilings needs; refused if the money is not there.
    pub(crate) fn fund_raise(&mut self, raise: &Limits) -> Result<()> {
        let Some(max) = raise.spend else { return Ok(()) };
        let engine = self.engine.clone();
        let mut book = Book::over(&*engine.store, &*engine.ids);
        let id = self.account_id();
        if book.account(&id)?.is_some_and(|account| account.status != AccountStatus::Closed) {
            book.raise(&id, max)?;
        }
        self.delta.postings.extend(book.into_postings());
        Ok(())
    }

    /// Reserves what a call may cost and says that it is about to be made: durable on return, together with whatever waited in the
    /// delta. A call that the account does not hold in full is allowed a shorter answer, or is refused.
    pub(crate) fn reserve(&mut self, bid: Bid, of: &Of) -> Result<Allowed> {
        let account = self.account_id();
        for _ in 0..TRIES {
            let Some(known) = self.engine.store.account(&account)? else {
                return Err(StoreError::Posting(PostingError::UnknownAccount { account }).into());
            };
            // What waits in the delta is settled in the same batch and may free something; the store has the last word.
            let wanted = bid.output_tokens;
            let tokens = match self.remaining_after(&known)? {
                None => Some(wanted),
                Some(left) => bid.price.affordable(bid.input_tokens, wanted, left),
            };
            let Some(tokens) = tokens.filter(|tokens| *tokens >= OUTPUT_TOKENS_LEAST.min(wanted)) else {
                return Ok(Allowed::Refused(self.refused(&known, bid)?));
            };
            let hold = self.hold_for(of.run.as_ref(), bid, tokens)?;
            let before = self.delta.postings.len();
            let (reservation, amount) = (hold.reservation.clone(), hold.bound);
            self.delta.postings.extend([
                Posting::Reserve { account: account.clone(), reservation: reservation.clone(), amount, child: None },
                Posting::Issue { account: account.clone(), reservation },
            ]);
            match self.commit(Reason::Reserved, of.clone()) {
                Ok(_) => {
                    self.hold = Some(hold);
                    return Ok(Allowed::Up(tokens));
                }
                Err(error) => {
                    self.delta.postings.truncate(before);
                    self.meet(&error, &account)?.then_some(()).ok_or(error)?;
                }
            }
        }
        Err(StoreError::AccountBusy(account).into())
    }

    /// Whether a reservation that was refused may be tried again; does what that needs.
    fn meet(&mut self, error: &Error, account: &AccountId) -> Result<bool> {
        let Error::Commit { source: StoreError::Posting(refused), .. } = error else { return Ok(false) };
        match refused {
            // Somebody else was faster: what is left now is looked up.
            PostingError::Insufficient { .. } => Ok(true),
            // A child that ended meanwhile closed what nothing was reserved of.
            PostingError::AccountClosed { account: closed } if closed == account => {
                let engine = self.engine.clone();
                let mut book = Book::over(&*engine.store, &*engine.ids);
                book.ensure(account, None)?;
                self.delta.postings.extend(book.into_postings());
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// What the account has left once what waits in the delta is posted.
    fn remaining_after(&self, account: &Account) -> Result<Option<Money>> {
        if self.delta.postings.is_empty() {
            return Ok(account.remaining());
        }
        let mut book = Book::over(&*self.engine.store, &*self.engine.ids);
        for posting in &self.delta.postings {
            book.post(posting.clone())?;
        }
        Ok(book.account(&account.id)?.and_then(|account| account.remaining()))
    }

    fn hold_for(&mut self, run: Option<&RunId>, bid: Bid, output_tokens: u64) -> Result<Hold> {
        self.attempts += 1;
        let run = run.ok_or(StoreError::BadBatch)?;
        let reservation = ReservationId::new(format!("{run}.{}", self.attempts)).map_err(|_| StoreError::BadBatch)?;
        Ok(Hold { reservation, bound: bid.price.bound(bid.input_tokens, output_tokens), price: bid.price })
    }

    fn refused(&self, account: &Account, bid: Bid) -> Result<Refused> {
        let left = self.remaining_after(account)?.unwrap_or_default();
        let max = account.max.unwrap_or_default();
        let needed = bid.price.bound(bid.input_tokens, bid.output_tokens.min(OUTPUT_TOKENS_LEAST));
        let suspended = Suspended {
            current: Some(max.saturating_sub(left).to_json()),
            maximum: Some(max.to_json()),
            ..Suspended::because(SuspendReason::Budget, SPEND_EXCEEDED)
        };
        let detail = format!("account `{}` has {left} dollars left, and the next call may cost {needed}", account.id);
        Ok(Refused { suspended, detail })
    }

    /// Puts into the delta what became of the call that was reserved for last, if there is one; gives what it is settled at.
    pub(crate) fn settle(&mut self, spent: Spent) -> Result<Settled> {
        let Some(Hold { reservation, bound, price }) = self.hold.take() else { return Ok(Settled::default()) };
        let (amount, unknown) = match spent {
            Spent::Counted(usage) => (price.cost(&usage), false),
            Spent::Charged(amount) => (amount, false),
            Spent::Nothing => (Money::ZERO, false),
            Spent::Unknown => (bound, true),
        };
        let account = self.account_id();
        let settled = Posting::Settle { account: account.clone(), reservation, amount, unknown };
        if amount <= bound {
            self.delta.postings.push(settled);
            return Ok(Settled { amount, is_unknown: unknown });
        }
        let engine = self.engine.clone();
        let mut book = Book::over(&*engine.store, &*engine.ids);
        book.post(settled)?;
        book.stop_tree(&account)?;
        self.delta.postings.extend(book.into_postings());
        Ok(Settled { amount, is_unknown: unknown })
    }

    /// Puts into the delta what became of the calls of a run whose process is gone: what was never sent is given back, what may have
    /// been sent is counted at the most it can have cost. Gives the sum of that.
    pub(crate) fn settle_lost_calls(&mut self, run: Option<&RunId>) -> Result<Money> {
        let (Some(run), account) = (run, self.account_id()) else { return Ok(Money::ZERO) };
        let (own, mut lost) = (format!("{run}."), Money::ZERO);
        for held in self.engine.store.reservations(&account)? {
            if !held.id.as_str().starts_with(&own) || held.child.is_some() {
                continue;
            }
            let (account, reservation) = (account.clone(), held.id);
            self.delta.postings.extend(match held.state {
                ReservationState::Reserved => Some(Posting::Release { account, reservation }),
                ReservationState::Issued => {
                    lost = lost.saturating_add(held.amount);
                    Some(Posting::Settle { account, reservation, amount: held.amount, unknown: true })
                }
                ReservationState::Unknown => None,
            });
        }
        Ok(lost)
    }

    /// Commits a batch; one that ends the chain closes its account as well, as far as the children allow.
    pub(crate) fn commit_closing(
        &self,
        mut batch: Batch,
        events: &[Event],
    ) -> std::result::Result<Committed, StoreError> {
        let store = &*self.engine.store;
        let account = self.account_id();
        let mut given = batch.parts.first().map(|part| part.postings.clone()).unwrap_or_default();
        if !self.ends(events) || store.account(&account)?.is_none() {
            for _ in 0..TRIES {
                match store.commit(batch.clone()) {
                    // An account of the tree was closed meanwhile, and needs no stopping any more.
                    Err(error) if book::is_overtaken(&error) && has_stops(&given) => {
                        given = self.without_moot_stops(given)?;
                        set_postings(&mut batch, given.clone());
                    }
                    answer => return answer,
                }
            }
            return store.commit(batch);
        }
        for _ in 0..TRIES {
            given = self.without_moot_stops(given)?;
            let mut book = Book::over(store, &*self.engine.ids);
            let worked_out = given.iter().try_for_each(|posting| book.post(posting.clone()));
            let closing = worked_out.and_then(|()| book.close(&account)).map(|()| book.into_postings());
            // What can't be worked out can't be closed; the store says why, if it is the batch's own fault.
            let Ok(closing) = closing else { break };
            set_postings(&mut batch, closing);
            match store.commit(batch.clone()) {
                Err(error) if book::is_overtaken(&error) => {}
                answer => return answer,
            }
        }
        // A run can always end; an account that could not be closed stays as it is, and is closed with the next run's end.
        set_postings(&mut batch, given);
        store.commit(batch)
    }

    /// These postings, without stops of accounts that were closed meanwhile.
    fn without_moot_stops(&self, postings: Vec<Posting>) -> std::result::Result<Vec<Posting>, StoreError> {
        let mut kept = Vec::with_capacity(postings.len());
        for posting in postings {
            if let Posting::Stop { account } = &posting {
                let now = self.engine.store.account(account)?;
                if now.is_some_and(|now| {
                    now.status == AccountStatus::Closed || now.max.is_some_and(|max| max <= now.spent())
                }) {
                    continue;
                }
            }
            kept.push(posting);
        }
        Ok(kept)
    }

    /// Whether these events bring the chain to an end.
    fn ends(&self, events: &[Event]) -> bool {
        // Few changesets do, and a manifest may be long.
        if !events.iter().any(|event| matches!(event, Event::RunFinished(_) | Event::ManifestChanged(_))) {
            return false;
        }
        let mut manifest = self.fold.manifest().clone();
        let was_over = manifest.status.is_terminal();
        let at = manifest.updated_at;
        let has_changed = events.iter().all(|event| manifest.apply(event, at).is_ok());
        has_changed && !was_over && manifest.status.is_terminal() && manifest.status != Status::Continued
    }
}

fn has_stops(postings: &[Posting]) -> bool {
    postings.iter().any(|posting| matches!(posting, Posting::Stop { .. }))
}

fn set_postings(batch: &mut Batch, postings: Vec<Posting>) {
    if let Some(part) = batch.parts.first_mut() {
        part.postings = postings;
    }
}
