//! Shared by the commands that run threads: the engine on the project's store, Ctrl-C, and the end of a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use selvedge::effects::EffectRunner;
use selvedge::graph_view::pages::PageWriter;
use selvedge::items::config::{Folders, SecretPattern, Unsigned};
use selvedge::items::{Config, Library, Policy};
use selvedge::log::Trust;
use selvedge::model::limits::Cost;
use selvedge::model::scope::Scopes;
use selvedge::model::{Cancel, Classify, Manifest, Run, Status, Stop};
use selvedge::orchestrator::{Launcher, Orchestrator};
use selvedge::pages::PageFollower;
use selvedge::project::mcp::servers;
use selvedge::project::{Models, Program, Project, RuleSource, capabilities, prompt_changed_since};
use selvedge::snapshot::Keeper;
use selvedge::store::Store;
use selvedge::tools::{Detached, ProcessGroups, Sandbox};
use selvedge::{Engine, EngineOptions, Input, Outcome, Redactor, RunConfig, RunEvent, Subscription, Watched};
use selvedge_engine::EventHandler;
use selvedge_engine::engine::Prepare;
use selvedge_engine::orphans::RECOVERY;
use selvedge_engine::redact::Pattern;
use selvedge_engine::spawn::Children;
use selvedge_model::event::{Ask, SuspendReason, Suspended};
use selvedge_model::tool::Started;
use selvedge_model::{Clock, Reason, ThreadId};
use selvedge_store::Backend;
use selvedge_store_local::Access;
use selvedge_store_local::system::{SystemClock, SystemIds};
use serde_json::json;

use crate::config::{changed_since, configuration, folders};
use crate::context::{Context, User};
use crate::error::{Exit, Failure, Result};
use crate::hints;
use crate::output::{BOLD, paint};
use crate::screen::Screen;
use crate::text::{clean, clean_json, count};

/// Words in the name of a variable whose value is a secret.
const SECRET_WORDS: [&str; 7] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "PRIVATE"];

/// How long a command may work on what is due after its run.
pub(crate) const EFFECTS_TIME: Duration = Duration::from_secs(10);

/// The engine on a project's store.
pub(crate) struct Running {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) engine: Engine,
    pub(crate) project: Arc<Project>,
    pub(crate) orchestrator: Orchestrator,
    redactor: Redactor,
    /// Notices to show before the next run begins.
    notes: RefCell<Vec<String>>,
}

/// Whether the calls of a command to models are recorded; every command that runs a thread has it.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Recording {
    /// Record the exact bytes of calls to models on the network in DIR, without credentials; `--model recorded:DIR` answers from them
    #[arg(long, value_name = "DIR")]
    pub(crate) record: Option<PathBuf>,
}

impl Running {
    /// Opens the project to run threads in it. Threads that a dead process left running are suspended first, with a notice.
    pub(crate) fn open(context: &Context<'_>, recording: &Recording) -> Result<Self> {
        let mut project = project(context)?;
        if let Some(folder) = &recording.record {
            project.models = project.models.recording(context.folder.join(folder));
        }
        let project = Arc::new(project);
        for notice in project.unmatched_rules(RuleSource::Project)? {
            context.output.say(clean(&notice));
        }
        let trust = User::find()?.trust()?;
        let store = context.open(Access::ReadWrite)?;
        let redactor = redactor(&project);
        let keeper = Keeper::new(store.clone(), project.config.state_persistence.clone());
        let engine = Engine::new(EngineOptions {
            scopes: project.config.scopes.clone(),
            redactor: redactor.clone(),
            snapshots: Some(keeper.map_err(|error| Failure::of(&error))?),
            prepare: Some(capabilities_written(&store, &redactor)),
            ..options(&store, trust)
        });
        let orchestrator = orchestrator(context, &engine, &project, &store)?;
        for thread in engine.recover().map_err(|error| Failure::of(&error))? {
            context.output.say(left_running(&thread));
        }
        Ok(Self { store, engine, project, orchestrator, redactor, notes: RefCell::default() })
    }

