//! What a model would be told, and a new thread be given, otherwise today, as far as that can be known.
//!
//! A log holds no prompts. Three things can be laid side by side honestly: the first message, because the thread says with which
//! inputs its directive was filled in; the tools, because what was offered at the first run stands, signed, in `capabilities.md`; and
//! what was granted at its birth, because today's directive grants something too: capabilities, acknowledged risks, ceilings. Who the
//! agent is said to be was not recorded.

use std::collections::BTreeMap;

use selvedge::log::document::{Comment, DocumentKind, verify_text};
use selvedge::model::{Event, Manifest};
use selvedge::replay::Recording;
use selvedge::workshop::{Order, OrderError, capabilities};
use selvedge::{Assignment, Redactor};
use selvedge_store::Backend;
use selvedge_store::verify::Document;
use serde_json::{Value, json};

use super::Told;

pub(super) fn differences(
    store: &dyn Backend,
    today: Option<&Result<Order, OrderError>>,
    born: &Manifest,
    work: &Assignment,
    redactor: &Redactor,
    recording: &Recording,
) -> Vec<Told> {
    let mut told = Vec::new();
    match today {
        Some(Ok(order)) => {
            let recorded = first_message(recording).unwrap_or_default();
            let now = redactor.text(&order.task).unwrap_or_else(|| order.task.clone());
            // A successor begins with what was handed over to it.
            if recorded != now && born.continuation_of.is_none() {
                told.push(Told { what: "first message".to_owned(), recorded: json!(recorded), now: json!(now) });
            }
            told.extend(granted(born, order));
        }
        Some(Err(error)) => {
            let recorded = json!(born.directive);
            let now = json!({"error": error.to_string()});
            told.push(Told { what: "directive".to_owned(), recorded, now });
        }
        None => {}
    }
    let page = store.document(&born.thread_id, Document::Capabilities).ok().flatten().unwrap_or_default();
    let kind = DocumentKind::new("capabilities");
    if verify_text(kind, born.thread_id.as_str(), Comment::Html, &page, store.trust()).is_ok() {
        let recorded = tools(&String::from_utf8_lossy(&page));
        let now = tools(&capabilities::page(born, work, redactor));
        told.extend(changed_tools(recorded, now));
    }
    told
}

/// What the directive of today would give otherwise than the record has it.
fn granted(born: &Manifest, order: &Order) -> Vec<Told> {
    let mut pairs = vec![
        ("capabilities", json!(born.capabilities), json!(order.thread.capabilities)),
        ("acknowledged", json!(born.acknowledged), json!(order.thread.acknowledged)),
    ];
    // A successor has what was raised meanwhile, and a child what its call asked for.
    if born.continuation_of.is_none() && born.parent_id.is_none() {
        pairs.push(("limits", json!(born.limits), json!(order.thread.limits)));
    }
    let told = |(what, recorded, now): (&str, Value, Value)| Told { what: what.to_owned(), recorded, now };
    pairs.into_iter().filter(|(_, recorded, now)| recorded != now).map(told).collect()
}

/// The first message of a thread: it was born with it, or its first run took it from the inbox.
fn first_message(recording: &Recording) -> Option<String> {
    recording.steps.iter().flat_map(|step| &step.events).find_map(|event| match event {
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
