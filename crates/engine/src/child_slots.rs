//! Limits how many children of a thread run at the same time, detached or not.
//!
//! The store knows which children run. A child that was let through and is not on record as running yet is known here: this process holds its
//! parent, and no other process starts children for it. What is known here is lost with the process, and then no child is about to start.

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use selvedge_model::event::Process;
use selvedge_model::{Cancel, Status, ThreadId};
use selvedge_store::{Filter, Store, Summary};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::engine::Engine;
use crate::error::Result;

/// How often to check whether a child in another process died.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The least time between two checks: commits may come fast.
const CHECK_PAUSE: Duration = Duration::from_millis(20);

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
        loop {
            let mut released = pin!(self.child_slots.released.notified());
            // From here on no released slot is missed.
            released.as_mut().enable();
            let (position, slot) = self.try_take_slot(child, process.clone(), at_once)?;
            if let Some(slot) = slot {
                return Ok(slot);
            }
            // A child of another process releases its slot by its record, or by its death, which no feed reports.
            let mut elsewhere = pin!(async {
                sleep(CHECK_PAUSE).await;
                self.feed.after(position, CHECK_EVERY).await;
            });
            let mut stopped = pin!(cancel.stopped());
            poll_fn(|context| {
                let is_woken = stopped.as_mut().poll(context).is_ready()
                    || released.as_mut().poll(context).is_ready()
                    || elsewhere.as_mut().poll(context).is_ready();
                if is_woken { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            if cancel.said().is_some() {
                return Ok(Slot::Stopped);
            }
        }
    }

    /// Takes a slot for a child, if there is one; returns it with the feed position from before the check.
    fn try_take_slot(&self, child: &ThreadId, process: Option<Process>, at_once: usize) -> Result<(u64, Option<Slot>)> {
        let position = self.store.position()?;
        let Some(parent) = self.store.get(child)?.manifest.parent_id else { return Ok((position, Some(Slot::Taken))) };
        if self.store.get(&self.end_of_chain(child)?)?.manifest.status.is_terminal() {
            return Ok((position, Some(Slot::Over)));
        }
        let mut starting = self.child_slots.starting.lock().unwrap_or_else(PoisonError::into_inner);
        // A slot that an earlier attempt released does not count.
        starting.remove(child);
        if self.active(&parent, &mut starting)? < at_once.max(1) {
            starting.insert(child.clone(), Starting { parent, process });
            return Ok((position, Some(Slot::Taken)));
        }
        Ok((position, None))
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

    use selvedge_model::blocking::wait;
    use selvedge_model::{AgentId, NewThread};

    use super::*;
    use crate::engine::tests::engine;

    #[test]
    fn a_child_whose_run_panics_releases_its_slot() {
        let engine = engine();
        let new = || NewThread::of(AgentId::new("scribe").unwrap());
        let parent = engine.create(new(), Vec::new()).unwrap();
        let child = || engine.create(NewThread { parent_id: Some(parent.clone()), ..new() }, Vec::new()).unwrap();
        let one = child();
        let other = child();
        let enter = |child: &ThreadId| wait(engine.take_slot(child, None, 1, &Cancel::new())).unwrap();
        assert_eq!(enter(&one), Slot::Taken);
        let run = || {
            let _leaving = engine.slot_of(&one);
            resume_unwind(Box::new("it panics"))
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(enter(&other), Slot::Taken, "there is one slot, and it is free");
    }
}
