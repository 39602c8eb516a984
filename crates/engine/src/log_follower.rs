//! Follows a run of another process, by the log that it commits to.

use selvedge_log::Line;
use selvedge_model::event::Checkpoint;
use selvedge_model::{Event, RequestId, RunId, ThreadId};
use selvedge_store::{Result, Store};

use crate::events::{CallerEvents, RunEvent};

/// How many lines are read at once.
const LINES: usize = 256;

/// The position of a follower in a log.
#[derive(Debug)]
pub(crate) struct Follower {
    /// The number of the next line.
    next: u64,
    /// The lines of a changeset whose checkpoint has not been read yet.
    open: Vec<Line>,
    /// The run that serves the request, or continues one that did, once it is known.
    pub(crate) run: Option<RunId>,
    /// Whether the next run to begin continues one that served the request.
    pub(crate) is_handed_off: bool,
}

impl Follower {
    /// Follows from this line on.
    pub(crate) fn from(next: u64) -> Self {
        Self { next, open: Vec::new(), run: None, is_handed_off: false }
    }

    /// Continues in the successor.
    pub(crate) fn on(self) -> Self {
        let is_handed_off = self.was_served();
        Self { is_handed_off, ..Self::from(0) }
    }

    /// Whether the request was served.
    pub(crate) fn was_served(&self) -> bool {
        self.run.is_some() || self.is_handed_off
    }

    /// Passes on what the run that serves the request has committed since the last call.
    pub(crate) fn publish_new(
        &mut self,
        store: &dyn Store,
        thread: &ThreadId,
        request: &RequestId,
        audience: &CallerEvents,
    ) -> Result<()> {
        loop {
            let lines = store.read(thread, self.next, LINES)?;
            let count = lines.len();
            self.next += count as u64;
            for line in lines {
                match &line.event {
                    Event::Checkpoint(checkpoint) => {
                        let checkpoint = checkpoint.clone();
                        self.changeset(thread, request, &checkpoint, audience);
                    }
                    _ => self.open.push(line),
                }
            }
            if count < LINES {
                return Ok(());
            }
        }
    }

    fn changeset(&mut self, thread: &ThreadId, request: &RequestId, checkpoint: &Checkpoint, audience: &CallerEvents) {
        let lines = std::mem::take(&mut self.open);
        let seq = lines.first().map_or(self.next, |line| line.seq);
        let events: Vec<Event> = lines.into_iter().map(|line| line.event).collect();
        for event in &events {
            match event {
                Event::RunStarted(run)
                    if std::mem::take(&mut self.is_handed_off)
                        || run.meta.source_mailbox_entry_id.as_deref() == Some(request.as_str()) =>
                {
                    self.run = Some(run.run_id.clone());
                }
                _ => {}
            }
        }
        if self.run.is_some() && self.run == checkpoint.run_id {
            let version = checkpoint.version;
            let reason = checkpoint.reason;
            let events = events.into();
            let thread = thread.clone();
            let run = self.run.clone();
            audience.push(&RunEvent::Committed { thread, run, version, reason, first_line: seq, events }, 0);
        }
    }
}
