//! The hooks of a run, ready to fire: each action as a tool and what it is called with.
//!
//! ```text
//! event ─▶ conditions ─▶ hook_fired + call_opened ─▶ tool_intent ─▶ tool_outcome ─▶ context_injected, or a decision
//!          pure           one commit                  like every other call
//! ```
//!
//! - A call of a hook has an id that follows from log, event, occurrence, hook and action, and no id is used twice: so nothing fires twice,
//!   also after a crash.
//! - When which hook fires, and what follows from its result, is decided in `decide/hooks.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use selvedge_items::hook::{HookEvent, Placed, Source, resolve};
use selvedge_items::interpolate::{Environment, Scope, fill};
use selvedge_log::hash::sha256;
use selvedge_model::event::{CallOrigin, EffectClass};
use selvedge_model::tool::{Function, Risk};
use selvedge_model::{Output, Tool, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::conversation::{OpenCall, OpenCallOrigin};

/// The tool whose result is what it is called with: a decision.
pub const CONTROL: &str = "hook_control";
/// The tool of an action that can't be called.
const UNUSABLE: &str = "hook_unusable";

/// The hooks of a run, in the order in which they fire.
#[derive(Clone)]
pub struct Hooks {
    /// The hooks.
    pub list: Vec<Hook>,
    /// Tools that only hooks call; no capability is needed for them.
    pub tools: Vec<Arc<dyn Tool>>,
    /// What conditions and actions can refer to, besides what follows from the thread: `directive_body`, `project_path`.
    pub facts: Map<String, Value>,
}

/// A hook whose actions are resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Hook {
    /// The hook.
    pub placed: Placed,
    /// Its actions, in order; none for a built-in one, which the engine performs itself.
    pub calls: Vec<HookCall>,
}

/// An action as a call.
#[derive(Clone, Debug, PartialEq)]
pub struct HookCall {
    /// The tool.
    pub tool: String,
    /// Its arguments, interpolated when the hook fires.
    pub arguments: Value,
    /// The item, as a log names it.
    pub source: String,
    /// Whether its result is a [`Knowledge`] for the prompt.
    pub is_knowledge: bool,
}

impl HookCall {
    /// An action that can't be called: its result is this error.
    pub fn unusable(source: impl Into<String>, why: impl Into<String>) -> Self {
        let arguments = json!({"why": why.into()});
        Self { tool: UNUSABLE.to_owned(), arguments, source: source.into(), is_knowledge: false }
    }
}

/// What a hook would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The hook.
    pub hook: String,
    /// Where it comes from.
    pub source: Source,
    /// The layer whose place it has.
    pub layer: Source,
    /// Whether it only observes.
    pub observer: bool,
    /// Whether its condition holds.
    pub fires: bool,
    /// Its calls.
    pub calls: Vec<TriedCall>,
}

/// What a hook would call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TriedCall {
    /// The item.
    pub item: String,
    /// The tool.
    pub tool: String,
    /// Its arguments.
    pub arguments: Value,
    /// Why they can't be filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self::new(resolve(None, None, None).into_iter().map(|placed| Hook { placed, calls: Vec::new() }).collect())
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.list.iter().map(|hook| &hook.placed.hook.id)).finish()
    }
}

impl Hooks {
    /// Hooks with the tools that every run has for them.
    pub fn new(list: Vec<Hook>) -> Self {
        Self { list, tools: vec![control(), unusable()], facts: Map::new() }
    }

    /// Their form in snapshots.
    pub fn shown(&self) -> Vec<Value> {
        let own = self.list.iter().filter(|hook| hook.placed.source != Source::BuiltIn);
        own.flat_map(|hook| hook.placed.hook.shown()).collect()
    }

