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
//! - No wake-up is lost: the feed position is read before the first check. The feed does not report deaths, so every thread is checked twice
//!   a second.
//!
//! `decide` is pure: the registry's view goes in, what to do comes out.

use std::collections::{BTreeMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use selvedge_log::Trust;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::tool::Processes;
use selvedge_model::{Cancel, Manifest, Run, RunId, RunStatus, Status, Stop, ThreadId};
use selvedge_store::{Error as StoreError, Store, Summary};

use crate::chain;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::outcome::{self, Outcome, Outcomes};
use crate::standing::{Standing, started_for};

/// How often every thread is checked, with or without news.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// How often a blocking wait checks whether it was cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(100);
/// How long a thread that is about to be started may be without a holder: between a handoff or a spawn and its first run.
const GRACE: Duration = Duration::from_secs(2);
/// How many commits are read from the feed at once.
const FEED: usize = 1000;
/// The most threads of a chain that are followed.
const LINKS_MAX: usize = 10_000;

impl Engine {
    /// Waits for threads, at most this long; returns the outcome of each. Only reads.
    pub fn wait(&self, threads: &[ThreadId], timeout: Duration, cancel: &Cancel) -> Result<Outcomes> {
        wait_threads(&*self.store, &self.trust, &*self.processes, threads, timeout, cancel)
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

    /// Completes when there may be a commit after `position`, or when the timeout is over: the caller reads the feed again either way. It
    /// can be awaited on any runtime.
    pub fn submit_feed_wait(&self, position: u64, timeout: Duration) -> Result<BoxFuture<'static, ()>> {
        let engine = self.clone();
        let task = self.tasks.spawn(async move { engine.feed.after(position, timeout).await })?;
        Ok(Box::pin(task))
    }

    /// The same, without blocking a thread. It needs a tokio runtime with timers, as the tools of a run have.
    pub async fn wait_async(&self, threads: &[ThreadId], timeout: Duration, cancel: &Cancel) -> Result<Outcomes> {
        let engine = self.clone();
        let mut all = WaitSet::of(threads, timeout);
        let mut position = self.tasks.read(move || engine.store.position()).await?;
        loop {
            let engine = self.clone();
            let said = cancel.said();
            let look = move || {
                all.check(&*engine.store, &engine.trust, &*engine.processes, said)?;
                Ok::<_, Error>(all)
            };
            all = self.tasks.read(look).await?;
            if all.open.is_empty() {
                return Ok(Outcomes::new(all.results));
            }
            let mut stopped = pin!(cancel.stopped());
            let mut woken = pin!(self.feed.after(position, all.left().min(CHECK_EVERY)));
            poll_fn(|context| match stopped.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => woken.as_mut().poll(context),
            })
            .await;
            let engine = self.clone();
            let next = move || {
                all.read_feed(&*engine.store, &mut position)?;
                Ok::<_, Error>((all, position))
            };
            (all, position) = self.tasks.read(next).await?;
        }
    }
}

/// Waits for threads, at most this long; returns the outcome of each. Only reads.
pub fn wait_threads(
    store: &dyn Store,
    trust: &Trust,
    processes: &dyn Processes,
    threads: &[ThreadId],
    timeout: Duration,
    cancel: &Cancel,
) -> Result<Outcomes> {
    let mut all = WaitSet::of(threads, timeout);
    // Read before the first check: what is committed in between is seen again, never missed.
    let mut position = store.position()?;
    loop {
        all.check(store, trust, processes, cancel.said())?;
        if all.open.is_empty() {
            return Ok(Outcomes::new(all.results));
        }
        store.wait(position, all.left().min(CANCEL_POLL))?;
        all.read_feed(store, &mut position)?;
    }
}

/// All threads that are waited for together.
struct WaitSet {
    open: Vec<WaitEntry>,
    results: BTreeMap<ThreadId, Outcome>,
    deadline: Option<Instant>,
    /// When every thread was checked last.
    looked_at: Instant,
    /// The threads with commits since the last check; none if that is unknown, and every thread is checked.
    news: Option<HashSet<ThreadId>>,
}

impl WaitSet {
    fn of(threads: &[ThreadId], timeout: Duration) -> Self {
        let open = threads.iter().collect::<HashSet<_>>().into_iter().map(WaitEntry::new).collect();
        let deadline = Instant::now().checked_add(timeout);
        Self { open, results: BTreeMap::new(), deadline, looked_at: Instant::now(), news: None }
    }

