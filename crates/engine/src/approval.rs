//! The decision about a call, and the exact action that it is bound to.
//!
//! A decision names the hash of the action: the log, the call, the tool with its definition, and the arguments. The first decision that
//! names the current action counts; later ones, and those that name another action, change nothing. So a decision is void, and the approval
//! is requested again, if the tool was redefined or if the decision was made for another thread.

use std::time::Duration;

use selvedge_log::hash::sha256;
use selvedge_model::event::{Ask, Decision, DecisionAction, ResumeMode};
use selvedge_model::fold::CallState as Known;
use selvedge_model::{Digest, LogId, Output, Timestamp, ToolSpec};
use serde_json::{Value, json};

use crate::conversation::OpenCall;
use crate::run_config::NeededApproval;

/// What the decisions about a call mean for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallDecision {
    /// It is made, with these arguments; the model gets to know who changed them.
    Approved { arguments: Value, changed_by: Option<String> },
    /// It is not made: this is its result.
    Answer(Output),
    /// No decision has been made yet.
    Pending,
}

/// The hash of the action that a decision about this call is bound to.
pub(crate) fn action_hash(log: &LogId, call: &OpenCall, tool: &ToolSpec) -> Digest {
    let action = json!([log, call.id, tool.name, tool.hash, call.arguments]);
    sha256(action.to_string().as_bytes())
}

/// The approval request for a call.
pub(crate) fn ask(asking: &NeededApproval, action_hash: Digest, call: &OpenCall, now: Timestamp) -> Ask {
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

/// Arguments of up to this many bytes are included in the approval request.
const SHOWN_BYTES: usize = 2 << 10;

fn later(now: Timestamp, after: Duration) -> Option<Timestamp> {
    let micros = now.as_micros().checked_add(i64::try_from(after.as_micros()).ok()?)?;
    Some(Timestamp::from_micros(micros))
}

/// The decision about an action, if there is one. A denied call stays denied, even if its tool was redefined.
pub(crate) fn decision_about<'d>(known: Option<&'d Known>, action_hash: &Digest) -> Option<&'d Decision> {
    let is_of_it = |decision: &&Decision| {
        decision.action_hash.as_ref() == Some(action_hash) || decision.action == DecisionAction::Deny
    };
    known?.decisions.iter().filter(|decision| decision.is_word()).find(is_of_it)
}

/// Whether the approval request for an action has expired.
pub(crate) fn is_expired(known: Option<&Known>, action_hash: &Digest, now: Timestamp) -> bool {
    let ask = known.and_then(|known| known.ask.as_ref()).filter(|ask| ask.action_hash == *action_hash);
    ask.is_some_and(|ask| ask.is_over(now))
}

/// What the decisions about an action mean for its call.
pub(crate) fn decision_on(
    call: &OpenCall,
    known: Option<&Known>,
    action_hash: &Digest,
    now: Timestamp,
) -> CallDecision {
    match decision_about(known, action_hash) {
        Some(decision) => meaning(call, decision),
        None if is_expired(known, action_hash, now) => {
            CallDecision::Answer(Output::error("not executed: the approval request for this call expired"))
        }
        None => CallDecision::Pending,
    }
}

/// The arguments of a call that was approved before it was dispatched, and who changed them.
pub(crate) fn allowed_with(call: &OpenCall, known: Option<&Known>) -> (Value, Option<String>) {
    let last = known.and_then(|known| known.decisions.iter().rev().find(|decision| decision.is_word()));
    match last.map(|decision| meaning(call, decision)) {
        Some(CallDecision::Approved { arguments, changed_by }) => (arguments, changed_by),
        _ => (call.arguments.clone(), None),
    }
}

/// What a decision means for its call: by the resume mode recorded with it, not by the current rule.
fn meaning(call: &OpenCall, decision: &Decision) -> CallDecision {
    let by = || Some(decision.who.clone());
    let as_asked = || CallDecision::Approved { arguments: call.arguments.clone(), changed_by: None };
    match (decision.action, decision.resume_mode, &decision.result) {
        // `false` denies the call, even if it comes as an approval.
        (DecisionAction::Deny, ..)
        | (DecisionAction::Approve, ResumeMode::PassDecisionToTool, Some(Value::Bool(false))) => {
            let why = decision.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            CallDecision::Answer(Output::error(format!("denied by {}{why}", decision.who)))
        }
        (DecisionAction::Edit, _, Some(arguments)) => {
            CallDecision::Approved { arguments: arguments.clone(), changed_by: by() }
        }
        (_, ResumeMode::UseDecisionAsToolResult, result) => {
            let content = result.clone().unwrap_or_else(|| json!("approved"));
            CallDecision::Answer(Output { content, ..Output::default() })
        }
        // `true` means the call with its own arguments.
        (_, ResumeMode::PassDecisionToTool, Some(arguments)) if !arguments.is_boolean() => {
            CallDecision::Approved { arguments: arguments.clone(), changed_by: by() }
        }
        _ => as_asked(),
    }
}

