//! Prepares the child that a call of `spawn_thread` starts.

use selvedge_engine::spawn::NewChild;
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, Call, DirectiveId, Message, Role, ThreadId};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::project::{Project, RunOptions};

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
    /// Older documents name it; it can only be the calling thread.
    parent_thread_id: Option<ThreadId>,
    /// Older documents use these two to continue a thread.
    previous_thread_id: Option<Value>,
    resume_messages: Option<Value>,
}

impl Arguments {
    fn check(&self, caller: &ThreadId) -> Result<(), String> {
        if let Some(parent) = self.parent_thread_id.as_ref().filter(|parent| *parent != caller) {
            return Err(format!("`parent_thread_id` is `{parent}`, but a child belongs to the thread that starts it"));
        }
        if self.previous_thread_id.is_some() || self.resume_messages.is_some() {
            return Err("a child begins a conversation of its own; `resume_thread` continues a thread".to_owned());
        }
        Ok(())
    }
}

/// The child that a call starts.
pub(super) fn prepare(project: &Project, call: &Call) -> Result<NewChild, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let arguments: Arguments = serde_json::from_value(call.arguments.clone()).map_err(|error| text(&error))?;
    arguments.check(&call.thread)?;
    let directive = DirectiveId::new(&arguments.directive).map_err(|error| text(&error))?;
    let agent = arguments.agent.map(AgentId::new).transpose().map_err(|error| text(&error))?;
    let found = project.library.directive(&directive).map_err(|error| text(&error))?;
    // Without a spend limit a child does not get the default of a root thread, but a share of what its parent has left.
    let spend = arguments.limits.over(&found.item.limits).spend;
    let options = RunOptions {
        inputs: arguments.inputs,
        agent,
        model: arguments.model,
        limits: arguments.limits,
        ..RunOptions::default()
    };
    let mut order = project.prepare(&directive, options).map_err(|error| text(&error))?;
    if let Some(limits) = &mut order.thread.limits {
        limits.spend = spend;
    }
    let messages = vec![Message::text(Role::User, order.task)];
    Ok(NewChild { thread: order.thread, messages, detached: arguments.is_async })
}
