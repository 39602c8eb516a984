//! What conditions and actions of hooks can refer to at an event. Everything in it is on record, so that a replay judges the same.
//!
//! ```text
//! always      event, thread_id, directive, directive_body, agent, model, inputs, limits, max_turns, spend_limit, depth, project_path,
//!             parent_thread_id, previous_thread_id, capabilities_summary, cost {turns, input_tokens, output_tokens, spend, elapsed_seconds}
//! thread_resumed          suspended {reason, code, current, maximum}
//! error                   error {code, message, status}, classification {category, retryable, code}, attempt
//! limit                   limit_code, current_value, current_max, error_context {last_assistant}
//! approval                calls: the approval requests
//! directive_return        outputs
//! context_limit_reached   tokens_used, tokens_limit, usage_ratio
//! after_complete          status, handoff
//! ```

use selvedge_items::hook::HookEvent;
use selvedge_model::event::Suspended;
use selvedge_model::{Classify, ModelError, Role};
use serde_json::{Map, Value, json};

use crate::decide::asking::Turn;
use crate::decide::{Rules, ending};
use crate::fold::Fold;

/// How many bytes of an answer are shown.
const ANSWER_BYTES: usize = 500;

/// The values at an event.
pub(super) fn of(fold: &Fold, rules: &Rules, event: HookEvent, more: Option<Value>) -> Value {
    let manifest = fold.manifest();
    let cost = &manifest.cost;
    let limits = ending::limits(fold, rules);
    let values = json!({
        "event": event.as_str(),
        "thread_id": manifest.thread_id,
        "directive": manifest.directive,
        "agent": manifest.agent_id,
        "model": rules.model_name,
        "inputs": manifest.inputs,
        "max_turns": limits.turns,
        "spend_limit": limits.spend.map(|spend| spend.to_json()),
        "depth": limits.depth,
        "limits": limits,
        "parent_thread_id": manifest.parent_id,
        "previous_thread_id": manifest.continuation_of,
        "capabilities_summary": manifest.capabilities.as_ref().map(|tokens| tokens.join(", ")),
        "cost": {
            "turns": cost.turns,
            "input_tokens": cost.input_tokens,
            "output_tokens": cost.output_tokens,
            "spend": cost.spend.to_json(),
            "elapsed_seconds": cost.duration_ms / 1000,
        },
    });
    let Value::Object(own) = values else { return Value::Null };
    let more = match more {
        Some(Value::Object(more)) => more,
        _ => Map::new(),
    };
    // What follows from the thread counts over what the program says.
    Value::Object(rules.hooks.facts.clone().into_iter().chain(own).chain(more).collect())
}

pub(super) fn resumed(suspended: Option<&Suspended>) -> Value {
    let of = |suspended: &Suspended| {
        let Suspended { reason, code, current, maximum, .. } = suspended;
        json!({"reason": reason, "code": code, "current": current, "maximum": maximum})
    };
    json!({"suspended": suspended.map(of)})
}

pub(super) fn error(turn: &Turn, error: &ModelError, is_retryable: bool) -> Value {
    let category = match error.code() {
        "model_rate_limited" => "rate_limited",
        "model_stopped" => "cancelled",
        _ if is_retryable => "transient",
        _ => "permanent",
    };
    json!({
        "error": {"code": error.code(), "message": error.to_string(), "status": error.status()},
        "classification": {"category": category, "retryable": is_retryable, "code": error.code()},
        "attempt": turn.attempts,
        super::record::FAILURE: error.failure(),
    })
}

/// The beginning of the last answer.
pub(super) fn last_answer(fold: &Fold) -> Option<String> {
    let messages = fold.conversation.messages();
    let last = messages.iter().rev().find(|message| message.role == Role::Assistant && message.marker.is_none())?;
    let text = last.plain_text();
    Some(text[..text.floor_char_boundary(ANSWER_BYTES)].to_owned())
}
