//! How a step ends: its result, what it assigns, and where it leads.

use std::collections::HashMap;

use selvedge_items::graph::{Node, NodeKind, OnError, state_path};
use selvedge_items::hook::HookEvent;
use selvedge_model::event::{Decision, ToolOutcome};
use selvedge_model::fold::GraphStep;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::{CallId, Event, Patch};
use serde_json::{Map, Value, json};

use super::step::{Begun, call_id};
use super::values;
use super::{Walk, elapsed, object, set};
use crate::decide::results::state_after;
use crate::graph::PATCH_SOURCE;
use crate::held::Delta;

/// The most bytes of a list's elements in one patch, so that no line is too long.
const PATCH_BYTES_MAX: usize = 512 << 10;
/// How the error of a call begins that may not be made: no retry helps.
const DENIED: &str = "not allowed: ";
/// The key of the state with the last error.
const LAST_ERROR: &str = "_last_error";

/// The result of a step, or why it failed.
type Outcome = Result<Value, String>;

impl Walk<'_> {
    /// Continues the current step after these outcomes; unchanged if it is not theirs, or if hooks decide first.
    pub(super) fn advanced(&self, delta: Delta) -> Delta {
        let Some(current) = &self.progress.current else { return delta };
        let node = self.progress.node.as_deref().and_then(|name| self.graph.definition.node(name));
        let Some(node) = node else { return delta };
        let is_of_step = |event: &Event| match event {
            Event::ToolOutcome(outcome) => self.is_of_step(&outcome.call_id),
            _ => false,
        };
        if !delta.events.iter().any(is_of_step) {
            return delta;
        }
        let has_hooks = self.rules.hooks.at(HookEvent::Error).next().is_some();
        let outcomes = Outcomes::of(&delta);
        let is_whole = current.closed + outcomes.len() as u64 >= calls(current);
        if has_hooks && is_whole && self.failure(node, current, &outcomes).is_some() {
            return delta;
        }
        self.advance(delta)
    }

    fn is_of_step(&self, call: &CallId) -> bool {
        self.fold.call(call).is_some_and(|known| {
            matches!(known.origin, Some(selvedge_model::event::CallOrigin::Node { .. })) && known.number.is_some()
        })
    }

    /// Opens the next calls of the current step, or ends it.
    pub(super) fn advance(&self, mut delta: Delta) -> Delta {
        let Some(current) = &self.progress.current else { return delta };
        let node = self.progress.node.as_deref().and_then(|name| self.graph.definition.node(name));
        let Some(node) = node else { return delta };
        let begun = Begun { node, step: self.progress.step, attempt: current.attempt };
        let closed = current.closed + Outcomes::of(&delta).len() as u64;
        match (&node.kind, &current.items) {
            (NodeKind::Foreach { parallel, .. }, Some(items)) if closed < items.len() as u64 => {
                let opened = usize::try_from(current.opened).unwrap_or(usize::MAX);
                let open = usize::try_from(current.opened.saturating_sub(closed)).unwrap_or(usize::MAX);
                let more = parallel.saturating_sub(open);
                if self.live.stop.is_none() && more > 0 && opened < items.len() {
                    let state = state_after(self.fold, &delta);
                    self.open_items(&mut delta, &state, &begun, items, opened..opened.saturating_add(more));
                }
                delta
            }
            (NodeKind::Foreach { .. }, _) => self.completed(delta, node, current, self.graph.definition.on_error),
            (_, _) if current.opened == 0 && super::has_calls(node) => self.open_attempt(delta, node, current),
            (_, _) if closed < current.opened => delta,
            (_, _) => {
                let failure = self.failure(node, current, &Outcomes::of(&delta));
                match failure {
                    Some(error) if current.attempt < node.retry.attempts && !error.starts_with(DENIED) => {
                        delta.append(self.again(node, current, &error, node.retry.wait_after(current.attempt)));
                        delta
                    }
                    _ => self.completed(delta, node, current, self.graph.definition.on_error),
                }
            }
        }
    }

    /// Why the current step has failed, if all its calls are back and it has; a loop fails only where an error edge says so.
    pub(super) fn error_of(&self, node: &Node, current: &GraphStep) -> Option<String> {
        let is_whole = current.opened > 0 && current.closed >= calls(current);
        if !is_whole { None } else { self.failure(node, current, &Outcomes::default()) }
    }

    fn failure(&self, node: &Node, current: &GraphStep, new: &Outcomes<'_>) -> Option<String> {
        if matches!(node.kind, NodeKind::Foreach { .. }) {
            return None;
        }
        let outcome = self.outcome(current, 0, new)?;
        unwrapped(&outcome).err()
    }

    fn outcome(&self, current: &GraphStep, index: usize, new: &Outcomes<'_>) -> Option<ToolOutcome> {
        let id = call_id(self.progress.step, current.attempt, index);
        new.of.get(&id).map(|outcome| (*outcome).clone()).or_else(|| self.fold.call(&id)?.outcome.clone())
    }

    /// Ends the current step, all of whose calls are back.
    pub(super) fn completed(&self, mut delta: Delta, node: &Node, current: &GraphStep, policy: OnError) -> Delta {
        let begun = Begun { node, step: self.progress.step, attempt: current.attempt };
        let new = Outcomes::of(&delta);
        let outcome = match (&node.kind, &current.items) {
            (NodeKind::Foreach { .. }, Some(items)) => Ok(self.loop_result(current, items.len(), &new)),
            (NodeKind::Approval { .. }, _) => self.approval(current, &new),
            (_, _) if current.opened == 0 => Ok(json!({"waited_until": current.not_before})),
            _ => self.outcome(current, 0, &new).map_or(Ok(Value::Null), |outcome| unwrapped(&outcome)),
        };
        self.end_step(&mut delta, &begun, outcome, self.progress.errors, policy);
        delta
    }

    /// The result of a loop: the result of each item in its place, or its error.
    fn loop_result(&self, current: &GraphStep, items: usize, new: &Outcomes<'_>) -> Value {
        let mut results = Vec::with_capacity(items);
        let mut errors = Vec::new();
        for index in 0..items {
            match self.outcome(current, index, new).map(|outcome| unwrapped(&outcome)) {
                Some(Ok(result)) => results.push(result),
                Some(Err(error)) => {
                    results.push(json!({"error": error, "index": index}));
                    errors.push(json!({"error": error, "index": index}));
                }
                None => results.push(Value::Null),
            }
        }
        json!({"items": items, "failed": errors.len(), "results": results, "errors": errors})
    }

    /// The result of an approval: who decided, and why. A call that was not approved has an error.
    fn approval(&self, current: &GraphStep, new: &Outcomes<'_>) -> Outcome {
        let Some(outcome) = self.outcome(current, 0, new) else { return Ok(Value::Null) };
        let id = call_id(self.progress.step, current.attempt, 0);
        let decisions = self.fold.call(&id).map(|call| call.decisions.as_slice()).unwrap_or_default();
        let decided = decisions.iter().rev().find(|decision| Decision::is_word(decision));
        unwrapped(&outcome).map(|_| {
            json!({
                "approved": true, "by": decided.map(|decision| decision.who.clone()),
                "reason": decided.and_then(|decision| decision.reason.clone()),
            })
        })
    }

    /// Adds the end of a step to a delta: what it assigns, where it leads, and the beginning of the next step if that follows at once.
    pub(super) fn end_step(
        &self,
        delta: &mut Delta,
        begun: &Begun<'_>,
        outcome: Outcome,
        errors: u64,
        policy: OnError,
    ) {
        let Begun { node, step, attempt } = *begun;
        let mut errors = errors;
        let is_loop = matches!(node.kind, NodeKind::Foreach { .. });
        let failed_items = outcome.as_ref().ok().filter(|_| is_loop).and_then(|result| result["failed"].as_u64());
        errors = errors.saturating_add(failed_items.unwrap_or_default());
        let mut failure = outcome.as_ref().err().cloned();
        let result = outcome.unwrap_or(Value::Null);
        let mut next = Next::Nothing;
        if failure.is_none() {
            match self.assigned(delta, node, &result) {
                Ok(to) => next = to,
                Err(why) => failure = Some(why),
            }
        }
        if let (true, Some(to), true) = (failed_items.unwrap_or_default() > 0, &node.on_error, failure.is_none()) {
            next = Next::To(to.clone());
        }
        let mut fatal = None;
        if let Some(why) = &failure {
            errors = errors.saturating_add(1);
            let key = Path::keys([LAST_ERROR]);
            delta.patches.push(set(key, json!({"node": node.name, "step": step, "error": why})));
            let state = state_after(self.fold, delta);
            next = match (&node.on_error, policy) {
                (Some(to), _) => Next::To(to.clone()),
                (None, OnError::Continue) if !matches!(node.kind, NodeKind::Return { .. }) => {
                    let failed = json!({"error": why});
                    self.edge(node, &state, &failed).map_or(Next::Nothing, Next::To)
                }
                _ => Next::Nothing,
            };
            if matches!(next, Next::Nothing) {
                fatal = Some(why.clone());
            }
        }
        if let (Next::Nothing, None) = (&next, &fatal) {
            fatal = Some(format!("no edge of node `{}` has a condition that holds", node.name));
        }
        let single = self.fold.manifest().graph.as_ref().is_some_and(|birth| birth.single);
        let to = match &next {
            Next::To(to) => Some(to.clone()),
            Next::Nothing | Next::Return(_) => None,
        };
        self.record_end(delta, begun, &result, failure.as_deref(), to.as_deref(), errors);
        match (fatal, next, single) {
            (Some(why), ..) => {
                let why = format!("node `{}`: {why}", node.name);
                delta.events.push(self.failed(&why, Some(&node.name), step));
            }
            (None, Next::Return(output), _) => delta.events.push(self.graph_completed(step, errors, output)),
            (None, _, true) => {
                let state = state_after(self.fold, delta).into_owned();
                let output = json!({"result": result, "next_node": to, "state": state});
                delta.events.push(self.graph_completed(step, errors, output));
            }
            (None, Next::To(to), false) => self.chain(delta, &to, step, errors),
            (None, Next::Nothing, false) => {}
        }
        _ = attempt;
    }

    fn record_end(
        &self,
        delta: &mut Delta,
        begun: &Begun<'_>,
        result: &Value,
        failure: Option<&str>,
        to: Option<&str>,
        errors: u64,
    ) {
        let Begun { node, step, attempt } = *begun;
        if let (NodeKind::Foreach { .. }, None) = (&node.kind, failure) {
            let items = result.get("items").cloned().unwrap_or_default();
            let failed = result.get("failed").cloned().unwrap_or_default();
            let fields = json!({"step": step, "node": node.name, "next_node": to, "items": items, "failed": failed});
            delta.events.push(Event::ForeachCompleted(object(fields)));
        }
        let began_at = self.progress.current.as_ref().filter(|_| self.progress.step == step).map(|step| step.began_at);
        let mut fields = json!({
            "step": step, "node": node.name, "node_type": node.type_name(),
            "status": if failure.is_some() { "error" } else { "ok" },
            "elapsed_s": elapsed(began_at.unwrap_or(self.live.now), self.live.now),
            "next_node": to, "errors": errors,
        });
        if let Some(call) = self.graph.calls.get(&node.name) {
            fields["action_id"] = json!(call.item);
        }
        if attempt > 1 {
            fields["attempt"] = json!(attempt);
        }
        if let Some(why) = failure {
            fields["error"] = json!(why);
        }
        if let Some(thread) = result.get("thread_id").filter(|thread| thread.is_string()) {
            fields["thread_id"] = thread.clone();
        }
        delta.events.push(Event::StepCompleted(object(fields)));
    }

    fn graph_completed(&self, steps: u64, errors: u64, output: Value) -> Event {
        let status = if errors == 0 { "completed" } else { "completed_with_errors" };
        let mut fields = json!({
            "status": status, "steps": steps, "errors": errors, "output": output,
            "elapsed_s": elapsed(self.progress.began_at, self.live.now),
        });
        if errors > 0 {
            let noun = if errors == 1 { "error" } else { "errors" };
            fields["error"] = json!(format!("{errors} {noun}"));
        }
        Event::GraphCompleted(object(fields))
    }

    /// Assigns what a node assigns; returns where it leads.
    fn assigned(&self, delta: &mut Delta, node: &Node, result: &Value) -> Result<Next, String> {
        let before = state_after(self.fold, delta);
        let mut patches = Vec::new();
        if let NodeKind::Foreach { collect: Some(key), .. } = &node.kind {
            let results = result.get("results").and_then(Value::as_array).cloned().unwrap_or_default();
            patches.extend(collected(state_path(key)?, results));
        }
        for (key, template) in &node.assign {
            let value = values::fill(self, &before, template, Some(result), None)
                .map_err(|why| format!("`{key}` can't be assigned: {why}"))?;
            patches.push(set(state_path(key)?, value));
        }
        let mut after = before;
        for patch in &patches {
            patch.apply_to(after.to_mut()).map_err(|why| format!("the state can't be assigned: {why}"))?;
        }
        let next = match &node.kind {
            NodeKind::Return { output } => Next::Return(values::fill(self, &after, output, Some(result), None)?),
            _ => self.edge(node, &after, result).map_or(Next::Nothing, Next::To),
        };
        delta.patches.extend(patches);
        Ok(next)
    }

    /// The first edge that is followed.
    fn edge(&self, node: &Node, state: &Value, result: &Value) -> Option<String> {
        let holds = |when| values::holds(self, state, when, result);
        node.next.iter().find(|edge| edge.when.as_ref().is_none_or(holds)).map(|edge| edge.to.clone())
    }
}

