//! Waits for threads, in this process or any other.
//!
//! Invariants:
//!
//! - A wait ends with the run that was active when it began, whatever runs afterwards; without an active run it ends at once with the state
//!   of the thread. A run that hands off continues in the first run of the successor, however often that happens.
//! - Every end of a run ends the wait, also a suspension: that may last for ever, until a person acts.
//! - A wait never lasts for a dead process: a run whose process is gone, a child whose process died before it began, and a successor that no
//!   process starts, are `stalled`. A wait only reads: the next process that acquires the thread's lease settles it.
//! - A run that is made by another program is waited for: that program ends it.
//! - Outcomes come from verified logs: the log of a thread that ended is read and verified once, at the end of the wait and not during it.
//! - No wake-up is lost: a wait is registered before it checks, and wakes for commits to its threads and, unless this process runs them,
//!   for freed leases. Only a process that was started for a thread and has not opened the store yet dies without a trace: its thread is
//!   checked twice a second until it begins.
//!
//! `decide` is pure: the registry's view goes in, what to do comes out.

use std::collections::{BTreeMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use selvedge_log::Trust;
use selvedge_model::blocking::{BoxFuture, wait};
use selvedge_model::tool::Processes;
use selvedge_model::{Cancel, Manifest, OwnerId, Run, RunId, RunStatus, Status, Stop, ThreadId};
use selvedge_store::{Error as StoreError, Position, Store, Summary};
use tokio::time::timeout;

use crate::chain;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::outcome::{self, Outcome, Outcomes};
use crate::thread_state::{ThreadState, started_for};
use crate::watcher::{News, Waiter};

/// The least time between two checks of all threads because of freed leases: many may be freed at once.
const CHECK_PAUSE: Duration = Duration::from_millis(500);
/// How long a thread that is about to be started may be without a holder: between a handoff or a spawn and its first run.
const GRACE: Duration = Duration::from_secs(2);
/// How many commits are read from the feed at once.
const FEED: usize = 1000;
/// The most threads of a chain that are followed.
const LINKS_MAX: usize = 10_000;

impl Engine {
    /// Waits for threads, at most this long; returns the outcome of each. Only reads.
    pub fn wait(&self, threads: &[ThreadId], timeout: Duration, cancel: &Cancel) -> Result<Outcomes> {
        wait(self.submit_wait(threads.to_vec(), timeout, cancel.clone())?)
    }

    /// Waits for threads in a task, so that the result can be awaited on any runtime. Only `cancel` and the timeout end the wait; dropping
    /// the future does not.
    pub fn submit_wait(
        &self,
        threads: Vec<ThreadId>,
        timeout: Duration,
        cancel: Cancel,
    ) -> Result<BoxFuture<'static, Result<Outcomes>>> {
        let engine = self.clone();
        let task = self.tasks.spawn(async move { engine.wait_async(&threads, timeout, &cancel).await })?;
        Ok(Box::pin(task))
    }

    /// Is woken by every commit to a thread from now on: the caller reads the log, waits, and reads it again. It can be awaited on any
    /// runtime.
    pub fn waiter(&self, thread: &ThreadId) -> Result<Waiter> {
        self.watcher.waiter([thread.clone()], false)
    }

    /// The same, without blocking a thread. It needs a tokio runtime with timers, as the tools of a run have.
    pub async fn wait_async(&self, threads: &[ThreadId], timeout: Duration, cancel: &Cancel) -> Result<Outcomes> {
        let mut all = WaitSet::of(threads, timeout);
        let waiter = self.watcher.waiter(all.threads(), true)?;
        loop {
            let engine = self.clone();
            let said = cancel.said();
            let look = move || {
                let registry = Registry {
                    store: &*engine.store,
                    trust: &engine.trust,
                    processes: &*engine.processes,
                    own: Some(engine.store.owner()),
                };
                all.check(&registry, said)?;
                Ok::<_, Error>(all)
            };
            all = self.tasks.read(look).await?;
            if all.open.is_empty() {
                return Ok(Outcomes::new(all.results));
            }
            let added = waiter.follow(all.threads(), all.watches_leases());
            if added.is_empty() {
                all.sleep(&waiter, cancel).await;
                all.news.add(waiter.news());
            } else {
                // They may have changed before they were followed.
                all.news.threads.extend(added);
            }
        }
    }
}

