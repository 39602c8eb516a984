//! The hooks of a run: those of the user, the project and the directive, each action as a call of a tool.
//!
//! | item of an action | tool |
//! |---|---|
//! | a tool | the tool of that name; a `rye/…` or `selvedge/…` id is read as the built-in one |
//! | `…/agent/threads/internal/control` | the decision that the parameters are |
//! | `…/agent/threads/thread_summary` | [`summary`](crate::orchestrator::SUMMARY), for hooks only |
//! | a directive | `spawn_thread`: a child thread |
//! | knowledge | the entry, verified; a missing one is skipped |
//!
//! Tools and directives need the capabilities of the thread. Knowledge does not, as with a directive's `context`: an interpolated id stays
//! below what precedes its first expression, since no id has `..`.

use std::sync::Arc;

use selvedge_engine::hooks::{CONTROL, Hook, HookCall, Hooks, Knowledge};
use selvedge_items::directive::Directive;
use selvedge_items::hook::{Action, Control, HookFile, Placed, Source, resolve};
use selvedge_items::{Graph, ItemError, Layer, Library};
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Function, Risk};
use selvedge_model::{DirectiveId, Output, Tool, ToolError};
use selvedge_tools::built_in;
use serde_json::{Value, json};

use super::{Project, ProjectError};
use crate::orchestrator::older_names::Older;
use crate::orchestrator::{SPAWN, SUMMARY};

/// The tool that fetches knowledge for a hook.
const KNOWLEDGE: &str = "hook_knowledge";
/// Where the built-in actions are.
const BUILT_IN: [&str; 2] = ["rye/agent/threads/", "selvedge/agent/threads/"];

impl Project {
    /// All hooks that count for a directive's threads, in the order in which they fire.
    pub fn hooks(&self, directive: Option<&Directive>) -> Result<Vec<Placed>, ProjectError> {
        let file = |layer| Ok::<_, ItemError>(self.library.hooks(layer)?.map(|(file, _)| file));
        let user: Option<HookFile> = file(Layer::User)?;
        let project: Option<HookFile> = file(Layer::Project)?;
        let own = directive.map(|directive| (directive.hooks.as_slice(), directive.context.suppress.as_slice()));
        Ok(resolve(user.as_ref(), project.as_ref(), own))
    }

    /// All hooks that count for a graph's runs.
    pub fn graph_hooks(&self, graph: &Graph) -> Result<Vec<Placed>, ProjectError> {
        let file = |layer| Ok::<_, ItemError>(self.library.hooks(layer)?.map(|(file, _)| file));
        let user: Option<HookFile> = file(Layer::User)?;
        let project: Option<HookFile> = file(Layer::Project)?;
        Ok(resolve(user.as_ref(), project.as_ref(), Some((graph.hooks.as_slice(), &[]))))
    }

    /// Hooks ready to fire.
    pub(super) fn ready(&self, placed: Vec<Placed>) -> Hooks {
        let list = placed.into_iter().map(|placed| {
            let is_built_in = placed.source == Source::BuiltIn;
            let actions = placed.hook.actions.iter().filter(|_| !is_built_in);
            Hook { calls: actions.map(call).collect(), placed }
        });
        let mut hooks = Hooks::new(list.collect());
        hooks.tools.push(knowledge(self.library.clone()));
        hooks.facts.insert("project_path".to_owned(), json!(self.folder));
        hooks
    }

    /// The same, ready to fire.
    pub fn ready_hooks(&self, directive: Option<&Directive>) -> Result<Hooks, ProjectError> {
        let mut hooks = self.ready(self.hooks(directive)?);
        hooks.facts.extend(directive.map(|directive| ("directive_body".to_owned(), json!(directive.body))));
        Ok(hooks)
    }

