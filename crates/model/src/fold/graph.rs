//! The progress of a graph: its current node and step, and the calls of that step.
//!
//! Kept in constant time for each event, so that step 1,000 costs no more than step 10. What is known of a step is dropped when it ends; the
//! log keeps it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::event::{Fields, GraphBirth};
use crate::time::Timestamp;

/// The progress of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphProgress {
    /// The definition that it follows.
    pub definition: Digest,
    /// Whether its beginning is on record.
    pub begun: bool,
    /// When it began.
    pub began_at: Timestamp,
    /// The node of the current step, or else of the next one; none before the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The number of the current or last step, counted over all threads of the chain.
    pub step: u64,
    /// How many steps this thread has completed.
    pub completed: u64,
    /// How many errors were recorded, and did not end the graph.
    pub errors: u64,
    /// The step that has begun and not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<GraphStep>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<GraphEnd>,
}

/// A step that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphStep {
    /// When it began.
    pub began_at: Timestamp,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// When its calls may be opened, if not at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// The items of a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<Value>>,
    /// How many of its calls were opened in this attempt.
    pub opened: u64,
    /// How many of them have an outcome.
    pub closed: u64,
}

/// How a graph ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphEnd {
    /// `completed`, `completed_with_errors`, `error` or `cancelled`.
    pub status: String,
    /// Why, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The node at which it failed or was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl GraphProgress {
    pub(super) fn born(birth: &GraphBirth, at: Timestamp) -> Self {
        let position = birth.position.clone();
        let (steps, errors) = position.as_ref().map_or((0, 0), |position| (position.steps, position.errors));
        Self {
            definition: birth.definition,
            begun: false,
            began_at: at,
            node: position.map(|position| position.node),
            step: steps,
            completed: 0,
            errors,
            current: None,
            ended: None,
        }
    }

    pub(super) fn started(&mut self, fields: &Fields, at: Timestamp) {
        if !self.begun {
            self.began_at = at;
        }
        self.begun = true;
        self.definition = digest(fields, "definition").unwrap_or(self.definition);
        self.node = text(fields, "start_node").or(self.node.take());
    }

    pub(super) fn step_started(&mut self, fields: &Fields, at: Timestamp) {
        let attempt = number(fields, "attempt").and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(1);
        let began_at = self.current.as_ref().map_or(at, |before| before.began_at);
        self.node = text(fields, "node").or(self.node.take());
        self.step = number(fields, "step").unwrap_or(self.step + 1);
        self.current = Some(GraphStep {
            began_at,
            attempt,
            not_before: fields.get("not_before").and_then(|time| serde_json::from_value(time.clone()).ok()),
            items: fields.get("items").and_then(Value::as_array).cloned(),
            opened: 0,
            closed: 0,
        });
    }

    pub(super) fn step_completed(&mut self, fields: &Fields) {
        self.current = None;
        self.completed += 1;
        self.errors = number(fields, "errors").unwrap_or(self.errors);
        self.node = text(fields, "next_node");
    }

    pub(super) fn ended(&mut self, fields: &Fields, default: &str) {
        self.ended = Some(GraphEnd {
            status: text(fields, "status").unwrap_or_else(|| default.to_owned()),
            error: text(fields, "error"),
            output: fields.get("output").cloned(),
            node: text(fields, "node"),
        });
    }

    pub(super) fn call_opened(&mut self) {
        if let Some(current) = &mut self.current {
            current.opened += 1;
        }
    }

    pub(super) fn call_closed(&mut self) {
        if let Some(current) = &mut self.current {
            current.closed += 1;
        }
    }
}

fn text(fields: &Fields, name: &str) -> Option<String> {
    fields.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn number(fields: &Fields, name: &str) -> Option<u64> {
    fields.get(name).and_then(Value::as_u64)
}

fn digest(fields: &Fields, name: &str) -> Option<Digest> {
    fields.get(name)?.as_str()?.parse().ok()
}
