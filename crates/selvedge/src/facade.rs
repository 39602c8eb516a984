//! The handle that an embedding program uses.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_engine::outcome::{Outcomes, get_status};
use selvedge_engine::snapshot::Keeper;
use selvedge_engine::thread_search::{ThreadQuery, ThreadsFound, search_threads};
use selvedge_engine::{
    Choice, Decided, Engine, Options as EngineOptions, Outcome, Redactor, RunConfig, RunEvent, Stopped, Submitted,
    Subscription, Watched,
};
use selvedge_log::Trust;
use selvedge_model::blocking::Pool;
use selvedge_model::limits::Limits;
use selvedge_model::tool::Risk;
use selvedge_model::{
    AgentId, CallId, Cancel, Classify, CommitKey, DirectiveId, Input, Manifest, Message, NewThread, Reason, RequestId,
    Role, Status, Stop, ThreadId,
};
use selvedge_store::load::load;
use selvedge_store::search::Query;
use selvedge_store::search::since::{since, utc_midnight};
use selvedge_store::{Backend, Cursor, Error as StoreError, Filter, Page, Store, Summary};
use selvedge_store_local::Access;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_tools::ProcessGroups;

use crate::builder::Builder;
use crate::effects::EffectRunner;
use crate::error::{Result, ShutDown};
use crate::follow::Follow;
use crate::job::{Job, Task};
use crate::needs::{Need, needs};
use crate::orchestrator::Orchestrator;
use crate::pages::PageFollower;
use crate::pending::Pending;
use crate::project::{Project, RunOptions, capabilities};
use crate::proof::{self, Archive, Proof};

/// The threads of one project: runs them, sends to them, waits for them, stops them, follows and verifies them.
///
/// A cheap handle to clone. Calls that take time return a [`Pending`], which is awaited on any async runtime or joined on a plain
/// thread. Runs are tasks of Selvedge itself and depend on no caller. When the last handle is dropped and nothing is running, the
/// store is closed.
#[derive(Clone)]
pub struct Selvedge {
    shared: Arc<Shared>,
}

struct Shared {
    /// Keeps pages current; it ends before the rest.
    #[expect(dead_code, reason = "it is only held")]
    pages: Option<PageFollower>,
    store: Arc<dyn Backend>,
    engine: Engine,
    project: Arc<Project>,
    orchestrator: Orchestrator,
    defaults: Defaults,
    recovered: Vec<ThreadId>,
    notices: Mutex<Vec<String>>,
    is_shut_down: AtomicBool,
    /// Ends waits when it is shut down.
    waits: Cancel,
    /// The threads of short blocking calls, so that a burst of calls does not start a thread for each. Long calls, and calls that stop
    /// a run, get a thread of their own.
    pool: Pool,
}

/// As many as the engine commits with at the same time.
const POOL_THREADS_MAX: usize = 64;

/// The defaults of the program's threads.
pub(crate) struct Defaults {
    pub(crate) agent: AgentId,
    pub(crate) model: String,
    pub(crate) limits: Limits,
    pub(crate) capabilities: Vec<String>,
    pub(crate) risks: Vec<Risk>,
}

/// A store that was opened, and what opening it found.
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) access: Access,
    pub(crate) notices: Vec<String>,
}

impl std::fmt::Debug for Selvedge {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Selvedge").field("project", &self.shared.project.folder).finish_non_exhaustive()
    }
}