/// Whether a call has a decision that does not count, because its tool was redefined after the approval was requested.
pub(crate) fn was_redefined(known: Option<&Known>) -> bool {
    let mut words = known.into_iter().flat_map(|known| &known.decisions).filter(|decision| decision.is_word());
    let first = words.next().and_then(|decision| decision.action_hash);
    words.any(|decision| decision.action_hash != first)
}

/// The result of a call whose tool was redefined after the approval was requested, with a note for the model.
pub(crate) fn with_redefinition(output: Output) -> Output {
    let note = "the tool was redefined after the approval of this call was requested; the approval was requested again, \
                and the call was executed by the current version of the tool";
    with_note(output, note)
}

/// The result of a call whose arguments the approver changed, with a note for the model about what was executed.
pub(crate) fn with_change(output: Output, changed_by: &str, arguments: &Value) -> Output {
    let note = format!(
        "{changed_by} changed the arguments of this call before approving it; it was executed with {arguments}"
    );
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

    fn decision(action: DecisionAction, hash: Digest, result: Option<Value>) -> Decision {
        Decision {
            call_id: CallId::new("c.1").unwrap(),
            action,
            who: "ann".to_owned(),
            action_hash: Some(hash),
            reason: None,
            result,
            resume_mode: ResumeMode::default(),
        }
    }

    fn decide_with(mode: ResumeMode, mut decisions: Vec<Decision>) -> CallDecision {
        for decision in &mut decisions {
            decision.resume_mode = mode;
        }
        let known = Known { decisions, ..Known::default() };
        decision_on(&call(), Some(&known), &HASH, Timestamp::from_micros(0))
    }

    fn approved(arguments: Value, changed_by: Option<&str>) -> CallDecision {
        CallDecision::Approved { arguments, changed_by: changed_by.map(str::to_owned) }
    }

    #[test]
    fn the_first_decision_about_the_exact_action_counts() {
        let yes = decision(DecisionAction::Approve, HASH, None);
        let no = decision(DecisionAction::Deny, HASH, None);
        let mode = ResumeMode::ReplayToolCall;
        assert_eq!(decide_with(mode, vec![]), CallDecision::Pending);
        assert_eq!(decide_with(mode, vec![decision(DecisionAction::Approve, OTHER, None)]), CallDecision::Pending);
        assert_eq!(decide_with(mode, vec![yes.clone(), no.clone()]), approved(json!({"amount": 5}), None));
        assert_eq!(decide_with(mode, vec![no, yes]), CallDecision::Answer(Output::error("denied by ann")));
        assert_eq!(decide_with(mode, vec![decision(DecisionAction::Done, HASH, None)]), CallDecision::Pending);
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
            let known = Known { decisions: vec![decision(DecisionAction::Approve, other, None)], ..Known::default() };
            assert!(decision_about(Some(&known), &asked).is_none(), "a decision about another action does not count");
        }
    }

    #[test]
    fn the_value_of_a_decision_is_used_as_the_mode_says() {
        let yes = |result| vec![decision(DecisionAction::Approve, HASH, Some(result))];
        let asked = approved(json!({"amount": 5}), None);
        assert_eq!(decide_with(ResumeMode::ReplayToolCall, yes(json!({"amount": 1}))), asked);
        assert_eq!(decide_with(ResumeMode::PassDecisionToTool, yes(json!(true))), asked);
        let denied = CallDecision::Answer(Output::error("denied by ann"));
        assert_eq!(decide_with(ResumeMode::PassDecisionToTool, yes(json!(false))), denied);
        assert_eq!(
            decide_with(ResumeMode::PassDecisionToTool, yes(json!({"amount": 1}))),
            approved(json!({"amount": 1}), Some("ann"))
        );
        let answer = CallDecision::Answer(Output { content: json!("blue"), ..Output::default() });
        assert_eq!(decide_with(ResumeMode::UseDecisionAsToolResult, yes(json!("blue"))), answer);
        let edit = vec![decision(DecisionAction::Edit, HASH, Some(json!({"amount": 2})))];
        assert_eq!(decide_with(ResumeMode::ReplayToolCall, edit), approved(json!({"amount": 2}), Some("ann")));
    }

    #[test]
    fn an_approval_request_expires_only_if_a_time_was_set() {
        let now = |micros| Timestamp::from_micros(micros);
        let asking = NeededApproval { expires_after: Some(Duration::from_secs(1)), ..NeededApproval::default() };
        let known = Known { ask: Some(ask(&asking, HASH, &call(), now(0))), ..Known::default() };
        let at = |micros| decision_on(&call(), Some(&known), &HASH, now(micros));
        assert_eq!(at(999_999), CallDecision::Pending);
        assert_eq!(
            at(1_000_000),
            CallDecision::Answer(Output::error("not executed: the approval request for this call expired"))
        );
        let forever = Known { ask: Some(ask(&NeededApproval::default(), HASH, &call(), now(0))), ..Known::default() };
        assert_eq!(decision_on(&call(), Some(&forever), &HASH, now(i64::MAX / 2000)), CallDecision::Pending);
    }
}
