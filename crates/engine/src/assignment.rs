//! What a run is done with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, Model, Tool, ToolSpec};
use serde_json::Value;

/// Whether a call may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It may.
    Allowed,
    /// It may not, for this reason; the model is told.
    Denied(String),
}

/// Decides whether a call of a tool with these arguments may be made.
pub type Gate = Arc<dyn Fn(&ToolSpec, &Value) -> Permission + Send + Sync>;

/// What a run is done with: who runs, under which rules, with which model and tools.
#[derive(Clone)]
pub struct Assignment {
    /// The agent.
    pub agent_id: AgentId,
    /// The rules the model answers under.
    pub system: String,
    /// The model.
    pub model: Arc<dyn Model>,
    /// The provider's name for it.
    pub model_name: String,
    /// Every tool there is; the model is told of those that the gate allows.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Whether a call may be made; asked with null for arguments, whether the model is told of the tool.
    pub gate: Gate,
    /// The name of the tool that ends a run with outputs: `outputs` of its answer, or all of it.
    pub return_tool: Option<String>,
    /// Ceilings of the run.
    pub limits: Limits,
    /// How failures of the model are met.
    pub patience: Patience,
}

/// How failures of a model are met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How often a call is made at most.
    pub attempts_max: u32,
    /// How long to wait after the first failure; twice as long after each further one.
    pub wait: Duration,
    /// How long to wait at most.
    pub wait_max: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { attempts_max: 3, wait: Duration::from_secs(1), wait_max: Duration::from_secs(60) }
    }
}

impl Patience {
    /// How long to wait after the failure of attempt number `attempt`, counted from one, unless the provider said how long.
    pub fn wait_after(&self, attempt: u32, asked: Option<Duration>) -> Duration {
        let doubled = self.wait.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
        asked.unwrap_or(doubled).min(self.wait_max)
    }
}

impl Assignment {
    /// An agent with a model and nothing to call.
    pub fn new(agent_id: AgentId, model: Arc<dyn Model>, model_name: impl Into<String>) -> Self {
        Self {
            agent_id,
            system: String::new(),
            model,
            model_name: model_name.into(),
            tools: Vec::new(),
            gate: Arc::new(|_, _| Permission::Allowed),
            return_tool: None,
            limits: Limits::default(),
            patience: Patience::default(),
        }
    }

    /// What the model is told of: the tools that the gate allows.
    pub fn offered(&self) -> impl Iterator<Item = &ToolSpec> {
        let is_allowed = |spec: &&ToolSpec| (self.gate)(spec, &Value::Null) == Permission::Allowed;
        self.tools.iter().map(|tool| tool.spec()).filter(is_allowed)
    }

    /// The tool of this name.
    pub(crate) fn tool(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }
}

impl fmt::Debug for Assignment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools: Vec<_> = self.tools.iter().map(|tool| &tool.spec().name).collect();
        let mut shown = formatter.debug_struct("Assignment");
        shown.field("agent_id", &self.agent_id).field("model_name", &self.model_name).field("tools", &tools);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_doubles_up_to_a_bound_and_the_provider_is_believed_within_it() {
        let patience = Patience { attempts_max: 9, wait: Duration::from_secs(2), wait_max: Duration::from_secs(10) };
        let waits: Vec<_> = (1..5).map(|attempt| patience.wait_after(attempt, None).as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 10]);
        assert_eq!(patience.wait_after(1, Some(Duration::from_secs(7))).as_secs(), 7);
        assert_eq!(patience.wait_after(1, Some(Duration::from_secs(7000))).as_secs(), 10);
        assert_eq!(patience.wait_after(u32::MAX, None).as_secs(), 10);
    }
}
