//! Requests: delivered, drained, answered.
//!
//! There is one way in for each, whichever door it comes through. `deliver` takes the thread if it is free and serves the request, else it
//! leaves it, sealed, with the process that holds the thread. `drain` serves what waits, in the order it came:
//!
//! | kind | served by | where it waits |
//! |---|---|---|
//! | send | a run of its own, before the lease is released | the inbox |
//! | resume | a run | nowhere: refused while the thread is held |
//! | decide, settle, raise, rename, child settled | the holder's next batch; a suspended thread goes on if it waited for that | the inbox |
//! | cancel, kill | the active run, which ends; a suspended or new thread ends at once | the inbox |
//!
//! Every request that is consumed leaves its verdict in the log. A lease can't be released while a send waits, so none is lost; if the
//! holder dies, the next process that takes the thread serves what is left.

use std::sync::Arc;
use std::time::Duration;

use selvedge_model::event::{Fields, ManifestChanged};
use selvedge_model::limits::Limits;
use selvedge_model::{
    Answered, Cancel, Event, Input, Manifest, Posted, Reason, Request, RequestId, RequestKind, Run, RunId, RunStatus,
    Status, Stop, ThreadId, Verdict,
};
use selvedge_store::{Acquire, Error as StoreError, Left, Waiting};
use serde_json::Value;

use crate::assignment::Assignment;
use crate::decide::ending;
use crate::deciding;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{Audience, NoticeKind};
use crate::follow::Follow;
use crate::held::{Delta, Held, Leased, Of};
use crate::links::Next;
use crate::outcome::{self, Outcome};
use crate::start::{Asked, Start};
use crate::stopping::stop_waiting;

/// How often a waiting sender looks whether the process that holds the thread died: that is in no feed.
const LOOK: Duration = Duration::from_millis(100);

/// What became of a request that was delivered.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivered {
    /// It was served here, and this is its verdict.
    Served(Answered),
    /// The process that holds the thread will serve it.
    Left(Left),
}

impl Engine {
    /// Delivers a request that needs no run of its own: serves it if the thread is free, else leaves it with the process that holds the
    /// thread. What is refused where it is served changes nothing and is the error; `work` is what a run of the thread goes by, where
    /// that is known.
    pub fn deliver(&self, thread: &ThreadId, request: Request, work: Option<&Assignment>) -> Result<Delivered> {
        self.deliver_within(thread, request, work, Duration::ZERO)
    }

    /// The same, waiting this long for the thread before the request is left with its holder.
    fn deliver_within(
        &self,
        thread: &ThreadId,
        request: Request,
        work: Option<&Assignment>,
        wait: Duration,
    ) -> Result<Delivered> {
        let posted = self.posted(thread, request)?;
        let end = self.end_of_chain(thread)?;
        // A look is cheaper than a try: the store writes when a lease is taken.
        let is_held = wait.is_zero() && self.store.holder(&end)?.is_some();
        let lease = match is_held {
            true => None,
            false => match self.lease(&end, Acquire { wait, take_over: false }) {
                Ok(lease) => Some(lease),
                Err(StoreError::LeaseHeld { .. }) => None,
                Err(error) => return Err(error.into()),
            },
        };
        match lease {
            Some(lease) => {
                let mut held = self.take(lease, &Audience::default())?;
                // What was left before was asked before.
                let drained = held.drain(work, Of::default());
                let served = drained.and_then(|_| held.serve_now(&posted, work));
                self.give_back(held)?;
                served.map(Delivered::Served)
            }
            None => {
                let left = self.store.post(posted)?;
                self.drain_if_free(&left.thread)?;
                Ok(Delivered::Left(left))
            }
        }
    }

    /// Raises limits of a thread; what is no raise is refused at once.
    pub fn raise(&self, thread: &ThreadId, raise: &Limits) -> Result<Delivered> {
        let manifest = self.store.get(thread)?.manifest;
        if let Some(limits) = &manifest.limits {
            self.check_raise(&manifest, raise, limits)?;
        }
        self.deliver(thread, Request::Raise { limits: raise.clone() }, None)
    }

    /// Gives a thread another title, waiting this long for it before its holder is asked to.
    pub fn rename(&self, thread: &ThreadId, title: &str, wait: Duration) -> Result<Delivered> {
        let title = self.redactor.text(title).unwrap_or_else(|| title.to_owned());
        self.deliver_within(thread, Request::Rename { title }, None, wait)
    }