/// Waits for threads on this OS thread, at most this long; returns the outcome of each. Only reads.
pub fn wait_threads(
    store: &dyn Store,
    trust: &Trust,
    processes: &dyn Processes,
    threads: &[ThreadId],
    timeout: Duration,
) -> Result<Outcomes> {
    let registry = Registry { store, trust, processes, own: None };
    let mut all = WaitSet::of(threads, timeout);
    let mut seen = Position { requests: u64::MAX, ..Position::default() };
    loop {
        // Read before the check: what happens in between is seen again, never missed.
        let leases = store.leases_freed();
        if all.news.all {
            seen.commits = store.position()?;
        }
        all.check(&registry, None)?;
        if all.open.is_empty() {
            return Ok(Outcomes::new(all.results));
        }
        seen.leases = if all.watches_leases() { leases } else { u64::MAX };
        store.watch(seen, all.pause())?;
        all.news.leases |= store.leases_freed() > leases;
        let page = store.after(seen.commits, FEED)?;
        seen.commits = page.last().map_or(seen.commits, |last| last.position);
        all.news.threads.extend(page.into_iter().map(|commit| commit.thread));
    }
}

/// Where threads are looked up.
struct Registry<'l> {
    store: &'l dyn Store,
    trust: &'l Trust,
    processes: &'l dyn Processes,
    /// The owner whose leases end by commits, or by `Watcher::abandoned`; none for a wait without an engine.
    own: Option<&'l OwnerId>,
}

/// All threads that are waited for together.
struct WaitSet {
    open: Vec<WaitEntry>,
    results: BTreeMap<ThreadId, Outcome>,
    deadline: Option<Instant>,
    /// When they were checked last because of freed leases.
    leases_checked_at: Option<Instant>,
    /// What has happened since the last check.
    news: News,
}

impl WaitSet {
    fn of(threads: &[ThreadId], timeout: Duration) -> Self {
        let open = threads.iter().collect::<HashSet<_>>().into_iter().map(WaitEntry::new).collect();
        let deadline = Instant::now().checked_add(timeout);
        let news = News { all: true, ..News::default() };
        Self { open, results: BTreeMap::new(), deadline, leases_checked_at: None, news }
    }

    /// How much time is left.
    fn left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The threads that are waited for now.
    fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.open.iter().map(|waiting| waiting.at.clone())
    }

    fn watches_leases(&self) -> bool {
        self.open.iter().any(|waiting| waiting.end != EndsBy::Record)
    }

    /// How long to wait for news.
    fn pause(&self) -> Duration {
        let due = self.open.iter().filter_map(|waiting| waiting.check_at).min();
        let due = due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
        let later = if self.news.leases { self.until_leases() } else { Duration::MAX };
        self.left().min(due).min(later)
    }

    /// How long freed leases are not looked at yet.
    fn until_leases(&self) -> Duration {
        self.leases_checked_at.map_or(Duration::ZERO, |at| CHECK_PAUSE.saturating_sub(at.elapsed()))
    }

    async fn sleep(&self, waiter: &Waiter, cancel: &Cancel) {
        let mut stopped = pin!(cancel.stopped());
        let mut woken = pin!(timeout(self.pause(), waiter.noted()));
        poll_fn(|context| match stopped.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => woken.as_mut().poll(context).map(|_| ()),
        })
        .await;
    }

    /// Checks every thread that has news. If the time is over, or the wait is cancelled, nothing stays open.
    fn check(&mut self, registry: &Registry<'_>, stop: Option<Stop>) -> Result<()> {
        let now = Instant::now();
        let are_leases_due = self.news.leases && self.until_leases().is_zero();
        if are_leases_due {
            self.leases_checked_at = Some(now);
        }
        let leases = self.news.leases && !are_leases_due;
        let News { all, threads, .. } = std::mem::replace(&mut self.news, News { leases, ..News::default() });
        for mut waiting in std::mem::take(&mut self.open) {
            let is_news = all
                || threads.contains(&waiting.at)
                || (are_leases_due && waiting.end != EndsBy::Record)
                || waiting.check_at.is_some_and(|at| at <= now);
            match if is_news { waiting.check(registry)? } else { None } {
                Some(outcome) => _ = self.results.insert(waiting.asked.clone(), waiting.asked_for(outcome)),
                None => self.open.push(waiting),
            }
        }
        let ended_as = match (stop, self.left().is_zero()) {
            (Some(_), _) => Some(ThreadState::Interrupted),
            (None, true) => Some(ThreadState::Timeout),
            (None, false) => None,
        };
        if let Some(status) = ended_as {
            for waiting in self.open.drain(..) {
                let outcome = waiting.unfinished(registry.store, registry.trust, status)?;
                self.results.insert(waiting.asked.clone(), waiting.asked_for(outcome));
            }
        }
        Ok(())
    }
}

