//! Leases between machines: a row has owner and epoch, sealed, and the owner's row says by the database's clock whether the owner is alive.
//!
//! An owner renews one row for all its leases. One that was paused beyond its time may be taken over; then the epoch has risen, and what it
//! commits is refused. Epochs are part of every checkpoint.

use std::time::Duration;

use selvedge_model::{OwnerId, ThreadId};
use selvedge_store::lease::{LeaseAnswer, LeaseBackend};
use selvedge_store::{Error, Lease, Result};

use crate::core::{Core, KnownThread};
use crate::error::Failure;
use crate::pulse::Told;
use crate::rows::{self, Row};

/// Whether pending requests keep a lease from being released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingRequests {
    Refuse,
    Ignore,
}

/// What came of setting a lease.
enum Set {
    Done(Box<Row>),
    /// The row changed since it was read.
    Stale,
    /// So many requests wait.
    Pending(usize),
}

impl LeaseBackend for Core {
    fn try_acquire(&self, thread: &ThreadId, take_over: bool) -> Result<LeaseAnswer> {
        loop {
            let row = self.existing(thread)?;
            match &row.owner {
                Some(holder) if !take_over && row.is_alive => return Ok(LeaseAnswer::HeldBy(holder.clone())),
                _ => {}
            }
            self.pulse.register(self)?;
            let taken_from = row.owner.clone();
            if let Set::Done(row) =
                self.set_lease(&row, Some(self.owner.clone()), row.epoch + 1, PendingRequests::Ignore)?
            {
                let (thread, owner, epoch) = (thread.clone(), self.owner.clone(), row.epoch);
                self.remember_row(*row);
                return Ok(LeaseAnswer::Granted(Lease { thread, owner, epoch, taken_from }));
            }
        }
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<(OwnerId, u64)>> {
        let row = self.existing(thread)?;
        Ok(row.owner.map(|owner| (owner, row.epoch)))
    }

    fn leases_freed(&self) -> u64 {
        self.watch.leases_freed()
    }

    fn wait_for_lease(&self, freed: u64, timeout: Duration) -> Result<()> {
        self.watch.wait(&self.pool, timeout, || Ok(self.watch.leases_freed() > freed))
    }
}

impl Core {
    fn set_lease(&self, seen: &Row, owner: Option<OwnerId>, epoch: u64, pending: PendingRequests) -> Result<Set> {
        let signing = self.signing()?;
        let row = Row { is_alive: owner.is_some(), owner, epoch, ..seen.clone() }.sealed(&signing.rows);
        let sql = "SELECT set_lease($1, $2, $3, $4, $5, $6, $7)";
        let values = (row.root.as_str(), row.thread().as_str(), row.owner.as_ref().map(OwnerId::as_str));
        let epoch = rows::signed(epoch);
        let refuses = pending == PendingRequests::Refuse;
        let answer = self.pool.get().and_then(|mut connection| {
            connection.first(sql, &[&values.0, &values.1, &seen.mark, &values.2, &epoch, &row.mark, &refuses])
        });
        match answer.map(|answer| answer.and_then(|answer| answer.get::<_, Option<i64>>(0))) {
            Ok(Some(0)) => Ok(Set::Done(Box::new(row))),
            Ok(Some(count)) => Ok(Set::Pending(usize::try_from(count).unwrap_or(usize::MAX))),
            Ok(None) => Ok(Set::Stale),
            // The seal covers owner, epoch and head: if it is there, this is what was written.
            Err(Failure::Lost(_)) => match self.find(row.thread())? {
                Some(now) if now.mark == row.mark => Ok(Set::Done(Box::new(row))),
                _ => Ok(Set::Stale),
            },
            Err(failure) if failure.is_in_the_way() => Ok(Set::Stale),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Replaces what is remembered of a thread after its lease changed, if its log did not.
    fn remember_row(&self, row: Row) {
        let mut memory = self.memory();
        match memory.thread(row.thread()).filter(|known| known.row.head == row.head) {
            Some(known) => memory.remember(KnownThread { row, tail: known.tail.clone(), state: known.state.clone() }),
            None => memory.forget(row.thread()),
        }
    }

    pub(crate) fn renew(&self, lease: &Lease) -> Result<()> {
        let row = self.existing(&lease.thread)?;
        if row.epoch != lease.epoch || row.owner.as_ref() != Some(&lease.owner) {
            return Err(Error::StaleEpoch { thread: lease.thread.clone(), held: lease.epoch, current: row.epoch });
        }
        Ok(())
    }

    pub(crate) fn release(&self, lease: &Lease, pending: PendingRequests) -> Result<()> {
        // If the thread was deleted or its lease taken over, there is nothing to release.
        while let Some(row) = self.find(&lease.thread)? {
            if row.epoch != lease.epoch || row.owner.as_ref() != Some(&lease.owner) {
                self.memory().forget(&lease.thread);
                break;
            }
            match self.set_lease(&row, None, row.epoch, pending)? {
                Set::Done(row) => {
                    self.remember_row(*row);
                    break;
                }
                Set::Stale => {}
                Set::Pending(count) => return Err(Error::RequestsPending { thread: lease.thread.clone(), count }),
            }
        }
        self.lease_queue.end_turn(lease);
        self.watch.free();
        self.pulse.tell(Told { leases: true, ..Told::default() });
        Ok(())
    }

    /// Releases every lease of this owner, whatever waits.
    pub(crate) fn release_all(&self) -> Result<()> {
        let sql = "SELECT thread FROM threads WHERE owner = $1";
        let held = self.read(|connection| Ok(connection.query(sql, &[&self.owner.as_str()])?))?;
        for row in held {
            let thread = rows::id(row.get(0))?;
            let Some(row) = self.find(&thread)? else { continue };
            if row.owner.as_ref() == Some(&self.owner) {
                let lease = Lease { thread, owner: self.owner.clone(), epoch: row.epoch, taken_from: None };
                self.release(&lease, PendingRequests::Ignore)?;
            }
        }
        Ok(())
    }

    pub(crate) fn is_alive(&self, owner: &OwnerId) -> Result<bool> {
        let answer = self.read(|connection| Ok(connection.first("SELECT is_alive($1)", &[&owner.as_str()])?))?;
        Ok(answer.is_some_and(|row| row.get(0)))
    }

    pub(crate) fn dead_leases(&self) -> Result<Vec<Lease>> {
        let sql = format!(
            "SELECT {} FROM threads AS t WHERE t.owner IS NOT NULL AND NOT is_alive(t.owner) ORDER BY t.number",
            rows::COLUMNS
        );
        let found = self.read(|connection| Ok(connection.query(&sql, &[])?))?;
        let mut dead = Vec::new();
        for row in found {
            let Row { owner, epoch, manifest, .. } = Row::read(&row, self.seals())?;
            let thread = manifest.thread_id;
            dead.extend(owner.map(|owner| Lease { thread, owner, epoch, taken_from: None }));
        }
        Ok(dead)
    }
}
