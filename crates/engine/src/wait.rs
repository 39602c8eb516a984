//! Waiting for threads, in this process or any other.
//!
//! What holds:
//!
//! - A wait ends with the run that was active when it began, whatever runs afterwards; where no run is active it ends at once with how
//!   the thread stands. A run that hands itself over goes on in the successor's first run, as often as that happens.
//! - Whatever ends a run ends the wait, a suspension too: it may last for ever, and somebody is needed.
//! - A wait never lasts for a dead process: a run whose process is gone, a child whose process died before it began, and a successor
//!   that no process starts, are `stalled`. A wait only reads: the next process that takes the thread's lease settles it.
//! - A run that no engine makes is waited for: its writer ends it.
//! - What is given was signed: whoever has ended is read and checked once, at the end of the wait and not while it lasts.
//! - No wake-up is lost: the place in the feed is taken before the first look. Deaths are in no feed, so everybody looks twice a second.
//!
//! `decide` is pure: what the registry says goes in, what to do comes out.

use std::collections::{BTreeMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use selvedge_log::Trust;
use selvedge_model::tool::Processes;
use selvedge_model::{Cancel, Manifest, Run, RunId, RunStatus, Status, Stop, ThreadId};
use selvedge_store::{Error as StoreError, Store, Summary};

use crate::chain;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::outcome::{self, Outcome, Outcomes};
use crate::standing::{Standing, started_for};

/// How often everybody looks, told or not.
const LOOK: Duration = Duration::from_millis(500);
/// How often somebody looks whether they are still to wait.
const STOP: Duration = Duration::from_millis(100);
/// How long nobody need have a thread that is about to be started: between a handoff or a spawn and its first run.
const GRACE: Duration = Duration::from_secs(2);
/// How many commits are taken from the feed at once.
const FEED: usize = 1000;
/// How many threads of a chain are followed at most.
const LINKS_MAX: usize = 10_000;

impl Engine {
    /// Waits for threads, at most this long; gives the outcome of each. Only reads.
    pub fn wait(&self, threads: &[ThreadId], timeout: Duration, cancel: &Cancel) -> Result<Outcomes> {
        wait_threads(&*self.store, &self.trust, &*self.processes, threads, timeout, cancel)
    }

    /// The same, without a thread that waits. It needs a runtime of tokio with timers, as the tools of a run have.
    pub async fn wait_async(&self, threads: &[ThreadId], timeout: Duration, cancel: &Cancel) -> Result<Outcomes> {
        let engine = self.clone();
        let mut all = All::of(threads, timeout);
        let mut position = self.tasks.block(move || engine.store.position()).await?;
        loop {
            let (engine, said) = (self.clone(), cancel.said());
            let look = move || {
                all.look(&*engine.store, &engine.trust, &*engine.processes, said)?;
                Ok::<_, Error>(all)
            };
            all = self.tasks.block(look).await?;
            if all.open.is_empty() {
                return Ok(Outcomes::new(all.results));
            }
            let mut stopped = pin!(cancel.stopped());
            let mut woken = pin!(self.feed.after(position, all.left().min(LOOK)));
            poll_fn(|context| match stopped.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => woken.as_mut().poll(context),
            })
            .await;
            let engine = self.clone();
            let next = move || {
                all.turn(&*engine.store, &mut position)?;
                Ok::<_, Error>((all, position))
            };
            (all, position) = self.tasks.block(next).await?;
        }
    }
}

/// Waits for threads, at most this long; gives what came of each.
pub fn wait_threads(
    store: &dyn Store,
    trust: &Trust,
    processes: &dyn Processes,
    threads: &[ThreadId],
    timeout: Duration,
    cancel: &Cancel,
) -> Result<Outcomes> {
    let mut all = All::of(threads, timeout);
    // Asked before the first look: what is committed in between is looked for again, never missed.
    let mut position = store.position()?;
    loop {
        all.look(store, trust, processes, cancel.said())?;
        if all.open.is_empty() {
            return Ok(Outcomes::new(all.results));
        }
        store.wait(position, all.left().min(STOP))?;
        all.turn(store, &mut position)?;
    }
}

