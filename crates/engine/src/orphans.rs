//! Threads whose process died: found and settled by processes that run threads.
//!
//! What a dead process left, and how it is settled:
//!
//! ```text
//! running                                  suspended, `process_lost`; the possible cost of its model call is counted
//! created, as a successor                  suspended, `process_lost`: its messages are kept
//! created, as a child                      ends as `error` when its parent runs: it did nothing, and its money is returned
//! created, and its parent's call is open   left as it is: the parent's next run starts it
//! ```
//!
//! Reading never writes: commands and tools that only read report such a thread as `stalled`. It is settled by the next process that
//! acquires its lease to write (`Engine::take`), by `recover` when a process that runs threads starts, and by a run, which checks the
//! children of its chain when it begins and before it ends.
//!
//! - The lease is acquired first, which fails while its owner lives; then the log is read, and only what is read under the lease counts. A
//!   thread whose process was dead before a check does not change any more, wherever in its chain it is, so that check finds it.
//! - Nothing is taken from a live process. A process on record that may be alive keeps its thread; a process that is slow to run a successor
//!   still runs it, even if the successor was settled meanwhile.
//! - A run that was recorded without a lease (`RunMeta::held` is false) belongs to the program that wrote it: it is never settled.
//! - A thread that can't be settled now is settled by the next check; no check fails because of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use selvedge_log::Trust;
use selvedge_model::event::{SuspendReason, Suspended};
use selvedge_model::limits::Cost;
use selvedge_model::tool::Processes;
use selvedge_model::{Cancel, Event, Manifest, Reason, Request, RunMeta, RunStatus, Status, ThreadId, Verdict};
use selvedge_store::{Acquire, Error as StoreError, Filter, Store, Summary};

use crate::conversation::OpenCall;
use crate::engine::Engine;
use crate::error::Result;
use crate::events::CallerEvents;
use crate::fold::Fold;
use crate::heartbeat;
use crate::held::{HeldThread, RunContext};
use crate::inbox::unanswered;
use crate::run_config::RunConfig;
use crate::start::{RunRequest, Start};
use crate::stop::end_unstarted;
use crate::thread_state::{holder, listed, started_for};

/// The origin of a run that was recorded for a thread whose own process died before it began.
pub const RECOVERY: &str = "recovery";

/// How many notices of requests are read at a time.
const PAGE: usize = 500;

impl Engine {
    /// Settles every thread that ran when its process died; returns those that were settled, durably. A thread that can't be settled is left
    /// for the next process that needs it.
    pub fn recover(&self) -> Result<Vec<ThreadId>> {
        let mut settled = Vec::new();
        for thread in self.stalled_threads()? {
            // If this fails, a live process holds it.
            let Ok(lease) = self.lease(&thread, Acquire::default()) else { continue };
            if let Ok(held) = self.take(lease, &CallerEvents::default()) {
                settled.push(thread);
                _ = self.release_thread(held);
            }
        }
        Ok(settled)
    }

