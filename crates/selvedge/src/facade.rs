//! The handle that an embedding program uses.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_engine::outcome::{Outcomes, get_status};
use selvedge_engine::snapshot::Keeper;
use selvedge_engine::{
    Assignment, Choice, Decided, Engine, Options as EngineOptions, Outcome, Redactor, Stopped, Submitted, Subscription,
    Watched,
};
use selvedge_log::Trust;
use selvedge_model::blocking::Pool;
use selvedge_model::limits::Limits;
use selvedge_model::tool::Risk;
use selvedge_model::{
    AgentId, CallId, Cancel, Classify, CommitKey, DirectiveId, Input, Manifest, Message, NewThread, Role, Status, Stop,
    ThreadId,
};
use selvedge_store::load::load;
use selvedge_store::{Cursor, Error as StoreError, Filter, Page, Registry, Store, Summary};
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore};
use selvedge_tools::ProcessGroups;

use crate::builder::Builder;
use crate::error::{Result, ShutDown};
use crate::follow::Follow;
use crate::job::{Job, Task};
use crate::orchestrator::Orchestrator;
use crate::pending::Pending;
use crate::proof::{self, Archive, Proof};
use crate::workshop::{Wishes, Workshop, capabilities};

/// The threads of one project: runs them, sends to them, waits for them, stops them, follows and verifies them.
///
/// A handle that is cloned freely. Calls that take time return a [`Pending`], which is awaited on any async runtime or joined on a plain
/// thread. Runs go on in tasks of Selvedge's own and depend on no caller. When the last handle is dropped and nothing runs any more, the
/// store is closed.
#[derive(Clone)]
pub struct Selvedge {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<LocalStore>,
    engine: Engine,
    workshop: Arc<Workshop>,
    orchestrator: Orchestrator,
    defaults: Defaults,
    recovered: Vec<ThreadId>,
    notices: Mutex<Vec<String>>,
    is_shut_down: AtomicBool,
    /// Ends waits when it is shut down.
    waits: Cancel,
    /// The threads of calls that block for moments, so that a burst of calls does not start a thread for each. What may take long,
    /// and what stops a run, gets a thread of its own.
    pool: Pool,
}

/// As many as the engine commits with at the same time.
const POOL_THREADS_MAX: usize = 64;

/// What a thread of the program is created with that says nothing else.
pub(crate) struct Defaults {
    pub(crate) agent: AgentId,
    pub(crate) model: String,
    pub(crate) limits: Limits,
    pub(crate) capabilities: Vec<String>,
    pub(crate) risks: Vec<Risk>,
}

impl std::fmt::Debug for Selvedge {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Selvedge").field("project", &self.shared.workshop.project).finish_non_exhaustive()
    }
}

