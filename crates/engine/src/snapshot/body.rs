//! The content of a snapshot, from the fold of a thread; and the fold of a thread, from the content of a snapshot.
//!
//! The fields of the published form come first. What a run needs beyond them is in `thread`, and `messages` are stored once, in prompt
//! order.

use std::sync::Arc;

use selvedge_log::Head;
use selvedge_model::event::{SuspendReason, Suspended};
use selvedge_model::limits::{
    Cost, DEPTH_EXCEEDED, DURATION_EXCEEDED, Limits, SPAWNS_EXCEEDED, SPEND_EXCEEDED, TOKENS_EXCEEDED, TURNS_EXCEEDED,
};
use selvedge_model::{Digest, Message, Role, Thread, ThreadId, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::conversation::Conversation;
use crate::fold::Fold;

/// The assumed length of an answer in characters, if there is none to compare with.
const ANSWER_CHARS: usize = 4_000;

/// The content of a snapshot; `schema` is the one that it will be checked against.
pub(super) fn of(
    fold: &Fold,
    trigger: &str,
    version: &str,
    schema: Option<Digest>,
    hooks: &[Value],
    now: Timestamp,
) -> Value {
    let thread = fold.thread();
    let manifest = &thread.manifest;
    let cost = spent(thread);
    let messages: Vec<Value> = fold.conversation.messages().iter().map(|message| json!(**message)).collect();
    let suspended = manifest.suspended.as_ref();
    json!({
        "thread_id": manifest.thread_id,
        "directive": manifest.directive,
        "agent_id": manifest.agent_id,
        "parent_thread_id": manifest.parent_id,
        "version": version,
        "saved_at": now.whole_seconds(),
        "trigger": trigger,
        "log_version": fold.head.version,
        "log_hash": fold.head.hash,
        "inputs": manifest.inputs,
        "turn_number": cost.turns,
        "cost": {
            "turns": cost.turns,
            "tokens": {"input_tokens": cost.input_tokens, "output_tokens": cost.output_tokens},
            "spend": cost.spend.to_json(),
            "duration_seconds": seconds(cost.duration_ms),
        },
        "limits": limits(manifest.limits.as_ref()),
        "status": manifest.status,
        "suspend_reason": suspended.map(|suspended| suspended.reason),
        "suspend_metadata": suspended.map(metadata),
        "hooks": hooks,
        "required_caps": manifest.capabilities.clone().unwrap_or_default(),
        "messages": messages,
        "partial_cognition": thread.partial.as_ref().map(|text| partial(text, &fold.conversation)),
        "thread": {"fold": thread, "head": fold.head, "schema": schema},
    })
}

/// The content of a full snapshot.
#[derive(Deserialize)]
pub(super) struct Body {
    pub(super) thread_id: ThreadId,
    /// The version of its format.
    pub(super) version: String,
    pub(super) log_version: u64,
    pub(super) log_hash: Digest,
    messages: Vec<Message>,
    thread: Known,
    /// The store's seal for the log up to `log_version`.
    #[serde(default)]
    pub(super) seal: Option<String>,
}

#[derive(Deserialize)]
struct Known {
    fold: Thread,
    head: Head,
    #[serde(default)]
    schema: Option<Digest>,
}

impl Body {
    /// The schema that it was checked against before it was signed.
    pub(super) fn schema(&self) -> Option<Digest> {
        self.thread.schema
    }

    /// The head of the log that it folds.
    pub(super) fn head(&self) -> &Head {
        &self.thread.head
    }

    /// The fold of the thread.
    pub(super) fn into_fold(self) -> Fold {
        let Known { fold: mut thread, head, .. } = self.thread;
        let mut conversation = Conversation::default();
        for message in self.messages {
            thread.recall(&message);
            conversation.push(message);
        }
        Fold::of(thread, conversation, head)
    }
}

/// The usage of its runs, including the active one, which has been running from its first commit to its last.
fn spent(thread: &Thread) -> Cost {
    let mut cost = thread.manifest.cost.clone();
    if let Some(run) = thread.manifest.run_id.as_ref().and_then(|run| thread.runs.get(run)) {
        let ran_micros = run.updated_at.as_micros().saturating_sub(run.created_at.as_micros());
        let duration_ms = u64::try_from(ran_micros / 1000).unwrap_or(0);
        cost.remove(&thread.manifest.run_cost);
        cost.add(&Cost { duration_ms, ..thread.meter.active.clone() });
    }
    cost
}

/// Milliseconds as seconds; exact, because there are far fewer than 2^53 of them.
fn seconds(millis: u64) -> Value {
    match millis % 1000 {
        0 => json!(millis / 1000),
        _ => json!(millis as f64 / 1000.0),
    }
}

/// Every limit, null if there is none.
fn limits(limits: Option<&Limits>) -> Value {
    let set = limits.map(|limits| json!(limits)).unwrap_or_default();
    let names = ["spend", "turns", "tokens", "spawns", "depth", "duration_seconds"];
    let all = names.into_iter().map(|name| (name.to_owned(), set.get(name).cloned().unwrap_or_default()));
    Value::Object(all.collect())
}

fn metadata(suspended: &Suspended) -> Value {
    let mut about = Map::new();
    let mut say = |name: &str, value: Value| {
        if !value.is_null() {
            about.insert(name.to_owned(), value);
        }
    };
    let codes = [TURNS_EXCEEDED, TOKENS_EXCEEDED, SPEND_EXCEEDED, SPAWNS_EXCEEDED, DEPTH_EXCEEDED, DURATION_EXCEEDED];
    let code = suspended.code.as_deref();
    if matches!(suspended.reason, SuspendReason::Limit | SuspendReason::Budget) {
        say("limit_code", json!(code.filter(|code| codes.contains(code))));
    }
    say("code", json!(code));
    say("current_value", suspended.current.clone().filter(Value::is_number).unwrap_or_default());
    say("current_max", suspended.maximum.clone().filter(Value::is_number).unwrap_or_default());
    if !suspended.calls.is_empty() {
        say("calls", json!(suspended.calls));
    }
    Value::Object(about)
}

/// The partial text of a stopped model. How much of its answer that is can't be known: it is compared with the average answer in this thread,
/// and never reported as complete.
fn partial(text: &str, conversation: &Conversation) -> Value {
    let is_answer = |message: &&Arc<Message>| message.role == Role::Assistant && message.marker.is_none();
    let answers = conversation.messages().iter().filter(is_answer);
    let texts = answers.map(|answer| answer.plain_text()).filter(|text| !text.is_empty());
    let lengths: Vec<usize> = texts.map(|text| text.chars().count()).collect();
    let usual = lengths.iter().sum::<usize>().checked_div(lengths.len()).unwrap_or(ANSWER_CHARS).max(1);
    let percent = (text.chars().count().saturating_mul(100) / usual).clamp(1, 99);
    json!({"text": text, "is_partial": true, "completion_percentage": percent})
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_model::message::Marker;

    /// The marker at the end of a run was once distinguished from an answer by its text.
    #[test]
    fn an_answer_that_reads_like_the_end_of_a_run_is_an_answer() {
        let mut conversation = Conversation::default();
        conversation.push(Message::marker(Marker::Failed, "a text of any length, which is no answer"));
        conversation.push(Message::text(Role::Assistant, "(stopped by user)"));
        assert_eq!(partial("(stopped", &conversation)["completion_percentage"], 47, "8 of 17 letters");
    }
}