    /// Starts a process that will run a thread; it waits at a gate until the thread is committed.
    pub(crate) fn launch(&self, thread: &ThreadId) -> Result<Box<dyn Started>, String> {
        Children::launch(&self.orchestrator, thread)
    }

    /// The one thread that a prefix names.
    pub(crate) fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        Ok(self.store.resolve(prefix)?)
    }

    /// The run configuration of the next run of a thread, or of the end of its chain. Before its first run, its capabilities are written to
    /// `capabilities.md`; if that file was edited since, the run is refused.
    pub(crate) fn run_config(&self, thread: &ThreadId) -> Result<RunConfig> {
        self.run_config_with(thread, None)
    }

    /// The same, with another model than the thread was created with.
    pub(crate) fn run_config_with(&self, thread: &ThreadId, model: Option<&str>) -> Result<RunConfig> {
        let end = self.engine.end_of_chain(thread).map_err(|error| Failure::of(&error))?;
        // From its verified log: the capabilities in the database are not trusted.
        let mut manifest = self.engine.manifest(&end).map_err(|error| Failure::of(&error))?;
        if let Some(model) = model {
            manifest.model = Some(model.to_owned());
        }
        let work = self.orchestrator.run_config(&manifest)?;
        let runs = self.store.runs(&manifest.thread_id)?;
        let missing = runs.last().and_then(|_| self.store.missing_manifest(&manifest.thread_id));
        let changed = runs.last().and_then(|run| changed_since(&self.project.config, run));
        // A missing item changes the prompt, and has a notice of its own.
        let prompt = prompt_changed_since(&runs, &work).filter(|_| work.notices.is_empty());
        let about_work = work.notices.iter().cloned().chain(prompt).map(|note| clean(&note));
        let mut notes = self.notes.borrow_mut();
        for note in missing.into_iter().chain(changed).chain(about_work) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        drop(notes);
        self.write_capabilities(&manifest.thread_id, &work)?;
        Ok(work)
    }

    /// Writes the signed `capabilities.md` of a thread, once. If the thread ran before, the file was deleted since, and a notice says so.
    fn write_capabilities(&self, thread: &ThreadId, work: &RunConfig) -> selvedge_store::Result<()> {
        let manifest = self.store.get(thread)?.manifest;
        let page = || capabilities::page(&manifest, work, &self.redactor);
        let has_run = |runs: &[Run]| runs.iter().any(|run| run.meta.origin != RECOVERY);
        if self.store.write_capabilities(thread, &page)? && has_run(&self.store.runs(thread)?) {
            let what = "was missing, and was written again from its log";
            self.notes.borrow_mut().push(format!("`capabilities.md` of `{thread}` {what}"));
        }
        Ok(())
    }

    /// Runs the closure, shows its events, and returns the result of the run.
    pub(crate) fn show(
        self,
        context: &Context<'_>,
        work: RunConfig,
        run: impl FnOnce(&Self, &Arc<RunConfig>, &Cancel, &mut EventHandler<'_>) -> selvedge_engine::Result<Outcome>,
    ) -> Result<()> {
        let work = Arc::new(work);
        let cancel = stop_when_interrupted(context.output.speaks_to_people());
        let screen = Screen::new(context, &*self.store);
        let pages = GraphPages::of(&self);
        let ended = self.perform(context, screen, |tell| {
            run(&self, &work, &cancel, &mut |event| {
                pages.note(&event);
                tell(event);
            })
        });
        if let Some(why) = pages.finish() {
            context.output.say(format!("a page of a graph could not be written: {}", clean(&why)));
        }
        let outcome = ended.as_ref().map_or(Ok(()), |ended| crate::commands::wait::ended(&*self.store, ended));
        // Its tools hold the engine, which holds the store.
        drop(work);
        let told = ended.and_then(|ended| tell_end(context, &ended));
        self.finish(context);
        told?;
        outcome
    }

    /// Runs something and shows it as it happens; the store stays open.
    pub(crate) fn perform(
        &self,
        context: &Context<'_>,
        mut screen: Screen<'_>,
        run: impl FnOnce(&mut EventHandler<'_>) -> selvedge_engine::Result<Outcome>,
    ) -> Result<Outcome> {
        for note in self.notes.take() {
            context.output.say(note);
        }
        let pages = PageFollower::start(&self.store, &self.engine);
        let ended = run(&mut |event| screen.show(&event));
        drop(pages);
        screen.finish();
        context.tell_problems();
        ended.map_err(|error| hints::refused(&*self.store, &error))
    }

    /// Does what is due after a run, for a bounded time, and closes the store. The answer was shown before.
    pub(crate) fn finish(self, context: &Context<'_>) {
        let cancel = cancelled_after(EFFECTS_TIME);
        // Ctrl-C ends the process again: what is left is done by the next one.
        crate::INTERRUPTS_END.store(true, Ordering::SeqCst);
        EffectRunner::new(self.store.clone(), self.engine.clone(), self.project.clone()).run(&cancel);
        self.close(context);
    }

    /// Closes the store, so that the transcripts are complete.
    pub(crate) fn close(self, context: &Context<'_>) {
        drop((self.engine, self.orchestrator));
        context.close(self.store);
    }
}

/// The pages of graphs that this process runs: written beside the runs, the newest state of each.
struct GraphPages {
    writer: PageWriter,
    events: RefCell<Subscription>,
}

impl GraphPages {
    fn of(running: &Running) -> Self {
        let library = running.project.library.clone();
        let trust = running.engine.trust().clone();
        let writer = PageWriter::new(running.store.clone(), trust, library);
        Self { writer, events: RefCell::new(running.engine.subscribe(Watched::All)) }
    }

    /// An event of the command's own run: those of its children come with the subscription.
    fn note(&self, event: &RunEvent) {
        if matches!(event, RunEvent::Committed { reason: Reason::StepCommitted | Reason::RunFinished, .. }) {
            self.take();
        }
    }

    fn take(&self) {
        while let Some(event) = self.events.borrow_mut().try_recv() {
            if let RunEvent::Committed { thread, reason: Reason::StepCommitted | Reason::RunFinished, .. } = &event {
                self.writer.note(thread);
            }
        }
    }

    fn finish(self) -> Option<String> {
        self.take();
        drop(self.events);
        self.writer.finish()
    }
}

/// A signal that says stop after a while.
pub(crate) fn cancelled_after(time: Duration) -> Cancel {
    let cancel = Cancel::new();
    let timer = cancel.clone();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        timer.say(Stop::Cancelled);
    });
    cancel
}

