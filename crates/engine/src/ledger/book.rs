//! Computes postings from the accounts of a store.
//!
//! A book reads accounts as it needs them and applies each posting by the rules that the store will apply, so that the next one builds on
//! it. It changes nothing: the postings go into a batch, and if another commit was faster the store refuses it, and they are recomputed.

use std::collections::BTreeMap;

use selvedge_model::account::{
    Account, AccountId, AccountStatus, Posting, PostingError, Reservation, ReservationState, post,
};
use selvedge_model::id::ReservationId;
use selvedge_model::{Ids, Money};
use selvedge_store::{Error, Ledger, Result};

/// The most levels of a tree of accounts; more are a circle.
const DEPTH_MAX: usize = 1000;

/// How much is reserved again for an account that was closed.
#[derive(Clone, Copy, Debug)]
enum ReserveAmount {
    /// All that it may spend.
    Whole,
    /// What it has spent.
    Spent,
}

/// Postings that are being computed.
pub struct Book<'s> {
    ledger: &'s dyn Ledger,
    ids: &'s dyn Ids,
    accounts: BTreeMap<AccountId, Account>,
    /// The reservations of the accounts that were read.
    reservations: BTreeMap<AccountId, BTreeMap<ReservationId, Reservation>>,
    postings: Vec<Posting>,
}

impl<'s> Book<'s> {
    /// An empty list of postings, over the accounts of a store.
    pub fn over(ledger: &'s dyn Ledger, ids: &'s dyn Ids) -> Self {
        Self { ledger, ids, accounts: BTreeMap::new(), reservations: BTreeMap::new(), postings: Vec::new() }
    }

    /// The postings, in order.
    pub fn into_postings(self) -> Vec<Posting> {
        self.postings
    }

    /// The postings since the last call, in order.
    pub fn take_postings(&mut self) -> Vec<Posting> {
        std::mem::take(&mut self.postings)
    }

    /// An account after the postings so far.
    pub fn account(&mut self, id: &AccountId) -> Result<Option<Account>> {
        if let Some(known) = self.accounts.get(id) {
            return Ok(Some(known.clone()));
        }
        let found = self.ledger.account(id)?;
        self.accounts.extend(found.clone().map(|account| (id.clone(), account)));
        Ok(found)
    }

    /// Adds a posting; refused if the store would refuse it.
    pub fn post(&mut self, posting: Posting) -> Result<()> {
        let account = self.account(posting.account())?;
        let known = match posting.reservation() {
            Some(name) => self.held(posting.account())?.get(name).cloned(),
            None => None,
        };
        let posted = post(account.as_ref(), known.as_ref(), &posting)?;
        if let Some(name) = posting.reservation() {
            let held = self.held(posting.account())?;
            match posted.reservation {
                Some(reservation) => held.insert(name.clone(), reservation),
                None => held.remove(name),
            };
        }
        self.accounts.insert(posted.account.id.clone(), posted.account);
        self.postings.push(posting);
        Ok(())
    }

    /// Makes sure that an account takes reservations of its chain: opens it with `max` if there is none, and reopens it if it is closed. A
    /// child account that was closed reserves from its parent again, or this is refused.
    pub fn ensure(&mut self, id: &AccountId, max: Option<Money>) -> Result<()> {
        match self.account(id)?.map(|account| account.status) {
            None => self.post(Posting::Open { account: id.clone(), parent: None, max }),
            Some(AccountStatus::Active) => Ok(()),
            Some(AccountStatus::Closing) => self.post(Posting::Reopen { account: id.clone() }),
            Some(AccountStatus::Closed) => {
                self.reserve_again(id, ReserveAmount::Whole)?;
                self.post(Posting::Reopen { account: id.clone() })
            }
        }
    }

