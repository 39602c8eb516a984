//! The signed pages of a graph's run: a readable one with the table of its nodes, and one with the state it continues from.
//!
//! ```text
//! .ai/knowledge/agent/threads/<graph_id>/<run>.md    table, history
//! .ai/knowledge/graphs/<graph_id>/<run>.md           the state as JSON, with where the run is
//! ```
//!
//! They are projections: made from the logs, by a thread of their own, after each step that was committed meanwhile. A step never waits for
//! them; a process that dies leaves them as they were, and the next step writes them again.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use selvedge_items::Graph;
use selvedge_items::library::Library;
use selvedge_log::Trust;
use selvedge_model::{DirectiveId, ThreadId};
use selvedge_store::{Backend, Store};
use serde_json::Value;

use super::{GraphRun, NodeRecord};
use crate::knowledge::Entry;

/// The most bytes of a page; a larger state is left out, and the page says so.
const PAGE_BYTES_MAX: usize = 900 << 10;

/// The readable page of a run.
pub fn status(run: &GraphRun, graph: Option<&Graph>) -> Entry {
    let mut body = String::new();
    let seconds = (run.updated_at.as_micros() - run.began_at.as_micros()) as f64 / 1_000_000.0;
    let why = run.why.as_ref().map(|why| format!(": {}", line(why))).unwrap_or_default();
    _ = writeln!(body, "**{}**, {} steps, {seconds:.1} s, {} errors{why}\n", run.status, run.step, run.errors);
    body.push_str("| # | Node | Status | Duration | Action | Details |\n|---|---|---|---|---|---|\n");
    let none = NodeRecord::default();
    let named: Vec<(String, String)> = match graph {
        Some(graph) => {
            let action = |node: &selvedge_items::graph::Node| match node.action() {
                Some(action) => format!("{} `{}`", action.item_type, action.item_id),
                None => node.type_name().to_owned(),
            };
            graph.nodes.iter().map(|node| (node.name.clone(), action(node))).collect()
        }
        None => run.nodes.keys().map(|name| (name.clone(), String::new())).collect(),
    };
    for (index, (name, action)) in named.iter().enumerate() {
        let node = run.nodes.get(name).unwrap_or(&none);
        let duration = node.seconds.map(|seconds| format!("{seconds:.3} s")).unwrap_or_default();
        let details = node.details.as_deref().map(line).unwrap_or_default();
        let times = if node.times > 1 { format!("{} times; ", node.times) } else { String::new() };
        _ = writeln!(
            body,
            "| {} | `{name}` | {} | {duration} | {} | {times}{details} |",
            index + 1,
            node.status.sign(),
            line(action)
        );
    }
    body.push_str("\n## History\n\n");
    if run.earlier > 0 {
        _ = writeln!(body, "{} earlier steps are in the log.\n", run.earlier);
    }
    for step in &run.history {
        let duration = step.seconds.map(|seconds| format!(", {seconds:.3} s")).unwrap_or_default();
        let next = step.next.as_ref().map(|next| format!(" → `{next}`")).unwrap_or_default();
        let details = step.details.as_deref().map(|details| format!(": {}", line(details))).unwrap_or_default();
        _ = writeln!(body, "- {} step {} `{}`{duration}{details}{next}", step.status.sign(), step.step, step.node);
    }
    _ = write!(body, "\n---\nMade from the log of `{}`; `selvedge verify {}` checks it.", run.thread_id, run.thread_id);
    entry(run, "graph_transcript", format!("Run of {}", run.graph_id), body)
}

/// The page with the state of a run.
pub fn state(run: &GraphRun) -> Entry {
    let mut body = serde_json::to_string_pretty(&run.state).unwrap_or_default();
    if body.len() > PAGE_BYTES_MAX {
        body = format!("{{\"left_out\": \"{} bytes; selvedge state {}\"}}", body.len(), run.thread_id);
    }
    entry(run, "graph_state", format!("State of {}", run.graph_id), body)
}

