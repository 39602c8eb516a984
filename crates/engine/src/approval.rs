//! Somebody's word on a call, and the exact action that it is bound to.
//!
//! A decision names the hash of what was asked: the log, the call, the tool with its definition, and the arguments. The first one
//! that names the action as it stands counts; later ones, and those that name another action, change nothing. So a tool that was
//! redefined, or a decision that was made up for another thread, voids the word and asks again.

use std::time::Duration;

use selvedge_log::hash::sha256;
use selvedge_model::event::{Ask, Decision, ResumeMode};
use selvedge_model::fold::Call as Known;
use selvedge_model::{Digest, LogId, Output, Timestamp, ToolSpec};
use serde_json::{Value, json};

use crate::assignment::Asking;
use crate::conversation::OpenCall;

/// What somebody's word means for a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    /// It is made, with these arguments; whoever changed them is told to the model.
    Given { arguments: Value, changed_by: Option<String> },
    /// It is not made: this is its answer.
    Answer(Output),
    /// Nobody has said anything yet.
    Awaited,
}

/// What a decision about this call is bound to.
pub(crate) fn action_hash(log: &LogId, call: &OpenCall, tool: &ToolSpec) -> Digest {
    let action = json!([log, call.id, tool.name, tool.hash, call.arguments]);
    sha256(action.to_string().as_bytes())
}

/// What is asked about a call.
pub(crate) fn ask(asking: &Asking, action_hash: Digest, call: &OpenCall, now: Timestamp) -> Ask {
    let is_short = call.arguments.to_string().len() <= SHOWN_BYTES;
    Ask {
        call_id: call.id.clone(),
        tool: call.name.clone(),
        arguments: is_short.then(|| call.arguments.clone()),
        action_hash,
        why: asking.why.clone(),
        redefined: false,
        asked_at: Some(now),
        expires_at: asking.expires_after.and_then(|after| later(now, after)),
        resume_mode: asking.mode,
    }
}

/// Arguments up to this many bytes stand in the ask itself.
const SHOWN_BYTES: usize = 2 << 10;

fn later(now: Timestamp, after: Duration) -> Option<Timestamp> {
    let micros = now.as_micros().checked_add(i64::try_from(after.as_micros()).ok()?)?;
    Some(Timestamp::from_micros(micros))
}

/// What was said about an action, if anything. What was refused stays refused, whatever its tool is by now.
pub(crate) fn said<'d>(known: Option<&'d Known>, action_hash: &Digest) -> Option<&'d Decision> {
    let is_of_it =
        |decision: &&Decision| decision.action_hash.as_ref() == Some(action_hash) || decision.action == Decision::DENY;
    known?.decisions.iter().filter(|decision| decision.is_word()).find(is_of_it)
}

/// Whether the time is over in which somebody could have answered what was asked.
pub(crate) fn is_expired(known: Option<&Known>, action_hash: &Digest, now: Timestamp) -> bool {
    let ask = known.and_then(|known| known.ask.as_ref()).filter(|ask| ask.action_hash == *action_hash);
    ask.is_some_and(|ask| ask.is_over(now))
}

/// What somebody's word on an action means for its call.
pub(crate) fn word(call: &OpenCall, known: Option<&Known>, action_hash: &Digest, now: Timestamp) -> Word {
    match said(known, action_hash) {
        Some(decision) => meaning(call, decision),
        None if is_expired(known, action_hash, now) => {
            Word::Answer(Output::error("not made: nobody allowed this call in time"))
        }
        None => Word::Awaited,
    }
}

/// What a call is made with that was allowed before it was dispatched.
pub(crate) fn allowed_with(call: &OpenCall, known: Option<&Known>) -> (Value, Option<String>) {
    let last = known.and_then(|known| known.decisions.iter().rev().find(|decision| decision.is_word()));
    match last.map(|decision| meaning(call, decision)) {
        Some(Word::Given { arguments, changed_by }) => (arguments, changed_by),
        _ => (call.arguments.clone(), None),
    }
}