/// All threads that are waited for together.
struct All {
    open: Vec<Waiting>,
    results: BTreeMap<ThreadId, Outcome>,
    deadline: Option<Instant>,
    /// When everything was looked at last.
    looked_at: Instant,
    /// The threads that were committed to since the last look; everything is looked at if that is not known.
    news: Option<HashSet<ThreadId>>,
}

impl All {
    fn of(threads: &[ThreadId], timeout: Duration) -> Self {
        let open = threads.iter().collect::<HashSet<_>>().into_iter().map(Waiting::new).collect();
        let deadline = Instant::now().checked_add(timeout);
        Self { open, results: BTreeMap::new(), deadline, looked_at: Instant::now(), news: None }
    }

    /// How much time is left.
    fn left(&self) -> Duration {
        self.deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Looks at every thread of which there is news; if the time is over, or it is to stop, nothing stays open.
    fn look(&mut self, store: &dyn Store, trust: &Trust, processes: &dyn Processes, stop: Option<Stop>) -> Result<()> {
        for mut waiting in std::mem::take(&mut self.open) {
            let is_news = self.news.as_ref().is_none_or(|news| news.contains(&waiting.at));
            match if is_news { waiting.look(store, trust, processes)? } else { None } {
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

    /// Takes up what was committed behind a place in the feed.
    fn turn(&mut self, store: &dyn Store, position: &mut u64) -> Result<()> {
        self.news = None;
        if self.looked_at.elapsed() < LOOK {
            let page = store.after(*position, FEED)?;
            *position = page.last().map_or(*position, |last| last.position);
            self.news = Some(page.into_iter().map(|commitment| commitment.thread).collect());
        } else {
            // Taken before everything is looked at again.
            *position = store.position()?;
            self.looked_at = Instant::now();
        }
        Ok(())
    }
}

/// What is waited for at one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nobody has looked yet.
    Whatever,
    /// The end of this run.
    Run(RunId),
    /// The end of the first run.
    First,
}

/// What the registry says of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) manifest: Manifest,
    pub(crate) runs: Vec<Run>,
    /// Whether somebody alive has it, or may be about to start it.
    pub(crate) is_held: bool,
    /// Whether its last run handed it over, as opposed to somebody who resumed it later.
    pub(crate) is_handed_over: bool,
}

/// What to do about a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again later, for this.
    Wait(Target),
    /// Look again later, and not for ever: nobody has it.
    Unheld(Target),
    /// Go on with this thread.
    Follow(ThreadId, Target),
    /// It has ended so.
    Over(Standing, Option<RunId>),
}

/// What to do about a thread that is seen like this.
pub(crate) fn decide(target: &Target, seen: &Seen) -> Step {
    let Seen { manifest, runs, is_held, is_handed_over } = seen;
    let next = chain::next(manifest);
    let target = match (target, manifest.status, &manifest.run_id, next.clone()) {
        // The chain had grown before anybody waited.
        (Target::Whatever, Status::Continued, _, Some(next)) => return Step::Follow(next, Target::Whatever),
        (Target::Whatever, Status::Running, Some(run), _) => Target::Run(run.clone()),
        (Target::Whatever, Status::Running | Status::Created, ..) => Target::First,
        (Target::Whatever, status, ..) => return Step::Over(status.into(), runs.last().map(|run| run.run_id.clone())),
        (target, ..) => target.clone(),
    };
    let run = match &target {
        Target::Run(wanted) => runs.iter().find(|run| run.run_id == *wanted),
        _ => runs.first(),
    };
    let is_last = |run: &Run| runs.last().is_some_and(|last| last.run_id == run.run_id);
    let ended_as =
        run.filter(|run| run.meta.status != RunStatus::Running).map(|run| match *is_handed_over && is_last(run) {
            true => Status::Continued,
            false => run.meta.thread_status(),
        });
    match (ended_as, manifest.status, next) {
        // A handoff whose other half was not seen yet is looked for again.
        (Some(Status::Continued), _, None) => Step::Wait(target),
        (Some(Status::Continued) | None, Status::Continued, Some(next)) => Step::Follow(next, Target::First),
        (Some(Status::Continued), _, Some(next)) => Step::Follow(next, Target::First),
        (Some(status), ..) => Step::Over(status.into(), run.map(|run| run.run_id.clone())),
        (None, Status::Running | Status::Created, _) if *is_held => Step::Wait(target),
        (None, Status::Running, _) => Step::Over(Standing::Stalled, run.map(|run| run.run_id.clone())),
        (None, Status::Created, _) => Step::Unheld(target),
        // Somebody settled it without ending its run.
        (None, status, _) => Step::Over(status.into(), run.map(|run| run.run_id.clone())),
    }
}

/// One thread that is waited for, and how far its chain was followed.
struct Waiting {
    asked: ThreadId,
    at: ThreadId,
    target: Target,
    followed: HashSet<ThreadId>,
    unheld_since: Option<Instant>,
}

impl Waiting {
    fn new(asked: &ThreadId) -> Self {
        Self {
            asked: asked.clone(),
            at: asked.clone(),
            target: Target::Whatever,
            followed: HashSet::new(),
            unheld_since: None,
        }
    }

