//! The fold of a thread's log, kept between commits so that nothing is read twice.
//!
//! A kept fold is not trusted: it names the head it folds, and the process that acquires the lease again compares that with the store's.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use selvedge_log::scan::ScannedChangeset;
use selvedge_log::{Head, Trust};
use selvedge_model::event::{Injected, Process};
use selvedge_model::fold::{CallState, FoldError};
use selvedge_model::limits::UsageMeter;
use selvedge_model::token_estimate::TokenEstimate;
use selvedge_model::{CallId, Event, Manifest, Message, RunId, Thread, ThreadId, Timestamp};
use selvedge_store::load::load;
use selvedge_store::{Logs, Result};
use serde_json::Value;

use crate::conversation::Conversation;
use crate::snapshot::{Keeper, LastSave, Loaded};

/// The folded state of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    /// Everything but the messages.
    thread: Thread,
    pub(crate) conversation: Conversation,
    /// Where the log ends.
    pub(crate) head: Head,
    /// Its last snapshot.
    pub(crate) saved: LastSave,
    /// A notice about how it was loaded, not published yet.
    pub(crate) notice: Option<String>,
}

impl Fold {
    /// Reads a thread from its log, every hash and the last signature checked.
    pub(crate) fn load(logs: &dyn Logs, thread: &ThreadId, trust: &Trust) -> Result<Self> {
        let mut loaded = load(logs, thread, trust, None)?;
        let mut conversation = Conversation::default();
        for message in loaded.thread.take_messages() {
            conversation.push(message);
        }
        Ok(Self::of(loaded.thread, conversation, loaded.head))
    }

    /// A thread whose messages are known; the calls that it opened itself are added.
    pub(crate) fn of(thread: Thread, mut conversation: Conversation, head: Head) -> Self {
        for opened in thread.opened() {
            conversation.open_call(opened);
        }
        for injected in &thread.injected {
            conversation.inject(injected);
        }
        Self { thread, conversation, head, saved: LastSave::default(), notice: None }
    }

    /// Reads a thread from its newest valid snapshot and the rest of the log, or else from its whole log.
    pub(crate) fn open(keeper: Option<&Keeper>, logs: &dyn Logs, thread: &ThreadId, trust: &Trust) -> Result<Self> {
        let loaded = match keeper {
            Some(keeper) => keeper.begin(thread, logs.head(thread)?.bytes, trust),
            None => Loaded::Nothing,
        };
        match loaded {
            Loaded::Fold(fold) => Ok(*fold),
            Loaded::Nothing => Self::load(logs, thread, trust),
            Loaded::Refused(why) => Self::load(logs, thread, trust).map(|fold| Self { notice: Some(why), ..fold }),
        }
    }

    /// The same, with its last snapshot.
    pub(crate) fn with_saved(self, saved: LastSave) -> Self {
        Self { saved, ..self }
    }

    pub(crate) fn thread_id(&self) -> &ThreadId {
        &self.thread.manifest.thread_id
    }

    /// Everything but the messages.
    pub(crate) fn thread(&self) -> &Thread {
        &self.thread
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.thread.manifest
    }

    pub(crate) fn state(&self) -> &Value {
        &self.thread.state
    }

    /// The record of a call beyond its messages.
    pub(crate) fn call(&self, id: &CallId) -> Option<&CallState> {
        self.thread.calls.get(id)
    }

    /// Whether a call is on record whose id begins with this text.
    pub(crate) fn has_call_of(&self, prefix: &str) -> bool {
        let Ok(first) = CallId::new(prefix) else { return false };
        let next = self.thread.calls.range(first..).next();
        next.is_some_and(|(id, _)| id.as_str().starts_with(prefix))
    }

    /// The process that was started to run a child.
    pub(crate) fn process_of(&self, child: &ThreadId) -> Option<&Process> {
        let started = |call: &&CallState| call.child.as_ref().is_some_and(|spawned| spawned.thread_id == *child);
        self.thread.calls.values().find(started)?.intent.as_ref()?.process.as_ref()
    }

