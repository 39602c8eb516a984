//! The handle of the engine, and its operations.

mod creating;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_log::Trust;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::scope::Scopes;
use selvedge_model::tool::Processes;
use selvedge_model::{Cancel, Clock, Ids, Input, Manifest, RequestId, RequestKind, Status, ThreadId, Timestamp};
use selvedge_store::{Error as StoreError, Store};
use tokio::time::timeout;

use crate::chain;
use crate::chain_run::ActiveRuns;
use crate::child_slots::ChildSlots;
use crate::error::{Error, Result};
use crate::events::{Bus, CallerEvents, Subscription, Watched};
use crate::fold::Folds;
use crate::heartbeat::Heartbeat;
use crate::held::{HeldThread, LeaseGuard, Observer};
use crate::inbox::{Arrival, Sent};
use crate::orphans::settle_lost;
use crate::outcome::{Outcome, Resumed, get_status};
use crate::redact::Redactor;
use crate::run_config::RunConfig;
use crate::snapshot::Keeper;
use crate::start::{RunRequest, Start};
use crate::submitted::{Closing, EventHandler, Submitted};
use crate::tasks::Tasks;
use crate::thread_state::{ActiveThreads, list_active};
use crate::watcher::{Waiter, Watcher};

pub use creating::Launch;

/// What an engine is built from.
pub struct Options {
    /// Where threads are kept.
    pub store: Arc<dyn Store>,
    /// The keys whose signatures are trusted when a log is read.
    pub trust: Trust,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of random ids.
    pub ids: Arc<dyn Ids>,
    /// Ends processes that an earlier process left running.
    pub processes: Arc<dyn Processes>,
    /// The lifetime of each part of the state.
    pub scopes: Scopes,
    /// Removes secrets before they reach a log.
    pub redactor: Redactor,
    /// Saves snapshots of threads and loads threads from them; without it every log is read whole.
    pub snapshots: Option<Keeper>,
    /// Called before the first run of every thread, while its lease is held. If it fails, nothing runs.
    pub prepare: Option<Prepare>,
}

/// Runs threads. A handle that is cheap to clone. Runs of one thread follow each other; runs of different threads are concurrent.
///
/// Its methods block until they are done, except [`Engine::submit`]. Runs are tasks of the engine, and complete even when every handle is
/// dropped.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl Deref for Engine {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// What the handles of an engine share.
pub struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) trust: Trust,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) processes: Arc<dyn Processes>,
    pub(crate) scopes: Scopes,
    pub(crate) redactor: Redactor,
    pub(crate) folds: Folds,
    pub(crate) snapshots: Option<Arc<Keeper>>,
    /// Wakes its runs, and its tasks that wait.
    pub(crate) watcher: Watcher,
    /// Called before a thread's first run.
    pub(crate) prepare: Option<Prepare>,
    /// The runs of this process, and how to stop them.
    active: Mutex<ActiveRuns>,
    /// The children that may run in this process.
    pub(crate) child_slots: ChildSlots,
    /// The subscriptions to its events.
    pub(crate) bus: Arc<Bus>,
    /// The pool that its runs are polled by.
    pub(crate) tasks: Tasks,
    pub(crate) heartbeat: Heartbeat,
}

/// How long a process may hold a thread just to read it or to deliver a request.
const BRIEF_HOLD: Duration = Duration::from_millis(300);

/// Input is run here if the thread is free, and else posted.
const HERE_IF_FREE: Option<Duration> = Some(Duration::ZERO);
/// Input is posted in any case: it is durable before anything runs.
const POSTED: Option<Duration> = None;

