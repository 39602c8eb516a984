//! A thread under lease: the one place where a run commits.
//!
//! What is to be committed gathers in a delta. A commit takes the whole delta; only when it returned is the delta forgotten, the
//! fold advanced and the commit told. A commit whose answer was lost is looked up, never guessed: under a lease and an exact
//! version nobody else can have written the next one.

use selvedge_log::Head;
use selvedge_model::{
    Batch, Changeset, Event, Expect, Message, Note, NoteKey, Part, Patch, Reason, RunId, RunMeta, ThreadId,
};
use selvedge_store::{Error as StoreError, Lease};
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::fold::Fold;
use crate::told::Told;

/// What has happened and is not committed yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) state: Option<Value>,
    pub(crate) messages: Vec<Message>,
    pub(crate) patches: Vec<Patch>,
    pub(crate) events: Vec<Event>,
    pub(crate) consumed: Vec<NoteKey>,
}

/// Which run a commit belongs to, and what is said of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Of {
    pub(crate) run: Option<RunId>,
    pub(crate) meta: Option<RunMeta>,
    pub(crate) turn: Option<u64>,
}

/// A thread under lease.
pub(crate) struct Held<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) fold: Fold,
    pub(crate) delta: Delta,
    lease: Guard<'e>,
}

/// A lease that is given back when it is dropped, as far as that is possible: also when a tool or a model of the embedding program
/// panics. A run that was cut so is settled by whoever takes the thread next.
struct Guard<'e> {
    engine: &'e Engine,
    lease: Lease,
    is_held: bool,
}

impl Guard<'_> {
    fn give_back(&mut self) -> std::result::Result<(), StoreError> {
        self.engine.store.release(&self.lease)?;
        self.is_held = false;
        Ok(())
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.is_held {
            // Nobody is left to be told.
            _ = self.engine.store.abandon(&self.lease);
        }
    }
}

impl<'e> Held<'e> {
    pub(crate) fn new(engine: &'e Engine, lease: Lease, fold: Fold) -> Self {
        Self { engine, fold, delta: Delta::default(), lease: Guard { engine, lease, is_held: true } }
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        &self.lease.lease.thread
    }

    /// Commits the delta. On return it is durable, folded and told; on an error nothing of it is, and the delta is as it was.
    pub(crate) fn commit(&mut self, reason: Reason, of: Of, tell: &mut dyn FnMut(Told<'_>)) -> Result<u64> {
        let mut changeset = self.changeset(reason, of);
        let redactor = &self.engine.redactor;
        redactor.messages(&mut changeset.messages);
        redactor.patches(&mut changeset.patches);
        redactor.events(&mut changeset.events);
        if let Some(state) = &mut changeset.snapshot {
            redactor.value(state);
        }
        let run = changeset.run_id.clone();
        let events = changeset.clone().into_events();
        let committed = self.engine.store.commit(self.batch(changeset));
        let head = self.engine.store.head(self.thread());
        let head = match (committed, head) {
            (Ok(_), head) => head?,
            (Err(StoreError::OutcomeUnknown { .. }), Ok(head)) if self.is_next(&head) => head,
            (Err(source), _) => return Err(Error::Commit { reason, source }),
        };
        self.delta = Delta::default();
        // Whatever the store put before them (a recovery, a new key), the events are the last lines before the checkpoint.
        let seq = head.lines.saturating_sub(events.len() as u64 + 1);
        let version = head.version;
        if self.fold.take(&events, head, run.as_ref(), self.engine.clock.now()).is_err() {
            // The store folded the same events before it signed them; what it has is what counts.
            self.fold = Fold::load(&*self.engine.store, self.thread(), &self.engine.trust)?;
        }
        tell(Told::Committed { thread: &self.lease.lease.thread, version, reason, seq, events: &events });
        Ok(version)
    }

    fn changeset(&self, reason: Reason, of: Of) -> Changeset {
        let delta = self.delta.clone();
        Changeset {
            run_id: of.run,
            run_meta: of.meta,
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

    fn batch(&self, changeset: Changeset) -> Batch {
        let thread = self.thread().clone();
        let consumed = self.delta.consumed.iter().map(|note| (thread.clone(), note.clone())).collect();
        let expect = Expect::Exact(self.fold.head.version);
        let part = Part::new(thread, expect, changeset).under(self.lease.lease.epoch);
        Batch { consumed, ..Batch::of(part) }
    }

    /// The notes that ask a run to stop.
    pub(crate) fn stops(&self) -> Result<Vec<NoteKey>> {
        let asks = |note: &Note| matches!(note.kind.as_str(), "cancel" | "kill");
        let notes = self.engine.store.pending(self.thread())?;
        Ok(notes.into_iter().filter(asks).map(|note| note.key).collect())
    }

    /// Gives the lease back, keeping what is known of the thread; refused while somebody waits to be heard.
    pub(crate) fn release(mut self) -> std::result::Result<(), (Box<Self>, StoreError)> {
        match self.lease.give_back() {
            Ok(()) => {
                self.engine.folds.keep(&self.lease.lease.thread, self.fold);
                Ok(())
            }
            Err(error) => Err((Box::new(self), error)),
        }
    }
}
