//! Leases and inboxes.

use std::time::Duration;

use selvedge_model::{OwnerId, Posted, RequestId, ThreadId, Timestamp};

use super::{MemoryStore, Slot};
use crate::contract::{Acquire, Delivery, Feed, Inbox, Lease, Leases, PostedNotice, QueuedRequest};
use crate::error::{Error, Result};
use crate::lease::{LeaseAnswer, LeaseBackend};

impl LeaseBackend for MemoryStore {
    fn try_acquire(&self, thread: &ThreadId, take_over: bool) -> Result<LeaseAnswer> {
        let mut inner = self.inner();
        if let Some(holder) = inner.live_holder(inner.slot(thread)?).filter(|_| !take_over) {
            return Ok(LeaseAnswer::HeldBy(holder));
        }
        let missing = inner.missing(thread);
        let slot = inner.threads.get_mut(thread).ok_or(missing)?;
        slot.epoch += 1;
        let taken_from = slot.holder.replace(self.owner.clone());
        let thread = thread.clone();
        let owner = self.owner.clone();
        let epoch = slot.epoch;
        Ok(LeaseAnswer::Granted(Lease { thread, owner, epoch, taken_from }))
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<(OwnerId, u64)>> {
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        Ok(slot.holder.clone().map(|holder| (holder, slot.epoch)))
    }

    fn leases_freed(&self) -> u64 {
        Feed::leases_freed(self)
    }

    fn wait_for_lease(&self, freed: u64, timeout: Duration) -> Result<()> {
        Feed::wait_for_lease(self, freed, timeout)
    }
}

impl Leases for MemoryStore {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.lease_queue.acquire(thread, how, &self.owner, self)
    }

    fn renew(&self, lease: &Lease) -> Result<()> {
        let inner = self.inner();
        let slot = inner.slot(&lease.thread)?;
        if slot.epoch != lease.epoch || slot.holder.as_ref() != Some(&lease.owner) {
            return Err(Error::StaleEpoch { thread: lease.thread.clone(), held: lease.epoch, current: slot.epoch });
        }
        Ok(())
    }

    fn owner(&self) -> &OwnerId {
        &self.owner
    }

    fn beat(&self, at: Timestamp) -> Result<()> {
        self.inner().beats.insert(self.owner.clone(), at);
        Ok(())
    }

    fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>> {
        Ok(self.inner().beats.get(owner).copied())
    }

    fn release(&self, lease: &Lease) -> Result<()> {
        let inner = self.inner();
        let stands = |slot: &Slot| slot.epoch == lease.epoch && slot.holder.as_ref() == Some(&lease.owner);
        let waits = |(_, posted): &&(u64, Posted)| posted.thread == lease.thread && posted.request.kind().holds_lease();
        let count = inner.requests.iter().filter(waits).count();
        if count > 0 && inner.threads.get(&lease.thread).is_some_and(stands) {
            return Err(Error::RequestsPending { thread: lease.thread.clone(), count });
        }
        drop(inner);
        self.abandon(lease)
    }

    fn abandon(&self, lease: &Lease) -> Result<()> {
        let mut inner = self.inner();
        // The thread was deleted or its lease taken over: nothing to release.
        let stands = |slot: &&mut Slot| slot.epoch == lease.epoch && slot.holder.as_ref() == Some(&lease.owner);
        if let Some(slot) = inner.threads.get_mut(&lease.thread).filter(stands) {
            slot.holder = None;
        }
        inner.leases_freed += 1;
        drop(inner);
        self.lease_queue.end_turn(lease);
        self.shared.committed.notify_all();
        Ok(())
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        let inner = self.inner();
        Ok(inner.live_holder(inner.slot(thread)?))
    }

    fn expired(&self) -> Result<Vec<Lease>> {
        let inner = self.inner();
        let dead = inner.threads.iter().filter_map(|(thread, slot)| {
            let owner = slot.holder.clone().filter(|holder| !inner.alive.contains(holder))?;
            Some(Lease { thread: thread.clone(), owner, epoch: slot.epoch, taken_from: None })
        });
        Ok(dead.collect())
    }
}

impl Inbox for MemoryStore {
    fn post(&self, posted: Posted) -> Result<Delivery> {
        let left = self.inner().post(posted)?;
        self.shared.committed.notify_all();
        Ok(left)
    }

    fn pending(&self, thread: &ThreadId) -> Result<Vec<QueuedRequest>> {
        let inner = self.inner();
        inner.slot(thread)?;
        let waits = inner.requests.iter().map(|(_, posted)| posted).filter(|posted| posted.thread == *thread);
        // Only this process can write here.
        Ok(waits.map(|posted| QueuedRequest { posted: posted.clone(), is_sealed: true }).collect())
    }

    fn answered(&self, thread: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>> {
        self.inner().answered(thread, id)
    }

    fn newest(&self) -> Result<u64> {
        Ok(self.inner().requests_posted)
    }

    fn arrivals(&self, after: u64, limit: usize) -> Result<Vec<PostedNotice>> {
        let inner = self.inner();
        let later = inner.requests.iter().filter(|(number, _)| *number > after).take(limit);
        Ok(later.map(|(number, posted)| PostedNotice { number: *number, thread: posted.thread.clone() }).collect())
    }
}