/// Called before a thread's first run.
pub type Prepare = Arc<dyn Fn(&Manifest, &RunConfig) -> selvedge_store::Result<()> + Send + Sync>;

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine. Nothing runs and nothing was read when it returns.
    pub fn new(options: Options) -> Self {
        let Options { store, trust, clock, ids, processes, scopes, redactor, snapshots, prepare } = options;
        let shared = Shared {
            folds: Folds::default(),
            snapshots: snapshots.map(Arc::new),
            watcher: Watcher::new(store.clone()),
            heartbeat: Heartbeat::new(&store, clock.clone()),
            store,
            trust,
            clock,
            ids,
            processes,
            scopes,
            redactor,
            prepare,
            active: Mutex::default(),
            child_slots: ChildSlots::default(),
            bus: Arc::default(),
            tasks: Tasks::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The manifest of a thread, folded from its verified log and not taken from the database.
    pub fn manifest(&self, thread: &ThreadId) -> Result<Manifest> {
        let fold = self.folds.get(self.snapshots.as_deref(), &*self.store, thread, &self.trust)?;
        let manifest = fold.manifest().clone();
        self.folds.keep(thread, fold);
        Ok(manifest)
    }

    /// Waits until nothing runs in this process any more, at most this long; returns whether nothing does. A program that exits calls it
    /// after cancelling what it does not want to wait for. If the process exits earlier, nothing committed is lost, and the next process
    /// recovers the run.
    pub fn wait_idle(&self, most: Duration) -> bool {
        self.tasks.wait_idle(most)
    }

    /// The keys whose signatures are trusted.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// A text without secrets.
    pub fn redacted(&self, text: &str) -> String {
        self.redactor.text(text).unwrap_or_else(|| text.to_owned())
    }

    /// The threads that live processes run, or are about to run.
    pub fn list_active(&self) -> Result<ActiveThreads> {
        list_active(&*self.store, &self.trust, &*self.processes)
    }

    /// The time by its clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Subscribes to everything that this engine does from now on: see [`crate::events`]. A thread that can't be found yet may be watched:
    /// its chain is known from its first event on.
    pub fn subscribe(&self, watched: Watched) -> Subscription {
        let end = match &watched {
            Watched::Thread(thread) => self.end_of_chain(thread).ok(),
            Watched::All => None,
        };
        let chain = end.and_then(|end| self.store.get(&end).ok()).map(|found| found.manifest.chain_root_id);
        self.bus.subscribe(watched, chain)
    }

    /// The outcome of an existing thread, for a process that asks again: one that never began is run, one that runs is waited for, and for
    /// any other its current state is returned.
    pub fn outcome_of(
        &self,
        thread: &ThreadId,
        work: impl Into<Arc<RunConfig>>,
        cancel: &Cancel,
        tell: &mut EventHandler<'_>,
    ) -> Result<Outcome> {
        let end = self.end_of_chain(thread)?;
        let summary = self.store.get(&end)?;
        match summary.manifest.status {
            Status::Created if summary.holder.is_none() => self.resume(thread, Input::nothing(), work, cancel, tell),
            Status::Created | Status::Running => {
                let waited = self.wait(std::slice::from_ref(thread), Duration::MAX, cancel)?;
                let outcome = waited.results.into_values().next();
                outcome.map_or_else(|| get_status(&*self.store, &self.trust, thread), Ok)
            }
            _ => get_status(&*self.store, &self.trust, thread),
        }
    }

    /// Runs a thread, or the end of its chain, with new input. When this returns, the run has ended and is committed. If another process
    /// holds the thread, the input is posted to its inbox and served by that process, or by this one once that one is gone.
    pub fn send(
        &self,
        thread: &ThreadId,
        input: Input,
        work: impl Into<Arc<RunConfig>>,
        cancel: &Cancel,
        tell: &mut EventHandler<'_>,
    ) -> Result<Outcome> {
        self.deliver_input(thread, input, None, HERE_IF_FREE, work.into(), cancel)?.wait(tell)
    }

    /// The same, as a request that its sender may repeat: sent again under the same id, it returns the recorded outcome, and nothing is done
    /// a second time.
    pub fn send_as(
        &self,
        thread: &ThreadId,
        id: RequestId,
        input: Input,
        work: impl Into<Arc<RunConfig>>,
        cancel: &Cancel,
        tell: &mut EventHandler<'_>,
    ) -> Result<Outcome> {
        self.deliver_input(thread, input, Some(id), HERE_IF_FREE, work.into(), cancel)?.wait(tell)
    }

    /// Accepts input for a thread, or for the end of its chain. When this returns, the input is durable, and a run in the background will
    /// serve it. The result can be awaited or waited for; when it is dropped, the run continues.
    pub fn submit(
        &self,
        thread: &ThreadId,
        input: Input,
        work: impl Into<Arc<RunConfig>>,
        cancel: &Cancel,
    ) -> Result<Submitted> {
        self.deliver_input(thread, input, None, POSTED, work.into(), cancel)
    }

    /// The same, as a request that its sender may repeat: sent again under the same id, its result is the recorded outcome, and nothing is
    /// done a second time.
    pub fn submit_as(
        &self,
        thread: &ThreadId,
        id: RequestId,
        input: Input,
        work: impl Into<Arc<RunConfig>>,
        cancel: &Cancel,
    ) -> Result<Submitted> {
        self.deliver_input(thread, input, Some(id), POSTED, work.into(), cancel)
    }

    /// Delivers input to the end of a chain, and runs it, or waits until it is served, in a task. Input under an id that was served before
    /// has its recorded outcome.
    fn deliver_input(
        &self,
        thread: &ThreadId,
        input: Input,
        id: Option<RequestId>,
        wait: Option<Duration>,
        work: Arc<RunConfig>,
        cancel: &Cancel,
    ) -> Result<Submitted> {
        if let Some(id) = &id
            && let Some(ended) = self.served_before(thread, id, &input)?
        {
            return self.perform(|_| async move { Ok(ended) });
        }
        let end = self.end_of_chain(thread)?;
        self.refuse_outside(&self.store.get(&end)?.manifest)?;
        // Input that this process can't run is not accepted.
        self.tasks.start()?;
        let request = id.map(|id| RunRequest { id, is_posted: wait.is_none() });
        let sent = self.deliver_send(&end, Start { input, request }, wait)?;
        let engine = self.clone();
        let cancel = cancel.clone();
        self.perform(|audience| async move {
            match sent {
                Sent::Here(lease, start) => engine.run_held(lease, start, work, cancel, audience).await,
                Sent::Queued(sent) => engine.await_served(sent, work, cancel, audience).await,
            }
        })
    }

    /// Spawns a task for a caller that may watch its events.
    pub(crate) fn perform<F>(&self, work: impl FnOnce(CallerEvents) -> F) -> Result<Submitted>
    where
        F: Future<Output = Result<Outcome>> + Send + 'static,
    {
        let (audience, events) = CallerEvents::new();
        let work = work(audience.clone());
        let last = Closing(audience);
        let task = self.tasks.spawn(async move {
            let _last = last;
            work.await
        })?;
        Ok(Submitted::new(task, events))
    }

    /// Resumes a thread that is suspended or whose process is gone; a message is optional. Without one, a thread that waits for an
    /// approval keeps waiting. A thread that ended continues in a successor, which starts with the whole conversation and the message; the
    /// message is required then. When this returns, the run has ended and is committed.
    pub fn resume(
        &self,
        thread: &ThreadId,
        input: Input,
        work: impl Into<Arc<RunConfig>>,
        cancel: &Cancel,
        tell: &mut EventHandler<'_>,
    ) -> Result<Outcome> {
        self.submit_resume(thread, input, work, cancel)?.wait(tell)
    }

    /// Resumes a thread as [`Engine::resume`] does, in a task: returns before anything has run. The outcome can be awaited or waited for;
    /// if it is dropped, the run continues.
    pub fn submit_resume(
        &self,
        thread: &ThreadId,
        input: Input,
        work: impl Into<Arc<RunConfig>>,
        cancel: &Cancel,
    ) -> Result<Submitted> {
        let engine = self.clone();
        let thread = thread.clone();
        let work = work.into();
        let cancel = cancel.clone();
        self.perform(|audience| engine.resumed(thread, input, work, cancel, audience))
    }

    /// The same, as a future. It is boxed because a child is resumed by the run of its parent.
    pub(crate) fn resumed(
        self,
        asked: ThreadId,
        input: Input,
        work: Arc<RunConfig>,
        cancel: Cancel,
        audience: CallerEvents,
    ) -> BoxFuture<'static, Result<Outcome>> {
        Box::pin(async move {
            let until = Instant::now() + BRIEF_HOLD;
            let mut waiter = None;
            let (lease, start, resumed) = loop {
                let left = until.saturating_duration_since(Instant::now());
                match self.take_resumed(&asked, input.clone(), &work, audience.clone()) {
                    // A process that only reads it, or delivers a request, releases it soon.
                    Err(Error::Store(StoreError::LeaseHeld { .. })) if !left.is_zero() => match &waiter {
                        Some(waiter) => _ = timeout(left, Waiter::woken(waiter)).await,
                        // Registered first, so that a release before the next attempt is not missed.
                        None => waiter = Some(self.watcher.waiter([], true)?),
                    },
                    taken => break taken?,
                }
            };
            let ended = self.run_held(lease, start, work, cancel, audience).await?;
            Ok(Outcome { resumed, ..ended })
        })
    }

    /// Takes the lease of the thread that runs when this one is resumed: the thread itself, or a successor that is created.
    fn take_resumed(
        &self,
        asked: &ThreadId,
        input: Input,
        work: &RunConfig,
        audience: CallerEvents,
    ) -> Result<(LeaseGuard, Start, Option<Resumed>)> {
        let (thread, mut held) = loop {
            let thread = self.end_of_chain(asked)?;
            let manifest = self.store.get(&thread)?.manifest;
            let status = manifest.status;
            self.refuse_outside(&manifest)?;
            if status == Status::Continued {
                // It was continued between two reads, or its successor was deleted or can't be found.
                let end = chain::end(&*self.store, &thread)?;
                if end.is_deleted {
                    return Err(StoreError::Deleted(end.thread).into());
                }
                if end.thread == thread || end.why.is_some() {
                    let why = end.why.unwrap_or_else(|| "it does not name its successor".to_owned());
                    return Err(Error::ChainDamaged { thread: end.thread, why });
                }
                continue;
            }
            if status.is_terminal() && input.messages.is_empty() {
                return Err(nothing_to_resume(thread, status));
            }
            // It is never left: it is refused while the thread is held.
            let resume = self.deliver(&thread, RequestKind::Resume, Some(Duration::ZERO), || Ok(None))?;
            let Arrival::Lease(lease) = resume else { continue };
            if !status.is_terminal() {
                return Ok((lease, Start::of(input), None));
            }
            let held = self.take(lease, &audience)?;
            // Another process may have continued it between the two reads; then the successor is resumed.
            let now = held.fold.manifest().status;
            if now.is_terminal() && now != Status::Continued {
                break (thread, held);
            }
            self.release_thread(held)?;
        };
        // Every reason to refuse is checked before anything is written: a refused resume has changed nothing.
        crate::graph::check_resumable(&held.fold)?;
        let limits = held.fund_successor(work, input.raise.as_ref())?;
        let successor = held.resumed(input.messages, limits)?;
        let resumed = Resumed {
            old_thread_id: thread.clone(),
            new_thread_id: successor.thread.clone(),
            original_thread_id: Some(asked.clone()).filter(|asked| *asked != thread),
            resolved_thread_id: thread,
            directive: held.fold.manifest().directive.clone(),
            reconstructed_turns: successor.turns,
        };
        // The lease was granted by the batch that created it: no other process can take it in between.
        let lease = held.resume_in(successor)?;
        let input = Input { state: input.state, origin: input.origin, ..Input::nothing() };
        Ok((lease, Start::of(input), Some(resumed)))
    }

    /// The last thread of a thread's chain; also for a thread that was deleted, by its tombstone.
    pub fn end_of_chain(&self, thread: &ThreadId) -> Result<ThreadId> {
        match self.store.get(thread) {
            Ok(found) if found.manifest.status != Status::Continued => return Ok(thread.clone()),
            Ok(_) => {}
            Err(error @ StoreError::Deleted(_)) => {
                let end = chain::end(&*self.store, thread)?;
                let is_there = end.summary.is_some() && !end.is_deleted;
                return is_there.then_some(end.thread).ok_or(error.into());
            }
            Err(error) => return Err(error.into()),
        }
        let chain = self.store.chain(thread)?;
        Ok(chain.into_iter().next_back().map_or_else(|| thread.clone(), |end| end.manifest.thread_id))
    }

    /// Refuses a thread whose active run is made by another program, unless a live process holds it: that one serves the request.
    pub(crate) fn refuse_outside(&self, manifest: &Manifest) -> Result<()> {
        if manifest.is_run_outside() && self.store.holder(&manifest.thread_id)?.is_none() {
            return Err(run_outside(&manifest.thread_id));
        }
        Ok(())
    }

    /// Opens a thread whose lease was just acquired, for a caller; a run whose process is gone is settled first. A run that is made by
    /// another program is left as it is.
    pub(crate) fn take(&self, lease: LeaseGuard, audience: &CallerEvents) -> Result<Box<HeldThread>> {
        self.take_observed(lease, audience, None)
    }

    /// The same, with the observer that a replay needs.
    pub(crate) fn take_observed(
        &self,
        lease: LeaseGuard,
        audience: &CallerEvents,
        observer: Option<Observer>,
    ) -> Result<Box<HeldThread>> {
        let fold = self.folds.get(self.snapshots.as_deref(), &*self.store, lease.thread(), &self.trust)?;
        let mut held = Box::new(HeldThread::new(lease, fold));
        held.audience = audience.clone();
        held.observer = observer;
        let manifest = held.fold.manifest();
        if manifest.status == Status::Running
            && !manifest.is_run_outside()
            && let Err(error) = settle_lost(&mut held)
        {
            _ = held.release();
            return Err(error);
        }
        Ok(held)
    }

    pub(crate) fn lock_active(&self) -> MutexGuard<'_, ActiveRuns> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for a thread whose active run is made by another program, so that no engine resumes or stops it.
pub(crate) fn run_outside(thread: &ThreadId) -> Error {
    let hint = "that program ends its run with a changeset of reason `RunFinished`: `selvedge append`".to_owned();
    let why = "its active run was recorded by another program, without a lease";
    Error::NotRunnable { thread: thread.clone(), status: Status::Running, why, hint }
}

pub(crate) fn nothing_to_resume(thread: ThreadId, status: Status) -> Error {
    let hint = format!("`selvedge resume {thread} \"…\"` continues it with a message");
    Error::NotRunnable { thread, status, why: "there is nothing to resume without a message", hint }
}

#[cfg(test)]
pub(crate) mod tests;
