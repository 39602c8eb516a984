//! What a run works with: model, tools, limits and rules.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use selvedge_items::config::{ErrorClass, ResumeMode, Stops, Wait};
use selvedge_log::hash::sha256;
use selvedge_model::limits::Limits;
use selvedge_model::run::PromptPart;
use selvedge_model::{AgentId, Digest, Model, Price, ThreadId, Tool, ToolKind, ToolSpec};
use serde_json::Value;

use crate::conversation::OpenCall;
use crate::error::{Error, Result};
use crate::graph::GraphRules;
use crate::hooks::Hooks;
use crate::spawn::Spawning;

/// Whether a call may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It may be made.
    Allowed,
    /// It may not be made, for this reason; the reason is the result that the model gets.
    Denied(String),
    /// It needs an approval.
    Ask(NeededApproval),
}

/// The approval that a call needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeededApproval {
    /// Why an approval is needed.
    pub why: Option<String>,
    /// How a decision affects the call.
    pub mode: ResumeMode,
    /// After how long the approval request expires and the call is not made; never, if absent.
    pub expires_after: Option<Duration>,
}

/// Decides whether a call of a tool with these arguments may be made.
pub type Gate = Arc<dyn Fn(&ToolSpec, &Value) -> Permission + Send + Sync>;

/// What a run works with: the agent, its rules, its model and its tools.
#[derive(Clone)]
pub struct RunConfig {
    /// The agent.
    pub agent_id: AgentId,
    /// The system prompt.
    pub system: String,
    /// The texts that items brought into the system prompt and the first message; recorded with the run.
    pub prompt: Vec<PromptPart>,
    /// The model.
    pub model: Arc<dyn Model>,
    /// The provider's name for the model.
    pub model_name: String,
    /// Every tool; the model is offered those that the gate does not deny.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Whether a call may be made. Called with null arguments it says whether the model is offered the tool.
    pub gate: Gate,
    /// Limits of the run, where the thread's own record has none.
    pub limits: Limits,
    /// What the model's tokens cost; without a price, nothing may be spent under a money limit.
    pub price: Option<Price>,
    /// The most tokens of an answer, if the model costs anything; absent: a default.
    pub output_tokens_max: Option<u64>,
    /// When a run is stopped because it repeats itself or has done its task.
    pub stops: Stops,
    /// Whether approved calls wait for calls that are still undecided.
    pub wait: Wait,
    /// Classes of model failures that override the provider's own classification.
    pub classes: Vec<ErrorClass>,
    /// How children are started; without it, none can be.
    pub spawning: Option<Spawning>,
    /// When and how a thread whose context is full continues in a successor.
    pub continuation: Continuation,
    /// The hooks, which fire at the events of a run.
    pub hooks: Arc<Hooks>,
    /// The graph that is walked, if it is a graph's run.
    pub graph: Option<Arc<GraphRules>>,
    /// The digest of the configuration all this was made from; recorded with the run.
    pub config: Option<Digest>,
    /// How failures of the model are retried.
    pub retries: RetryPolicy,
    /// Warnings to show when a run begins: which parts of the run configuration are gone since the thread was created.
    pub notices: Vec<String>,
}

/// When and how a thread whose context is full continues in a successor.
#[derive(Clone)]
pub struct Continuation {
    /// The share of the context window at which a thread is handed off.
    pub threshold: f64,
    /// The most tokens of messages that a successor starts with.
    pub ceiling_tokens: u64,
    /// The size of the context window, if the model does not say.
    pub window_tokens: u64,
    /// The most threads in one chain.
    pub chain_max: u64,
    /// The default first message of a successor.
    pub message: String,
    /// Makes the first message of a successor; if it returns none, the default message is used.
    pub first_message: WriteFirstMessage,
}

/// Makes the first message of a successor.
pub type WriteFirstMessage = Arc<dyn Fn(&ContinuedThread) -> Option<String> + Send + Sync>;

/// The predecessor of a successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinuedThread {
    /// The thread that is continued.
    pub previous_thread_id: ThreadId,
    /// The default first message of a successor.
    pub message: String,
}

impl Default for Continuation {
    fn default() -> Self {
        Self {
            threshold: 0.9,
            ceiling_tokens: 16_000,
            window_tokens: 200_000,
            chain_max: 100,
            message:
                "The conversation so far has become too long and continues here. Continue the task where it stopped."
                    .to_owned(),
            first_message: Arc::new(|_| None),
        }
    }
}

impl fmt::Debug for Continuation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Continuation");
        shown.field("threshold", &self.threshold).field("ceiling_tokens", &self.ceiling_tokens);
        shown.field("window_tokens", &self.window_tokens).finish_non_exhaustive()
    }
}

impl Continuation {
    /// The most tokens that a successor starts with: at most half of what fills a context, so that no chain hands itself off for ever.
    pub fn ceiling(&self, window: u64) -> u64 {
        self.ceiling_tokens.min((self.threshold * window as f64 / 2.0) as u64)
    }
}

/// How failures of a model are retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most attempts for one answer.
    pub attempts_max: u32,
    /// The wait after the first failure; it doubles with each further one.
    pub wait: Duration,
    /// The longest wait.
    pub wait_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts_max: 3, wait: Duration::from_secs(1), wait_max: Duration::from_secs(60) }
    }
}

