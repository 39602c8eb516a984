//! `thread_summary`: a summary of the calling thread, made by a child and written as knowledge.
//!
//! ```text
//! hook at after_complete ─▶ thread_summary ─▶ child `selvedge/agent/threads/thread_summary` ─▶ .ai/knowledge/agent/threads/
//!                                                                                              <directive>/<thread id>-summary.md
//! result: {success, previous_summary_id, knowledge, digest, thread_id}
//! ```
//!
//! - The child is paid for by the thread's account and ends within the hook's time box, like every child of a hook.
//! - The entry is written before the result is recorded, and again, with the same text, if the process dies in between.
//! - The engine passes `previous_summary_id` on to the successor's inputs, where a hook at `thread_continued` finds it.

use std::sync::Arc;

use selvedge_engine::spawn::NewChild;
use selvedge_engine::transcript::read_transcript;
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Function, Risk};
use selvedge_model::{Call, DirectiveId, Manifest, Message, Output, Role, Tool, ToolKind};
use selvedge_tools::built_in;
use serde_json::{Map, Value, json};

use super::{SUMMARY, Shared};
use crate::knowledge::Entry;
use crate::project::RunOptions;

/// The directive of the child; one of the project or the user of this name replaces the built-in one.
const DIRECTIVE: &str = "selvedge/agent/threads/thread_summary";
/// The tier of the child's model; without one, the thread's own model makes the summary.
const TIER: &str = "fast";
/// The most bytes of the transcript that the child gets, at most half of its context window: the beginning and the end.
const TRANSCRIPT_BYTES: usize = 200_000;
/// Which part of these is of the beginning: one of so many.
const BEGINNING_SHARE: usize = 8;

/// The tool. The engine starts its child; it does nothing itself.
pub(super) fn tool() -> Arc<dyn Tool> {
    let schema = json!({
        "type": "object",
        "properties": {
            "thread_id": {"type": "string", "description": "The calling thread."},
            "max_summary_tokens": {"type": "integer", "minimum": 1},
        },
        "additionalProperties": false,
    });
    let what = "Makes a summary of the calling thread, as knowledge for the thread that continues it.";
    let spec = built_in(SUMMARY, what, schema, EffectClass::AtMostOnce, Risk::Write);
    Arc::new(Function::new(spec, |_, _| Ok(Output::error("a child makes the summary"))).of_kind(ToolKind::Child))
}

/// The child that makes the summary.
pub(super) fn prepare(shared: &Shared, call: &Call, parent: &Manifest) -> Result<NewChild, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let asked = call.arguments.get("thread_id").and_then(Value::as_str);
    if let Some(other) = asked.filter(|asked| *asked != call.thread.as_str()) {
        return Err(format!("`thread_id` is `{other}`, but a thread makes a summary of itself only"));
    }
    let transcript = read_transcript(&**shared.store(), shared.engine.trust(), &call.thread, None);
    let transcript = transcript.map_err(|error| text(&error))?.content;
    let inputs = |transcript: &str| {
        let mut inputs = Map::new();
        inputs.insert("transcript_content".to_owned(), json!(transcript));
        inputs.insert("directive_name".to_owned(), json!(owner(parent)));
        let most = call.arguments.get("max_summary_tokens").cloned().filter(|most| !most.is_null());
        inputs.extend(most.map(|most| ("max_summary_tokens".to_owned(), most)));
        inputs
    };
    let project = &shared.project;
    let is_configured = project.models.tier(TIER).is_some() || project.config.models.tier(TIER).is_some();
    let model = parent.model.clone().filter(|_| !is_configured);
    let directive = DirectiveId::new(DIRECTIVE).map_err(|error| text(&error))?;
    let order = |transcript: &str| {
        let options = RunOptions { inputs: inputs(transcript), model: model.clone(), ..RunOptions::default() };
        project.prepare(&directive, options).map_err(|error| text(&error))
    };
    // The transcript of a thread whose context is full does not fit into another one of the same size.
    let work = order("-")?.run_config;
    let window = work.model.context_tokens_max(&work.model_name).unwrap_or(work.continuation.window_tokens);
    let most = usize::try_from(window.saturating_mul(2)).unwrap_or(usize::MAX).min(TRANSCRIPT_BYTES);
    let mut order = order(&shortened(&transcript, most))?;
    if let Some(limits) = &mut order.thread.limits {
        // A share of what the thread has left, instead of the default of a root thread.
        limits.spend = None;
    }
    Ok(NewChild { thread: order.thread, messages: vec![Message::text(Role::User, order.task)], detached: false })
}

/// The beginning and the end of a long transcript.
fn shortened(transcript: &str, most: usize) -> String {
    if transcript.len() <= most {
        return transcript.to_owned();
    }
    let head = &transcript[..transcript.floor_char_boundary(most / BEGINNING_SHARE)];
    let tail = &transcript[transcript.ceil_char_boundary(transcript.len() - (most - head.len()))..];
    format!("{head}\n\n[…]\n\n{tail}")
}

/// The folder of a thread's knowledge: its directive, or its agent if it has none.
fn owner(thread: &Manifest) -> &str {
    thread.directive.as_ref().map_or(thread.agent_id.as_str(), DirectiveId::as_str)
}

/// Writes the summary that the child returned; the result of the call.
pub(super) fn returned(shared: &Shared, call: &Call, output: Output) -> Output {
    if output.is_error {
        return output;
    }
    match written(shared, call, &output.content) {
        Ok(content) => Output { content, ..output },
        Err(why) => Output::error(format!("the summary is not written: {why}")),
    }
}

fn written(shared: &Shared, call: &Call, result: &Value) -> Result<Value, String> {
    let summary = result["outputs"]["summary"].as_str().map(str::trim).filter(|summary| !summary.is_empty());
    let summary = summary.ok_or("the child returned none")?;
    let manifest = shared.engine.manifest(&call.thread).map_err(|error| error.to_string())?;
    let previous = format!("{}/{}-summary", owner(&manifest), call.thread);
    let id = DirectiveId::new(format!("agent/threads/{previous}")).map_err(|error| error.to_string())?;
    let by = result["thread_id"].as_str().unwrap_or_default();
    let entry = Entry {
        title: format!("Summary of {}", call.thread),
        entry_type: "thread_summary".to_owned(),
        written_by: by.to_owned(),
        tags: vec!["thread".to_owned(), "summary".to_owned()],
        more: vec![("thread_id".to_owned(), call.thread.to_string())],
        body: summary.to_owned(),
    };
    let digest = shared.write_knowledge(&id, &entry)?;
    Ok(json!({
        "success": true, "previous_summary_id": previous, "knowledge": id, "digest": digest, "thread_id": by,
    }))
}