/// The notice for a thread that a dead process left running.
fn left_running(thread: &ThreadId) -> String {
    format!(
        "the process that ran `{thread}` died; the thread is suspended now, and `selvedge resume {thread}` continues it"
    )
}

/// An engine that starts no runs: it works even if the configuration is invalid. Snapshots follow the built-in rules then.
pub(crate) fn plain_engine(context: &Context<'_>) -> Result<(Arc<dyn Backend>, Engine)> {
    let store = context.open(Access::ReadWrite)?;
    let config = folders(context).ok().and_then(|folders| Config::load(&folders).ok());
    let config = config.or_else(|| Config::load(&Folders { user: None, project: None }).ok());
    let snapshots = config.and_then(|config| Keeper::new(store.clone(), config.state_persistence).ok());
    let redactor = Redactor::new(secrets(&environment()), Vec::new());
    let engine = Engine::new(EngineOptions { redactor, snapshots, ..options(&store, User::find()?.trust()?) });
    Ok((store, engine))
}

/// What restricts the processes of tools: this program, started again.
pub(crate) fn sandbox() -> Option<Sandbox> {
    std::env::current_exe().ok().map(Sandbox::new)
}

/// The options of every engine of this program, without configured ones.
pub(crate) fn options(store: &Arc<dyn Backend>, trust: Trust) -> EngineOptions {
    EngineOptions {
        store: store.clone() as Arc<dyn Store>,
        trust,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        processes: Arc::new(ProcessGroups),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    }
}

