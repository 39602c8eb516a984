//! What comes of the result of a hook's call: context for the prompt, a decision, or nothing but its outcome.

use selvedge_items::hook::{Control, HookEvent, Position};
use selvedge_log::hash::sha256;
use selvedge_model::Event;
use selvedge_model::event::{Injected, InjectedPlace};
use serde_json::{Value, json};

use super::record;
use crate::conversation::OpenCall;
use crate::decide::Rules;
use crate::decide::results::{CallResult, as_text};
use crate::fold::Fold;
use crate::held::Delta;
use crate::hooks::{Hook, Knowledge};

/// Adds what comes of a result to a delta, and returns what its outcome records: the text of context is recorded once, where it is injected.
pub(in crate::decide) fn came(
    delta: &mut Delta,
    fold: &Fold,
    rules: &Rules,
    open: &OpenCall,
    back: CallResult,
) -> CallResult {
    let Some((order, hook, action)) = rules.hooks.of_call(open).filter(|_| !back.output.is_error) else { return back };
    let call = &hook.calls[action];
    let event = hook.placed.hook.event;
    if call.is_knowledge {
        return match serde_json::from_value::<Knowledge>(back.output.content.clone()) {
            Ok(Knowledge { digest: None, text, .. }) => {
                delta.events.push(record::result(hook, &open.id, "skipped", json!(text)));
                back
            }
            Ok(found) => inject(delta, fold, (order, hook), open, back, found),
            Err(_) => back,
        };
    }
    match Control::of(&back.output.content) {
        Some(Ok(control)) => {
            delta.events.push(record::result(hook, &open.id, "decision", control.to_json()));
            back
        }
        Some(Err(why)) => {
            delta.events.push(record::result(hook, &open.id, "skipped", json!(why)));
            back
        }
        None if event.takes_context() && says_something(&back.output.content) => {
            let text = as_text(&back.output.content);
            let found = Knowledge { id: call.source.clone(), digest: Some(sha256(text.as_bytes())), text };
            inject(delta, fold, (order, hook), open, back, found)
        }
        None => back,
    }
}

/// Whether a result is more than the word that it succeeded.
fn says_something(content: &Value) -> bool {
    match content {
        Value::Null => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Object(fields) => fields.keys().any(|key| key != "success"),
        _ => true,
    }
}

fn inject(
    delta: &mut Delta,
    fold: &Fold,
    (order, hook): (usize, &Hook),
    open: &OpenCall,
    mut back: CallResult,
    found: Knowledge,
) -> CallResult {
    let placed = &hook.placed.hook;
    let is_of_system = placed.event == HookEvent::BuildSystemPrompt;
    let is_knowledge = hook.calls.iter().any(|call| call.is_knowledge && call.tool == open.name);
    let digest = found.digest.unwrap_or_else(|| sha256(found.text.as_bytes()));
    let injected = Injected {
        call_id: open.id.clone(),
        hook: placed.id.clone(),
        event: placed.event.as_str().to_owned(),
        source: if is_knowledge { format!("knowledge {}", found.id) } else { found.id.clone() },
        digest,
        position: match placed.position {
            _ if is_of_system => InjectedPlace::System,
            Position::Before => InjectedPlace::Before,
            Position::After => InjectedPlace::After,
        },
        message: if is_of_system { 0 } else { fold.conversation.users() },
        order: order as u64,
        text: if !placed.wrap {
            found.text
        } else if is_knowledge {
            wrapped("knowledge", &format!("id=\"{}\"", attribute(&found.id)), &found.text)
        } else {
            let attributes = format!("hook=\"{}\" source=\"{}\"", attribute(&placed.id), attribute(&found.id));
            wrapped("context", &attributes, &found.text)
        },
    };
    back.output.content = json!({"injected": digest, "bytes": injected.text.len()});
    delta.events.push(Event::ContextInjected(injected.to_fields()));
    back
}

/// A text inside of an element that it can't end: what it says stays inside.
fn wrapped(name: &str, attributes: &str, text: &str) -> String {
    let text = text.replace(&format!("</{name}"), &format!("<\\/{name}"));
    format!("<{name} {attributes}>\n{text}\n</{name}>")
}

fn attribute(text: &str) -> String {
    text.replace(['"', '<', '>', '\n'], "_")
}

/// The result of a hook's call, from what was recorded of it: [`came`] makes the same record of it again.
pub(crate) fn original(injected: &Injected) -> Value {
    let Injected { source, digest, text, .. } = injected;
    let inner = |name: &str| {
        let (first, rest) = text.split_once('\n')?;
        let inner = rest.strip_suffix(&format!("\n</{name}>"))?;
        first.starts_with(&format!("<{name} ")).then(|| inner.to_owned())
    };
    match source.strip_prefix("knowledge ") {
        Some(id) => {
            let text = inner("knowledge").unwrap_or_else(|| text.clone());
            json!(Knowledge { id: id.to_owned(), digest: Some(*digest), text })
        }
        None => Value::String(inner("context").unwrap_or_else(|| text.clone())),
    }
}
