//! What the logs of a graph's run say: each node's last step, and the history.

use std::collections::BTreeMap;

use selvedge_log::Trust;
use selvedge_model::event::Fields;
use selvedge_model::{Event, Status, ThreadId, Timestamp};
use selvedge_store::load::load;
use selvedge_store::{Result, Store};
use serde::Serialize;
use serde_json::Value;

/// The most steps of the history that are kept.
const HISTORY_MAX: usize = 200;

/// The run of a graph over all threads of its chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphRun {
    /// The graph.
    pub graph_id: String,
    /// The first thread of its chain.
    pub run_id: ThreadId,
    /// The last thread of its chain.
    pub thread_id: ThreadId,
    /// The thread that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<ThreadId>,
    /// The status of the last thread.
    pub status: Status,
    /// How the graph ended, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Why it failed or is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The current or next node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The number of the current or last step.
    pub step: u64,
    /// How many errors were recorded.
    pub errors: u64,
    /// The state.
    pub state: Value,
    /// Each node's record, by its name.
    pub nodes: BTreeMap<String, NodeRecord>,
    /// The last steps.
    pub history: Vec<StepRecord>,
    /// How many steps before those are not shown.
    pub earlier: u64,
    /// When it began.
    pub began_at: Timestamp,
    /// When its last changeset was committed.
    pub updated_at: Timestamp,
}

/// The status of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// It was not reached.
    #[default]
    Pending,
    /// Its step has begun.
    Running,
    /// Its last step is complete.
    Completed,
    /// Its last step failed.
    Error,
}

impl NodeStatus {
    /// Its sign.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Pending => "⏳",
            Self::Running => "🔄",
            Self::Completed => "✅",
            Self::Error => "❌",
        }
    }
}

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeRecord {
    /// Its status.
    pub status: NodeStatus,
    /// How often it was run.
    pub times: u64,
    /// The seconds of its last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Its last error, or how many items of its loop failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    /// Its number.
    pub step: u64,
    /// The node.
    pub node: String,
    /// Its status.
    pub status: NodeStatus,
    /// When it began, or, if it began and ended at once, when that was.
    pub at: Timestamp,
    /// Its seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What it called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Its error, its attempts, its items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// The next node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl GraphRun {
    /// Reads a run from the logs of its chain; none if the thread is not a graph's. Every hash and the last signature are checked.
    pub fn read(store: &dyn Store, trust: &Trust, thread: &ThreadId) -> Result<Option<Self>> {
        let mut chain: Vec<_> = store.chain(thread)?.into_iter().map(|link| link.manifest.thread_id).collect();
        if chain.is_empty() {
            chain.push(thread.clone());
        }
        let last = chain.last().cloned().unwrap_or_else(|| thread.clone());
        let loaded = load(store, &last, trust, None)?.thread;
        let (Some(progress), Some(birth)) = (loaded.graph, loaded.manifest.graph) else { return Ok(None) };
        let why = progress.ended.as_ref().and_then(|end| end.error.clone()).or_else(|| {
            let suspended = loaded.manifest.suspended.as_ref()?;
            suspended.code.clone()
        });
        let mut run = Self {
            graph_id: birth.id.to_string(),
            run_id: loaded.manifest.chain_root_id,
            thread_id: last,
            parent_id: loaded.manifest.parent_id,
            status: loaded.manifest.status,
            ended: progress.ended.as_ref().map(|end| end.status.clone()),
            why,
            node: progress.node.clone().or_else(|| progress.ended.as_ref()?.node.clone()),
            step: progress.step,
            errors: progress.errors,
            state: loaded.state,
            nodes: BTreeMap::new(),
            history: Vec::new(),
            earlier: 0,
            began_at: progress.began_at,
            updated_at: loaded.manifest.updated_at,
        };
        for (index, link) in chain.iter().enumerate() {
            for line in store.read(link, 0, usize::MAX)? {
                if index == 0 && matches!(line.event, Event::GraphStarted(_)) {
                    run.began_at = run.began_at.min(line.timestamp);
                }
                run.add(&line.event, line.timestamp);
            }
        }
        let is_over = run.status.is_terminal();
        for node in run.nodes.values_mut().filter(|node| is_over && node.status == NodeStatus::Running) {
            node.status = NodeStatus::Error;
            node.details = Some(format!("the run ended as {}", run.status));
        }
        Ok(Some(run))
    }

    fn add(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::StepStarted(fields) => self.started(fields, at),
            Event::StepCompleted(fields) => self.completed(fields, at),
            Event::ForeachCompleted(fields) => {
                let items = fields.get("items").and_then(Value::as_u64).unwrap_or_default();
                let failed = fields.get("failed").and_then(Value::as_u64).unwrap_or_default();
                let said =
                    if failed == 0 { format!("{items} items") } else { format!("{items} items, {failed} failed") };
                if let Some(step) = self.history.last_mut() {
                    step.details = Some(said);
                }
            }
            _ => {}
        }
    }

    fn started(&mut self, fields: &Fields, at: Timestamp) {
        let Some(name) = text(fields, "node") else { return };
        let attempt = fields.get("attempt").and_then(Value::as_u64).unwrap_or(1);
        let node = self.nodes.entry(name.clone()).or_default();
        node.status = NodeStatus::Running;
        if attempt > 1 {
            let why = text(fields, "error").unwrap_or_default();
            node.details = Some(format!("attempt {attempt}: {why}"));
            return;
        }
        node.times += 1;
        let items = fields.get("items").and_then(Value::as_array).map(|items| format!("{} items", items.len()));
        self.history.push(StepRecord {
            step: fields.get("step").and_then(Value::as_u64).unwrap_or_default(),
            node: name,
            status: NodeStatus::Running,
            at,
            seconds: None,
            action: text(fields, "action_id"),
            details: items,
            next: None,
        });
        if self.history.len() > 2 * HISTORY_MAX {
            self.earlier += HISTORY_MAX as u64;
            self.history.drain(..HISTORY_MAX);
        }
    }

    fn completed(&mut self, fields: &Fields, _: Timestamp) {
        let Some(name) = text(fields, "node") else { return };
        let error = text(fields, "error");
        let status = if error.is_some() { NodeStatus::Error } else { NodeStatus::Completed };
        let seconds = fields.get("elapsed_s").and_then(Value::as_f64);
        let attempts = fields.get("attempt").and_then(Value::as_u64).map(|attempts| format!("{attempts} attempts"));
        let thread = text(fields, "thread_id").map(|thread| format!("thread {thread}"));
        let mut details = self.history.last().and_then(|step| step.details.clone());
        for more in [error, attempts, thread].into_iter().flatten() {
            details = Some(details.map_or(more.clone(), |details| format!("{details}; {more}")));
        }
        if let Some(step) = self.history.last_mut() {
            step.status = status;
            step.seconds = seconds;
            step.details.clone_from(&details);
            step.next = text(fields, "next_node");
        }
        let node = self.nodes.entry(name).or_default();
        node.status = status;
        node.seconds = seconds;
        node.details = details;
    }
}

fn text(fields: &Fields, name: &str) -> Option<String> {
    fields.get(name).and_then(Value::as_str).map(str::to_owned)
}
