//! A thread under lease: the only place where a run commits.
//!
//! Changes gather in a delta. A commit takes the whole delta; only after it returned, the delta is cleared, the fold advanced and the commit
//! published. If the result of a commit was lost, it is looked up, never guessed: under a lease and an exact version, no other writer can
//! have committed the next version.

use std::sync::Arc;

use selvedge_log::Head;
use selvedge_model::account::Posting;
use selvedge_model::event::{Fields, LineOrder};
use selvedge_model::fold::FoldError;
use selvedge_model::{
    Batch, CallId, Changeset, Event, Expect, Message, Part, Patch, Posted, Reason, RequestId, Right, RunId, RunMeta,
    ThreadId, Timestamp,
};
use selvedge_store::{Committed, Error as StoreError, Lease};
use serde_json::Value;

use crate::decide::results;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{CallerEvents, CommittedLines, CreatedThread, FirstChangeset, NoticeKind, Publication, RunEvent};
use crate::fold::Fold;
use crate::probed::Findings;
use crate::snapshot_saving::PendingSave;

/// Changes that are not committed yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) state: Option<Value>,
    pub(crate) messages: Vec<Message>,
    pub(crate) patches: Vec<Patch>,
    /// Recorded intents of tools that changed the state, for audit.
    pub(crate) state_actions: Vec<Fields>,
    pub(crate) events: Vec<Event>,
    /// Requests that the commit takes out of the inbox.
    pub(crate) consumed: Vec<RequestId>,
    /// Postings to the ledger, in order.
    pub(crate) postings: Vec<Posting>,
}

impl Delta {
    /// The calls that it has an outcome for.
    pub(crate) fn answered(&self) -> impl Iterator<Item = &CallId> {
        self.events.iter().filter_map(|event| match event {
            Event::ToolOutcome(outcome) => Some(&outcome.call_id),
            _ => None,
        })
    }

    /// Appends everything in another delta.
    pub(crate) fn append(&mut self, other: Self) {
        let Self { state, messages, patches, state_actions, events, consumed, postings } = other;
        self.state = state.or(self.state.take());
        self.messages.extend(messages);
        self.patches.extend(patches);
        self.state_actions.extend(state_actions);
        self.events.extend(events);
        self.consumed.extend(consumed);
        self.postings.extend(postings);
    }
}

/// The epoch of a thread that is created with a lease.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// Which run a commit belongs to, and what it records about the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunContext {
    pub(crate) run: Option<RunId>,
    pub(crate) meta: Option<RunMeta>,
    pub(crate) turn: Option<u64>,
}

/// What a commit does to other threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtherThreads {
    /// Changesets of other threads.
    pub(crate) parts: Vec<Part>,
    /// Requests to other threads.
    pub(crate) posted: Vec<Posted>,
}

/// What a commit has written.
struct Applied {
    head: Head,
    /// The time of its lines, if the store returned it.
    at: Option<Timestamp>,
    /// The events that the store put before the thread's own.
    lead: Vec<Event>,
    births: Vec<FirstChangeset>,
}

/// Is called after every commit of a thread, before anything else happens.
pub(crate) type Observer = Arc<dyn Fn(&ThreadId, Reason, &[Event]) + Send + Sync>;

/// A thread under lease.
pub(crate) struct HeldThread {
    pub(crate) engine: Engine,
    /// The caller's event queue.
    pub(crate) audience: CallerEvents,
    /// What a replay calls after each commit.
    pub(crate) observer: Option<Observer>,
    pub(crate) fold: Fold,
    pub(crate) delta: Delta,
    /// The hooks of its directive, as snapshots show them.
    pub(crate) hooks: Vec<Value>,
    /// The snapshot that is being saved; it is completed before the lease is released.
    pub(crate) saving: Option<PendingSave>,
    /// What was found out about calls whose outcome is unknown.
    pub(crate) findings: Findings,
    lease: LeaseGuard,
    /// The lease of its successor, granted by the batch that created the successor.
    pub(crate) successor: Option<LeaseGuard>,
}

