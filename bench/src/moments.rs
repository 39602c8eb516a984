//! The times of events in a run: its models record when they are asked, and its store when something was committed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use selvedge_model::answer::{Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::message::Block;
use selvedge_model::{
    Answer, Batch, CallId, Cancel, CommitKey, Digest, Event, Model, ModelError, Prompt, Reason, ThreadId,
};
use selvedge_store::{Commit, Committed, Result as Stored, Store, Tombstone};
use serde_json::{Value, json};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// A model was asked.
    Asked(Who),
    /// Something was committed for this reason.
    Committed(Reason),
    /// A thread was handed over.
    HandedOver,
}

/// Whose model was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Itself,
    Child,
}

/// All events, in order.
#[derive(Clone, Default)]
pub(crate) struct Moments(Arc<Mutex<Vec<(Happened, Instant)>>>);

impl Moments {
    pub(crate) fn note(&self, what: Happened) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((what, Instant::now()));
    }

    /// Takes all events so far.
    pub(crate) fn take(&self) -> Vec<(Happened, Instant)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The microseconds between two events.
pub(crate) fn micros(from: &(Happened, Instant), to: &(Happened, Instant)) -> f64 {
    to.1.duration_since(from.1).as_secs_f64() * 1e6
}

/// A store that records when something was committed: at the commit, not when an observer of the run sees it.
pub(crate) struct RecordingStore {
    inner: Arc<dyn Store>,
    note: Box<dyn Fn(Happened) + Send + Sync>,
}

impl RecordingStore {
    pub(crate) fn new(inner: Arc<dyn Store>, note: impl Fn(Happened) + Send + Sync + 'static) -> Self {
        Self { inner, note: Box::new(note) }
    }
}

impl Commit for RecordingStore {
    fn commit(&self, batch: Batch) -> Stored<Committed> {
        let mut events = batch.parts.iter().flat_map(|part| &part.changeset.events);
        let what = match batch.parts.first() {
            _ if events.any(|event| matches!(event, Event::ThreadHandoff(_))) => Some(Happened::HandedOver),
            first => first.map(|part| Happened::Committed(part.changeset.reason)),
        };
        let committed = self.inner.commit(batch)?;
        what.into_iter().for_each(|what| (self.note)(what));
        Ok(committed)
    }
    fn outcome(&self, key: &CommitKey) -> Stored<Option<Committed>> {
        self.inner.outcome(key)
    }
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Stored<Digest> {
        self.inner.put_blob(thread, bytes)
    }
    fn delete(&self, thread: &ThreadId) -> Stored<Tombstone> {
        self.inner.delete(thread)
    }
}

selvedge_store::forward!([] RecordingStore, inner: Logs, Leases, Inbox, Registry, Feed, Ledger);

/// A model that records when it is asked, makes the listed calls turn by turn, and then finishes. It counts its turns itself, so it
/// continues its list in every thread of a chain.
pub(crate) struct RecordingModel {
    who: Who,
    text: String,
    /// The tool of each turn, with its arguments.
    calls: Vec<(&'static str, Value)>,
    asked: Mutex<usize>,
    moments: Moments,
}

impl RecordingModel {
    pub(crate) fn new(who: Who, text: &str, calls: Vec<(&'static str, Value)>, moments: &Moments) -> Self {
        Self { who, text: text.to_owned(), calls, asked: Mutex::default(), moments: moments.clone() }
    }
}

impl Model for RecordingModel {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            self.moments.note(Happened::Asked(self.who));
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = *asked;
            *asked += 1;
            let mut content = vec![Block::text(self.text.clone())];
            let id = CallId::new(format!("call_{turn}"))
                .map_err(|error| ModelError::Permanent { why: error.to_string() })?;
            let end = match self.calls.get(turn).cloned() {
                Some((name, arguments)) => {
                    content.push(Block::tool_call(id, name.to_owned(), arguments));
                    End::ToolCalls
                }
                None => End::Finished,
            };
            Ok(Answer::new(content, end).using(Usage::default()))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A call without arguments, this often.
pub(crate) fn calls(name: &'static str, times: usize) -> Vec<(&'static str, Value)> {
    vec![(name, json!({})); times]
}
