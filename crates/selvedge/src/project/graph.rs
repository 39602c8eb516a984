//! Running the graphs of a project: a definition made into a thread and the run configuration of its runs.
//!
//! | item of an action | tool |
//! |---|---|
//! | a tool | the tool of that name, as an agent would call it |
//! | knowledge | the entry, verified: `{id, digest, text}` |
//! | a directive | `spawn_thread`: a child thread |
//! | a graph | `spawn_graph`: a child thread |

use std::collections::BTreeMap;
use std::sync::Arc;

use selvedge_engine::RunConfig;
use selvedge_engine::graph::{GraphRules, NodeCall};
use selvedge_items::capability::{Capabilities, Capability, short};
use selvedge_items::graph::{Awaited, Finding, Node, NodeKind};
use selvedge_items::hook::Action;
use selvedge_items::input::bind;
use selvedge_items::library::Kind;
use selvedge_items::nearest::nearest;
use selvedge_items::{Flaw, Graph, ItemError, Library};
use selvedge_model::answer::Drafts;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{EffectClass, GraphBirth, GraphPosition, ThreadKind};
use selvedge_model::limits::Limits;
use selvedge_model::tool::{Function, Risk};
use selvedge_model::{
    AgentId, Answer, Cancel, DirectiveId, Manifest, Model, ModelError, NewThread, Output, Price, Prompt, Tool,
    ToolError,
};
use selvedge_tools::built_in;
use serde_json::{Map, Value, json};

use super::{Project, ProjectError, Tools, UNACKNOWLEDGED_MAX, gate, hooks};
use crate::orchestrator::{SPAWN, SPAWN_GRAPH, knowledge_tools, thread_tools};

/// The tool that fetches knowledge for a node.
const KNOWLEDGE: &str = "graph_knowledge";
/// The model of a graph's run, which asks none.
const NO_MODEL: &str = "none";

/// The options of a graph's run.
#[derive(Clone, Debug, Default)]
pub struct GraphOptions {
    /// The inputs of the graph.
    pub inputs: Map<String, Value>,
    /// The agent on whose behalf it runs.
    pub agent: Option<AgentId>,
    /// Limits that replace the graph's.
    pub limits: Limits,
    /// The one node to run; the whole graph by default.
    pub step: Option<String>,
}

/// A graph that is prepared to run.
#[derive(Debug)]
pub struct PreparedGraph {
    /// The thread to create.
    pub thread: NewThread,
    /// The run configuration of its runs.
    pub run_config: RunConfig,
    /// Notices for the user.
    pub notices: Vec<String>,
}

impl Project {
    /// Prepares a graph to run.
    pub fn prepare_graph(&self, id: &DirectiveId, options: GraphOptions) -> Result<PreparedGraph, ProjectError> {
        let found = self.library.graph(id)?;
        let graph = found.item;
        let is_unset = |name: &&String| !self.environment.contains_key(*name);
        let names: Vec<String> = graph.env_requires.iter().filter(is_unset).cloned().collect();
        if !names.is_empty() {
            return Err(ProjectError::NoVariables { graph: id.to_string(), names });
        }
        if let Some(node) = options.step.as_ref().filter(|node| graph.node(node).is_none()) {
            return Err(ProjectError::NoNode { graph: id.to_string(), node: node.clone() });
        }
        let (agent_id, agent) = self.agent(options.agent)?;
        let inputs = bind(&graph.inputs, options.inputs)?;
        let none = Capabilities::default();
        let own = graph.permissions.as_ref().map_or(&none, |permissions| &permissions.allow);
        let of_agent = agent.capabilities.as_ref().map(|permissions| &permissions.allow);
        let capabilities = Capabilities::granted([of_agent, Some(own)]);
        let sources = [agent.capabilities.as_ref(), graph.permissions.as_ref()];
        let mut acknowledged: Vec<Risk> =
            sources.into_iter().flatten().flat_map(|source| &source.acknowledge).map(|one| one.risk).collect();
        acknowledged.sort_unstable();
        acknowledged.dedup();
        // A pipeline may wait for days, and asks no model itself.
        let of_config = Limits { turns: None, tokens: None, duration_seconds: None, ..self.config.limits.clone() };
        let limits = options.limits.over(&graph.limits).over(&of_config);
        let definition = graph.digest.unwrap_or(found.sources[0].hash);
        let position = options.step.as_ref().map(|node| GraphPosition { node: node.clone(), steps: 0, errors: 0 });
        let birth = GraphBirth { id: id.clone(), definition, position, single: options.step.is_some() };
        let thread = NewThread {
            kind: ThreadKind::Graph,
            graph: Some(birth),
            inputs,
            limits: Some(limits.clone()),
            capabilities: Some(capabilities.to_strings()),
            acknowledged: acknowledged.clone(),
            ..NewThread::of(agent_id.clone())
        };
        let mut notices: Vec<String> = self.graph_findings(&graph)?.iter().map(|finding| said(id, finding)).collect();
        let (run_config, unusable) = self.walk(agent_id, id, graph, &capabilities, &acknowledged, limits)?;
        notices.extend(unusable);
        Ok(PreparedGraph { thread, run_config, notices })
    }