/// Opening and shutting down.
impl Selvedge {
    /// Opens a folder that belongs to this program: threads in `.ai`, the signing key in `.selvedge`, both created if they don't exist.
    ///
    /// What holds on return is what [`Builder::open`] says.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::builder().project(folder).open()
    }

    /// A builder, to set folders, models and tools.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Puts the parts together, over any store; only opening one ([`Builder::open`]) knows which it is.
    pub(crate) fn assemble(
        opened: OpenStore,
        trust: Trust,
        project: Project,
        snapshots: Option<Keeper>,
        redactor: Redactor,
        defaults: Defaults,
    ) -> Result<Self> {
        let OpenStore { store, access, notices } = opened;
        let written = store.clone();
        let masked = redactor.clone();
        let engine = Engine::new(EngineOptions {
            store: store.clone(),
            trust,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            processes: Arc::new(ProcessGroups),
            scopes: project.config.scopes.clone(),
            redactor,
            snapshots,
            prepare: Some(Arc::new(move |manifest: &Manifest, work: &RunConfig| {
                let page = || capabilities::page(manifest, work, &masked);
                written.write_capabilities(&manifest.thread_id, &page).map(|_| ())
            })),
        });
        let project = Arc::new(project);
        let launcher = Arc::new(|_: &ThreadId| Err("this program runs every thread in its own process".to_owned()));
        // Weak, because the tools of a run outlive the handles for a moment.
        let known = Arc::downgrade(&store);
        let check_parent = Arc::new(move |parent: &Manifest| match known.upgrade() {
            Some(store) => store.check_manifest(parent).map_err(|error| match error.hint() {
                Some(hint) => format!("{error}; {hint}"),
                None => error.to_string(),
            }),
            None => Err("the store is closed".to_owned()),
        });
        let orchestrator =
            Orchestrator::new(engine.clone(), project.clone(), launcher, check_parent, store.clone(), store.clone());
        let recovered = match access {
            Access::ReadWrite => engine.recover()?,
            Access::ReadOnly => Vec::new(),
        };
        let notices = Mutex::new(notices);
        let is_shut_down = AtomicBool::new(false);
        let waits = Cancel::new();
        let pool = Pool::bounded(POOL_THREADS_MAX);
        let pages = (access == Access::ReadWrite).then(|| PageFollower::start(&store, &engine));
        let shared = Arc::new(Shared {
            pages,
            store,
            engine,
            project,
            orchestrator,
            defaults,
            recovered,
            notices,
            is_shut_down,
            waits,
            pool,
        });
        if access == Access::ReadWrite {
            after_runs(&shared);
        }
        Ok(Self { shared })
    }

    /// The threads that a dead process left running, found when this was opened. They are suspended now;
    /// [`Selvedge::resume`] continues one, and no finished call is repeated.
    pub fn recovered(&self) -> &[ThreadId] {
        &self.shared.recovered
    }

    /// Takes the notices since the last call: repairs when the store was opened, invalid tools, missing directives. None of them is an
    /// error.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Shuts down: new runs are refused with `shut_down`, waits end as `interrupted`, and runs have the time `grace` to finish.
    ///
    /// Returns whether all runs have ended. The others may be cut off by the end of the process: nothing committed is lost,
    /// the next [`Selvedge::open`] suspends such threads, and [`Selvedge::resume`] continues them. To end a thread instead,
    /// [`Selvedge::cancel`] it before this.
    pub fn shut_down(&self, grace: Duration) -> Pending<bool> {
        self.shared.is_shut_down.store(true, Ordering::SeqCst);
        self.shared.waits.say(Stop::Cancelled);
        let shared = self.shared.clone();
        Pending::long(move || Ok(shared.engine.wait_idle(grace)))
    }

    /// The underlying engine, for operations that this type lacks. Runs that are started with it are not refused after
    /// [`Selvedge::shut_down`].
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The underlying store, for operations that this type lacks.
    pub fn store(&self) -> Arc<dyn Store> {
        self.shared.store.clone()
    }

    /// Runs a short blocking call.
    fn short<T: Send + 'static>(&self, work: impl FnOnce(&Shared) -> Result<T> + Send + 'static) -> Pending<T> {
        let shared = self.shared.clone();
        Pending::short(&self.shared.pool, move || work(&shared))
    }

    /// Runs a long blocking call.
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
    /// Creates a thread and runs it until its run ends.
    ///
    /// The outcome says how the run ended: completed, suspended (for an approval, a limit or a failed model) or failed. That is not an
    /// error of the call. If this program dies in the meantime, the thread has its message, and [`Selvedge::resume`] continues it.
    ///
    /// A job whose [key](Job::key) already has a thread returns the outcome of that thread, after waiting for its active run.
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

    /// Creates a thread and starts its run. On return the thread and its message are durable, and the run continues in the background:
    /// [`Selvedge::wait`] waits for it, [`Selvedge::subscribe`] shows it.
    ///
    /// A job whose [key](Job::key) already has a thread returns that thread; it is started only if it has never run.
    pub fn start(&self, job: impl Into<Job>) -> Pending<ThreadId> {
        let job = job.into();
        self.short(move |shared| {
            let (thread, is_new) = shared.create(job)?;
            if is_new || shared.is_unbegun(&thread)? {
                // It continues in the background.
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
        let thread = thread.clone();
        let input = input.into();
        self.running(move |shared| shared.send(&thread, None, input))
    }

    /// The same, at most once for a key: sent again under the same key, the message is not repeated, and the outcome is that of the run
    /// that answered it. Another message under that key is refused.
    pub fn send_as(&self, thread: &ThreadId, key: impl Into<String>, input: impl Into<Input>) -> Pending<Outcome> {
        let thread = thread.clone();
        let key = key.into();
        let input = input.into();
        self.running(move |shared| shared.send(&thread, Some(key), input))
    }

    /// Queues a message for a thread. On return it is durable, and a run in the background answers it.
    pub fn submit(&self, thread: &ThreadId, input: impl Into<Input>) -> Pending<()> {
        let thread = thread.clone();
        let input = input.into();
        self.short(move |shared| shared.send(&thread, None, input).map(drop))
    }

    /// The same, at most once for a key.
    pub fn submit_as(&self, thread: &ThreadId, key: impl Into<String>, input: impl Into<Input>) -> Pending<()> {
        let thread = thread.clone();
        let key = key.into();
        let input = input.into();
        self.short(move |shared| shared.send(&thread, Some(key), input).map(drop))
    }

    /// Answers the messages whose process died before it answered them, and returns their threads; the runs continue in the background.
    /// [`Selvedge::open`] does not begin them by itself: a message that ended one process would end the next one, too.
    pub fn answer_abandoned(&self) -> Pending<Vec<ThreadId>> {
        self.short(move |shared| {
            shared.check_open()?;
            Ok(shared.engine.answer_abandoned(|manifest| shared.run_config(&manifest.thread_id).ok())?)
        })
    }

    /// Resumes a thread that was created, is suspended, or whose process died, and waits for the end of its run. Finished calls are not
    /// repeated. Pass [`Input::nothing`] to only continue, a message to send one, and [`Input::raising`] for higher limits.
    ///
    /// A thread that has ended is continued by a successor, which needs a message; [`Outcome::resumed`] names it.
    pub fn resume(&self, thread: &ThreadId, input: impl Into<Input>) -> Pending<Outcome> {
        let thread = thread.clone();
        let input = input.into();
        self.running(move |shared| shared.resume(&thread, input))
    }

    /// Starts what [`Selvedge::resume`] does. On return a message in it is durable, and the run continues in the background.
    pub fn submit_resume(&self, thread: &ThreadId, input: impl Into<Input>) -> Pending<()> {
        let thread = thread.clone();
        let input = input.into();
        self.short(move |shared| shared.resume(&thread, input).map(drop))
    }

    /// Everything that waits for a person, newest first, as `selvedge inbox` lists it.
    pub fn needs(&self) -> Pending<Vec<Need>> {
        self.short(|shared| {
            let mut needs = needs(&*shared.store)?;
            for need in &mut needs {
                need.read_call(&*shared.store, shared.engine.trust());
            }
            Ok(needs)
        })
    }

    /// Waits until the active run of a thread has ended or is suspended; at once if none is active. It only reads, and works for a thread
    /// of another process. Dropping it ends only the wait.
    pub fn wait(&self, thread: &ThreadId) -> Pending<Outcome> {
        let asked = thread.clone();
        let all = self.wait_all(std::slice::from_ref(thread), Duration::MAX);
        Pending::new(async move {
            let found = all.await?.results.remove(&asked);
            found.ok_or_else(|| StoreError::NoThread(asked.to_string()).into())
        })
    }

    /// Waits for several threads, at most this long, and returns the outcome of each; `timeout` for those that have not ended.
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

    /// Cancels a thread and its descendants. On return the request is durable and the run is notified; it stops soon after, at the next point
    /// where no work is lost. A suspended thread has ended on return.
    pub fn cancel(&self, thread: &ThreadId) -> Pending<Stopped> {
        self.stop(thread, Stop::Cancelled)
    }

    /// Kills a thread and its descendants: running calls are stopped at once.
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
    /// On return the decision is durable: signed into the log, or queued for the process that runs the thread. It starts no run. Once
    /// [`Decided::undecided`] is empty, [`Selvedge::resume`] continues. The first decision counts: the same again changes nothing, another is
    /// refused with `already_decided`.
    pub fn decide(&self, thread: &ThreadId, call: &CallId, choice: Choice, who: &str) -> Pending<Decided> {
        let thread = thread.clone();
        let call = call.clone();
        let who = who.to_owned();
        self.short(move |shared| {
            let work = shared.run_config(&thread)?;
            Ok(shared.engine.decide(&thread, &call, choice, &who, &work)?)
        })
    }
}

/// Reading threads.
impl Selvedge {
    /// The outcome of a thread, or of the end of its chain: status, result, outputs, cost and pending approvals, from the verified log.
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

    /// A page of threads, newest first; `after` is the cursor of the previous page.
    pub fn threads(&self, filter: Filter, after: Option<Cursor>, limit: usize) -> Pending<Page<Summary>> {
        self.short(move |shared| Ok(shared.store.list(&filter, after, limit)?))
    }

    /// Searches all threads and their blobs: words, `"a phrase"`, `OR`, `NOT`, parentheses, `begin*`, and the filters `agent:`, `directive:`,
    /// `status:` and `since:` (`7d`, or a day in UTC). Returns the best passage of each thread, from the verified log.
    ///
    /// On return, everything that was committed before the call was searched, unless
    /// [`commits_not_searched`](ThreadsFound::commits_not_searched) says otherwise.
    pub fn search(&self, query: &str, limit: usize) -> Pending<ThreadsFound> {
        let query = query.to_owned();
        self.long(move |shared| {
            let engine = &shared.engine;
            let now = engine.now();
            let query = Query::parse(&query, &|text| since(text, now, &utc_midnight))?;
            let asked = ThreadQuery { query, vector: None, only: None, limit };
            Ok(search_threads(&**engine.store(), &*shared.store, engine.trust(), &asked, &shared.waits)?)
        })
    }

    /// The one thread whose id, or hex suffix, begins with this.
    pub fn find(&self, prefix: &str) -> Pending<ThreadId> {
        let prefix = prefix.to_owned();
        self.short(move |shared| Ok(shared.store.resolve(&prefix)?))
    }

    /// Subscribes to the events of this process, including drafts. For other processes there is [`Selvedge::follow`].
    ///
    /// A run never waits for a subscriber: a slow one gets a [`RunEvent::Missed`](crate::RunEvent::Missed). Subscribing reads the store
    /// briefly.
    pub fn subscribe(&self, watched: Watched) -> Subscription {
        self.shared.engine.subscribe(watched)
    }

    /// Follows the log of a thread from line `first_line` on, whichever process writes it: every committed line once, in order.
    pub fn follow(&self, thread: &ThreadId, first_line: u64) -> Follow {
        Follow::new(self.shared.engine.clone(), thread.clone(), first_line)
    }

    /// Verifies a thread: every signature of its log and every blob that it names. Writes nothing. A damaged log is not an error
    /// of the call: see [`Proof::is_sound`].
    pub fn verify(&self, thread: &ThreadId) -> Pending<Proof> {
        let thread = thread.clone();
        self.long(move |shared| proof::verify(&*shared.store, &thread))
    }

    /// Exports a thread as a tar archive that anyone with the public key can verify without a store. On return the file, which must not
    /// exist before, is durable. A thread with a damaged log is refused.
    pub fn export(&self, thread: &ThreadId, file: impl AsRef<Path>) -> Pending<Archive> {
        let thread = thread.clone();
        let file = file.as_ref().to_owned();
        self.long(move |shared| proof::export(&*shared.store, &thread, &file))
    }
}

/// Does the effects of runs on a thread of its own, after each run of this process and once at the beginning.
fn after_runs(shared: &Arc<Shared>) {
    let weak = Arc::downgrade(shared);
    let mut events = shared.engine.subscribe(Watched::All);
    let work = move || {
        loop {
            {
                let Some(shared) = weak.upgrade() else { return };
                EffectRunner::new(shared.store.clone(), shared.engine.clone(), shared.project.clone())
                    .run(&shared.waits);
            }
            loop {
                let is_end =
                    |event: &RunEvent| matches!(event, RunEvent::Committed { reason: Reason::RunFinished, .. });
                match events.recv(UNTIL_CLOSED) {
                    Some(event) if is_end(&event) => break,
                    Some(_) => {}
                    None if events.is_closed() => return,
                    None => {}
                }
            }
        }
    };
    // Without the thread, the next process that opens the store does them.
    _ = std::thread::Builder::new().name("effects".to_owned()).spawn(work);
}

/// A wait that ends with an event or when the engine is gone.
const UNTIL_CLOSED: Duration = Duration::from_secs(3600);

/// Ends a wait when its caller is dropped.
struct EndsWait(Cancel);

impl Drop for EndsWait {
    fn drop(&mut self) {
        self.0.say(Stop::Cancelled);
    }
}

impl Shared {
    /// Refuses a run after the shutdown.
    fn check_open(&self) -> Result<()> {
        if self.is_shut_down.load(Ordering::SeqCst) {
            return Err(ShutDown.into());
        }
        Ok(())
    }

    /// Creates the thread of a job; `false` if its key already has one.
    fn create(&self, job: Job) -> Result<(ThreadId, bool)> {
        self.check_open()?;
        let Job { task, agent, model, limits, title, key } = job;
        let agent = agent.map(AgentId::new).transpose()?;
        let limits = limits.over(&self.defaults.limits);
        let key = key.map(|key| CommitKey::new(format!("run:{key}"))).transpose()?;
        let (mut thread, messages) = match task {
            Task::Directive { id, inputs } => {
                let options = RunOptions { inputs, agent, model, limits, task: None };
                let order = self.orchestrator.prepare(&DirectiveId::new(id)?, options)?;
                self.notices.lock().unwrap_or_else(PoisonError::into_inner).extend(order.notices);
                (order.thread, vec![Message::text(Role::User, order.task)])
            }
            Task::Say(messages) => {
                let defaults = &self.defaults;
                let thread = NewThread {
                    model: Some(self.project.models.named(model.as_deref().unwrap_or(&defaults.model))),
                    limits: Some(limits.over(&self.project.config.limits)),
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

    /// Whether a thread was created and has not run yet.
    fn is_unbegun(&self, thread: &ThreadId) -> Result<bool> {
        let end = self.store.get(&self.engine.end_of_chain(thread)?)?;
        Ok(end.manifest.status == Status::Created && end.holder.is_none())
    }

    /// The run configuration of a thread's next run, from its verified log.
    fn run_config(&self, thread: &ThreadId) -> Result<RunConfig> {
        let end = self.engine.end_of_chain(thread)?;
        let mut work = self.orchestrator.run_config(&self.engine.manifest(&end)?)?;
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).append(&mut work.notices);
        Ok(work)
    }

    fn resume(&self, thread: &ThreadId, input: Input) -> Result<Submitted> {
        self.check_open()?;
        Ok(self.engine.submit_resume(thread, input, self.run_config(thread)?, &Cancel::new())?)
    }

    fn send(&self, thread: &ThreadId, key: Option<String>, input: Input) -> Result<Submitted> {
        self.check_open()?;
        let work = self.run_config(thread)?;
        Ok(match key.map(RequestId::new).transpose()? {
            Some(id) => self.engine.submit_as(thread, id, input, work, &Cancel::new())?,
            None => self.engine.submit(thread, input, work, &Cancel::new())?,
        })
    }
}
