//! What would differ today in the prompt and in what a new thread is given, as far as it can be known.
//!
//! Prompts are not recorded, but the digests of what they are made of are. Four things can be compared: the first message, because the
//! inputs of the directive are recorded; what agent, directive, knowledge and task brought into the system prompt of the last run, by
//! digest; the tools, because their definitions at the first run are in the signed `capabilities.md`; and what the directive granted at
//! creation: capabilities, acknowledged risks, limits.

use std::collections::BTreeMap;

use selvedge::items::Library;
use selvedge::log::document::{Comment, DocumentKind, verify_text};
use selvedge::model::event::Injected;
use selvedge::model::run::PromptPart;
use selvedge::model::{Digest, DirectiveId, Event, Manifest};
use selvedge::project::{PreparedRun, ProjectError, capabilities, prompt_changes};
use selvedge::replay::Recording;
use selvedge::{Redactor, RunConfig};
use selvedge_store::Backend;
use selvedge_store::verify::Document;
use serde_json::{Value, json};

use super::PromptChange;

pub(super) fn differences(
    store: &dyn Backend,
    library: &Library,
    today: Option<&Result<PreparedRun, ProjectError>>,
    born: &Manifest,
    work: &RunConfig,
    redactor: &Redactor,
    recording: &Recording,
) -> Vec<PromptChange> {
    let mut changes = Vec::new();
    match today {
        Some(Ok(order)) => {
            let recorded = first_message(recording).unwrap_or_default();
            let now = redactor.text(&order.task).unwrap_or_else(|| order.task.clone());
            // A successor begins with the carried-over messages.
            if recorded != now && born.continuation_of.is_none() {
                changes.push(PromptChange {
                    what: "first message".to_owned(),
                    recorded: json!(recorded),
                    now: json!(now),
                });
            }
            changes.extend(granted(born, order));
        }
        Some(Err(error)) => {
            let recorded = json!(born.directive);
            let now = json!({"error": error.to_string()});
            changes.push(PromptChange { what: "directive".to_owned(), recorded, now });
        }
        None => {}
    }
    if let Some(before) = last_prompt(recording) {
        changes.extend(prompt_changes(before, &work.prompt).map(|(what, recorded, now)| PromptChange {
            what,
            recorded: json!(recorded),
            now: json!(now),
        }));
    }
    changes.extend(changed_knowledge(library, recording));
    let page = store.document(&born.thread_id, Document::Capabilities).ok().flatten().unwrap_or_default();
    let kind = DocumentKind::new("capabilities");
    if verify_text(kind, born.thread_id.as_str(), Comment::Html, &page, store.trust()).is_ok() {
        let recorded = tools(&String::from_utf8_lossy(&page));
        let now = tools(&capabilities::page(born, work, redactor));
        changes.extend(changed_tools(recorded, now));
    }
    changes
}

/// What today's directive would grant differently.
fn granted(born: &Manifest, order: &PreparedRun) -> Vec<PromptChange> {
    let mut pairs = vec![
        ("capabilities", json!(born.capabilities), json!(order.thread.capabilities)),
        ("acknowledged", json!(born.acknowledged), json!(order.thread.acknowledged)),
    ];
    // A successor has raised limits, and a child those of its call.
    if born.continuation_of.is_none() && born.parent_id.is_none() {
        pairs.push(("limits", json!(born.limits), json!(order.thread.limits)));
    }
    let changes = |(what, recorded, now): (&str, Value, Value)| PromptChange { what: what.to_owned(), recorded, now };
    pairs.into_iter().filter(|(_, recorded, now)| recorded != now).map(changes).collect()
}

/// The first message of a thread: from its creation, or from the inbox of its first run.
fn first_message(recording: &Recording) -> Option<String> {
    recording.steps.iter().flat_map(|step| &step.events).find_map(|event| match event {
        Event::Message(message) => Some(message.plain_text()),
        _ => None,
    })
}

/// What the items brought into the system prompt of the last run that recorded it.
fn last_prompt(recording: &Recording) -> Option<&[PromptPart]> {
    recording.steps.iter().rev().flat_map(|step| &step.events).find_map(|event| match event {
        Event::RunStarted(run) if !run.meta.prompt.is_empty() => Some(run.meta.prompt.as_slice()),
        _ => None,
    })
}

/// Entries of knowledge that hooks brought into prompts and that are not the same any more.
fn changed_knowledge(library: &Library, recording: &Recording) -> Vec<PromptChange> {
    let events = recording.steps.iter().flat_map(|step| &step.events);
    let brought = events.filter_map(|event| match event {
        Event::ContextInjected(fields) => Injected::of(fields),
        _ => None,
    });
    let of_entries = brought.filter_map(|brought| {
        let id = brought.source.strip_prefix("knowledge ")?.to_owned();
        Some((id, brought.digest))
    });
    let last: BTreeMap<String, Digest> = of_entries.collect();
    let changed = last.into_iter().filter_map(|(id, recorded)| {
        let found = DirectiveId::new(&id).ok().and_then(|id| library.knowledge(&id).ok());
        let now = found.and_then(|found| Some(found.sources.first()?.hash));
        let what = format!("knowledge `{id}`, which a hook brought");
        (now != Some(recorded)).then(|| PromptChange { what, recorded: json!(recorded), now: json!(now) })
    });
    changed.collect()
}

/// The definitions on a page, by name.
fn tools(page: &str) -> BTreeMap<String, Value> {
    let json = page.split_once("```json\n").and_then(|(_, rest)| rest.split_once("\n```")).map(|(json, _)| json);
    let tools: Vec<Value> = json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
    tools.into_iter().filter_map(|tool| Some((tool["name"].as_str()?.to_owned(), tool))).collect()
}

fn changed_tools(recorded: BTreeMap<String, Value>, mut now: BTreeMap<String, Value>) -> Vec<PromptChange> {
    let mut changes = Vec::new();
    for (name, was) in recorded {
        let is = now.remove(&name).unwrap_or_default();
        if was != is {
            changes.push(PromptChange { what: format!("tool `{name}`"), recorded: was, now: is });
        }
    }
    changes.extend(now.into_iter().map(|(name, is)| PromptChange {
        what: format!("tool `{name}`"),
        recorded: Value::Null,
        now: is,
    }));
    changes
}
