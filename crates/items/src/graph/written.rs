//! Reads the written form of a graph: that of `.ai/graphs`, or the tool form of older documents, whose content is below `config`.

use std::collections::BTreeMap;

use selvedge_model::limits::Limits;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::lines::Lines;
use super::{Awaited, Edge, Finding, Graph, Node, NodeKind, OnError, PARALLEL, Retry, SEGMENT_STEPS, STEPS_MAX};
use crate::capability::Permissions;
use crate::condition::Condition;
use crate::error::Flaw;
use crate::hook::{Action, Hook};
use crate::input::{self, Input};
use crate::yaml::parse_yaml;

/// The most attempts of a node.
const ATTEMPTS_MAX: u32 = 20;
/// The longest wait between two attempts.
const WAIT_SECONDS_MAX: u64 = 24 * 3600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    name: Option<String>,
    version: Option<String>,
    #[serde(default)]
    description: String,
    category: Option<String>,
    tool_type: Option<String>,
    executor_id: Option<String>,
    author: Option<String>,
    #[serde(default)]
    inputs: Option<Inputs>,
    config_schema: Option<Schema>,
    permissions: Option<Permissions>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    env_requires: Vec<String>,
    /// The tool form.
    config: Option<Walk>,
    start: Option<String>,
    max_steps: Option<u64>,
    segment_steps: Option<u64>,
    #[serde(default)]
    on_error: OnError,
    #[serde(default)]
    state: Map<String, Value>,
    #[serde(default)]
    hooks: Vec<Hook>,
    #[serde(default)]
    nodes: BTreeMap<String, NodeFields>,
}

/// What the tool form has below `config`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Walk {
    start: Option<String>,
    max_steps: Option<u64>,
    segment_steps: Option<u64>,
    #[serde(default)]
    on_error: OnError,
    #[serde(default)]
    state: Map<String, Value>,
    #[serde(default)]
    hooks: Vec<Hook>,
    #[serde(default)]
    nodes: BTreeMap<String, NodeFields>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Inputs {
    List(Vec<Input>),
    Schema(Schema),
}

/// The part of JSON Schema that declares inputs.
#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    properties: BTreeMap<String, Property>,
    #[serde(default)]
    required: Vec<String>,
}