impl RetryPolicy {
    /// The wait after the failure of attempt number `attempt`, counted from one. A wait that the provider asked for replaces the doubled
    /// one, up to the longest wait.
    ///
    /// `spread`, any number, distributes the attempts of threads that failed at the same time: over the second half of a doubled wait, or
    /// over a tenth more than the wait that was asked for.
    pub fn wait_after(&self, attempt: u32, asked: Option<Duration>, spread: u64) -> Duration {
        let share = (spread % 1024) as f64 / 1024.0;
        let wait = match asked {
            Some(asked) => asked.saturating_add(asked.mul_f64(share / 10.0)),
            None => {
                let doubled = self.wait.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
                doubled.min(self.wait_max).mul_f64(0.5 + share / 2.0)
            }
        };
        wait.min(self.wait_max)
    }
}

impl RunConfig {
    /// An agent with a model and no tools.
    pub fn new(agent_id: AgentId, model: Arc<dyn Model>, model_name: impl Into<String>) -> Self {
        Self {
            agent_id,
            system: String::new(),
            prompt: Vec::new(),
            model,
            model_name: model_name.into(),
            tools: Vec::new(),
            gate: Arc::new(|_, _| Permission::Allowed),
            limits: Limits::default(),
            price: None,
            output_tokens_max: None,
            stops: Stops::default(),
            wait: Wait::default(),
            classes: Vec::new(),
            spawning: None,
            continuation: Continuation::default(),
            hooks: Arc::default(),
            graph: None,
            config: None,
            retries: RetryPolicy::default(),
            notices: Vec::new(),
        }
    }

    /// Refuses a model without a price under a spending limit. A run does this itself; a caller may, before it creates a thread.
    pub fn check_price(&self, limits: &Limits) -> Result<()> {
        match (limits.spend, self.price) {
            (Some(_), None) => Err(Error::NoPrice { model: self.model_name.clone() }),
            _ => Ok(()),
        }
    }

    /// The digest of the system prompt, as the record of a run has it.
    pub fn system_digest(&self) -> Digest {
        sha256(self.system.as_bytes())
    }

    /// Whether calls of its model cost money.
    pub(crate) fn is_paid(&self) -> bool {
        self.price.is_some_and(|price| !price.is_free())
    }

    /// The tools that the model is offered: those that the gate does not deny.
    pub fn offered(&self) -> impl Iterator<Item = &ToolSpec> {
        let is_allowed =
            |tool: &&Arc<dyn Tool>| !matches!(self.permission(&***tool, &Value::Null), Permission::Denied(_));
        self.tools.iter().filter(is_allowed).map(|tool| tool.spec())
    }

    /// Whether a call may be made. A run that owes outputs may always return them.
    pub(crate) fn permission(&self, tool: &dyn Tool, arguments: &Value) -> Permission {
        match tool.kind() {
            ToolKind::Return => Permission::Allowed,
            _ => (self.gate)(tool.spec(), arguments),
        }
    }

    /// The tool that only hooks, or only nodes of a graph, call.
    pub(crate) fn own_tool(&self, open: &OpenCall) -> Option<&Arc<dyn Tool>> {
        self.hooks.tool(open).or_else(|| self.graph.as_ref()?.tool(open))
    }

    /// Whether a run must return outputs: there is a tool for that.
    pub(crate) fn owes_outputs(&self) -> bool {
        self.tools.iter().any(|tool| tool.kind() == ToolKind::Return)
    }

    /// The kind of the tool of this name.
    pub(crate) fn kind(&self, name: &str) -> ToolKind {
        self.tool(name).map(|tool| tool.kind()).unwrap_or_default()
    }

    /// The tool of this name.
    pub(crate) fn tool(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }
}

/// For a program that makes one run; programs that make many share one run configuration.
impl From<&RunConfig> for Arc<RunConfig> {
    fn from(work: &RunConfig) -> Self {
        Self::new(work.clone())
    }
}

impl fmt::Debug for RunConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools: Vec<_> = self.tools.iter().map(|tool| &tool.spec().name).collect();
        let mut shown = formatter.debug_struct("RunConfig");
        shown.field("agent_id", &self.agent_id).field("model_name", &self.model_name).field("tools", &tools);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_bound_and_the_provider_may_set_it_within_the_bound() {
        let retries = RetryPolicy { attempts_max: 9, wait: Duration::from_secs(2), wait_max: Duration::from_secs(10) };
        let waits = |spread| -> Vec<_> {
            (1..5).map(|attempt| retries.wait_after(attempt, None, spread).as_millis()).collect()
        };
        assert_eq!(waits(0), [1000, 2000, 4000, 5000]);
        assert_eq!(waits(512), [1500, 3000, 6000, 7500]);
        assert_eq!(retries.wait_after(1, Some(Duration::from_secs(7)), 0).as_secs(), 7);
        assert_eq!(retries.wait_after(1, Some(Duration::from_secs(7000)), 0).as_secs(), 10);
        assert_eq!(retries.wait_after(u32::MAX, None, 0).as_secs(), 5);
    }

    #[test]
    fn threads_that_failed_together_retry_at_different_times_and_not_before_the_provider_allows() {
        let retries = RetryPolicy::default();
        let asked = Duration::from_secs(7);
        let waits: std::collections::BTreeSet<_> =
            (0..1024).map(|spread| retries.wait_after(1, Some(asked), spread)).collect();
        assert!(waits.len() > 1000 && waits.first() == Some(&asked) && waits.last() < Some(&asked.mul_f64(1.1)));
    }
}
