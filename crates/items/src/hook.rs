//! Hooks: actions at the events of a run.
//!
//! ```text
//! hooks:                                                     in a directive, or in config/agent/hooks.yaml
//!   - id: remember
//!     event: after_complete
//!     condition: {path: cost.turns, op: gte, value: 1}
//!     action: {primary: execute, item_type: tool, item_id: thread_summary, params: {thread_id: "${thread_id}"}}
//!   - {event: limit, directive: ops/on_limit, inputs: {}}     the short form: a directive as action
//! ```
//!
//! The form of one hook is read here; [`resolve`] puts the hooks of all sources into one order, and [`Control`] is what a hook can decide.
//! The engine fires them.

mod control;
mod file;
mod resolve;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::condition::Condition;
use crate::nearest::advice;

pub use control::{CONTROLS, Control};
pub use file::{FILE, HookFile};
pub use resolve::{BUILT_IN, Placed, Source, resolve};

/// An event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookEvent {
    /// The system prompt of a thread is made, before its first turn.
    BuildSystemPrompt,
    /// A thread that continues no other one begins.
    ThreadStarted,
    /// A thread that continues another one begins.
    ThreadContinued,
    /// A suspended thread runs again.
    ThreadResumed,
    /// A turn and its calls are over.
    AfterStep,
    /// The model failed.
    Error,
    /// A limit was reached.
    Limit,
    /// A call waits for an approval.
    Approval,
    /// The outputs were returned.
    DirectiveReturn,
    /// The context window is full.
    ContextLimitReached,
    /// A run is about to end for good, or to hand off.
    AfterComplete,
    /// A graph begins.
    GraphStarted,
    /// A graph is about to end.
    GraphCompleted,
}

impl HookEvent {
    /// All events, in the order in which a run meets them.
    pub const ALL: [Self; 13] = [
        Self::BuildSystemPrompt,
        Self::ThreadStarted,
        Self::ThreadContinued,
        Self::ThreadResumed,
        Self::AfterStep,
        Self::Error,
        Self::Limit,
        Self::Approval,
        Self::DirectiveReturn,
        Self::ContextLimitReached,
        Self::AfterComplete,
        Self::GraphStarted,
        Self::GraphCompleted,
    ];

    /// The events of a graph's run.
    pub const OF_GRAPHS: [Self; 6] =
        [Self::GraphStarted, Self::AfterStep, Self::Error, Self::Limit, Self::Approval, Self::GraphCompleted];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BuildSystemPrompt => "build_system_prompt",
            Self::ThreadStarted => "thread_started",
            Self::ThreadContinued => "thread_continued",
            Self::ThreadResumed => "thread_resumed",
            Self::AfterStep => "after_step",
            Self::Error => "error",
            Self::Limit => "limit",
            Self::Approval => "approval",
            Self::DirectiveReturn => "directive_return",
            Self::ContextLimitReached => "context_limit_reached",
            Self::AfterComplete => "after_complete",
            Self::GraphStarted => "graph_started",
            Self::GraphCompleted => "graph_completed",
        }
    }

    /// The event of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == name)
    }

    /// Whether what any action returns is context for the model; at other events only knowledge is.
    pub fn takes_context(self) -> bool {
        matches!(self, Self::BuildSystemPrompt | Self::ThreadStarted | Self::ThreadContinued | Self::ThreadResumed)
    }

    fn parse(name: &str) -> Result<Self, String> {
        if name == "resolve_extends" {
            return Err("`resolve_extends` is not supported: name the parent with `extends`".to_owned());
        }
        Self::named(name).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str);
            format!("`{}` is not an event: {}", name.escape_debug(), advice(name, &known))
        })
    }
}

/// Where the content of a hook is inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Before the last message of the user.
    #[default]
    Before,
    /// After it.
    After,
}

/// One action of a hook: an item, and what it is called with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The verb: `execute`, or `fetch` for knowledge.
    pub primary: String,
    /// The kind of item: `tool`, `knowledge` or `directive`.
    pub item_type: String,
    /// The item; interpolated when the hook fires.
    pub item_id: String,
    /// Its parameters; interpolated when the hook fires.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
}

impl Action {
    /// The kinds of items.
    pub const TOOL: &'static str = "tool";
    /// See [`Action::TOOL`].
    pub const KNOWLEDGE: &'static str = "knowledge";
    /// See [`Action::TOOL`].
    pub const DIRECTIVE: &'static str = "directive";
    /// See [`Action::TOOL`]; only a graph's node has it.
    pub const GRAPH: &'static str = "graph";

    fn check(&self) -> Result<(), String> {
        let kinds = [Self::TOOL, Self::KNOWLEDGE, Self::DIRECTIVE];
        if !kinds.contains(&self.item_type.as_str()) {
            let kind = self.item_type.escape_debug();
            return Err(format!("`{kind}` is no item of an action: {}", advice(&self.item_type, &kinds)));
        }
        let verbs: &[&str] =
            if self.item_type == Self::KNOWLEDGE { &["execute", "fetch", "load"] } else { &["execute"] };
        if !verbs.contains(&self.primary.as_str()) {
            let verb = self.primary.escape_debug();
            return Err(format!("`{verb}` can't be done with a {}: {}", self.item_type, advice(&self.primary, verbs)));
        }
        if self.item_id.trim().is_empty() {
            return Err("`item_id` is empty".to_owned());
        }
        Ok(())
    }
}

