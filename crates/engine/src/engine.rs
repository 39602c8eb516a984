//! The handle of the engine, and its verbs.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_log::Trust;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::scope::Scopes;
use selvedge_model::tool::{Processes, Started};
use selvedge_model::{
    Batch, Cancel, Changeset, Clock, CommitKey, Expect, Ids, Input, Manifest, Message, NewThread, Part, RequestId,
    Status, ThreadId,
};
use selvedge_store::{Acquire, Error as StoreError, Store};
use tokio::time::sleep;

use crate::assignment::Assignment;
use crate::chain;
use crate::error::{Error, Result};
use crate::events::{Audience, Birth, Born, Bus, Subscription, Watched};
use crate::feed::Feed;
use crate::fold::Folds;
use crate::held::{Held, Leased, Observer};
use crate::outcome::{Outcome, Resumed, get_status};
use crate::places::Places;
use crate::redact::Redactor;
use crate::run;
use crate::snapshot::Keeper;
use crate::start::{Asked, Start};
use crate::submitted::{Closing, Submitted, Tell};
use crate::tasks::Tasks;
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
    /// Saves snapshots of threads, and begins with them; without it every log is read whole.
    pub snapshots: Option<Keeper>,
    /// Done before the first run of every thread, however it came to be; the thread is held meanwhile. If it fails, nothing runs.
    pub prepare: Option<Prepare>,
}

/// Runs threads. A handle that is cloned freely: runs of one thread follow each other, runs of different threads go on side by side.
///
/// Its verbs block until they are done; [`Engine::submit`] does not. Runs go on in tasks of the engine's own, and end by themselves also
/// when every handle is dropped.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl Deref for Engine {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// What the handles of an engine share.
pub struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) trust: Trust,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) processes: Arc<dyn Processes>,
    pub(crate) scopes: Scopes,
    pub(crate) redactor: Redactor,
    pub(crate) folds: Folds,
    pub(crate) snapshots: Option<Arc<Keeper>>,
    pub(crate) watcher: Watcher,
    /// What is done before a thread's first run.
    pub(crate) prepare: Option<Prepare>,
    /// What is running in this process, and how to stop it.
    active: Mutex<HashMap<ThreadId, Cancel>>,
    /// The children that it let go.
    pub(crate) places: Places,
    /// The subscriptions to its events.
    pub(crate) bus: Arc<Bus>,
    /// Where its runs go on.
    pub(crate) tasks: Tasks,
    /// Wakes what waits for commits.
    pub(crate) feed: Feed,
}