/// What is waited for at one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitTarget {
    /// It has not been checked yet.
    Unknown,
    /// The end of this run.
    Run(RunId),
    /// The end of the first run.
    First,
}

/// The registry's view of a thread.
#[derive(Clone, Debug)]
pub(crate) struct ThreadView {
    pub(crate) manifest: Manifest,
    pub(crate) runs: Vec<Run>,
    /// Whether a live process holds it, or may be about to start it.
    pub(crate) is_held: bool,
    /// What can end the wait for it.
    pub(crate) end: EndsBy,
    /// Whether its last run handed it off, as opposed to a later resume.
    pub(crate) is_handed_off: bool,
}

/// What can end the wait for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndsBy {
    /// Only its record: this process runs it, or a program that needs no lease.
    Record,
    /// Its record, or the end of a lease.
    Lease,
    /// Also the death of a process that may not have opened the store yet.
    Start,
}

/// What to do about a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitStep {
    /// Check again later, for this.
    Wait(WaitTarget),
    /// Check again later, but not for ever: no process holds it.
    Unheld(WaitTarget),
    /// Continue with this thread.
    Follow(ThreadId, WaitTarget),
    /// It has ended, in this state.
    Over(ThreadState, Option<RunId>),
}

/// What to do about a thread in this view.
pub(crate) fn decide(target: &WaitTarget, seen: &ThreadView) -> WaitStep {
    let ThreadView { manifest, runs, is_held, is_handed_off, .. } = seen;
    let next = chain::next(manifest);
    let target = match (target, manifest.status, &manifest.run_id, next.clone()) {
        // It was continued before the wait began.
        (WaitTarget::Unknown, Status::Continued, _, Some(next)) => return WaitStep::Follow(next, WaitTarget::Unknown),
        (WaitTarget::Unknown, Status::Running, Some(run), _) => WaitTarget::Run(run.clone()),
        (WaitTarget::Unknown, Status::Running | Status::Created, ..) => WaitTarget::First,
        (WaitTarget::Unknown, status, ..) => {
            return WaitStep::Over(status.into(), runs.last().map(|run| run.run_id.clone()));
        }
        (target, ..) => target.clone(),
    };
    let run = match &target {
        WaitTarget::Run(wanted) => runs.iter().find(|run| run.run_id == *wanted),
        _ => runs.first(),
    };
    let is_last = |run: &Run| runs.last().is_some_and(|last| last.run_id == run.run_id);
    let ended_as = run
        .filter(|run| run.meta.status != RunStatus::Running)
        .map(|run| if *is_handed_off && is_last(run) { Status::Continued } else { run.meta.thread_status() });
    match (ended_as, manifest.status, next) {
        // The other half of a handoff is not visible yet: check again.
        (Some(Status::Continued), _, None) => WaitStep::Wait(target),
        (Some(Status::Continued) | None, Status::Continued, Some(next)) => WaitStep::Follow(next, WaitTarget::First),
        (Some(Status::Continued), _, Some(next)) => WaitStep::Follow(next, WaitTarget::First),
        (Some(status), ..) => WaitStep::Over(status.into(), run.map(|run| run.run_id.clone())),
        (None, Status::Running | Status::Created, _) if *is_held => WaitStep::Wait(target),
        (None, Status::Running, _) => WaitStep::Over(ThreadState::Stalled, run.map(|run| run.run_id.clone())),
        (None, Status::Created, _) => WaitStep::Unheld(target),
        // It was settled without an end of its run.
        (None, status, _) => WaitStep::Over(status.into(), run.map(|run| run.run_id.clone())),
    }
}