/// Writes the signed `capabilities.md` of a thread before its first run.
fn capabilities_written(store: &Arc<dyn Backend>, redactor: &Redactor) -> Prepare {
    let store = store.clone();
    let redactor = redactor.clone();
    Arc::new(move |manifest, work| {
        let page = || capabilities::page(manifest, work, &redactor);
        store.write_capabilities(&manifest.thread_id, &page).map(|_| ())
    })
}

/// The orchestrator, which starts threads for agents: detached ones in a new process of this program.
fn orchestrator(
    context: &Context<'_>,
    engine: &Engine,
    project: &Arc<Project>,
    store: &Arc<dyn Backend>,
) -> Result<Orchestrator> {
    let launcher = launcher(context, project)?;
    let known = Arc::downgrade(store);
    let check_parent = Arc::new(move |parent: &Manifest| match known.upgrade() {
        Some(store) => store.check_manifest(parent).map_err(|error| match error.hint() {
            Some(hint) => format!("{error}; {hint}"),
            None => error.to_string(),
        }),
        None => Err("the store is closed".to_owned()),
    });
    Ok(Orchestrator::new(engine.clone(), project.clone(), launcher, check_parent, store.clone(), store.clone()))
}

/// Starts a process of this program that runs a thread, behind a gate.
pub(crate) fn launcher(context: &Context<'_>, project: &Arc<Project>) -> Result<Launcher> {
    let program = std::env::current_exe().map_err(|error| Failure::io("find", Path::new("selvedge"), &error))?;
    let folder = context.project()?;
    let project = project.clone();
    let address = context.address().map(str::to_owned);
    Ok(Arc::new(move |thread: &ThreadId| {
        let arguments = ["-C", &folder.to_string_lossy(), "--quiet", "resume", thread.as_str()].map(str::to_owned);
        let mut environment = project.environment.clone();
        // Not among the arguments, which other users of the machine see.
        environment.extend(address.iter().map(|address| ("SELVEDGE_STORE".to_owned(), address.clone())));
        match Detached::start(&program, &arguments, environment, &folder) {
            Ok(detached) => Ok(Box::new(detached)),
            Err(error) => Err(error.to_string()),
        }
    }))
}

/// The project: its directives, agents, tools and configuration.
pub(crate) fn project(context: &Context<'_>) -> Result<Project> {
    project_of(configuration(context)?, context)
}

/// The same, with a configuration that was already read.
pub(crate) fn project_of(config: Config, context: &Context<'_>) -> Result<Project> {
    let folder = context.project()?;
    let user = User::find()?;
    let library = Library {
        project: Some(folder.join(".ai")),
        user: Some(user.folder.clone()).filter(|folder| folder.is_dir()),
        trust: user.trust()?,
        policy: match config.run.unsigned {
            Unsigned::Allow => Policy::default(),
            Unsigned::Refuse => Policy::RequireTrusted,
        },
    };
    let environment = environment();
    let models = Models::configured(&config.models, &environment);
    let sandbox = sandbox();
    let mcp = servers(&folder, &environment, sandbox.as_ref());
    Ok(Project { library, folder, environment, config, models, program: Program::default(), sandbox, mcp })
}

pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Removes secrets, which must never reach a log.
pub(crate) fn redactor(project: &Project) -> Redactor {
    let secrets = secrets(&project.environment).into_iter().chain(project.models.secrets());
    Redactor::new(secrets, patterns(&project.config)).learning(project.models.learned_secrets())
}