fn entry(run: &GraphRun, entry_type: &str, title: String, body: String) -> Entry {
    let text = |name: &str, value: String| (name.to_owned(), value);
    let mut more = vec![
        text("graph_id", run.graph_id.clone()),
        text("graph_run_id", run.run_id.to_string()),
        text("status", run.status.to_string()),
        text("step_count", run.step.to_string()),
        text("updated_at", run.updated_at.to_string()),
    ];
    more.extend(run.node.clone().map(|node| text("current_node", node)));
    more.extend(run.parent_id.as_ref().map(|parent| text("parent_thread_id", parent.to_string())));
    let tags = vec!["graph".to_owned(), run.graph_id.clone()];
    Entry { title, entry_type: entry_type.to_owned(), written_by: run.thread_id.to_string(), tags, more, body }
}

/// A text on one line of a table.
fn line(text: &str) -> String {
    let text: String = text.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Writes both pages of a run, from its logs; nothing for a thread that is no graph's run.
pub fn write(store: &dyn Backend, trust: &Trust, library: &Library, thread: &ThreadId) -> Result<(), String> {
    let run = GraphRun::read(store as &dyn Store, trust, thread).map_err(|error| error.to_string())?;
    let Some(run) = run else { return Ok(()) };
    let graph = DirectiveId::new(&run.graph_id).ok().and_then(|id| library.inspect_graph(&id).ok());
    let graph = graph.map(|found| found.item);
    let name = run.run_id.as_str().rsplit('/').next().unwrap_or_default().to_owned();
    let pages = [
        (format!("agent/threads/{}/{name}", run.graph_id), status(&run, graph.as_ref())),
        (format!("graphs/{}/{name}", run.graph_id), state(&run)),
    ];
    for (id, entry) in pages {
        let id = DirectiveId::new(&id).map_err(|error| error.to_string())?;
        store.write_knowledge(&id, &entry.text(&id), &Entry::is_of_agent).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Writes the pages of runs on a thread of its own, the newest state of each.
#[derive(Debug)]
pub struct PageWriter {
    sender: Option<Sender<ThreadId>>,
    worker: Option<JoinHandle<Option<String>>>,
}

impl PageWriter {
    /// A writer for the runs of a store.
    pub fn new(store: Arc<dyn Backend>, trust: Trust, library: Library) -> Self {
        let (sender, receiver) = channel();
        let work = move || work(&*store, &trust, &library, &receiver);
        // Without a thread there are no pages until the next run: they are projections.
        let worker = std::thread::Builder::new().name("graph-pages".to_owned()).spawn(work).ok();
        Self { sender: Some(sender), worker }
    }

    /// A step of this thread was committed.
    pub fn note(&self, thread: &ThreadId) {
        if let Some(sender) = &self.sender {
            _ = sender.send(thread.clone());
        }
    }

    /// Waits until all pages are written; returns why one could not be.
    pub fn finish(mut self) -> Option<String> {
        drop(self.sender.take());
        self.worker.take().and_then(|worker| worker.join().ok()).flatten()
    }
}

fn work(store: &dyn Backend, trust: &Trust, library: &Library, noted: &Receiver<ThreadId>) -> Option<String> {
    let mut failed = None;
    while let Ok(first) = noted.recv() {
        let mut due = vec![first];
        // What was committed while a page was written is in the next one.
        while let Ok(more) = noted.try_recv() {
            if !due.contains(&more) {
                due.push(more);
            }
        }
        for thread in due {
            if let Err(why) = write(store, trust, library, &thread) {
                failed = Some(why);
            }
        }
    }
    failed
}

/// The state in a page, for a reader that has nothing else.
pub fn state_of(page: &str) -> Option<Value> {
    let body = selvedge_items::Knowledge::parse(page).ok()?.body;
    serde_json::from_str(&body).ok()
}
