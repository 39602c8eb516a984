//! A thread under lease: the one place where a run commits.
//!
//! What is to be committed gathers in a delta. A commit takes the whole delta; only when it returned is the delta forgotten, the
//! fold advanced and the commit told. A commit whose answer was lost is looked up, never guessed: under a lease and an exact
//! version nobody else can have written the next one.

use std::sync::Arc;

use selvedge_log::Head;
use selvedge_model::account::Posting;
use selvedge_model::event::Place;
use selvedge_model::fold::FoldError;
use selvedge_model::{
    Batch, CallId, Changeset, Event, Expect, Message, Part, Patch, Posted, Reason, RequestId, Right, RunId, RunMeta,
    ThreadId, Timestamp,
};
use selvedge_store::{Committed, Error as StoreError, Lease};
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{Audience, Birth, Born, NoticeKind, Publication, RunEvent, Written};
use crate::fold::Fold;
use crate::ledger::Hold;
use crate::saving::Saving;

/// What has happened and is not committed yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) state: Option<Value>,
    pub(crate) messages: Vec<Message>,
    pub(crate) patches: Vec<Patch>,
    pub(crate) events: Vec<Event>,
    /// Requests that the commit takes out of the inbox.
    pub(crate) consumed: Vec<RequestId>,
    /// What is posted to the ledger, in order.
    pub(crate) postings: Vec<Posting>,
}

impl Delta {
    /// The calls that it has an outcome of.
    pub(crate) fn answered(&self) -> impl Iterator<Item = &CallId> {
        self.events.iter().filter_map(|event| match event {
            Event::ToolOutcome(outcome) => Some(&outcome.call_id),
            _ => None,
        })
    }

    /// Forgets threads that were to be born with a commit that failed. Everything else is committed with what comes next; these would
    /// be named, and paid for, without being there.
    pub(crate) fn forget(&mut self, unborn: &[Born]) {
        let is_unborn = |thread: &str| unborn.iter().any(|unborn| unborn.thread.as_str() == thread);
        self.events.retain(|event| match event {
            Event::ChildSpawned(fields) => !fields.get("thread_id").and_then(Value::as_str).is_some_and(is_unborn),
            Event::ThreadHandoff(to) | Event::ThreadResumed(to) => !is_unborn(to.new_thread_id.as_str()),
            _ => true,
        });
        self.postings.retain(|posting| match posting {
            Posting::Open { account, .. } => !is_unborn(account.as_str()),
            Posting::Reserve { child: Some(child), .. } => !is_unborn(child.as_str()),
            _ => true,
        });
    }
}

/// The epoch of a thread that is created held.
pub(crate) const BORN_EPOCH: u64 = 1;

/// Which run a commit belongs to, and what is said of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Of {
    pub(crate) run: Option<RunId>,
    pub(crate) meta: Option<RunMeta>,
    pub(crate) turn: Option<u64>,
}

/// What a commit does beside its own thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct More {
    /// What is added to other threads.
    pub(crate) parts: Vec<Part>,
    /// Requests to other threads.
    pub(crate) posted: Vec<Posted>,
}

/// What a commit wrote.
struct Landed {
    head: Head,
    /// The time of its lines, if the store said it.
    at: Option<Timestamp>,
    /// What the store put before the events of the thread.
    lead: Vec<Event>,
    births: Vec<Birth>,
}

/// Hears of every commit of a thread, before anything follows from it.
pub(crate) type Observer = Arc<dyn Fn(&ThreadId, Reason, &[Event]) + Send + Sync>;

/// A thread under lease.
pub(crate) struct Held {
    pub(crate) engine: Engine,
    /// The caller that watches what is done for it.
    pub(crate) audience: Audience,
    /// What a replay does after each commit.
    pub(crate) observer: Option<Observer>,
    pub(crate) fold: Fold,
    pub(crate) delta: Delta,
    /// What its directive wants done at events, as snapshots show it.
    pub(crate) hooks: Vec<Value>,
    /// What the call is paid with that was made last and is not settled.
    pub(crate) hold: Option<Hold>,
    /// How many calls were paid for.
    pub(crate) attempts: u64,
    /// The snapshot that is being saved; it is waited for before the lease goes.
    pub(crate) saving: Option<Saving>,
    lease: Leased,
    /// The lease of the thread that goes on in its place, granted with the batch that created that one.
    pub(crate) successor: Option<Leased>,
}

