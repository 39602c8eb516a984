//! The handle of the engine, and its verbs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_items::config::Wait;
use selvedge_log::Trust;
use selvedge_model::event::{Ask, SuspendReason};
use selvedge_model::scope::Scopes;
use selvedge_model::tool::{Processes, Started};
use selvedge_model::{
    Batch, Cancel, Changeset, Clock, CommitKey, Expect, Ids, Input, Manifest, Message, NewThread, Part, Reason,
    RequestId, Status, Stop, ThreadId, Verdict,
};
use selvedge_store::{Acquire, Error as StoreError, Store};

use crate::assignment::Assignment;
use crate::chain;
use crate::error::{Error, Result};
use crate::events::{Birth, Born, Bus, RunPublisher, Subscription, Watched};
use crate::fold::Folds;
use crate::handover::Awaited;
use crate::held::{Held, Leased, Of};
use crate::mask::Mask;
use crate::outcome::{Outcome, Resumed, get_status};
use crate::places::Places;
use crate::redact::Redactor;
use crate::run;
use crate::snapshot::Keeper;
use crate::start::{Asked, Start};
use crate::told::Told;
use crate::watcher::Watcher;

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
    pub(crate) snapshots: Option<Arc<Keeper>>,
    watcher: Watcher,
    /// What is done before a thread's first run.
    prepare: Option<Prepare>,
    /// What is running in this process, and how to stop it.
    active: Mutex<HashMap<ThreadId, Cancel>>,
    /// The children that it let go.
    pub(crate) places: Places,
    /// The subscriptions to its events.
    pub(crate) bus: Arc<Bus>,
}

/// How long somebody who only looks at a thread, or tells it something, may have it.
const A_MOMENT: Duration = Duration::from_millis(300);

/// What is done before a thread's first run.
pub type Prepare = Arc<dyn Fn(&Manifest, &Assignment) -> selvedge_store::Result<()> + Send + Sync>;

