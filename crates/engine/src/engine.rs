//! The handle of the engine, and its verbs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_log::Trust;
use selvedge_model::scope::Scopes;
use selvedge_model::tool::Processes;
use selvedge_model::{
    Batch, CallId, Cancel, Changeset, Clock, Event, Expect, Ids, Message, NewThread, Note, NoteKey, Part, Reason,
    RunStatus, Status, Stop, ThreadId,
};
use selvedge_store::{Acquire, Error as StoreError, Filter, Store};
use serde_json::json;

use crate::assignment::Assignment;
use crate::error::{Error, Result};
use crate::fold::Folds;
use crate::follow::Follow;
use crate::held::{Held, Of};
use crate::input::Input;
use crate::mask::Mask;
use crate::redact::Redactor;
use crate::run;
use crate::told::{Ended, Told};

/// What an engine is made of.
pub struct Options {
    /// Where threads are kept.
    pub store: Arc<dyn Store>,
    /// Whose signatures count when a log is read.
    pub trust: Trust,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Where chance comes from.
    pub ids: Arc<dyn Ids>,
    /// Who ends processes that an earlier life left behind.
    pub processes: Arc<dyn Processes>,
    /// How long what stands in a state lives.
    pub scopes: Scopes,
    /// What must never reach a log.
    pub redactor: Redactor,
}

/// Runs threads. Shared freely: runs of one thread follow each other, runs of different threads go on side by side.
pub struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) trust: Trust,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) processes: Arc<dyn Processes>,
    pub(crate) scopes: Scopes,
    pub(crate) redactor: Redactor,
    pub(crate) folds: Folds,
    /// What is running in this process, and how to stop it.
    active: Mutex<HashMap<ThreadId, Cancel>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// What a person says became of a call that nobody saw end.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It was done, with this result.
    Done(serde_json::Value),
    /// It was not done; it is dispatched again.
    NotDone,
    /// Nobody can know; the model is told so.
    Unknown,
}

/// How often a waiting sender and a running thread look at their notes.
const LOOK: Duration = Duration::from_millis(100);

