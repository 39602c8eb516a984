//! What others say to a thread that somebody runs: notes, heard while a run goes on and before the thread is given back.
//!
//! - `cancel` and `kill` stop the run that goes on.
//! - `decide` and `raise` go into the next batch of whoever holds the thread; if the thread waits for just that, it goes on.
//! - `send` starts a run of its own, in the order of the notes, before the thread is given back.
//!
//! A thread can't be given back while a note is pending, so none is lost; if the holder dies, whoever takes the thread next hears
//! what is left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_model::event::ManifestChanged;
use selvedge_model::limits::Limits;
use selvedge_model::{Cancel, Event, Manifest, Note, NoteKey, Reason, Run, RunId, RunStatus, Status, Stop, ThreadId};
use selvedge_store::{Acquire, Error as StoreError};
use serde_json::json;

use crate::assignment::Assignment;
use crate::deciding::DECIDE;
use crate::engine::{Engine, Next};
use crate::error::{Error, Result};
use crate::follow::Follow;
use crate::held::{Delta, Held, Leased, Of};
use crate::input::Input;
use crate::pulse::Heart;
use crate::spawn::CHILD_SETTLED;
use crate::stopping::stop_waiting;
use crate::told::{Ended, Told};

/// The kind of note that raises ceilings.
pub(crate) const RAISE: &str = "raise";

/// How often a waiting sender and a running thread look at their notes.
const LOOK: Duration = Duration::from_millis(100);

/// What a run and whoever watches it tell each other.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Somebody decided or raised something.
    noted: AtomicBool,
    /// When the running time is over.
    until: Mutex<Option<Instant>>,
}

impl Watch {
    /// Whether somebody decided or raised something since this was last asked.
    pub(crate) fn was_noted(&self) -> bool {
        self.noted.swap(false, Ordering::SeqCst)
    }

    /// Says that somebody decided or raised something.
    pub(crate) fn note(&self) {
        self.noted.store(true, Ordering::SeqCst);
    }

    /// Gives the run this much time from now on.
    pub(crate) fn set_time(&self, left: Option<Duration>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) =
            left.and_then(|left| Instant::now().checked_add(left));
    }

    fn time_left(&self) -> Option<Duration> {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.map(|until| until.saturating_duration_since(Instant::now()))
    }
}

impl Engine {
    /// Raises ceilings of a thread that somebody runs: they count from its next batch on. What is no raise is refused at once.
    pub fn leave_raise(&self, thread: &ThreadId, raise: &Limits) -> Result<()> {
        let manifest = self.store.get(thread)?.manifest;
        if let Some(limits) = &manifest.limits {
            self.check_raise(&manifest, raise, limits)?;
        }
        self.post(thread, RAISE, &self.ids.hex12(), json!({"limits": raise}))?;
        self.hear_if_free(thread)
    }

    /// Refuses a raise that lowers a ceiling of a thread, or lifts one above its parent's.
    fn check_raise(&self, manifest: &Manifest, raise: &Limits, limits: &Limits) -> Result<()> {
        let thread = &manifest.thread_id;
        if let Some((parent, most)) = self.parent_limits(manifest)
            && let Some((limit, needs)) = raise.beyond(&most)
        {
            return Err(Error::AboveParent { thread: thread.clone(), limit, parent, needs });
        }
        match limits.lowered_by(raise) {
            Some(limit) => Err(Error::NotRaised { thread: thread.clone(), limit }),
            None => Ok(()),
        }
    }

    /// Whoever started a thread, or goes on in its place, and what its ceilings are. One that is gone allows what it allowed.
    fn parent_limits(&self, manifest: &Manifest) -> Option<(ThreadId, Limits)> {
        let parent = self.end_of_chain(manifest.parent_id.as_ref()?).ok()?;
        let limits = self.store.get(&parent).ok()?.manifest.limits?;
        Some((parent, limits))
    }