    /// The run configuration of a graph's next run, from its record.
    pub(super) fn graph_config(&self, thread: &Manifest) -> Result<RunConfig, ProjectError> {
        let Some(birth) = &thread.graph else {
            return Err(ItemError::NotFound { what: "graph", id: String::new(), nearest: None }.into());
        };
        let graph = self.library.graph(&birth.id)?.item;
        let recorded = thread.capabilities.iter().flatten().filter_map(|token| token.parse::<Capability>().ok());
        let capabilities = Capabilities::new(recorded);
        let limits = thread.limits.clone().unwrap_or_default();
        let agent = thread.agent_id.clone();
        Ok(self.walk(agent, &birth.id, graph, &capabilities, &thread.acknowledged, limits)?.0)
    }

    fn walk(
        &self,
        agent: AgentId,
        id: &DirectiveId,
        graph: Graph,
        capabilities: &Capabilities,
        acknowledged: &[Risk],
        limits: Limits,
    ) -> Result<(RunConfig, Vec<String>), ProjectError> {
        let Tools { ready: tools, notices } = self.tools()?;
        let risk_max = acknowledged.iter().copied().max().unwrap_or_default().max(UNACKNOWLEDGED_MAX);
        let mut work = RunConfig::new(agent, Arc::new(NoModel), NO_MODEL);
        work.tools = tools;
        work.gate = gate::gate(capabilities.clone(), risk_max, self.config.approvals.clone(), Vec::new());
        work.gate = self.program.gate(work.gate);
        work.limits = limits;
        work.hooks = Arc::new(self.ready(self.graph_hooks(&graph)?));
        self.configure(&mut work);
        work.price = Some(Price::default());
        work.continuation.chain_max = self.config.coordination.continuation.chain_max;
        let digest = graph.digest.unwrap_or(selvedge_model::Digest([0; 32]));
        let calls = graph.nodes.iter().filter_map(|node| Some((node.name.clone(), call(node.action()?))));
        let calls: BTreeMap<String, NodeCall> = calls.collect();
        let mut rules = GraphRules::new(id.as_str(), graph, digest, calls);
        rules.tools.push(knowledge(self.library.clone()));
        work.graph = Some(Arc::new(rules));
        Ok((work, notices))
    }

