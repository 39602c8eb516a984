//! Turns commits into events.

use selvedge_model::{Event, Part, Reason, RunId, ThreadId};
use selvedge_store::CommittedPart;

use super::{CallerEvents, RunEvent};
use crate::engine::Engine;

/// A thread that a commit creates.
pub(crate) struct CreatedThread {
    pub(crate) thread: ThreadId,
    /// The first thread of its chain.
    pub(crate) chain: ThreadId,
    reason: Reason,
}

impl CreatedThread {
    pub(crate) fn of(part: &Part) -> Self {
        let chain = part.changeset.created.as_ref().and_then(|created| created.chain_root_id.clone());
        let chain = chain.unwrap_or_else(|| part.thread.clone());
        Self { thread: part.thread.clone(), chain, reason: part.changeset.reason }
    }
}

/// The first changeset of a thread.
pub(crate) struct FirstChangeset {
    part: CommittedPart,
    chain: ThreadId,
    reason: Reason,
}

impl FirstChangeset {
    /// The first changesets of new threads, among the parts of a commit.
    pub(crate) fn among(parts: Vec<CommittedPart>, born: &[CreatedThread]) -> Vec<Self> {
        let birth = |part: CommittedPart| {
            let CreatedThread { chain, reason, .. } = born.iter().find(|born| born.thread == part.thread)?;
            Some(Self { part, chain: chain.clone(), reason: *reason })
        };
        parts.into_iter().filter_map(birth).collect()
    }
}

/// A commit of a held thread, published with what it did to other threads.
///
/// It is also published on drop: an error does not undo the commit.
pub(crate) struct Publication {
    engine: Engine,
    audience: CallerEvents,
    /// None without a subscriber, or after it was published.
    own: Option<OwnCommit>,
}

struct OwnCommit {
    thread: ThreadId,
    chain: ThreadId,
    run: Option<RunId>,
    reason: Reason,
    version: u64,
    first_line: u64,
    bytes: usize,
    events: Vec<Event>,
    births: Vec<FirstChangeset>,
}

/// What a commit of a held thread wrote to its log.
pub(crate) struct CommittedLines<'a> {
    pub(crate) thread: &'a ThreadId,
    pub(crate) chain: &'a ThreadId,
    pub(crate) run: Option<&'a RunId>,
    pub(crate) reason: Reason,
    pub(crate) version: u64,
    /// The number of the line after the last event's.
    pub(crate) end: u64,
    pub(crate) bytes: u64,
    /// The events that the store put first.
    pub(crate) lead: Vec<Event>,
    pub(crate) events: &'a [Event],
}

impl Publication {
    /// The publication of a commit, and of the threads that were created with it.
    pub(crate) fn new(
        engine: &Engine,
        audience: &CallerEvents,
        written: CommittedLines<'_>,
        births: Vec<FirstChangeset>,
    ) -> Self {
        let engine = engine.clone();
        let audience = audience.clone();
        if !audience.is_some() && !engine.bus.is_watched() {
            return Self { engine, audience, own: None };
        }
        let CommittedLines { thread, chain, run, reason, version, end, bytes, lead, events } = written;
        // Any caller may run a child from the commit on, so children are published at once. A successor is held, and is published after its
        // predecessor.
        let (successors, children): (Vec<_>, Vec<_>) = births.into_iter().partition(|birth| birth.chain == *chain);
        for birth in children {
            engine.publish_first(birth);
        }
        let events: Vec<Event> = lead.into_iter().chain(events.iter().cloned()).collect();
        let own = OwnCommit {
            thread: thread.clone(),
            chain: chain.clone(),
            run: run.cloned(),
            reason,
            version,
            first_line: end.saturating_sub(events.len() as u64),
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            events,
            births: successors,
        };
        Self { engine, audience, own: Some(own) }
    }

    /// Publishes it now.
    pub(crate) fn publish(self) {
        drop(self);
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else { return };
        let OwnCommit { thread, chain, run, reason, version, first_line, bytes, events, births } = own;
        let bus = &self.engine.bus;
        let ended = events.iter().find_map(|event| match event {
            Event::RunFinished(run) => Some(RunEvent::Ended {
                thread: thread.clone(),
                run: run.run_id.clone(),
                status: run.meta.thread_status(),
                code: run.meta.termination_code.clone().unwrap_or_default(),
            }),
            _ => None,
        });
        let events = events.into();
        let committed = RunEvent::Committed { thread, run, version, reason, first_line, events };
        bus.publish_sized(&chain, &committed, bytes);
        self.audience.push(&committed, bytes);
        if let Some(ended) = ended {
            bus.publish(&chain, &ended);
            self.audience.push(&ended, 0);
        }
        for birth in births {
            self.engine.publish_first(birth);
        }
    }
}

impl Engine {
    /// Publishes the first changeset of a thread.
    pub(crate) fn publish_first(&self, birth: FirstChangeset) {
        if !self.bus.is_watched() {
            return;
        }
        let FirstChangeset { part: CommittedPart { thread, head, first_line, events }, chain, reason } = birth;
        let bytes = usize::try_from(head.bytes).unwrap_or(usize::MAX);
        let version = head.version;
        let events = events.into();
        let committed = RunEvent::Committed { thread, run: None, version, reason, first_line, events };
        self.bus.publish_sized(&chain, &committed, bytes);
    }

    /// The first changesets of these threads, read from the store because the result of their commit was lost. One that can't be read is
    /// reported as missed.
    pub(crate) fn read_first_changesets(&self, born: &[CreatedThread]) -> Vec<FirstChangeset> {
        if !self.bus.is_watched() {
            return Vec::new();
        }
        let read = |CreatedThread { thread, chain, reason }: &CreatedThread| {
            let (Ok(lines), Ok(mut head)) = (self.store.read(thread, 0, usize::MAX), self.store.head(thread)) else {
                self.bus.publish_missed(thread, chain, 0);
                return None;
            };
            let mut events = Vec::new();
            for line in lines {
                if let Event::Checkpoint(checkpoint) = line.event {
                    head.version = checkpoint.version;
                    break;
                }
                events.push(line.event);
            }
            let part = CommittedPart { thread: thread.clone(), head, first_line: 0, events };
            Some(FirstChangeset { part, chain: chain.clone(), reason: *reason })
        };
        born.iter().filter_map(read).collect()
    }
}
