//! Threads whose process died: found and settled by processes that run threads.
//!
//! What a dead process left, and what becomes of it:
//!
//! ```text
//! running                                  waits, `process_lost`; what its call of a model may have cost is counted
//! created, in place of one that went on    waits, `process_lost`: what it takes along is kept
//! created, as a child                      ends as `error`, once its parent goes on: it did nothing, and its money comes back
//! created, and its parent's call is open   left as it is: the parent's next run starts it
//! ```
//!
//! Reading never writes: commands and tools that only look report such a thread as `stalled`. It is settled by the next process that
//! takes its lease to write (`Engine::take`), by `recover` when a process that runs threads starts, and by a run, which looks at the
//! children of its chain when it begins and before it ends.
//!
//! - First nobody alive has a thread, then its log is read: the lease is taken, which nobody gets while its owner lives, and only what
//!   is read under it counts. What was dead before a look stands still, wherever in its chain it is, so that look finds it.
//! - Nothing is taken from the living. A process on record that may live keeps its thread; whoever handed a thread over and is slow
//!   to take the next one goes on with it, though somebody settled it meanwhile.
//! - A run that was recorded without a lease (`RunMeta::held` is false) is its writer's own: it is never settled.
//! - What can't be settled now is settled by the next look; no look fails because of it.

use std::collections::HashMap;

use selvedge_log::Trust;
use selvedge_model::tool::Processes;
use selvedge_model::{Manifest, Reason, RunMeta, Status, ThreadId};
use selvedge_store::{Acquire, Error as StoreError, Filter, Store, Summary};

use crate::engine::Engine;
use crate::error::Result;
use crate::events::Audience;
use crate::fold::Fold;
use crate::held::{Held, Of};
use crate::run;
use crate::standing::{holder, started_for};
use crate::stopping::end_unborn;

/// Where a run comes from that somebody recorded for a thread which its own process did not live to begin.
pub const RECOVERY: &str = "recovery";

/// How many children are looked at in one go.
const PAGE: usize = 500;

impl Engine {
    /// Settles every thread whose process is gone while it ran; gives those it settled. A thread that can't be settled is left for
    /// whoever needs it.
    pub fn recover(&self) -> Result<Vec<ThreadId>> {
        let mut settled = Vec::new();
        for thread in self.left_running()? {
            // Somebody alive holds it.
            let Ok(lease) = self.lease(&thread, Acquire::default()) else { continue };
            if let Ok(held) = self.take(lease, &Audience::default()) {
                settled.push(thread);
                _ = self.give_back(held);
            }
        }
        Ok(settled)
    }

