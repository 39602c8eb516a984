//! A tool of a server, as it was approved.

use std::time::Duration;

use selvedge_model::event::{EffectClass, Process};
use selvedge_model::tool::{Dispatch, McpServerSpec, McpToolDefinition, Reconciled, Risk, SandboxReached, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::json;

use super::definition::{capability, digest, tool_name};
use super::message::Failed;
use super::result;
use super::servers::Servers;
use crate::error::InvalidTool;
use crate::in_process;
use crate::schema::Schema;

/// The tool. Its call is sent only if the server still describes it as it was approved.
#[derive(Debug)]
pub struct McpTool {
    server: McpServerSpec,
    approved: McpToolDefinition,
    servers: Servers,
    spec: ToolSpec,
    schema: Schema,
}

impl McpTool {
    /// A tool of a server that its user approved, with the definition that was approved.
    pub fn new(server: McpServerSpec, approved: McpToolDefinition, servers: Servers) -> Result<Self, InvalidTool> {
        let name = tool_name(&server.name, &approved.name);
        let class = server.class_of(&approved);
        let hash = in_process::hash(&json!([server, approved, class]))
            .ok_or_else(|| InvalidTool::new(&name, "its definition has a number that JSON can't hold exactly"))?;
        let schema = Schema::compile(&name, &approved.input_schema)?;
        let spec = ToolSpec {
            description: approved.description.clone(),
            input_schema: approved.input_schema.clone(),
            class,
            capability: capability(&server.name, &approved.name),
            risk: server.risk.unwrap_or(Risk::External),
            hash,
            name,
        };
        Ok(Self { server, approved, servers, spec, schema })
    }
}

impl Tool for McpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn sandbox(&self) -> Option<SandboxReached> {
        self.servers.sandbox(&self.server)
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        Ok(Box::new(StartedCall {
            tool: self.spec.name.clone(),
            class: self.spec.class,
            server: self.server.clone(),
            approved: self.approved.clone(),
            servers: self.servers.clone(),
            arguments: call.arguments.clone(),
        }))
    }

    /// The protocol has no way to ask what became of a call.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        match self.spec.class {
            EffectClass::Pure | EffectClass::Idempotent => Reconciled::NotDone,
            EffectClass::AtMostOnce => Reconciled::Unsupported,
        }
    }
}

/// A call that is not sent yet.
struct StartedCall {
    tool: String,
    class: EffectClass,
    server: McpServerSpec,
    approved: McpToolDefinition,
    servers: Servers,
    arguments: serde_json::Value,
}

impl Started for StartedCall {
    /// The process of a server is shared, and ends with this one.
    fn process(&self) -> Option<Process> {
        None
    }

    fn sandbox(&self) -> Option<SandboxReached> {
        self.servers.sandbox(&self.server)
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let cancel = cancel.clone();
        match cancel.said() {
            Some(_) => Dispatch::Done(Err(ToolError::Stopped { tool: self.tool })),
            None => Dispatch::blocking(move || self.call(&cancel)),
        }
    }
}

impl StartedCall {
    fn call(self, cancel: &Cancel) -> Result<Output, ToolError> {
        let not_started = |why: String| ToolError::NotStarted { tool: self.tool.clone(), why };
        let connection = self.servers.connection(&self.server, cancel).map_err(not_started)?;
        let now = connection.tools.iter().find(|tool| tool.name == self.approved.name);
        let is_approved = now.is_some_and(|now| digest(now) == digest(&self.approved));
        if !is_approved {
            let how = if now.is_some() { "describes it otherwise" } else { "does not offer it any more" };
            let server = &self.server.name;
            return Err(not_started(format!(
                "the server `{server}` {how} than when it was approved; `selvedge mcp check {server}` shows what changed, and \
                 `selvedge mcp approve {server}` approves it"
            )));
        }
        let most = Duration::from_secs(self.server.timeout_seconds);
        let tool = self.tool.clone();
        match connection.call(&self.approved, &self.arguments, cancel, most) {
            Ok(answer) => Ok(result::output(answer)),
            Err(refused @ Failed::Refused { .. }) => Ok(Output::error(refused.to_string())),
            Err(Failed::NotSent(why)) => Err(ToolError::NotStarted { tool, why }),
            Err(Failed::Cancelled) => Err(ToolError::Stopped { tool }),
            Err(failed @ (Failed::Lost(_) | Failed::TimedOut)) => match self.class {
                EffectClass::AtMostOnce => Err(ToolError::Lost { tool, why: failed.to_string() }),
                EffectClass::Pure | EffectClass::Idempotent => Ok(Output::error(format!("`{tool}` failed: {failed}"))),
            },
        }
    }
}