    /// How much time is left.
    fn left(&self) -> Duration {
        self.deadline.map_or(CHECK_EVERY, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Checks every thread that has news. If the time is over, or the wait is cancelled, nothing stays open.
    fn check(&mut self, store: &dyn Store, trust: &Trust, processes: &dyn Processes, stop: Option<Stop>) -> Result<()> {
        for mut waiting in std::mem::take(&mut self.open) {
            let is_news = self.news.as_ref().is_none_or(|news| news.contains(&waiting.at));
            match if is_news { waiting.check(store, trust, processes)? } else { None } {
                Some(outcome) => _ = self.results.insert(waiting.asked.clone(), waiting.asked_for(outcome)),
                None => self.open.push(waiting),
            }
        }
        let ended_as = match (stop, self.left().is_zero()) {
            (Some(_), _) => Some(Standing::Interrupted),
            (None, true) => Some(Standing::Timeout),
            (None, false) => None,
        };
        if let Some(status) = ended_as {
            for waiting in self.open.drain(..) {
                let outcome = waiting.unfinished(store, trust, status)?;
                self.results.insert(waiting.asked.clone(), waiting.asked_for(outcome));
            }
        }
        Ok(())
    }

    /// Reads what was committed after a feed position.
    fn read_feed(&mut self, store: &dyn Store, position: &mut u64) -> Result<()> {
        self.news = None;
        if self.looked_at.elapsed() < CHECK_EVERY {
            let page = store.after(*position, FEED)?;
            *position = page.last().map_or(*position, |last| last.position);
            self.news = Some(page.into_iter().map(|commitment| commitment.thread).collect());
        } else {
            // Read before every thread is checked again.
            *position = store.position()?;
            self.looked_at = Instant::now();
        }
        Ok(())
    }
}

/// What is waited for at one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
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
    /// Whether its last run handed it off, as opposed to a later resume.
    pub(crate) is_handed_off: bool,
}

/// What to do about a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Check again later, for this.
    Wait(Target),
    /// Check again later, but not for ever: no process holds it.
    Unheld(Target),
    /// Continue with this thread.
    Follow(ThreadId, Target),
    /// It has ended, in this state.
    Over(Standing, Option<RunId>),
}

/// What to do about a thread in this view.
pub(crate) fn decide(target: &Target, seen: &ThreadView) -> Step {
    let ThreadView { manifest, runs, is_held, is_handed_off } = seen;
    let next = chain::next(manifest);
    let target = match (target, manifest.status, &manifest.run_id, next.clone()) {
        // It was continued before the wait began.
        (Target::Unknown, Status::Continued, _, Some(next)) => return Step::Follow(next, Target::Unknown),
        (Target::Unknown, Status::Running, Some(run), _) => Target::Run(run.clone()),
        (Target::Unknown, Status::Running | Status::Created, ..) => Target::First,
        (Target::Unknown, status, ..) => return Step::Over(status.into(), runs.last().map(|run| run.run_id.clone())),
        (target, ..) => target.clone(),
    };
    let run = match &target {
        Target::Run(wanted) => runs.iter().find(|run| run.run_id == *wanted),
        _ => runs.first(),
    };
    let is_last = |run: &Run| runs.last().is_some_and(|last| last.run_id == run.run_id);
    let ended_as = run
        .filter(|run| run.meta.status != RunStatus::Running)
        .map(|run| if *is_handed_off && is_last(run) { Status::Continued } else { run.meta.thread_status() });
    match (ended_as, manifest.status, next) {
        // The other half of a handoff is not visible yet: check again.
        (Some(Status::Continued), _, None) => Step::Wait(target),
        (Some(Status::Continued) | None, Status::Continued, Some(next)) => Step::Follow(next, Target::First),
        (Some(Status::Continued), _, Some(next)) => Step::Follow(next, Target::First),
        (Some(status), ..) => Step::Over(status.into(), run.map(|run| run.run_id.clone())),
        (None, Status::Running | Status::Created, _) if *is_held => Step::Wait(target),
        (None, Status::Running, _) => Step::Over(Standing::Stalled, run.map(|run| run.run_id.clone())),
        (None, Status::Created, _) => Step::Unheld(target),
        // It was settled without an end of its run.
        (None, status, _) => Step::Over(status.into(), run.map(|run| run.run_id.clone())),
    }
}

