//! What a run is done with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use selvedge_items::config::{ErrorClass, ResumeMode, Stops, Wait};
use selvedge_log::hash::sha256;
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, Digest, Model, Price, ThreadId, Tool, ToolKind, ToolSpec};
use serde_json::Value;

use crate::spawn::Spawning;

/// Whether a call may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It may.
    Allowed,
    /// It may not, for this reason; the model is told.
    Denied(String),
    /// It may once somebody says so.
    Ask(Asking),
}

/// How somebody is asked about a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// Why somebody is asked.
    pub why: Option<String>,
    /// What a decision is to the call.
    pub mode: ResumeMode,
    /// After how long nobody's word counts any more and the call is not made; for ever if nothing is said.
    pub expires_after: Option<Duration>,
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
    /// Ceilings of the run, where the thread's own record has none.
    pub limits: Limits,
    /// What the model's tokens cost; without it nothing may be spent under a ceiling of money.
    pub price: Option<Price>,
    /// How many tokens an answer may have, if the model costs anything; a default if nobody says.
    pub output_tokens_max: Option<u64>,
    /// When a run is stopped that goes in circles or has done what it was to do.
    pub stops: Stops,
    /// Whether approved calls wait for each other.
    pub wait: Wait,
    /// What failures of the model are, for somebody who knows better than its provider.
    pub classes: Vec<ErrorClass>,
    /// How children are started; without it none are.
    pub spawning: Option<Spawning>,
    /// When a thread whose context is full goes on in another one, and how.
    pub continuation: Continuation,
    /// What its directive wants done at events, as snapshots show it: `{event, directive, inputs}`.
    pub hooks: Vec<Value>,
    /// The configuration that all this was made from; it stands in the record of the run.
    pub config: Option<Digest>,
    /// How failures of the model are met.
    pub patience: Patience,
    /// What somebody should know who lets a run begin: what of all this is gone since the thread was created.
    pub notices: Vec<String>,
}

/// When a thread whose context is full goes on in another one, and how.
#[derive(Clone)]
pub struct Continuation {
    /// The share of the context window from which on a thread is handed over.
    pub threshold: f64,
    /// The most tokens of messages that a successor takes along.
    pub ceiling_tokens: u64,
    /// The context window, where the model does not say.
    pub window_tokens: u64,
    /// The most threads of one chain.
    pub chain_max: u64,
    /// What a successor is told when nothing better is known.
    pub message: String,
    /// Makes the word that seeds a successor's first turn; without one the plain message does.
    pub seed: Seed,
}

/// Makes the word that seeds a successor's first turn.
pub type Seed = Arc<dyn Fn(&Left) -> Option<String> + Send + Sync>;

/// What a successor comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The thread that was left.
    pub previous_thread_id: ThreadId,
    /// What a successor is told when nothing better is known.
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
                "The conversation so far has become too long and goes on here. Go on with the task where it was left."
                    .to_owned(),
            seed: Arc::new(|_| None),
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
    /// The most tokens that a successor takes along: never more than half of what fills a context, so that no chain hands itself
    /// over for ever.
    pub fn ceiling(&self, window: u64) -> u64 {
        self.ceiling_tokens.min((self.threshold * window as f64 / 2.0) as u64)
    }
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
            limits: Limits::default(),
            price: None,
            output_tokens_max: None,
            stops: Stops::default(),
            wait: Wait::default(),
            classes: Vec::new(),
            spawning: None,
            continuation: Continuation::default(),
            hooks: Vec::new(),
            config: None,
            patience: Patience::default(),
            notices: Vec::new(),
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

    /// What the model is told of: the tools that the gate does not deny.
    pub fn offered(&self) -> impl Iterator<Item = &ToolSpec> {
        let is_allowed = |spec: &&ToolSpec| !matches!((self.gate)(spec, &Value::Null), Permission::Denied(_));
        self.tools.iter().map(|tool| tool.spec()).filter(is_allowed)
    }

    /// Whether a run owes outputs: there is a tool that gives them back.
    pub(crate) fn owes_outputs(&self) -> bool {
        self.tools.iter().any(|tool| tool.kind() == ToolKind::Return)
    }

    /// What a call of the tool of this name is to a run.
    pub(crate) fn kind(&self, name: &str) -> ToolKind {
        self.tool(name).map(|tool| tool.kind()).unwrap_or_default()
    }

    /// The tool of this name.
    pub(crate) fn tool(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }
}

/// For a program that has one run to make; programs that make many share one.
impl From<&Assignment> for Arc<Assignment> {
    fn from(work: &Assignment) -> Self {
        Self::new(work.clone())
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
