//! How a step begins: its node, its items, its calls.

use std::borrow::Cow;

use selvedge_items::graph::{Awaited, Node, NodeKind, OnError};
use selvedge_items::hook::HookEvent;
use selvedge_model::event::{CallOpened, CallOrigin};
use selvedge_model::fold::{GraphStep, NODE_CALL_PREFIX};
use selvedge_model::{CallId, Event, Timestamp};
use serde_json::{Map, Value, json};

use super::values::{self, Item};
use super::{Walk, elapsed, has_calls, object};
use crate::decide::results::state_after;
use crate::graph::APPROVAL;
use crate::held::Delta;

/// The most attempts of a step, however many hooks ask for.
pub(super) const ATTEMPTS_MAX: u32 = 20;
/// The most bytes of a loop's items: they are recorded with the beginning of their step.
const ITEMS_BYTES_MAX: usize = 4 << 20;

/// A step that is to begin.
pub(super) struct Begun<'a> {
    pub(super) node: &'a Node,
    pub(super) step: u64,
    pub(super) attempt: u32,
}

impl Walk<'_> {
    /// Adds the beginning of the next step to a delta; a node without calls also ends in it.
    pub(super) fn next_step(&self, mut delta: Delta) -> Delta {
        let name = self.progress.node.clone().unwrap_or_default();
        self.begin_step(&mut delta, &name, self.progress.step + 1, self.progress.errors);
        delta
    }

    /// The same after a step that ends in this delta, if the next one begins at once.
    pub(super) fn chain(&self, delta: &mut Delta, name: &str, step: u64, errors: u64) {
        let definition = &self.graph.definition;
        let is_due = step < definition.max_steps
            && self.progress.completed + 1 < definition.segment_steps
            && self.live.stop.is_none()
            && self.rules.hooks.at(HookEvent::AfterStep).next().is_none();
        // A step without calls has a commit of its own.
        if is_due && definition.node(name).is_some_and(has_calls) {
            self.begin_step(delta, name, step + 1, errors);
        }
    }

    fn begin_step(&self, delta: &mut Delta, name: &str, step: u64, errors: u64) {
        let Some(node) = self.graph.definition.node(name) else {
            delta.events.push(self.failed(&format!("there is no node `{name}`"), Some(name), step));
            return;
        };
        Walk { at: Some((step, node.name.as_str())), ..*self }.begin_node(delta, node, step, errors);
    }

    fn begin_node(&self, delta: &mut Delta, node: &Node, step: u64, errors: u64) {
        let begun = Begun { node, step, attempt: 1 };
        let state = state_after(self.fold, delta);
        let mut fields = json!({"step": step, "node": node.name, "node_type": node.type_name()});
        if let Some(call) = self.graph.calls.get(&node.name) {
            fields["action_id"] = json!(call.item);
        }
        let prepared = match &node.kind {
            NodeKind::Foreach { over, .. } => self.items(&state, over).map(|items| {
                fields["items"] = json!(items);
            }),
            NodeKind::Wait(Awaited::Until(time)) => self.time(&state, time).map(|time| {
                fields["not_before"] = json!(time);
            }),
            NodeKind::Wait(Awaited::Seconds(seconds)) => self.seconds(&state, seconds).map(|time| {
                fields["not_before"] = json!(time);
            }),
            _ => Ok(()),
        };
        let items: Vec<Value> = fields.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_waiting = fields.get("not_before").is_some();
        delta.events.push(Event::StepStarted(object(fields)));
        if let Err(why) = prepared {
            return self.end_step(delta, &begun, Err(why), errors, OnError::Fail);
        }
        match &node.kind {
            _ if is_waiting => {}
            NodeKind::Foreach { parallel, .. } if !items.is_empty() => {
                self.open_items(delta, &state, &begun, &items, 0..*parallel);
            }
            _ if has_calls(node) && !matches!(node.kind, NodeKind::Foreach { .. }) => {
                match self.arguments(&state, node, None) {
                    Ok((tool, arguments)) => delta.events.push(self.opened(&begun, 0, tool, arguments)),
                    Err(why) => self.end_step(delta, &begun, Err(why), errors, OnError::Fail),
                }
            }
            _ => self.end_step(delta, &begun, Ok(Value::Null), errors, OnError::Fail),
        }
    }

    /// The next attempt of a step, after this wait in seconds.
    pub(super) fn again(&self, node: &Node, current: &GraphStep, error: &str, wait_seconds: u64) -> Delta {
        let attempt = current.attempt + 1;
        let mut fields = json!({
            "step": self.progress.step, "node": node.name, "node_type": node.type_name(), "attempt": attempt,
            "error": error, "elapsed_s": elapsed(current.began_at, self.live.now),
        });
        if let Some(call) = self.graph.calls.get(&node.name) {
            fields["action_id"] = json!(call.item);
        }
        let mut delta = Delta::default();
        let micros = i64::try_from(wait_seconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        let time = Timestamp::from_micros(self.live.now.as_micros().saturating_add(micros));
        fields["not_before"] = json!(time);
        delta.events.push(Event::StepStarted(object(fields)));
        delta
    }

    /// Opens the call of an attempt whose wait is over.
    pub(super) fn open_attempt(&self, mut delta: Delta, node: &Node, current: &GraphStep) -> Delta {
        let begun = Begun { node, step: self.progress.step, attempt: current.attempt };
        match self.arguments(self.fold.state(), node, None) {
            Ok((tool, arguments)) => delta.events.push(self.opened(&begun, 0, tool, arguments)),
            Err(why) => self.end_step(&mut delta, &begun, Err(why), self.progress.errors, OnError::Fail),
        }
        delta
    }

    /// Opens the calls of these items of a loop, as far as there are so many.
    pub(super) fn open_items(
        &self,
        delta: &mut Delta,
        state: &Value,
        begun: &Begun<'_>,
        items: &[Value],
        range: std::ops::Range<usize>,
    ) {
        let NodeKind::Foreach { item: name, .. } = &begun.node.kind else { return };
        for (index, value) in items.iter().enumerate().take(range.end).skip(range.start) {
            let item = Item { name, index, value };
            // An item whose arguments can't be filled in has an error of its own.
            let (tool, arguments) = self.arguments(state, begun.node, Some(item)).unwrap_or_else(|why| {
                let unusable = crate::graph::NodeCall::unusable("", why);
                (unusable.tool, unusable.arguments)
            });
            delta.events.push(self.opened(begun, index, tool, arguments));
        }
    }

    fn opened(&self, begun: &Begun<'_>, index: usize, tool: String, arguments: Value) -> Event {
        let origin = CallOrigin::Node { graph: self.graph.id.clone(), node: begun.node.name.clone() };
        let call_id = call_id(begun.step, begun.attempt, index);
        Event::CallOpened(CallOpened { call_id, origin, tool, arguments })
    }

    /// The tool of a node and its arguments.
    fn arguments(&self, state: &Value, node: &Node, item: Option<Item<'_>>) -> Result<(String, Value), String> {
        let fill = |template: &Value| values::fill(self, state, template, None, item);
        match &node.kind {
            NodeKind::Approval { message, expires_after_seconds } => {
                let message = fill(&json!(message))?;
                let mut arguments = json!({"node": node.name, "message": message});
                if let Some(seconds) = expires_after_seconds {
                    arguments["expires_after_seconds"] = json!(seconds);
                }
                Ok((APPROVAL.to_owned(), arguments))
            }
            NodeKind::Wait(Awaited::Threads { ids, timeout }) => {
                let ids = match fill(ids)? {
                    Value::Array(ids) => ids,
                    one => vec![one],
                };
                let mut arguments = json!({"thread_ids": ids});
                if let Some(timeout) = timeout {
                    arguments["timeout"] = fill(timeout)?;
                }
                Ok(("wait_threads".to_owned(), arguments))
            }
            _ => {
                let call = self.graph.calls.get(&node.name).ok_or("it calls nothing")?;
                let arguments = match fill(&call.arguments)? {
                    Value::Object(fields) => Value::Object(without_nulls(fields)),
                    other => other,
                };
                Ok((call.tool.clone(), arguments))
            }
        }
    }

    /// The items of a loop.
    fn items(&self, state: &Value, over: &Value) -> Result<Vec<Value>, String> {
        let items = match values::fill(self, state, over, None, None)? {
            Value::Array(items) => items,
            Value::Null => Vec::new(),
            other => return Err(format!("`over` is not a list, but {}", kind(&other))),
        };
        let bytes = serde_json::to_string(&items).map_or(usize::MAX, |text| text.len());
        if bytes > ITEMS_BYTES_MAX {
            return Err(format!("the items of a loop can have at most 4 MiB, and these have {bytes} bytes"));
        }
        Ok(items)
    }

    /// The time that a node waits for.
    fn time(&self, state: &Value, template: &Value) -> Result<Timestamp, String> {
        match values::fill(self, state, template, None, None)? {
            Value::String(text) => text.parse().map_err(|error| format!("`until`: {error}")),
            Value::Number(millis) => {
                let millis = millis.as_i64().ok_or("`until` is not a time in milliseconds")?;
                Ok(Timestamp::from_micros(millis.saturating_mul(1000)))
            }
            other => Err(format!("`until` is not a time, but {}", kind(&other))),
        }
    }

    fn seconds(&self, state: &Value, template: &Value) -> Result<Timestamp, String> {
        let seconds = values::fill(self, state, template, None, None)?;
        let seconds = seconds.as_f64().or_else(|| seconds.as_str()?.parse().ok());
        let seconds = seconds.filter(|seconds| *seconds >= 0.0).ok_or("`seconds` is not a number of seconds")?;
        let micros = (seconds * 1_000_000.0) as i64;
        Ok(Timestamp::from_micros(self.live.now.as_micros().saturating_add(micros)))
    }
}

/// The id of a call: letters, digits and dots make a valid one.
pub(super) fn call_id(step: u64, attempt: u32, index: usize) -> CallId {
    CallId::new(format!("{NODE_CALL_PREFIX}{step}.{attempt}.{index}")).unwrap_or_else(|error| unreachable!("{error}"))
}

fn without_nulls(fields: Map<String, Value>) -> Map<String, Value> {
    fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

fn kind(value: &Value) -> Cow<'static, str> {
    Cow::Borrowed(match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    })
}
