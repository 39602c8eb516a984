//! Limits how many children of a thread run at the same time, detached or not.
//!
//! The store knows which children run. A child that was let through and is not on record as running yet is known here: this process holds its
//! parent, and no other process starts children for it. What is known here is lost with the process, and then no child is about to start.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::select;
use selvedge_model::event::Process;
use selvedge_model::{Cancel, Status, ThreadId};
use selvedge_store::{Filter, Store, Summary};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::error::Result;
use crate::watcher::Waiter;

/// How often to check whether a process that was let through is still alive, until it runs its child: before it has opened the store, its
/// death is in no feed.
const STARTING_CHECK: Duration = Duration::from_millis(500);

/// The children that this process let through.
#[derive(Debug, Default)]
pub(crate) struct ChildSlots {
    /// Those that are waited for, until they are over; detached ones, with the process that was to run them.
    starting: Mutex<HashMap<ThreadId, Starting>>,
    /// Notified whenever a slot is released.
    released: Notify,
}

#[derive(Debug)]
struct Starting {
    parent: ThreadId,
    process: Option<Process>,
}

/// Releases the slot of a child on drop: also if its run panics.
pub(crate) struct SlotGuard {
    engine: Engine,
    child: ThreadId,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.engine.release_slot(&self.child);
    }
}

/// Whether a child may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// It has a slot.
    Taken,
    /// It was stopped before there was one.
    Stopped,
    /// It ended before there was one.
    Over,
}

impl Engine {
    /// Waits until fewer than `at_once` children of a child's parent run, and takes a slot.
    pub(crate) async fn take_slot(
        &self,
        child: &ThreadId,
        process: Option<Process>,
        at_once: usize,
        cancel: &Cancel,
    ) -> Result<Slot> {
        let mut waiter: Option<Waiter> = None;
        loop {
            let mut released = pin!(self.child_slots.released.notified());
            // From here on no released slot is missed.
            released.as_mut().enable();
            if let Some(slot) = self.try_take_slot(child, process.clone(), at_once)? {
                return Ok(slot);
            }
            // A child of another process releases its slot with its lease: by its end or its death.
            let Some(waiter) = &waiter else {
                waiter = Some(self.watcher.waiter([], true)?);
                continue;
            };
            let pause = if self.awaits_process() { STARTING_CHECK } else { Duration::MAX };
            let elsewhere = pin!(timeout(pause, waiter.woken_or_stopped(cancel, None)));
            select(released, elsewhere).await;
            if cancel.said().is_some() {
                return Ok(Slot::Stopped);
            }
        }
    }

    /// Whether a process that was let through has not shown yet that it runs its child: it may have died before it opened the store.
    fn awaits_process(&self) -> bool {
        let starting = self.child_slots.starting.lock().unwrap_or_else(PoisonError::into_inner);
        starting.values().any(|starting| starting.process.is_some())
    }

    /// Takes a slot for a child, if there is one.
    fn try_take_slot(&self, child: &ThreadId, process: Option<Process>, at_once: usize) -> Result<Option<Slot>> {
        let Some(parent) = self.store.get(child)?.manifest.parent_id else { return Ok(Some(Slot::Taken)) };
        if self.store.get(&self.end_of_chain(child)?)?.manifest.status.is_terminal() {
            return Ok(Some(Slot::Over));
        }
        let mut starting = self.child_slots.starting.lock().unwrap_or_else(PoisonError::into_inner);
        // A slot that an earlier attempt released does not count.
        starting.remove(child);
        if self.active(&parent, &mut starting)? < at_once.max(1) {
            starting.insert(child.clone(), Starting { parent, process });
            return Ok(Some(Slot::Taken));
        }
        Ok(None)
    }

    /// The guard that releases the slot of a child that is waited for.
    pub(crate) fn slot_of(&self, child: &ThreadId) -> SlotGuard {
        SlotGuard { engine: self.clone(), child: child.clone() }
    }

    fn release_slot(&self, child: &ThreadId) {
        self.child_slots.starting.lock().unwrap_or_else(PoisonError::into_inner).remove(child);
        self.child_slots.released.notify_waiters();
    }

    /// How many children of a thread, and of its predecessors, run or are about to.
    fn active(&self, parent: &ThreadId, starting: &mut HashMap<ThreadId, Starting>) -> Result<usize> {
        // Before the running ones are listed: a child that begins in between is counted twice rather than not at all.
        starting.retain(|child, starting| match &starting.process {
            None => true,
            // Once its process holds the thread, or the thread has ended, the record counts. Until then the thread may be new,
            // suspended, or running without a holder.
            Some(process) => {
                let is_pending = |found: Summary| found.holder.is_none() && !found.manifest.status.is_terminal();
                self.store.get(child).is_ok_and(is_pending) && self.processes.may_live(process)
            }
        });
        let mut active = running_below(&*self.store, parent)?;
        active
            .extend(starting.iter().filter(|(_, starting)| starting.parent == *parent).map(|(child, _)| child.clone()));
        Ok(active.len())
    }
}

/// The children of a thread, and of its predecessors, that a live process holds, each by the first thread of its chain.
pub(crate) fn running_below(store: &dyn Store, parent: &ThreadId) -> Result<HashSet<ThreadId>> {
    let mut found = HashSet::new();
    for link in store.chain(parent)? {
        found.extend(running(store, &link.manifest.thread_id)?);
    }
    Ok(found)
}

/// The children of a thread that a live process holds, running or about to run, each by the first thread of its chain. Those that have not
/// begun are read first, so that none that begins meanwhile is missed; the end of a chain that was just handed off is one of them.
fn running(store: &dyn Store, parent: &ThreadId) -> Result<Vec<ThreadId>> {
    let mut found = held(store, parent, Status::Created)?;
    found.extend(held(store, parent, Status::Running)?);
    Ok(found)
}