impl Engine {
    /// An engine.
    pub fn new(options: Options) -> Self {
        let Options { store, trust, clock, ids, processes, scopes, redactor } = options;
        let (folds, active) = (Folds::default(), Mutex::default());
        Self { store, trust, clock, ids, processes, scopes, redactor, folds, active }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Creates a thread named after its directive or agent, with the messages it begins with; it is durable on return and nothing has
    /// run. [`Engine::resume`] answers what it begins with.
    pub fn create(&self, mut thread: NewThread, mut messages: Vec<Message>) -> Result<ThreadId> {
        self.redactor.thread(&mut thread);
        self.redactor.messages(&mut messages);
        let name = thread.directive.as_ref().map_or(thread.agent_id.as_str(), |directive| directive.as_str());
        let id = ThreadId::generate(name, &self.ids.hex12());
        let changeset = Changeset { messages, ..Changeset::creating(thread) };
        self.store.commit(Batch::of(Part::new(id.clone(), Expect::Absent, changeset)))?;
        Ok(id)
    }

    /// A further run on a thread, or on the end of its chain. If somebody else runs it, the message waits for its turn and is heard
    /// by whoever holds the thread, or by this process once that one is gone.
    pub fn send(
        &self,
        thread: &ThreadId,
        input: Input,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Ended> {
        let thread = self.end_of_chain(thread)?;
        match self.store.acquire(&thread, Acquire::default()) {
            Ok(lease) => self.run_held(lease, input, work, cancel, tell),
            Err(StoreError::LeaseHeld { .. }) => self.send_note(&thread, input, work, cancel, tell),
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on with a thread that waits, or whose process is gone; a message is optional.
    pub fn resume(
        &self,
        thread: &ThreadId,
        input: Input,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Ended> {
        let thread = self.end_of_chain(thread)?;
        let status = self.store.get(&thread)?.manifest.status;
        if status.is_terminal() {
            let hint = format!("`selvedge send {thread} \"…\"` starts a further run on it");
            return Err(Error::NotRunnable { thread, status, why: "there is nothing to resume", hint });
        }
        let lease = self.store.acquire(&thread, Acquire::default())?;
        self.run_held(lease, input, work, cancel, tell)
    }

    /// Asks whoever runs a thread to stop; a thread that waits is cancelled at once.
    pub fn stop(&self, thread: &ThreadId, stop: Stop) -> Result<Status> {
        let thread = self.end_of_chain(thread)?;
        if let Some(cancel) = self.lock_active().get(&thread) {
            cancel.say(stop);
        }
        match self.store.acquire(&thread, Acquire::default()) {
            Ok(lease) => {
                let mut held = self.take(lease, &mut |_| {})?;
                let result = stop_waiting(&mut held, stop);
                let status = held.fold.manifest().status;
                self.give_back(held)?;
                result.map(|()| status)
            }
            Err(StoreError::LeaseHeld { .. }) => {
                let kind = if stop == Stop::Killed { "kill" } else { "cancel" };
                self.post(&thread, kind, &self.ids.hex12(), json!({}))?;
                Ok(self.store.get(&thread)?.manifest.status)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Records what became of a call that nobody saw end. The next run goes by it.
    pub fn settle(&self, thread: &ThreadId, call: &CallId, verdict: Verdict, who: &str) -> Result<()> {
        let lease = self.store.acquire(thread, Acquire { wait: Duration::from_secs(5), take_over: false })?;
        let mut held = self.take(lease, &mut |_| {})?;
        let known = held.fold.call(call).filter(|known| known.intent.is_some() && known.outcome.is_none());
        if known.is_none() {
            self.give_back(held)?;
            return Err(Error::NoOpenCall { thread: thread.clone(), call: call.clone() });
        }
        let (action, result) = match verdict {
            Verdict::Done(result) => ("done", Some(result)),
            Verdict::NotDone => ("not_done", None),
            Verdict::Unknown => ("unknown", None),
        };
        held.delta.events.push(Event::Decision(selvedge_model::event::Decision {
            call_id: call.clone(),
            action: action.to_owned(),
            who: who.to_owned(),
            action_hash: None,
            reason: None,
            result,
        }));
        let committed = held.commit(Reason::Lifecycle, Of::default(), &mut |_| {});
        self.give_back(held)?;
        committed.map(|_| ())
    }

    /// Settles every thread whose process is gone while it ran; gives those it settled. A thread that can't be settled is left for
    /// whoever needs it.
    pub fn recover(&self) -> Result<Vec<ThreadId>> {
        let mut settled = Vec::new();
        for thread in self.left_running()? {
            // Somebody alive holds it.
            let Ok(lease) = self.store.acquire(&thread, Acquire::default()) else { continue };
            if let Ok(held) = self.take(lease, &mut |_| {}) {
                settled.push(thread);
                _ = self.give_back(held);
            }
        }
        Ok(settled)
    }

    /// Threads that are said to run and may not.
    fn left_running(&self) -> Result<Vec<ThreadId>> {
        let filter = Filter { status: Some(Status::Running), ..Filter::default() };
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.list(&filter, after, 100)?;
            found.extend(page.items.into_iter().map(|summary| summary.manifest.thread_id));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    fn end_of_chain(&self, thread: &ThreadId) -> Result<ThreadId> {
        if self.store.get(thread)?.manifest.status != Status::Continued {
            return Ok(thread.clone());
        }
        let chain = self.store.chain(thread)?;
        Ok(chain.into_iter().next_back().map_or_else(|| thread.clone(), |end| end.manifest.thread_id))
    }

    /// A thread whose lease was just taken; a run whose process is gone is settled first.
    fn take(&self, lease: selvedge_store::Lease, tell: &mut dyn FnMut(Told<'_>)) -> Result<Held<'_>> {
        let fold = match self.folds.get(&*self.store, &lease.thread, &self.trust) {
            Ok(fold) => fold,
            Err(error) => {
                _ = self.store.release(&lease);
                return Err(error.into());
            }
        };
        let mut held = Held::new(self, lease, fold);
        if held.fold.manifest().status == Status::Running
            && let Err(error) = run::settle_lost(&mut held, tell)
        {
            _ = held.release();
            return Err(error);
        }
        Ok(held)
    }

    fn run_held(
        &self,
        lease: selvedge_store::Lease,
        input: Input,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Ended> {
        let mut held = self.take(lease, tell)?;
        let thread = held.thread().clone();
        self.lock_active().insert(thread.clone(), cancel.clone());
        let earlier = self.hear_earlier(&mut held, input.note.as_ref(), work);
        let ended = match earlier {
            // Hearing it has finished what was open, and there is nothing else to say.
            Ok(Some(heard)) if input.is_empty() => Ok(heard),
            Ok(_) => self.run_once(&mut held, input, work, cancel, tell),
            Err(error) => Err(error),
        };
        // What could not be recorded is settled by whoever takes the thread next; dropping it gives the lease back.
        let heard = ended.and_then(|ended| self.hear_others(held, work, cancel).map(|()| ended));
        self.lock_active().remove(&thread);
        heard
    }

    /// Hears what was sent before, by whoever did not live to see it heard, up to the note that is being heard itself; gives how the
    /// last of those runs ended.
    fn hear_earlier(&self, held: &mut Held<'_>, own: Option<&NoteKey>, work: &Assignment) -> Result<Option<Ended>> {
        let notes = self.store.pending(held.thread())?;
        let earlier = notes.into_iter().filter(|note| note.kind == "send").take_while(|note| Some(&note.key) != own);
        let mut heard = None;
        for note in earlier {
            heard = Some(self.run_once(held, input_of(note), work, &Cancel::new(), &mut |_| {})?);
        }
        Ok(heard)
    }

    /// One run, with somebody looking at the notes meanwhile.
    fn run_once(
        &self,
        held: &mut Held<'_>,
        input: Input,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Ended> {
        let is_again = |message: &Message| message.id.as_ref().is_some_and(|id| held.fold.conversation.knows(id));
        if !input.messages.is_empty() && input.state.is_none() && input.messages.iter().all(is_again) {
            if let Some(note) = input.note {
                held.delta.consumed.push(note);
                held.commit(Reason::Lifecycle, Of::default(), tell)?;
            }
            return Ok(ended_already(held));
        }
        if input.is_empty() && held.fold.conversation.messages().is_empty() {
            let (thread, status) = (held.thread().clone(), held.fold.manifest().status);
            let hint = format!("`selvedge send {thread} \"…\"` says something to it");
            return Err(Error::NotRunnable { thread, status, why: "nobody has said anything to it yet", hint });
        }
        // Whoever asked an earlier run to stop did not mean this one.
        held.delta.consumed = held.stops()?;
        let thread = held.thread().clone();
        let over = Over(Cancel::new());
        std::thread::scope(|scope| {
            let until = over.0.clone();
            scope.spawn(move || self.watch_notes(&thread, cancel, &until));
            // Moved in, so that it is said also when a tool panics.
            let _over = over;
            let mut mask = Mask::new(&self.redactor, tell);
            run::run(held, input, work, cancel, &mut |told| mask.tell(&told))
        })
    }

    /// Looks for notes that ask to stop, until the run is over.
    fn watch_notes(&self, thread: &ThreadId, cancel: &Cancel, over: &Cancel) {
        while over.wait(LOOK).is_none() {
            for note in self.store.pending(thread).unwrap_or_default() {
                match note.kind.as_str() {
                    "cancel" => cancel.say(Stop::Cancelled),
                    "kill" => cancel.say(Stop::Killed),
                    _ => {}
                }
            }
        }
    }

    /// Runs what others sent meanwhile, in order, answers what was asked, and gives the lease back: it can't be given back while
    /// somebody waits to be heard.
    fn hear_others(&self, mut held: Held<'_>, work: &Assignment, cancel: &Cancel) -> Result<()> {
        loop {
            let thread = held.thread().clone();
            let notes = self.store.pending(&thread)?;
            held.delta.consumed = held.stops()?;
            if !held.delta.consumed.is_empty() {
                held.commit(Reason::Lifecycle, Of::default(), &mut |_| {})?;
            }
            if cancel.said() == Some(Stop::Killed) {
                return self.give_back(held);
            }
            for note in notes.into_iter().filter(|note| note.kind == "send") {
                let input = input_of(note);
                // Whoever stopped the run before did not mean this one; whoever stops this process does.
                let fresh = if cancel.said().is_none() { cancel.clone() } else { Cancel::new() };
                self.lock_active().insert(thread.clone(), fresh.clone());
                self.run_once(&mut held, input, work, &fresh, &mut |_| {})?;
            }
            held = match held.release() {
                Ok(()) => return Ok(()),
                Err((held, StoreError::NotesPending { .. })) => *held,
                Err((_, error)) => return Err(error.into()),
            };
        }
    }

    /// Gives a thread back that was only looked at or settled. Whatever was sent to it waits: dropping the lease gives it up, and
    /// whoever waits, or runs the thread next, hears it.
    fn give_back(&self, held: Held<'_>) -> Result<()> {
        match held.release() {
            Ok(()) | Err((_, StoreError::NotesPending { .. })) => Ok(()),
            Err((_, error)) => Err(error.into()),
        }
    }

    /// Leaves a message for whoever holds the thread and waits until it was heard; if that one is gone, hears it here.
    fn send_note(
        &self,
        thread: &ThreadId,
        input: Input,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Ended> {
        let name = input.messages.first().and_then(|message| message.id.as_ref()).map(ToString::to_string);
        let name = name.unwrap_or_else(|| self.ids.hex32());
        let (mut messages, mut state) = (input.messages, input.state);
        self.redactor.messages(&mut messages);
        state.iter_mut().for_each(|state| self.redactor.value(state));
        let body = json!({"messages": messages, "state": state, "origin": input.origin});
        let mut follow = Follow::from(self.store.head(thread)?.lines);
        let key = self.post(thread, "send", &name, body)?;
        let mut position = self.store.position()?;
        loop {
            follow.tell(&*self.store, thread, &key, tell)?;
            if let Some(run) = self.run_of(thread, &key)? {
                follow.tell(&*self.store, thread, &key, tell)?;
                return self.heard_elsewhere(thread, &run, follow.text);
            }
            let note = self.store.pending(thread)?.into_iter().find(|note| note.key == key);
            match (note, self.store.acquire(thread, Acquire::default())) {
                (Some(note), Ok(lease)) => return self.run_held(lease, input_of(note), work, cancel, tell),
                (None, Ok(lease)) => {
                    // Heard, and its run is over or was cut short; taking the thread has settled it.
                    let held = self.take(lease, tell)?;
                    let ended = ended_already(&held);
                    self.give_back(held)?;
                    follow.tell(&*self.store, thread, &key, tell)?;
                    return match self.run_of(thread, &key)? {
                        Some(run) => self.heard_elsewhere(thread, &run, follow.text),
                        None => Ok(ended),
                    };
                }
                (_, Err(StoreError::LeaseHeld { .. })) => {}
                (_, Err(error)) => return Err(error.into()),
            }
            if cancel.said().is_some() {
                let why = "whoever runs it has not heard the message yet";
                let status = self.store.get(thread)?.manifest.status;
                let hint = "it is heard once that run ends".to_owned();
                return Err(Error::NotRunnable { thread: thread.clone(), status, why, hint });
            }
            self.store.wait(position, LOOK)?;
            position = self.store.position()?;
        }
    }

    /// The run that answered a note, once it is over.
    fn run_of(&self, thread: &ThreadId, note: &NoteKey) -> Result<Option<selvedge_model::Run>> {
        let ours = |run: &selvedge_model::Run| {
            run.meta.status != RunStatus::Running && run.meta.source_mailbox_entry_id.as_deref() == Some(note.as_str())
        };
        Ok(self.store.runs(thread)?.into_iter().rev().find(ours))
    }

    fn heard_elsewhere(&self, thread: &ThreadId, run: &selvedge_model::Run, text: Option<String>) -> Result<Ended> {
        let manifest = self.store.get(thread)?.manifest;
        Ok(Ended {
            thread: thread.clone(),
            run: Some(run.run_id.clone()),
            status: manifest.status,
            text,
            code: run.meta.termination_code.clone().unwrap_or_default(),
            detail: run.meta.termination_detail.clone(),
            suspended: manifest.suspended,
            outputs: manifest.outputs,
            turns: run.meta.cost.as_ref().map_or(0, |cost| cost.turns),
            input_tokens: run.meta.input_tokens,
            output_tokens: run.meta.output_tokens,
        })
    }

    fn post(&self, thread: &ThreadId, kind: &str, name: &str, body: serde_json::Value) -> Result<NoteKey> {
        let key = NoteKey::new(format!("{kind}-{name}")).map_err(|_| StoreError::BadBatch)?;
        self.store.post(Note { thread: thread.clone(), key: key.clone(), kind: kind.to_owned(), body })?;
        Ok(key)
    }

    fn lock_active(&self) -> MutexGuard<'_, HashMap<ThreadId, Cancel>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a run is over when it is dropped.
struct Over(Cancel);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.say(Stop::Cancelled);
    }
}

/// The input that a note asks for.
fn input_of(note: Note) -> Input {
    let field = |name: &str| note.body.get(name).cloned().unwrap_or_default();
    Input {
        messages: serde_json::from_value(field("messages")).unwrap_or_default(),
        state: Some(field("state")).filter(|state| !state.is_null()),
        origin: field("origin").as_str().unwrap_or("user").to_owned(),
        note: Some(note.key),
    }
}

/// Stops a thread that waits for somebody: its open calls are answered, and it ends.
fn stop_waiting(held: &mut Held<'_>, stop: Stop) -> Result<()> {
    let status = match (held.fold.manifest().status, stop) {
        (Status::Suspended, Stop::Killed) => Status::Killed,
        (Status::Suspended, _) => Status::Cancelled,
        _ => return Ok(()),
    };
    held.interrupt_calls("interrupted: the thread was stopped before this call was made")?;
    let changed = selvedge_model::event::ManifestChanged { status: Some(status), ..Default::default() };
    held.delta.events.push(Event::ManifestChanged(changed));
    held.commit(Reason::Lifecycle, Of::default(), &mut |_| {}).map(|_| ())
}

/// How a thread stands that there is nothing to do for.
fn ended_already(held: &Held<'_>) -> Ended {
    let manifest = held.fold.manifest();
    Ended {
        thread: manifest.thread_id.clone(),
        run: None,
        status: manifest.status,
        text: None,
        code: "already_said".to_owned(),
        detail: None,
        suspended: manifest.suspended.clone(),
        outputs: manifest.outputs.clone(),
        turns: 0,
        input_tokens: 0,
        output_tokens: 0,
    }
}