    /// Threads that are running and whose process is gone.
    fn left_running(&self) -> Result<Vec<ThreadId>> {
        let filter = Filter { status: Some(Status::Running), ..Filter::default() };
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.list(&filter, after, 100)?;
            let stalled = page.items.into_iter().filter(Summary::is_stalled);
            found.extend(stalled.map(|thread| thread.manifest.thread_id));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Settles the children of a thread, and of those it continues, that nobody alive has: they are said to go on, money is set aside
    /// for them, and nobody else would go on with them.
    pub(crate) fn settle_children(&self, held: &Held) {
        let is_first = held.fold.manifest().continuation_of.is_none();
        if is_first && !held.fold.thread().calls.values().any(|call| call.child.is_some()) {
            return;
        }
        let own = Some(&held.fold);
        let (store, trust, processes) = (&*self.store, &self.trust, &*self.processes);
        let mut look = Look { store, trust, processes, own, parents: HashMap::new() };
        for child in unsettled(store, held.thread()).unwrap_or_default() {
            if look.is_orphan(&child).unwrap_or(false) {
                _ = self.settle_orphan(&child.thread_id);
            }
        }
    }

    /// Settles a thread that nobody alive has, by what its log says once it is held.
    fn settle_orphan(&self, thread: &ThreadId) -> Result<()> {
        // Taking it settles a run that was lost.
        let mut held = self.take(self.lease(thread, Acquire::default())?, &Audience::default())?;
        let manifest = held.fold.manifest();
        match (manifest.status, &manifest.continuation_of) {
            (Status::Created, Some(_)) => suspend_unborn(&mut held)?,
            (Status::Created, None) => {
                end_unborn(&mut held, Status::Error, Some("the process that was to run it died before it began"))?;
            }
            _ => {}
        }
        self.give_back(held)
    }
}

impl Held {
    /// Whether it has not begun, or was settled before it did.
    pub(crate) fn is_unbegun(&self) -> bool {
        let is_idle = || self.fold.thread().runs.values().all(|run| run.meta.origin == RECOVERY);
        match self.fold.manifest().status {
            Status::Created => true,
            Status::Suspended => is_idle(),
            _ => false,
        }
    }
}

/// Lets a thread wait that was to go on in another's place: as one whose run was lost before it did anything. Cut between the two
/// commits, it is just that.
fn suspend_unborn(held: &mut Held) -> Result<()> {
    let run = held.next_run()?;
    let meta = RunMeta::started(held.fold.manifest().agent_id.clone(), RECOVERY).under_lease();
    let of = Of { run: Some(run), meta: Some(meta), turn: None };
    held.commit(Reason::Lifecycle, of)?;
    run::settle_lost(held)
}

/// The children of a chain that are said to go on. A child that goes on in another thread is found as that one: it has the same parent.
fn unsettled(store: &dyn Store, parent: &ThreadId) -> Result<Vec<Manifest>> {
    let mut found = Vec::new();
    for link in store.chain(parent)? {
        for status in [Status::Created, Status::Running] {
            let parent_id = Some(link.manifest.thread_id.clone());
            let filter = Filter { status: Some(status), parent_id, ..Filter::default() };
            let mut after = None;
            loop {
                let page = store.list(&filter, after, PAGE)?;
                found.extend(page.items.into_iter().map(|child| child.manifest));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
    }
    Ok(found)
}

/// One look at who is still alive.
struct Look<'l> {
    store: &'l dyn Store,
    trust: &'l Trust,
    processes: &'l dyn Processes,
    /// What is known of the thread that looks.
    own: Option<&'l Fold>,
    /// What the logs of other parents say; nothing of those that are gone.
    parents: HashMap<ThreadId, Option<Fold>>,
}

impl Look<'_> {
    /// Whether a thread is said to go on, or is to be started, and nobody alive will do it.
    fn is_orphan(&mut self, thread: &Manifest) -> Result<bool> {
        let is_left = match (thread.status, &thread.parent_id, &thread.continuation_of) {
            (Status::Running, ..) => !thread.is_run_outside(),
            (Status::Created, _, Some(before)) if holder(self.store, before)?.is_some() => false,
            (Status::Created, Some(parent), _) => self.is_left(thread, parent)?,
            (Status::Created, None, Some(_)) => self.is_root_left(thread),
            _ => false,
        };
        // Asked last: who was to take it may have done so meanwhile.
        Ok(is_left && holder(self.store, &thread.thread_id)?.is_none())
    }

    /// Whether whoever was to go on with a chain that nobody started is dead: the process on record.
    fn is_root_left(&self, thread: &Manifest) -> bool {
        // Where it can't be known who was started for it, it is left alone.
        started_for(self.store, self.trust, thread)
            .is_ok_and(|process| process.is_none_or(|process| !self.processes.may_live(&process)))
    }

    /// Whether whoever was to start a thread is dead: the process on record, and the call of its parent that would start it again.
    fn is_left(&mut self, thread: &Manifest, parent: &ThreadId) -> Result<bool> {
        let (root, processes) = (&thread.chain_root_id, self.processes);
        // Where it can't be known who was started for it, it is left alone.
        let Some(parent) = self.parent(parent)? else { return Ok(false) };
        let mut open = parent.conversation.open().iter().filter_map(|open| parent.call(&open.id)?.child.as_ref());
        let may_live = || parent.process_of(root).is_some_and(|process| processes.may_live(process));
        Ok(!open.any(|child| child.thread_id == *root) && !may_live())
    }

    /// What the verified log of a parent says.
    fn parent(&mut self, parent: &ThreadId) -> Result<Option<&Fold>> {
        if let Some(own) = self.own.filter(|own| own.thread_id() == parent) {
            return Ok(Some(own));
        }
        if !self.parents.contains_key(parent) {
            let fold = match Fold::load(self.store, parent, self.trust) {
                Ok(fold) => Some(fold),
                Err(StoreError::Deleted(_) | StoreError::NoThread(_)) => None,
                Err(error) => return Err(error.into()),
            };
            self.parents.insert(parent.clone(), fold);
        }
        Ok(self.parents.get(parent).and_then(Option::as_ref))
    }
}