/// A lease that is given back when it is dropped, as far as that is possible: when something could not be read, and also when a tool or
/// a model of the embedding program panics. A run that was cut so is settled by whoever takes the thread next.
pub(crate) struct Leased {
    engine: Engine,
    lease: Lease,
    is_held: bool,
}

impl Leased {
    pub(crate) fn new(engine: &Engine, lease: Lease) -> Self {
        Self { engine: engine.clone(), lease, is_held: true }
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        &self.lease.thread
    }

    /// Says which dead owner it was taken over from, where a replay knows that from its record.
    pub(crate) fn set_taken_from(&mut self, owner: &selvedge_model::OwnerId) {
        self.lease.taken_from = Some(owner.clone());
    }

    fn give_back(&mut self) -> std::result::Result<(), StoreError> {
        self.engine.store.release(&self.lease)?;
        self.is_held = false;
        Ok(())
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if self.is_held {
            // Nobody is left to be told.
            _ = self.engine.store.abandon(&self.lease);
        }
    }
}

impl Held {
    pub(crate) fn new(lease: Leased, fold: Fold) -> Self {
        Self {
            engine: lease.engine.clone(),
            audience: Audience::default(),
            observer: None,
            fold,
            delta: Delta::default(),
            hooks: Vec::new(),
            hold: None,
            attempts: 0,
            saving: None,
            lease,
            successor: None,
        }
    }

    /// The owner that died and that the lease was taken over from.
    pub(crate) fn taken_from(&self) -> Option<&selvedge_model::OwnerId> {
        self.lease.lease.taken_from.as_ref()
    }

    /// The lease of a thread that was created held, by a batch of this thread.
    fn granted(&self, thread: &ThreadId) -> Leased {
        let (thread, owner) = (thread.clone(), self.engine.store.owner().clone());
        Leased::new(&self.engine, Lease { thread, owner, epoch: BORN_EPOCH, taken_from: None })
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        self.lease.thread()
    }

    /// Commits the delta. On return it is durable, folded and told; on an error nothing of it is, and the delta is as it was.
    pub(crate) fn commit(&mut self, reason: Reason, of: Of) -> Result<u64> {
        self.commit_with(reason, of, More::default())
    }

