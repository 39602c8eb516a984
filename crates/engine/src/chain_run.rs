//! Runs the threads of a chain, one after another, each from acquiring its lease to releasing it.
//!
//! For each thread: open it (settle a lost run, serve requests that need no run), run earlier sends, run the caller's input, run sends that
//! arrived meanwhile, release it. Then its successor is next, if it has one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use selvedge_items::config::Wait;
use selvedge_model::blocking::on_thread;
use selvedge_model::event::{Ask, SuspendReason, ThreadKind};
use selvedge_model::{Cancel, Input, Manifest, Message, Reason, RequestId, Status, Stop, ThreadId, Verdict};
use selvedge_store::{Acquire, Error as StoreError};

use crate::chain_wait::ChainState;
use crate::engine::{Engine, nothing_to_resume, run_outside};
use crate::error::{Error, Result};
use crate::events::CallerEvents;
use crate::held::{HeldThread, LeaseGuard, RunContext};
use crate::inbox::Sent;
use crate::outcome::Outcome;
use crate::run::{self, RunControl};
use crate::run_config::RunConfig;
use crate::start::{RunRequest, Start};

impl Engine {
    pub(crate) async fn run_held(
        &self,
        lease: LeaseGuard,
        start: Start,
        work: Arc<RunConfig>,
        cancel: Cancel,
        audience: CallerEvents,
    ) -> Result<Outcome> {
        let (mut ended, mut next) = self.run_link(lease, start, &work, &cancel, &audience).await?;
        while let Some((Next { thread, lease }, start)) = next.take() {
            let was_continued = ended.status == Status::Continued;
            let lease = match lease.map_or_else(|| self.lease(&thread, Acquire::default()), Ok) {
                Ok(lease) => Some(lease),
                Err(StoreError::LeaseHeld { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            let later = match lease {
                Some(lease) => {
                    let (later, after) = self.run_link(lease, start, &work, &cancel, &audience).await?;
                    next = after;
                    later
                }
                // Another process holds it, and serves the input.
                None if !start.input.messages.is_empty() && start.input.raise.is_none() => {
                    match self.deliver_send(&thread, start, Some(Duration::ZERO))? {
                        Sent::Queued(sent) => {
                            Box::pin(self.await_served(sent, work.clone(), cancel.clone(), audience.clone())).await?
                        }
                        Sent::Here(lease, start) => {
                            next = Some((Next { thread, lease: Some(lease) }, start));
                            continue;
                        }
                    }
                }
                // There is no input to serve: the process that holds it runs it anyway.
                None if !start.is_continuing() => {
                    let held = self
                        .store
                        .holder(&thread)?
                        .map(|holder| StoreError::LeaseHeld { thread: thread.clone(), holder });
                    return held.map_or(Ok(ended), |held| Err(held.into()));
                }
                None => match self.await_end(&thread, &cancel, &audience).await? {
                    ChainState::Ended(ended) => *ended,
                    ChainState::Free(lease) => {
                        let thread = lease.thread().clone();
                        next = Some((Next { thread, lease: Some(lease) }, start));
                        continue;
                    }
                },
            };
            if was_continued {
                let mut run_cost = ended.run_cost.unwrap_or_default();
                run_cost.add(&later.run_cost.clone().unwrap_or_default());
                ended = Outcome { run_cost: Some(run_cost), ..later };
            }
        }
        if let (Some(stop @ (Stop::Cancelled | Stop::Killed)), Some(Status::Cancelled | Status::Killed)) =
            (cancel.said(), ended.status.status())
        {
            // Children in processes of their own did not see the stop. A child that can't be reached does not change how this thread ended.
            // The children that keep running are waited for.
            let engine = self.clone();
            let thread = ended.thread_id.clone();
            on_thread(move || _ = engine.stop_below(&thread, stop)).await;
        }
        Ok(ended)
    }

    /// Runs one thread of a chain; returns the next one, with the input that is still to be served by it.
    async fn run_link(
        &self,
        lease: LeaseGuard,
        start: Start,
        work: &Arc<RunConfig>,
        cancel: &Cancel,
        audience: &CallerEvents,
    ) -> Result<(Outcome, Option<(Next, Start)>)> {
        let Opened { held, active, mut sends } =
            match self.open(lease, start.request.as_ref(), work, cancel, audience)? {
                Ok(opened) => opened,
                // It was continued at the very moment in which it was free. The input goes to its successor; if it was posted, it is pending
                // there by now.
                Err((ended, next)) => return Ok((*ended, Some((Next { thread: next, lease: None }, start)))),
            };
        let thread = held.thread().clone();
        // The first messages of a thread were posted as a send when it was created; the first run serves them.
        let is_first = held.is_unstarted() && held.fold.conversation.messages().is_empty();
        let is_first = is_first && start.is_empty() && !start.is_continuing() && !sends.is_empty();
        let start = if is_first {
            // Sends that came after it are served after it.
            start.with(std::mem::take(&mut sends).swap_remove(0))
        } else {
            start
        };
        let asked = start.request.clone().filter(|asked| asked.is_posted && !is_first);
        let (mut held, earlier) = self.serve_earlier(held, sends, work).await?;
        let mut unserved = Start::continuing();
        let ended = match earlier {
            // The earlier sends have filled the context; the successor serves this one.
            Some(served) if served.status == Status::Continued => {
                unserved = start;
                served
            }
            // Serving them has finished what was open, and there is no other input.
            Some(served) if start.is_empty() => served,
            // It was stopped, or resumed by another process, before it could take over.
            _ if start.is_continuing() && held.fold.manifest().status != Status::Created => held.nothing_done(),
            _ if start.is_empty() && self.waits_for_approval(&held, work) => held.nothing_done(),
            _ => {
                let ended;
                (held, ended) = self.run_once(held, start, work, cancel).await;
                // A run whose end could not be recorded is settled by the next process that takes the thread; the drop releases the lease.
                match ended {
                    Ok(ended) => ended,
                    Err(error) => {
                        // Its sender gets the failure: no other process is to serve it again.
                        if let Some(asked) = asked.filter(|_| !matches!(error, Error::Store(_) | Error::Commit { .. }))
                        {
                            held.refuse(asked, &error);
                        }
                        return Err(error);
                    }
                }
            }
        };
        let next = self.serve_pending(held, work, cancel, &active).await?;
        drop(active);
        if next.is_none() {
            // If the request can't be posted to the parent now, the next process that takes the parent settles the child.
            _ = self.drain_parent(&thread);
        }
        Ok((ended, next.map(|next| (next, unserved))))
    }

    /// Makes a thread whose lease was just acquired ready to run: settles a lost run, calls `prepare` before the first run, settles its
    /// children, and serves the requests that need no run. For a thread that was continued it returns the outcome, and the successor.
    fn open(
        &self,
        lease: LeaseGuard,
        request: Option<&RunRequest>,
        work: &RunConfig,
        cancel: &Cancel,
        audience: &CallerEvents,
    ) -> Result<std::result::Result<Opened, (Box<Outcome>, ThreadId)>> {
        let mut held = self.take(lease, audience)?;
        let thread = held.thread().clone();
        if held.fold.manifest().is_run_outside() {
            return Err(run_outside(&thread));
        }
        let active = Active::begin(self, &thread, cancel);
        if let (Status::Continued, Some(next)) =
            (held.fold.manifest().status, held.fold.manifest().continuation_thread_id.clone())
        {
            return Ok(Err((Box::new(held.nothing_done()), next)));
        }
        if let (Some(prepare), true) = (&self.prepare, held.is_unstarted()) {
            prepare(held.fold.manifest(), work)?;
        }
        self.settle_children(&held);
        let sends = held.earlier_sends(request, work)?;
        Ok(Ok(Opened { held, active, sends }))
    }

    /// One run, watched meanwhile.
    pub(crate) async fn run_once(
        &self,
        mut held: Box<HeldThread>,
        start: Start,
        work: &Arc<RunConfig>,
        cancel: &Cancel,
    ) -> (Box<HeldThread>, Result<Outcome>) {
        match self.admit(&mut held, start, cancel) {
            Ok(Admitted::Run(start, control)) => run::drive(held, *start, work.clone(), control).await,
            Ok(Admitted::Nothing(outcome)) => (held, Ok(*outcome)),
            Err(error) => (held, Err(error)),
        }
    }

    /// Whether there is something to run, and the control of that run.
    fn admit(&self, held: &mut HeldThread, start: Start, cancel: &Cancel) -> Result<Admitted> {
        let input = &start.input;
        let is_known = |message: &Message| message.id.as_ref().is_some_and(|id| held.fold.conversation.knows(id));
        let is_repeated = !input.messages.is_empty() && input.state.is_none() && input.messages.iter().all(is_known);
        if is_repeated {
            if let Some(asked) = start.request {
                asked.answer(&mut held.delta, Verdict::Unchanged, None);
                held.commit(Reason::Lifecycle, RunContext::default())?;
            }
            return Ok(Admitted::Nothing(Box::new(held.nothing_done())));
        }
        let is_graph = held.fold.manifest().kind == ThreadKind::Graph;
        if input.is_empty() && held.fold.conversation.messages().is_empty() && !is_graph {
            let thread = held.thread().clone();
            let status = held.fold.manifest().status;
            let hint = format!("`selvedge send {thread} \"…\"` sends it a message");
            return Err(Error::NotRunnable { thread, status, why: "it has no messages yet", hint });
        }
        // The previous lease holder ended the thread while this process waited to resume it.
        if input.is_empty() && held.fold.manifest().status.is_terminal() {
            return Err(nothing_to_resume(held.thread().clone(), held.fold.manifest().status));
        }
        if input.is_continuing() {
            // A stop of the predecessor applies to this thread.
            if let Some(stop) = held.requested_stop()? {
                cancel.say(stop);
            }
        } else {
            // A stop of an earlier run does not.
            held.answer_stops(Verdict::Unchanged)?;
        }
        // A child token: that the time of this run is over must not stop the caller's other runs.
        let own = cancel.child();
        let watch = self.watcher.watch(held.thread(), cancel, &held.delta.consumed, self.heartbeat.begin())?;
        Ok(Admitted::Run(Box::new(start), RunControl { cancel: own, watch }))
    }

    /// Whether a thread waits for a decision that has not expired, and can't continue without it.
    pub(crate) fn waits_for_approval(&self, held: &HeldThread, work: &RunConfig) -> bool {
        let now = self.clock.now();
        let is_over = |ask: &Ask| ask.is_over(now);
        let Manifest { suspended: Some(why), asks, .. } = held.fold.manifest() else { return false };
        let is_decided = held.fold.conversation.open().len() > why.calls.len();
        let goes_on = work.wait == Wait::Each && is_decided;
        why.reason == SuspendReason::Approval && !asks.is_empty() && !asks.iter().any(is_over) && !goes_on
    }
}

/// Registers a run of this process, until it is dropped: a stop of the thread is signalled to its `Cancel`.
pub(crate) struct Active {
    engine: Engine,
    thread: ThreadId,
    /// Its number among all runs that began, to tell it from a later run of the same thread.
    number: u64,
}

/// A thread that is ready to run.
struct Opened {
    held: Box<HeldThread>,
    active: Active,
    /// The sends that came before this run's own.
    sends: Vec<(RequestId, Input)>,
}

/// Whether there is something to run.
enum Admitted {
    Run(Box<Start>, RunControl),
    /// There is nothing to run; the state of the thread.
    Nothing(Box<Outcome>),
}

impl Active {
    fn begin(engine: &Engine, thread: &ThreadId, cancel: &Cancel) -> Self {
        let mut active = engine.lock_active();
        active.begun += 1;
        let number = active.begun;
        active.of.insert(thread.clone(), (number, cancel.clone()));
        drop(active);
        Self { engine: engine.clone(), thread: thread.clone(), number }
    }

    /// From now on, a stop is signalled to this `Cancel`.
    pub(crate) fn renew(&self, cancel: &Cancel) {
        if let Some(own) = self.engine.lock_active().of.get_mut(&self.thread).filter(|own| own.0 == self.number) {
            own.1 = cancel.clone();
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let mut active = self.engine.lock_active();
        // After its lease was released, the next run of the thread may have begun.
        if active.of.get(&self.thread).is_some_and(|(number, _)| *number == self.number) {
            active.of.remove(&self.thread);
        }
    }
}

/// The runs of this process, and how to stop them.
#[derive(Default)]
pub(crate) struct ActiveRuns {
    of: HashMap<ThreadId, (u64, Cancel)>,
    /// How many began so far.
    begun: u64,
}

impl ActiveRuns {
    /// The `Cancel` of a thread's run, if it runs here.
    pub(crate) fn get(&self, thread: &ThreadId) -> Option<&Cancel> {
        self.of.get(thread).map(|(_, cancel)| cancel)
    }
}

/// The successor of a thread.
pub(crate) struct Next {
    pub(crate) thread: ThreadId,
    /// Its lease, if it could be acquired.
    pub(crate) lease: Option<LeaseGuard>,
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;
    use crate::engine::tests::engine;

    /// The end of a run once unregistered the next run of its thread, which then missed a stop.
    #[test]
    fn a_run_that_ends_unregisters_only_itself() {
        let engine = engine();
        let thread = ThreadId::new("t").unwrap();
        let before = Cancel::new();
        let next = Cancel::new();
        let fresh = Cancel::new();
        let first = Active::begin(&engine, &thread, &before);
        let second = Active::begin(&engine, &thread, &next);
        first.renew(&fresh);
        drop(first);
        engine.lock_active().get(&thread).unwrap().say(Stop::Cancelled);
        assert_eq!((before.said(), fresh.said(), next.said()), (None, None, Some(Stop::Cancelled)));
        second.renew(&fresh);
        engine.lock_active().get(&thread).unwrap().say(Stop::Cancelled);
        assert_eq!(fresh.said(), Some(Stop::Cancelled));
        drop(second);
        assert!(engine.lock_active().get(&thread).is_none());
    }

    fn size_of_future<F: Future>(
        _: impl Fn(Engine, LeaseGuard, Start, Arc<RunConfig>, Cancel, CallerEvents) -> F,
    ) -> usize {
        size_of::<F>()
    }

    /// Ten thousand waiting runs are ten thousand of these futures.
    #[test]
    fn the_future_of_a_run_is_small() {
        let run = |engine: Engine, lease, start, work, cancel, audience| async move {
            engine.run_held(lease, start, work, cancel, audience).await
        };
        let bytes = size_of_future(run);
        assert!(bytes <= 10 << 10, "{bytes} bytes");
    }
}