/// A lease that is released on drop, if possible: after a read failed, and also when a tool or a model of the embedding program panics. A run
/// that was interrupted this way is settled by the next process that acquires the lease.
pub(crate) struct LeaseGuard {
    engine: Engine,
    lease: Lease,
    is_held: bool,
}

impl LeaseGuard {
    pub(crate) fn new(engine: &Engine, lease: Lease) -> Self {
        Self { engine: engine.clone(), lease, is_held: true }
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        &self.lease.thread
    }

    /// Sets the dead owner that the lease was taken over from, which a replay knows from its record.
    pub(crate) fn set_taken_from(&mut self, owner: &selvedge_model::OwnerId) {
        self.lease.taken_from = Some(owner.clone());
    }

    fn release(&mut self) -> std::result::Result<(), StoreError> {
        self.engine.store.release(&self.lease)?;
        self.is_held = false;
        Ok(())
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if self.is_held {
            // Drop can't return an error.
            _ = self.engine.store.abandon(&self.lease);
            self.engine.watcher.abandoned(&self.lease.thread);
        }
    }
}

impl HeldThread {
    pub(crate) fn new(lease: LeaseGuard, fold: Fold) -> Self {
        Self {
            engine: lease.engine.clone(),
            audience: CallerEvents::default(),
            observer: None,
            findings: Findings::of(fold.manifest().suspended.as_ref()),
            fold,
            delta: Delta::default(),
            hooks: Vec::new(),
            saving: None,
            lease,
            successor: None,
        }
    }

    /// The dead owner that the lease was taken over from.
    pub(crate) fn taken_from(&self) -> Option<&selvedge_model::OwnerId> {
        self.lease.lease.taken_from.as_ref()
    }

    /// The lease of a thread that was created with a lease, by a batch of this thread.
    fn granted(&self, thread: &ThreadId) -> LeaseGuard {
        let thread = thread.clone();
        let owner = self.engine.store.owner().clone();
        LeaseGuard::new(&self.engine, Lease { thread, owner, epoch: FIRST_EPOCH, taken_from: None })
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        self.lease.thread()
    }

    /// Answers every open call with this text, as when a suspended thread is stopped: no call stays without a result.
    pub(crate) fn interrupt_calls(&mut self, text: &str) {
        results::interrupt(&mut self.delta, &self.fold, &self.engine.scopes, text);
    }

    /// Commits the delta. On return it is durable, folded and published; on an error none of it is, and the delta is unchanged.
    pub(crate) fn commit(&mut self, reason: Reason, of: RunContext) -> Result<u64> {
        self.commit_with(reason, of, OtherThreads::default())
    }