    /// A request under a name of its own.
    pub(crate) fn posted(&self, thread: &ThreadId, request: Request) -> Result<Posted> {
        let id = RequestId::new(self.ids.hex32()).map_err(|_| StoreError::BadBatch)?;
        Ok(Posted { thread: thread.clone(), id, at: self.clock.now(), request })
    }

    /// The request by which a new thread is told what it begins with, if that is anything.
    pub(crate) fn first_send(&self, thread: &ThreadId, input: Input) -> Result<Option<Posted>> {
        match input.messages.is_empty() {
            true => Ok(None),
            false => self.posted(thread, Request::Send(input)).map(Some),
        }
    }

    /// Refuses a raise that lowers a limit of a thread, or lifts one above its parent's.
    fn check_raise(&self, manifest: &Manifest, raise: &Limits, limits: &Limits) -> Result<()> {
        let thread = &manifest.thread_id;
        if let Some((parent, most)) = self.parent_limits(manifest)
            && let Some((limit, needs)) = raise.beyond(&most)
        {
            return Err(Error::AboveParent { thread: thread.clone(), limit, parent, needs });
        }
        match limits.lowered_by(raise) {
            Some(limit) => Err(Error::NotRaised { thread: thread.clone(), limit }),
            None => Ok(()),
        }
    }

    /// The parent of a thread, or the thread that goes on in its place, and its limits. One that is gone allows what it allowed.
    fn parent_limits(&self, manifest: &Manifest) -> Option<(ThreadId, Limits)> {
        let parent = self.end_of_chain(manifest.parent_id.as_ref()?).ok()?;
        let limits = self.store.get(&parent).ok()?.manifest.limits?;
        Some((parent, limits))
    }