    /// The ratio of its provider's token counts to our estimates.
    pub(crate) fn gauge(&self) -> &TokenEstimate {
        &self.thread.gauge
    }

    /// The provider's session that knows the conversation up to the last answer, if this model has it.
    pub(crate) fn session_of(&self, model: &str) -> Option<&str> {
        self.thread.session.as_ref().filter(|session| session.model == model).map(|session| session.id.as_str())
    }

    /// What it has used of its limits.
    pub(crate) fn meter(&self) -> &UsageMeter {
        &self.thread.meter
    }

    pub(crate) fn run(&self, id: &RunId) -> Option<&selvedge_model::Run> {
        self.thread.runs.get(id)
    }

    /// Applies what was committed.
    pub(crate) fn take(
        &mut self,
        events: &[Event],
        head: Head,
        run: Option<&RunId>,
        at: Timestamp,
    ) -> Result<(), FoldError> {
        for event in events {
            match event {
                Event::Message(message) => {
                    self.thread.observe_message(message);
                    let run_id = message.run_id.clone().or_else(|| run.cloned());
                    self.conversation.push(Message { run_id, ..message.clone() });
                }
                other => self.apply(other, at)?,
            }
        }
        self.thread.committed(head.version, run, at);
        self.head = head;
        Ok(())
    }

    /// Applies a changeset as it stands in the log.
    pub(crate) fn absorb(&mut self, entry: ScannedChangeset) -> Result<(), FoldError> {
        let run = entry.checkpoint().and_then(|checkpoint| checkpoint.run_id.clone());
        for line in entry.lines {
            match line.event {
                Event::Message(mut message) => {
                    self.thread.observe_message(&message);
                    message.run_id = message.run_id.or_else(|| run.clone());
                    self.conversation.push(message);
                }
                other => self.apply(&other, line.timestamp)?,
            }
        }
        self.head = entry.head;
        Ok(())
    }

    fn apply(&mut self, event: &Event, at: Timestamp) -> Result<(), FoldError> {
        self.thread.apply(event, at)?;
        match event {
            Event::CallOpened(opened) => self.conversation.open_call(opened),
            Event::ContextInjected(fields) => {
                if let Some(injected) = Injected::of(fields) {
                    self.conversation.inject(&injected);
                }
            }
            Event::ToolOutcome(outcome) => self.conversation.close_call(&outcome.call_id),
            _ => {}
        }
        Ok(())
    }

    /// The first call that these events open although its id is in use. A store does not know the calls of a thread, so a changeset is
    /// checked against the fold before it is committed.
    pub(crate) fn reopened<'e>(&self, events: &'e [Event]) -> Option<&'e CallId> {
        events.iter().find_map(|event| match event {
            Event::CallOpened(opened) if self.thread.knows_call(&opened.call_id) => Some(&opened.call_id),
            _ => None,
        })
    }
}

/// The most folds to keep of threads without a run in this process; the least recently run is dropped, which costs a read of its log.
const KEPT_MAX: usize = 128;

/// Folds of threads without a run in this process. A run owns the fold of its thread, however many runs there are.
#[derive(Debug, Default)]
pub(crate) struct Folds {
    kept: Mutex<KeptFold>,
}

#[derive(Debug, Default)]
struct KeptFold {
    /// Each with its number in the order of keeping.
    of: HashMap<ThreadId, (u64, Fold)>,
    order: BTreeMap<u64, ThreadId>,
    next: u64,
}

impl KeptFold {
    fn take(&mut self, thread: &ThreadId) -> Option<Fold> {
        let (number, fold) = self.of.remove(thread)?;
        self.order.remove(&number);
        Some(fold)
    }

