//! `selvedge sandbox check`: what sandboxes enforce on this machine.

use std::path::Path;

use selvedge::model::tool::{SandboxReached, SandboxSpec};
use selvedge::tools::sandbox::Support;
use selvedge::tools::sandbox::trial::{self, Trial};
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, GOOD, paint};
use crate::running::sandbox;
use crate::text::clean;

/// Try what a sandbox stops on this machine
///
/// Starts a process in a sandbox for each thing that it must stop, and shows whether it was stopped. A tool whose `sandbox` has the level
/// `required` runs only where all of it is enforced.
///
/// JSON: {"support", "reached", "attempts"}: what the kernel offers; what that is for a sandbox with the default values, as in the log; and
/// one object per attempt, {"attempt", "stopped", "said"}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct Checked {
    support: Support,
    reached: SandboxReached,
    attempts: Vec<Trial>,
}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let failed = |why: String| Failure::new(Exit::Failed, "io", format!("the sandbox can't be tried: {why}"));
    let sandbox = sandbox().ok_or_else(|| failed("this program does not find its own file".to_owned()))?;
    let attempts = trial::all(&sandbox, Path::new("/tmp")).map_err(failed)?;
    let reached = sandbox.reached(&SandboxSpec::default());
    let checked = Checked { support: sandbox.support().clone(), reached, attempts };
    if context.output.is_json() {
        return context.output.record(&checked);
    }
    for Trial { attempt, stopped, said } in &checked.attempts {
        let verdict = if *stopped { paint(GOOD, "stopped") } else { paint(BAD, "NOT STOPPED") };
        let said = if said.is_empty() { String::new() } else { format!(" ({})", clean(said)) };
        context.output.text(format!("{attempt}: {verdict}{said}"))?;
    }
    let SandboxReached { level, files, network, processes, temporary, missing, .. } = &checked.reached;
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
    context.output.text(format!(
        "level {}: files {}, network {network}, processes {}, temporary folder {}",
        level.as_str(),
        or_none(files),
        or_none(processes),
        or_none(temporary)
    ))?;
    for missing in missing {
        context.output.text(format!("missing: {missing}"))?;
    }
    Ok(())
}