    /// Serves what was left for a thread, if its holder released it before it could.
    pub(crate) fn drain_if_free(&self, thread: &ThreadId) -> Result<()> {
        if self.store.holder(thread)?.is_some() {
            return Ok(());
        }
        match self.lease(thread, Acquire::default()) {
            Ok(lease) => self.give_back(self.take(lease, &Audience::default())?),
            Err(StoreError::LeaseHeld { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Serves what was sent before, by senders that did not live to see it served; gives how the last of those runs ended.
    pub(crate) async fn serve_earlier(
        &self,
        mut held: Box<Held>,
        sends: Vec<(RequestId, Input)>,
        work: &Arc<Assignment>,
    ) -> Result<(Box<Held>, Option<Outcome>)> {
        let mut served = None;
        for (id, input) in sends {
            let ended;
            (held, ended) = self.serve_send(held, id, input, work, &Cancel::new()).await?;
            served = ended.or(served);
            if held.fold.manifest().status == Status::Continued {
                // Its successor has the rest of the inbox.
                break;
            }
        }
        Ok((held, served))
    }

    /// Runs what was sent. What can't be run, such as a raise that lowers a limit, is refused, recorded and told: it must not keep the
    /// holder of the thread from going on.
    async fn serve_send(
        &self,
        mut held: Box<Held>,
        id: RequestId,
        input: Input,
        work: &Arc<Assignment>,
        cancel: &Cancel,
    ) -> Result<(Box<Held>, Option<Outcome>)> {
        let asked = Asked { id: id.clone(), is_posted: true };
        let start = Start { input, request: Some(asked.clone()) };
        // It is done for another caller than the one that this process has.
        let audience = std::mem::take(&mut held.audience);
        let (mut held, ended) = self.run_once(held, start, work, cancel).await;
        held.audience = audience;
        let refused = match ended {
            // One that had been served already was only taken away.
            Ok(ended) => return Ok((held, Some(ended).filter(|ended| ended.run_id.is_some()))),
            Err(error @ (Error::Store(_) | Error::Commit { .. })) => {
                self.tasks.block(move || drop(held)).await;
                return Err(error);
            }
            Err(refused) => refused,
        };
        let refuse = move || {
            held.record_refusal(asked, &refused)?;
            let why = format!("what was sent to `{}` (request `{id}`) was refused: {refused}", held.thread());
            held.notice(NoticeKind::Dropped, &why);
            Ok((held, None))
        };
        self.tasks.block(refuse).await
    }

    /// Serves what was left meanwhile, in order, and releases the lease: it can't be released while a send waits. Gives the thread that
    /// goes on in its place, which then has the rest of the inbox.
    pub(crate) async fn serve_others(
        &self,
        mut held: Box<Held>,
        work: &Arc<Assignment>,
        cancel: &Cancel,
    ) -> Result<Option<Next>> {
        loop {
            let (engine, own_work, own_cancel) = (self.clone(), work.clone(), cancel.clone());
            let others = self.tasks.block(move || engine.close(held, &own_work, &own_cancel)).await?;
            let (goes_on, sent);
            (held, goes_on, sent) = match others {
                Closed::Over(next) => return Ok(next),
                Closed::More { held, goes_on, sent } => (held, goes_on, sent),
            };
            for send in goes_on.then_some(None).into_iter().chain(sent.into_iter().map(Some)) {
                // The stop of the run before did not mean this one; a stop of this process does.
                let fresh = if cancel.said().is_none() { cancel.clone() } else { Cancel::new() };
                self.lock_active().insert(held.thread().clone(), fresh.clone());
                match send {
                    Some((id, input)) => (held, _) = self.serve_send(held, id, input, work, &fresh).await?,
                    None => {
                        let audience = std::mem::take(&mut held.audience);
                        let outcome;
                        (held, outcome) = self.run_once(held, Start::default(), work, &fresh).await;
                        held.audience = audience;
                        if let Err(error) = outcome {
                            self.tasks.block(move || drop(held)).await;
                            return Err(error);
                        }
                    }
                }
                if held.fold.manifest().status == Status::Continued {
                    break;
                }
            }
        }
    }

    /// Serves what needs no run, and releases the lease of a thread that has run, unless something waits that needs one.
    fn close(&self, mut held: Box<Held>, work: &Assignment, cancel: &Cancel) -> Result<Closed> {
        loop {
            if let Some(next) = held.fold.manifest().continuation_thread_id.clone() {
                // It was granted with the batch that created it, unless this thread was found continued.
                let lease = match held.successor.take().map_or_else(|| self.lease(&next, Acquire::default()), Ok) {
                    Ok(lease) => Some(lease),
                    Err(StoreError::LeaseHeld { .. }) => None,
                    Err(error) => return Err(error.into()),
                };
                return Ok(Closed::Over(Some(Next { thread: next, lease })));
            }
            match (held.said_to_stop()?, held.fold.manifest().status) {
                // A thread that waits ends at once.
                (Some(stop), Status::Suspended) => {
                    held.answer_stops(Verdict::Applied)?;
                    stop_waiting(&mut held, stop)?;
                }
                // A run that has ended can't be stopped.
                (Some(_), _) => {
                    held.answer_stops(Verdict::Unchanged)?;
                    held.commit(Reason::Lifecycle, Of::default())?;
                }
                (None, _) => {}
            }
            held.drop_unserved()?;
            let was_answered = held.drain(Some(work), Of::default())?;
            if cancel.said() == Some(Stop::Killed) {
                return self.give_back(held).map(|()| Closed::Over(None));
            }
            let sent = held.sends()?;
            let goes_on = was_answered && held.fold.manifest().status == Status::Suspended;
            let goes_on = goes_on && !self.waits_for_word(&held, work);
            if goes_on || !sent.is_empty() {
                return Ok(Closed::More { held, goes_on, sent });
            }
            held = match held.release() {
                Ok(()) => return Ok(Closed::Over(None)),
                Err((held, StoreError::RequestsPending { .. })) => held,
                Err((_, error)) => return Err(error.into()),
            };
        }
    }

    /// Releases a thread that was only looked at or settled. What was asked of it meanwhile and needs no run is done first. A send waits:
    /// dropping the lease gives it up, and its sender, or the next process that runs the thread, serves it. To a run that no engine makes
    /// nothing is added: its writer expects the version that it wrote.
    pub(crate) fn give_back(&self, mut held: Box<Held>) -> Result<()> {
        if !held.fold.manifest().is_run_outside() {
            if let Some(stop) = held.said_to_stop()? {
                held.answer_stops(Verdict::Applied)?;
                stop_waiting(&mut held, stop)?;
            }
            held.drain(None, Of::default())?;
        }
        match held.release() {
            Ok(()) | Err((_, StoreError::RequestsPending { .. })) => Ok(()),
            Err((_, error)) => Err(error.into()),
        }
    }

    /// Lets the parent of a thread that has ended record that, if the parent is not held.
    pub(crate) fn tell_parent(&self, thread: &ThreadId) -> Result<()> {
        let manifest = self.store.get(thread)?.manifest;
        let Some(parent) = manifest.parent_id.filter(|_| manifest.status.is_terminal()) else { return Ok(()) };
        let parent = self.end_of_chain(&parent)?;
        let is_told = |waiting: &Waiting| waiting.posted.request.kind() == RequestKind::ChildSettled;
        if !self.store.pending(&parent)?.iter().any(is_told) {
            return Ok(());
        }
        self.drain_if_free(&parent)
    }

    /// Leaves a message with the process that holds a thread, or that takes it next.
    pub(crate) fn post_send(&self, thread: &ThreadId, start: Start) -> Result<Sent> {
        let mut input = start.input;
        self.redactor.messages(&mut input.messages);
        input.state.iter_mut().for_each(|state| self.redactor.value(state));
        let mut posted = self.posted(thread, Request::Send(input))?;
        if let Some(asked) = start.request {
            posted.id = asked.id;
        }
        let id = posted.id.clone();
        let follow = Follow::from(self.store.head(thread)?.lines);
        let left = self.store.post(posted)?;
        Ok(Sent { id, thread: left.thread, follow })
    }

    /// Waits until a message that was left is served; if no process serves it, serves it here.
    pub(crate) async fn await_served(
        &self,
        mut sent: Sent,
        work: Arc<Assignment>,
        cancel: Cancel,
        audience: Audience,
    ) -> Result<Outcome> {
        loop {
            let (engine, own, own_cancel) = (self.clone(), audience.clone(), cancel.clone());
            let (position, looked) = self.tasks.block(move || engine.look_after(sent, &own_cancel, &own)).await?;
            match looked {
                Looked::Ended(ended) => return Ok(*ended),
                Looked::Waits(waits) => sent = waits,
                Looked::Runs(waits, lease, start) => {
                    sent = waits;
                    let run = self.run_held(lease, *start, work.clone(), cancel.clone(), audience.clone());
                    let ended = Box::pin(run).await?;
                    if ended.run_id.is_some() {
                        return Ok(ended);
                    }
                    // It had been served before, and was only taken away.
                    let (engine, own) = (self.clone(), audience.clone());
                    return self.tasks.block(move || engine.what_came(sent, ended, &own)).await;
                }
            }
            self.feed.after(position, LOOK).await;
        }
    }

    /// Looks what became of a message that was left; with the place in the feed before the look.
    fn look_after(&self, mut sent: Sent, cancel: &Cancel, audience: &Audience) -> Result<(u64, Looked)> {
        let position = self.store.position()?;
        loop {
            sent.follow.tell(&*self.store, &sent.thread, &sent.id, audience)?;
            let manifest = self.store.get(&sent.thread)?.manifest;
            if let (Status::Continued, Some(next)) = (manifest.status, manifest.continuation_thread_id) {
                // What was served goes on there, and what was not moved there.
                sent.follow.tell(&*self.store, &sent.thread, &sent.id, audience)?;
                (sent.follow, sent.thread) = (sent.follow.on(), next);
                continue;
            }
            if let Some(run) = self.run_over(&sent.thread, &sent.id, sent.follow.run.as_ref())? {
                sent.follow.tell(&*self.store, &sent.thread, &sent.id, audience)?;
                match self.store.get(&sent.thread)?.manifest.status {
                    Status::Continued => continue,
                    _ => {
                        let ended = self.served_elsewhere(&sent.thread, &run.run_id)?;
                        return Ok((position, Looked::Ended(Box::new(ended))));
                    }
                }
            }
            match self.lease(&sent.thread, Acquire::default()) {
                Ok(lease) => return Ok((position, self.take_sent(lease, sent, audience)?)),
                Err(StoreError::LeaseHeld { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if cancel.said().is_some() {
                let is_heard = !self.store.pending(&sent.thread)?.iter().any(|waiting| waiting.posted.id == sent.id);
                return Err(Error::NotHeardYet { thread: sent.thread, is_heard });
            }
            return Ok((position, Looked::Waits(sent)));
        }
    }

    /// Goes on for the sender of a request that got its thread. Only what is read under the lease counts, since the holder before may have
    /// served it after the last look.
    fn take_sent(&self, lease: Leased, sent: Sent, audience: &Audience) -> Result<Looked> {
        let thread = lease.thread().clone();
        let waiting = self.store.pending(&thread)?.into_iter().find(|waiting| waiting.posted.id == sent.id);
        let input = waiting.and_then(|waiting| match waiting.posted.request {
            Request::Send(input) if waiting.is_sealed => Some(input),
            _ => None,
        });
        match (input, self.store.get(&thread)?.manifest.status) {
            // It went on in the moment in which it was free.
            (_, Status::Continued) => self.give_back(self.take(lease, audience)?).map(|()| Looked::Waits(sent)),
            (Some(input), _) => {
                let asked = Asked { id: sent.id.clone(), is_posted: true };
                Ok(Looked::Runs(sent, lease, Box::new(Start { input, request: Some(asked) })))
            }
            // The process that handed it over did not live to go on with it.
            (None, Status::Created) if sent.follow.is_handed_on => {
                Ok(Looked::Runs(sent, lease, Box::new(Start::continuing())))
            }
            (None, _) => {
                // Served, and its run is over or was cut short; taking the thread has settled it.
                let held = self.take(lease, audience)?;
                let ended = held.last_outcome();
                self.give_back(held)?;
                Ok(Looked::Ended(Box::new(self.what_came(sent, ended, audience)?)))
            }
        }
    }

    /// What came of the run that served a request, whatever was served after it; how the thread ended if none did.
    fn what_came(&self, mut sent: Sent, ended: Outcome, audience: &Audience) -> Result<Outcome> {
        sent.follow.tell(&*self.store, &sent.thread, &sent.id, audience)?;
        match self.run_over(&sent.thread, &sent.id, sent.follow.run.as_ref())? {
            Some(run) => self.served_elsewhere(&sent.thread, &run.run_id),
            None => Ok(ended),
        }
    }

    /// The run that served a request, or goes on for it, once it is over.
    fn run_over(&self, thread: &ThreadId, id: &RequestId, run: Option<&RunId>) -> Result<Option<Run>> {
        let is_its = |other: &Run| {
            let answers = other.meta.source_mailbox_entry_id.as_deref() == Some(id.as_str());
            other.meta.status != RunStatus::Running && (answers || Some(&other.run_id) == run)
        };
        Ok(self.store.runs(thread)?.into_iter().rev().find(is_its))
    }

    /// What came of a request that was served before, if it was: the sender that repeats it is told, and nothing is done again.
    pub(crate) fn served_before(&self, thread: &ThreadId, id: &RequestId) -> Result<Option<Outcome>> {
        let Some((at, _)) = self.store.answered(thread, id)? else { return Ok(None) };
        let runs = self.store.runs(&at)?;
        let is_its = |run: &&Run| run.meta.source_mailbox_entry_id.as_deref() == Some(id.as_str());
        match runs.iter().find(is_its) {
            Some(run) => self.served_elsewhere(&at, &run.run_id).map(Some),
            None => Ok(Some(outcome::nothing_done(&self.store.get(&at)?.manifest))),
        }
    }

    /// The outcome of a run that another process made.
    fn served_elsewhere(&self, thread: &ThreadId, run: &RunId) -> Result<Outcome> {
        let status = self.store.get(thread)?.manifest.status;
        Outcome::of_log(&*self.store, &self.trust, thread, status.into(), Some(run))
    }
}

/// A message that was left with a thread.
pub(crate) struct Sent {
    id: RequestId,
    /// Where it is by now.
    thread: ThreadId,
    follow: Follow,
}

/// What became of a message that was left.
enum Looked {
    /// The run that served it is over.
    Ended(Box<Outcome>),
    /// Nothing yet.
    Waits(Sent),
    /// The thread is free, and it is served here.
    Runs(Sent, Leased, Box<Start>),
}

/// A thread that has run, and was to be released.
enum Closed {
    /// It was; the thread that goes on in its place, if there is one.
    Over(Option<Next>),
    /// Something waits that needs a run: what a person decided, and what was sent.
    More { held: Box<Held>, goes_on: bool, sent: Vec<(RequestId, Input)> },
}

impl Held {
    /// What was sent before the request that is to be served, once everything that needs no run is.
    pub(crate) fn earlier_sends(&mut self, own: Option<&Asked>, work: &Assignment) -> Result<Vec<(RequestId, Input)>> {
        self.drop_unserved()?;
        self.drain(Some(work), Of::default())?;
        let sends = self.sends()?.into_iter();
        Ok(sends.take_while(|(id, _)| own.is_none_or(|own| own.id != *id)).collect())
    }

    /// The limits that count: the thread's own, and those it is run with where it has none.
    pub(crate) fn limits(&self, work: &Assignment) -> Limits {
        ending::limits(&self.fold, work)
    }

    /// The change of limits that a raise means; refused if it lowers one, or lifts one above its parent's.
    pub(crate) fn raised(&self, raise: &Limits, work: &Assignment) -> Result<ManifestChanged> {
        self.raised_over(raise, &self.limits(work))
    }

    fn raised_over(&self, raise: &Limits, limits: &Limits) -> Result<ManifestChanged> {
        self.engine.check_raise(self.fold.manifest(), raise, limits)?;
        Ok(ManifestChanged { limits: Some(raise.over(limits)), ..ManifestChanged::default() })
    }

    /// What waits in the inbox, is sealed, and was not answered before.
    fn waiting(&self) -> Result<Vec<Posted>> {
        let mut found = Vec::new();
        for Waiting { posted, is_sealed } in self.engine.store.pending(self.thread())? {
            if is_sealed && self.engine.store.answered(self.thread(), &posted.id)?.is_none() {
                found.push(posted);
            }
        }
        Ok(found)
    }

    /// What was sent and waits for its run.
    fn sends(&self) -> Result<Vec<(RequestId, Input)>> {
        let send = |posted: Posted| match posted.request {
            Request::Send(input) => Some((posted.id, input)),
            _ => None,
        };
        Ok(self.waiting()?.into_iter().filter_map(send).collect())
    }

    /// How urgently it was asked to stop.
    pub(crate) fn said_to_stop(&self) -> Result<Option<Stop>> {
        let stop = |posted: Posted| match posted.request {
            Request::Cancel => Some(Stop::Cancelled),
            Request::Kill => Some(Stop::Killed),
            _ => None,
        };
        Ok(self.waiting()?.into_iter().filter_map(stop).max())
    }

    /// Records that a request is not served, and why.
    fn record_refusal(&mut self, asked: Asked, why: &Error) -> Result<()> {
        // Nothing of it was committed.
        self.delta = Delta::default();
        asked.answer(&mut self.delta, Verdict::Refused, Some(why.to_string()));
        self.commit(Reason::Lifecycle, Of::default()).map(|_| ())
    }

    /// The same; if it can't be recorded, the request stays.
    pub(crate) fn refuse(&mut self, asked: Asked, why: &Error) {
        if self.record_refusal(asked, why).is_err() {
            self.delta = Delta::default();
        }
    }

    /// Puts into the delta what was sent, for a thread that ends before it can answer: its log keeps it.
    pub(crate) fn hear_sends(&mut self) -> Result<()> {
        for (id, input) in self.sends()? {
            self.delta.messages.extend(input.messages);
            Asked { id, is_posted: true }.answer(&mut self.delta, Verdict::Applied, None);
        }
        Ok(())
    }

    /// Puts into the delta that the requests to stop are consumed; gives whether there are any.
    pub(crate) fn answer_stops(&mut self, verdict: Verdict) -> Result<bool> {
        let stops = self.waiting()?;
        let stops: Vec<Posted> =
            stops.into_iter().filter(|posted| matches!(posted.request, Request::Cancel | Request::Kill)).collect();
        for posted in stops.iter().filter(|posted| !self.delta.consumed.contains(&posted.id)).collect::<Vec<_>>() {
            self.delta.events.push(Event::RequestAnswered(Answered::new(posted, verdict, None)));
            self.delta.consumed.push(posted.id.clone());
        }
        Ok(!self.delta.consumed.is_empty())
    }

    /// Drops the requests that are not served: those that were answered before, by a holder that did not find them in the inbox yet or
    /// before their rows were put back, and those that were not sealed with the key, which is told.
    pub(crate) fn drop_unserved(&mut self) -> Result<()> {
        for Waiting { posted, is_sealed } in self.engine.store.pending(self.thread())? {
            if is_sealed {
                if self.engine.store.answered(self.thread(), &posted.id)?.is_some() {
                    self.delta.events.push(Event::RequestAnswered(Answered::new(&posted, Verdict::Unchanged, None)));
                    self.delta.consumed.push(posted.id);
                    self.commit(Reason::Lifecycle, Of::default())?;
                }
                continue;
            }
            let about = match &posted.request {
                Request::Decide(decision) | Request::Settle(decision) => format!(" about call `{}`", decision.call_id),
                _ => String::new(),
            };
            let why = format!(
                "request `{}` (`{}`){about} to `{}` was not sealed with your key and was dropped: its sender must send it again",
                posted.id,
                posted.request.kind(),
                self.thread()
            );
            let answered = Answered::new(&posted, Verdict::Unsealed, None);
            self.delta.events.push(Event::RequestAnswered(answered));
            self.delta.consumed.push(posted.id);
            self.commit(Reason::Lifecycle, Of::default())?;
            self.notice(NoticeKind::Dropped, &why);
        }
        Ok(())
    }

    /// Serves what waits and needs no run; gives whether anything changed that a run goes by. What is refused is consumed with that
    /// verdict.
    pub(crate) fn drain(&mut self, work: Option<&Assignment>, of: Of) -> Result<bool> {
        let mut changed = false;
        for posted in self.waiting()? {
            let events = match &posted.request {
                Request::Send(_) | Request::Resume(_) | Request::Cancel | Request::Kill => continue,
                Request::Decide(_)
                | Request::Settle(_)
                | Request::Raise { .. }
                | Request::Rename { .. }
                | Request::ChildSettled(_) => self.serve(&posted, work),
            };
            let answered = match events {
                Ok(Some(event)) => {
                    let is_limits = matches!(&event, Event::ManifestChanged(changed) if changed.limits.is_some());
                    changed |= is_limits || matches!(event, Event::Decision(_));
                    self.delta.events.push(event);
                    Answered::applied(&posted)
                }
                Ok(None) => Answered::new(&posted, Verdict::Unchanged, None),
                Err(error @ (Error::Store(StoreError::Io { .. }) | Error::Commit { .. })) => return Err(error),
                Err(refused) => Answered::new(&posted, Verdict::Refused, Some(refused.to_string())),
            };
            self.delta.events.push(Event::RequestAnswered(answered));
            self.delta.consumed.push(posted.id);
            // One by one, so that each is judged by what the one before it left.
            self.commit(Reason::Lifecycle, of.clone())?;
        }
        Ok(changed)
    }

    /// Serves a request that was not left in the inbox; refused, it changes nothing.
    fn serve_now(&mut self, posted: &Posted, work: Option<&Assignment>) -> Result<Answered> {
        if let Request::Cancel | Request::Kill = &posted.request {
            let stop = if posted.request == Request::Kill { Stop::Killed } else { Stop::Cancelled };
            let before = self.fold.head.version;
            stop_waiting(self, stop)?;
            let verdict = if self.fold.head.version > before { Verdict::Applied } else { Verdict::Unchanged };
            return Ok(Answered::new(posted, verdict, None));
        }
        match self.serve(posted, work)? {
            Some(event) => {
                self.delta.events.push(event);
                self.commit(Reason::Lifecycle, Of::default())?;
                Ok(Answered::applied(posted))
            }
            None => Ok(Answered::new(posted, Verdict::Unchanged, None)),
        }
    }

    /// What a request changes, if anything; the postings that go with it are in the delta.
    fn serve(&mut self, posted: &Posted, work: Option<&Assignment>) -> Result<Option<Event>> {
        match &posted.request {
            Request::Decide(decision) | Request::Settle(decision) => {
                let at = posted.at.min(self.engine.clock.now());
                Ok(deciding::judge(&self.fold, decision.clone(), at)?.map(Event::Decision))
            }
            Request::Raise { limits: raise } => {
                let limits = match work {
                    Some(work) => self.limits(work),
                    None => self.fold.manifest().limits.clone().unwrap_or_default(),
                };
                let changed = self.raised_over(raise, &limits)?;
                self.fund_raise(raise)?;
                Ok(Some(Event::ManifestChanged(changed)))
            }
            Request::Rename { title } => {
                let title = Some(title.clone()).filter(|title| self.fold.manifest().title.as_ref() != Some(title));
                Ok(title
                    .map(|title| Event::ManifestChanged(ManifestChanged { title: Some(title), ..Default::default() })))
            }
            Request::ChildSettled(end) => Ok(Some(Event::ChildSettled(match serde_json::to_value(end) {
                Ok(Value::Object(fields)) => fields,
                _ => Fields::new(),
            }))),
            // These are served by a run, or end one.
            Request::Send(_) | Request::Resume(_) | Request::Cancel | Request::Kill => Ok(None),
        }
    }
}
