//! The data, under one lock, and how a commit changes it.

use std::collections::HashMap;
use std::sync::Arc;

use selvedge_log::Head;
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::fold::empty_state;
use selvedge_model::id::ReservationId;
use selvedge_model::{Digest, MessageId, OwnerId, Posted, RequestId, Right, Run, RunId, Status, ThreadId};
use serde_json::Value;

use super::snapshots::ThreadSnapshots;
use super::{Inner, Slot};
use crate::contract::{Committed, Delivery, FeedEntry, Summary};
use crate::error::{Error, Result};
use crate::prepare::{CurrentThread, Prepared, View};

impl Inner {
    pub(super) fn slot(&self, thread: &ThreadId) -> Result<&Slot> {
        self.threads.get(thread).ok_or_else(|| self.missing(thread))
    }

    pub(super) fn slot_mut(&mut self, thread: &ThreadId) -> Result<&mut Slot> {
        let missing = self.missing(thread);
        self.threads.get_mut(thread).ok_or(missing)
    }

    pub(super) fn missing(&self, thread: &ThreadId) -> Error {
        if self.tombstones.contains_key(thread) {
            Error::Deleted(thread.clone())
        } else {
            Error::NoThread(thread.to_string())
        }
    }

    /// The holder of the slot, if it is alive.
    pub(super) fn live_holder(&self, slot: &Slot) -> Option<OwnerId> {
        slot.holder.clone().filter(|holder| self.alive.contains(holder))
    }

    pub(super) fn pending(&self, thread: &ThreadId, id: &RequestId) -> Option<&Posted> {
        self.requests.iter().map(|(_, posted)| posted).find(|posted| posted.thread == *thread && posted.id == *id)
    }

    /// The last thread of a thread's chain, as far as it is in this store.
    fn tail(&self, thread: &ThreadId) -> Result<ThreadId> {
        let mut at = self.slot(thread)?;
        let mut seen = vec![thread.clone()];
        while let Some(next) = next(at).filter(|next| !seen.contains(next)) {
            let Some(slot) = self.threads.get(next) else { break };
            seen.push(next.clone());
            at = slot;
        }
        Ok(at.manifest.thread_id.clone())
    }

    pub(super) fn post(&mut self, posted: Posted) -> Result<Delivery> {
        let thread = self.tail(&posted.thread)?;
        if let Some((thread, version)) = self.answered(&thread, &posted.id)? {
            return Ok(Delivery { thread, answered: Some(version) });
        }
        let posted = Posted { thread: thread.clone(), ..posted };
        match self.pending(&thread, &posted.id) {
            Some(known) if known.request == posted.request => {}
            Some(_) => return Err(Error::RequestReused { thread, id: posted.id }),
            None => self.put(posted),
        }
        Ok(Delivery { thread, answered: None })
    }

    fn put(&mut self, posted: Posted) {
        self.requests_posted += 1;
        self.requests.push((self.requests_posted, posted));
    }

