//! What a model would be told otherwise today, as far as that can be known.
//!
//! A log holds no prompts. Three things can be laid side by side honestly: the first message, because the thread says with which
//! inputs its directive was filled in; the tools, because what was offered at the first run stands, signed, in `capabilities.md`; and
//! the ceilings, because today's directive has some. Who the agent is said to be was not recorded.

use std::collections::BTreeMap;

use selvedge::log::document::{Comment, DocumentKind, verify_text};
use selvedge::model::{Event, Manifest};
use selvedge::replay::Recording;
use selvedge::workshop::{DEFAULT_AGENT, Order, Wishes, Workshop, capabilities};
use selvedge::{Assignment, Redactor};
use selvedge_store_local::LocalStore;
use serde_json::{Value, json};

use super::Told;

pub(super) fn differences(
    store: &LocalStore,
    workshop: &Workshop,
    born: &Manifest,
    work: &Assignment,
    redactor: &Redactor,
    recording: &Recording,
) -> Vec<Told> {
    let mut told = Vec::new();
    if let Some(order) = ordered(workshop, born) {
        let recorded = first_message(recording).unwrap_or_default();
        let now = redactor.text(&order.task).unwrap_or(order.task);
        if recorded != now {
            told.push(Told { what: "first message".to_owned(), recorded: json!(recorded), now: json!(now) });
        }
        let (recorded, now) = (json!(born.limits), json!(order.thread.limits));
        if recorded != now {
            told.push(Told { what: "limits".to_owned(), recorded, now });
        }
    }
    let page = std::fs::read(store.thread_folder(&born.thread_id).join("capabilities.md")).unwrap_or_default();
    let kind = DocumentKind::new("capabilities");
    if verify_text(kind, born.thread_id.as_str(), Comment::Html, &page, store.trust()).is_ok() {
        let recorded = tools(&String::from_utf8_lossy(&page));
        let now = tools(&capabilities::page(born, work, redactor));
        told.extend(changed_tools(recorded, now));
    }
    told
}

/// The directive of the thread, ordered today with the inputs it had; nothing if it is gone or can't be.
fn ordered(workshop: &Workshop, born: &Manifest) -> Option<Order> {
    let directive = born.directive.as_ref().filter(|_| born.continuation_of.is_none())?;
    let wishes = Wishes {
        inputs: born.inputs.clone(),
        agent: Some(born.agent_id.clone()).filter(|agent| agent.as_str() != DEFAULT_AGENT),
        // Which model it is says nothing of the words.
        model: Some("scripted".to_owned()),
        task: born.task_id.clone(),
        ..Wishes::default()
    };
    workshop.order(directive, wishes).ok()
}

fn first_message(recording: &Recording) -> Option<String> {
    let birth = recording.steps.first()?;
    birth.events.iter().find_map(|event| match event {
        Event::Message(message) => Some(message.plain_text()),
        _ => None,
    })
}

/// The definitions on a page, by name.
fn tools(page: &str) -> BTreeMap<String, Value> {
    let json = page.split_once("```json\n").and_then(|(_, rest)| rest.split_once("\n```")).map(|(json, _)| json);
    let tools: Vec<Value> = json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
    tools.into_iter().filter_map(|tool| Some((tool["name"].as_str()?.to_owned(), tool))).collect()
}

fn changed_tools(recorded: BTreeMap<String, Value>, mut now: BTreeMap<String, Value>) -> Vec<Told> {
    let mut told = Vec::new();
    for (name, was) in recorded {
        let is = now.remove(&name).unwrap_or_default();
        if was != is {
            told.push(Told { what: format!("tool `{name}`"), recorded: was, now: is });
        }
    }
    told.extend(now.into_iter().map(|(name, is)| Told {
        what: format!("tool `{name}`"),
        recorded: Value::Null,
        now: is,
    }));
    told
}