    /// Commits the delta together with what happens to other threads: all of it or none.
    pub(crate) fn commit_with(&mut self, reason: Reason, of: Of, more: More) -> Result<u64> {
        if let Some(why) = self.fold.notice.take() {
            self.notice(NoticeKind::Snapshot, &why);
            self.fold.saved.is_told = true;
        }
        let status = self.fold.manifest().status;
        let mut changeset = self.changeset(reason, of);
        self.name_messages(&mut changeset.messages, changeset.turn);
        let redactor = &self.engine.redactor;
        redactor.messages(&mut changeset.messages);
        redactor.patches(&mut changeset.patches);
        redactor.events(&mut changeset.events);
        if let Some(state) = &mut changeset.snapshot {
            redactor.value(state);
        }
        let run = changeset.run_id.clone();
        let mut events = changeset.clone().into_events();
        let born: Vec<Born> = more.parts.iter().map(Born::of).collect();
        if let Some(call) = self.fold.reopened(&events).cloned() {
            // That one is not opened again; everything else can still be committed.
            self.delta.events.retain(|event| !matches!(event, Event::CallOpened(opened) if opened.call_id == call));
            self.delta.forget(&born);
            let (thread, source) = (self.thread().clone(), FoldError::CallExists(call));
            return Err(Error::Commit { reason, source: StoreError::Fold { thread, source } });
        }
        let is_granted = |part: &&Part| matches!(part.right, Right::Lease(_));
        let granted = more.parts.iter().find(is_granted).map(|part| part.thread.clone());
        let answer = self.commit_closing(self.batch(changeset, more), &events);
        let Landed { head, at, lead, births } = match self.landed(answer, &mut events, &born)? {
            Ok(landed) => landed,
            Err(source) => {
                // What can still be committed stays in the delta.
                self.delta.forget(&born);
                return Err(Error::Commit { reason, source });
            }
        };
        let written = Written {
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
        // Guarded from here on.
        self.successor = granted.map(|thread| self.granted(&thread));
        let version = head.version;
        // What is folded here is what whoever reads the log folds, its times included.
        let at = match at {
            Some(at) => at,
            None => self.time_of(&head)?,
        };
        if self.fold.take(&events, head, run.as_ref(), at).is_err() {
            // The store folded the same events before it signed them; what it has is what counts.
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

    /// Publishes something about the thread that does not end a run.
    pub(crate) fn notice(&self, kind: NoticeKind, why: &str) {
        if self.is_watched() {
            let why = self.engine.redactor.text(why).unwrap_or_else(|| why.to_owned());
            self.publish(&RunEvent::Notice { thread: self.thread().clone(), kind, why });
        }
    }

    /// Whether anything that is published is received.
    pub(crate) fn is_watched(&self) -> bool {
        self.audience.is_some() || self.engine.bus.is_watched()
    }

    /// Publishes an event of the thread.
    pub(crate) fn publish(&self, event: &RunEvent) {
        self.engine.bus.publish(&self.fold.manifest().chain_root_id, event);
        self.audience.push(event, 0);
    }

    /// Tells subscribers that a commit of this thread can't be shown, nor the births that came with it.
    fn publish_missed(&self, born: &[Born]) {
        let bus = &self.engine.bus;
        bus.publish_missed(self.thread(), &self.fold.manifest().chain_root_id, self.fold.head.lines);
        born.iter().for_each(|born| bus.publish_missed(&born.thread, &born.chain, 0));
    }

    /// What the answer to a commit means. One that was lost is looked up, and what was committed is put into `events` as it stands in the
    /// log; the inner error says that nothing was committed.
    fn landed(
        &self,
        answer: std::result::Result<Committed, StoreError>,
        events: &mut Vec<Event>,
        born: &[Born],
    ) -> Result<std::result::Result<Landed, StoreError>> {
        let error = match answer {
            Ok(Committed { parts, at, .. }) => {
                let (own, others): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.thread == *self.thread());
                let births = Birth::among(others, born);
                let Some(part) = own.into_iter().next() else {
                    let head = self.engine.store.head(self.thread()).inspect_err(|_| self.publish_missed(born))?;
                    return Ok(Ok(Landed { head, at, lead: Vec::new(), births }));
                };
                let lead;
                (lead, *events) = without_lead(part.events);
                return Ok(Ok(Landed { head: part.head, at, lead, births }));
            }
            Err(error) => error,
        };
        if !matches!(error, StoreError::OutcomeUnknown { .. }) {
            return Ok(Err(error));
        }
        match self.engine.store.head(self.thread()) {
            Ok(head) if self.is_next(&head) => {
                let lead = self.read_back(events, &head).inspect_err(|_| self.publish_missed(born))?;
                Ok(Ok(Landed { head, at: None, lead, births: self.engine.read_births(born) }))
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

    /// Puts what the ledger recorded among the events that were committed, as it stands in the log; gives what the store led them with.
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

    fn changeset(&self, reason: Reason, of: Of) -> Changeset {
        let delta = self.delta.clone();
        let manifest = self.fold.manifest();
        // A run of a thread that a run started belongs under that one, whoever lets it go on.
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
            events: delta.events,
            ..Changeset::empty(reason)
        }
    }

    fn is_next(&self, head: &Head) -> bool {
        head.version == self.fold.head.version + 1 && head.epoch == self.lease.lease.epoch
    }

    fn batch(&self, changeset: Changeset, more: More) -> Batch {
        let thread = self.thread().clone();
        let consumed = self.delta.consumed.iter().map(|id| (thread.clone(), id.clone())).collect();
        let expect = Expect::Exact(self.fold.head.version);
        let mut part = Part::new(thread, expect, changeset).under(self.lease.lease.epoch);
        part.postings.clone_from(&self.delta.postings);
        let parts = std::iter::once(part).chain(more.parts).collect();
        Batch { key: None, parts, consumed, posted: more.posted }
    }

    /// Gives the lease back, keeping what is known of the thread; refused while somebody waits to be heard.
    pub(crate) fn release(mut self: Box<Self>) -> std::result::Result<(), (Box<Self>, StoreError)> {
        self.collect_snapshot(true);
        match self.lease.give_back() {
            Ok(()) => {
                self.engine.folds.keep(self.lease.thread(), self.fold);
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

/// What the store led a changeset with, and its events without that and without its checkpoint.
fn without_lead(events: Vec<Event>) -> (Vec<Event>, Vec<Event>) {
    let events = events.into_iter().filter(|event| event.place() != Place::End);
    events.partition(|event| event.place() == Place::Lead)
}
