//! The inbox of a thread under lease: read, judged, answered.

use selvedge_model::event::ManifestChanged;
use selvedge_model::limits::Limits;
use selvedge_model::{
    Answered, Event, Input, Posted, Reason, Request, RequestId, RequestKind, Stop, ThreadId, Verdict,
};
use selvedge_store::{QueuedRequest, Store};

use crate::decide::ending;
use crate::decide::requests::{self, Pending};
use crate::error::{Error, Result};
use crate::events::NoticeKind;
use crate::held::{Delta, HeldThread, RunContext};
use crate::run_config::RunConfig;
use crate::start::RunRequest;
use crate::stop::stop_waiting;

/// The pending requests of a thread that are sealed and were not answered before.
pub(crate) fn unanswered(store: &dyn Store, thread: &ThreadId) -> selvedge_store::Result<Vec<Posted>> {
    let mut found = Vec::new();
    for QueuedRequest { posted, is_sealed } in store.pending(thread)? {
        if is_sealed && store.answered(thread, &posted.id)?.is_none() {
            found.push(posted);
        }
    }
    Ok(found)
}

impl HeldThread {
    /// The sends before the given request, after everything that needs no run was served.
    pub(crate) fn earlier_sends(
        &mut self,
        own: Option<&RunRequest>,
        work: &RunConfig,
    ) -> Result<Vec<(RequestId, Input)>> {
        self.drop_unserved()?;
        self.drain(Some(work))?;
        let sends = self.sends()?.into_iter();
        Ok(sends.take_while(|(id, _)| own.is_none_or(|own| own.id != *id)).collect())
    }

    /// The effective limits: the thread's own, and those of the run configuration where it has none.
    pub(crate) fn limits(&self, work: &RunConfig) -> Limits {
        ending::limits(&self.fold, work)
    }

    /// The change of limits that a raise makes; refused if it lowers a limit, or lifts one above the parent's.
    pub(crate) fn raised(&self, raise: &Limits, work: &RunConfig) -> Result<ManifestChanged> {
        let manifest = self.fold.manifest();
        requests::raised(manifest, self.engine.parent_limits(manifest).as_ref(), raise, &self.limits(work))
    }

    /// The effective limits; without a run configuration, the thread's own.
    fn own_limits(&self, work: Option<&RunConfig>) -> Limits {
        work.map_or_else(|| self.fold.manifest().limits.clone().unwrap_or_default(), |work| self.limits(work))
    }

    /// A request, with what its verdict depends on.
    fn pending(&self, posted: Posted) -> Pending {
        let is_raise = posted.request.kind() == RequestKind::Raise;
        let above = is_raise.then(|| self.engine.parent_limits(self.fold.manifest())).flatten();
        Pending::new(posted, above)
    }

    /// The pending requests that need no run, in order of arrival.
    pub(crate) fn requests(&self) -> Result<Vec<Pending>> {
        let waiting = self.waiting()?.into_iter();
        let waiting = waiting.filter(|posted| match posted.request {
            Request::Send(_) | Request::Resume(_) | Request::Cancel | Request::Kill => false,
            Request::Decide(_)
            | Request::Settle(_)
            | Request::Raise { .. }
            | Request::Rename { .. }
            | Request::ChildSettled(_) => true,
        });
        Ok(waiting.map(|posted| self.pending(posted)).collect())
    }

    fn waiting(&self) -> Result<Vec<Posted>> {
        Ok(unanswered(&*self.engine.store, self.thread())?)
    }

    /// The pending sends.
    pub(super) fn sends(&self) -> Result<Vec<(RequestId, Input)>> {
        let send = |posted: Posted| match posted.request {
            Request::Send(input) => Some((posted.id, input)),
            _ => None,
        };
        Ok(self.waiting()?.into_iter().filter_map(send).collect())
    }

    /// The most urgent stop that was requested.
    pub(crate) fn requested_stop(&self) -> Result<Option<Stop>> {
        let stop = |posted: Posted| match posted.request {
            Request::Cancel => Some(Stop::Cancelled),
            Request::Kill => Some(Stop::Killed),
            _ => None,
        };
        Ok(self.waiting()?.into_iter().filter_map(stop).max())
    }

