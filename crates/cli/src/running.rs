//! What the commands share that run threads: the engine on the project's store, what Ctrl-C means, and showing a run as it happens.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use selvedge::items::{Library, Policy};
use selvedge::model::message::Block;
use selvedge::model::scope::Scopes;
use selvedge::model::{Cancel, Draft, Event, Role, Status, Stop};
use selvedge::store::{Registry, Store};
use selvedge::tools::ProcessGroups;
use selvedge::workshop::{Workshop, capabilities};
use selvedge::{Assignment, Ended, Engine, EngineOptions, Input, Redactor, Told};
use selvedge_engine::redact::Pattern;
use selvedge_model::ThreadId;
use selvedge_model::event::SuspendReason;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore};
use serde_json::{Value, json};

use crate::context::{Context, User};
use crate::error::{Exit, Failure, Result};
use crate::gist::{event_type, gist};
use crate::output::{BAD, BOLD, DIM, GOOD, WARN, paint};
use crate::text::{clean, count, one_line};

/// Words in the name of a variable whose value is a secret.
const SECRET_WORDS: [&str; 7] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "PRIVATE"];
/// How keys of providers begin.
const SECRET_PREFIXES: [&str; 5] = ["sk-", "ghp_", "github_pat_", "xoxb-", "AKIA"];

/// The engine on a project's store.
pub(crate) struct Running {
    pub(crate) store: Arc<LocalStore>,
    pub(crate) engine: Engine,
    pub(crate) workshop: Workshop,
}

impl Running {
    /// Opens the project to run threads in it. Threads that a dead process left running are settled first, and that is said.
    pub(crate) fn open(context: &Context<'_>) -> Result<Self> {
        let workshop = workshop(context)?;
        let trust = User::find()?.trust()?;
        let store = Arc::new(context.open(Access::ReadWrite)?);
        let redactor = Redactor::new(secrets(&workshop.environment), patterns());
        let engine = Engine::new(EngineOptions {
            store: store.clone() as Arc<dyn Store>,
            trust,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            processes: Arc::new(ProcessGroups),
            scopes: Scopes::builtin(),
            redactor,
        });
        for thread in engine.recover().map_err(|error| Failure::of(&error))? {
            context.output.say(format!("thread `{thread}` was left running by a process that is gone; it waits now, and `selvedge resume {thread}` goes on"));
        }
        Ok(Self { store, engine, workshop })
    }

