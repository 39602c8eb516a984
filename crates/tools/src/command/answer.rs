//! The result of a command, as the model gets it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use selvedge_model::event::EffectClass;
use selvedge_model::{Output, ToolError};

use crate::process::{End, Ended};

/// The result of a command, or why there is none.
pub(super) fn of(ended: Ended, tool: String, class: EffectClass) -> Result<Output, ToolError> {
    let broken = match &ended.end {
        End::Exited(status) => match (status.success(), broken(*status)) {
            (true, _) => return Ok(Output::text(printed(&ended))),
            (false, Some(why)) => why,
            (false, None) => return Ok(failed(&tool, &exited(*status), &ended)),
        },
        End::TimedOut => "it exceeded its time limit and was ended".to_owned(),
        End::Stopped => return Err(ToolError::Stopped { tool }),
        End::NeverRan => {
            return Err(ToolError::NotStarted { tool, why: "it was gone before its gate was opened".to_owned() });
        }
        End::Unseen(why) => return Err(ToolError::Lost { tool, why: why.clone() }),
    };
    match class {
        EffectClass::AtMostOnce => Err(ToolError::Lost { tool, why: broken }),
        EffectClass::Pure | EffectClass::Idempotent => Ok(failed(&tool, &broken, &ended)),
    }
}

/// Why a status is not the command's own answer.
fn broken(status: ExitStatus) -> Option<String> {
    status.signal().map(|signal| format!("it was ended by signal {signal}"))
}

fn exited(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("it exited with status {code}"),
        None => "it ended".to_owned(),
    }
}

/// The command's output, with a note about what is missing.
fn printed(ended: &Ended) -> String {
    let mut text = ended.stdout.text();
    if ended.stdout.dropped > 0 {
        text.push_str(&format!("\n[{} more bytes were dropped]", ended.stdout.dropped));
    }
    if ended.has_escaped {
        text.push_str("\n[a process that left the tool's group is still running]");
    }
    text
}

fn failed(tool: &str, why: &str, ended: &Ended) -> Output {
    let mut text = format!("`{tool}` failed: {why}");
    for (name, said) in [("stderr", ended.stderr.text()), ("stdout", printed(ended))] {
        if !said.trim().is_empty() {
            text.push_str(&format!("\n{name}:\n{}", said.trim_end()));
        }
    }
    Output::error(text)
}