    /// Commits that a request is refused, and why.
    pub(super) fn record_refusal(&mut self, asked: RunRequest, why: &Error) -> Result<()> {
        // Nothing of it was committed.
        self.delta = Delta::default();
        asked.answer(&mut self.delta, Verdict::Refused, Some(why.to_string()));
        self.commit(Reason::Lifecycle, RunContext::default()).map(|_| ())
    }

    /// The same; if it can't be committed, the request stays pending.
    pub(crate) fn refuse(&mut self, asked: RunRequest, why: &Error) {
        if self.record_refusal(asked, why).is_err() {
            self.delta = Delta::default();
        }
    }

    /// Adds the pending sends to the delta, for a thread that ends before it can answer them: its log keeps them.
    pub(crate) fn record_sends(&mut self) -> Result<()> {
        for (id, input) in self.sends()? {
            self.delta.messages.extend(input.messages);
            RunRequest { id, is_posted: true }.answer(&mut self.delta, Verdict::Applied, None);
        }
        Ok(())
    }

    /// Adds to the delta that the stop requests are consumed; returns whether there are any.
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

    /// Drops the requests that are not to be served: those that were answered before, by a holder that did not see them in the inbox yet or
    /// before their rows were restored, and those that were not sealed with the key, which are reported.
    pub(crate) fn drop_unserved(&mut self) -> Result<()> {
        for QueuedRequest { posted, is_sealed } in self.engine.store.pending(self.thread())? {
            if is_sealed {
                if self.engine.store.answered(self.thread(), &posted.id)?.is_some() {
                    self.delta.events.push(Event::RequestAnswered(Answered::new(&posted, Verdict::Unchanged, None)));
                    self.delta.consumed.push(posted.id);
                    self.commit(Reason::Lifecycle, RunContext::default())?;
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
            self.commit(Reason::Lifecycle, RunContext::default())?;
            self.notice(NoticeKind::Dropped, &why);
        }
        Ok(())
    }

    /// Serves the requests that need no run, while there is no run; returns whether anything changed that a run depends on. A refused
    /// request is consumed with that verdict.
    pub(crate) fn drain(&mut self, work: Option<&RunConfig>) -> Result<bool> {
        let mut changed = false;
        for mut pending in self.requests()? {
            let now = self.engine.clock.now();
            let mut delta = pending.answer(&self.fold, &self.own_limits(work), now);
            if let Some(raise) = pending.raise().filter(|_| requests::changes_run(&delta)).cloned()
                && let Some(short) = self.pay_raise(&raise)?
            {
                pending.short = Some(short);
                delta = pending.answer(&self.fold, &self.own_limits(work), now);
            }
            changed |= requests::changes_run(&delta);
            self.delta.append(delta);
            // One by one, so that each is judged by the state after the one before.
            self.commit(Reason::Lifecycle, RunContext::default())?;
        }
        Ok(changed)
    }

    /// Serves a request that was not posted; a refused one changes nothing.
    pub(super) fn serve_now(&mut self, posted: &Posted, work: Option<&RunConfig>) -> Result<Answered> {
        if let Request::Cancel | Request::Kill = &posted.request {
            let stop = if posted.request == Request::Kill { Stop::Killed } else { Stop::Cancelled };
            let before = self.fold.head.version;
            stop_waiting(self, stop)?;
            let verdict = if self.fold.head.version > before { Verdict::Applied } else { Verdict::Unchanged };
            return Ok(Answered::new(posted, verdict, None));
        }
        let pending = self.pending(posted.clone());
        let limits = self.own_limits(work);
        match pending.change(&self.fold, &limits, self.engine.clock.now())? {
            Some(event) => {
                if let Some(raise) = pending.raise() {
                    self.fund_raise(raise)?;
                }
                self.delta.events.push(event);
                self.commit(Reason::Lifecycle, RunContext::default())?;
                Ok(Answered::applied(posted))
            }
            None => Ok(Answered::new(posted, Verdict::Unchanged, None)),
        }
    }
}
