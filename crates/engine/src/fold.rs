//! What is known of a thread between commits: the fold of its log, kept so that nothing is read twice.
//!
//! Never trusted: it names the head it folds, and whoever takes the thread up again compares that with the store's.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use selvedge_log::{Head, Trust};
use selvedge_model::fold::{Call, FoldError};
use selvedge_model::{CallId, Event, Manifest, RunId, Thread, ThreadId, Timestamp};
use selvedge_store::load::load;
use selvedge_store::{Logs, Result};
use serde_json::Value;

use crate::conversation::Conversation;

/// What is known of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    /// Everything but the messages.
    thread: Thread,
    pub(crate) conversation: Conversation,
    /// Where the log ends.
    pub(crate) head: Head,
}

impl Fold {
    /// Reads a thread from its log, every hash and the last signature checked.
    pub(crate) fn load(logs: &dyn Logs, thread: &ThreadId, trust: &Trust) -> Result<Self> {
        let mut loaded = load(logs, thread, trust, None)?;
        let mut conversation = Conversation::default();
        loaded.thread.take_messages().into_iter().for_each(|message| conversation.push(message));
        Ok(Self { thread: loaded.thread, conversation, head: loaded.head })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.thread.manifest
    }

    pub(crate) fn state(&self) -> &Value {
        &self.thread.state
    }

    /// What is known of a call beyond its messages.
    pub(crate) fn call(&self, id: &CallId) -> Option<&Call> {
        self.thread.calls.get(id)
    }

    pub(crate) fn run(&self, id: &RunId) -> Option<&selvedge_model::Run> {
        self.thread.runs.get(id)
    }

    /// Takes in what was committed.
    pub(crate) fn take(
        &mut self,
        events: &[Event],
        head: Head,
        run: Option<&RunId>,
        at: Timestamp,
    ) -> Result<(), FoldError> {
        for event in events {
            match event {
                Event::Message(message) => self.conversation.push(message.clone()),
                other => self.thread.apply(other, at)?,
            }
        }
        self.thread.committed(head.version, run, at);
        self.head = head;
        Ok(())
    }
}

/// How many folds are kept at most; beyond it all are forgotten, which costs a read each.
const KEPT_MAX: usize = 128;

/// Folds of threads that nobody runs right now.
#[derive(Debug, Default)]
pub(crate) struct Folds {
    kept: Mutex<HashMap<ThreadId, Fold>>,
}

impl Folds {
    /// The fold of a thread, from memory if it still ends where the log does.
    pub(crate) fn get(&self, logs: &dyn Logs, thread: &ThreadId, trust: &Trust) -> Result<Fold> {
        let kept = self.lock().remove(thread);
        match kept {
            Some(fold) if fold.head == logs.head(thread)? => Ok(fold),
            _ => Fold::load(logs, thread, trust),
        }
    }

    pub(crate) fn keep(&self, thread: &ThreadId, fold: Fold) {
        let mut kept = self.lock();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(thread.clone(), fold);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ThreadId, Fold>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