    /// Answers what was asked of a thread, if whoever had it gave it back before it could hear that.
    pub(crate) fn hear_if_free(&self, thread: &ThreadId) -> Result<()> {
        match self.lease(thread, Acquire::default()) {
            Ok(lease) => self.give_back(self.take(lease, &mut |_| {})?),
            Err(StoreError::LeaseHeld { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks at notes and at the time until the run is over, and says that whoever runs it lives. `cancel` is whose word ends more than
    /// this run, `own` is this run's.
    pub(crate) fn watch(&self, heart: Heart, cancel: &Cancel, own: &Cancel, watch: &Watch, over: &Cancel) {
        loop {
            let left = watch.time_left();
            if over.wait(left.filter(|left| !left.is_zero()).unwrap_or(LOOK).min(LOOK)).is_some() {
                return;
            }
            if watch.time_left().is_some_and(|left| left.is_zero()) {
                own.say(Stop::OutOfTime);
            }
            heart.beat(self);
            for note in self.store.pending(heart.thread()).unwrap_or_default() {
                match note.kind.as_str() {
                    "cancel" => cancel.say(Stop::Cancelled),
                    "kill" => cancel.say(Stop::Killed),
                    DECIDE | RAISE | CHILD_SETTLED => watch.noted.store(true, Ordering::SeqCst),
                    _ => {}
                }
            }
        }
    }

    /// Hears what was sent before, by whoever did not live to see it heard, up to the note that is being heard itself; gives how the
    /// last of those runs ended.
    pub(crate) fn hear_earlier(
        &self,
        held: &mut Held<'_>,
        own: Option<&NoteKey>,
        work: &Assignment,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Option<Ended>> {
        held.drop_unvouched(tell)?;
        held.hear(Some(work), Of::default(), &mut |_| {})?;
        let notes = self.store.pending(held.thread())?;
        let earlier = notes.into_iter().filter(|note| note.kind == "send").take_while(|note| Some(&note.key) != own);
        let mut heard = None;
        for note in earlier {
            if !held.is_vouched(&note) {
                continue;
            }
            heard = self.hear_note(held, note, work, &Cancel::new(), tell)?.or(heard);
            if held.fold.manifest().status == Status::Continued {
                // Its successor has the rest of the notes.
                break;
            }
        }
        Ok(heard)
    }

    /// Runs what somebody sent. What can't be run so, as a raise that is none, is answered by being dropped, and told: whoever runs the
    /// thread has nothing to do with it.
    fn hear_note(
        &self,
        held: &mut Held<'_>,
        note: Note,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Option<Ended>> {
        let key = note.key.clone();
        match self.run_once(held, input_of(note), work, cancel, &mut |_| {}) {
            // One that had been heard already was only taken away.
            Ok(ended) => Ok(Some(ended).filter(|ended| ended.run.is_some())),
            Err(error @ (Error::Store(_) | Error::Commit { .. })) => Err(error),
            Err(refused) => {
                // Nothing of it was committed.
                held.delta = Delta { consumed: vec![key.clone()], ..Delta::default() };
                held.commit(Reason::Lifecycle, Of::default(), tell)?;
                let why = format!("what was sent to `{}` (`{key}`) is dropped: {refused}", held.thread());
                tell(Told::Dropped { why: &why });
                Ok(None)
            }
        }
    }

    /// Runs what others sent meanwhile, in order, answers what was asked, and gives the lease back: it can't be given back while
    /// somebody waits to be heard. Gives the thread that goes on in its place, which then has the notes that are left.
    pub(crate) fn hear_others(
        &self,
        mut held: Held<'_>,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Option<Next<'_>>> {
        loop {
            let thread = held.thread().clone();
            if let Some(next) = held.fold.manifest().continuation_thread_id.clone() {
                // Taken before this one is given back: nobody comes in between.
                let lease = match self.acquire(&next, Acquire::default()) {
                    Ok(lease) => Some(lease),
                    Err(StoreError::LeaseHeld { .. }) => None,
                    Err(error) => return Err(error.into()),
                };
                return Ok(Some(Next { thread: next, lease }));
            }
            held.heed_predecessor(tell)?;
            held.delta.consumed = held.stops()?;
            if !held.delta.consumed.is_empty() {
                held.commit(Reason::Lifecycle, Of::default(), &mut |_| {})?;
            }
            held.drop_unvouched(tell)?;
            let was_answered = held.hear(Some(work), Of::default(), &mut |_| {})?;
            if cancel.said() == Some(Stop::Killed) {
                return self.give_back(held).map(|()| None);
            }
            let notes = self.store.pending(&thread)?;
            let notes: Vec<Note> = notes.into_iter().filter(|note| held.is_vouched(note)).collect();
            let sent = notes.into_iter().filter(|note| note.kind == "send").map(Some);
            let goes_on = was_answered && held.fold.manifest().status == Status::Suspended;
            let goes_on = goes_on && !self.waits_for_word(&held, work);
            for note in goes_on.then_some(None).into_iter().chain(sent) {
                // Whoever stopped the run before did not mean this one; whoever stops this process does.
                let fresh = if cancel.said().is_none() { cancel.clone() } else { Cancel::new() };
                self.lock_active().insert(thread.clone(), fresh.clone());
                match note {
                    Some(note) => _ = self.hear_note(&mut held, note, work, &fresh, tell)?,
                    None => _ = self.run_once(&mut held, Input::nothing(), work, &fresh, &mut |_| {})?,
                }
                if held.fold.manifest().status == Status::Continued {
                    break;
                }
            }
            if held.fold.manifest().status == Status::Continued {
                continue;
            }
            held = match held.release() {
                Ok(()) => return Ok(None),
                Err((held, StoreError::NotesPending { .. })) => *held,
                Err((_, error)) => return Err(error.into()),
            };
        }
    }

    /// Gives a thread back that was only looked at or settled. What others asked of it meanwhile and what needs no run is done first.
    /// A message waits: dropping the lease gives it up, and whoever sent it, or runs the thread next, hears it.
    pub(crate) fn give_back(&self, mut held: Held<'_>) -> Result<()> {
        if let Some(stop) = held.said_to_stop()? {
            held.delta.consumed = held.stops()?;
            stop_waiting(&mut held, stop)?;
        }
        held.hear(None, Of::default(), &mut |_| {})?;
        match held.release() {
            Ok(()) | Err((_, StoreError::NotesPending { .. })) => Ok(()),
            Err((_, error)) => Err(error.into()),
        }
    }

    /// Lets the parent of a thread that came to an end hear of it, if nobody has the parent.
    pub(crate) fn tell_parent(&self, thread: &ThreadId) -> Result<()> {
        let manifest = self.store.get(thread)?.manifest;
        let Some(parent) = manifest.parent_id.filter(|_| manifest.status.is_terminal()) else { return Ok(()) };
        let parent = self.end_of_chain(&parent)?;
        let is_told = |note: &Note| note.kind == CHILD_SETTLED;
        if !self.store.pending(&parent)?.iter().any(is_told) {
            return Ok(());
        }
        self.hear_if_free(&parent)
    }

    /// Leaves a message for whoever holds the thread and waits until it was heard; if that one is gone, hears it here.
    pub(crate) fn send_note(
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
        let body = json!({"messages": messages, "state": state, "origin": input.origin, "raise": input.raise});
        let mut thread = thread.clone();
        let mut follow = Follow::from(self.store.head(&thread)?.lines);
        let key = self.post(&thread, "send", &name, body.clone())?;
        let mut position = self.store.position()?;
        loop {
            follow.tell(&*self.store, &thread, &key, tell)?;
            let manifest = self.store.get(&thread)?.manifest;
            if let (Status::Continued, Some(next)) = (manifest.status, manifest.continuation_thread_id) {
                // What was heard goes on there; what was not is there too, or was left here when this had ended already.
                follow.tell(&*self.store, &thread, &key, tell)?;
                if !follow.was_heard() && self.store.pending(&thread)?.iter().any(|note| note.key == key) {
                    self.post(&next, "send", &name, body.clone())?;
                }
                follow = follow.on();
                thread = next;
                continue;
            }
            let is_left = || Ok::<_, Error>(self.store.pending(&thread)?.iter().any(|note| note.key == key));
            // One that was left a second time is taken away first, by whoever has the thread or here.
            if let Some(run) = self.run_over(&thread, &key, follow.run.as_ref())?
                && !is_left()?
            {
                follow.tell(&*self.store, &thread, &key, tell)?;
                match self.store.get(&thread)?.manifest.status {
                    Status::Continued => continue,
                    _ => return self.heard_elsewhere(&thread, &run, follow.text),
                }
            }
            match self.lease(&thread, Acquire::default()) {
                Ok(lease) => {
                    if let Some(ended) = self.speak_held(lease, &key, &mut follow, work, cancel, tell)? {
                        return Ok(ended);
                    }
                }
                Err(StoreError::LeaseHeld { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if cancel.said().is_some() {
                let is_heard = !is_left()?;
                return Err(Error::NotHeardYet { thread, is_heard });
            }
            self.store.wait(position, LOOK)?;
            position = self.store.position()?;
        }
    }

    /// Goes on for whoever sent a note and got its thread: hears it, or gives what came of it; nothing if the thread went on. Only what is
    /// read under the lease counts, since whoever had it may have heard the note after the last look.
    fn speak_held<'e>(
        &'e self,
        lease: Leased<'e>,
        key: &NoteKey,
        follow: &mut Follow,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Option<Ended>> {
        let thread = lease.thread().clone();
        let note = self.store.pending(&thread)?.into_iter().find(|note| note.key == *key);
        let ended = match (note, self.store.get(&thread)?.manifest.status) {
            // It went on in the moment in which it was free.
            (_, Status::Continued) => return self.give_back(self.take(lease, tell)?).map(|()| None),
            (Some(note), _) => self.run_held(lease, input_of(note), work, cancel, tell)?,
            // Whoever handed it over did not live to go on with it.
            (None, Status::Created) if follow.is_handed_on => {
                self.run_held(lease, Input::continuing(), work, cancel, tell)?
            }
            (None, _) => {
                // Heard, and its run is over or was cut short; taking the thread has settled it.
                let held = self.take(lease, tell)?;
                let ended = held.ended();
                self.give_back(held)?;
                return self.what_came(&thread, key, follow, ended, tell).map(Some);
            }
        };
        match ended.run {
            Some(_) => Ok(Some(ended)),
            // It had been left a second time, and was only taken away.
            None => self.what_came(&thread, key, follow, ended, tell).map(Some),
        }
    }

    /// What the run came to that answered a note, whoever was answered after it; how the thread ended if none did.
    fn what_came(
        &self,
        thread: &ThreadId,
        key: &NoteKey,
        follow: &mut Follow,
        ended: Ended,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Ended> {
        follow.tell(&*self.store, thread, key, tell)?;
        match self.run_over(thread, key, follow.run.as_ref())? {
            Some(run) => self.heard_elsewhere(thread, &run, follow.text.take()),
            None => Ok(ended),
        }
    }

    /// The run that answered a note, or goes on for it, once it is over.
    fn run_over(&self, thread: &ThreadId, note: &NoteKey, run: Option<&RunId>) -> Result<Option<Run>> {
        let is_its = |other: &Run| {
            let answers = other.meta.source_mailbox_entry_id.as_deref() == Some(note.as_str());
            other.meta.status != RunStatus::Running && (answers || Some(&other.run_id) == run)
        };
        Ok(self.store.runs(thread)?.into_iter().rev().find(is_its))
    }

    fn heard_elsewhere(&self, thread: &ThreadId, run: &Run, text: Option<String>) -> Result<Ended> {
        let manifest = self.store.get(thread)?.manifest;
        Ok(Ended {
            thread: thread.clone(),
            run: Some(run.run_id.clone()),
            status: manifest.status,
            text,
            code: run.meta.termination_code.clone().unwrap_or_default(),
            detail: run.meta.termination_detail.clone(),
            suspended: manifest.suspended,
            asks: manifest.asks,
            outputs: manifest.outputs,
            cost: run.meta.total_cost(),
            resumed: None,
        })
    }

    pub(crate) fn post(&self, thread: &ThreadId, kind: &str, name: &str, body: serde_json::Value) -> Result<NoteKey> {
        let key = NoteKey::new(format!("{kind}-{name}")).map_err(|_| StoreError::BadBatch)?;
        let chain = self.store.get(thread)?.manifest.chain_root_id;
        let note = Note { thread: thread.clone(), key: key.clone(), kind: kind.to_owned(), body };
        self.store.post(self.vouched(&chain, note))?;
        Ok(key)
    }
}

impl Held<'_> {
    /// The ceilings that count: the thread's own, and those it is run with where it has none.
    pub(crate) fn limits(&self, work: &Assignment) -> Limits {
        self.fold.manifest().limits.as_ref().map_or_else(|| work.limits.clone(), |own| own.over(&work.limits))
    }

    /// The change of ceilings that a raise means; refused if it lowers one, or lifts one above its parent's.
    pub(crate) fn raised(&self, raise: &Limits, work: &Assignment) -> Result<ManifestChanged> {
        self.raised_over(raise, &self.limits(work))
    }

    fn raised_over(&self, raise: &Limits, limits: &Limits) -> Result<ManifestChanged> {
        self.engine.check_raise(self.fold.manifest(), raise, limits)?;
        Ok(ManifestChanged { limits: Some(raise.over(limits)), ..ManifestChanged::default() })
    }

    /// What a note that raises ceilings changes, if anything; nothing if it lowers one, or if the money for it is not there.
    pub(crate) fn raise_of(&mut self, note: &Note, work: Option<&Assignment>) -> Option<Event> {
        let raise: Limits = serde_json::from_value(note.body.get("limits")?.clone()).ok()?;
        let limits = match work {
            Some(work) => self.limits(work),
            None => self.fold.manifest().limits.clone()?,
        };
        let changed = self.raised_over(&raise, &limits).ok()?;
        self.fund_raise(&raise).ok()?;
        Some(Event::ManifestChanged(changed))
    }
}

/// The input that a note asks for.
pub(crate) fn input_of(note: Note) -> Input {
    let field = |name: &str| note.body.get(name).cloned().unwrap_or_default();
    Input {
        messages: serde_json::from_value(field("messages")).unwrap_or_default(),
        state: Some(field("state")).filter(|state| !state.is_null()),
        raise: serde_json::from_value(field("raise")).ok().flatten(),
        origin: field("origin").as_str().unwrap_or("user").to_owned(),
        note: Some(note.key),
    }
}