    /// Looks as far as the chain goes; gives what came of it, once it is over.
    fn look(&mut self, store: &dyn Store, trust: &Trust, processes: &dyn Processes) -> Result<Option<Outcome>> {
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
                (true, Some(next)) if self.target == Target::Whatever => Step::Follow(next, Target::Whatever),
                (true, Some(next)) => Step::Follow(next, Target::First),
                (true, None) => Step::Over(Standing::Deleted, None),
            };
            match step {
                Step::Wait(target) => {
                    (self.target, self.unheld_since) = (target, None);
                    return Ok(None);
                }
                Step::Unheld(target) => {
                    self.target = target;
                    if self.unheld_since.get_or_insert_with(Instant::now).elapsed() < GRACE {
                        return Ok(None);
                    }
                    let why = "nobody has started it".to_owned();
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
                    (self.at, self.target, self.unheld_since) = (next, target, None);
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

    /// What is said of a thread that nobody knows.
    fn lost(&self) -> Outcome {
        match self.at == self.asked {
            true => Outcome::unknown(self.at.clone()),
            false => {
                let why = format!("`{}` goes on as `{}`, which nobody knows", self.asked, self.at);
                Outcome::bare(Standing::Stalled, self.at.clone(), Some(why))
            }
        }
    }

    /// What is said of a thread that has not ended.
    fn unfinished(&self, store: &dyn Store, trust: &Trust, status: Standing) -> Result<Outcome> {
        match chain::known(store, &self.at)? {
            Some((Summary { manifest, .. }, false)) => {
                let run = manifest.run_id.clone();
                let outcome = Outcome::of_log(store, trust, &self.at, status, run.as_ref())?;
                Ok(outcome.because(Some(format!("it is {} still", manifest.status))))
            }
            _ => Ok(Outcome::bare(status, self.at.clone(), None)),
        }
    }
}

/// What the registry says of a thread; nothing if it was deleted meanwhile.
fn see(store: &dyn Store, trust: &Trust, processes: &dyn Processes, mut summary: Summary) -> Result<Option<Seen>> {
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
        // The process that ran it may have ended it and left between two of these questions.
        let Some((now, false)) = chain::known(store, &thread)? else { return Ok(None) };
        let is_same =
            (now.manifest.status, &now.manifest.run_id) == (summary.manifest.status, &summary.manifest.run_id);
        if is_held || is_same {
            let is_handed_over = now.manifest.status == Status::Continued && chain::is_handed_over(store, &thread)?;
            return Ok(Some(Seen { manifest: now.manifest, runs, is_held, is_handed_over }));
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
    // Where it can't be known who was started for it, the holder of its parent may be the one.
    match started_for(store, trust, manifest).ok().flatten() {
        Some(process) => Ok(processes.may_live(&process)),
        None => manifest.parent_id.as_ref().map_or(Ok(false), is_held),
    }
}
