//! Stops threads, with everything below them: by request first, then by force.
//!
//! The process that runs a thread gets a request, and ends the run at the next moment at which nothing is lost. A suspended thread is ended
//! here, under its lease. A process that is to be killed and does not respond is ended by its identity, which was recorded before it could
//! act.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use selvedge_model::event::{ManifestChanged, Process};
use selvedge_model::{Event, Reason, Request, RunMeta, Status, Stop, ThreadId};
use selvedge_store::Acquire;

use crate::engine::Engine;
use crate::error::Result;
use crate::events::CallerEvents;
use crate::graph;
use crate::held::{HeldThread, OtherThreads, RunContext};
use crate::inbox::Delivered;
use crate::thread_state::started_for;

/// How long a thread that is to be killed may take to stop by itself.
const GRACE: Duration = Duration::from_secs(3);

/// The result of stopping a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Its status afterwards.
    pub status: Status,
    /// The process that runs it, if it is another one than this.
    pub pid: Option<u32>,
}

impl Engine {
    /// Stops a thread and everything below it. On return, a suspended or new thread has ended; the process that runs any other has the
    /// request.
    pub fn stop(&self, thread: &ThreadId, stop: Stop) -> Result<Stopped> {
        let stopped = self.stop_chain(thread, stop);
        self.stop_below(thread, stop)?;
        stopped
    }

    /// Stops everything below a chain.
    pub(crate) fn stop_below(&self, thread: &ThreadId, stop: Stop) -> Result<()> {
        let mut known = HashSet::from([thread.clone()]);
        let mut open = vec![thread.clone()];
        while let Some(next) = open.pop() {
            for link in self.store.chain(&next)? {
                for child in self.store.children(&link.manifest.thread_id)? {
                    let child = child.manifest.thread_id;
                    if known.insert(child.clone()) {
                        // A child that can't be reached does not keep the rest from being stopped.
                        _ = self.stop_chain(&child, stop);
                        open.push(child);
                    }
                }
            }
        }
        Ok(())
    }

    /// Stops the end of a chain.
    fn stop_chain(&self, thread: &ThreadId, stop: Stop) -> Result<Stopped> {
        loop {
            let end = self.end_of_chain(thread)?;
            let stopped = self.stop_link(&end, stop)?;
            // A thread that was continued at the same moment missed the stop; its successor gets it. If the chain leads nowhere any more,
            // because its end was deleted or its links are damaged, there is nothing to stop.
            let is_over = self.store.get(&end)?.manifest.status != Status::Continued;
            if is_over || self.end_of_chain(thread)? == end {
                return Ok(stopped);
            }
        }
    }

    fn stop_link(&self, thread: &ThreadId, stop: Stop) -> Result<Stopped> {
        self.refuse_outside(&self.store.get(thread)?.manifest)?;
        let holder = self.store.holder(thread)?;
        let request = if stop == Stop::Killed { Request::Kill } else { Request::Cancel };
        let delivered = self.request(thread, request, None, Duration::ZERO)?;
        // Signalled after the request is posted, so that the run that ends answers it.
        if let Some(cancel) = self.lock_active().get(thread) {
            cancel.say(stop);
        }
        if stop == Stop::Killed && matches!(delivered, Delivered::Queued(_)) {
            self.end_by_force(thread)?;
        }
        let pid = holder.filter(|_| matches!(delivered, Delivered::Queued(_))).and_then(|holder| holder.pid());
        Ok(Stopped { status: self.store.get(thread)?.manifest.status, pid })
    }

    /// Ends the process that runs a thread and does not respond, by the identity that was recorded before it could act: never by a process
    /// id alone.
    fn end_by_force(&self, thread: &ThreadId) -> Result<()> {
        let deadline = Instant::now() + GRACE;
        loop {
            // Before the check, so that a release in between is not missed.
            let freed = self.store.leases_freed();
            if self.store.holder(thread)?.is_none() {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.store.wait_for_lease(freed, left)?;
        }
        let Some(process) = self.process_of(thread)? else { return Ok(()) };
        if self.processes.end(&process).is_err() {
            return Ok(());
        }
        if let Ok(lease) = self.lease(thread, Acquire { wait: GRACE, take_over: false }) {
            let mut held = self.take(lease, &CallerEvents::default())?;
            stop_waiting(&mut held, Stop::Killed)?;
            self.release_thread(held)?;
        }
        Ok(())
    }

    fn process_of(&self, thread: &ThreadId) -> Result<Option<Process>> {
        started_for(&*self.store, &self.trust, &self.store.get(thread)?.manifest)
    }
}

/// Stops a suspended thread: its open calls get results, and it ends. One that never ran ends with a run that did nothing.
pub(crate) fn stop_waiting(held: &mut HeldThread, stop: Stop) -> Result<()> {
    let status = if stop == Stop::Killed { Status::Killed } else { Status::Cancelled };
    match held.fold.manifest().status {
        Status::Suspended => {}
        Status::Created => return end_unstarted(held, status, None),
        _ => return Ok(()),
    }
    held.interrupt_calls("interrupted: the thread was stopped before this call was executed");
    held.delta.events.extend(graph::cancelled(&held.fold));
    let changed = ManifestChanged { status: Some(status), ..Default::default() };
    held.delta.events.push(Event::ManifestChanged(changed));
    let more =
        OtherThreads { posted: held.child_settled_request(status).into_iter().collect(), ..OtherThreads::default() };
    held.commit_with(Reason::Lifecycle, RunContext::default(), more).map(|_| ())
}

/// Ends a thread that never ran, with a run that did nothing.
pub(crate) fn end_unstarted(held: &mut HeldThread, status: Status, why: Option<&str>) -> Result<()> {
    let run = held.next_run()?;
    held.record_sends()?;
    let meta = RunMeta::started(held.fold.manifest().agent_id.clone(), "user").under_lease();
    let meta = meta.finished(status.to_string());
    let meta = RunMeta { termination_detail: why.map(str::to_owned), ..meta };
    held.delta.events.extend(graph::cancelled(&held.fold));
    let more =
        OtherThreads { posted: held.child_settled_request(status).into_iter().collect(), ..OtherThreads::default() };
    let of = RunContext { run: Some(run), meta: Some(meta), turn: None };
    held.commit_with(Reason::RunFinished, of, more).map(|_| ())
}
