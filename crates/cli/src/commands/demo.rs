//! `selvedge demo`: a first impression, and a test. Everything in it is real: processes, signals, files, damage.
//!
//! - `folder`: the folder it runs in. `payday`: the agent that is killed and continues. `agent_steps`: approval, budget and handoff.
//!   `log_steps`: conflicting writers, and tampering with the log of the first agent.

mod agent_steps;
mod folder;
mod log_steps;
mod payday;

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, BOLD, DIM, GOOD, Output, paint};
use folder::DemoFolder;

/// Show what Selvedge does: crash recovery, approvals, budgets, tamper detection
///
/// Runs in a folder of its own, with its own key, and keeps the folder. An agent that pays wages is killed with SIGKILL in the middle
/// of a payment and continues without paying twice; a call waits for approval; a child is stopped by its budget; a long job is handed
/// off from thread to thread; two writers race; a flipped bit is detected. Exits with 1 if any step does not work as promised.
///
/// JSON: one object per step, {"step", "name", "ok", "message", "details":{…}, "folder", "thread_id"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder to create; default: ./selvedge-demo-XXXXXX
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What one step showed.
#[derive(Debug)]
pub(crate) struct StepResult {
    /// What happened, in a few lines.
    message: String,
    /// The same as data.
    details: Value,
}

#[derive(Serialize)]
struct StepReport<'a> {
    step: usize,
    name: &'a str,
    ok: bool,
    message: &'a str,
    details: &'a Value,
    #[serde(serialize_with = "crate::text::in_json")]
    folder: &'a PathBuf,
    thread_id: Option<&'a str>,
}

type Step = fn(&mut DemoFolder) -> Result<StepResult>;

const STEPS: [(&str, &str, Step); 9] = [
    ("kill", "An agent is killed in the middle of a payment", payday::kill),
    ("resume", "Another process resumes it", payday::resume),
    ("approve", "A gift needs approval", agent_steps::approve),
    ("budget", "A child is stopped by its budget", agent_steps::budget),
    ("handoff", "A job does not fit into the model's context window", agent_steps::handoff),
    ("race", "Two writers append to the same version", log_steps::race),
    ("verify", "All signatures are verified", log_steps::verify),
    ("tamper", "One bit of the log is flipped", log_steps::tamper),
    ("restore", "The bit is restored", log_steps::restore),
];

pub(crate) fn run(args: Args, context: &Context<'_>) -> Result<()> {
    let output = context.output;
    let mut demo = DemoFolder::set(args.dir, context)?;
    if !output.is_json() {
        output.text(format_args!("An agent that pays three people, in {}\n", demo.folder.display()))?;
    }
    for (index, (name, title, step)) in STEPS.into_iter().enumerate() {
        let number = index + 1;
        let outcome = step(&mut demo);
        let (message, details) = match &outcome {
            Ok(shown) => (shown.message.as_str(), &shown.details),
            Err(failure) => (failure.message.as_str(), &Value::Null),
        };
        let ok = outcome.is_ok();
        let folder = &demo.folder;
        let thread_id = demo.thread.as_ref().map(|thread| thread.as_str());
        if output.is_json() {
            output.record(&StepReport { step: number, name, ok, message, details, folder, thread_id })?;
        } else {
            show(number, title, ok, message, output)?;
        }
        if let Err(failure) = outcome {
            let message = format!("the demo failed at \"{title}\": {}", failure.message);
            let kept = format!("the folder {} is kept; nothing else was changed", demo.folder.display());
            return Err(Failure::new(Exit::Failed, "demo_failed", message).hint(kept));
        }
    }
    if output.is_json() { Ok(()) } else { output.text(demo.what_next()) }
}

fn show(number: usize, title: &str, ok: bool, message: &str, output: &Output) -> Result<()> {
    let style = if ok { GOOD } else { BAD };
    output.text(format_args!("{} {}", paint(style, format_args!("{number}.")), paint(BOLD, title)))?;
    let lines = message.lines().map(|line| format!("   {line}")).collect::<Vec<_>>().join("\n");
    output.text(if ok { lines } else { paint(DIM, lines) })
}
