//! Applies the postings of a batch to accounts, before anything is durable.
//!
//! Each posting builds on the ones before it, over all parts of the batch. In the end parent and child must agree on every child account
//! that was closed, reopened, corrected or had a reservation ended; if they don't, the batch was decided on outdated data, and the caller
//! decides again.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_model::account::pairs::Pair;
use selvedge_model::account::{self, Account, AccountId, AccountStatus, Posting, Reservation, ReservationState};
use selvedge_model::{Event, Money};

use crate::error::{Error, Result};
use crate::prepare::{PreparedAccount, View};

/// The accounts that a batch changes.
pub(crate) struct BatchAccounts<'v> {
    view: &'v dyn View,
    accounts: BTreeMap<AccountId, PreparedAccount>,
    /// The amounts that parents were charged for child accounts and got back, by child.
    charges: BTreeMap<AccountId, (Money, Money)>,
    /// Accounts whose status changed, or whose spending was corrected.
    moved: BTreeSet<AccountId>,
}

impl<'v> BatchAccounts<'v> {
    pub(crate) fn new(view: &'v dyn View) -> Self {
        Self { view, accounts: BTreeMap::new(), charges: BTreeMap::new(), moved: BTreeSet::new() }
    }

    /// Applies postings in order and returns the events that record them.
    pub(crate) fn post(&mut self, postings: Vec<Posting>) -> Result<Vec<Event>> {
        postings.into_iter().map(|posting| self.post_one(&posting)).collect()
    }

    fn post_one(&mut self, posting: &Posting) -> Result<Event> {
        let id = posting.account().clone();
        if !self.accounts.contains_key(&id) {
            let account = self.view.account(&id)?;
            let before = account.as_ref().map(|account| account.version);
            let fresh = PreparedAccount { before, after: account, reservations: BTreeMap::new() };
            self.accounts.insert(id.clone(), fresh);
        }
        let Some(entry) = self.accounts.get_mut(&id) else { return Err(Error::BadBatch) };
        let reservation = match posting.reservation() {
            Some(name) => match entry.reservations.get(name) {
                Some(known) => known.clone(),
                None => self.view.reservation(&id, name)?,
            },
            None => None,
        };
        let posted = account::post(entry.after.as_ref(), reservation.as_ref(), posting)?;
        let was = entry.after.as_ref().map(|account| account.status);
        let is_correction = matches!(posting, Posting::Correct { .. });
        if is_correction || was.is_some_and(|was| was != posted.account.status) {
            self.moved.insert(id.clone());
        }
        if let Some(name) = posting.reservation() {
            entry.reservations.insert(name.clone(), posted.reservation);
        }
        entry.after = Some(posted.account);
        self.charge(posting, reservation.as_ref());
        Ok(posting.event(posted.record))
    }

    /// Adds up what a posting charges a parent, or returns to it, for its child.
    fn charge(&mut self, posting: &Posting, held: Option<&Reservation>) {
        let held_for = || held.and_then(|held| held.child.clone());
        let (child, charged, returned) = match posting {
            Posting::Settle { amount, .. } => (held_for(), *amount, Money::ZERO),
            Posting::Release { .. } => (held_for(), Money::ZERO, Money::ZERO),
            Posting::ReserveAgain { child, returned, .. } => (Some(child.clone()), Money::ZERO, *returned),
            _ => return,
        };
        let Some(child) = child else { return };
        let sums = self.charges.entry(child).or_default();
        *sums = (sums.0.saturating_add(charged), sums.1.saturating_add(returned));
    }

    /// The accounts after the batch, if parent and child agree on every child account.
    pub(crate) fn close(self) -> Result<BTreeMap<AccountId, PreparedAccount>> {
        let touched: BTreeSet<_> = self.moved.iter().chain(self.charges.keys()).collect();
        for child in touched {
            self.agree(child)?;
        }
        Ok(self.accounts)
    }

    fn agree(&self, child: &AccountId) -> Result<()> {
        let before = self.view.account(child)?;
        let after = match self.accounts.get(child) {
            Some(entry) => entry.after.clone(),
            None => before.clone(),
        };
        // An amount may be reserved for an account that is never opened, and released.
        let Some(after) = after else { return Ok(()) };
        let Some(parent) = after.parent.clone() else { return Ok(()) };
        if self.now(&parent)?.is_none() {
            return Ok(());
        }
        let (charged, returned) = self.charges.get(child).copied().unwrap_or_default();
        let is_held = self.holds(&parent, child)?;
        let pair = Pair { before: before.as_ref(), after: &after, is_held, charged, returned };
        if !pair.fits() {
            let busy = if after.status == AccountStatus::Closed { parent } else { after.id };
            return Err(Error::AccountBusy(busy));
        }
        Ok(())
    }

    fn now(&self, account: &AccountId) -> Result<Option<Account>> {
        match self.accounts.get(account) {
            Some(entry) => Ok(entry.after.clone()),
            None => self.view.account(account),
        }
    }

    /// Whether an account has an amount reserved for a child after the batch.
    fn holds(&self, parent: &AccountId, child: &AccountId) -> Result<bool> {
        let is_for = |held: &Reservation| held.child.as_ref() == Some(child) && held.state != ReservationState::Unknown;
        let changed = self.accounts.get(parent).map(|entry| &entry.reservations);
        if changed.is_some_and(|changed| changed.values().flatten().any(is_for)) {
            return Ok(true);
        }
        let is_changed = |held: &Reservation| changed.is_some_and(|changed| changed.contains_key(&held.id));
        Ok(self.view.reservations(parent)?.iter().any(|held| is_for(held) && !is_changed(held)))
    }
}