/// What a decision does with its call: as was said when it was made, whatever a rule says by now.
fn meaning(call: &OpenCall, decision: &Decision) -> Word {
    let by = || Some(decision.who.clone());
    let as_asked = || Word::Given { arguments: call.arguments.clone(), changed_by: None };
    match (decision.action.as_str(), decision.resume_mode, &decision.result) {
        // A plain no is none the less one for being called an approval.
        (Decision::DENY, ..) | (Decision::APPROVE, ResumeMode::PassDecisionToTool, Some(Value::Bool(false))) => {
            let why = decision.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            Word::Answer(Output::error(format!("denied by {}{why}", decision.who)))
        }
        (Decision::EDIT, _, Some(arguments)) => Word::Given { arguments: arguments.clone(), changed_by: by() },
        (_, ResumeMode::UseDecisionAsToolResult, result) => {
            let content = result.clone().unwrap_or_else(|| json!("approved"));
            Word::Answer(Output { content, ..Output::default() })
        }
        // A plain yes means the call as it was asked for.
        (_, ResumeMode::PassDecisionToTool, Some(arguments)) if !arguments.is_boolean() => {
            Word::Given { arguments: arguments.clone(), changed_by: by() }
        }
        _ => as_asked(),
    }
}

/// Whether somebody gave a word on a call that does not count, because its tool was defined anew since it was asked about.
pub(crate) fn was_redefined(known: Option<&Known>) -> bool {
    let mut words = known.into_iter().flat_map(|known| &known.decisions).filter(|decision| decision.is_word());
    let first = words.next().and_then(|decision| decision.action_hash);
    words.any(|decision| decision.action_hash != first)
}

/// An answer of a call whose tool was defined anew after it was asked about: the model is told which one it was.
pub(crate) fn with_redefinition(output: Output) -> Output {
    let note =
        "the tool changed since this call was asked about; somebody was asked again, and the tool of now made it";
    with_note(output, note)
}

/// An answer of a call whose arguments somebody changed: the model is told what was really done.
pub(crate) fn with_change(output: Output, changed_by: &str, arguments: &Value) -> Output {
    let note =
        format!("{changed_by} changed the arguments of this call before allowing it; it was made with {arguments}");
    with_note(output, &note)
}