#[derive(Deserialize)]
struct Property {
    #[serde(rename = "type")]
    of: Option<String>,
    default: Option<Value>,
    #[serde(default)]
    description: String,
    #[serde(default, rename = "enum")]
    values: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFields {
    #[serde(rename = "type")]
    of: Option<String>,
    action: Option<ActionFields>,
    #[serde(default)]
    assign: Map<String, Value>,
    next: Option<Next>,
    on_error: Option<String>,
    retry: Option<RetryFields>,
    over: Option<Value>,
    #[serde(rename = "as")]
    item: Option<String>,
    collect: Option<String>,
    parallel: Option<Parallel>,
    message: Option<String>,
    expires_after_seconds: Option<u64>,
    until: Option<Value>,
    seconds: Option<Value>,
    threads: Option<Value>,
    timeout: Option<Value>,
    output: Option<Value>,
    #[serde(default)]
    env_requires: Vec<String>,
    cache_result: Option<bool>,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionFields {
    #[serde(default = "execute")]
    primary: String,
    item_type: String,
    item_id: String,
    #[serde(default)]
    params: Map<String, Value>,
}

fn execute() -> String {
    "execute".to_owned()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Next {
    One(String),
    Several(Vec<EdgeFields>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeFields {
    to: String,
    when: Option<Condition>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Parallel {
    Whether(bool),
    Most(usize),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryFields {
    attempts: u32,
    wait_seconds: Option<u64>,
    wait_max_seconds: Option<u64>,
}

/// Reads a graph; its nodes are in the order of their lines.
pub(super) fn read(text: &str, first_line: u64, lines: &Lines) -> Result<Graph, Flaw> {
    let fields: Fields = parse_yaml(text, first_line)?;
    let is_tool = fields.config.is_some() || fields.tool_type.is_some();
    let root: &'static [&'static str] = if is_tool { &["config"] } else { &[] };
    if let Some(other) = fields.tool_type.as_deref().filter(|of| *of != "graph") {
        let flaw = Flaw::new(format!("its `tool_type` is `{}`, not `graph`", other.escape_debug()));
        return Err(flaw.at_key(lines, &["tool_type"]));
    }
    let walk = match fields.config {
        Some(_) if !fields.nodes.is_empty() || fields.start.is_some() => {
            return Err(Flaw::new("it has nodes in `config` and beside it").at_key(lines, &["config"]));
        }
        Some(walk) => walk,
        None => Walk {
            start: fields.start,
            max_steps: fields.max_steps,
            segment_steps: fields.segment_steps,
            on_error: fields.on_error,
            state: fields.state,
            hooks: fields.hooks,
            nodes: fields.nodes,
        },
    };
    _ = (fields.name, fields.category, fields.executor_id, fields.author);
    let inputs = match (fields.inputs, fields.config_schema) {
        (Some(Inputs::List(inputs)), None) => inputs,
        (Some(Inputs::Schema(schema)), None) | (None, Some(schema)) => {
            schema.inputs().map_err(|why| Flaw::new(why).at_key(lines, &["inputs"]))?
        }
        (None, None) => Vec::new(),
        (Some(_), Some(_)) => {
            return Err(Flaw::new("it has both `inputs` and `config_schema`").at_key(lines, &["config_schema"]));
        }
    };
    let key = |name: &'static str| -> Vec<&'static str> { root.iter().copied().chain([name]).collect() };
    let start = walk.start.ok_or_else(|| {
        Flaw::new("`start` is missing").on_line(first_line).hint("name the first node: `start: NODE`")
    })?;
    if let Some(name) = fields.limits.first_zero() {
        return Err(Flaw::new(format!("with a limit `{name}` of 0 nothing could run")).at_key(lines, &["limits"]));
    }
    let max_steps = at_least_one(walk.max_steps.unwrap_or(STEPS_MAX), "max_steps")
        .map_err(|flaw| flaw.at_key(lines, &key("max_steps")))?;
    let segment_steps = at_least_one(walk.segment_steps.unwrap_or(SEGMENT_STEPS), "segment_steps")
        .map_err(|flaw| flaw.at_key(lines, &key("segment_steps")))?;
    let mut env_requires = fields.env_requires;
    let mut findings = Vec::new();
    let mut nodes = Vec::new();
    for (name, written) in walk.nodes {
        let path: Vec<&str> = root.iter().copied().chain(["nodes", name.as_str()]).collect();
        env_requires.extend(written.env_requires.iter().cloned());
        if written.cache_result.is_some() {
            let why = format!("`cache_result` of node `{name}` has no effect: a finished node never runs again");
            findings.push(Finding { is_error: false, flaw: Flaw::new(why).at_key(lines, &path) });
        }
        let edges = |nth: usize| {
            let to: Vec<&str> = path.iter().copied().chain(["next", "to"]).collect();
            lines.nth(&to, nth)
        };
        let node = node(&name, written, lines.line(&path), edges)
            .map_err(|flaw| if flaw.line.is_none() { flaw.at_key(lines, &path) } else { flaw })?;
        nodes.push(node);
    }
    nodes.sort_by_key(|node| node.line);
    env_requires.sort();
    env_requires.dedup();
    Ok(Graph {
        description: fields.description.trim().to_owned(),
        version: fields.version,
        inputs,
        permissions: fields.permissions,
        limits: fields.limits,
        env_requires,
        start,
        max_steps,
        segment_steps,
        on_error: walk.on_error,
        state: walk.state,
        hooks: walk.hooks,
        nodes,
        findings,
        digest: None,
        places: BTreeMap::new(),
    })
}

fn at_least_one(number: u64, name: &str) -> Result<u64, Flaw> {
    if number == 0 { Err(Flaw::new(format!("`{name}` must be at least 1"))) } else { Ok(number) }
}

impl Flaw {
    fn at_key(self, lines: &Lines, path: &[&str]) -> Self {
        match lines.line(path) {
            Some(line) => self.on_line(line),
            None => self,
        }
    }
}

impl Schema {
    fn inputs(self) -> Result<Vec<Input>, String> {
        let Self { properties, required } = self;
        let input = |(name, property): (String, Property)| {
            let Property { of, default, description, values } = property;
            let of = if values.is_empty() { of } else { Some("enum".to_owned()) };
            let required = required.contains(&name) && default.is_none();
            Input::try_from(input::Fields { name, of, required, default, values, description })
        };
        properties.into_iter().map(input).collect()
    }
}

fn node(
    name: &str,
    written: NodeFields,
    line: Option<u64>,
    edge_line: impl Fn(usize) -> Option<u64>,
) -> Result<Node, Flaw> {
    let of = written.of.as_deref().unwrap_or(if written.action.is_some() { "action" } else { "" }).to_owned();
    let missing = |key: &str| {
        Flaw::new(format!("node `{name}` needs `{key}`")).hint(format!("add `{key}: …`, as every {of} node has"))
    };
    let set = used(&written);
    let action = written.action.map(|action| action.checked(name)).transpose();
    let kind = match of.as_str() {
        "action" => NodeKind::Action { action: action?.ok_or_else(|| missing("action"))? },
        "gate" => NodeKind::Gate,
        "foreach" => {
            let parallel = match written.parallel {
                None | Some(Parallel::Whether(false)) => 1,
                Some(Parallel::Whether(true)) => PARALLEL,
                Some(Parallel::Most(most)) if (1..=super::PARALLEL_MAX).contains(&most) => most,
                Some(Parallel::Most(_)) => {
                    let most = super::PARALLEL_MAX;
                    return Err(Flaw::new(format!("`parallel` of node `{name}` must be between 1 and {most}")));
                }
            };
            NodeKind::Foreach {
                over: written.over.ok_or_else(|| missing("over"))?,
                item: written.item.unwrap_or_else(|| "item".to_owned()),
                action: action?.ok_or_else(|| missing("action"))?,
                parallel,
                collect: written.collect,
            }
        }
        "approval" => NodeKind::Approval {
            message: written.message.ok_or_else(|| missing("message"))?,
            expires_after_seconds: written.expires_after_seconds,
        },
        "wait" => NodeKind::Wait(match (written.until, written.seconds, written.threads) {
            (Some(until), None, None) => Awaited::Until(until),
            (None, Some(seconds), None) => Awaited::Seconds(seconds),
            (None, None, Some(ids)) => Awaited::Threads { ids, timeout: written.timeout },
            _ => return Err(Flaw::new(format!("node `{name}` needs one of `until`, `seconds` and `threads`"))),
        }),
        "return" => NodeKind::Return { output: written.output.unwrap_or(Value::Null) },
        "" => return Err(missing("type").hint("`type` is action, gate, foreach, approval, wait or return")),
        other => {
            let known = ["action", "gate", "foreach", "approval", "wait", "return"];
            let flaw = Flaw::new(format!("`{}` is not a type of node", other.escape_debug()));
            return Err(flaw.hint(crate::nearest::advice(other, &known)));
        }
    };
    let allowed: &[&str] = match of.as_str() {
        "action" => &["action", "retry"],
        "foreach" => &["action", "over", "as", "collect", "parallel"],
        "approval" => &["message", "expires_after_seconds"],
        "wait" => &["until", "seconds", "threads", "timeout"],
        "return" => &["output"],
        _ => &[],
    };
    if let Some(key) = set.iter().find(|key| !allowed.contains(key)) {
        return Err(Flaw::new(format!("`{key}` of node `{name}` has no meaning in a {of} node")));
    }
    let edge =
        |(index, EdgeFields { to, when }): (usize, EdgeFields)| Edge { to, when, line: edge_line(index).or(line) };
    let next = match written.next {
        None => Vec::new(),
        Some(Next::One(to)) => vec![Edge { to, when: None, line }],
        Some(Next::Several(edges)) => edges.into_iter().enumerate().map(edge).collect(),
    };
    let retry = written.retry.map(|retry| retry.checked(name)).transpose()?.unwrap_or_default();
    Ok(Node { name: name.to_owned(), kind, assign: written.assign, next, on_error: written.on_error, retry, line })
}

/// The keys of a node that only some types of nodes have.
fn used(written: &NodeFields) -> Vec<&'static str> {
    let keys = [
        ("action", written.action.is_some()),
        ("retry", written.retry.is_some()),
        ("over", written.over.is_some()),
        ("as", written.item.is_some()),
        ("collect", written.collect.is_some()),
        ("parallel", written.parallel.is_some()),
        ("message", written.message.is_some()),
        ("expires_after_seconds", written.expires_after_seconds.is_some()),
        ("until", written.until.is_some()),
        ("seconds", written.seconds.is_some()),
        ("threads", written.threads.is_some()),
        ("timeout", written.timeout.is_some()),
        ("output", written.output.is_some()),
    ];
    _ = &written.description;
    keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
}

impl ActionFields {
    fn checked(self, node: &str) -> Result<Action, Flaw> {
        let Self { primary, item_type, item_id, params } = self;
        let kinds = [Action::TOOL, Action::KNOWLEDGE, Action::DIRECTIVE, Action::GRAPH];
        if !kinds.contains(&item_type.as_str()) {
            let flaw = Flaw::new(format!("`{}` is no item of an action", item_type.escape_debug()));
            return Err(flaw.hint(crate::nearest::advice(&item_type, &kinds)));
        }
        let verbs: &[&str] = if item_type == Action::KNOWLEDGE { &["execute", "fetch", "load"] } else { &["execute"] };
        if !verbs.contains(&primary.as_str()) {
            return Err(Flaw::new(format!("`{}` can't be done with a {item_type}", primary.escape_debug())));
        }
        if item_id.trim().is_empty() {
            return Err(Flaw::new(format!("`item_id` of node `{node}` is empty")));
        }
        Ok(Action { primary, item_type, item_id, params })
    }
}

impl RetryFields {
    fn checked(self, node: &str) -> Result<Retry, Flaw> {
        let most = Retry::default();
        let retry = Retry {
            attempts: self.attempts,
            wait_seconds: self.wait_seconds.unwrap_or(most.wait_seconds),
            wait_max_seconds: self.wait_max_seconds.unwrap_or(most.wait_max_seconds),
        };
        if retry.attempts == 0 || retry.attempts > ATTEMPTS_MAX {
            return Err(Flaw::new(format!("`attempts` of node `{node}` must be between 1 and {ATTEMPTS_MAX}")));
        }
        if retry.wait_max_seconds > WAIT_SECONDS_MAX {
            return Err(Flaw::new(format!("`wait_max_seconds` of node `{node}` can be at most a day")));
        }
        Ok(retry)
    }
}