    /// Opens a child account with this much of its parent's money; without limit, if its parent has none either. The parent's account must
    /// take reservations, see [`Book::ensure`].
    pub fn spawn(&mut self, parent: &AccountId, child: &AccountId, max: Option<Money>) -> Result<()> {
        self.reserve_for(parent, child, max.unwrap_or_default())?;
        self.post(Posting::Open { account: child.clone(), parent: Some(parent.clone()), max })
    }

    /// Reserves part of an account for a child account.
    pub fn reserve_for(&mut self, parent: &AccountId, child: &AccountId, amount: Money) -> Result<()> {
        let reservation = self.name()?;
        let child = Some(child.clone());
        self.post(Posting::Reserve { account: parent.clone(), reservation, amount, child })
    }

    /// Raises the limit of an account to `max`. A child account reserves the difference from its parent, or this is refused; an account
    /// without limit, or with a higher one, is unchanged.
    pub fn raise(&mut self, id: &AccountId, max: Money) -> Result<()> {
        let Some(account) = self.account(id)?.filter(|account| account.max.is_some_and(|now| now < max)) else {
            return Ok(());
        };
        if let Some(parent) = &account.parent {
            let covered =
                self.held_for(parent, id)?.iter().fold(Money::ZERO, |sum, held| sum.saturating_add(held.amount));
            let missing = max.saturating_sub(covered);
            if !missing.is_zero() {
                self.reserve_for(parent, id, missing)?;
            }
        }
        self.post(Posting::Raise { account: id.clone(), max })
    }

    /// Closes the account of a chain that ended: at once if nothing is reserved, otherwise when the last of its children ends. A child account
    /// that is closed settles its reservation on its parent's account; if the parent's waited only for that, it is closed, too, and so on.
    /// Does nothing if there is no such account, or if it was closed before.
    pub fn close(&mut self, id: &AccountId) -> Result<()> {
        match self.account(id)?.map(|account| account.status) {
            Some(AccountStatus::Active) => {
                self.post(Posting::Close { account: id.clone() })?;
                self.charge_parent(id)
            }
            _ => Ok(()),
        }
    }

    /// Corrects the cost of a call whose answer was lost. If the account is closed, its parent was charged what it had spent; the excess is
    /// returned there, and so on up the tree.
    pub fn correct(&mut self, id: &AccountId, lost: ReservationId, amount: Money, evidence: String) -> Result<()> {
        let is_charged = self.account(id)?.is_some_and(|account| account.status == AccountStatus::Closed);
        if is_charged {
            self.reserve_again(id, ReserveAmount::Spent)?;
        }
        self.post(Posting::Correct { account: id.clone(), reservation: lost, amount, evidence })?;
        if is_charged { self.charge_parent(id) } else { Ok(()) }
    }

    /// Stops all reservations by an account, by those its money comes from, and by all below those. For when a provider charged more than was
    /// reserved, so that the limit of the tree can't be guaranteed. A tree without a limit is unchanged.
    pub fn stop_tree(&mut self, id: &AccountId) -> Result<()> {
        let root = self.root(id)?;
        if self.account(&root)?.is_none_or(|account| account.max.is_none()) {
            return Ok(());
        }
        for found in self.ledger.tree(&root)? {
            let now = self.account(&found.id)?.unwrap_or(found);
            if now.status != AccountStatus::Closed && now.max.is_none_or(|max| max > now.spent()) {
                self.post(Posting::Stop { account: now.id })?;
            }
        }
        Ok(())
    }

    /// The account at the top of an account's tree. A circle of parents ends it.
    pub fn root(&mut self, id: &AccountId) -> Result<AccountId> {
        let mut root = id.clone();
        let mut passed = Vec::new();
        while let Some(parent) = self.account(&root)?.and_then(|account| account.parent) {
            if self.account(&parent)?.is_none() || passed.contains(&parent) {
                break;
            }
            passed.push(std::mem::replace(&mut root, parent));
        }
        Ok(root)
    }

