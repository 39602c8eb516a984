//! Requests: delivered, drained, answered.
//!
//! There is one way in for every request. `deliver` acquires the lease if the thread is free, and the caller serves the request; else it
//! posts it, sealed, to the inbox of the process that holds the thread. Pending requests are served in order of arrival: by a run
//! (`decide/requests.rs`), or by `drain` if there is no run.
//!
//! | kind | served by | where it is pending |
//! |---|---|---|
//! | send | a run of its own, before the lease is released | the inbox |
//! | resume | a run | nowhere: refused while the thread is held |
//! | decide, settle, raise, rename, child settled | the holder's next batch; a thread that was suspended for it resumes | the inbox |
//! | cancel, kill | the active run, which ends; a suspended or new thread ends at once | the inbox |
//!
//! Every consumed request leaves its verdict in the log. A lease can't be released while a send is pending, so none is lost; if the
//! holder dies, the next process that acquires the lease serves the rest.

mod sends;
mod serving;

use std::sync::Arc;
use std::time::Duration;

use selvedge_model::limits::Limits;
use selvedge_model::{
    Answered, Cancel, Input, Manifest, Posted, Reason, Request, RequestId, RequestKind, Status, Stop, ThreadId, Verdict,
};
use selvedge_store::{Acquire, Delivery, Error as StoreError, QueuedRequest};

use crate::chain_run::{Active, Next};
use crate::decide::requests;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{CallerEvents, NoticeKind};
use crate::held::{HeldThread, LeaseGuard, RunContext};
use crate::outcome::Outcome;
use crate::run_config::RunConfig;
use crate::start::{RunRequest, Start};
use crate::stop::stop_waiting;

pub(crate) use sends::Sent;
pub(crate) use serving::unanswered;

/// What happened to a request that was delivered.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivered {
    /// It was served by this process, with this verdict.
    Served(Answered),
    /// The process that holds the thread will serve it.
    Queued(Delivery),
}

/// How a request reached its thread.
pub(crate) enum Arrival {
    /// The thread was free: the request is served under this lease.
    Lease(LeaseGuard),
    /// It is durable in the inbox of the process that holds the thread; none if the same request was there before.
    Queued(Option<Delivery>),
}