/// Opening and shutting down.
impl Selvedge {
    /// Opens a folder that belongs to this program: threads in `.ai`, the signing key in `.selvedge`, both made if they don't exist.
    ///
    /// What holds on return is what [`Builder::open`] says.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::builder().project(folder).open()
    }

    /// Says what to open, and with which models and tools.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn assemble(
        store: Arc<LocalStore>,
        trust: Trust,
        workshop: Workshop,
        snapshots: Option<Keeper>,
        redactor: Redactor,
        defaults: Defaults,
        access: Access,
    ) -> Result<Self> {
        let (written, masked) = (store.clone(), redactor.clone());
        let engine = Engine::new(EngineOptions {
            store: store.clone(),
            trust,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            processes: Arc::new(ProcessGroups),
            scopes: workshop.config.scopes.clone(),
            redactor,
            snapshots,
            prepare: Some(Arc::new(move |manifest: &Manifest, work: &Assignment| {
                let page = || capabilities::page(manifest, work, &masked);
                written.write_capabilities(&manifest.thread_id, page).map(|_| ())
            })),
        });
        let workshop = Arc::new(workshop);
        let launcher = Arc::new(|_: &ThreadId| Err("this program runs every thread in its own process".to_owned()));
        // Weak, because the tools of a run outlive the handles for a moment.
        let known = Arc::downgrade(&store);
        let vouch = Arc::new(move |parent: &Manifest| match known.upgrade() {
            Some(store) => store.vouch(parent).map_err(|error| match error.hint() {
                Some(hint) => format!("{error}; {hint}"),
                None => error.to_string(),
            }),
            None => Err("the store is closed".to_owned()),
        });
        let orchestrator = Orchestrator::new(engine.clone(), workshop.clone(), launcher, vouch);
        let recovered = match access {
            Access::ReadWrite => engine.recover()?,
            Access::ReadOnly => Vec::new(),
        };
        let notices = Mutex::new(store.opened().notices.clone());
        let is_shut_down = AtomicBool::new(false);
        let waits = Cancel::new();
        let pool = Pool::bounded(POOL_THREADS_MAX);
        let shared =
            Shared { store, engine, workshop, orchestrator, defaults, recovered, notices, is_shut_down, waits, pool };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The threads that a dead process left running, as they were found when this was opened. They are suspended now;
    /// [`Selvedge::resume`] goes on with one, and no finished call is made again.
    pub fn recovered(&self) -> &[ThreadId] {
        &self.shared.recovered
    }

    /// Takes the notices since the last call: what was repaired when the store was opened, tools that can't be used, directives that are
    /// gone. None of them is an error.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Shuts down: new runs are refused with `shut_down`, waits end as `interrupted`, and runs may end by themselves for as long as `grace`.
    ///
    /// Gives whether nothing runs any more. What still runs then may be cut by the end of the process: nothing committed is lost,
    /// the next [`Selvedge::open`] settles such threads as suspended, and [`Selvedge::resume`] goes on with them. [`Selvedge::cancel`]
    /// before this those that are to end instead.
    pub fn shut_down(&self, grace: Duration) -> Pending<bool> {
        self.shared.is_shut_down.store(true, Ordering::SeqCst);
        self.shared.waits.say(Stop::Cancelled);
        let shared = self.shared.clone();
        Pending::long(move || Ok(shared.engine.wait_idle(grace)))
    }

    /// The engine below, for what this type has no call for. Runs that are started with it are not refused after
    /// [`Selvedge::shut_down`].
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The store below, for what this type has no call for.
    pub fn store(&self) -> Arc<dyn Store> {
        self.shared.store.clone()
    }

    /// Does something that blocks for moments.
    fn short<T: Send + 'static>(&self, work: impl FnOnce(&Shared) -> Result<T> + Send + 'static) -> Pending<T> {
        let shared = self.shared.clone();
        Pending::short(&self.shared.pool, move || work(&shared))
    }

    /// Does something that blocks and may take long.
    fn long<T: Send + 'static>(&self, work: impl FnOnce(&Shared) -> Result<T> + Send + 'static) -> Pending<T> {
        let shared = self.shared.clone();
        Pending::long(move || work(&shared))
    }

    /// Starts a run, on a thread of the pool because that commits; then waits for its end, which needs none.
    fn running(&self, start: impl FnOnce(&Shared) -> Result<Submitted> + Send + 'static) -> Pending<Outcome> {
        let started = self.short(start);
        Pending::new(async move { Ok(started.await?.await?) })
    }
}

/// Running threads.
impl Selvedge {
    /// Creates a thread and runs it to the end of its run.
    ///
    /// The outcome says how the run ended: completed, suspended (for an approval, a limit or a failed model) or failed. That is no error
    /// of the call. If this program dies meanwhile, the thread has its message, and [`Selvedge::resume`] goes on.
    ///
    /// A job with a [key](Job::key) that has a thread already gives the outcome of that one, which is waited for if it runs.
    pub fn run(&self, job: impl Into<Job>) -> Pending<Outcome> {
        let job = job.into();
        let started = self.short(move |shared| {
            let (thread, is_new) = shared.create(job)?;
            let is_started = is_new || shared.is_unbegun(&thread)?;
            let run = if is_started { Some(shared.resume(&thread, Input::nothing())?) } else { None };
            Ok((thread, run))
        });
        let selvedge = self.clone();
        Pending::new(async move {
            match started.await? {
                (_, Some(run)) => Ok(run.await?),
                (thread, None) => selvedge.wait(&thread).await,
            }
        })
    }

    /// Creates a thread and starts its run. On return the thread and its message are durable, and the run goes on by itself:
    /// [`Selvedge::wait`] waits for it, [`Selvedge::subscribe`] shows it.
    ///
    /// A job with a [key](Job::key) that has a thread already gives that one; it is started only if it has never run.
    pub fn start(&self, job: impl Into<Job>) -> Pending<ThreadId> {
        let job = job.into();
        self.short(move |shared| {
            let (thread, is_new) = shared.create(job)?;
            if is_new || shared.is_unbegun(&thread)? {
                // It goes on by itself.
                drop(shared.resume(&thread, Input::nothing())?);
            }
            Ok(thread)
        })
    }

    /// Creates a thread and runs nothing. On return the thread and its message are durable; [`Selvedge::resume`] starts its run. Between
    /// the two a program subscribes to the thread, to miss nothing of it.
    pub fn create(&self, job: impl Into<Job>) -> Pending<ThreadId> {
        let job = job.into();
        self.short(move |shared| shared.create(job).map(|(thread, _)| thread))
    }

    /// Sends a message to a thread and waits for the end of the run that answers it. The message is durable before anything runs. If
    /// another process runs the thread, that process answers.
    pub fn send(&self, thread: &ThreadId, input: impl Into<Input>) -> Pending<Outcome> {
        let (thread, input) = (thread.clone(), input.into());
        self.running(move |shared| shared.send(&thread, input))
    }