/// Where a step leads.
enum Next {
    To(String),
    Return(Value),
    Nothing,
}

/// The outcomes of a delta that belong to calls of nodes.
#[derive(Default)]
struct Outcomes<'d> {
    of: HashMap<CallId, &'d ToolOutcome>,
}

impl<'d> Outcomes<'d> {
    fn of(delta: &'d Delta) -> Self {
        let outcomes = delta.events.iter().filter_map(|event| match event {
            Event::ToolOutcome(outcome) => Some(outcome),
            _ => None,
        });
        let is_of_node =
            |outcome: &&ToolOutcome| outcome.call_id.as_str().starts_with(selvedge_model::fold::NODE_CALL_PREFIX);
        Self { of: outcomes.filter(is_of_node).map(|outcome| (outcome.call_id.clone(), outcome)).collect() }
    }

    fn len(&self) -> usize {
        self.of.len()
    }
}

/// How many calls a step has in all.
fn calls(current: &GraphStep) -> u64 {
    current.items.as_ref().map_or(1, |items| items.len() as u64)
}

/// The result of a call as nodes see it: JSON that a program printed is a value, and what a tool reports as failed is an error.
fn unwrapped(outcome: &ToolOutcome) -> Outcome {
    if let Some(error) = &outcome.error {
        return Err(error_text(error));
    }
    let result = outcome.result.clone().unwrap_or_default();
    let printed = result.as_str().map(str::trim_start).filter(|text| text.starts_with(['{', '[']));
    let value = printed.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or(result);
    let Value::Object(fields) = &value else { return Ok(value) };
    if fields.get("success") == Some(&json!(false)) {
        return Err(fields.get("error").and_then(Value::as_str).unwrap_or("it did not succeed").to_owned());
    }
    Ok(lifted(fields).unwrap_or(value))
}