    /// Everything that is wrong with a graph, also what only the whole project shows: actions that name nothing, permissions that match
    /// nothing, and actions that are not permitted.
    pub fn graph_findings(&self, graph: &Graph) -> Result<Vec<Finding>, ProjectError> {
        let mut findings = graph.findings.clone();
        let tools = self.tools()?.ready;
        let declared = self.library.list(Kind::Tool)?;
        let declared = declared.iter().map(|entry| format!("tool.{}", entry.id.replace('/', ".")));
        let specs = thread_tools().into_iter().chain(knowledge_tools());
        let specs: Vec<_> = tools.iter().map(|tool| tool.spec().clone()).chain(specs).collect();
        let needed = specs.iter().map(|spec| spec.capability.clone()).chain(declared);
        let needed: Vec<Capability> = needed.filter_map(|token| token.parse().ok()).collect();
        let none = Capabilities::default();
        let allow = graph.permissions.as_ref().map_or(&none, |permissions| &permissions.allow);
        for token in allow.iter().filter(|token| !needed.iter().any(|needed| token.contains(needed))) {
            let token = token.to_string();
            let names: Vec<String> = needed.iter().map(|token| short(&token.to_string()).to_owned()).collect();
            let flaw = Flaw::new(format!("the permission `{}` matches no tool", short(&token)));
            let near = nearest(short(&token), names.iter().map(String::as_str));
            let hint = near.map_or_else(
                || "`selvedge tool list` lists the tools".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            findings.push(Finding { is_error: false, flaw: flaw.hint(hint) });
        }
        for node in &graph.nodes {
            findings.extend(self.action_finding(node, &specs, allow)?);
        }
        findings.sort_by_key(|finding| finding.flaw.line);
        Ok(findings)
    }

    fn action_finding(
        &self,
        node: &Node,
        specs: &[selvedge_model::ToolSpec],
        allow: &Capabilities,
    ) -> Result<Option<Finding>, ProjectError> {
        let at = |is_error, flaw: Flaw| {
            let flaw = node.line.map_or(flaw.clone(), |line| flaw.on_line(line));
            Some(Finding { is_error, flaw })
        };
        let name = &node.name;
        let tool = match (&node.kind, node.action()) {
            (NodeKind::Wait(Awaited::Threads { .. }), _) => "wait_threads".to_owned(),
            (_, None) => return Ok(None),
            (_, Some(action)) => {
                let is_template = action.item_id.contains("${") || action.item_id.contains("{input:");
                let id = DirectiveId::new(action.item_id.as_str());
                let missing = match (action.item_type.as_str(), id) {
                    _ if is_template => None,
                    (Action::DIRECTIVE, Ok(id)) => self.library.directive(&id).err().map(|error| error.to_string()),
                    (Action::GRAPH, Ok(id)) => self.library.graph(&id).err().map(|error| error.to_string()),
                    (Action::DIRECTIVE | Action::GRAPH, Err(error)) => Some(error.to_string()),
                    _ => None,
                };
                if let Some(why) = missing {
                    return Ok(at(false, Flaw::new(format!("node `{name}` can't do what it says: {why}"))));
                }
                call(action).tool
            }
        };
        let spec = match tool.as_str() {
            KNOWLEDGE => return Ok(None),
            SPAWN_GRAPH => specs.iter().find(|spec| spec.name == SPAWN),
            name => specs.iter().find(|spec| spec.name == name),
        };
        let Some(spec) = spec else {
            let known: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            let hint = match nearest(&tool, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "`selvedge tool list` lists the tools".to_owned(),
            };
            return Ok(at(
                false,
                Flaw::new(format!("node `{name}` calls `{tool}`, and there is no such tool")).hint(hint),
            ));
        };
        Ok(match gate::may_call(allow, spec, &Value::Null) {
            Ok(()) => None,
            Err(_) => {
                let capability = spec.capability.parse::<Capability>().map(|token| token.to_string());
                let capability = capability.unwrap_or_else(|_| spec.capability.clone());
                let why = format!("node `{name}` may not call `{}`: its permission is missing", spec.name);
                at(false, Flaw::new(why).hint(format!("add `{}` to `permissions`", short(&capability))))
            }
        })
    }
}

/// A finding as a notice.
fn said(id: &DirectiveId, finding: &Finding) -> String {
    format!("graph `{id}`, {}", finding.flaw)
}

/// A node's action as a call.
fn call(action: &Action) -> NodeCall {
    let item = format!("{} {}", action.item_type, action.item_id);
    match action.item_type.as_str() {
        Action::KNOWLEDGE => NodeCall { tool: KNOWLEDGE.to_owned(), arguments: json!({"id": action.item_id}), item },
        Action::GRAPH => {
            let arguments = json!({"graph": action.item_id, "inputs": action.params});
            NodeCall { tool: SPAWN_GRAPH.to_owned(), arguments, item }
        }
        _ => {
            let call = hooks::call(action);
            NodeCall { tool: call.tool, arguments: call.arguments, item }
        }
    }
}

fn knowledge(library: Library) -> Arc<dyn Tool> {
    let schema = json!({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]});
    let spec = built_in(KNOWLEDGE, "Fetches an entry of knowledge for a node.", schema, EffectClass::Pure, Risk::Safe);
    Arc::new(Function::new(spec, move |call, _| {
        let id = call.arguments.get("id").and_then(Value::as_str).unwrap_or_default();
        let found = DirectiveId::new(id).map_err(ItemError::from).and_then(|id| library.knowledge(&id));
        match found {
            Ok(found) => {
                let content = json!({"id": found.id(), "digest": found.sources[0].hash, "text": found.item.body});
                Ok(Output { content, ..Output::default() })
            }
            Err(error @ (ItemError::NotTrusted { .. } | ItemError::Unsafe { .. })) => {
                Err(ToolError::Integrity { tool: KNOWLEDGE.to_owned(), why: error.to_string() })
            }
            Err(error) => Ok(Output::error(error.to_string())),
        }
    }))
}

/// The model of a graph's run: it is never asked.
struct NoModel;

impl Model for NoModel {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async { Err(ModelError::Permanent { why: "a graph asks no model".to_owned() }) })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}