fn with_note(output: Output, note: &str) -> Output {
    let content = match output.content {
        Value::String(text) => Value::String(format!("[{note}]\n{text}")),
        other => json!({"note": note, "result": other}),
    };
    Output { content, ..output }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_model::CallId;

    const HASH: Digest = Digest([7; 32]);
    const OTHER: Digest = Digest([8; 32]);

    fn call() -> OpenCall {
        OpenCall::new(CallId::new("c.1").unwrap(), "pay", json!({"amount": 5}))
    }

    fn decision(action: &str, hash: Digest, result: Option<Value>) -> Decision {
        Decision {
            call_id: CallId::new("c.1").unwrap(),
            action: action.to_owned(),
            who: "ann".to_owned(),
            action_hash: Some(hash),
            reason: None,
            result,
            resume_mode: ResumeMode::default(),
        }
    }

    fn heard(mode: ResumeMode, mut decisions: Vec<Decision>) -> Word {
        decisions.iter_mut().for_each(|decision| decision.resume_mode = mode);
        let known = Known { decisions, ..Known::default() };
        word(&call(), Some(&known), &HASH, Timestamp::from_micros(0))
    }

    fn given(arguments: Value, changed_by: Option<&str>) -> Word {
        Word::Given { arguments, changed_by: changed_by.map(str::to_owned) }
    }

    #[test]
    fn the_first_word_on_the_very_action_counts() {
        let (yes, no) = (decision("approve", HASH, None), decision("deny", HASH, None));
        let mode = ResumeMode::ReplayToolCall;
        assert_eq!(heard(mode, vec![]), Word::Awaited);
        assert_eq!(heard(mode, vec![decision("approve", OTHER, None)]), Word::Awaited);
        assert_eq!(heard(mode, vec![yes.clone(), no.clone()]), given(json!({"amount": 5}), None));
        assert_eq!(heard(mode, vec![no, yes]), Word::Answer(Output::error("denied by ann")));
        assert_eq!(heard(mode, vec![decision("done", HASH, None)]), Word::Awaited);
    }

    #[test]
    fn another_log_call_tool_or_argument_is_another_action() {
        let spec = ToolSpec {
            name: "pay".to_owned(),
            description: String::new(),
            input_schema: json!({}),
            class: selvedge_model::event::EffectClass::AtMostOnce,
            capability: "tool.pay".to_owned(),
            risk: selvedge_model::tool::Risk::Safe,
            hash: HASH,
        };
        let log = |name: &str| LogId::new(name.repeat(32)).unwrap();
        let of = |id: &str, amount: i64| OpenCall::new(CallId::new(id).unwrap(), "pay", json!({"amount": amount}));
        let redefined = ToolSpec { hash: OTHER, ..spec.clone() };
        let asked = action_hash(&log("a"), &of("c.1", 5), &spec);
        assert_eq!(asked, action_hash(&log("a"), &of("c.1", 5), &spec));
        for other in [
            action_hash(&log("b"), &of("c.1", 5), &spec),
            action_hash(&log("a"), &of("c.2", 5), &spec),
            action_hash(&log("a"), &of("c.1", 6), &spec),
            action_hash(&log("a"), &of("c.1", 5), &redefined),
        ] {
            assert_ne!(other, asked);
            let known = Known { decisions: vec![decision("approve", other, None)], ..Known::default() };
            assert!(said(Some(&known), &asked).is_none(), "a word on another action is none on this");
        }
    }

    #[test]
    fn what_comes_with_a_decision_is_used_as_the_mode_says() {
        let yes = |result| vec![decision("approve", HASH, Some(result))];
        let asked = given(json!({"amount": 5}), None);
        assert_eq!(heard(ResumeMode::ReplayToolCall, yes(json!({"amount": 1}))), asked);
        assert_eq!(heard(ResumeMode::PassDecisionToTool, yes(json!(true))), asked);
        let denied = Word::Answer(Output::error("denied by ann"));
        assert_eq!(heard(ResumeMode::PassDecisionToTool, yes(json!(false))), denied);
        assert_eq!(
            heard(ResumeMode::PassDecisionToTool, yes(json!({"amount": 1}))),
            given(json!({"amount": 1}), Some("ann"))
        );
        let answer = Word::Answer(Output { content: json!("blue"), ..Output::default() });
        assert_eq!(heard(ResumeMode::UseDecisionAsToolResult, yes(json!("blue"))), answer);
        let edit = vec![decision("edit", HASH, Some(json!({"amount": 2})))];
        assert_eq!(heard(ResumeMode::ReplayToolCall, edit), given(json!({"amount": 2}), Some("ann")));
    }

    #[test]
    fn nobody_answers_for_ever_unless_a_time_was_set() {
        let now = |micros| Timestamp::from_micros(micros);
        let asking = Asking { expires_after: Some(Duration::from_secs(1)), ..Asking::default() };
        let known = Known { ask: Some(ask(&asking, HASH, &call(), now(0))), ..Known::default() };
        let at = |micros| word(&call(), Some(&known), &HASH, now(micros));
        assert_eq!(at(999_999), Word::Awaited);
        assert_eq!(at(1_000_000), Word::Answer(Output::error("not made: nobody allowed this call in time")));
        let forever = Known { ask: Some(ask(&Asking::default(), HASH, &call(), now(0))), ..Known::default() };
        assert_eq!(word(&call(), Some(&forever), &HASH, now(i64::MAX / 2000)), Word::Awaited);
    }
}