    /// Commits the delta together with changes of other threads: all of it or none.
    pub(crate) fn commit_with(&mut self, reason: Reason, of: RunContext, more: OtherThreads) -> Result<u64> {
        if let Some(why) = self.fold.notice.take() {
            self.notice(NoticeKind::Snapshot, &why);
            self.fold.saved.is_told = true;
        }
        let status = self.fold.manifest().status;
        let mut changeset = self.changeset(reason, of);
        self.findings.note(&mut changeset.events);
        self.name_messages(&mut changeset.messages, changeset.turn);
        let redactor = &self.engine.redactor;
        redactor.messages(&mut changeset.messages);
        redactor.patches(&mut changeset.patches);
        redactor.actions(&mut changeset.state_actions);
        redactor.events(&mut changeset.events);
        if let Some(state) = &mut changeset.snapshot {
            redactor.value(state);
        }
        let run = changeset.run_id.clone();
        let mut events = changeset.clone().into_events();
        let born: Vec<CreatedThread> = more.parts.iter().map(CreatedThread::of).collect();
        if let Some(call) = self.fold.reopened(&events).cloned() {
            let thread = self.thread().clone();
            let source = FoldError::CallExists(call);
            return Err(Error::Commit { reason, source: StoreError::Fold { thread, source } });
        }
        let is_granted = |part: &&Part| matches!(part.right, Right::Lease(_));
        let granted = more.parts.iter().find(is_granted).map(|part| part.thread.clone());
        let answer = self.commit_closing(self.batch(changeset, more), &events);
        let Applied { head, at, lead, births } = match self.applied(answer, &mut events, &born)? {
            Ok(applied) => applied,
            Err(source) => return Err(Error::Commit { reason, source }),
        };
        let written = CommittedLines {
            thread: self.thread(),
            chain: &self.fold.manifest().chain_root_id,
            run: run.as_ref(),
            reason,
            version: head.version,
            end: head.lines.saturating_sub(1),
            bytes: head.bytes.saturating_sub(self.fold.head.bytes),
            lead,
            events: &events,
        };
        // Published also if what follows fails: it is committed.
        let publication = Publication::new(&self.engine, &self.audience, written, births);
        self.delta = Delta::default();
        // From here on, a drop releases the successor's lease.
        self.successor = granted.map(|thread| self.granted(&thread));
        let version = head.version;
        // What is folded here must equal what a reader of the log folds, including its times.
        let at = match at {
            Some(at) => at,
            None => self.time_of(&head)?,
        };
        if self.fold.take(&events, head, run.as_ref(), at).is_err() {
            // The store folded the same events before it signed them; its log is authoritative.
            let fold = Fold::load(&*self.engine.store, self.thread(), &self.engine.trust)?;
            self.fold = fold.with_saved(std::mem::take(&mut self.fold.saved));
        }
        publication.publish();
        if let Some(observer) = &self.observer {
            observer(self.lease.thread(), reason, &events);
        }
        self.keep_snapshot(reason, status);
        Ok(version)
    }

    /// Publishes a notice about the thread; it does not end a run.
    pub(crate) fn notice(&self, kind: NoticeKind, why: &str) {
        if self.is_watched() {
            let why = self.engine.redactor.text(why).unwrap_or_else(|| why.to_owned());
            self.publish(&RunEvent::Notice { thread: self.thread().clone(), kind, why });
        }
    }

    /// Whether there is any receiver for published events.
    pub(crate) fn is_watched(&self) -> bool {
        self.audience.is_some() || self.engine.bus.is_watched()
    }

    /// Publishes an event of the thread.
    pub(crate) fn publish(&self, event: &RunEvent) {
        self.engine.bus.publish(&self.fold.manifest().chain_root_id, event);
        self.audience.push(event, 0);
    }

    /// Publishes to subscribers that a commit of this thread, and the births in it, can't be shown.
    fn publish_missed(&self, born: &[CreatedThread]) {
        let bus = &self.engine.bus;
        bus.publish_missed(self.thread(), &self.fold.manifest().chain_root_id, self.fold.head.lines);
        for born in born {
            bus.publish_missed(&born.thread, &born.chain, 0);
        }
    }