    /// The one thread that a prefix names.
    pub(crate) fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        Ok(self.store.resolve(prefix)?)
    }

    /// What the next run of a thread is done with; if it is the first, what it may call is written down.
    pub(crate) fn assignment(&self, thread: &ThreadId) -> Result<Assignment> {
        let manifest = self.store.get(thread)?.manifest;
        let work = self.workshop.assignment(&manifest)?;
        self.write_capabilities(thread, &work)?;
        Ok(work)
    }

    /// Writes down, signed and once, what a thread may call.
    pub(crate) fn write_capabilities(&self, thread: &ThreadId, work: &Assignment) -> selvedge_store::Result<()> {
        let manifest = self.store.get(thread)?.manifest;
        self.store.write_capabilities(thread, || capabilities::page(&manifest, work)).map(|_| ())
    }

    /// Runs something, shows it as it happens, and ends as the run ended.
    pub(crate) fn show(
        self,
        context: &Context<'_>,
        run: impl FnOnce(&Self, &Cancel, &mut dyn FnMut(Told<'_>)) -> selvedge_engine::Result<Ended>,
    ) -> Result<()> {
        let cancel = stop_when_interrupted();
        let mut screen = Screen { context, is_drafting: false };
        let ended = run(&self, &cancel, &mut |told| screen.show(&told));
        screen.end_draft();
        let ended = ended.map_err(|error| Failure::of(&error));
        self.close(context);
        let ended = ended?;
        tell_end(context, &ended)?;
        outcome(&ended)
    }

    /// Closes the store, so that the transcripts alone hold everything.
    pub(crate) fn close(self, context: &Context<'_>) {
        drop(self.engine);
        if let Ok(store) = Arc::try_unwrap(self.store) {
            context.close(store);
        }
    }
}

/// Where a project's directives, agents and tools are found.
pub(crate) fn workshop(context: &Context<'_>) -> Result<Workshop> {
    let project = context.project()?;
    let user = User::find()?;
    let mut library = Library {
        project: Some(project.join(".ai")),
        user: Some(user.folder.clone()).filter(|folder| folder.is_dir()),
        trust: user.trust()?,
        policy: Policy::default(),
    };
    let settings = Settings::load(&user, &library)?;
    if settings.unsigned == Unsigned::Refuse {
        library.policy = Policy::RequireTrusted;
    }
    Ok(Workshop { library, project, environment: environment(), environment_allowed: settings.environment })
}

/// What the user, and in part the project, say about every run: `config/agent/run.yaml` in the user's folder and in `.ai`. A project can
/// ask for more care than the user, never for less.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Whether unsigned directives, agents and tools may be used.
    #[serde(default)]
    unsigned: Unsigned,
    /// The variables that a directive may put into a prompt; only the user's count.
    #[serde(default)]
    environment: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Unsigned {
    #[default]
    Allow,
    Refuse,
}

impl Settings {
    fn load(user: &User, library: &Library) -> Result<Self> {
        let mut settings = Self::read(&user.folder)?;
        if let Some(project) = &library.project
            && Self::read(project)?.unsigned == Unsigned::Refuse
        {
            settings.unsigned = Unsigned::Refuse;
        }
        Ok(settings)
    }

    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config").join("agent").join("run.yaml");
        match std::fs::read_to_string(&path) {
            Ok(text) => selvedge::items::yaml::parse_yaml(&text, 1).map_err(|flaw| {
                let message = format!("`{}` can't be used: {flaw}", path.display());
                Failure::new(Exit::Usage, "settings_invalid", message)
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Failure::io("read", &path, &error)),
        }
    }
}

fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Values of variables whose names say that they are secrets.
fn secrets(environment: &BTreeMap<String, String>) -> Vec<String> {
    let is_secret = |name: &str| SECRET_WORDS.iter().any(|word| name.to_uppercase().contains(word));
    let found =
        environment.iter().filter(|(name, value)| is_secret(name) && value.len() >= 8 && !Path::new(value).exists());
    // What stands before the `@` of an address is often a password: postgres://user:password@host.
    let passwords = environment.values().filter_map(|value| {
        let (_, rest) = value.split_once("://")?;
        let (_, password) = rest.split_once('@')?.0.split_once(':')?;
        Some(password.to_owned())
    });
    found.map(|(_, value)| value.clone()).chain(passwords).collect()
}

fn patterns() -> Vec<Pattern> {
    SECRET_PREFIXES.iter().map(|prefix| Pattern { prefix: (*prefix).to_owned(), length_min: 16 }).collect()
}

/// The first Ctrl-C asks the run to stop, the second tears down what it is doing, the third ends the process.
fn stop_when_interrupted() -> Cancel {
    let cancel = Cancel::new();
    let heard = cancel.clone();
    crate::INTERRUPTS_END.store(false, Ordering::SeqCst);
    let interrupts = Arc::new(AtomicUsize::new(0));
    if let Ok(mut signals) = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT]) {
        std::thread::spawn(move || {
            for _ in signals.forever() {
                match interrupts.fetch_add(1, Ordering::SeqCst) {
                    0 => heard.say(Stop::Cancelled),
                    1 => heard.say(Stop::Killed),
                    _ => std::process::exit(130),
                }
            }
        });
    }
    cancel
}

/// Shows a run as it happens.
struct Screen<'a> {
    context: &'a Context<'a>,
    is_drafting: bool,
}

impl Screen<'_> {
    fn show(&mut self, told: &Told<'_>) {
        // A reader that is gone does not end a run.
        _ = match self.context.output.is_json() {
            true => self.record(told),
            false => self.text(told),
        };
    }

    fn record(&self, told: &Told<'_>) -> Result<()> {
        let output = &self.context.output;
        match told {
            Told::Committed { thread, version, reason, seq, events } => {
                for (index, event) in events.iter().enumerate() {
                    let mut line = serde_json::to_value(event).unwrap_or_default();
                    let more = json!({"told": "committed", "thread_id": thread, "version": version, "reason": reason.as_str(), "seq": seq + index as u64});
                    if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
                        line.extend(more);
                    }
                    output.record(&line)?;
                }
                Ok(())
            }
            Told::Draft(draft) => {
                let mut line = serde_json::to_value(draft).unwrap_or_default();
                if let Value::Object(line) = &mut line {
                    line.insert("told".to_owned(), json!("draft"));
                }
                output.record(&line)
            }
            Told::Calling { call, tool, arguments } => {
                output.record(&json!({"told": "calling", "call_id": call, "tool": tool, "arguments": arguments}))
            }
            Told::Retrying { why } => output.record(&json!({"told": "retrying", "why": why})),
            Told::StateError { why } => output.record(&json!({"told": "state_error", "why": why})),
        }
    }

    fn text(&mut self, told: &Told<'_>) -> Result<()> {
        match told {
            Told::Draft(Draft::Text { text }) => {
                self.is_drafting = true;
                self.context.output.bytes(clean(text).as_bytes())
            }
            Told::Draft(Draft::Void) if self.is_drafting => {
                self.end_draft();
                self.context
                    .output
                    .say("the answer broke off and is asked for again; what was drafted counts for nothing");
                Ok(())
            }
            Told::Draft(_) => Ok(()),
            Told::Calling { tool, arguments, .. } => {
                self.end_draft();
                self.line(format_args!(
                    "{} {} {}",
                    paint(DIM, "→"),
                    paint(BOLD, clean(tool)),
                    one_line(&arguments.to_string(), 100)
                ))
            }
            Told::Retrying { why } => {
                self.end_draft();
                self.context.output.say(clean(why));
                Ok(())
            }
            Told::StateError { why } => {
                self.end_draft();
                self.context.output.say(format!("not committed: {}", clean(why)));
                Ok(())
            }
            Told::Committed { events, .. } => events.iter().try_for_each(|event| self.event(event)),
        }
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Message(message) if message.role == Role::Assistant => {
                // What was drafted is committed now, word for word.
                let was_drafted = std::mem::replace(&mut self.is_drafting, false);
                let text = message.plain_text();
                match (was_drafted, text.is_empty()) {
                    (true, _) => self.context.output.bytes(b"\n"),
                    (false, true) => Ok(()),
                    (false, false) => self.context.output.text(clean(&text)),
                }
            }
            Event::Message(message) if message.role == Role::Tool => {
                message.content.iter().try_for_each(|block| self.result(block))
            }
            Event::CapabilityDenied(_) | Event::Suspended(_) => {
                self.line(format_args!("{} {}", paint(WARN, event_type(event)), gist(event)))
            }
            _ => Ok(()),
        }
    }

    fn result(&self, block: &Block) -> Result<()> {
        let Block::ToolResult { content, is_error, .. } = block else { return Ok(()) };
        let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        let mark = if *is_error { paint(BAD, "✗") } else { paint(GOOD, "✓") };
        self.line(format_args!("{mark} {}", one_line(&text, 100)))
    }

    fn line(&self, text: std::fmt::Arguments<'_>) -> Result<()> {
        self.context.output.text(text)
    }

    fn end_draft(&mut self) {
        if std::mem::replace(&mut self.is_drafting, false) {
            _ = self.context.output.bytes(b"\n");
        }
    }
}