/// The children of a thread in this status that a live process holds.
fn held(store: &dyn Store, parent: &ThreadId, status: Status) -> Result<Vec<ThreadId>> {
    let filter = Filter { status: Some(status), parent_id: Some(parent.clone()), ..Filter::default() };
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(&filter, after, 100)?;
        let held = page.items.into_iter().filter(|child| child.holder.is_some());
        found.extend(held.map(|child| child.manifest.chain_root_id));
        after = page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Arc;

    use selvedge_model::blocking::wait;
    use selvedge_model::{AgentId, Batch, CommitKey, Digest, NewThread, Run};
    use selvedge_store::conformance::support::{part, starts};
    use selvedge_store::memory::MemoryStore;
    use selvedge_store::{Acquire, Commit, Committed, Cursor, Leases, Page, Registry, Tombstone};

    use super::*;
    use crate::engine::tests::{engine, engine_on, memory};

    fn new(parent: Option<&ThreadId>) -> NewThread {
        NewThread { parent_id: parent.cloned(), ..NewThread::of(AgentId::new("scribe").unwrap()) }
    }

    #[test]
    fn a_child_whose_run_panics_releases_its_slot() {
        let engine = engine();
        let parent = engine.create(new(None), Vec::new()).unwrap();
        let one = engine.create(new(Some(&parent)), Vec::new()).unwrap();
        let other = engine.create(new(Some(&parent)), Vec::new()).unwrap();
        let enter = |child: &ThreadId| wait(engine.take_slot(child, None, 1, &Cancel::new())).unwrap();
        assert_eq!(enter(&one), Slot::Taken);
        let run = || {
            let _leaving = engine.slot_of(&one);
            resume_unwind(Box::new("it panics"))
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(enter(&other), Slot::Taken, "there is one slot, and it is free");
    }

    /// What another process does between two reads.
    type Meanwhile = Box<dyn FnOnce() + Send>;

    /// A store in which something happens right after threads were listed this many times.
    struct Between {
        inner: MemoryStore,
        then: Mutex<Option<(usize, Meanwhile)>>,
    }

    selvedge_store::forward!([] Between, inner: Logs, Leases, Inbox, Feed, Ledger);

    impl Commit for Between {
        fn commit(&self, batch: Batch) -> selvedge_store::Result<Committed> {
            self.inner.commit(batch)
        }
        fn outcome(&self, key: &CommitKey) -> selvedge_store::Result<Option<Committed>> {
            self.inner.outcome(key)
        }
        fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> selvedge_store::Result<Digest> {
            self.inner.put_blob(thread, bytes)
        }
        fn delete(&self, thread: &ThreadId) -> selvedge_store::Result<Tombstone> {
            self.inner.delete(thread)
        }
    }

    impl Registry for Between {
        fn get(&self, thread: &ThreadId) -> selvedge_store::Result<Summary> {
            self.inner.get(thread)
        }
        fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> selvedge_store::Result<Page<Summary>> {
            let page = self.inner.list(filter, after, limit);
            let mut then = self.then.lock().unwrap();
            match then.take() {
                Some((1, happens)) => happens(),
                Some((more, happens)) => *then = Some((more - 1, happens)),
                None => {}
            }
            page
        }
        fn chain(&self, thread: &ThreadId) -> selvedge_store::Result<Vec<Summary>> {
            self.inner.chain(thread)
        }
        fn children(&self, thread: &ThreadId) -> selvedge_store::Result<Vec<Summary>> {
            self.inner.children(thread)
        }
        fn runs(&self, thread: &ThreadId) -> selvedge_store::Result<Vec<Run>> {
            self.inner.runs(thread)
        }
        fn resolve(&self, prefix: &str) -> selvedge_store::Result<ThreadId> {
            self.inner.resolve(prefix)
        }
        fn tombstone(&self, thread: &ThreadId) -> selvedge_store::Result<Option<Tombstone>> {
            self.inner.tombstone(thread)
        }
    }

    /// Three children were inside where two were allowed: one that began between two reads was in neither.
    #[test]
    fn a_child_that_begins_while_the_running_ones_are_counted_is_counted() {
        for (is_held_before, lists) in [(true, 1), (false, 1), (true, 2), (false, 2)] {
            let (memory, trust) = memory();
            let store = Arc::new(Between { inner: memory, then: Mutex::default() });
            let engine = engine_on(store.clone(), trust);
            let parent = engine.create(new(None), Vec::new()).unwrap();
            let one = engine.create(new(Some(&parent)), Vec::new()).unwrap();
            let other = engine.create(new(Some(&parent)), Vec::new()).unwrap();
            // A detached child: a process of its own, which was let through.
            let process = Process { pid: 1, start_time: 1, boot_id: None, machine: None };
            assert_eq!(engine.try_take_slot(&one, Some(process), 1).unwrap(), Some(Slot::Taken));
            let elsewhere = store.inner.another();
            let lease = is_held_before.then(|| elsewhere.acquire(&one, Acquire::default()).unwrap());
            let begins = one.clone();
            let begin = move || {
                let lease = lease.unwrap_or_else(|| elsewhere.acquire(&begins, Acquire::default()).unwrap());
                elsewhere.commit(Batch::of(part(&begins, starts("r1")).under(lease.epoch))).unwrap();
                // Its process lives on.
                std::mem::forget(elsewhere);
            };
            *store.then.lock().unwrap() = Some((lists, Box::new(begin)));
            assert_eq!(engine.try_take_slot(&other, None, 1).unwrap(), None, "there is one slot, and it is taken");
        }
    }
}