/// Starts a process that will run a thread, behind a gate; why not, in words.
pub type Launch<'a> = dyn Fn(&ThreadId) -> std::result::Result<Box<dyn Started>, String> + 'a;

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine.
    pub fn new(options: Options) -> Self {
        let Options { store, trust, clock, ids, processes, scopes, redactor } = options;
        let (folds, active) = (Folds::default(), Mutex::default());
        let (snapshots, prepare) = (None, None);
        let watcher = Watcher::new(store.clone(), clock.clone());
        let (places, bus) = (Places::default(), Arc::default());
        Self {
            store,
            trust,
            clock,
            ids,
            processes,
            scopes,
            redactor,
            folds,
            snapshots,
            watcher,
            prepare,
            active,
            places,
            bus,
        }
    }

    /// The same engine, saving snapshots of its threads and beginning with them.
    #[must_use]
    pub fn keeping(mut self, snapshots: Keeper) -> Self {
        self.snapshots = Some(Arc::new(snapshots));
        self
    }

    /// The same engine, doing this before the first run of every thread, however it came to be; the thread is held meanwhile. If it
    /// fails, nothing runs.
    #[must_use]
    pub fn preparing(mut self, prepare: Prepare) -> Self {
        self.prepare = Some(prepare);
        self
    }

    /// What is known of a thread without its messages, by its verified log: what a database says of it does not count.
    pub fn manifest(&self, thread: &ThreadId) -> Result<Manifest> {
        let fold = self.folds.get(self.snapshots.as_deref(), &*self.store, thread, &self.trust)?;
        let manifest = fold.manifest().clone();
        self.folds.keep(thread, fold);
        Ok(manifest)
    }

    /// Whose signatures count.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Subscribes to what this engine does from now on: see [`crate::events`]. A thread that can't be found now is watched all the same,
    /// and its chain is known from the first event of it on.
    pub fn subscribe(&self, watched: Watched) -> Subscription {
        let end = match &watched {
            Watched::Thread(thread) => self.end_of_chain(thread).ok(),
            Watched::All => None,
        };
        let chain = end.and_then(|end| self.store.get(&end).ok()).map(|found| found.manifest.chain_root_id);
        self.bus.subscribe(watched, chain)
    }

    /// Creates a thread named after its directive or agent, with the messages it begins with; it is durable on return and nothing has
    /// run. [`Engine::resume`] answers what it begins with.
    pub fn create(&self, thread: NewThread, messages: Vec<Message>) -> Result<ThreadId> {
        let id = self.name(&thread);
        self.create_as(&id, thread, messages, None)?;
        Ok(id)
    }

    /// Creates a thread as [`Engine::create`] does, once for each key: `false` if the key has one already, which is given.
    pub fn create_once(&self, key: &CommitKey, thread: NewThread, messages: Vec<Message>) -> Result<(ThreadId, bool)> {
        if let Some(first) = self.created_under(key)? {
            return Ok((first, false));
        }
        let id = self.name(&thread);
        match self.create_as(&id, thread, messages, Some(key)) {
            Ok(()) => Ok((id, true)),
            // Another process was faster.
            Err(Error::Store(error @ StoreError::KeyReused(_))) => match self.created_under(key)? {
                Some(first) => Ok((first, false)),
                None => Err(error.into()),
            },
            Err(error) => Err(error),
        }
    }

    /// The thread that was created under a key.
    pub fn created_under(&self, key: &CommitKey) -> Result<Option<ThreadId>> {
        let committed = self.store.outcome(key)?;
        Ok(committed.and_then(|committed| committed.versions.into_iter().next()).map(|(thread, _)| thread))
    }

    /// The outcome of a thread that was created before, for the process that asks again: one that never began is run, one that runs is
    /// waited for, any other is told as it stands.
    pub fn outcome_of(
        &self,
        thread: &ThreadId,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Outcome> {
        let end = self.end_of_chain(thread)?;
        let summary = self.store.get(&end)?;
        match summary.manifest.status {
            Status::Created if summary.holder.is_none() => self.resume(thread, Input::nothing(), work, cancel, tell),
            Status::Created | Status::Running => {
                let waited = self.wait(std::slice::from_ref(thread), Duration::MAX, cancel)?;
                let outcome = waited.results.into_values().next();
                outcome.map_or_else(|| get_status(&*self.store, &self.trust, thread), Ok)
            }
            _ => get_status(&*self.store, &self.trust, thread),
        }
    }

    /// Creates a thread as [`Engine::create`] does, and lets a process of its own run it. The process is started behind a gate, its
    /// identity stands in the batch that creates the thread, and the gate opens once that is durable: whoever must end the process by
    /// force finds it by that record. With a key it is created once: the thread that the key has already is given, and nothing is started.
    pub fn create_detached(
        &self,
        mut thread: NewThread,
        messages: Vec<Message>,
        key: Option<&CommitKey>,
        launch: &Launch<'_>,
    ) -> Result<ThreadId> {
        if let Some(first) = key.map(|key| self.created_under(key)).transpose()?.flatten() {
            return Ok(first);
        }
        let id = self.name(&thread);
        let never = |why| Error::NotStarted { thread: id.clone(), why, is_there: false };
        let launched = launch(&id).map_err(never)?;
        thread.process = launched.process();
        if thread.process.is_none() {
            return Err(never("its process can't be told from others by anything but its number".to_owned()));
        }
        if let Err(error) = self.create_as(&id, thread, messages, key) {
            // Another process was faster; the gate of this one never opens.
            let first = key.map(|key| self.created_under(key)).transpose()?.flatten();
            return first.ok_or(error);
        }
        match launched.dispatch(&Cancel::new()) {
            Ok(_) => Ok(id),
            Err(error) => Err(Error::NotStarted { thread: id, why: error.to_string(), is_there: true }),
        }
    }

    fn name(&self, thread: &NewThread) -> ThreadId {
        let name = thread.directive.as_ref().map_or(thread.agent_id.as_str(), |directive| directive.as_str());
        ThreadId::generate(name, &self.ids.hex12())
    }

    fn create_as(
        &self,
        id: &ThreadId,
        mut thread: NewThread,
        mut messages: Vec<Message>,
        key: Option<&CommitKey>,
    ) -> Result<()> {
        self.redactor.thread(&mut thread);
        self.redactor.messages(&mut messages);
        let changeset = Changeset { messages, ..Changeset::creating(thread) };
        let part = Part::new(id.clone(), Expect::Absent, changeset);
        let born = [Born::of(&part)];
        let batch = match key {
            Some(key) => Batch::of(part).with_key(key.clone()),
            None => Batch::of(part),
        };
        let committed = self.store.commit(batch)?;
        if !committed.replayed {
            Birth::among(committed.parts, &born).into_iter().for_each(|birth| self.publish_birth(birth));
        }
        Ok(())
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
    ) -> Result<Outcome> {
        self.start(thread, Start::of(input), work, cancel, tell)
    }

    /// The same, as a request that its sender may repeat: sent again under the same id it is answered with what came of it, and nothing
    /// is done a second time.
    pub fn send_as(
        &self,
        thread: &ThreadId,
        id: RequestId,
        input: Input,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Outcome> {
        if let Some(ended) = self.served_before(thread, &id)? {
            return Ok(ended);
        }
        let request = Some(Asked { id, is_posted: false });
        self.start(thread, Start { input, request }, work, cancel, tell)
    }

    fn start(
        &self,
        thread: &ThreadId,
        start: Start,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Outcome> {
        let thread = self.end_of_chain(thread)?;
        self.refuse_outside(&self.store.get(&thread)?.manifest)?;
        match self.lease(&thread, Acquire::default()) {
            Ok(lease) => self.run_held(lease, start, work, cancel, tell),
            Err(StoreError::LeaseHeld { .. }) => self.send_left(&thread, start, work, cancel, tell),
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on with a thread that waits, or whose process is gone; a message is optional. Without one, a thread that waits for
    /// somebody's word goes on waiting. A thread that came to an end goes on in a successor, with everything that was said and the
    /// message, which is needed then.
    pub fn resume(
        &self,
        asked: &ThreadId,
        input: Input,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Outcome> {
        let (thread, mut held) = loop {
            let thread = self.end_of_chain(asked)?;
            let manifest = self.store.get(&thread)?.manifest;
            let status = manifest.status;
            self.refuse_outside(&manifest)?;
            if status == Status::Continued {
                // It went on between two looks, or what went on with it was deleted or can't be found.
                let end = chain::end(&*self.store, &thread)?;
                match end.is_deleted {
                    true => return Err(StoreError::Deleted(end.thread).into()),
                    false if end.thread == thread || end.why.is_some() => {
                        let why = end.why.unwrap_or_else(|| "it does not say what goes on in its place".to_owned());
                        return Err(Error::ChainDamaged { thread: end.thread, why });
                    }
                    false => continue,
                }
            }
            if status.is_terminal() && input.messages.is_empty() {
                return Err(nothing_to_resume(thread, status));
            }
            // Whoever only looks at it, or tells it something, has it for a moment.
            let lease = self.lease(&thread, Acquire { wait: A_MOMENT, take_over: false })?;
            if !status.is_terminal() {
                return self.run_held(lease, Start::of(input), work, cancel, tell);
            }
            let held = self.take(lease, tell)?;
            // Somebody may have gone on with it between the two looks; then this is for whatever goes on.
            match held.fold.manifest().status {
                now if now.is_terminal() && now != Status::Continued => break (thread, held),
                _ => self.give_back(held)?,
            }
        };
        // Whatever this may be refused for is known before anything is said: what is refused has changed nothing.
        let limits = held.fund_successor(work, input.raise.as_ref())?;
        let successor = held.resumed(input.messages, limits)?;
        let resumed = Resumed {
            old_thread_id: thread.clone(),
            new_thread_id: successor.thread.clone(),
            original_thread_id: Some(asked.clone()).filter(|asked| *asked != thread),
            resolved_thread_id: thread,
            directive: held.fold.manifest().directive.clone(),
            reconstructed_turns: successor.turns,
        };
        // It was granted with the batch that created it: nobody comes in between.
        let lease = held.resume_in(successor, tell)?;
        drop(held);
        let input = Input { state: input.state, origin: input.origin, ..Input::nothing() };
        let ended = self.run_held(lease, Start::of(input), work, cancel, tell)?;
        Ok(Outcome { resumed: Some(resumed), ..ended })
    }

    /// The thread that goes on in the place of another one, also of one that was deleted: its tombstone knows.
    pub fn end_of_chain(&self, thread: &ThreadId) -> Result<ThreadId> {
        match self.store.get(thread) {
            Ok(found) if found.manifest.status != Status::Continued => return Ok(thread.clone()),
            Ok(_) => {}
            Err(error @ StoreError::Deleted(_)) => {
                let end = chain::end(&*self.store, thread)?;
                let is_there = end.summary.is_some() && !end.is_deleted;
                return is_there.then_some(end.thread).ok_or(error.into());
            }
            Err(error) => return Err(error.into()),
        }
        let chain = self.store.chain(thread)?;
        Ok(chain.into_iter().next_back().map_or_else(|| thread.clone(), |end| end.manifest.thread_id))
    }

    /// Refuses a thread whose active run no engine makes, unless a live process holds it: that one hears what is sent.
    pub(crate) fn refuse_outside(&self, manifest: &Manifest) -> Result<()> {
        if manifest.is_run_outside() && self.store.holder(&manifest.thread_id)?.is_none() {
            return Err(run_outside(&manifest.thread_id));
        }
        Ok(())
    }

    /// A thread whose lease was just taken; a run whose process is gone is settled first. A run that no engine makes is left as it is.
    pub(crate) fn take<'e>(&'e self, lease: Leased<'e>, tell: &mut dyn FnMut(Told<'_>)) -> Result<Held<'e>> {
        let fold = self.folds.get(self.snapshots.as_deref(), &*self.store, lease.thread(), &self.trust)?;
        let mut held = Held::new(lease, fold);
        let manifest = held.fold.manifest();
        if manifest.status == Status::Running
            && !manifest.is_run_outside()
            && let Err(error) = run::settle_lost(&mut held, tell)
        {
            _ = held.release();
            return Err(error);
        }
        Ok(held)
    }

    pub(crate) fn run_held<'e>(
        &'e self,
        lease: Leased<'e>,
        start: Start,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Outcome> {
        let (mut ended, mut next) = self.run_link(lease, start, work, cancel, tell)?;
        while let Some((Next { thread, lease }, start)) = next.take() {
            let was_continued = ended.status == Status::Continued;
            let lease = match lease.map_or_else(|| self.lease(&thread, Acquire::default()), Ok) {
                Ok(lease) => Some(lease),
                Err(StoreError::LeaseHeld { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            let later = match lease {
                Some(lease) => {
                    let (later, after) = self.run_link(lease, start, work, cancel, tell)?;
                    next = after;
                    later
                }
                // Somebody else goes on with it, and hears what is to be said.
                None if !start.input.messages.is_empty() && start.input.raise.is_none() => {
                    self.send_left(&thread, start, work, cancel, tell)?
                }
                // There is nothing to be heard: whoever has it goes on anyway.
                None if !start.is_continuing() => {
                    let holder = self.store.holder(&thread)?;
                    let held = holder.map(|holder| StoreError::LeaseHeld { thread: thread.clone(), holder });
                    return held.map_or(Ok(ended), |held| Err(held.into()));
                }
                None => match self.await_end(&thread, cancel, tell)? {
                    Awaited::Ended(ended) => *ended,
                    Awaited::Free(lease) => {
                        let thread = lease.thread().clone();
                        next = Some((Next { thread, lease: Some(lease) }, start));
                        continue;
                    }
                },
            };
            if was_continued {
                let mut run_cost = ended.run_cost.unwrap_or_default();
                run_cost.add(&later.run_cost.clone().unwrap_or_default());
                ended = Outcome { run_cost: Some(run_cost), ..later };
            }
        }
        if let (Some(stop @ (Stop::Cancelled | Stop::Killed)), Some(Status::Cancelled | Status::Killed)) =
            (cancel.said(), ended.status.status())
        {
            // What it started in processes of their own did not hear it. Who can't be reached does not change how this one ended.
            _ = self.stop_below(&ended.thread_id, stop);
        }
        Ok(ended)
    }

    /// Runs one thread of a chain; gives the next one, with what is still to be said to it.
    fn run_link<'e>(
        &'e self,
        lease: Leased<'e>,
        start: Start,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<(Outcome, Option<(Next<'e>, Start)>)> {
        let mut held = self.take(lease, tell)?;
        let thread = held.thread().clone();
        if held.fold.manifest().is_run_outside() {
            return Err(run_outside(&thread));
        }
        let active = Active::begin(self, &thread, cancel);
        if let (Status::Continued, Some(next)) =
            (held.fold.manifest().status, held.fold.manifest().continuation_thread_id.clone())
        {
            // It was continued in the very moment in which it was free; what is to be said goes to its successor, where it waits by now
            // if it was posted.
            return Ok((held.nothing_done(), Some((Next { thread: next, lease: None }, start))));
        }
        if let (Some(prepare), true) = (&self.prepare, held.is_unbegun()) {
            prepare(held.fold.manifest(), work)?;
        }
        self.settle_children(&held);
        let mut unsaid = Start::continuing();
        let earlier = self.serve_earlier(&mut held, start.request.as_ref(), work, tell);
        let ended = match earlier {
            // What was heard before has filled the thread; its successor hears this.
            Ok(Some(heard)) if heard.status == Status::Continued => {
                unsaid = start;
                Ok(heard)
            }
            // Hearing it has finished what was open, and there is nothing else to say.
            Ok(Some(heard)) if start.is_empty() => Ok(heard),
            // Somebody stopped it, or went on with it, before it could take over.
            Ok(_) if start.is_continuing() && held.fold.manifest().status != Status::Created => Ok(held.nothing_done()),
            Ok(_) if start.is_empty() && self.waits_for_word(&held, work) => Ok(held.nothing_done()),
            Ok(_) => self.run_once(&mut held, start, work, cancel, tell),
            Err(error) => Err(error),
        };
        // What could not be recorded is settled by whoever takes the thread next; dropping it gives the lease back.
        let heard = ended.and_then(|ended| Ok((ended, self.serve_others(held, work, cancel, tell)?)));
        drop(active);
        if matches!(&heard, Ok((_, None))) {
            // If the parent can't be told now, whoever takes it next hears it.
            _ = self.tell_parent(&thread);
        }
        heard.map(|(ended, next)| (ended, next.map(|next| (next, unsaid))))
    }

    /// One run, watched meanwhile.
    pub(crate) fn run_once(
        &self,
        held: &mut Held<'_>,
        start: Start,
        work: &Assignment,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Outcome> {
        let input = &start.input;
        let is_again = |message: &Message| message.id.as_ref().is_some_and(|id| held.fold.conversation.knows(id));
        let is_said = !input.messages.is_empty() && input.state.is_none() && input.messages.iter().all(is_again);
        if is_said {
            if let Some(asked) = start.request {
                asked.answer(&mut held.delta, Verdict::Unchanged, None);
                held.commit(Reason::Lifecycle, Of::default(), tell)?;
            }
            return Ok(held.nothing_done());
        }
        if input.is_empty() && held.fold.conversation.messages().is_empty() {
            let (thread, status) = (held.thread().clone(), held.fold.manifest().status);
            let hint = format!("`selvedge send {thread} \"…\"` says something to it");
            return Err(Error::NotRunnable { thread, status, why: "nobody has said anything to it yet", hint });
        }
        // Whoever had it before came to its end with it, while somebody else waited to go on with it.
        if input.is_empty() && held.fold.manifest().status.is_terminal() {
            return Err(nothing_to_resume(held.thread().clone(), held.fold.manifest().status));
        }
        match input.is_continuing() {
            // A stop of the thread that goes on here means this one.
            true => held.said_to_stop()?.into_iter().for_each(|stop| cancel.say(stop)),
            // A stop of an earlier run does not.
            false => _ = held.answer_stops(Verdict::Unchanged)?,
        }
        let thread = held.thread().clone();
        let publisher = RunPublisher::new(&self.bus, thread.clone(), held.fold.manifest().chain_root_id.clone());
        // That the time of this run is over is nobody else's business.
        let own = cancel.child();
        let watch = self.watcher.watch(&thread, cancel, &own, &held.delta.consumed);
        let mut mask = Mask::new(&self.redactor, publisher, tell);
        run::run(held, start, work, run::Heard { cancel: &own, watch: &watch }, &mut |told| mask.tell(&told))
    }

    /// Whether a thread waits for somebody's word whose time is not over, and can't go on without it.
    pub(crate) fn waits_for_word(&self, held: &Held<'_>, work: &Assignment) -> bool {
        let now = self.clock.now();
        let is_over = |ask: &Ask| ask.is_over(now);
        let Manifest { suspended: Some(why), asks, .. } = held.fold.manifest() else { return false };
        let is_decided = held.fold.conversation.open().len() > why.calls.len();
        let goes_on = work.wait == Wait::Each && is_decided;
        why.reason == SuspendReason::Approval && !asks.is_empty() && !asks.iter().any(is_over) && !goes_on
    }

    pub(crate) fn lock_active(&self) -> MutexGuard<'_, HashMap<ThreadId, Cancel>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread runs in this process, until this is dropped: whoever stops it says so to this `Cancel`.
struct Active<'e> {
    engine: &'e Engine,
    thread: ThreadId,
}

impl<'e> Active<'e> {
    fn begin(engine: &'e Engine, thread: &ThreadId, cancel: &Cancel) -> Self {
        engine.lock_active().insert(thread.clone(), cancel.clone());
        Self { engine, thread: thread.clone() }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.engine.lock_active().remove(&self.thread);
    }
}

/// Why no engine goes on with a thread, or stops it, whose active run it does not make.
fn run_outside(thread: &ThreadId) -> Error {
    let hint = "that program ends its run with a changeset of reason `RunFinished`: `selvedge append`".to_owned();
    let why = "its active run was recorded by another program, without a lease";
    Error::NotRunnable { thread: thread.clone(), status: Status::Running, why, hint }
}

fn nothing_to_resume(thread: ThreadId, status: Status) -> Error {
    let hint = format!("`selvedge resume {thread} \"…\"` says what to go on with");
    Error::NotRunnable { thread, status, why: "there is nothing to resume without a message", hint }
}

/// The thread that goes on in another's place.
pub(crate) struct Next<'e> {
    pub(crate) thread: ThreadId,
    /// Its lease, if it could be had.
    pub(crate) lease: Option<Leased<'e>>,
}
