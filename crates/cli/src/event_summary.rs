//! One-line summaries of events.

use selvedge_model::account::Record;
use selvedge_model::event::{Ask, Checkpoint, Decision, Fields, Handoff, ManifestChanged, Suspended, ThreadCreated};
use selvedge_model::message::Block;
use selvedge_model::run::RunRecorded;
use selvedge_model::{Event, Message, Patch};
use serde_json::Value;

use crate::output::line_width;
use crate::text::{count, one_line};

/// The name of an event's type, as in the log.
pub(crate) fn event_type(event: &Event) -> String {
    let tagged = serde_json::to_value(event).ok();
    let name = tagged.as_ref().and_then(|value| value.get("event_type")).and_then(Value::as_str);
    name.unwrap_or("event").to_owned()
}

/// The summary of an event, on one line.
pub(crate) fn summary(event: &Event) -> String {
    summary_at_bound(event, "cost unknown")
}

/// The same; `why` is why a call was charged at its bound, if the event says that it was.
pub(crate) fn summary_at_bound(event: &Event, why: &str) -> String {
    let text = match event {
        Event::ThreadCreated(created) => birth(created),
        Event::RunStarted(run) => format!("run {} of {}, from {}", run.run_id, run.meta.agent_id, run.meta.origin),
        Event::RunFinished(run) => run_end(run),
        Event::Message(message) => message_text(message),
        Event::Patch(patch) => ops(patch),
        Event::Snapshot(snapshot) => format!("state replaced: {}", snapshot.state),
        Event::ToolIntent(intent) => format!("dispatching {} for call {}", intent.tool, intent.call_id),
        Event::ToolOutcome(outcome) => match &outcome.error {
            Some(error) => format!("call {} failed: {error}", outcome.call_id),
            None => format!("call {} answered", outcome.call_id),
        },
        Event::Suspended(suspended) => waits(suspended),
        Event::Asked(ask) => asked(ask),
        Event::Decision(decision) => decided(decision),
        Event::ManifestChanged(change) => changed(change),
        Event::ThreadHandoff(handoff) | Event::ThreadResumed(handoff) => goes_on(handoff),
        Event::BlobErased(erased) => format!("blob {} erased: {}", erased.blob.short(), erased.reason),
        Event::Recovery(recovery) => format!("{}: {}", recovery.found, count(recovery.bytes, "byte")),
        Event::KeyRotated(rotated) => format!("key {} replaces {}", rotated.to.short(), rotated.from.short()),
        Event::Checkpoint(checkpoint) => signed(checkpoint),
        other => other.posting().map_or_else(|| fields(other), |(_, record)| posting(record, why)),
    };
    one_line(&text, line_width())
}

fn decided(decision: &Decision) -> String {
    let with = decision.result.as_ref().map(|result| format!(", with {result}")).unwrap_or_default();
    format!("{} decided {} for call {}{with}", decision.who, decision.action.as_str(), decision.call_id)
}

fn posting(record: &Record, why: &str) -> String {
    let unknown = if record.unknown { format!(" ({why}, charged at its bound)") } else { String::new() };
    let amount = record.amount.map(|amount| format!("${amount}{unknown}, ")).unwrap_or_default();
    let left = record.remaining.map_or_else(|| "without limit".to_owned(), |left| format!("${left} left"));
    let child = record.child.as_ref().map(|child| format!(" for {child}")).unwrap_or_default();
    let why = record.evidence.as_ref().map(|evidence| format!(": {evidence}")).unwrap_or_default();
    format!("{amount}{left} on account {}, posting {}{child}{why}", record.account, record.account_version)
}

fn birth(created: &ThreadCreated) -> String {
    let thread = &created.thread;
    let mut text = format!("thread of {}", thread.agent_id);
    for (word, value) in [
        ("directive", thread.directive.as_ref().map(ToString::to_string)),
        ("task", thread.task_id.as_ref().map(ToString::to_string)),
        ("started by", thread.parent_id.as_ref().map(ToString::to_string)),
        ("title", thread.title.clone()),
    ] {
        if let Some(value) = value {
            text = format!("{text}, {word} {value}");
        }
    }
    text
}