    /// What the result of a commit means. If the result was lost, it is looked up, and `events` is replaced by what stands in the log. The
    /// inner error says that nothing was committed.
    fn applied(
        &self,
        answer: std::result::Result<Committed, StoreError>,
        events: &mut Vec<Event>,
        born: &[CreatedThread],
    ) -> Result<std::result::Result<Applied, StoreError>> {
        let error = match answer {
            Ok(Committed { parts, at, .. }) => {
                let (own, rest): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.thread == *self.thread());
                let births = FirstChangeset::among(rest, born);
                let Some(part) = own.into_iter().next() else {
                    let head = self.engine.store.head(self.thread()).inspect_err(|_| self.publish_missed(born))?;
                    return Ok(Ok(Applied { head, at, lead: Vec::new(), births }));
                };
                let lead;
                (lead, *events) = without_lead(part.events);
                return Ok(Ok(Applied { head: part.head, at, lead, births }));
            }
            Err(error) => error,
        };
        if !matches!(error, StoreError::OutcomeUnknown { .. }) {
            return Ok(Err(error));
        }
        match self.engine.store.head(self.thread()) {
            Ok(head) if self.is_next(&head) => {
                let lead = self.read_back(events, &head).inspect_err(|_| self.publish_missed(born))?;
                Ok(Ok(Applied { head, at: None, lead, births: self.engine.read_first_changesets(born) }))
            }
            Ok(_) => Ok(Err(error)),
            Err(_) => {
                // It may be committed: subscribers look it up.
                self.publish_missed(born);
                Ok(Err(error))
            }
        }
    }

    /// The time of the last line of the log.
    fn time_of(&self, head: &Head) -> Result<Timestamp> {
        let last = self.engine.store.read(self.thread(), head.lines.saturating_sub(1), 1)?.pop();
        Ok(last.map_or_else(|| self.engine.clock.now(), |line| line.timestamp))
    }

    /// Adds the ledger's records to the events that were committed, as they stand in the log; returns the events that the store put first.
    fn read_back(&self, events: &mut Vec<Event>, head: &Head) -> Result<Vec<Event>> {
        let before = self.fold.head.lines;
        let is_more = head.lines > before + events.len() as u64 + 1;
        if !is_more {
            return Ok(Vec::new());
        }
        let lines = self.engine.store.read(self.thread(), before, usize::MAX)?;
        let lead;
        (lead, *events) =
            without_lead(lines.into_iter().take_while(|line| line.seq < head.lines).map(|line| line.event).collect());
        Ok(lead)
    }

    fn changeset(&self, reason: Reason, of: RunContext) -> Changeset {
        let delta = self.delta.clone();
        let manifest = self.fold.manifest();
        // A run of a child belongs to the run that spawned it, whichever process resumes it.
        let parent_run_id = manifest.parent_run_id.clone().filter(|_| of.meta.is_some());
        let run_meta = of.meta.map(|meta| RunMeta {
            parent_thread_id: meta
                .parent_thread_id
                .or_else(|| manifest.parent_run_id.as_ref().and(manifest.parent_id.clone())),
            ..meta
        });
        Changeset {
            run_id: of.run,
            parent_run_id,
            run_meta,
            turn: of.turn,
            snapshot: delta.state,
            messages: delta.messages,
            patches: delta.patches,
            state_actions: delta.state_actions,
            events: delta.events,
            ..Changeset::empty(reason)
        }
    }

    fn is_next(&self, head: &Head) -> bool {
        head.version == self.fold.head.version + 1 && head.epoch == self.lease.lease.epoch
    }

    fn batch(&self, changeset: Changeset, more: OtherThreads) -> Batch {
        let thread = self.thread().clone();
        let consumed = self.delta.consumed.iter().map(|id| (thread.clone(), id.clone())).collect();
        let expect = Expect::Exact(self.fold.head.version);
        let mut part = Part::new(thread, expect, changeset).under(self.lease.lease.epoch);
        part.postings.clone_from(&self.delta.postings);
        let parts = std::iter::once(part).chain(more.parts).collect();
        Batch { key: None, parts, consumed, posted: more.posted }
    }

    /// Releases the lease and keeps the fold; refused while a send is pending.
    pub(crate) fn release(mut self: Box<Self>) -> std::result::Result<(), (Box<Self>, StoreError)> {
        self.collect_snapshot(true);
        match self.lease.release() {
            Ok(()) => {
                self.engine.folds.keep(self.lease.thread(), self.fold);
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

/// Splits off the events that the store put first; the rest comes without the checkpoint.
fn without_lead(events: Vec<Event>) -> (Vec<Event>, Vec<Event>) {
    let events = events.into_iter().filter(|event| event.place() != LineOrder::End);
    events.partition(|event| event.place() == LineOrder::Lead)
}
