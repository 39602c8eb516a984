//! What is wrong with a graph that can be read.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_model::path::Path;
use serde_json::Value;

use super::lines::Lines;
use super::{Awaited, Finding, Graph, Node, NodeKind};
use crate::error::Flaw;
use crate::hook::HookEvent;
use crate::input::is_name;
use crate::interpolate::paths;
use crate::nearest::nearest;

/// The first names that templates know, besides a loop's item.
const SCOPE: [&str; 8] = ["state", "inputs", "result", "index", "graph", "message", "_now", "_timestamp"];

struct Check<'a> {
    graph: &'a Graph,
    lines: &'a Lines,
    found: Vec<Finding>,
    /// The keys of the state that are read, and where first.
    read: BTreeMap<String, Option<u64>>,
    /// The keys that are written, and where first.
    written: BTreeMap<String, Option<u64>>,
}

/// Everything that is wrong with a graph.
pub(super) fn check(graph: &Graph, lines: &Lines) -> Vec<Finding> {
    let mut check = Check { graph, lines, found: Vec::new(), read: BTreeMap::new(), written: BTreeMap::new() };
    check.top();
    for node in &graph.nodes {
        check.edges(node);
        check.values(node);
    }
    check.reachable();
    check.state();
    check.found
}

impl Check<'_> {
    fn add(&mut self, is_error: bool, line: Option<u64>, flaw: Flaw) {
        let flaw = match line {
            Some(line) => flaw.on_line(line),
            None => flaw,
        };
        self.found.push(Finding { is_error, flaw });
    }

    fn error(&mut self, line: Option<u64>, why: impl Into<String>, hint: impl Into<String>) {
        self.add(true, line, Flaw::new(why).hint(hint));
    }

    fn warning(&mut self, line: Option<u64>, why: impl Into<String>) {
        self.add(false, line, Flaw::new(why));
    }

    fn line(&self, key: &str) -> Option<u64> {
        self.lines.line(&[key]).or_else(|| self.lines.line(&["config", key]))
    }

    fn nearest(&self, name: &str) -> String {
        match nearest(name, self.graph.nodes.iter().map(|node| node.name.as_str())) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "add it to `nodes`, or name one that is there".to_owned(),
        }
    }

    fn top(&mut self) {
        let graph = self.graph;
        if graph.nodes.is_empty() {
            self.error(self.line("nodes"), "it has no nodes", "add `nodes: {…}`");
        } else if graph.node(&graph.start).is_none() {
            let why = format!("`start` names `{}`, and there is no such node", graph.start.escape_debug());
            self.error(self.line("start"), why, self.nearest(&graph.start));
        }
        let has_actions = graph.nodes.iter().any(|node| node.action().is_some());
        if has_actions && graph.permissions.is_none() {
            let why = "`permissions` is missing: its actions may call nothing";
            self.error(self.line("nodes"), why, "list what they call: `permissions: [tool.NAME]`");
        }
        for hook in &graph.hooks {
            if !HookEvent::OF_GRAPHS.contains(&hook.event) {
                let known: Vec<&str> = HookEvent::OF_GRAPHS.map(HookEvent::as_str).to_vec();
                let why = format!("hook `{}` never fires: `{}` does not occur in graphs", hook.id, hook.event.as_str());
                self.add(false, self.line("hooks"), Flaw::new(why).hint(format!("use one of {}", known.join(", "))));
            }
        }
    }

    fn edges(&mut self, node: &Node) {
        let name = &node.name;
        if !is_name(name) {
            let why = format!("`{}` can't be the name of a node", name.escape_debug());
            self.error(node.line, why, "use at most 64 letters, digits, `_` and `-`");
        }
        for edge in &node.next {
            if self.graph.node(&edge.to).is_none() {
                let why = format!("node `{name}` leads to `{}`, and there is no such node", edge.to.escape_debug());
                self.error(edge.line, why, self.nearest(&edge.to));
            }
        }
        if let Some(to) = node.on_error.as_ref().filter(|to| self.graph.node(to).is_none()) {
            let why =
                format!("`on_error` of node `{name}` leads to `{}`, and there is no such node", to.escape_debug());
            self.error(self.lines.line(&["nodes", name, "on_error"]).or(node.line), why, self.nearest(to));
        }
        let is_return = matches!(node.kind, NodeKind::Return { .. });
        if is_return && (!node.next.is_empty() || node.on_error.is_some()) {
            self.error(
                node.line,
                format!("node `{name}` returns, so it leads nowhere"),
                "remove `next` and `on_error`",
            );
        }
        if !is_return && node.next.is_empty() {
            let why = format!("node `{name}` is a dead end: it leads nowhere and does not return");
            self.error(node.line, why, "add `next: NODE`, or make it `type: return`");
        }
        let default = node.next.iter().position(|edge| edge.when.is_none());
        match default {
            None if !node.next.is_empty() => {
                let why = format!("node `{name}` has no default edge: the run fails there if no condition holds");
                self.add(false, node.line, Flaw::new(why).hint("end `next` with an entry without `when`"));
            }
            Some(place) if place + 1 < node.next.len() => {
                let line = node.next[place + 1].line;
                self.error(line, format!("edges of node `{name}` after its default are never followed"), "put it last");
            }
            _ => {}
        }
    }

    /// The templates, conditions and assignments of a node.
    fn values(&mut self, node: &Node) {
        let line = node.line;
        let mut item = None;
        match &node.kind {
            NodeKind::Action { .. } | NodeKind::Gate => {}
            NodeKind::Foreach { over, item: name, collect, .. } => {
                if !is_name(name) || SCOPE.contains(&name.as_str()) {
                    self.error(line, format!("`{}` can't be the name of an item", name.escape_debug()), "use another");
                }
                item = Some(name.as_str());
                self.template(over, line, None, false);
                if let Some(key) = collect {
                    self.write(key, line);
                }
            }
            NodeKind::Approval { message, .. } => self.template(&Value::String(message.clone()), line, None, false),
            NodeKind::Wait(Awaited::Until(value) | Awaited::Seconds(value)) => self.template(value, line, None, false),
            NodeKind::Wait(Awaited::Threads { ids, timeout }) => {
                self.template(ids, line, None, false);
                timeout.iter().for_each(|timeout| self.template(timeout, line, None, false));
            }
            NodeKind::Return { output } => self.template(output, line, None, false),
        }
        if let Some(action) = node.action() {
            self.template(&Value::String(action.item_id.clone()), line, item, false);
            self.template(&Value::Object(action.params.clone()), line, item, false);
        }
        for (key, value) in &node.assign {
            self.write(key, self.lines.line(&["nodes", &node.name, "assign", key]).or(line));
            self.template(value, line, None, true);
        }
        for edge in &node.next {
            for path in edge.when.iter().flat_map(|when| when.paths()) {
                self.path(path, edge.line, None, true);
            }
        }
    }

    fn template(&mut self, value: &Value, line: Option<u64>, item: Option<&str>, has_result: bool) {
        match value {
            Value::String(text) => {
                for path in paths(text) {
                    self.path(&path, line, item, has_result);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.template(value, line, item, has_result)),
            Value::Object(fields) => fields.values().for_each(|value| self.template(value, line, item, has_result)),
            _ => {}
        }
    }

    fn path(&mut self, path: &[String], line: Option<u64>, item: Option<&str>, has_result: bool) {
        let Some(first) = path.first() else { return };
        match (first.as_str(), path.get(1)) {
            ("state", Some(key)) => _ = self.read.entry(key.clone()).or_insert(line),
            ("inputs", Some(name)) => {
                let inputs = &self.graph.inputs;
                if !inputs.is_empty() && !inputs.iter().any(|input| input.name == *name) {
                    self.error(line, format!("the input `{name}` is not declared"), "add it to `inputs`");
                }
            }
            ("result", _) if !has_result => {
                let why = "`result` is known only in `assign` and in the conditions of edges";
                self.error(line, why, "assign it to the state first: `assign: {NAME: \"${result}\"}`");
            }
            (first, _) if item == Some(first) || SCOPE.contains(&first) => {}
            (first, _) => {
                let known = SCOPE.iter().copied().chain(item);
                let near = nearest(first, known).map(|near| format!("did you mean `{near}`?"));
                let hint = near.unwrap_or_else(|| "templates know `state`, `inputs` and `result`".to_owned());
                self.add(false, line, Flaw::new(format!("`{first}` is not known here, and stays as it is")).hint(hint));
            }
        }
    }

    fn write(&mut self, key: &str, line: Option<u64>) {
        match state_path(key) {
            Ok(_) => {
                let first = key.split('.').next().unwrap_or(key);
                self.written.entry(first.to_owned()).or_insert(line);
            }
            Err(why) => self.error(line, why, "use names of letters, digits, `_` and `-`, joined by dots"),
        }
    }

    fn reachable(&mut self) {
        let graph = self.graph;
        let mut reached = BTreeSet::new();
        let mut open = vec![graph.start.as_str()];
        while let Some(name) = open.pop() {
            if reached.insert(name)
                && let Some(node) = graph.node(name)
            {
                open.extend(node.targets());
            }
        }
        // Backwards from every node that returns.
        let mut returns: BTreeSet<&str> = BTreeSet::new();
        loop {
            let more = graph.nodes.iter().filter(|node| !returns.contains(node.name.as_str()));
            let more: Vec<&str> = more
                .filter(|node| {
                    matches!(node.kind, NodeKind::Return { .. }) || node.targets().any(|to| returns.contains(to))
                })
                .map(|node| node.name.as_str())
                .collect();
            if more.is_empty() {
                break;
            }
            returns.extend(more);
        }
        for node in &graph.nodes {
            let name = node.name.as_str();
            if !reached.contains(name) {
                self.warning(
                    node.line,
                    format!("node `{name}` is unreachable: no edge from `{}` leads to it", graph.start),
                );
            } else if !returns.contains(name) && !node.next.is_empty() {
                self.warning(node.line, format!("no path from node `{name}` leads to a node that returns"));
            }
        }
    }

    fn state(&mut self) {
        let declared: BTreeSet<&String> = self.graph.state.keys().collect();
        // Set by the engine when a node fails.
        let own = ["_last_error"];
        for (key, line) in self.read.clone() {
            let is_known = declared.contains(&key) || self.written.contains_key(&key) || own.contains(&key.as_str());
            if !is_known {
                let why = format!("`state.{key}` is read, but neither declared in `state` nor assigned");
                self.error(line, why, "add it to `state`, or assign it before");
            }
        }
        for (key, line) in self.written.clone() {
            if !declared.contains(&key) {
                self.warning(line, format!("`state.{key}` is assigned, but not declared in `state`"));
            }
        }
        let is_used = |key: &&String| self.read.contains_key(*key) || self.written.contains_key(*key);
        let unused: Vec<String> = declared.into_iter().filter(|key| !is_used(key)).cloned().collect();
        for key in unused {
            let line = self.lines.line(&["state", &key]).or_else(|| self.lines.line(&["config", "state", &key]));
            self.warning(line, format!("`state.{key}` is declared, but never read or assigned"));
        }
    }
}

/// The path in the state that a key names.
pub fn state_path(key: &str) -> Result<Path, String> {
    let steps: Vec<&str> = key.split('.').collect();
    let is_plain = |step: &&str| is_name(step) && !step.starts_with("__");
    if steps.iter().all(is_plain) {
        Ok(Path::keys(steps))
    } else {
        Err(format!("`{}` can't be a key of the state", key.escape_debug()))
    }
}
