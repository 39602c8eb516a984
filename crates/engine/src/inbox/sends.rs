//! Sends: delivered, and followed until they are served.
//!
//! The sender of a message that was posted publishes what its run commits, and serves the message itself once no process holds the thread.
//! A message under an id that was served before is answered from the record.

use std::sync::Arc;
use std::time::Duration;

use selvedge_model::{
    Cancel, CommitKey, Input, Message, Request, RequestId, RequestKind, Role, Run, RunId, RunStatus, Status, ThreadId,
};
use selvedge_store::load::load;
use selvedge_store::{Acquire, Error as StoreError, Summary};

use super::Arrival;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::CallerEvents;
use crate::held::LeaseGuard;
use crate::log_follower::Follower;
use crate::outcome::{self, Outcome};
use crate::run_config::RunConfig;
use crate::start::{RunRequest, Start};

/// How a send reached its thread.
pub(crate) enum Sent {
    /// The thread was free, and runs here.
    Here(LeaseGuard, Start),
    /// It is in the inbox.
    Queued(PendingSend),
}

/// A send that was posted to a thread.
pub(crate) struct PendingSend {
    id: RequestId,
    /// The thread whose inbox has it by now.
    thread: ThreadId,
    follow: Follower,
}

/// The state of a posted send.
enum SendState {
    /// The run that served it is over.
    Ended(Box<Outcome>),
    /// It is still pending, or its run is not over.
    Waits(PendingSend),
    /// The thread is free, and the send is served here.
    Runs(PendingSend, LeaseGuard, Box<Start>),
}

impl Engine {
    /// Delivers input to a thread: see [`Engine::deliver`].
    pub(crate) fn deliver_send(&self, thread: &ThreadId, start: Start, wait: Option<Duration>) -> Result<Sent> {
        let mut queued = None;
        let arrival = self.deliver(thread, RequestKind::Send, wait, || {
            let mut input = start.input.clone();
            self.redactor.messages(&mut input.messages);
            if let Some(state) = &mut input.state {
                self.redactor.value(state);
            }
            let mut posted = self.posted(thread, Request::Send(input))?;
            if let Some(asked) = &start.request {
                posted.id = asked.id.clone();
            }
            queued = Some((posted.id.clone(), Follower::from(self.store.head(thread)?.lines)));
            Ok(Some(posted))
        })?;
        match (arrival, queued) {
            (Arrival::Lease(lease), _) => Ok(Sent::Here(lease, start)),
            (Arrival::Queued(Some(at)), Some((id, follow))) => {
                Ok(Sent::Queued(PendingSend { id, thread: at.thread, follow }))
            }
            (Arrival::Queued(_), _) => Err(StoreError::BadBatch.into()),
        }
    }

    /// Waits until a posted send is served; if no process serves it, serves it here.
    pub(crate) async fn await_served(
        &self,
        mut sent: PendingSend,
        work: Arc<RunConfig>,
        cancel: Cancel,
        audience: CallerEvents,
    ) -> Result<Outcome> {
        let waiter = self.watcher.waiter([sent.thread.clone()], true)?;
        loop {
            match self.check_send(sent, &cancel, &audience)? {
                SendState::Ended(ended) => return Ok(*ended),
                SendState::Waits(waits) => sent = waits,
                SendState::Runs(waits, lease, start) => {
                    sent = waits;
                    let run = self.run_held(lease, *start, work.clone(), cancel.clone(), audience.clone());
                    let ended = Box::pin(run).await?;
                    if ended.run_id.is_some() {
                        return Ok(ended);
                    }
                    // It had been served before, and was only consumed.
                    return self.send_outcome(sent, ended, &audience);
                }
            }
            // A successor may have changed before it was followed.
            if waiter.follow([sent.thread.clone()], true).is_empty() {
                waiter.woken_or_stopped(&cancel, None).await;
            }
        }
    }

