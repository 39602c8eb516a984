//! The rules of the simulated runs.

use std::sync::Arc;

use selvedge_items::Graph;
use selvedge_items::hook::Action;
use selvedge_model::answer::{Answer, Drafts, Prompt};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::EffectClass;
use selvedge_model::limits::Limits;
use selvedge_model::scope::Scopes;
use selvedge_model::tool::{Call, Reconciled, Risk, Started};
use selvedge_model::{AgentId, Cancel, Digest, Model, ModelError, Money, Price, Tool, ToolError, ToolKind, ToolSpec};
use serde_json::json;

use crate::decide::Rules;
use crate::graph::{GraphRules, NodeCall};
use crate::run_config::{NeededApproval, Permission, RunConfig};

/// A model that is never called.
struct Uncalled;

impl Model for Uncalled {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(std::future::ready(Err(ModelError::Transient { why: "it is never called".to_owned() })))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A tool that only has a name, a class and a kind.
struct Named(ToolSpec, ToolKind);

impl Tool for Named {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn kind(&self) -> ToolKind {
        self.1
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        Err(ToolError::NotStarted { tool: call.name.clone(), why: "it is never started".to_owned() })
    }

    fn reconcile(&self, _: &Call, _: &Cancel) -> Reconciled {
        Reconciled::Unknown
    }
}

const TOKENS_MAX: u64 = 60;
const SECONDS_MAX: u64 = 4;
const TURNS_MAX: u64 = 6;
pub(super) const SPEND_MAX: &str = "0.004";

pub(super) fn rules() -> Rules {
    let mut rules = RunConfig::new(AgentId::new("agent").unwrap(), Arc::new(Uncalled), "none");
    let classes = [
        ("look", EffectClass::Pure),
        ("set", EffectClass::Idempotent),
        ("pay", EffectClass::AtMostOnce),
        ("wire", EffectClass::AtMostOnce),
        ("never", EffectClass::AtMostOnce),
        ("hand", EffectClass::Pure),
    ];
    rules.tools = classes
        .into_iter()
        .map(|(name, class)| {
            let kind = if name == "hand" { ToolKind::Handoff } else { ToolKind::Work };
            let spec = ToolSpec {
                name: name.to_owned(),
                description: String::new(),
                input_schema: json!({}),
                class,
                capability: format!("tool.{name}"),
                risk: Risk::Safe,
                hash: Digest([7; 32]),
            };
            Arc::new(Named(spec, kind)) as Arc<dyn Tool>
        })
        .collect();
    rules.gate = Arc::new(|spec, _| match spec.name.as_str() {
        "wire" => Permission::Ask(NeededApproval::default()),
        "never" => Permission::Denied("the rules say so".to_owned()),
        _ => Permission::Allowed,
    });
    rules.limits = Limits {
        turns: Some(TURNS_MAX),
        tokens: Some(TOKENS_MAX),
        duration_seconds: Some(SECONDS_MAX),
        spend: Some(dollars(SPEND_MAX)),
        ..Limits::default()
    };
    rules.price = Some(Price { input: dollars("1"), output: dollars("1"), ..Price::default() });
    rules.output_tokens_max = Some(300);
    Rules::new(Arc::new(rules), Scopes::none())
}

/// A graph with a node of every kind, whose calls may run once, need an approval, fail and are denied.
const GRAPH: &str = r#"
on_error: continue
permissions: [tool.look]
max_steps: 12
start: fetch
state: { items: [1, 2, 3, 4, 5], got: [] }
nodes:
  fetch: { action: { item_type: tool, item_id: look }, retry: { attempts: 2 }, next: each }
  each:
    type: foreach
    over: "${state.items}"
    parallel: 3
    action: { item_type: tool, item_id: pay, params: { to: "${item}" } }
    collect: got
    next: [{ to: wire, when: { path: result.failed, op: lt, value: 6 } }, { to: end }]
  wire: { action: { item_type: tool, item_id: wire }, on_error: never, next: nap }
  nap: { type: wait, seconds: 5, next: ask }
  ask: { type: approval, message: go on?, on_error: end, next: never }
  never: { action: { item_type: tool, item_id: never }, next: gate }
  gate: { type: gate, next: [{ to: pay, when: { path: state.items, op: exists } }, { to: end }] }
  pay: { action: { item_type: tool, item_id: pay }, next: end }
  end: { type: return, output: "${state.got}" }
"#;

/// The rules of a graph's runs.
pub(super) fn graph_rules() -> Rules {
    let graph = Graph::parse(GRAPH).unwrap();
    assert_eq!(graph.flaws().count(), 0);
    let call = |action: &Action| NodeCall {
        tool: action.item_id.clone(),
        arguments: json!(action.params),
        item: action.item_id.clone(),
    };
    let calls = graph.nodes.iter().filter_map(|node| Some((node.name.clone(), call(node.action()?)))).collect();
    let digest = graph.digest.unwrap();
    let mut work = (*rules().work).clone();
    work.graph = Some(Arc::new(GraphRules::new("graph", graph, digest, calls)));
    Rules::new(Arc::new(work), Scopes::none())
}

pub(super) fn dollars(text: &str) -> Money {
    text.parse().unwrap()
}