    pub(super) fn answered(&self, thread: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>> {
        let root = self.slot(thread)?.manifest.chain_root_id.clone();
        Ok(self.answers.get(&(root, id.clone())).cloned())
    }

    pub(super) fn check_requests(&self, prepared: &Prepared) -> Result<()> {
        for (thread, id) in &prepared.consumed {
            self.pending(thread, id).ok_or_else(|| Error::RequestGone { thread: thread.clone(), id: id.clone() })?;
        }
        for posted in &prepared.posted {
            let is_created = prepared.parts.iter().any(|part| part.thread == posted.thread);
            let thread = if is_created { posted.thread.clone() } else { self.tail(&posted.thread)? };
            let is_same = |other: &&Posted| other.thread == posted.thread && other.id == posted.id;
            let known = self.pending(&thread, &posted.id).or(prepared.posted.iter().find(is_same));
            if known.is_some_and(|known| known.request != posted.request) {
                return Err(Error::RequestReused { thread, id: posted.id.clone() });
            }
        }
        Ok(())
    }

    /// Applies a batch that was prepared under the same lock; from here on nothing can fail.
    pub(super) fn apply(&mut self, prepared: Prepared, owner: &OwnerId) -> Committed {
        let mut committed = prepared.committed();
        if let Some((key, request)) = prepared.key {
            self.keys.insert(key, (request, committed.clone()));
        }
        self.requests.retain(|(_, posted)| !prepared.consumed.contains(&(posted.thread.clone(), posted.id.clone())));
        for mut part in prepared.parts {
            let lines = part.lines();
            committed.parts.push(part.take_committed());
            for id in &part.answered {
                let at = (part.thread.clone(), part.written.head.version);
                self.answers.entry((part.manifest.chain_root_id.clone(), id.clone())).or_insert(at);
            }
            if let Some(next) = &part.continued_as {
                let waits = self.requests.iter_mut().filter(|(_, posted)| posted.thread == part.thread);
                for (_, posted) in waits {
                    posted.thread = next.clone();
                }
            }
            let number = self.created;
            let early_blobs = self.early_blobs.remove(&part.thread).unwrap_or_default();
            let slot = self.threads.entry(part.thread.clone()).or_insert_with(|| Slot {
                number,
                bytes: Vec::new(),
                tail: part.written.tail.clone(),
                manifest: part.manifest.clone(),
                state: Arc::new(empty_state()),
                messages: HashMap::new(),
                runs: Vec::new(),
                blobs: early_blobs,
                erased: HashMap::new(),
                epoch: 0,
                holder: None,
                snapshots: ThreadSnapshots::default(),
                capabilities: None,
                page_start: None,
            });
            self.created += u64::from(part.before.is_none());
            slot.bytes.extend_from_slice(&part.written.bytes);
            slot.tail = part.written.tail;
            slot.manifest = part.manifest;
            slot.state = part.state.unwrap_or_else(|| slot.state.clone());
            slot.messages.extend(part.messages);
            for run in part.runs {
                match slot.runs.iter_mut().find(|other| other.run_id == run.run_id) {
                    Some(known) => *known = run,
                    None => slot.runs.push(run),
                }
            }
            for erased in part.erased {
                slot.blobs.remove(&erased.blob);
                slot.erased.entry(erased.blob).or_insert((erased.reason, slot.manifest.updated_at));
            }
            if let Some(run) = slot.runs.iter_mut().find(|run| Some(&run.run_id) == part.touched_run.as_ref()) {
                run.updated_at = slot.manifest.updated_at;
            }
            match part.right {
                Right::Brief => slot.holder = None,
                Right::Lease(_) if part.before.is_none() => slot.holder = Some(owner.clone()),
                Right::Lease(_) => {}
            }
            slot.epoch = part.epoch;
            let position = self.feed.len() as u64 + 1;
            let version = part.written.head.version;
            self.feed.push(FeedEntry::new(position, part.thread, version, lines));
        }
        for (id, account) in prepared.accounts {
            self.accounts.extend(account.after.map(|after| (id.clone(), after)));
            for (name, reservation) in account.reservations {
                match reservation {
                    Some(open) => self.reservations.insert((id.clone(), name), open),
                    None => self.reservations.remove(&(id.clone(), name)),
                };
            }
        }
        for posted in prepared.posted {
            // It was checked before; if this batch continued the thread, it is delivered to the successor.
            _ = self.post(posted);
        }
        committed
    }

    pub(super) fn summary(&self, slot: &Slot) -> Summary {
        let holder = self.live_holder(slot);
        Summary { manifest: slot.manifest.clone(), version: head_of(slot).version, holder }
    }

    pub(super) fn by_age(&self) -> Vec<&Slot> {
        let mut slots: Vec<_> = self.threads.values().collect();
        slots.sort_by_key(|slot| slot.number);
        slots
    }
}

/// The successor of a continued thread.
fn next(slot: &Slot) -> Option<&ThreadId> {
    slot.manifest.continuation_thread_id.as_ref().filter(|_| slot.manifest.status == Status::Continued)
}

pub(super) fn head_of(slot: &Slot) -> Head {
    // A slot is created by a commit, and a commit ends with a checkpoint.
    slot.tail.head.clone().unwrap_or_else(|| unreachable!("a stored log has a head"))
}

impl View for Inner {
    fn thread(&self, thread: &ThreadId, right: Right) -> Result<Option<CurrentThread>> {
        let Some(slot) = self.threads.get(thread) else {
            if self.tombstones.contains_key(thread) {
                return Err(Error::Deleted(thread.clone()));
            }
            return Ok(None);
        };
        let epoch = match (right, self.live_holder(slot)) {
            (Right::Lease(held), _) if held != slot.epoch || slot.holder.is_none() => {
                return Err(Error::StaleEpoch { thread: thread.clone(), held, current: slot.epoch });
            }
            (Right::Lease(held), _) => held,
            (Right::Brief, Some(holder)) => return Err(Error::LeaseHeld { thread: thread.clone(), holder }),
            (Right::Brief, None) => slot.epoch + u64::from(slot.holder.is_some()),
        };
        Ok(Some(CurrentThread { tail: slot.tail.clone(), manifest: slot.manifest.clone(), epoch, lead: Vec::new() }))
    }

    fn state(&self, thread: &ThreadId) -> Result<Arc<Value>> {
        Ok(self.slot(thread)?.state.clone())
    }

    fn message(&self, thread: &ThreadId, message: &MessageId) -> Result<Option<Digest>> {
        Ok(self.slot(thread)?.messages.get(message).copied())
    }

    fn run(&self, thread: &ThreadId, run: &RunId) -> Result<Option<Run>> {
        let slot = self.threads.get(thread);
        Ok(slot.and_then(|slot| slot.runs.iter().find(|other| other.run_id == *run).cloned()))
    }

    fn account(&self, account: &AccountId) -> Result<Option<Account>> {
        Ok(self.accounts.get(account).cloned())
    }

    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        Ok(self.reservations.values().filter(|known| known.account == *account).cloned().collect())
    }

    fn reservation(&self, account: &AccountId, reservation: &ReservationId) -> Result<Option<Reservation>> {
        Ok(self.reservations.get(&(account.clone(), reservation.clone())).cloned())
    }
}