/// A text without secrets, by the environment and the built-in patterns: works before any configuration is read.
pub(crate) fn unsecret(text: &str) -> String {
    static KNOWN: LazyLock<Redactor> = LazyLock::new(|| {
        let built_in = Config::load(&Folders { user: None, project: None });
        Redactor::new(secrets(&environment()), built_in.map(|config| patterns(&config)).unwrap_or_default())
    });
    KNOWN.text(text).unwrap_or_else(|| text.to_owned())
}

/// Values of environment variables whose names suggest a secret.
pub(crate) fn secrets(environment: &BTreeMap<String, String>) -> Vec<String> {
    let is_secret = |name: &str| SECRET_WORDS.iter().any(|word| name.to_uppercase().contains(word));
    let found =
        environment.iter().filter(|(name, value)| is_secret(name) && value.len() >= 8 && !Path::new(value).exists());
    // An address often has a password before its `@`: postgres://user:password@host.
    let passwords = environment.values().filter_map(|value| {
        let (_, rest) = value.split_once("://")?;
        let (_, password) = rest.split_once('@')?.0.split_once(':')?;
        Some(password.to_owned())
    });
    found.map(|(_, value)| value.clone()).chain(passwords).collect()
}

fn patterns(config: &Config) -> Vec<Pattern> {
    let pattern = |known: &SecretPattern| Pattern { prefix: known.prefix.clone(), length_min: known.length_min };
    config.redaction.patterns.iter().map(pattern).collect()
}

/// The first Ctrl-C cancels the run, the second kills running tools, the third exits. A notice on stderr says what the next one does.
fn stop_when_interrupted(is_shown: bool) -> Cancel {
    let cancel = Cancel::new();
    let signalled = cancel.clone();
    crate::INTERRUPTS_END.store(false, Ordering::SeqCst);
    let interrupts = Arc::new(AtomicUsize::new(0));
    if let Ok(mut signals) = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT]) {
        std::thread::spawn(move || {
            for _ in signals.forever() {
                let notice = match interrupts.fetch_add(1, Ordering::SeqCst) {
                    0 => {
                        signalled.say(Stop::Cancelled);
                        "stopping; press Ctrl-C again to kill running tools"
                    }
                    1 => {
                        signalled.say(Stop::Killed);
                        "killing running tools; press Ctrl-C again to exit at once"
                    }
                    _ => std::process::exit(130),
                };
                if is_shown {
                    _ = writeln!(anstream::stderr().lock(), "{notice}");
                }
            }
        });
    }
    cancel
}

/// Resolves at the first Ctrl-C, or when the process is asked to end; a second one ends it at once.
pub(crate) fn wait_for_interrupt() -> tokio::sync::oneshot::Receiver<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let (sender, receiver) = tokio::sync::oneshot::channel();
    crate::INTERRUPTS_END.store(false, Ordering::SeqCst);
    if let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
        std::thread::spawn(move || {
            let mut sender = Some(sender);
            for _ in signals.forever() {
                match sender.take() {
                    Some(sender) => _ = sender.send(()),
                    None => std::process::exit(130),
                }
            }
        });
    }
    receiver
}

/// Reports how a run ended.
fn tell_end(context: &Context<'_>, outcome: &Outcome) -> Result<()> {
    if context.output.is_json() {
        return tell_outcome(context, outcome);
    }
    if let Some(outputs) = &outcome.outputs {
        context.output.text(format_args!("{} {}", paint(BOLD, "outputs"), clean_json(&outputs.to_string())))?;
    }
    if let Some(resumed) = &outcome.resumed {
        context
            .output
            .tell(format!("{} had ended and is continued as {}", resumed.old_thread_id, resumed.new_thread_id));
    }
    let used = used(&outcome.run_cost.clone().unwrap_or_default());
    let state =
        outcome.status.status().map_or_else(|| format!("is {}", outcome.status), |status| status.in_words().to_owned());
    context.output.tell(format!("{} {state}: {used}", outcome.thread_id));
    Ok(())
}