    /// Answers messages that a dead process left: the sends in the inboxes of threads that have begun and that no process holds. Returns the
    /// threads; their runs continue in the background. `work` gives what a thread runs with; a thread that it gives nothing for is left.
    pub fn answer_abandoned(&self, work: impl Fn(&Manifest) -> Option<RunConfig>) -> Result<Vec<ThreadId>> {
        let mut found = BTreeSet::new();
        let mut after = 0;
        loop {
            let page = self.store.arrivals(after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = last.number;
            found.extend(page.into_iter().map(|arrival| arrival.thread));
        }
        let mut answered = Vec::new();
        for thread in found {
            // A thread that can't be read, or was deleted meanwhile, keeps no other one from its answer.
            let Ok(Summary { manifest, holder, .. }) = self.store.get(&thread) else { continue };
            // A thread that was only created waits for its first run; a successor does not, if its process died at the handoff.
            let is_begun = manifest.status != Status::Created || manifest.continuation_of.is_some();
            if holder.is_some() || !is_begun || manifest.is_run_outside() || self.abandoned_send(&thread).is_none() {
                continue;
            }
            let Some(work) = work(&manifest) else { continue };
            // If this fails, a live process has it by now.
            let Ok(lease) = self.lease(&thread, Acquire::default()) else { continue };
            // Chosen under the lease: another process may have served it, and a thread without a message is not resumed.
            let Some(start) = self.abandoned_send(&thread) else { continue };
            let engine = self.clone();
            let work = Arc::new(work);
            let run = |audience| async move { engine.run_held(lease, start, work, Cancel::new(), audience).await };
            // It continues in the background.
            drop(self.perform(run)?);
            answered.push(thread);
        }
        Ok(answered)
    }

    /// The start of a run for the first message that is pending in the inbox of a thread.
    fn abandoned_send(&self, thread: &ThreadId) -> Option<Start> {
        let pending = unanswered(&*self.store, thread).ok()?;
        pending.into_iter().find_map(|posted| match posted.request {
            Request::Send(input) => Some(Start { input, request: Some(RunRequest { id: posted.id, is_posted: true }) }),
            _ => None,
        })
    }

    /// Threads that are running and whose process is gone.
    fn stalled_threads(&self) -> Result<Vec<ThreadId>> {
        let filter = Filter { status: Some(Status::Running), ..Filter::default() };
        Ok(listed(&*self.store, &filter, |thread| thread.is_stalled().then_some(thread.manifest.thread_id))?)
    }

    /// Settles the children of a thread, and of its predecessors, that no live process has: they look active, money is reserved for them, and
    /// no other process would run them.
    pub(crate) fn settle_children(&self, held: &HeldThread) {
        let is_first = held.fold.manifest().continuation_of.is_none();
        if is_first && !held.fold.thread().calls.values().any(|call| call.child.is_some()) {
            return;
        }
        let own = Some(&held.fold);
        let store = &*self.store;
        let mut search =
            OrphanSearch { store, trust: &self.trust, processes: &*self.processes, own, parents: HashMap::new() };
        for child in unsettled(store, held.thread()).unwrap_or_default() {
            if search.is_orphan(&child).unwrap_or(false) {
                _ = self.settle_orphan(&child.thread_id);
            }
        }
    }

    /// Settles a thread that no live process has, by its log as read under the lease.
    fn settle_orphan(&self, thread: &ThreadId) -> Result<()> {
        // Opening it settles a lost run.
        let mut held = self.take(self.lease(thread, Acquire::default())?, &CallerEvents::default())?;
        let manifest = held.fold.manifest();
        match (manifest.status, &manifest.continuation_of) {
            (Status::Created, Some(_)) => suspend_unstarted(&mut held)?,
            (Status::Created, None) => {
                end_unstarted(&mut held, Status::Error, Some("the process that was to run it died before it began"))?;
            }
            _ => {}
        }
        self.release_thread(held)
    }
}

impl HeldThread {
    /// Whether it has not begun, or was settled before it did.
    pub(crate) fn is_unstarted(&self) -> bool {
        let is_idle = || self.fold.thread().runs.values().all(|run| run.meta.origin == RECOVERY);
        match self.fold.manifest().status {
            Status::Created => true,
            Status::Suspended => is_idle(),
            _ => false,
        }
    }
}

/// Settles a run whose process is gone: the thread is suspended until it is resumed. The outcome of a call that spawned a child needs no
/// decision: it is the outcome of the child, which lives on without its parent.
pub(crate) fn settle_lost(held: &mut HeldThread) -> Result<()> {
    let lost = held.fold.manifest().run_id.clone();
    let open = held.fold.conversation.open().to_vec();
    let is_unknown = |call: &OpenCall| {
        let known = held.fold.call(&call.id);
        known.is_some_and(|known| known.intent.is_some() && known.outcome.is_none() && known.child.is_none())
    };
    let mut unknown: Vec<_> = open.into_iter().filter(is_unknown).collect();
    held.end_begun(unknown.iter().map(|call| &call.id));
    // Only calls that the thread can't continue without need a decision.
    unknown.retain(OpenCall::suspends);
    let reason = if unknown.is_empty() { SuspendReason::Error } else { SuspendReason::OutcomeUnknown };
    let calls = unknown.into_iter().map(|call| call.id).collect();
    let suspended = Suspended { calls, ..Suspended::because(reason, Suspended::PROCESS_LOST) };
    held.delta.events.push(Event::Suspended(suspended));
    let charged = held.settle_lost_calls(lost.as_ref())?;
    // A stop of the dead run is not meant for the next one.
    held.answer_stops(Verdict::Unchanged)?;
    let used = &held.fold.meter().active;
    let beat = match held.taken_from() {
        Some(owner) => held.engine.store.last_beat(owner)?,
        None => None,
    };
    let meta = lost.as_ref().and_then(|run| held.fold.run(run)).map(|run| {
        let ran = run.updated_at.as_micros().saturating_sub(run.created_at.as_micros()) / 1000;
        let ran_on = heartbeat::ran_on_ms(beat, run.updated_at, held.engine.clock.now());
        let duration_ms = u64::try_from(ran).unwrap_or(0).saturating_add(ran_on);
        let mut cost = Cost { duration_ms, ..used.clone() };
        cost.add(&Cost { spend: charged, spend_unknown: charged, ..Cost::default() });
        RunMeta {
            status: RunStatus::Waiting,
            termination_code: Some(Suspended::PROCESS_LOST.to_owned()),
            cost: Some(cost),
            ..run.meta.clone()
        }
    });
    held.commit(Reason::RunFinished, RunContext { run: lost, meta, turn: None }).map(|_| ())
}

/// Suspends a successor that has not begun, as a thread whose run was lost before it did anything. After a crash between the two commits it
/// is exactly that.
fn suspend_unstarted(held: &mut HeldThread) -> Result<()> {
    let run = held.next_run()?;
    let meta = RunMeta::started(held.fold.manifest().agent_id.clone(), RECOVERY).under_lease();
    let of = RunContext { run: Some(run), meta: Some(meta), turn: None };
    held.commit(Reason::Lifecycle, of)?;
    settle_lost(held)
}

/// The children of a chain that look active. A child that was continued is found as its successor, which has the same parent.
fn unsettled(store: &dyn Store, parent: &ThreadId) -> Result<Vec<Manifest>> {
    let mut found = Vec::new();
    for link in store.chain(parent)? {
        for status in [Status::Created, Status::Running] {
            let parent_id = Some(link.manifest.thread_id.clone());
            let filter = Filter { status: Some(status), parent_id, ..Filter::default() };
            found.extend(listed(store, &filter, |child| Some(child.manifest))?);
        }
    }
    Ok(found)
}

/// One check of which processes are still alive.
struct OrphanSearch<'l> {
    store: &'l dyn Store,
    trust: &'l Trust,
    processes: &'l dyn Processes,
    /// The fold of the thread that checks its children.
    own: Option<&'l Fold>,
    /// The folds of other parents; none for those that are gone.
    parents: HashMap<ThreadId, Option<Fold>>,
}

