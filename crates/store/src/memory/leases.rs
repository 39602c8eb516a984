//! Who may write, and what those ask for who may not.

use selvedge_model::{Note, OwnerId, ThreadId};

use super::{MemoryStore, Slot};
use crate::contract::{Acquire, Alive, Lease, Leases, Notes};
use crate::error::{Error, Result};
use crate::lease::{Answer, Backend};

impl Backend for MemoryStore {
    fn ask(&self, thread: &ThreadId, take_over: bool) -> Result<Answer> {
        let mut inner = self.inner();
        if let Some(holder) = inner.live_holder(inner.slot(thread)?).filter(|_| !take_over) {
            return Ok(Answer::HeldBy(holder));
        }
        let missing = inner.missing(thread);
        let slot = inner.threads.get_mut(thread).ok_or(missing)?;
        slot.epoch += 1;
        slot.holder = Some(self.owner.clone());
        Ok(Answer::Granted(Lease { thread: thread.clone(), owner: self.owner.clone(), epoch: slot.epoch }))
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<(OwnerId, u64)>> {
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        Ok(slot.holder.clone().map(|holder| (holder, slot.epoch)))
    }
}

impl Leases for MemoryStore {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.desk.acquire(thread, how, &self.owner, self)
    }

    fn renew(&self, lease: &Lease) -> Result<()> {
        let inner = self.inner();
        let slot = inner.slot(&lease.thread)?;
        match slot.epoch == lease.epoch && slot.holder.as_ref() == Some(&lease.owner) {
            true => Ok(()),
            false => Err(Error::StaleEpoch { thread: lease.thread.clone(), held: lease.epoch, current: slot.epoch }),
        }
    }

    fn keep_alive(&self, lease: &Lease, alive: Alive) -> Result<()> {
        self.renew(lease)?;
        if let Some(slot) = self.inner().threads.get_mut(&lease.thread) {
            slot.alive = Some(alive);
        }
        Ok(())
    }

    fn last_alive(&self, thread: &ThreadId) -> Result<Option<Alive>> {
        Ok(self.inner().slot(thread)?.alive)
    }

    fn release(&self, lease: &Lease) -> Result<()> {
        let inner = self.inner();
        let stands = |slot: &Slot| slot.epoch == lease.epoch && slot.holder.as_ref() == Some(&lease.owner);
        let waits = |note: &&Note| note.thread == lease.thread && note.kind == "send";
        let count = inner.notes.iter().filter(waits).count();
        if count > 0 && inner.threads.get(&lease.thread).is_some_and(stands) {
            return Err(Error::NotesPending { thread: lease.thread.clone(), count });
        }
        drop(inner);
        self.abandon(lease)
    }

    fn abandon(&self, lease: &Lease) -> Result<()> {
        let mut inner = self.inner();
        // A thread that was deleted or taken over has nothing to give back.
        let stands = |slot: &&mut Slot| slot.epoch == lease.epoch && slot.holder.as_ref() == Some(&lease.owner);
        if let Some(slot) = inner.threads.get_mut(&lease.thread).filter(stands) {
            slot.holder = None;
        }
        drop(inner);
        self.desk.leave(lease);
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
            Some(Lease { thread: thread.clone(), owner, epoch: slot.epoch })
        });
        Ok(dead.collect())
    }
}

impl Notes for MemoryStore {
    fn post(&self, note: Note) -> Result<()> {
        self.inner().post(note)?;
        self.shared.committed.notify_all();
        Ok(())
    }

    fn pending(&self, thread: &ThreadId) -> Result<Vec<Note>> {
        let inner = self.inner();
        inner.slot(thread)?;
        Ok(inner.notes.iter().filter(|note| note.thread == *thread).cloned().collect())
    }
}