impl Engine {
    /// The one way in for a request. If the lease of the thread can be acquired within this time, it is returned, and the caller serves the
    /// request; else the request is durable in the inbox on return, or refused if its kind never waits. Without a time it is queued in the
    /// inbox even if the thread is free. `post` makes the request to queue, or none if it was queued before.
    pub(crate) fn deliver(
        &self,
        thread: &ThreadId,
        kind: RequestKind,
        wait: Option<Duration>,
        post: impl FnOnce() -> Result<Option<Posted>>,
    ) -> Result<Arrival> {
        if let Some(wait) = wait {
            // Checking is cheaper than trying: the store writes when a lease is acquired.
            let lease = match self.store.holder(thread)?.filter(|_| wait.is_zero()) {
                Some(holder) => Err(StoreError::LeaseHeld { thread: thread.clone(), holder }),
                None => self.lease(thread, Acquire { wait, take_over: false }),
            };
            match lease {
                Ok(lease) => return Ok(Arrival::Lease(lease)),
                Err(StoreError::LeaseHeld { .. }) if kind.may_wait() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let queued = post()?.map(|posted| self.store.post(posted)).transpose()?;
        Ok(Arrival::Queued(queued))
    }

    /// Delivers a request that needs no run of its own, and serves it if the thread is free within this time. What it changed is durable on
    /// return then. A request that is refused changes nothing and returns the error. `work` is the assignment of the thread's runs, if known.
    pub(crate) fn request(
        &self,
        thread: &ThreadId,
        request: Request,
        work: Option<&RunConfig>,
        wait: Duration,
    ) -> Result<Delivered> {
        let posted = self.posted(thread, request)?;
        let end = self.end_of_chain(thread)?;
        match self.deliver(&end, posted.request.kind(), Some(wait), || Ok(Some(posted.clone())))? {
            Arrival::Lease(lease) => {
                self.under_lease(lease, work, |held| held.serve_now(&posted, work)).map(Delivered::Served)
            }
            Arrival::Queued(queued) => {
                let queued = queued.unwrap_or(Delivery { thread: end, answered: None });
                self.drain_if_free(&queued.thread)?;
                Ok(Delivered::Queued(queued))
            }
        }
    }

    /// Applies an operation to a thread whose lease was just acquired, and releases it; pending requests that need no run are served first.
    pub(crate) fn under_lease<T>(
        &self,
        lease: LeaseGuard,
        work: Option<&RunConfig>,
        does: impl FnOnce(&mut HeldThread) -> Result<T>,
    ) -> Result<T> {
        let mut held = self.take(lease, &CallerEvents::default())?;
        let is_outside = held.fold.manifest().is_run_outside();
        let drained = if is_outside { Ok(false) } else { held.drain(work) };
        let done = drained.and_then(|_| does(&mut held));
        self.release_thread(held)?;
        done
    }

    /// Raises limits of a thread; a change that is not a raise is refused at once. When this returns, the raise is durable: applied if the
    /// thread is free, else in the inbox of the process that holds it.
    pub fn raise(&self, thread: &ThreadId, raise: &Limits) -> Result<Delivered> {
        let manifest = self.store.get(thread)?.manifest;
        if let Some(limits) = &manifest.limits {
            requests::raised(&manifest, self.parent_limits(&manifest).as_ref(), raise, limits)?;
        }
        self.request(thread, Request::Raise { limits: raise.clone() }, None, Duration::ZERO)
    }

    /// Renames a thread, waiting this long for its lease before the request is posted. What holds on return is as for [`Engine::raise`].
    pub fn rename(&self, thread: &ThreadId, title: &str, wait: Duration) -> Result<Delivered> {
        let title = self.redactor.text(title).unwrap_or_else(|| title.to_owned());
        self.request(thread, Request::Rename { title }, None, wait)
    }

    /// A request with a fresh id.
    pub(crate) fn posted(&self, thread: &ThreadId, request: Request) -> Result<Posted> {
        let id = RequestId::new(self.ids.hex32()).map_err(|_| StoreError::BadBatch)?;
        Ok(Posted { thread: thread.clone(), id, at: self.clock.now(), request })
    }

    /// The request that carries the first input of a new thread, if there is any.
    pub(crate) fn first_send(&self, thread: &ThreadId, input: Input) -> Result<Option<Posted>> {
        if input.is_empty() {
            return Ok(None);
        }
        self.posted(thread, Request::Send(input)).map(Some)
    }

    /// The parent of a thread, or the end of the parent's chain, and its limits; none if the parent can't be read.
    pub(crate) fn parent_limits(&self, manifest: &Manifest) -> Option<(ThreadId, Limits)> {
        let parent = self.end_of_chain(manifest.parent_id.as_ref()?).ok()?;
        let limits = self.store.get(&parent).ok()?.manifest.limits?;
        Some((parent, limits))
    }

    /// Serves the requests of a thread, if its holder released it without serving them; returns whether it was free.
    pub(crate) fn drain_if_free(&self, thread: &ThreadId) -> Result<bool> {
        if self.store.holder(thread)?.is_some() {
            return Ok(false);
        }
        match self.lease(thread, Acquire::default()) {
            Ok(lease) => self.under_lease(lease, None, |_| Ok(true)),
            Err(StoreError::LeaseHeld { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Serves earlier sends, whose senders are gone; returns the outcome of the last of those runs.
    pub(crate) async fn serve_earlier(
        &self,
        mut held: Box<HeldThread>,
        sends: Vec<(RequestId, Input)>,
        work: &Arc<RunConfig>,
    ) -> Result<(Box<HeldThread>, Option<Outcome>)> {
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

    /// Runs a send. One that can't be run, such as a raise that lowers a limit, is refused, recorded and reported: it must not block the
    /// lease holder.
    async fn serve_send(
        &self,
        mut held: Box<HeldThread>,
        id: RequestId,
        input: Input,
        work: &Arc<RunConfig>,
        cancel: &Cancel,
    ) -> Result<(Box<HeldThread>, Option<Outcome>)> {
        let asked = RunRequest { id: id.clone(), is_posted: true };
        let start = Start { input, request: Some(asked.clone()) };
        // Its caller is not the one that watches this process.
        let audience = std::mem::take(&mut held.audience);
        let (mut held, ended) = self.run_once(held, start, work, cancel).await;
        held.audience = audience;
        let refused = match ended {
            // A send that had been served already was only consumed.
            Ok(ended) => return Ok((held, Some(ended).filter(|ended| ended.run_id.is_some()))),
            Err(error @ (Error::Store(_) | Error::Commit { .. })) => return Err(error),
            Err(refused) => refused,
        };
        held.record_refusal(asked, &refused)?;
        let why = format!("the input sent to `{}` (request `{id}`) was refused: {refused}", held.thread());
        held.notice(NoticeKind::Dropped, &why);
        Ok((held, None))
    }

    /// Serves the requests that arrived meanwhile, in order, and releases the lease: it can't be released while a send is pending. Returns
    /// the successor, if there is one, which then has the rest of the inbox.
    pub(crate) async fn serve_pending(
        &self,
        mut held: Box<HeldThread>,
        work: &Arc<RunConfig>,
        cancel: &Cancel,
        active: &Active,
    ) -> Result<Option<Next>> {
        loop {
            let (resumes, sent);
            (held, resumes, sent) = match self.close(held, work, cancel)? {
                Closed::Released(next) => return Ok(next),
                Closed::NeedsRun { held, resumes, sent } => (held, resumes, sent),
            };
            for send in resumes.then_some(None).into_iter().chain(sent.into_iter().map(Some)) {
                // The stop of the run before was not meant for this one; a stop of this process is.
                let fresh = if cancel.said().is_none() { cancel.clone() } else { Cancel::new() };
                active.renew(&fresh);
                match send {
                    Some((id, input)) => (held, _) = self.serve_send(held, id, input, work, &fresh).await?,
                    None => {
                        let audience = std::mem::take(&mut held.audience);
                        let outcome;
                        (held, outcome) = self.run_once(held, Start::default(), work, &fresh).await;
                        held.audience = audience;
                        outcome?;
                    }
                }
                if held.fold.manifest().status == Status::Continued {
                    break;
                }
            }
        }
    }

    /// Serves the requests that need no run, and releases the lease, unless a pending request needs a run.
    fn close(&self, mut held: Box<HeldThread>, work: &RunConfig, cancel: &Cancel) -> Result<Closed> {
        loop {
            if let Some(next) = held.fold.manifest().continuation_thread_id.clone() {
                // The lease was granted by the batch that created it, unless this thread was already continued when it was opened.
                let lease = match held.successor.take().map_or_else(|| self.lease(&next, Acquire::default()), Ok) {
                    Ok(lease) => Some(lease),
                    Err(StoreError::LeaseHeld { .. }) => None,
                    Err(error) => return Err(error.into()),
                };
                return Ok(Closed::Released(Some(Next { thread: next, lease })));
            }
            match (held.requested_stop()?, held.fold.manifest().status) {
                // A suspended thread ends at once.
                (Some(stop), Status::Suspended) => {
                    held.answer_stops(Verdict::Applied)?;
                    stop_waiting(&mut held, stop)?;
                }
                // A run that has ended can't be stopped.
                (Some(_), _) => {
                    held.answer_stops(Verdict::Unchanged)?;
                    held.commit(Reason::Lifecycle, RunContext::default())?;
                }
                (None, _) => {}
            }
            held.drop_unserved()?;
            let was_answered = held.drain(Some(work))?;
            if cancel.said() == Some(Stop::Killed) {
                return self.release_thread(held).map(|()| Closed::Released(None));
            }
            let sent = held.sends()?;
            let resumes = was_answered && held.fold.manifest().status == Status::Suspended;
            let resumes = resumes && !self.waits_for_approval(&held, work);
            if resumes || !sent.is_empty() {
                return Ok(Closed::NeedsRun { held, resumes, sent });
            }
            held = match held.release() {
                Ok(()) => return Ok(Closed::Released(None)),
                Err((held, StoreError::RequestsPending { .. })) => held,
                Err((_, error)) => return Err(error.into()),
            };
        }
    }

    /// Releases a thread that was only read or settled. Requests that arrived meanwhile and need no run are served first. A send stays
    /// pending: dropping the lease abandons it, and the sender, or the next process that runs the thread, serves it. Nothing is added to a
    /// run that is made by another program: that program expects the version that it wrote.
    pub(crate) fn release_thread(&self, mut held: Box<HeldThread>) -> Result<()> {
        if !held.fold.manifest().is_run_outside() {
            if let Some(stop) = held.requested_stop()? {
                held.answer_stops(Verdict::Applied)?;
                stop_waiting(&mut held, stop)?;
            }
            held.drain(None)?;
        }
        match held.release() {
            Ok(()) | Err((_, StoreError::RequestsPending { .. })) => Ok(()),
            Err((_, error)) => Err(error.into()),
        }
    }

    /// Lets the parent of a thread that ended record that, if the parent is not held.
    pub(crate) fn drain_parent(&self, thread: &ThreadId) -> Result<()> {
        let manifest = self.store.get(thread)?.manifest;
        let Some(parent) = manifest.parent_id.filter(|_| manifest.status.is_terminal()) else { return Ok(()) };
        let parent = self.end_of_chain(&parent)?;
        let is_told = |waiting: &QueuedRequest| waiting.posted.request.kind() == RequestKind::ChildSettled;
        if !self.store.pending(&parent)?.iter().any(is_told) {
            return Ok(());
        }
        self.drain_if_free(&parent).map(|_| ())
    }
}

/// The result of releasing a thread that has run.
enum Closed {
    /// It was released; its successor, if there is one.
    Released(Option<Next>),
    /// It was not: pending requests need a run, because of a decision (`resumes`) or of sends.
    NeedsRun { held: Box<HeldThread>, resumes: bool, sent: Vec<(RequestId, Input)> },
}