    /// If a child account is closed: ends its reservations on its parent's account, at what it has spent in all.
    fn charge_parent(&mut self, id: &AccountId) -> Result<()> {
        let Some(account) = self.account(id)?.filter(|account| account.status == AccountStatus::Closed) else {
            return Ok(());
        };
        let Some(parent) = account.parent.clone() else { return Ok(()) };
        let held = self.held_for(&parent, id)?;
        let mut left = account.spent();
        for (index, reservation) in held.iter().enumerate() {
            // The last one is charged what none of them holds.
            let amount = if index + 1 == held.len() { left } else { left.min(reservation.amount) };
            left = left.saturating_sub(amount);
            let account = parent.clone();
            let reservation = reservation.id.clone();
            self.post(if amount.is_zero() {
                Posting::Release { account, reservation }
            } else {
                Posting::Settle { account, reservation, amount, unknown: false }
            })?;
        }
        if held.is_empty() { Ok(()) } else { self.charge_parent(&parent) }
    }

    /// Makes the parent of a closed account reserve money for it again, and the parent's parent for that one if it was closed, too.
    fn reserve_again(&mut self, id: &AccountId, again: ReserveAmount) -> Result<()> {
        self.reserve_again_below(id, again, DEPTH_MAX)
    }

    fn reserve_again_below(&mut self, id: &AccountId, again: ReserveAmount, depth: usize) -> Result<()> {
        // A circle of parents has no money to give.
        let depth = depth.checked_sub(1).ok_or(Error::BadBatch)?;
        let Some(account) = self.account(id)? else { return Ok(()) };
        let Some(parent) = account.parent.clone() else { return Ok(()) };
        let Some(above) = self.account(&parent)? else { return Ok(()) };
        if above.status == AccountStatus::Closed {
            self.reserve_again_below(&parent, again, depth)?;
        }
        let returned = account.spent();
        let amount = match again {
            ReserveAmount::Whole => account.max.unwrap_or(returned).max(returned),
            ReserveAmount::Spent => returned,
        };
        let reservation = self.name()?;
        self.post(Posting::ReserveAgain { account: parent, reservation, amount, child: id.clone(), returned })
    }

    /// The reservations of an account for a child.
    fn held_for(&mut self, parent: &AccountId, child: &AccountId) -> Result<Vec<Reservation>> {
        let is_for =
            |held: &&Reservation| held.child.as_ref() == Some(child) && held.state != ReservationState::Unknown;
        Ok(self.held(parent)?.values().filter(is_for).cloned().collect())
    }

    fn held(&mut self, account: &AccountId) -> Result<&mut BTreeMap<ReservationId, Reservation>> {
        if !self.reservations.contains_key(account) {
            let found = self.ledger.reservations(account)?;
            let found = found.into_iter().map(|reservation| (reservation.id.clone(), reservation)).collect();
            self.reservations.insert(account.clone(), found);
        }
        self.reservations.get_mut(account).ok_or(Error::BadBatch)
    }

    fn name(&self) -> Result<ReservationId> {
        // Thirty-two hex characters are a valid id.
        ReservationId::new(self.ids.hex32()).map_err(|_| Error::BadBatch)
    }
}

/// The topmost account above an account that has no money left: until it is raised, no raise below it can be paid.
pub fn short_above(ledger: &dyn Ledger, id: &AccountId) -> Result<Option<AccountId>> {
    let mut short = None;
    let mut at = ledger.account(id)?;
    for _ in 0..DEPTH_MAX {
        let Some(parent) = at.and_then(|account| account.parent) else { break };
        at = ledger.account(&parent)?;
        if at.as_ref().is_some_and(|account| account.remaining() == Some(Money::ZERO)) {
            short = Some(parent);
        }
    }
    Ok(short)
}

/// Whether a batch was refused because its postings were computed from outdated accounts.
pub(crate) fn is_overtaken(error: &Error) -> bool {
    matches!(error, Error::AccountBusy(_))
        || matches!(error, Error::Posting(refused) if !matches!(refused, PostingError::Insufficient { .. }))
}