    fn put(&mut self, thread: &ThreadId, fold: Fold) {
        self.take(thread);
        self.next += 1;
        self.order.insert(self.next, thread.clone());
        self.of.insert(thread.clone(), (self.next, fold));
        while self.of.len() > KEPT_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.of.remove(&oldest);
        }
    }
}

impl Folds {
    /// The fold of a thread, from memory if it still ends where the log does.
    pub(crate) fn get(
        &self,
        keeper: Option<&Keeper>,
        logs: &dyn Logs,
        thread: &ThreadId,
        trust: &Trust,
    ) -> Result<Fold> {
        let kept = self.lock().take(thread);
        match kept {
            Some(fold) if fold.head == logs.head(thread)? => Ok(fold),
            _ => Fold::open(keeper, logs, thread, trust),
        }
    }

    pub(crate) fn keep(&self, thread: &ThreadId, fold: Fold) {
        self.lock().put(thread, fold);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, KeptFold> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use selvedge_model::event::{CallOpened, CallOrigin, ThreadCreated, ToolOutcome};
    use selvedge_model::{AgentId, Digest, LogId, NewThread};

    use super::*;

    fn fold(thread: &ThreadId) -> Fold {
        let log_id = LogId::new("0".repeat(32)).unwrap();
        let head = Head {
            log_id,
            segment: 0,
            version: 0,
            lines: 2,
            bytes: 100,
            hash: Digest([0; 32]),
            epoch: 0,
            signer: Digest([1; 32]),
        };
        let new = NewThread::of(AgentId::new("agent").unwrap());
        let created = Event::ThreadCreated(Box::new(ThreadCreated { format: 1, log_id, segment: 0, thread: new }));
        Fold::of(Thread::begin(thread, &created, Timestamp::from_micros(0)).unwrap(), Conversation::default(), head)
    }

    #[test]
    fn a_call_is_open_from_its_event_to_its_outcome_and_its_id_is_taken_from_then_on() {
        let mut fold = fold(&ThreadId::new("t").unwrap());
        let call_id = CallId::new("o.1").unwrap();
        let origin = CallOrigin::Node { graph: "g".to_owned(), node: "n".to_owned() };
        let tool = "t".to_owned();
        let arguments = Value::Null;
        let events = [Event::CallOpened(CallOpened { call_id: call_id.clone(), origin, tool, arguments })];
        assert_eq!(fold.reopened(&events), None);
        let head = fold.head.clone();
        let at = Timestamp::from_micros(0);
        fold.take(&events, head.clone(), None, at).unwrap();
        assert_eq!((fold.reopened(&events), fold.conversation.open().len()), (Some(&call_id), 1));
        // As after loading from a snapshot.
        let again = Fold::of(fold.thread.clone(), Conversation::default(), head.clone());
        assert_eq!(again.conversation.open().to_vec(), fold.conversation.open().to_vec());
        let outcome = ToolOutcome { call_id: call_id.clone(), result: None, error: None, failure: None, blob: None };
        fold.take(&[Event::ToolOutcome(outcome)], head, None, at).unwrap();
        assert_eq!((fold.reopened(&events), fold.conversation.open().len()), (Some(&call_id), 0));
    }

    #[test]
    fn the_least_recently_kept_fold_is_dropped_first_and_one_at_a_time() {
        let name = |number: usize| ThreadId::new(format!("t{number}")).unwrap();
        let mut kept = KeptFold::default();
        for number in 0..KEPT_MAX {
            kept.put(&name(number), fold(&name(number)));
        }
        // The first is used again.
        let again = kept.take(&name(0)).unwrap();
        kept.put(&name(0), again);
        kept.put(&name(KEPT_MAX), fold(&name(KEPT_MAX)));
        assert_eq!((kept.of.len(), kept.order.len()), (KEPT_MAX, KEPT_MAX));
        assert!(kept.take(&name(1)).is_none());
        assert!(kept.take(&name(0)).is_some() && kept.take(&name(2)).is_some());
        assert_eq!(kept.order.len(), KEPT_MAX - 2);
    }
}