fn run_end(run: &RunRecorded) -> String {
    let why = run.meta.termination_code.as_deref().unwrap_or(run.meta.status.as_str());
    match &run.meta.termination_detail {
        Some(detail) => format!("run {}: {why}, {detail}", run.run_id),
        None => format!("run {}: {why}", run.run_id),
    }
}

fn message_text(message: &Message) -> String {
    let role = serde_json::to_value(message.role).ok();
    let role = role.as_ref().and_then(Value::as_str).unwrap_or("message").to_owned();
    let blocks = message.content.iter().map(|block| match block {
        Block::Text { text, .. } => text.clone(),
        Block::Thinking { text, .. } => format!("(thinking) {text}"),
        Block::ToolCall { name, arguments, .. } => format!("(calls {name} {arguments})"),
        Block::ToolResult { content: Value::String(text), .. } => format!("(result) {text}"),
        Block::ToolResult { content, .. } => format!("(result) {content}"),
        Block::Image { media_type, .. } => format!("({media_type})"),
        Block::Opaque { provider, .. } => format!("(data of {provider})"),
    });
    format!("{role}: {}", blocks.collect::<Vec<_>>().join(" "))
}

fn ops(patch: &Patch) -> String {
    let ops = patch.ops.iter().map(|op| format!("{} {}", op.name(), op.path()));
    ops.collect::<Vec<_>>().join(", ")
}

fn waits(suspended: &Suspended) -> String {
    let reason = serde_json::to_value(suspended.reason).ok();
    let reason = reason.as_ref().and_then(Value::as_str).unwrap_or("unknown").to_owned();
    // A code that equals the reason is redundant.
    let code = suspended.code.as_ref().filter(|code| **code != reason).map(|code| format!(" ({code})"));
    let values = suspended.current.as_ref().zip(suspended.maximum.as_ref());
    let values = values.map(|(current, maximum)| format!(", {current} of {maximum}"));
    let calls = suspended.calls.iter().map(|call| format!(", {call}"));
    let more: String = code.into_iter().chain(values).chain(calls).collect();
    one_line(&format!("{reason}{more}"), line_width())
}

fn asked(ask: &Ask) -> String {
    let why = ask.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    one_line(&format!("approval of {} ({}) requested{why}", ask.call_id, ask.tool), line_width())
}

fn changed(change: &ManifestChanged) -> String {
    let mut parts = Vec::new();
    parts.extend(change.title.as_ref().map(|title| format!("title {title}")));
    if change.title.is_none() && change.title_usage.is_some() {
        parts.push("no title for this call".to_owned());
    }
    parts.extend(change.status.map(|status| format!("status {status}")));
    parts.extend(change.session_id.as_ref().map(|session| format!("session {session}")));
    parts.extend(change.outputs.as_ref().map(|outputs| format!("outputs {outputs}")));
    parts.extend(change.limits.as_ref().map(|_| "new limits".to_owned()));
    parts.join(", ")
}

fn goes_on(handoff: &Handoff) -> String {
    format!("continued as {}", handoff.new_thread_id)
}

fn signed(checkpoint: &Checkpoint) -> String {
    let mut text = format!(
        "version {}, {}, signed by {}",
        checkpoint.version,
        checkpoint.reason.as_str(),
        checkpoint.signer.short()
    );
    if let Some(key) = &checkpoint.key {
        text = format!("{text}, key {key}");
    }
    for (thread, version) in &checkpoint.with {
        text = format!("{text}, with {thread} at {version}");
    }
    text
}

/// The fields of the payload, for events without a summary of their own.
fn fields(event: &Event) -> String {
    let Ok(Value::Object(mut tagged)) = serde_json::to_value(event) else { return String::new() };
    let Some(Value::Object(payload)) = tagged.remove("payload") else { return String::new() };
    let shown = |payload: &Fields| {
        let pairs = payload.iter().map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join(" ")
    };
    shown(&payload)
}