    /// Warnings about hooks whose action calls nothing that exists.
    pub fn hook_warnings(&self, hooks: &[Placed]) -> Result<Vec<String>, ProjectError> {
        let known = self.tool_names()?;
        let mut warnings = Vec::new();
        for placed in hooks.iter().filter(|placed| placed.source != Source::BuiltIn) {
            for action in &placed.hook.actions {
                let call = call(action);
                let id = &action.item_id;
                let is_template = id.contains("${") || id.contains("{input:");
                let what = match action.item_type.as_str() {
                    Action::DIRECTIVE if !is_template => {
                        let found = DirectiveId::new(id.as_str()).ok().map(|id| self.library.directive(&id));
                        found.and_then(Result::err).map(|error| error.to_string())
                    }
                    Action::TOOL => {
                        let is_known = [CONTROL, SUMMARY].contains(&call.tool.as_str()) || known.contains(&call.tool);
                        let why = call.arguments.get("why").and_then(Value::as_str).map(str::to_owned);
                        let older = Older::named(id).is_some();
                        (!is_known && !older)
                            .then(|| why.unwrap_or_else(|| format!("there is no tool `{}`", call.tool)))
                    }
                    _ => None,
                };
                warnings
                    .extend(what.map(|what| format!("an action of hook `{}` can't be made: {what}", placed.hook.id)));
            }
        }
        Ok(warnings)
    }
}

/// An action as a call.
pub(super) fn call(action: &Action) -> HookCall {
    let Action { item_type, item_id, params, .. } = action;
    let source = format!("{item_type} {item_id}");
    let of = |tool: &str, arguments: Value| HookCall {
        tool: tool.to_owned(),
        arguments,
        source: source.clone(),
        is_knowledge: item_type == Action::KNOWLEDGE,
    };
    let built_in = BUILT_IN.iter().find_map(|folder| item_id.strip_prefix(folder));
    match (item_type.as_str(), built_in) {
        (Action::KNOWLEDGE, _) => of(KNOWLEDGE, json!({"id": item_id})),
        (Action::DIRECTIVE, _) => of(SPAWN, json!({"directive": item_id, "inputs": params})),
        (_, Some("internal/control")) => match Control::of(&json!(params)) {
            Some(Ok(_)) => of(CONTROL, json!(params)),
            Some(Err(why)) => HookCall::unusable(source, format!("it decides nothing: {why}")),
            None => HookCall::unusable(source, "it decides nothing: `action` must be a word for a decision"),
        },
        (_, Some("thread_summary")) => of(SUMMARY, json!(params)),
        _ if item_id == SUMMARY => of(SUMMARY, json!(params)),
        _ => match Older::named(item_id) {
            Some(older) => of(&older.offered_name(), json!(params)),
            None => of(item_id.rsplit('/').next().unwrap_or_default(), json!(params)),
        },
    }
}

fn knowledge(library: Library) -> Arc<dyn Tool> {
    let schema = json!({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]});
    let what = "Fetches an entry of knowledge for a hook.";
    let spec = built_in(KNOWLEDGE, what, schema, EffectClass::Pure, Risk::Safe);
    Arc::new(Function::new(spec, move |call, _| fetch(&library, &call.arguments)))
}

fn fetch(library: &Library, arguments: &Value) -> Result<Output, ToolError> {
    let id = arguments.get("id").and_then(Value::as_str).unwrap_or_default();
    let found = DirectiveId::new(id).map_err(ItemError::from).and_then(|id| library.knowledge(&id));
    let knowledge = match found {
        Ok(found) => {
            Knowledge { id: found.id().to_owned(), digest: Some(found.sources[0].hash), text: found.item.body.clone() }
        }
        Err(error @ (ItemError::NotFound { .. } | ItemError::Name(_))) => {
            Knowledge { id: id.to_owned(), digest: None, text: error.to_string() }
        }
        // It is there, but it is not what was signed.
        Err(error @ (ItemError::NotTrusted { .. } | ItemError::Unsafe { .. })) => {
            return Err(ToolError::Integrity { tool: KNOWLEDGE.to_owned(), why: error.to_string() });
        }
        Err(error) => return Ok(Output::error(error.to_string())),
    };
    Ok(Output { content: json!(knowledge), ..Output::default() })
}
