//! How many children of a thread run at the same time, whether they are waited for or not.
//!
//! Who runs stands in the store. A child that was let go and is not on record as running yet is known here: this process has its
//! parent, and nobody else starts children for it. What is kept here is lost with the process, and then nobody is about to be started.

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use selvedge_model::event::Process;
use selvedge_model::{Cancel, Status, ThreadId};
use selvedge_store::{Filter, Store};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::engine::Engine;
use crate::error::Result;

/// How often is looked whether a child in another process died.
const LOOK: Duration = Duration::from_millis(500);
/// How long the next look waits at least: commits may come thick and fast.
const LOOK_AT_MOST: Duration = Duration::from_millis(20);

/// The children that this process let go.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Those that are waited for, until they are over; those that are not, with the process that was to run them.
    gone: Mutex<HashMap<ThreadId, Gone>>,
    /// Told whenever a place is given back.
    left: Notify,
}

#[derive(Debug)]
struct Gone {
    parent: ThreadId,
    process: Option<Process>,
}

/// Gives the place of a child back when it is dropped: also if its run panics.
pub(crate) struct Leaving {
    engine: Engine,
    child: ThreadId,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let (engine, child) = (self.engine.clone(), self.child.clone());
        // A look at the places may have them for a moment.
        self.engine.tasks.soon(move || engine.leave_place(&child));
    }
}

/// Whether a child may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It has a place.
    Taken,
    /// Somebody said to stop before there was one.
    Stopped,
    /// It came to its end before there was one.
    Over,
}

impl Engine {
    /// Waits until fewer than so many children of a child's parent run, and takes the place.
    pub(crate) async fn take_place(
        &self,
        child: &ThreadId,
        process: Option<Process>,
        at_once: usize,
        cancel: &Cancel,
    ) -> Result<Place> {
        loop {
            let mut left = pin!(self.places.left.notified());
            // From here on no place that is given back is missed.
            left.as_mut().enable();
            let (engine, child, process) = (self.clone(), child.clone(), process.clone());
            let (position, place) = self.tasks.block(move || engine.look_for_place(&child, process, at_once)).await?;
            if let Some(place) = place {
                return Ok(place);
            }
            // A child of another process gives its place back by its record, or by its death, which is in no feed.
            let mut elsewhere = pin!(async {
                sleep(LOOK_AT_MOST).await;
                self.feed.after(position, LOOK).await;
            });
            let mut stopped = pin!(cancel.stopped());
            poll_fn(|context| {
                let is_woken = stopped.as_mut().poll(context).is_ready()
                    || left.as_mut().poll(context).is_ready()
                    || elsewhere.as_mut().poll(context).is_ready();
                if is_woken { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            if cancel.said().is_some() {
                return Ok(Place::Stopped);
            }
        }
    }

    /// Takes a place for a child, if there is one; with the place in the feed before the look.
    fn look_for_place(
        &self,
        child: &ThreadId,
        process: Option<Process>,
        at_once: usize,
    ) -> Result<(u64, Option<Place>)> {
        let position = self.store.position()?;
        let Some(parent) = self.store.get(child)?.manifest.parent_id else { return Ok((position, Some(Place::Taken))) };
        if self.store.get(&self.end_of_chain(child)?)?.manifest.status.is_terminal() {
            return Ok((position, Some(Place::Over)));
        }
        let mut gone = self.places.gone.lock().unwrap_or_else(PoisonError::into_inner);
        // What an earlier attempt left of it does not count.
        gone.remove(child);
        if self.active(&parent, &mut gone)? < at_once.max(1) {
            gone.insert(child.clone(), Gone { parent, process });
            return Ok((position, Some(Place::Taken)));
        }
        Ok((position, None))
    }

    /// What gives the place of a child back that is waited for.
    pub(crate) fn place_of(&self, child: &ThreadId) -> Leaving {
        Leaving { engine: self.clone(), child: child.clone() }
    }

    fn leave_place(&self, child: &ThreadId) {
        self.places.gone.lock().unwrap_or_else(PoisonError::into_inner).remove(child);
        self.places.left.notify_waiters();
    }

    /// How many children of a thread, and of those it continues, run or are about to.
    fn active(&self, parent: &ThreadId, gone: &mut HashMap<ThreadId, Gone>) -> Result<usize> {
        // Before those that run are listed: one that begins in between is counted twice rather than not at all.
        gone.retain(|child, gone| match &gone.process {
            None => true,
            // Once it is on record as running, the record counts.
            Some(process) => {
                let status = self.store.get(child).map(|found| found.manifest.status);
                matches!(status, Ok(Status::Created)) && self.processes.may_live(process)
            }
        });
        let mut active = running_below(&*self.store, parent)?;
        active.extend(gone.iter().filter(|(_, gone)| gone.parent == *parent).map(|(child, _)| child.clone()));
        Ok(active.len())
    }
}

/// The children of a thread, and of those it continues, that a live process holds, each by the first thread of its chain.
pub(crate) fn running_below(store: &dyn Store, parent: &ThreadId) -> Result<HashSet<ThreadId>> {
    let mut found = HashSet::new();
    for link in store.chain(parent)? {
        found.extend(running(store, &link.manifest.thread_id)?);
    }
    Ok(found)
}

/// The children of a thread that a live process holds, running or about to run, each by the first thread of its chain. Those that are not
/// begun are looked at first, so that none is missed that begins meanwhile; the end of a chain that just passed on is one of them.
fn running(store: &dyn Store, parent: &ThreadId) -> Result<Vec<ThreadId>> {
    let mut found = held(store, parent, Status::Created)?;
    found.extend(held(store, parent, Status::Running)?);
    Ok(found)
}

/// The children of a thread in this status that a live process holds.
fn held(store: &dyn Store, parent: &ThreadId, status: Status) -> Result<Vec<ThreadId>> {
    let filter = Filter { status: Some(status), parent_id: Some(parent.clone()), ..Filter::default() };
    let (mut found, mut after) = (Vec::new(), None);
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