/// Says how a run ended.
fn tell_end(context: &Context<'_>, ended: &Ended) -> Result<()> {
    if context.output.is_json() {
        return context.output.record(&json!({
            "told": "ended",
            "thread_id": ended.thread,
            "run_id": ended.run,
            "status": ended.status,
            "code": ended.code,
            "detail": ended.detail,
            "text": ended.text,
            "outputs": ended.outputs,
            "suspended": ended.suspended,
            "turns": ended.turns,
            "input_tokens": ended.input_tokens,
            "output_tokens": ended.output_tokens,
        }));
    }
    if let Some(outputs) = &ended.outputs {
        context.output.text(format_args!("{} {outputs}", paint(BOLD, "outputs")))?;
    }
    let tokens = ended.input_tokens + ended.output_tokens;
    let used = format!("{}, {}", count(ended.turns, "turn"), count(tokens, "token"));
    context.output.tell(format!("{} is {}: {used}", ended.thread, ended.status));
    Ok(())
}

/// How a command ends whose run ended so.
fn outcome(ended: &Ended) -> Result<()> {
    let thread = &ended.thread;
    let why = ended.detail.clone().unwrap_or_else(|| ended.code.clone());
    let suspended = ended.suspended.as_ref();
    match (ended.status, suspended.map(|suspended| suspended.reason)) {
        (Status::Error | Status::Killed | Status::CompletedWithErrors, _) => {
            let failure = Failure::new(
                Exit::Failed,
                "run_failed",
                format!("the run of `{thread}` ended as {}: {why}", ended.status),
            );
            Err(failure
                .hint(format!("`selvedge log {thread}` shows what happened; `selvedge send {thread} \"…\"` goes on")))
        }
        (Status::Cancelled, _) => {
            Err(Failure::new(Exit::Interrupted, "run_cancelled", format!("the run of `{thread}` was stopped")))
        }
        (Status::Suspended, Some(SuspendReason::Approval | SuspendReason::OutcomeUnknown)) => {
            let call =
                suspended.and_then(|suspended| suspended.calls.first()).map(ToString::to_string).unwrap_or_default();
            let failure = Failure::new(
                Exit::Decision,
                "needs_decision",
                format!("nobody knows what became of call `{call}` of `{thread}`"),
            );
            Err(failure.hint(format!(
                "find out, then say `selvedge settle {call} --thread {thread} --done | --not-done | --unknown`"
            )))
        }
        (Status::Suspended, Some(SuspendReason::Limit | SuspendReason::Budget)) => {
            let failure = Failure::new(Exit::Limit, "limit_reached", format!("`{thread}` has reached a limit: {why}"));
            Err(failure.hint(format!("`selvedge send {thread} \"…\"` goes on: limits count from the last input")))
        }
        (Status::Suspended, _) => {
            let failure = Failure::new(Exit::Failed, "run_suspended", format!("`{thread}` waits: {why}"));
            Err(failure.hint(format!("`selvedge resume {thread}` goes on")))
        }
        _ => Ok(()),
    }
}

/// A message from the command line, or from stdin when it is `-` or left out and stdin is no terminal.
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
    let text = std::str::from_utf8(bytes).map_err(|_| Failure::usage("what stdin gave is not UTF-8"))?;
    Ok(text.trim_end_matches('\n').to_owned())
}