/// One thread that is waited for, and how far its chain was followed.
struct WaitEntry {
    asked: ThreadId,
    at: ThreadId,
    target: Target,
    followed: HashSet<ThreadId>,
    unheld_since: Option<Instant>,
}

impl WaitEntry {
    fn new(asked: &ThreadId) -> Self {
        Self {
            asked: asked.clone(),
            at: asked.clone(),
            target: Target::Unknown,
            followed: HashSet::new(),
            unheld_since: None,
        }
    }

    /// Follows the chain as far as it goes; returns the outcome, once it is over.
    fn check(&mut self, store: &dyn Store, trust: &Trust, processes: &dyn Processes) -> Result<Option<Outcome>> {
        loop {
            let Some((summary, is_deleted)) = chain::known(store, &self.at)? else {
                return Ok(Some(self.lost()));
            };
            let next = chain::next(&summary.manifest).filter(|_| is_deleted);
            let step = match (is_deleted, next) {
                (false, _) => match see(store, trust, processes, summary.clone())? {
                    Some(seen) => decide(&self.target, &seen),
                    // It was deleted just now.
                    None => continue,
                },
                (true, Some(next)) if self.target == Target::Unknown => Step::Follow(next, Target::Unknown),
                (true, Some(next)) => Step::Follow(next, Target::First),
                (true, None) => Step::Over(Standing::Deleted, None),
            };
            match step {
                Step::Wait(target) => {
                    self.target = target;
                    self.unheld_since = None;
                    return Ok(None);
                }
                Step::Unheld(target) => {
                    self.target = target;
                    if self.unheld_since.get_or_insert_with(Instant::now).elapsed() < GRACE {
                        return Ok(None);
                    }
                    let why = "no process has started it".to_owned();
                    let outcome = Outcome::of_log(store, trust, &self.at, Standing::Stalled, None)?;
                    return Ok(Some(outcome.because(Some(why))));
                }
                Step::Follow(next, target) => {
                    if !self.followed.insert(self.at.clone())
                        || self.followed.contains(&next)
                        || self.followed.len() >= LINKS_MAX
                    {
                        let why = format!("its chain leads in a circle, back to `{next}`");
                        return Ok(Some(Outcome::bare(Standing::Stalled, self.at.clone(), Some(why))));
                    }
                    self.at = next;
                    self.target = target;
                    self.unheld_since = None;
                }
                Step::Over(Standing::Deleted, _) => return outcome::deleted(store, &summary.manifest).map(Some),
                Step::Over(standing, run) => {
                    let outcome = Outcome::of_log(store, trust, &self.at, standing, run.as_ref())?;
                    let why = (standing == Standing::Stalled).then(|| "the process that ran it is gone".to_owned());
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
        Outcome::bare(Standing::Stalled, self.at.clone(), Some(why))
    }

    /// The outcome of a thread that has not ended.
    fn unfinished(&self, store: &dyn Store, trust: &Trust, status: Standing) -> Result<Outcome> {
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
fn see(
    store: &dyn Store,
    trust: &Trust,
    processes: &dyn Processes,
    mut summary: Summary,
) -> Result<Option<ThreadView>> {
    loop {
        let thread = summary.manifest.thread_id.clone();
        let is_held = match summary.manifest.status {
            Status::Running => !summary.is_stalled(),
            Status::Created => may_be_started(store, trust, processes, &summary)?,
            _ => false,
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
            return Ok(Some(ThreadView { manifest: now.manifest, runs, is_held, is_handed_off }));
        }
        summary = now;
    }
}

/// Whether a live process has a thread that has not run, or is to run it: the process that was started for it, the holder of the thread
/// it continues, or the holder of its parent, which waits for it.
fn may_be_started(store: &dyn Store, trust: &Trust, processes: &dyn Processes, thread: &Summary) -> Result<bool> {
    let manifest = &thread.manifest;
    if thread.holder.is_some() {
        return Ok(true);
    }
    let is_held = |other: &ThreadId| -> Result<bool> {
        let end = chain::end(store, other)?;
        Ok(end.thread != manifest.thread_id && end.summary.is_some_and(|end| end.holder.is_some()))
    };
    if let Some(before) = &manifest.continuation_of {
        return is_held(before);
    }
    // If it can't be known which process was started for it, the holder of its parent may be the one.
    match started_for(store, trust, manifest).ok().flatten() {
        Some(process) => Ok(processes.may_live(&process)),
        None => manifest.parent_id.as_ref().map_or(Ok(false), is_held),
    }
}
