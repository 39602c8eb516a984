//! Stopping threads, with everything that they started: asked first, then by force.
//!
//! The process that runs a thread gets a request, and ends it at the next moment at which nothing is lost. A thread that only waits is ended
//! here, under its lease. Who is to be killed and does not hear is ended by the identity of its process, which was on record before it could
//! act.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use selvedge_model::event::{ManifestChanged, Process};
use selvedge_model::{Event, Reason, Request, RunMeta, Status, Stop, ThreadId};
use selvedge_store::Acquire;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::Audience;
use crate::held::{Held, More, Of};
use crate::inbox::Delivered;
use crate::standing::started_for;

/// How long a thread that is to be killed may take to stop by itself.
const GRACE: Duration = Duration::from_secs(3);
/// How often is looked whether it has.
const LOOK: Duration = Duration::from_millis(50);

/// What became of asking a thread to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Where it stood when that was known.
    pub status: Status,
    /// The process that ran it, if it was another one than this.
    pub pid: Option<u32>,
}

impl Engine {
    /// Asks whoever runs a thread to stop, and those who run what it started; a thread that waits is cancelled at once.
    pub fn stop(&self, thread: &ThreadId, stop: Stop) -> Result<Stopped> {
        let stopped = self.stop_chain(thread, stop);
        self.stop_below(thread, stop)?;
        stopped
    }

    /// Stops everything that a chain started.
    pub(crate) fn stop_below(&self, thread: &ThreadId, stop: Stop) -> Result<()> {
        let mut known = HashSet::from([thread.clone()]);
        let mut open = vec![thread.clone()];
        while let Some(next) = open.pop() {
            for link in self.store.chain(&next)? {
                for child in self.store.children(&link.manifest.thread_id)? {
                    let child = child.manifest.thread_id;
                    if known.insert(child.clone()) {
                        // One that can't be reached keeps nobody from stopping the others.
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
            // A thread that was continued at the same moment did not hear it; the one that goes on does.
            // Where the chain leads nowhere any more, because its end was deleted or its links are damaged, there is nobody to hear it.
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
        let delivered = self.deliver(thread, request, None)?;
        // Said once the request is there, so that the run which ends answers it.
        if let Some(cancel) = self.lock_active().get(thread) {
            cancel.say(stop);
        }
        if stop == Stop::Killed && matches!(delivered, Delivered::Left(_)) {
            self.end_by_force(thread)?;
        }
        let pid = holder.filter(|_| matches!(delivered, Delivered::Left(_))).and_then(|holder| holder.pid());
        Ok(Stopped { status: self.store.get(thread)?.manifest.status, pid })
    }

    /// Ends the process that runs a thread and does not hear, by the identity that was recorded before it could act: never by a number
    /// alone.
    fn end_by_force(&self, thread: &ThreadId) -> Result<()> {
        let deadline = Instant::now() + GRACE;
        let is_run = || Ok::<_, Error>(self.store.holder(thread)?.is_some());
        while is_run()? && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        let (true, Some(process)) = (is_run()?, self.process_of(thread)?) else { return Ok(()) };
        if self.processes.end(&process).is_err() {
            return Ok(());
        }
        if let Ok(lease) = self.lease(thread, Acquire { wait: GRACE, take_over: false }) {
            let mut held = self.take(lease, &Audience::default())?;
            stop_waiting(&mut held, Stop::Killed)?;
            self.give_back(held)?;
        }
        Ok(())
    }

    fn process_of(&self, thread: &ThreadId) -> Result<Option<Process>> {
        started_for(&*self.store, &self.trust, &self.store.get(thread)?.manifest)
    }
}

/// Stops a thread that waits for somebody: its open calls are answered, and it ends. One that never ran ends with a run that did nothing.
pub(crate) fn stop_waiting(held: &mut Held, stop: Stop) -> Result<()> {
    let status = if stop == Stop::Killed { Status::Killed } else { Status::Cancelled };
    match held.fold.manifest().status {
        Status::Suspended => {}
        Status::Created => return end_unborn(held, status, None),
        _ => return Ok(()),
    }
    held.interrupt_calls("interrupted: the thread was stopped before this call was made")?;
    let changed = ManifestChanged { status: Some(status), ..Default::default() };
    held.delta.events.push(Event::ManifestChanged(changed));
    let more = More { posted: held.settles(status).into_iter().collect(), ..More::default() };
    held.commit_with(Reason::Lifecycle, Of::default(), more).map(|_| ())
}

/// Ends a thread that never ran, with a run that did nothing.
pub(crate) fn end_unborn(held: &mut Held, status: Status, why: Option<&str>) -> Result<()> {
    let run = held.next_run()?;
    held.hear_sends()?;
    let meta = RunMeta::started(held.fold.manifest().agent_id.clone(), "user").under_lease();
    let meta = meta.finished(status.to_string());
    let meta = RunMeta { termination_detail: why.map(str::to_owned), ..meta };
    let more = More { posted: held.settles(status).into_iter().collect(), ..More::default() };
    let of = Of { run: Some(run), meta: Some(meta), turn: None };
    held.commit_with(Reason::RunFinished, of, more).map(|_| ())
}
