//! Runs the threads of a chain, one after another, each from its lease to its release.
//!
//! A link is opened (a lost run is settled, what was asked and needs no run is served), what was sent before is run, then what this run
//! is for, then what was sent meanwhile; then it is released, and the thread that goes on in its place is next.

use std::sync::Arc;

use selvedge_items::config::Wait;
use selvedge_model::blocking::on_thread;
use selvedge_model::event::{Ask, SuspendReason};
use selvedge_model::{Cancel, Input, Manifest, Message, Reason, RequestId, Status, Stop, ThreadId, Verdict};
use selvedge_store::{Acquire, Error as StoreError};

use crate::assignment::Assignment;
use crate::engine::{Engine, nothing_to_resume, run_outside};
use crate::error::{Error, Result};
use crate::events::Audience;
use crate::handover::Awaited;
use crate::held::{Held, Leased, Of};
use crate::outcome::Outcome;
use crate::run::{self, Heard};
use crate::start::{Asked, Start};

impl Engine {
    pub(crate) async fn run_held(
        &self,
        lease: Leased,
        start: Start,
        work: Arc<Assignment>,
        cancel: Cancel,
        audience: Audience,
    ) -> Result<Outcome> {
        let (mut ended, mut next) = self.run_link(lease, start, &work, &cancel, &audience).await?;
        while let Some((Next { thread, lease }, start)) = next.take() {
            let was_continued = ended.status == Status::Continued;
            let (engine, own) = (self.clone(), thread.clone());
            let acquire = move || match lease.map_or_else(|| engine.lease(&own, Acquire::default()), Ok) {
                Ok(lease) => Ok(Some(lease)),
                Err(StoreError::LeaseHeld { .. }) => Ok(None),
                Err(error) => Err(error),
            };
            let later = match self.tasks.block(acquire).await? {
                Some(lease) => {
                    let (later, after) = self.run_link(lease, start, &work, &cancel, &audience).await?;
                    next = after;
                    later
                }
                // Another process goes on with it, and hears what is to be said.
                None if !start.input.messages.is_empty() && start.input.raise.is_none() => {
                    let engine = self.clone();
                    let sent = self.tasks.block(move || engine.post_send(&thread, start)).await?;
                    Box::pin(self.await_served(sent, work.clone(), cancel.clone(), audience.clone())).await?
                }
                // There is nothing to be heard: the process that has it goes on anyway.
                None if !start.is_continuing() => {
                    let (engine, own) = (self.clone(), thread.clone());
                    let holder = self.tasks.block(move || engine.store.holder(&own)).await?;
                    let held = holder.map(|holder| StoreError::LeaseHeld { thread: thread.clone(), holder });
                    return held.map_or(Ok(ended), |held| Err(held.into()));
                }
                None => match self.await_end(&thread, &cancel, &audience).await? {
                    Awaited::Ended(ended) => *ended,
                    Awaited::Free(lease) => {
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
            // What it started in processes of their own did not hear it. Who can't be reached does not change how this one ended. Those
            // that don't stop are waited for.
            let (engine, thread) = (self.clone(), ended.thread_id.clone());
            on_thread(move || _ = engine.stop_below(&thread, stop)).await;
        }
        Ok(ended)
    }

    /// Runs one thread of a chain; gives the next one, with what is still to be said to it.
    async fn run_link(
        &self,
        lease: Leased,
        start: Start,
        work: &Arc<Assignment>,
        cancel: &Cancel,
        audience: &Audience,
    ) -> Result<(Outcome, Option<(Next, Start)>)> {
        let (engine, own_work, own_cancel) = (self.clone(), work.clone(), cancel.clone());
        let (own, request) = (audience.clone(), start.request.clone());
        let open = move || engine.open(lease, request.as_ref(), &own_work, &own_cancel, &own);
        let Opened { held, active, mut sends } = match self.tasks.block(open).await? {
            Ok(opened) => opened,
            // It was continued in the very moment in which it was free; what is to be said goes to its successor, where it waits by now
            // if it was posted.
            Err((ended, next)) => return Ok((*ended, Some((Next { thread: next, lease: None }, start)))),
        };
        let thread = held.thread().clone();
        // What a thread begins with is said by the one that lets it begin.
        let is_first = held.is_unbegun() && held.fold.conversation.messages().is_empty();
        let is_first = is_first && start.is_empty() && !start.is_continuing() && !sends.is_empty();
        let start = match is_first {
            // What was sent after it is served after it.
            true => start.with(std::mem::take(&mut sends).swap_remove(0)),
            false => start,
        };
        let asked = start.request.clone().filter(|asked| asked.is_posted && !is_first);
        let (mut held, earlier) = self.serve_earlier(held, sends, work).await?;
        let mut unsaid = Start::continuing();
        let ended = match earlier {
            // What was heard before has filled the thread; its successor hears this.
            Some(heard) if heard.status == Status::Continued => {
                unsaid = start;
                heard
            }
            // Hearing it has finished what was open, and there is nothing else to say.
            Some(heard) if start.is_empty() => heard,
            // It was stopped, or gone on with, before it could take over.
            _ if start.is_continuing() && held.fold.manifest().status != Status::Created => held.nothing_done(),
            _ if start.is_empty() && self.waits_for_word(&held, work) => held.nothing_done(),
            _ => {
                let ended;
                (held, ended) = self.run_once(held, start, work, cancel).await;
                // What could not be recorded is settled by the next process that takes the thread; dropping it gives the lease back.
                match ended {
                    Ok(ended) => ended,
                    Err(error) => {
                        let end = move || {
                            // Its sender is told that it failed: no other process is to serve it.
                            if let Some(asked) =
                                asked.filter(|_| !matches!(error, Error::Store(_) | Error::Commit { .. }))
                            {
                                held.refuse(asked, &error);
                            }
                            drop((held, active));
                            error
                        };
                        return Err(self.tasks.block(end).await);
                    }
                }
            }
        };
        let next = self.serve_others(held, work, cancel).await?;
        let (engine, is_over) = (self.clone(), next.is_none());
        let tell_parent = move || {
            drop(active);
            if is_over {
                // If the parent can't be told now, the next process that takes it hears it.
                _ = engine.tell_parent(&thread);
            }
        };
        self.tasks.block(tell_parent).await;
        Ok((ended, next.map(|next| (next, unsaid))))
    }

    /// Makes a thread ready to run whose lease was just taken: a lost run is settled, what is prepared before the first run is, its
    /// children are looked after, and what was asked and needs no run is served. One that was continued gives how it stands, and what
    /// goes on in its place.
    fn open(
        &self,
        lease: Leased,
        request: Option<&Asked>,
        work: &Assignment,
        cancel: &Cancel,
        audience: &Audience,
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
        if let (Some(prepare), true) = (&self.prepare, held.is_unbegun()) {
            prepare(held.fold.manifest(), work)?;
        }
        self.settle_children(&held);
        let sends = held.earlier_sends(request, work)?;
        Ok(Ok(Opened { held, active, sends }))
    }

    /// One run, watched meanwhile.
    pub(crate) async fn run_once(
        &self,
        held: Box<Held>,
        start: Start,
        work: &Arc<Assignment>,
        cancel: &Cancel,
    ) -> (Box<Held>, Result<Outcome>) {
        let (engine, own_cancel) = (self.clone(), cancel.clone());
        let begin = move || engine.admit(held, start, &own_cancel);
        match self.tasks.block(begin).await {
            (held, Ok(Admitted::Run(start, heard))) => run::drive(held, *start, work.clone(), heard).await,
            (held, Ok(Admitted::Nothing(outcome))) => (held, Ok(*outcome)),
            (held, Err(error)) => (held, Err(error)),
        }
    }

    /// Whether there is something to run, and how its run hears what happens beside it.
    fn admit(&self, mut held: Box<Held>, start: Start, cancel: &Cancel) -> (Box<Held>, Result<Admitted>) {
        let admitted = self.admitted(&mut held, start, cancel);
        (held, admitted)
    }

    fn admitted(&self, held: &mut Held, start: Start, cancel: &Cancel) -> Result<Admitted> {
        let input = &start.input;
        let is_again = |message: &Message| message.id.as_ref().is_some_and(|id| held.fold.conversation.knows(id));
        let is_said = !input.messages.is_empty() && input.state.is_none() && input.messages.iter().all(is_again);
        if is_said {
            if let Some(asked) = start.request {
                asked.answer(&mut held.delta, Verdict::Unchanged, None);
                held.commit(Reason::Lifecycle, Of::default())?;
            }
            return Ok(Admitted::Nothing(Box::new(held.nothing_done())));
        }
        if input.is_empty() && held.fold.conversation.messages().is_empty() {
            let (thread, status) = (held.thread().clone(), held.fold.manifest().status);
            let hint = format!("`selvedge send {thread} \"…\"` says something to it");
            return Err(Error::NotRunnable { thread, status, why: "nobody has said anything to it yet", hint });
        }
        // Whoever had it before came to its end with it, while somebody else waited to go on with it.
        if input.is_empty() && held.fold.manifest().status.is_terminal() {
            return Err(nothing_to_resume(held.thread().clone(), held.fold.manifest().status));
        }
        match input.is_continuing() {
            // A stop of the thread that goes on here means this one.
            true => held.said_to_stop()?.into_iter().for_each(|stop| cancel.say(stop)),
            // A stop of an earlier run does not.
            false => _ = held.answer_stops(Verdict::Unchanged)?,
        }
        // That the time of this run is over is nobody else's business.
        let own = cancel.child();
        let watch = self.watcher.watch(held.thread(), cancel, &own, &held.delta.consumed);
        Ok(Admitted::Run(Box::new(start), Heard { cancel: own, watch }))
    }

    /// Whether a thread waits for a decision whose time is not over, and can't go on without it.
    pub(crate) fn waits_for_word(&self, held: &Held, work: &Assignment) -> bool {
        let now = self.clock.now();
        let is_over = |ask: &Ask| ask.is_over(now);
        let Manifest { suspended: Some(why), asks, .. } = held.fold.manifest() else { return false };
        let is_decided = held.fold.conversation.open().len() > why.calls.len();
        let goes_on = work.wait == Wait::Each && is_decided;
        why.reason == SuspendReason::Approval && !asks.is_empty() && !asks.iter().any(is_over) && !goes_on
    }
}

/// A thread runs in this process, until this is dropped: a stop is said to this `Cancel`.
struct Active {
    engine: Engine,
    thread: ThreadId,
}

/// A thread that is ready to run.
struct Opened {
    held: Box<Held>,
    active: Active,
    /// What was sent before.
    sends: Vec<(RequestId, Input)>,
}

/// Whether there is something to run.
enum Admitted {
    Run(Box<Start>, Heard),
    /// There is not; how the thread stands.
    Nothing(Box<Outcome>),
}

impl Active {
    fn begin(engine: &Engine, thread: &ThreadId, cancel: &Cancel) -> Self {
        engine.lock_active().insert(thread.clone(), cancel.clone());
        Self { engine: engine.clone(), thread: thread.clone() }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.engine.lock_active().remove(&self.thread);
    }
}

/// The thread that goes on in another's place.
pub(crate) struct Next {
    pub(crate) thread: ThreadId,
    /// Its lease, if it could be had.
    pub(crate) lease: Option<Leased>,
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    fn size_of_future<F: Future>(_: impl Fn(Engine, Leased, Start, Arc<Assignment>, Cancel, Audience) -> F) -> usize {
        size_of::<F>()
    }

    /// Ten thousand runs that wait are ten thousand of these.
    #[test]
    fn a_run_that_waits_is_small() {
        let run = |engine: Engine, lease, start, work, cancel, audience| async move {
            engine.run_held(lease, start, work, cancel, audience).await
        };
        let bytes = size_of_future(run);
        assert!(bytes <= 10 << 10, "{bytes} bytes");
    }
}