    /// Which hooks of an event would fire with these values, and what they would call. Nothing is executed.
    pub fn try_at(&self, event: HookEvent, values: &Value) -> Vec<Trial> {
        let environment = Environment { allowed: &[], variables: None };
        let scope = Scope { values, environment };
        let tried = |call: &HookCall| {
            let HookCall { source: item, tool, .. } = call.clone();
            match fill(&call.arguments, &scope) {
                Ok(arguments) => TriedCall { item, tool, arguments, error: None },
                Err(error) => TriedCall { item, tool, arguments: Value::Null, error: Some(error.to_string()) },
            }
        };
        let of_event = self.list.iter().filter(|hook| hook.placed.hook.event == event);
        of_event
            .map(|hook| Trial {
                hook: hook.placed.hook.id.clone(),
                source: hook.placed.source,
                layer: hook.placed.layer,
                observer: hook.placed.hook.observer,
                fires: hook.placed.hook.condition.holds(values),
                calls: hook.calls.iter().map(tried).collect(),
            })
            .collect()
    }

    /// The hooks of an event that the engine does not perform itself, each with its place in the order.
    pub(crate) fn at(&self, event: HookEvent) -> impl Iterator<Item = (usize, &Hook)> {
        let is_of = move |(_, hook): &(usize, &Hook)| hook.placed.hook.event == event && !hook.is_built_in();
        self.list.iter().enumerate().filter(is_of)
    }

    /// Whether a built-in reaction is in force: neither replaced nor suppressed.
    pub(crate) fn has_built_in(&self, id: &str) -> bool {
        self.list.iter().any(|hook| hook.is_built_in() && hook.placed.hook.id == id)
    }

    /// The hook of a call, its place in the order, and the number of the action.
    pub(crate) fn of_call(&self, open: &OpenCall) -> Option<(usize, &Hook, usize)> {
        let OpenCallOrigin::Opened(CallOrigin::Hook { hook: id, .. }) = &open.origin else { return None };
        let (order, hook) = self.list.iter().enumerate().find(|(_, hook)| hook.placed.hook.id == *id)?;
        let action = open.id.as_str().rsplit('.').next()?.parse().ok()?;
        hook.calls.get(action).map(|_| (order, hook, action))
    }

    /// The tool that only hooks call.
    pub(crate) fn tool(&self, open: &OpenCall) -> Option<&Arc<dyn Tool>> {
        open.is_of_hook().then(|| self.tools.iter().find(|tool| tool.spec().name == open.name)).flatten()
    }

    /// How long a call may take, if a hook made it.
    pub(crate) fn time_box(&self, open: &OpenCall) -> Option<Duration> {
        let (_, hook, _) = self.of_call(open)?;
        Some(Duration::from_secs(hook.placed.hook.timeout_seconds))
    }

    /// Whether the result of a call is context, which is recorded whole.
    pub(crate) fn brings_context(&self, open: &OpenCall) -> bool {
        self.of_call(open)
            .is_some_and(|(_, hook, action)| hook.calls[action].is_knowledge || hook.placed.hook.event.takes_context())
    }
}

impl Hook {
    /// Whether the engine performs it itself.
    pub(crate) fn is_built_in(&self) -> bool {
        self.placed.source == Source::BuiltIn
    }
}

impl OpenCall {
    /// Whether a hook opened it.
    pub(crate) fn is_of_hook(&self) -> bool {
        matches!(self.origin, OpenCallOrigin::Opened(CallOrigin::Hook { .. }))
    }
}

/// An entry of knowledge, as the tool that fetches it for a hook returns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knowledge {
    /// Its id.
    pub id: String,
    /// SHA-256 of its file; absent if there is no such entry.
    pub digest: Option<selvedge_model::Digest>,
    /// Its text; of a missing entry, why it is missing.
    pub text: String,
}

fn own_tool(name: &str, description: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        input_schema: json!({"type": "object"}),
        class: EffectClass::Pure,
        capability: String::new(),
        risk: Risk::Safe,
        hash: sha256(name.as_bytes()),
    }
}

fn control() -> Arc<dyn Tool> {
    let spec = own_tool(CONTROL, "Decides what a run does.");
    Arc::new(Function::new(spec, |call, _| Ok(Output { content: call.arguments.clone(), ..Output::default() })))
}

fn unusable() -> Arc<dyn Tool> {
    let spec = own_tool(UNUSABLE, "Says why an action can't be called.");
    Arc::new(Function::new(spec, |call, _| {
        let why = call.arguments.get("why").and_then(Value::as_str).unwrap_or_default();
        Ok(Output::error(why))
    }))
}
