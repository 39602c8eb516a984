//! What a parent account and its child account must agree on after a batch.
//!
//! The money of a child account is a reservation on its parent's. The two are different accounts with separate versions, and a writer
//! decides by the versions that it read. Another writer may have been faster. So that no reservation is left open or ended too early, a
//! store checks every child account that a batch closed, reopened or reserved money for. A batch that fails the check was decided on
//! outdated data; its writer reads again and decides anew.

use super::{Account, AccountStatus};
use crate::money::Money;

/// A child account before and after a batch, with its parent's side.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The child account before the batch.
    pub before: Option<&'a Account>,
    /// The child account afterwards.
    pub after: &'a Account,
    /// Whether its parent holds a reservation for it afterwards.
    pub is_held: bool,
    /// What the batch charged the parent for the child.
    pub charged: Money,
    /// What the batch returned to the parent of earlier charges.
    pub returned: Money,
}

impl Pair<'_> {
    /// Whether both sides agree: the parent holds money for the child exactly while the child is not closed, and has been charged
    /// exactly what a closed child has spent.
    pub fn fits(&self) -> bool {
        let is_closed = self.after.status == AccountStatus::Closed;
        let owed = |account: &Account| match account.status {
            AccountStatus::Closed => account.spent(),
            AccountStatus::Active | AccountStatus::Closing => Money::ZERO,
        };
        let before = self.before.map_or(Money::ZERO, owed).checked_add(self.charged);
        let after = owed(self.after).checked_add(self.returned);
        self.is_held != is_closed && before.is_some() && before == after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ThreadId;

    fn nanos(nanos: i64) -> Money {
        Money::from_nanos(nanos).unwrap()
    }

    fn child(status: AccountStatus, spent: i64) -> Account {
        Account {
            id: ThreadId::new("child").unwrap(),
            parent: Some(ThreadId::new("parent").unwrap()),
            max: Some(nanos(100)),
            settled: nanos(spent),
            settled_children: Money::ZERO,
            reserved: Money::ZERO,
            open: 0,
            status,
            version: 3,
            incomplete: false,
        }
    }

    #[test]
    fn a_child_closes_with_its_reservation_and_at_what_it_spent() {
        use AccountStatus::{Active, Closed};
        let active = child(Active, 7);
        let closed = child(Closed, 7);
        let pair = |is_held, charged| Pair {
            before: Some(&active),
            after: &closed,
            is_held,
            charged: nanos(charged),
            returned: Money::ZERO,
        };
        assert!(pair(false, 7).fits());
        assert!(!pair(true, 0).fits(), "the reservation would stay open");
        assert!(!pair(false, 6).fits() && !pair(false, 8).fits() && !pair(false, 0).fits());
        let early = Pair { after: &active, ..pair(false, 7) };
        assert!(!early.fits(), "an active child would have no reservation");
        let again =
            Pair { before: Some(&closed), after: &active, is_held: true, charged: nanos(0), returned: nanos(7) };
        assert!(again.fits());
        assert!(!Pair { returned: nanos(0), ..again }.fits(), "the child's spending would be charged twice");
    }
}