/// The actions at an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hook {
    /// Its name: a hook with the same name replaces it.
    pub id: String,
    /// The event.
    pub event: HookEvent,
    /// When it fires; always by default.
    pub condition: Condition,
    /// Its actions, one after the other.
    pub actions: Vec<Action>,
    /// Where its content is inserted.
    pub position: Position,
    /// Whether its content is wrapped in an element that names it.
    pub wrap: bool,
    /// Whether it only observes: it comes after all others and decides nothing.
    pub observer: bool,
    /// Whether the run fails if it fails.
    pub required: bool,
    /// How long each of its actions may take.
    pub timeout_seconds: u64,
    /// Its purpose.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// How long an action may take by default.
const TIMEOUT_SECONDS: u64 = 120;

/// The most time that an action may take.
const TIMEOUT_SECONDS_MAX: u64 = 3600;

/// The most actions of a hook.
const ACTIONS_MAX: usize = 16;

impl Hook {
    /// Its form in a snapshot: one entry for each action.
    pub fn shown(&self) -> impl Iterator<Item = Value> {
        self.actions
            .iter()
            .map(|action| json!({"event": self.event.as_str(), "directive": action.item_id, "inputs": action.params}))
    }
}

/// The written form of a hook, in either form of a directive.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fields {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) event: String,
    #[serde(default)]
    pub(crate) condition: Condition,
    #[serde(default)]
    pub(crate) action: Option<WrittenAction>,
    #[serde(default)]
    pub(crate) actions: Vec<WrittenAction>,
    /// The short form: a directive, and its inputs.
    #[serde(default)]
    pub(crate) directive: Option<String>,
    #[serde(default)]
    pub(crate) inputs: Map<String, Value>,
    #[serde(default)]
    pub(crate) position: Position,
    #[serde(default = "always")]
    pub(crate) wrap: bool,
    #[serde(default)]
    pub(crate) layer: Option<String>,
    #[serde(default)]
    pub(crate) required: bool,
    #[serde(default)]
    pub(crate) timeout_seconds: Option<u64>,
    #[serde(default)]
    pub(crate) description: String,
}

/// The written form of an action.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenAction {
    #[serde(default)]
    pub(crate) primary: Option<String>,
    #[serde(default)]
    pub(crate) item_type: Option<String>,
    #[serde(default)]
    pub(crate) item_id: Option<String>,
    #[serde(default)]
    pub(crate) params: Map<String, Value>,
    #[serde(default)]
    pub(crate) set_extends: Option<Value>,
}

impl WrittenAction {
    fn checked(self, hook: &str) -> Result<Action, String> {
        if self.set_extends.is_some() {
            return Err(format!("`set_extends` of `{hook}` is not supported: name the parent with `extends`"));
        }
        let (Some(primary), Some(item_type), Some(item_id)) = (self.primary, self.item_type, self.item_id) else {
            return Err(format!("an action of `{hook}` needs `primary`, `item_type` and `item_id`"));
        };
        let action = Action { primary, item_type, item_id, params: self.params };
        action.check().map_err(|why| format!("an action of `{hook}`: {why}"))?;
        Ok(action)
    }
}

fn always() -> bool {
    true
}

impl TryFrom<Fields> for Hook {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let event = HookEvent::parse(&fields.event)?;
        let short = fields.directive.map(|item_id| Action {
            primary: "execute".to_owned(),
            item_type: Action::DIRECTIVE.to_owned(),
            item_id,
            params: fields.inputs.clone(),
        });
        // The short form of the documents has no id.
        let named = short.as_ref().map(|action| format!("{}:{}", event.as_str(), action.item_id));
        let id = fields.id.or(named).unwrap_or_default();
        let written = fields.action.into_iter().chain(fields.actions);
        let mut actions = written.map(|action| action.checked(&id)).collect::<Result<Vec<_>, _>>()?;
        match short {
            Some(_) if !actions.is_empty() => return Err(format!("`{id}` has both `directive` and an action")),
            Some(short) => actions.push(short),
            None if !fields.inputs.is_empty() => return Err(format!("`inputs` of `{id}` need a `directive`")),
            None => {}
        }
        if id.trim().is_empty() || actions.is_empty() {
            return Err("a hook needs an `id` and at least one action".to_owned());
        }
        if actions.len() > ACTIONS_MAX || id.len() > 200 {
            return Err(format!("`{id}` has more than {ACTIONS_MAX} actions, or a name above 200 bytes"));
        }
        let observer = match fields.layer.as_deref() {
            None => false,
            Some("observer") => true,
            Some(other) => {
                let other = other.escape_debug();
                return Err(format!("the layer `{other}` of `{id}` follows from its file; only `observer` can be set"));
            }
        };
        let timeout_seconds = fields.timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
        if timeout_seconds == 0 || timeout_seconds > TIMEOUT_SECONDS_MAX {
            return Err(format!("`timeout_seconds` of `{id}` must be between 1 and {TIMEOUT_SECONDS_MAX}"));
        }
        Ok(Self {
            id,
            event,
            condition: fields.condition,
            actions,
            position: fields.position,
            wrap: fields.wrap,
            observer,
            required: fields.required,
            timeout_seconds,
            description: fields.description,
        })
    }
}

impl<'de> Deserialize<'de> for Hook {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Fields::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}