/// Writes how a run ended as one object.
pub(crate) fn tell_outcome(context: &Context<'_>, outcome: &Outcome) -> Result<()> {
    let mut record = serde_json::to_value(outcome).unwrap_or_default();
    record["type"] = json!("ended");
    context.output.record(&record)
}

/// The cost of a run, on one line.
pub(crate) fn used(cost: &Cost) -> String {
    let tokens = cost.input_tokens.saturating_add(cost.output_tokens);
    let seconds = cost.duration_ms as f64 / 1000.0;
    let unknown = if cost.spend_unknown.is_zero() {
        String::new()
    } else {
        format!(" (${} of it for calls without reported usage, charged at their bound)", cost.spend_unknown)
    };
    format!("{}, {}, ${}{unknown}, {seconds:.1} s", count(cost.turns, "turn"), count(tokens, "token"), cost.spend)
}

/// The result of a command whose run had this outcome.
pub(crate) fn ended(outcome: &Outcome) -> Result<()> {
    let Some(status) = outcome.status.status() else { return Ok(()) };
    let thread = &outcome.thread_id;
    let why = outcome.reason().map_or_else(|| status.to_string(), str::to_owned);
    let suspended = outcome.suspended.as_ref();
    match (status, suspended.map(|suspended| suspended.reason)) {
        (Status::Error | Status::Killed | Status::CompletedWithErrors, _) => {
            let why = outcome.reason().filter(|why| *why != status.as_str()).map(|why| format!(": {why}"));
            let message = format!("`{thread}` {}{}", status.in_words(), why.unwrap_or_default());
            let is_of_model = outcome.code.as_deref().is_some_and(|code| code.starts_with("model_"));
            let check = if is_of_model { "`selvedge model check --probe` checks keys and hosts; " } else { "" };
            let of_graph = match outcome.code.as_deref() {
                Some("graph_failed") => Some(format!(
                    "`selvedge graph show {thread}` shows its nodes; `selvedge resume {thread} \"…\"` continues at the one that failed"
                )),
                Some("completed_with_errors") => Some(format!("`selvedge graph show {thread}` shows its nodes")),
                _ => None,
            };
            if let Some(hint) = of_graph {
                return Err(Failure::new(Exit::Failed, "run_failed", message).hint(hint));
            }
            Err(Failure::new(Exit::Failed, "run_failed", message).hint(format!(
                "{check}`selvedge log {thread}` shows what happened; `selvedge send {thread} \"…\"` continues"
            )))
        }
        (Status::Cancelled, _) => {
            Err(Failure::new(Exit::Interrupted, "run_cancelled", format!("the run of `{thread}` was stopped")).hint(
                format!("continue with `selvedge send {thread} \"…\"`; `selvedge log {thread}` shows what it did"),
            ))
        }
        (Status::Suspended, Some(SuspendReason::Approval | SuspendReason::OutcomeUnknown)) => {
            Err(needs_decision(thread, suspended, &outcome.asks))
        }
        (Status::Suspended, Some(SuspendReason::Limit | SuspendReason::Budget)) => {
            let values = suspended.and_then(selvedge::needs::values).map(|values| format!(", {values}"));
            let message = format!("`{thread}` has reached a limit: {why}{}", values.unwrap_or_default());
            let raise = suspended.and_then(selvedge::needs::limit_of).unwrap_or("turns");
            Err(Failure::new(Exit::Limit, "limit_reached", message)
                .hint(format!("`selvedge resume {thread} --raise {raise}=…` raises it and continues")))
        }
        (Status::Suspended, _) => {
            let failure = Failure::new(Exit::Failed, "run_suspended", format!("`{thread}` is suspended: {why}"));
            Err(failure.hint(match outcome.code.as_deref().unwrap_or_default() {
                "context_too_small" => format!(
                    "its prompt does not fit into the model's context window; shorten the directive, use a model with a larger window, or correct \
                     `models.known` or `coordination.continuation.context_tokens`, then `selvedge resume {thread}`"
                ),
                "chain_too_deep" => format!(
                    "`coordination.continuation.chain_max` is the maximum length of a chain; raise it, then `selvedge resume {thread}`"
                ),
                "child_suspended" => format!(
                    "`selvedge tree {thread}` shows the child that it waits for; once that has continued, `selvedge resume {thread}`"
                ),
                _ => format!("`selvedge resume {thread}` continues"),
            }))
        }
        _ => Ok(()),
    }
}