/// The data in the envelope of an older tool.
fn lifted(fields: &Map<String, Value>) -> Option<Value> {
    let is_envelope = fields.get("success").is_some() || fields.get("status") == Some(&json!("success"));
    fields.get("data").filter(|_| is_envelope).cloned()
}

/// The sentence in the error of a child, which is the JSON of its outcome.
fn error_text(error: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(error) else { return error.to_owned() };
    let said = ["why", "error", "code"].iter().find_map(|name| fields.get(*name)?.as_str());
    match (said, fields.get("thread_id").and_then(Value::as_str)) {
        (Some(said), Some(thread)) => format!("thread `{thread}`: {said}"),
        (Some(said), None) => said.to_owned(),
        (None, Some(thread)) => {
            format!("thread `{thread}` ended as {}", fields.get("status").cloned().unwrap_or_default())
        }
        (None, None) => error.to_owned(),
    }
}

/// A list in the state, in patches none of which is too long for a line.
fn collected(path: Path, results: Vec<Value>) -> Vec<Patch> {
    let bytes = |value: &Value| serde_json::to_string(value).map_or(0, |text| text.len());
    let mut patches = vec![];
    let mut first = Vec::new();
    let mut size = 0;
    let mut rest = results.into_iter().peekable();
    while let Some(next) = rest.next_if(|next| {
        size += bytes(next);
        size <= PATCH_BYTES_MAX
    }) {
        first.push(next);
    }
    patches.push(set(path.clone(), Value::Array(first)));
    let mut ops = Vec::new();
    size = 0;
    for value in rest {
        size += bytes(&value);
        if size > PATCH_BYTES_MAX && !ops.is_empty() {
            patches.push(Patch::new(std::mem::take(&mut ops)).from_source(PATCH_SOURCE));
            size = bytes(&value);
        }
        ops.push(Op::Append { path: path.clone(), value });
    }
    if !ops.is_empty() {
        patches.push(Patch::new(ops).from_source(PATCH_SOURCE));
    }
    patches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_assigned_in_several_patches_and_is_the_same_list() {
        let results: Vec<Value> = (0..3000).map(|n| json!(format!("{n}-{}", "x".repeat(900)))).collect();
        let patches = collected(Path::keys(["a", "b"]), results.clone());
        assert!(patches.len() > 3);
        let mut state = json!({});
        for patch in &patches {
            assert!(serde_json::to_string(patch).unwrap().len() < 2 * PATCH_BYTES_MAX);
            patch.apply_to(&mut state).unwrap();
        }
        assert_eq!(state, json!({"a": {"b": results}}));
    }

    #[test]
    fn what_a_program_prints_as_json_is_a_value_and_a_reported_failure_is_an_error() {
        let outcome = |result: Value| ToolOutcome {
            call_id: CallId::new("node.1.1.0").unwrap(),
            result: Some(result),
            error: None,
            failure: None,
            blob: None,
        };
        assert_eq!(unwrapped(&outcome(json!("{\"n\": 3}\n"))), Ok(json!({"n": 3})));
        assert_eq!(unwrapped(&outcome(json!("{not json"))), Ok(json!("{not json")));
        assert_eq!(unwrapped(&outcome(json!({"success": false, "error": "no"}))), Err("no".to_owned()));
        assert_eq!(unwrapped(&outcome(json!({"success": true, "data": [1]}))), Ok(json!([1])));
        let failed = ToolOutcome {
            result: None,
            error: Some(json!({"thread_id": "t", "why": "lost"}).to_string()),
            ..outcome(json!(null))
        };
        assert_eq!(unwrapped(&failed), Err("thread `t`: lost".to_owned()));
    }
}
