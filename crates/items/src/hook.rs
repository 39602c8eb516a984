//! Hooks: the actions of a directive at an event. They are parsed here; the engine executes them.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::condition::Condition;
use crate::nearest::advice;

/// All events of hooks. An unknown one is an error: such a hook would never fire.
pub const EVENTS: [&str; 13] = [
    "resolve_extends",
    "build_system_prompt",
    "thread_started",
    "thread_continued",
    "error",
    "limit",
    "after_step",
    "directive_return",
    "context_limit_reached",
    "context_window_pressure",
    "after_complete",
    "graph_started",
    "graph_completed",
];

/// Where the content of a hook is inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Before the message it belongs to.
    #[default]
    Before,
    /// After it.
    After,
}

/// One action of a hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The verb, such as `execute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// The kind of item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_type: Option<String>,
    /// The item; interpolated when the hook fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// Its parameters; interpolated when the hook fires.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// The directive to extend, for `resolve_extends`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_extends: Option<String>,
}

/// The actions at an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hook {
    /// Its name, unique within the directive.
    pub id: String,
    /// The event.
    pub event: String,
    /// When it fires; always by default.
    pub condition: Condition,
    /// Its actions, in order.
    pub actions: Vec<Action>,
    /// Where its content is inserted.
    pub position: Position,
    /// Whether its content is wrapped in an element that names it.
    pub wrap: bool,
    /// Its purpose.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

impl Hook {
    /// Its form in a snapshot: one entry for each action.
    pub fn shown(&self) -> impl Iterator<Item = Value> {
        self.actions.iter().map(|action| {
            let mut entry = Map::from_iter([("event".to_owned(), Value::from(self.event.as_str()))]);
            let item = action.item_id.as_ref().or(action.set_extends.as_ref());
            entry.extend(item.map(|item| ("directive".to_owned(), Value::from(item.as_str()))));
            entry.insert("inputs".to_owned(), Value::Object(action.params.clone()));
            Value::Object(entry)
        })
    }
}

/// The written form of a hook, in either form of a directive.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fields {
    pub(crate) id: String,
    pub(crate) event: String,
    #[serde(default)]
    pub(crate) condition: Condition,
    #[serde(default)]
    pub(crate) action: Option<Action>,
    #[serde(default)]
    pub(crate) actions: Vec<Action>,
    #[serde(default)]
    pub(crate) position: Position,
    #[serde(default = "always")]
    pub(crate) wrap: bool,
    #[serde(default)]
    pub(crate) description: String,
}

fn always() -> bool {
    true
}

impl TryFrom<Fields> for Hook {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let Fields { id, event, condition, action, actions, position, wrap, description } = fields;
        if !EVENTS.contains(&event.as_str()) {
            return Err(format!("`{}` is not an event: {}", event.escape_debug(), advice(&event, &EVENTS)));
        }
        let actions: Vec<_> = action.into_iter().chain(actions).collect();
        if id.trim().is_empty() || actions.is_empty() {
            return Err("a hook needs an `id` and at least one action".to_owned());
        }
        for action in &actions {
            let names_item = action.primary.is_some() && action.item_type.is_some() && action.item_id.is_some();
            if names_item == action.set_extends.is_some() {
                return Err(format!(
                    "an action of `{id}` needs either `primary`, `item_type` and `item_id`, or `set_extends`"
                ));
            }
        }
        Ok(Self { id, event, condition, actions, position, wrap, description })
    }
}

impl<'de> Deserialize<'de> for Hook {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Fields::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}