/// How long somebody who only looks at a thread, or tells it something, may have it.
const A_MOMENT: Duration = Duration::from_millis(300);
/// How often is looked whether it has been given back.
const A_LOOK: Duration = Duration::from_millis(10);

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
        let Options { store, trust, clock, ids, processes, scopes, redactor, snapshots, prepare } = options;
        let shared = Shared {
            folds: Folds::default(),
            snapshots: snapshots.map(Arc::new),
            watcher: Watcher::new(store.clone(), clock.clone()),
            feed: Feed::new(store.clone()),
            store,
            trust,
            clock,
            ids,
            processes,
            scopes,
            redactor,
            prepare,
            active: Mutex::default(),
            places: Places::default(),
            bus: Arc::default(),
            tasks: Tasks::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// What is known of a thread without its messages, by its verified log: what a database says of it does not count.
    pub fn manifest(&self, thread: &ThreadId) -> Result<Manifest> {
        let fold = self.folds.get(self.snapshots.as_deref(), &*self.store, thread, &self.trust)?;
        let manifest = fold.manifest().clone();
        self.folds.keep(thread, fold);
        Ok(manifest)
    }

    /// Waits until nothing runs in this process any more, at most this long; gives whether nothing does. A program that ends calls it after
    /// it said to stop to what it does not want to wait for. A run that is cut all the same loses nothing that was committed, and the next
    /// process takes it up.
    pub fn wait_idle(&self, most: Duration) -> bool {
        self.tasks.wait_idle(most)
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

    /// Creates a thread named after its directive or agent, with the messages it begins with: they wait in its inbox. Both are durable on
    /// return, and nothing has run; [`Engine::resume`] answers what it begins with.
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
        work: impl Into<Arc<Assignment>>,
        cancel: &Cancel,
        tell: &mut Tell<'_>,
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
        match launched.dispatch(&Cancel::new()).wait() {
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
        if let (Some(parent), None) = (&thread.parent_id, &thread.family_root_id) {
            thread.family_root_id = Some(self.store.get(parent)?.manifest.family_root().clone());
        }
        let part = Part::new(id.clone(), Expect::Absent, Changeset::creating(thread));
        let born = [Born::of(&part)];
        let mut batch = Batch::of(part);
        batch.posted.extend(self.first_send(id, Input::messages(messages))?);
        if let Some(key) = key {
            batch = batch.with_key(key.clone());
        }
        let committed = self.store.commit(batch)?;
        if !committed.replayed {
            Birth::among(committed.parts, &born).into_iter().for_each(|birth| self.publish_birth(birth));
        }
        Ok(())
    }

    /// A further run on a thread, or on the end of its chain. If another process runs it, the message waits for its turn and is heard
    /// by the process that holds the thread, or by this one once that one is gone.
    pub fn send(
        &self,
        thread: &ThreadId,
        input: Input,
        work: impl Into<Arc<Assignment>>,
        cancel: &Cancel,
        tell: &mut Tell<'_>,
    ) -> Result<Outcome> {
        self.start_send(thread, Start::of(input), work.into(), cancel)?.wait(tell)
    }

    /// The same, as a request that its sender may repeat: sent again under the same id it is answered with what came of it, and nothing
    /// is done a second time.
    pub fn send_as(
        &self,
        thread: &ThreadId,
        id: RequestId,
        input: Input,
        work: impl Into<Arc<Assignment>>,
        cancel: &Cancel,
        tell: &mut Tell<'_>,
    ) -> Result<Outcome> {
        if let Some(ended) = self.served_before(thread, &id)? {
            return Ok(ended);
        }
        let request = Some(Asked { id, is_posted: false });
        self.start_send(thread, Start { input, request }, work.into(), cancel)?.wait(tell)
    }

    /// Accepts a message for a thread, or the end of its chain: durable on return, and answered by a run that goes on by itself. What comes
    /// of it can be awaited or waited for; dropped, it goes on all the same.
    pub fn submit(
        &self,
        thread: &ThreadId,
        input: Input,
        work: impl Into<Arc<Assignment>>,
        cancel: &Cancel,
    ) -> Result<Submitted> {
        let end = self.end_of_chain(thread)?;
        self.refuse_outside(&self.store.get(&end)?.manifest)?;
        let sent = self.post_send(&end, Start::of(input))?;
        let (engine, work, cancel) = (self.clone(), work.into(), cancel.clone());
        self.perform(|audience| async move { engine.await_served(sent, work, cancel, audience).await })
    }

    fn start_send(&self, thread: &ThreadId, start: Start, work: Arc<Assignment>, cancel: &Cancel) -> Result<Submitted> {
        let (engine, thread, cancel) = (self.clone(), thread.clone(), cancel.clone());
        self.perform(|audience| async move {
            let other = engine.clone();
            let take = move || {
                let thread = other.end_of_chain(&thread)?;
                other.refuse_outside(&other.store.get(&thread)?.manifest)?;
                match other.lease(&thread, Acquire::default()) {
                    Ok(lease) => Ok(Ok((lease, start))),
                    Err(StoreError::LeaseHeld { .. }) => Ok(Err(other.post_send(&thread, start)?)),
                    Err(error) => Err(Error::from(error)),
                }
            };
            match engine.tasks.block(take).await? {
                Ok((lease, start)) => engine.run_held(lease, start, work, cancel, audience).await,
                Err(sent) => engine.await_served(sent, work, cancel, audience).await,
            }
        })
    }

    /// Lets something go on by itself for a caller that may watch it.
    fn perform<F>(&self, work: impl FnOnce(Audience) -> F) -> Result<Submitted>
    where
        F: Future<Output = Result<Outcome>> + Send + 'static,
    {
        let (audience, events) = Audience::new();
        let (work, last) = (work(audience.clone()), Closing(audience));
        let task = self.tasks.spawn(async move {
            let _last = last;
            work.await
        })?;
        Ok(Submitted::new(task, events))
    }

    /// Goes on with a thread that waits, or whose process is gone; a message is optional. Without one, a thread that waits for
    /// a decision goes on waiting. A thread that came to an end goes on in a successor, with everything that was said and the
    /// message, which is needed then.
    pub fn resume(
        &self,
        thread: &ThreadId,
        input: Input,
        work: impl Into<Arc<Assignment>>,
        cancel: &Cancel,
        tell: &mut Tell<'_>,
    ) -> Result<Outcome> {
        let (engine, thread, work, cancel) = (self.clone(), thread.clone(), work.into(), cancel.clone());
        self.perform(|audience| engine.resumed(thread, input, work, cancel, audience))?.wait(tell)
    }

    /// The same, as a future. It is boxed because a child is resumed by the run of its parent.
    pub(crate) fn resumed(
        self,
        asked: ThreadId,
        input: Input,
        work: Arc<Assignment>,
        cancel: Cancel,
        audience: Audience,
    ) -> BoxFuture<'static, Result<Outcome>> {
        Box::pin(async move {
            let until = Instant::now() + A_MOMENT;
            let (lease, start, resumed) = loop {
                let (engine, asked, input) = (self.clone(), asked.clone(), input.clone());
                let (own_work, own) = (work.clone(), audience.clone());
                match self.tasks.block(move || engine.take_resumed(&asked, input, &own_work, own)).await {
                    // A process that only looks at it, or tells it something, has it for a moment.
                    Err(Error::Store(StoreError::LeaseHeld { .. })) if Instant::now() < until => sleep(A_LOOK).await,
                    taken => break taken?,
                }
            };
            let ended = self.run_held(lease, start, work, cancel, audience).await?;
            Ok(Outcome { resumed, ..ended })
        })
    }

    /// Takes the thread that goes on when this one is resumed: itself, or a successor that is created.
    fn take_resumed(
        &self,
        asked: &ThreadId,
        input: Input,
        work: &Assignment,
        audience: Audience,
    ) -> Result<(Leased, Start, Option<Resumed>)> {
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
            let lease = self.lease(&thread, Acquire::default())?;
            if !status.is_terminal() {
                return Ok((lease, Start::of(input), None));
            }
            let held = self.take(lease, &audience)?;
            // Another process may have gone on with it between the two looks; then this is for whatever goes on.
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
        let lease = held.resume_in(successor)?;
        let input = Input { state: input.state, origin: input.origin, ..Input::nothing() };
        Ok((lease, Start::of(input), Some(resumed)))
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

    /// A thread whose lease was just taken, for a caller; a run whose process is gone is settled first. A run that no engine makes is left
    /// as it is.
    pub(crate) fn take(&self, lease: Leased, audience: &Audience) -> Result<Box<Held>> {
        self.take_observed(lease, audience, None)
    }

    /// The same, with what a replay does after each commit.
    pub(crate) fn take_observed(
        &self,
        lease: Leased,
        audience: &Audience,
        observer: Option<Observer>,
    ) -> Result<Box<Held>> {
        let fold = self.folds.get(self.snapshots.as_deref(), &*self.store, lease.thread(), &self.trust)?;
        let mut held = Box::new(Held::new(lease, fold));
        (held.audience, held.observer) = (audience.clone(), observer);
        let manifest = held.fold.manifest();
        if manifest.status == Status::Running
            && !manifest.is_run_outside()
            && let Err(error) = run::settle_lost(&mut held)
        {
            _ = held.release();
            return Err(error);
        }
        Ok(held)
    }

    pub(crate) fn lock_active(&self) -> MutexGuard<'_, HashMap<ThreadId, Cancel>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why no engine goes on with a thread, or stops it, whose active run it does not make.
pub(crate) fn run_outside(thread: &ThreadId) -> Error {
    let hint = "that program ends its run with a changeset of reason `RunFinished`: `selvedge append`".to_owned();
    let why = "its active run was recorded by another program, without a lease";
    Error::NotRunnable { thread: thread.clone(), status: Status::Running, why, hint }
}

pub(crate) fn nothing_to_resume(thread: ThreadId, status: Status) -> Error {
    let hint = format!("`selvedge resume {thread} \"…\"` says what to go on with");
    Error::NotRunnable { thread, status, why: "there is nothing to resume without a message", hint }
}