/// One thread that is waited for, and how far its chain was followed.
struct WaitEntry {
    asked: ThreadId,
    at: ThreadId,
    target: WaitTarget,
    followed: HashSet<ThreadId>,
    unheld_since: Option<Instant>,
    end: EndsBy,
    /// When it is to be checked again, with or without news.
    check_at: Option<Instant>,
}

impl WaitEntry {
    fn new(asked: &ThreadId) -> Self {
        Self {
            asked: asked.clone(),
            at: asked.clone(),
            target: WaitTarget::Unknown,
            followed: HashSet::new(),
            unheld_since: None,
            end: EndsBy::Lease,
            check_at: None,
        }
    }

    /// Follows the chain as far as it goes; returns the outcome, once it is over.
    fn check(&mut self, registry: &Registry<'_>) -> Result<Option<Outcome>> {
        let Registry { store, trust, .. } = *registry;
        loop {
            let Some((summary, is_deleted)) = chain::known(store, &self.at)? else {
                return Ok(Some(self.lost()));
            };
            let next = chain::next(&summary.manifest).filter(|_| is_deleted);
            let step = match (is_deleted, next) {
                (false, _) => match see(registry, summary.clone())? {
                    Some(seen) => {
                        self.end = seen.end;
                        self.check_at = (seen.end == EndsBy::Start).then(|| Instant::now() + CHECK_PAUSE);
                        decide(&self.target, &seen)
                    }
                    // It was deleted just now.
                    None => continue,
                },
                (true, Some(next)) if self.target == WaitTarget::Unknown => WaitStep::Follow(next, WaitTarget::Unknown),
                (true, Some(next)) => WaitStep::Follow(next, WaitTarget::First),
                (true, None) => WaitStep::Over(ThreadState::Deleted, None),
            };
            match step {
                WaitStep::Wait(target) => {
                    self.target = target;
                    self.unheld_since = None;
                    return Ok(None);
                }
                WaitStep::Unheld(target) => {
                    self.target = target;
                    let until = *self.unheld_since.get_or_insert_with(Instant::now) + GRACE;
                    if Instant::now() < until {
                        self.check_at = Some(until);
                        return Ok(None);
                    }
                    let why = "no process has started it".to_owned();
                    let outcome = Outcome::of_log(store, trust, &self.at, ThreadState::Stalled, None)?;
                    return Ok(Some(outcome.because(Some(why))));
                }
                WaitStep::Follow(next, target) => {
                    if !self.followed.insert(self.at.clone())
                        || self.followed.contains(&next)
                        || self.followed.len() >= LINKS_MAX
                    {
                        let why = format!("its chain leads in a circle, back to `{next}`");
                        return Ok(Some(Outcome::bare(ThreadState::Stalled, self.at.clone(), Some(why))));
                    }
                    self.at = next;
                    self.target = target;
                    self.unheld_since = None;
                }
                WaitStep::Over(ThreadState::Deleted, _) => return outcome::deleted(store, &summary.manifest).map(Some),
                WaitStep::Over(state, run) => {
                    let outcome = Outcome::of_log(store, trust, &self.at, state, run.as_ref())?;
                    let why = (state == ThreadState::Stalled).then(|| "the process that ran it is gone".to_owned());
                    return Ok(Some(outcome.because(why)));
                }
            }
        }
    }

