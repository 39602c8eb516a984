//! When a run is stopped because it repeats itself, or because it has done its task.
//!
//! A pure function of the turns since the last user message, as the log has them, so that a decision or a resume without a message does
//! not reset the count. A turn is one answer of the model with its tool calls; it counts when all of them have results. When a thread that
//! was stopped here is resumed, the new run counts only its own turns.

use std::sync::Arc;

use selvedge_items::config::Stops;
use selvedge_model::message::Block;
use selvedge_model::{CallId, Message, Role};
use serde_json::Value;

/// Whether a suspension with this code was caused by a stop policy.
pub(crate) fn is_stop(code: &str) -> bool {
    ["consecutive_errors_exceeded", "loop_detected"].contains(&code)
}

/// One answer of the model with the results of its tool calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TurnCalls<'m> {
    /// The tools and their arguments, in the order of the calls.
    calls: Vec<(&'m str, &'m Value)>,
    /// Whether every call failed.
    has_failed: bool,
}

/// The turns at the end of a conversation, since the last user message; no more than the policies need.
pub(crate) fn turns<'m>(stops: &Stops, messages: &'m [Arc<Message>]) -> Vec<TurnCalls<'m>> {
    let most = usize::try_from(stops.consecutive_errors.max(stops.repeated_calls).max(1)).unwrap_or(usize::MAX);
    let mut turns = Vec::new();
    let mut failed: Vec<(&CallId, bool)> = Vec::new();
    for message in messages.iter().rev().take_while(|message| message.role != Role::User) {
        if turns.len() == most {
            break;
        }
        failed.extend(message.content.iter().filter_map(|block| match block {
            Block::ToolResult { call_id, is_error, .. } => Some((call_id, *is_error)),
            _ => None,
        }));
        if message.role == Role::Assistant {
            turns.extend(turn(message, &std::mem::take(&mut failed)));
        }
    }
    turns.reverse();
    turns
}

/// The turn of an answer, if it has calls and all of them have results.
fn turn<'m>(answer: &'m Message, failed: &[(&CallId, bool)]) -> Option<TurnCalls<'m>> {
    let mut turn = TurnCalls { calls: Vec::new(), has_failed: true };
    for block in &answer.content {
        if let Block::ToolCall { id, name, arguments, .. } = block {
            let (_, has_failed) = failed.iter().find(|(answered, _)| *answered == id)?;
            turn.has_failed &= has_failed;
            turn.calls.push((name, arguments));
        }
    }
    (!turn.calls.is_empty()).then_some(turn)
}

/// A policy that was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyMet {
    pub(crate) code: &'static str,
    pub(crate) detail: String,
    /// Whether it is a problem that a person should look at.
    pub(crate) is_trouble: bool,
}

/// The first policy that these turns meet; `text` is the model's last text.
pub(crate) fn met(stops: &Stops, turns: &[TurnCalls<'_>], text: Option<&str>) -> Option<PolicyMet> {
    let last = turns.last();
    let trouble = |code, detail| PolicyMet { code, detail, is_trouble: true };
    let reached = |code, detail| PolicyMet { code, detail, is_trouble: false };
    if let Some(tool) =
        last.and_then(|turn| turn.calls.iter().find(|(name, _)| stops.stop_on_tools.iter().any(|tool| tool == name)))
    {
        return Some(reached("tool_called", format!("the tool `{}` was called", tool.0)));
    }
    if let Some(found) = text.and_then(|text| stops.content_match.iter().find(|wanted| text.contains(wanted.as_str())))
    {
        return Some(reached("content_matched", format!("the model said `{found}`")));
    }
    let failed = turns.iter().rev().take_while(|turn| turn.has_failed).count() as u64;
    if stops.consecutive_errors > 0 && failed >= stops.consecutive_errors {
        return Some(trouble("consecutive_errors_exceeded", format!("every tool failed, {failed} turns in a row")));
    }
    let same =
        turns.iter().rev().take_while(|turn| Some(*turn).map(|turn| &turn.calls) == last.map(|last| &last.calls));
    let same = same.count() as u64;
    if stops.repeated_calls > 1 && same >= stops.repeated_calls {
        return Some(trouble("loop_detected", format!("the same calls were made {same} times in a row")));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stops() -> Stops {
        Stops {
            consecutive_errors: 2,
            repeated_calls: 3,
            stop_on_tools: vec!["done".to_owned()],
            content_match: vec!["THE END".to_owned()],
        }
    }

    /// Turns, each of one call of this tool with this argument, and whether it failed.
    fn said(turns: &[(&str, u64, bool)]) -> Vec<Arc<Message>> {
        let mut messages = Vec::new();
        for (index, (name, n, is_error)) in turns.iter().enumerate() {
            let id = CallId::new(format!("c.{index}")).unwrap();
            let call = Block::tool_call(id.clone(), (*name).to_owned(), json!({"n": n}));
            let result = Block::ToolResult { call_id: id, content: Value::Null, is_error: *is_error, blob: None };
            messages.push(Arc::new(Message { content: vec![call], ..Message::text(Role::Assistant, "") }));
            messages.push(Arc::new(Message { content: vec![result], ..Message::text(Role::Tool, "") }));
        }
        messages
    }

    fn code_of(messages: &[Arc<Message>]) -> Option<&'static str> {
        met(&stops(), &turns(&stops(), messages), None).map(|met| met.code)
    }

    fn code(turns: &[(&str, u64, bool)]) -> Option<&'static str> {
        code_of(&said(turns))
    }

    #[test]
    fn only_whole_rounds_after_the_last_user_message_count() {
        let same = [("a", 1, false); 3];
        assert_eq!(code(&same), Some("loop_detected"));
        let mut open = said(&same);
        open.pop();
        assert_eq!(code_of(&open), None, "a turn without all results does not count");
        for place in [2, 4, 6] {
            let mut messages = said(&same);
            messages.insert(place, Arc::new(Message::text(Role::User, "go on")));
            assert_eq!(code_of(&messages), None);
        }
    }

    #[test]
    fn the_same_calls_are_the_same_by_name_and_arguments() {
        assert_eq!(code(&[("a", 1, false), ("a", 1, false)]), None);
        assert_eq!(code(&[("a", 1, false), ("a", 1, false), ("a", 1, false)]), Some("loop_detected"));
        assert_eq!(code(&[("a", 1, false), ("a", 2, false), ("a", 3, false)]), None);
        assert_eq!(code(&[("a", 1, false), ("b", 1, false), ("a", 1, false)]), None);
    }

    #[test]
    fn errors_count_only_in_a_row_and_only_when_everything_failed() {
        assert_eq!(code(&[("a", 1, true)]), None);
        assert_eq!(code(&[("a", 1, true), ("a", 2, false), ("a", 3, true)]), None);
        assert_eq!(code(&[("a", 1, true), ("a", 2, true)]), Some("consecutive_errors_exceeded"));
    }

    #[test]
    fn a_named_tool_and_a_named_text_end_a_run_successfully() {
        let ended = met(&stops(), &turns(&stops(), &said(&[("done", 1, false)])), None).unwrap();
        assert_eq!((ended.code, ended.is_trouble), ("tool_called", false));
        let ended = met(&stops(), &turns(&stops(), &said(&[("a", 1, false)])), Some("and so, THE END.")).unwrap();
        assert_eq!((ended.code, ended.is_trouble), ("content_matched", false));
    }

    #[test]
    fn nothing_stops_a_run_when_nothing_is_configured() {
        let never = Stops::default();
        let circles = said(&[("a", 1, true); 50]);
        assert_eq!(met(&never, &turns(&never, &circles), Some("THE END")), None);
    }
}