    /// Accepts a message for a thread. On return it is durable, and a run that goes on by itself answers it.
    pub fn submit(&self, thread: &ThreadId, input: impl Into<Input>) -> Pending<()> {
        let (thread, input) = (thread.clone(), input.into());
        self.short(move |shared| shared.send(&thread, input).map(drop))
    }

    /// Goes on with a thread that was created, is suspended, or whose process died, and waits for the end of its run. Finished calls are not
    /// made again. Pass [`Input::nothing`] to go on with what is open, a message to say something, and [`Input::raising`] for higher limits.
    ///
    /// A thread that has ended goes on in a successor, which needs a message; [`Outcome::resumed`] names it.
    pub fn resume(&self, thread: &ThreadId, input: impl Into<Input>) -> Pending<Outcome> {
        let (thread, input) = (thread.clone(), input.into());
        self.running(move |shared| shared.resume(&thread, input))
    }

    /// Waits until the active run of a thread has ended or is suspended; at once if none is active. It reads only, and works for a thread
    /// that another process runs. Dropping it ends the wait and nothing else.
    pub fn wait(&self, thread: &ThreadId) -> Pending<Outcome> {
        let (asked, all) = (thread.clone(), self.wait_all(std::slice::from_ref(thread), Duration::MAX));
        Pending::new(async move {
            let found = all.await?.results.remove(&asked);
            found.ok_or_else(|| StoreError::NoThread(asked.to_string()).into())
        })
    }

    /// Waits for several threads, at most this long, and gives the outcome of each; `timeout` for those that have not ended.
    pub fn wait_all(&self, threads: &[ThreadId], timeout: Duration) -> Pending<Outcomes> {
        let cancel = EndsWait(self.shared.waits.child());
        match self.shared.engine.submit_wait(threads.to_vec(), timeout, cancel.0.clone()) {
            Ok(waited) => Pending::new(async move {
                let _ends = cancel;
                Ok(waited.await?)
            }),
            Err(error) => Pending::new(async move { Err(error.into()) }),
        }
    }

    /// Cancels a thread with everything that it started. On return the request is durable and the run is told; it ends at the next moment at
    /// which nothing is lost, soon after. A suspended thread has ended on return.
    pub fn cancel(&self, thread: &ThreadId) -> Pending<Stopped> {
        self.stop(thread, Stop::Cancelled)
    }

    /// Kills a thread with everything that it started: what its run is doing is torn down.
    pub fn kill(&self, thread: &ThreadId) -> Pending<Stopped> {
        self.stop(thread, Stop::Killed)
    }

    fn stop(&self, thread: &ThreadId, stop: Stop) -> Pending<Stopped> {
        let thread = thread.clone();
        self.long(move |shared| Ok(shared.engine.stop(&thread, stop)?))
    }

    /// Decides about a call: approves, edits or denies one that needs an approval, or resolves one whose outcome is unknown. `who` is recorded
    /// as the approver.
    ///
    /// On return the decision is signed and durable, or left with the process that runs the thread; nothing has run because of it. Once
    /// [`Decided::undecided`] is empty, [`Selvedge::resume`] goes on. The first decision counts: the same again changes nothing, another is
    /// refused with `already_decided`.
    pub fn decide(&self, thread: &ThreadId, call: &CallId, choice: Choice, who: &str) -> Pending<Decided> {
        let (thread, call, who) = (thread.clone(), call.clone(), who.to_owned());
        self.short(move |shared| {
            let work = shared.assignment(&thread)?;
            Ok(shared.engine.decide(&thread, &call, choice, &who, &work)?)
        })
    }
}

/// Reading threads.
impl Selvedge {
    /// How a thread, or the end of its chain, stands: its status, result, outputs, cost and pending approvals, from the verified log.
    pub fn status(&self, thread: &ThreadId) -> Pending<Outcome> {
        let thread = thread.clone();
        self.short(move |shared| Ok(get_status(&*shared.store, shared.engine.trust(), &thread)?))
    }

    /// The messages of a thread, from the verified log.
    pub fn messages(&self, thread: &ThreadId) -> Pending<Vec<Message>> {
        let thread = thread.clone();
        self.short(move |shared| {
            let loaded = load(&*shared.store, &thread, shared.engine.trust(), None)?;
            Ok(loaded.thread.messages)
        })
    }

    /// A page of threads, the newest first; `after` is where the page before ended.
    pub fn threads(&self, filter: Filter, after: Option<Cursor>, limit: usize) -> Pending<Page<Summary>> {
        self.short(move |shared| Ok(shared.store.list(&filter, after, limit)?))
    }