    /// The outcome, with the thread that was asked for.
    fn asked_for(&self, outcome: Outcome) -> Outcome {
        let original_thread_id = Some(self.asked.clone()).filter(|asked| *asked != outcome.thread_id);
        Outcome { original_thread_id, ..outcome }
    }

    /// The outcome of a thread that does not exist.
    fn lost(&self) -> Outcome {
        if self.at == self.asked {
            return Outcome::unknown(self.at.clone());
        }
        let why = format!("`{}` was continued as `{}`, which does not exist", self.asked, self.at);
        Outcome::bare(ThreadState::Stalled, self.at.clone(), Some(why))
    }

    /// The outcome of a thread that has not ended.
    fn unfinished(&self, store: &dyn Store, trust: &Trust, status: ThreadState) -> Result<Outcome> {
        match chain::known(store, &self.at)? {
            Some((Summary { manifest, .. }, false)) => {
                let run = manifest.run_id.clone();
                let outcome = Outcome::of_log(store, trust, &self.at, status, run.as_ref())?;
                Ok(outcome.because(Some(format!("it is still {}", manifest.status))))
            }
            _ => Ok(Outcome::bare(status, self.at.clone(), None)),
        }
    }
}

/// The registry's view of a thread; none if it was deleted meanwhile.
fn see(registry: &Registry<'_>, mut summary: Summary) -> Result<Option<ThreadView>> {
    let store = registry.store;
    loop {
        let thread = summary.manifest.thread_id.clone();
        let (is_held, end) = match (summary.manifest.status, &summary.holder) {
            (Status::Created, _) => may_be_started(registry, &summary)?,
            (Status::Running, holder)
                if summary.manifest.is_run_outside() || (holder.is_some() && holder.as_ref() == registry.own) =>
            {
                (true, EndsBy::Record)
            }
            (Status::Running, holder) => (holder.is_some(), EndsBy::Lease),
            _ => (false, EndsBy::Record),
        };
        let runs = match store.runs(&thread) {
            Ok(runs) => runs,
            Err(StoreError::Deleted(_) | StoreError::NoThread(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The process that ran it may have ended it and exited between two of these reads.
        let Some((now, false)) = chain::known(store, &thread)? else { return Ok(None) };
        let is_same =
            (now.manifest.status, &now.manifest.run_id) == (summary.manifest.status, &summary.manifest.run_id);
        if is_held || is_same {
            let is_handed_off = now.manifest.status == Status::Continued && chain::is_handed_off(store, &thread)?;
            return Ok(Some(ThreadView { manifest: now.manifest, runs, is_held, end, is_handed_off }));
        }
        summary = now;
    }
}

/// Whether a live process is about to run a thread that has not run.
pub(crate) fn is_about_to_run(
    store: &dyn Store,
    trust: &Trust,
    processes: &dyn Processes,
    thread: &Summary,
) -> Result<bool> {
    may_be_started(&Registry { store, trust, processes, own: None }, thread).map(|(is_held, _)| is_held)
}

/// Whether a live process has a thread that has not run, or is to run it: the process that was started for it, the holder of the thread
/// it continues, or the holder of its parent, which waits for it. And what can end the wait for it.
fn may_be_started(registry: &Registry<'_>, thread: &Summary) -> Result<(bool, EndsBy)> {
    let Registry { store, trust, processes, .. } = *registry;
    let manifest = &thread.manifest;
    if thread.holder.is_some() {
        return Ok((true, EndsBy::Lease));
    }
    let is_held = |other: &ThreadId| -> Result<(bool, EndsBy)> {
        let end = chain::end(store, other)?;
        let is_held = end.thread != manifest.thread_id && end.summary.is_some_and(|end| end.holder.is_some());
        Ok((is_held, EndsBy::Lease))
    };
    if let Some(before) = &manifest.continuation_of {
        return is_held(before);
    }
    // If it can't be known which process was started for it, the holder of its parent may be the one.
    match started_for(store, trust, manifest).ok().flatten() {
        Some(process) => Ok((processes.may_live(&process), EndsBy::Start)),
        None => manifest.parent_id.as_ref().map_or(Ok((false, EndsBy::Lease)), is_held),
    }
}
