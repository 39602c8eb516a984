//! What a run pays: no model is called without a reservation.
//!
//! ```text
//! begin       account opened, opened again or raised          with the run's first commit
//! attempt     Reserve + Issue of the most it can cost         Reserved, a commit of its own, before the provider is asked
//! answer      Settle at what it cost                          with AssistantTurnCommitted
//! failure     Settle at zero, or at the bound as unknown      with the next commit, whichever it is
//! end         Close; a child settles with its parent          with the commit that ends the chain
//! lost run    Release or Settle at the bound as unknown       with the commit that settles the run
//! ```
//!
//! - An account belongs to the root of a chain. A thread whose calls cost nothing makes no postings and needs no account.
//! - What the next attempt may cost, and whether the account holds it, is decided by `decide/money.rs`.
//! - If the process is killed anywhere, what was reserved is either still reserved under the id of the lost run, or settled.
//!
//! [`book`] computes postings that concern more than one account: for a spawn, a raise and the end of a chain. [`correct`] corrects the cost
//! of a lost call. [`audit`] shows what was posted, by the database and by the signed logs alone.

use selvedge_model::account::{Account, AccountId, AccountStatus, Posting, PostingError, ReservationState};
use selvedge_model::limits::Limits;
use selvedge_model::{Batch, Event, Money, Reason, RunId, Status};
use selvedge_store::{Committed, Error as StoreError};

use crate::error::{Error, Result};
use crate::held::{HeldThread, RunContext};
use crate::run_config::RunConfig;

pub mod audit;
pub mod book;
mod correction;
mod differences;

pub use book::{Book, short_above};
pub use correction::correct;

/// The most tokens of an answer, if the configuration sets no maximum.
pub const OUTPUT_TOKENS: u64 = 8_192;

/// How often postings are recomputed after conflicting commits.
const TRIES: u32 = 64;

impl HeldThread {
    /// The account that the thread's chain spends from.
    pub(crate) fn account_id(&self) -> AccountId {
        self.fold.manifest().chain_root_id.clone()
    }

    /// Refuses a model without a price under a money limit.
    pub(crate) fn check_price(&self, work: &RunConfig) -> Result<()> {
        work.check_price(&self.limits(work))
    }

    /// Adds the postings for a run to the delta: the account of the chain is opened or reopened if the model costs anything, and raised if
    /// the input asks for it.
    pub(crate) fn fund(&mut self, work: &RunConfig, raise: Option<&Limits>) -> Result<()> {
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

    /// The account that must pay for a child that has no account of its own.
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

    /// The same; returns why it is refused. A failure to read or to commit is an error and not a refusal.
    pub(crate) fn pay_raise(&mut self, raise: &Limits) -> Result<Option<String>> {
        match self.fund_raise(raise) {
            Ok(()) => Ok(None),
            Err(error @ (Error::Store(StoreError::Io { .. }) | Error::Commit { .. })) => Err(error),
            Err(refused) => Ok(Some(refused.to_string())),
        }
    }

    /// Adds the postings for a raise of the thread's limits to the delta; refused if the money is not there.
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

    /// The account that the thread's chain spends from, as it is now.
    pub(crate) fn account(&self) -> Result<Account> {
        let account = self.account_id();
        let known = self.engine.store.account(&account)?;
        known.ok_or_else(|| StoreError::Posting(PostingError::UnknownAccount { account }).into())
    }

    /// Commits an attempt: the last two postings of the delta reserve its possible cost and issue it. Returns `false` if another run spent
    /// the money first, and the account must be read again.
    pub(crate) fn commit_attempt(&mut self, of: &RunContext) -> Result<bool> {
        let account = self.account_id();
        for _ in 0..TRIES {
            let error = match self.commit(Reason::Reserved, of.clone()) {
                Ok(_) => return Ok(true),
                Err(error) => error,
            };
            let Error::Commit { source: StoreError::Posting(refused), .. } = &error else { return Err(error) };
            match refused {
                PostingError::Insufficient { .. } => return Ok(false),
                // A child that ended meanwhile closed the account, of which nothing was reserved.
                PostingError::AccountClosed { account: closed } if *closed == account => {
                    let engine = self.engine.clone();
                    let mut book = Book::over(&*engine.store, &*engine.ids);
                    book.ensure(&account, None)?;
                    let at = self.delta.postings.len().saturating_sub(2);
                    self.delta.postings.splice(at..at, book.into_postings());
                }
                _ => return Err(error),
            }
        }
        Err(StoreError::AccountBusy(account).into())
    }

    /// Adds the postings to the delta that stop all reservations from the same money, because a provider charged more than its bound.
    pub(crate) fn stop_tree(&mut self) -> Result<()> {
        let engine = self.engine.clone();
        let mut book = Book::over(&*engine.store, &*engine.ids);
        for posting in std::mem::take(&mut self.delta.postings) {
            book.post(posting)?;
        }
        book.stop_tree(&self.account_id())?;
        self.delta.postings = book.into_postings();
        Ok(())
    }

    /// Adds the postings for the model calls of a run whose process is gone to the delta: what was never sent is released, what may have been
    /// sent is settled at its bound. Returns the sum of the latter.
    pub(crate) fn settle_lost_calls(&mut self, run: Option<&RunId>) -> Result<Money> {
        let Some(run) = run else { return Ok(Money::ZERO) };
        let account = self.account_id();
        let own = format!("{run}.");
        let mut lost = Money::ZERO;
        for held in self.engine.store.reservations(&account)? {
            if !held.id.as_str().starts_with(&own) || held.child.is_some() {
                continue;
            }
            let account = account.clone();
            let reservation = held.id;
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

    /// Commits a batch; if it ends the chain, it closes the chain's account as well, as far as the children allow.
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
                    // An account of the tree was closed meanwhile, and need not be stopped any more.
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
            // If it can't be computed it can't be closed; the store returns the reason, if the batch itself is wrong.
            let Ok(closing) = closing else { break };
            set_postings(&mut batch, closing);
            match store.commit(batch.clone()) {
                Err(error) if book::is_overtaken(&error) => {}
                answer => return answer,
            }
        }
        // A run can always end; an account that could not be closed stays open, and is closed with the end of the next run.
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

    /// Whether these events end the chain.
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
