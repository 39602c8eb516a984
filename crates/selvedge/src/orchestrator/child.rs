//! Prepares the child that a call of `spawn_thread` starts.

use selvedge_engine::spawn::Order;
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, Call, DirectiveId, Message, Role};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::workshop::{OrderOptions, Workshop};

/// The arguments of the tool that starts a child.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    #[serde(alias = "directive_id")]
    directive: String,
    #[serde(default)]
    inputs: Map<String, Value>,
    #[serde(default, rename = "async")]
    is_async: bool,
    model: Option<String>,
    agent: Option<String>,
    #[serde(default, alias = "limit_overrides")]
    limits: Limits,
}

/// The child that a call starts.
pub(super) fn order(workshop: &Workshop, call: &Call) -> Result<Order, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let arguments: Arguments = serde_json::from_value(call.arguments.clone()).map_err(|error| text(&error))?;
    let directive = DirectiveId::new(&arguments.directive).map_err(|error| text(&error))?;
    let agent = arguments.agent.map(AgentId::new).transpose().map_err(|error| text(&error))?;
    let found = workshop.library.directive(&directive).map_err(|error| text(&error))?;
    // Without a spend limit a child does not get the default of a root thread, but a share of what its parent has left.
    let spend = arguments.limits.over(&found.item.limits).spend;
    let options = OrderOptions {
        inputs: arguments.inputs,
        agent,
        model: arguments.model,
        limits: arguments.limits,
        ..OrderOptions::default()
    };
    let mut order = workshop.order(&directive, options).map_err(|error| text(&error))?;
    if let Some(limits) = &mut order.thread.limits {
        limits.spend = spend;
    }
    let messages = vec![Message::text(Role::User, order.task)];
    Ok(Order { thread: order.thread, messages, detached: arguments.is_async })
}
