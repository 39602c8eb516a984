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
use crate::thread_state::listed;
use crate::watcher::Waiter;

/// How often to check whether a process that was let through is still alive, until it runs its child: before it has opened the store, its
/// death is in no feed.
const STARTING_CHECK: Duration = Duration::from_millis(500);
/// How long a child waits before the running children are counted again after an error.
const RETRY: Duration = Duration::from_millis(500);

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
    /// Waits until fewer than `at_once` children of a child's parent run, and takes a slot. As long as the running ones can't be counted,
    /// it waits.
    pub(crate) async fn take_slot(
        &self,
        child: &ThreadId,
        process: Option<Process>,
        at_once: usize,
        cancel: &Cancel,
    ) -> Slot {
        loop {
            match self.await_slot(child, process.as_ref(), at_once, cancel).await {
                Ok(slot) => return slot,
                Err(_) if cancel.said().is_some() => return Slot::Stopped,
                Err(_) => _ = timeout(RETRY, cancel.stopped()).await,
            }
        }
    }

    async fn await_slot(
        &self,
        child: &ThreadId,
        process: Option<&Process>,
        at_once: usize,
        cancel: &Cancel,
    ) -> Result<Slot> {
        let mut waiter: Option<Waiter> = None;
        loop {
            let mut released = pin!(self.child_slots.released.notified());
            // From here on no released slot is missed.
            released.as_mut().enable();
            if let Some(slot) = self.try_take_slot(child, process.cloned(), at_once)? {
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
    Ok(listed(store, &filter, |child| child.holder.is_some().then_some(child.manifest.chain_root_id))?)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Arc;

    use selvedge_model::blocking::wait;
    use selvedge_model::{AgentId, Batch, CommitKey, Digest, NewThread, Run, Stop};
    use selvedge_store::conformance::support::{part, starts};
    use selvedge_store::memory::MemoryStore;
    use selvedge_store::{Acquire, Commit, Committed, Cursor, Leases, Page, Registry, Tombstone};

    use super::*;
    use crate::engine::tests::{engine, engine_on, memory};

    fn new(parent: Option<&ThreadId>) -> NewThread {
        NewThread { parent_id: parent.cloned(), ..NewThread::of(AgentId::new("scribe").unwrap()) }
    }

    fn two_children(engine: &Engine) -> (ThreadId, ThreadId) {
        let parent = engine.create(new(None), Vec::new()).unwrap();
        let child = || engine.create(new(Some(&parent)), Vec::new()).unwrap();
        (child(), child())
    }

    /// The process of a detached child.
    const PROCESS: Process = Process { pid: 1, start_time: 1, boot_id: None, machine: None };

    #[test]
    fn a_child_whose_run_panics_releases_its_slot() {
        let engine = engine();
        let (one, other) = two_children(&engine);
        let enter = |child: &ThreadId| wait(engine.take_slot(child, None, 1, &Cancel::new()));
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

    /// A store in which something happens while threads are listed.
    struct Between {
        inner: MemoryStore,
        /// Right after they were listed this many times.
        then: Mutex<Option<(usize, Meanwhile)>>,
        /// Instead of the next listing, which fails.
        fails: Mutex<Option<Meanwhile>>,
    }

    impl Between {
        fn over(inner: MemoryStore) -> Arc<Self> {
            Arc::new(Self { inner, then: Mutex::default(), fails: Mutex::default() })
        }
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
            if let Some(happens) = self.fails.lock().unwrap().take() {
                happens();
                return Err(selvedge_store::Error::Database { why: "made to fail".to_owned(), retryable: true });
            }
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
            let store = Between::over(memory);
            let engine = engine_on(store.clone(), trust);
            let (one, other) = two_children(&engine);
            // A detached child: a process of its own, which was let through.
            assert_eq!(engine.try_take_slot(&one, Some(PROCESS), 1).unwrap(), Some(Slot::Taken));
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

    /// It was in neither count: it is not new any more, and no process holds it yet.
    #[test]
    fn a_detached_child_that_is_started_again_keeps_its_slot_until_its_process_holds_it() {
        for is_settled in [false, true] {
            let (memory, trust) = memory();
            let store = Between::over(memory);
            let engine = engine_on(store.clone(), trust);
            let (one, other) = two_children(&engine);
            // The process that ran it dies.
            let dies = store.inner.another();
            let lease = dies.acquire(&one, Acquire::default()).unwrap();
            dies.commit(Batch::of(part(&one, starts("r1")).under(lease.epoch))).unwrap();
            drop(dies);
            if is_settled {
                engine.drain_if_free(&one).unwrap();
            }
            let status = store.inner.get(&one).unwrap().manifest.status;
            assert_eq!(status, if is_settled { Status::Suspended } else { Status::Running });
            assert_eq!(engine.try_take_slot(&one, Some(PROCESS), 1).unwrap(), Some(Slot::Taken));
            assert_eq!(engine.try_take_slot(&other, None, 1).unwrap(), None, "its next process is about to hold it");
        }
    }

    /// It was let through, as if there were a free slot.
    #[test]
    fn a_child_waits_as_long_as_the_running_ones_can_not_be_counted() {
        for is_stopped in [true, false] {
            let (memory, trust) = memory();
            let store = Between::over(memory);
            let engine = engine_on(store.clone(), trust);
            let (one, _) = two_children(&engine);
            let cancel = Cancel::new();
            let stops = cancel.clone();
            *store.fails.lock().unwrap() = Some(Box::new(move || {
                if is_stopped {
                    stops.say(Stop::Cancelled);
                }
            }));
            let own = engine.clone();
            let entered = engine.tasks.spawn(async move { own.take_slot(&one, None, 1, &cancel).await }).unwrap();
            assert_eq!(wait(entered), if is_stopped { Slot::Stopped } else { Slot::Taken });
        }
    }
}
