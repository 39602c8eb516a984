//! `selvedge run`: creates a thread from a directive, and runs it.

use std::path::PathBuf;

use selvedge::Input;
use selvedge::project::{PreparedRun, RunOptions};
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, CommitKey, DirectiveId, Message, NewThread, Role, TaskId};
use serde_json::{Map, Value};

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::running::{Recording, Running};

/// Run a directive
///
/// Looks for the directive in the project (.ai/directives), then in your Selvedge home, then among the built-in ones. Creates a
/// thread and runs it; every step is signed and durable before it is shown. Ctrl-C stops the run and keeps the thread; pressed again,
/// it kills running tools.
///
/// Without --model, the model of the directive or the agent is used, or else an offline model that answers from a script. `scripted:FILE` answers
/// from your own script, `recorded:DIR` from calls that --record wrote. `selvedge model list` shows the others.
///
/// JSON: one object per line, each with "type": "committed" with the event, its "thread_id", "version", "seq" and "reason"; "draft"
/// for output that is not committed yet; "calling" when a tool is called; "retrying" when the model is asked again; "dropped" if a
/// request was refused or dropped; "snapshot" if a snapshot could not be saved or used; "state_error" if a step could not be
/// committed; "missed" if the reader was too slow to get all drafts and other uncommitted events; and last "ended" with the outcome.
///
/// An outcome is the same object everywhere: "thread_id" (the end of the chain), "original_thread_id" (the requested thread, if
/// different), "status", "run_id", "code" and "why" (why it ended or is suspended, as a code and as a sentence), "result" (the last
/// text of the model, at most 4,000 characters), "outputs", "cost" (of the whole chain) and "run_cost" (of the run), each {"turns",
/// "input_tokens", "output_tokens", "spend" in dollars, "duration_ms"}, "suspended", "asks", "resumed" (if a thread that had ended
/// was continued in a new one), "holder" (the process that runs it), "directive" and "title". Empty fields are left out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directive, such as `reports/weekly`
    directive: String,
    /// An input of the directive; parsed as JSON if possible, else as text
    #[arg(long = "input", value_name = "NAME=VALUE", value_parser = pair)]
    inputs: Vec<(String, String)>,
    /// The agent that runs it; default: `agent`
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// The model, such as `anthropic:claude-…`, or a tier: fast, general, high or max; default: that of the directive or the agent
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    recording: Recording,
    /// A limit of this run: turns, tokens, spend (dollars), spawns, depth or duration (seconds)
    #[arg(long = "limit", value_name = "LIMIT=VALUE", value_parser = crate::limit::parse)]
    limits: Vec<Limits>,
    /// The task that the thread belongs to; its text, .ai/knowledge/tasks/TASK.md, is part of every prompt
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
    /// Run in a new process and return at once; `selvedge wait` waits for it
    #[arg(long, conflicts_with = "record")]
    detach: bool,
    /// An idempotency key: a second run with the same key creates no new thread and returns the outcome of the first
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Begin with the JSON object in FILE as the thread's state
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// A title for the thread
    #[arg(long, value_name = "TITLE", value_parser = super::thread_rename::check_title)]
    title: Option<String>,
}

/// Splits `name=value`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let directive = DirectiveId::new(&args.directive).map_err(|error| Failure::usage(error.to_string()))?;
    let agent = args.agent.map(AgentId::new).transpose().map_err(|error| Failure::usage(error.to_string()))?;
    let key = args.key.map(|key| CommitKey::new(format!("run:{key}"))).transpose();
    let key = key.map_err(|error| Failure::usage(error.to_string()))?;
    let state = args.state.as_deref().map(|file| crate::input::state(context, file)).transpose()?;
    let running = Running::open(context, &args.recording)?;
    let options = RunOptions {
        inputs: values(args.inputs),
        agent,
        model: args.model,
        task: args.task,
        limits: crate::limit::all(&args.limits),
    };
    let ordered = running.orchestrator.prepare(&directive, options);
    let PreparedRun { mut thread, run_config, task, notices } = match ordered {
        Ok(order) => order,
        Err(error) => {
            running.close(context);
            return Err(error.into());
        }
    };
    let limits = thread.limits.as_ref().unwrap_or(&run_config.limits);
    if let Err(error) = run_config.check_price(limits) {
        running.close(context);
        return Err(Failure::of(&error));
    }
    for notice in &notices {
        context.output.say(notice);
    }
    thread.title = args.title;
    if let Some(key) = &key {
        check_first(&running, key, &directive)?;
    }
    // The task is part of the first commit: a thread that is killed at any moment still has it.
    let input = Input::messages(vec![Message::text(Role::User, task)]).with_state(state);
    if args.detach {
        // Its tools hold the engine, which holds the store that is closed.
        drop(run_config);
        return detached(running, thread, input, key.as_ref(), context);
    }
    running.show(context, run_config, |running, work, cancel, tell| {
        let (thread, is_new) = match &key {
            Some(key) => running.engine.create_once(key, thread, input)?,
            None => (running.engine.create(thread, input)?, true),
        };
        context.output.tell(format!("thread {thread}"));
        if is_new {
            running.engine.resume(&thread, Input::nothing(), work.clone(), cancel, tell)
        } else {
            running.engine.outcome_of(&thread, work.clone(), cancel, tell)
        }
    })
}

/// Refuses a key that was used for another directive or graph.
pub(crate) fn check_first(running: &Running, key: &CommitKey, directive: &DirectiveId) -> Result<()> {
    let Some(first) = running.engine.created_under(key).map_err(|error| Failure::of(&error))? else { return Ok(()) };
    let manifest = running.store.get(&first)?.manifest;
    match manifest.graph.map(|graph| graph.id).or(manifest.directive) {
        Some(other) if other != *directive => {
            Err(Failure::usage(format!("this key was already used to run `{other}`, as thread `{first}`"))
                .hint("use another key"))
        }
        _ => Ok(()),
    }
}

/// Runs the thread in a new process.
pub(crate) fn detached(
    running: Running,
    thread: NewThread,
    input: Input,
    key: Option<&CommitKey>,
    context: &Context<'_>,
) -> Result<()> {
    let started = running.engine.create_detached(thread, input, key, &|thread| running.launch(thread));
    running.close(context);
    let thread = started.map_err(|error| Failure::of(&error))?;
    if context.output.is_json() {
        context.output.record(&serde_json::json!({"thread_id": thread}))?;
    } else {
        context.output.text(&thread)?;
    }
    context.output.tell(format!("`selvedge wait {thread}` waits for it; `selvedge log {thread} --follow` follows it"));
    Ok(())
}

/// Inputs as values: JSON if it is valid JSON, so that `n=3` is a number and `name=anna` a string.
pub(crate) fn values(inputs: Vec<(String, String)>) -> Map<String, Value> {
    let value = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
    inputs.into_iter().map(|(name, text)| (name, value(text))).collect()
}