    /// The one thread whose id, or the hex at its end, begins with this.
    pub fn find(&self, prefix: &str) -> Pending<ThreadId> {
        let prefix = prefix.to_owned();
        self.short(move |shared| Ok(shared.store.resolve(&prefix)?))
    }

    /// Subscribes to what this process does, drafts included. Events of other processes are not in it: [`Selvedge::follow`] has those.
    ///
    /// A run never waits for a subscriber: one that is too slow gets a [`RunEvent::Missed`](crate::RunEvent::Missed). It reads the store for
    /// a moment.
    pub fn subscribe(&self, watched: Watched) -> Subscription {
        self.shared.engine.subscribe(watched)
    }

    /// Follows the log of a thread from line `first_line` on, whichever process writes it: every committed line once, in order.
    pub fn follow(&self, thread: &ThreadId, first_line: u64) -> Follow {
        Follow::new(self.shared.engine.clone(), thread.clone(), first_line)
    }

    /// Verifies a thread: every signature of its log and every blob that it names. Writes nothing. A log that does not hold is no error of
    /// the call: [`Proof::is_sound`] says so.
    pub fn verify(&self, thread: &ThreadId) -> Pending<Proof> {
        let thread = thread.clone();
        self.long(move |shared| proof::verify(&shared.store, &thread))
    }

    /// Exports a thread as a tar archive that anyone with the public key can verify without a store. On return the file, which must not
    /// exist before, is durable. A thread whose log does not hold is refused.
    pub fn export(&self, thread: &ThreadId, file: impl AsRef<Path>) -> Pending<Archive> {
        let (thread, file) = (thread.clone(), file.as_ref().to_owned());
        self.long(move |shared| proof::export(&shared.store, &thread, &file))
    }
}

/// Ends a wait when its caller is gone.
struct EndsWait(Cancel);

impl Drop for EndsWait {
    fn drop(&mut self) {
        self.0.say(Stop::Cancelled);
    }
}

impl Shared {
    /// Refuses a run after the end.
    fn check_open(&self) -> Result<()> {
        if self.is_shut_down.load(Ordering::SeqCst) {
            return Err(ShutDown.into());
        }
        Ok(())
    }

    /// Creates the thread of a job; `false` if its key has one already.
    fn create(&self, job: Job) -> Result<(ThreadId, bool)> {
        self.check_open()?;
        let Job { task, agent, model, limits, title, key } = job;
        let agent = agent.map(AgentId::new).transpose()?;
        let limits = limits.over(&self.defaults.limits);
        let key = key.map(|key| CommitKey::new(format!("run:{key}"))).transpose()?;
        let (mut thread, messages) = match task {
            Task::Directive { id, inputs } => {
                let wishes = Wishes { inputs, agent, model, limits, task: None };
                let order = self.orchestrator.order(&DirectiveId::new(id)?, wishes)?;
                self.notices.lock().unwrap_or_else(PoisonError::into_inner).extend(order.notices);
                (order.thread, vec![Message::text(Role::User, order.task)])
            }
            Task::Say(messages) => {
                let defaults = &self.defaults;
                let thread = NewThread {
                    model: Some(self.workshop.models.named(model.as_deref().unwrap_or(&defaults.model))),
                    limits: Some(limits.over(&self.workshop.config.limits)),
                    capabilities: Some(defaults.capabilities.clone()),
                    acknowledged: defaults.risks.clone(),
                    ..NewThread::of(agent.unwrap_or_else(|| defaults.agent.clone()))
                };
                (thread, messages)
            }
        };
        thread.title = title;
        match key {
            Some(key) => Ok(self.engine.create_once(&key, thread, messages)?),
            None => Ok((self.engine.create(thread, messages)?, true)),
        }
    }

    /// Whether a thread was created and no process has begun to run it.
    fn is_unbegun(&self, thread: &ThreadId) -> Result<bool> {
        let end = self.store.get(&self.engine.end_of_chain(thread)?)?;
        Ok(end.manifest.status == Status::Created && end.holder.is_none())
    }

    /// What the next run of a thread is done with, by its verified log.
    fn assignment(&self, thread: &ThreadId) -> Result<Assignment> {
        let end = self.engine.end_of_chain(thread)?;
        let mut work = self.orchestrator.assignment(&self.engine.manifest(&end)?)?;
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).append(&mut work.notices);
        Ok(work)
    }

    fn resume(&self, thread: &ThreadId, input: Input) -> Result<Submitted> {
        self.check_open()?;
        Ok(self.engine.submit_resume(thread, input, self.assignment(thread)?, &Cancel::new())?)
    }

    fn send(&self, thread: &ThreadId, input: Input) -> Result<Submitted> {
        self.check_open()?;
        Ok(self.engine.submit(thread, input, self.assignment(thread)?, &Cancel::new())?)
    }
}
