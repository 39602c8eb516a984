//! The result of a command, as the model gets it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use selvedge_model::event::EffectClass;
use selvedge_model::path::Path;
use selvedge_model::{CallId, Output, ToolError};

use super::envelope;
use crate::process::{EndedProcess, ProcessEnd};

/// What is said about a process that outlived the command.
const ESCAPED: &str = "[a process that left the tool's group is still running]";

/// The result of a command, or why there is none.
pub(super) fn of(
    ended: EndedProcess,
    tool: String,
    class: EffectClass,
    call: &CallId,
    may_change: &[Path],
) -> Result<Output, ToolError> {
    let broken = match &ended.end {
        ProcessEnd::Exited(status) => match (status.success(), broken(*status)) {
            (true, _) if may_change.is_empty() => return Ok(Output::text(printed(&ended))),
            (true, _) => {
                let why = |why| failed(&tool, &format!("it ran, but its output changes nothing: {why}"), &ended);
                return Ok(changing(&ended, &tool, call, may_change).unwrap_or_else(why));
            }
            (false, Some(why)) => why,
            (false, None) => return Ok(failed(&tool, &exited(*status), &ended)),
        },
        ProcessEnd::TimedOut => "it exceeded its time limit and was ended".to_owned(),
        ProcessEnd::Stopped => return Err(ToolError::Stopped { tool }),
        ProcessEnd::NeverRan => {
            return Err(ToolError::NotStarted {
                tool,
                why: "its process had ended before the call was dispatched".to_owned(),
            });
        }
        ProcessEnd::Unseen(why) => return Err(ToolError::Lost { tool, why: why.clone() }),
    };
    match class {
        EffectClass::AtMostOnce => Err(ToolError::Lost { tool, why: broken }),
        EffectClass::Pure | EffectClass::Idempotent => Ok(failed(&tool, &broken, &ended)),
    }
}

/// The output object of a tool that may change the state. It is read without the notes, which are no part of it.
fn changing(ended: &EndedProcess, tool: &str, call: &CallId, may_change: &[Path]) -> Result<Output, String> {
    if ended.stdout.dropped > 0 {
        return Err(format!("{} bytes above `output_bytes_max` were dropped", ended.stdout.dropped));
    }
    let mut output = envelope::read(&ended.stdout.text(), tool, call, may_change)?;
    if ended.has_escaped {
        let text = output.content.as_str().map_or_else(|| output.content.to_string(), str::to_owned);
        output.content = format!("{text}\n{ESCAPED}").into();
    }
    Ok(output)
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
fn printed(ended: &EndedProcess) -> String {
    let mut text = ended.stdout.text();
    if ended.stdout.dropped > 0 {
        text.push_str(&format!("\n[{} more bytes were dropped]", ended.stdout.dropped));
    }
    if ended.has_escaped {
        text.push_str(&format!("\n{ESCAPED}"));
    }
    text
}

fn failed(tool: &str, why: &str, ended: &EndedProcess) -> Output {
    let mut text = format!("`{tool}` failed: {why}");
    for (name, said) in [("stderr", ended.stderr.text()), ("stdout", printed(ended))] {
        if !said.trim().is_empty() {
            text.push_str(&format!("\n{name}:\n{}", said.trim_end()));
        }
    }
    Output::error(text)
}

#[cfg(test)]
mod tests {
    use selvedge_model::event::EffectClass;

    use super::*;
    use crate::process::bounded_output::{KeptHead, KeptTail};

    fn ended(printed: &str, bytes_max: usize, has_escaped: bool) -> Output {
        let mut stdout = KeptHead::new(bytes_max);
        stdout.add(printed.as_bytes());
        let end = ProcessEnd::Exited(ExitStatus::default());
        let ended = EndedProcess { end, stdout, stderr: KeptTail::new(0), has_escaped };
        let may_change = [Path::keys(["notes"])];
        of(ended, "note".to_owned(), EffectClass::AtMostOnce, &CallId::new("c1").unwrap(), &may_change).unwrap()
    }

    /// The note went into the printed object, which was refused with its patches.
    #[test]
    fn an_output_object_is_read_without_the_notes() {
        let patches = "\"patches\": [{\"ops\": [{\"op\": \"set\", \"path\": [\"notes\"], \"value\": 1}]}]";
        for (result, text) in [("\"noted\"", "noted"), ("{\"a\":1}", "{\"a\":1}")] {
            let output = ended(&format!("{{\"result\": {result}, {patches}}}\n"), 1000, true);
            assert_eq!((output.patches.len(), output.is_error), (1, false));
            assert_eq!(output.content, format!("{text}\n{ESCAPED}"));
        }
        assert_eq!(ended("{\"result\": {\"a\": 1}}", 1000, false).content, serde_json::json!({"a": 1}));
        // An output that was cut is refused, even if what is left of it is an object.
        let cut = ended("{}   ", 2, false);
        assert!(cut.is_error && cut.content.to_string().contains("3 bytes above"), "{:?}", cut.content);
    }
}