impl OrphanSearch<'_> {
    /// Whether a thread looks active, or is to be started, and no live process will run it.
    fn is_orphan(&mut self, thread: &Manifest) -> Result<bool> {
        let is_abandoned = match (thread.status, &thread.parent_id, &thread.continuation_of) {
            (Status::Running, ..) => !thread.is_run_outside(),
            (Status::Created, _, Some(before)) if holder(self.store, before)?.is_some() => false,
            (Status::Created, Some(parent), _) => self.is_abandoned(thread, parent)?,
            (Status::Created, None, Some(_)) => self.is_root_abandoned(thread),
            _ => false,
        };
        // Checked last: the process that was to run it may have acquired the lease meanwhile.
        Ok(is_abandoned && holder(self.store, &thread.thread_id)?.is_none())
    }

    /// Whether the process on record that was to run a successor without a parent is dead.
    fn is_root_abandoned(&self, thread: &Manifest) -> bool {
        // If it can't be known which process was started for it, it is left alone.
        started_for(self.store, self.trust, thread)
            .is_ok_and(|process| process.is_none_or(|process| !self.processes.may_live(&process)))
    }

    /// Whether a child will not be started: the process on record is dead, and its parent has no open call that would start it.
    fn is_abandoned(&mut self, thread: &Manifest, parent: &ThreadId) -> Result<bool> {
        let root = &thread.chain_root_id;
        let processes = self.processes;
        // If it can't be known which process was started for it, it is left alone.
        let Some(parent) = self.parent(parent)? else { return Ok(false) };
        let mut open = parent.conversation.open().iter().filter_map(|open| parent.call(&open.id)?.child.as_ref());
        let may_live = || parent.process_of(root).is_some_and(|process| processes.may_live(process));
        Ok(!open.any(|child| child.thread_id == *root) && !may_live())
    }

    /// The fold of a parent's verified log.
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