/// The failure of a command whose thread waits for decisions about calls.
pub(crate) fn needs_decision(thread: &ThreadId, suspended: Option<&Suspended>, asks: &[Ask]) -> Failure {
    let now = SystemClock.now();
    let unknown = suspended.and_then(|why| why.calls.iter().find(|call| asks.iter().all(|ask| ask.call_id != **call)));
    let (over, asks): (Vec<&Ask>, Vec<&Ask>) = asks.iter().partition(|ask| ask.is_over(now));
    match (asks.as_slice(), unknown) {
        ([], None) if !over.is_empty() => {
            let message = format!("the approval request of `{thread}` has expired");
            Failure::new(Exit::Decision, "approval_expired", message)
                .hint(format!("`selvedge resume {thread}` continues without the call"))
        }
        ([], None) => {
            let message = format!("all calls of `{thread}` are decided, and no process is running it");
            Failure::new(Exit::Failed, "run_suspended", message).hint(format!("`selvedge resume {thread}` continues"))
        }
        ([], Some(call)) => {
            let message = format!("the outcome of call `{call}` of `{thread}` is unknown");
            Failure::new(Exit::Decision, "outcome_unknown", message).hint(hints::settle(call, thread))
        }
        (asks, _) => {
            let asked: Vec<String> =
                asks.iter().map(|ask| format!("`{}` ({})", ask.call_id, clean(&ask.tool))).collect();
            let mut message = format!("`{thread}` waits for approval of {}", asked.join(", "));
            for ask in asks.iter().filter(|ask| ask.redefined) {
                message +=
                    &format!("; tool `{}` changed after approval of `{}` was requested", clean(&ask.tool), ask.call_id);
            }
            let [approve, deny] = ["approve", "deny"].map(|word| match asks {
                [one] => hints::about(word, &one.call_id, thread, ""),
                _ => format!("selvedge {word} --all {thread}"),
            });
            Failure::new(Exit::Decision, "needs_decision", message)
                .hint(format!("`{approve}` or `{deny}`; `selvedge inbox` lists all pending decisions"))
        }
    }
}

/// A message from the command line, or from stdin if it is `-`, or missing and stdin is not a terminal.
pub(crate) fn message(context: &Context<'_>, typed: Option<&str>) -> Result<Option<Input>> {
    use std::io::IsTerminal;
    let text = match typed {
        Some("-") => Some(stdin_text(context)?),
        Some(text) => Some(text.to_owned()),
        None if !std::io::stdin().is_terminal() => Some(stdin_text(context)?).filter(|text| !text.is_empty()),
        None => None,
    };
    match text {
        Some(text) if text.trim().is_empty() => Err(Failure::usage("a message can't be empty")),
        text => Ok(text.map(Input::text)),
    }
}

/// The most bytes of a message.
const MESSAGE_BYTES_MAX: u64 = 4 << 20;

fn stdin_text(context: &Context<'_>) -> Result<String> {
    let bytes = context.stdin(MESSAGE_BYTES_MAX + 1)?;
    if bytes.len() as u64 > MESSAGE_BYTES_MAX {
        return Err(Failure::usage("a message can't be longer than 4 MiB"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Failure::usage("the input on stdin is not UTF-8"))?;
    Ok(text.trim_end_matches('\n').to_owned())
}