    /// Checks the state of a posted send.
    fn check_send(&self, mut sent: PendingSend, cancel: &Cancel, audience: &CallerEvents) -> Result<SendState> {
        loop {
            sent.follow.publish_new(&*self.store, &sent.thread, &sent.id, audience)?;
            let Summary { manifest, holder, .. } = self.store.get(&sent.thread)?;
            if let (Status::Continued, Some(next)) = (manifest.status, manifest.continuation_thread_id) {
                // A run that served it continues in the successor; a send that was not served has moved there.
                sent.follow.publish_new(&*self.store, &sent.thread, &sent.id, audience)?;
                sent.follow = sent.follow.on();
                sent.thread = next;
                continue;
            }
            if let Some(run) = self.ended_run(&sent.thread, &sent.id, sent.follow.run.as_ref())? {
                sent.follow.publish_new(&*self.store, &sent.thread, &sent.id, audience)?;
                if self.store.get(&sent.thread)?.manifest.status == Status::Continued {
                    continue;
                }
                let ended = self.outcome_of_run(&sent.thread, &run.run_id)?;
                return Ok(SendState::Ended(Box::new(ended)));
            }
            if holder.is_none() {
                match self.lease(&sent.thread, Acquire::default()) {
                    Ok(lease) => return self.take_sent(lease, sent, audience),
                    Err(StoreError::LeaseHeld { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if cancel.said().is_some() {
                let is_heard = !self.store.pending(&sent.thread)?.iter().any(|waiting| waiting.posted.id == sent.id);
                return Err(Error::NotHeardYet { thread: sent.thread, is_heard });
            }
            return Ok(SendState::Waits(sent));
        }
    }

    /// Decides what the sender of a request does after it acquired the lease. Only what is read under the lease counts, since the previous
    /// holder may have served the request after the last check.
    fn take_sent(&self, lease: LeaseGuard, sent: PendingSend, audience: &CallerEvents) -> Result<SendState> {
        let thread = lease.thread().clone();
        let waiting = self.store.pending(&thread)?.into_iter().find(|waiting| waiting.posted.id == sent.id);
        let input = waiting.and_then(|waiting| match waiting.posted.request {
            Request::Send(input) if waiting.is_sealed => Some(input),
            _ => None,
        });
        match (input, self.store.get(&thread)?.manifest.status) {
            // It was continued at the moment in which it was free.
            (_, Status::Continued) => self.release_thread(self.take(lease, audience)?).map(|()| SendState::Waits(sent)),
            (Some(input), _) => {
                let asked = RunRequest { id: sent.id.clone(), is_posted: true };
                Ok(SendState::Runs(sent, lease, Box::new(Start { input, request: Some(asked) })))
            }
            // The process that handed it off died before it ran it.
            (None, Status::Created) if sent.follow.is_handed_off => {
                Ok(SendState::Runs(sent, lease, Box::new(Start::continuing())))
            }
            (None, _) => {
                // It was served, and its run is over or was interrupted; opening the thread has settled it.
                let held = self.take(lease, audience)?;
                let ended = held.last_outcome();
                self.release_thread(held)?;
                Ok(SendState::Ended(Box::new(self.send_outcome(sent, ended, audience)?)))
            }
        }
    }

    /// The outcome of the run that served a request, even if other runs came after it; if there is none, how the thread ended. A request
    /// that is neither waiting nor answered in the log was removed from the database, and is not reported as served.
    fn send_outcome(&self, mut sent: PendingSend, ended: Outcome, audience: &CallerEvents) -> Result<Outcome> {
        sent.follow.publish_new(&*self.store, &sent.thread, &sent.id, audience)?;
        match self.ended_run(&sent.thread, &sent.id, sent.follow.run.as_ref())? {
            Some(run) => self.outcome_of_run(&sent.thread, &run.run_id),
            None if self.store.answered(&sent.thread, &sent.id)?.is_none() => Err(StoreError::Integrity {
                what: format!("request `{}` to `{}`", sent.id, sent.thread),
                why: "it was removed from the database before it was consumed".to_owned(),
                hint: Some("send it again; `selvedge doctor` shows what else was changed".to_owned()),
            }
            .into()),
            None => Ok(ended),
        }
    }

    /// The run that served a request, or continues for it, once it is over.
    fn ended_run(&self, thread: &ThreadId, id: &RequestId, run: Option<&RunId>) -> Result<Option<Run>> {
        let is_its = |other: &Run| {
            let answers = other.meta.source_mailbox_entry_id.as_deref() == Some(id.as_str());
            other.meta.status != RunStatus::Running && (answers || Some(&other.run_id) == run)
        };
        Ok(self.store.runs(thread)?.into_iter().rev().find(is_its))
    }

    /// The outcome of a request that was served before, if it was: its sender repeats it, and nothing is done again. Another message under
    /// the same id is refused.
    pub(crate) fn served_before(&self, thread: &ThreadId, id: &RequestId, input: &Input) -> Result<Option<Outcome>> {
        let Some((at, _)) = self.store.answered(thread, id)? else { return Ok(None) };
        let runs = self.store.runs(&at)?;
        let is_its = |run: &&Run| run.meta.source_mailbox_entry_id.as_deref() == Some(id.as_str());
        match runs.iter().find(is_its) {
            Some(run) => {
                self.refuse_other_input(&at, &run.run_id, id, input)?;
                self.outcome_of_run(&at, &run.run_id).map(Some)
            }
            None => Ok(Some(outcome::nothing_done(&self.store.get(&at)?.manifest))),
        }
    }

    /// Refuses input that differs from what a run began with.
    fn refuse_other_input(&self, thread: &ThreadId, run: &RunId, id: &RequestId, input: &Input) -> Result<()> {
        let loaded = load(&*self.store, thread, &self.trust, None)?.thread;
        let is_its = |message: &&Message| message.role == Role::User && message.run_id.as_ref() == Some(run);
        let served: Vec<_> = loaded.messages.iter().filter(is_its).map(Message::content_bytes).collect();
        let mut sent = input.messages.clone();
        self.redactor.messages(&mut sent);
        // A message that a run takes in later is not part of what it began with.
        let is_same =
            sent.len() <= served.len() && sent.iter().zip(&served).all(|(one, other)| one.content_bytes() == *other);
        if is_same {
            return Ok(());
        }
        let key = CommitKey::new(id.as_str()).map_err(|_| StoreError::BadBatch)?;
        Err(StoreError::KeyReused(key).into())
    }

    /// The outcome of a run that another process made.
    fn outcome_of_run(&self, thread: &ThreadId, run: &RunId) -> Result<Outcome> {
        let status = self.store.get(thread)?.manifest.status;
        Outcome::of_log(&*self.store, &self.trust, thread, status.into(), Some(run))
    }
}
