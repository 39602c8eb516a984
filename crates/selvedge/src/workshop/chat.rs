//! Conversations: threads that run no directive and answer what a person writes.

use selvedge_engine::Assignment;
use selvedge_items::capability::Capabilities;
use selvedge_items::library::Kind;
use selvedge_items::{ItemError, Layer};
use selvedge_model::limits::Limits;
use selvedge_model::tool::Risk;
use selvedge_model::{AgentId, Manifest, NewThread};
use serde_json::Map;

use super::{DEFAULT_AGENT, OrderError, Recorded, Workshop};

/// A conversation made ready to begin.
#[derive(Debug)]
pub struct Conversation {
    /// The thread to create.
    pub thread: NewThread,
    /// What its runs are done with.
    pub assignment: Assignment,
    /// What the caller should know: tools that can't be used.
    pub notices: Vec<String>,
}

/// Whether a thread is a conversation: it runs no directive, no other thread started it, and its capabilities were recorded when it was
/// created.
pub fn is_conversation(thread: &Manifest) -> bool {
    thread.directive.is_none() && thread.parent_id.is_none() && thread.capabilities.is_some()
}

impl Workshop {
    /// The agent of a conversation: the one that is asked for; else the only one of the project; else the default agent.
    pub fn chat_agent(&self, asked: Option<AgentId>) -> Result<AgentId, OrderError> {
        if let Some(agent) = asked {
            return Ok(agent);
        }
        let listed = self.library.list(Kind::Agent)?;
        let mut names = listed.iter().filter(|entry| entry.layer == Layer::Project).map(|entry| entry.id.as_str());
        let only = names.next().filter(|_| names.next().is_none());
        Ok(AgentId::new(only.unwrap_or(DEFAULT_AGENT)).map_err(ItemError::from)?)
    }

    /// Makes a conversation with an agent ready to begin. It may call what the agent may call. The default agent need not be written down;
    /// then it may call nothing.
    pub fn conversation(
        &self,
        agent_id: AgentId,
        model: Option<String>,
        limits: Limits,
    ) -> Result<Conversation, OrderError> {
        let is_default = agent_id.as_str() == DEFAULT_AGENT;
        let (_, agent) = self.agent(Some(agent_id.clone()).filter(|_| !is_default))?;
        let said = agent.capabilities.as_ref();
        let capabilities = Capabilities::granted([said.map(|said| &said.allow)]);
        let mut acknowledged: Vec<Risk> = said.iter().flat_map(|said| &said.acknowledge).map(|one| one.risk).collect();
        acknowledged.sort_unstable();
        acknowledged.dedup();
        let model = model.or_else(|| self.model_of(&Default::default(), &agent));
        let limits = limits.over(&self.config.limits);
        let thread = NewThread {
            model: model.clone(),
            limits: Some(limits.clone()),
            capabilities: Some(capabilities.to_strings()),
            acknowledged: acknowledged.clone(),
            ..NewThread::of(agent_id.clone())
        };
        let terms = Recorded {
            capabilities: &capabilities,
            acknowledged: &acknowledged,
            limits,
            model,
            task: None,
            inputs: &Map::new(),
        };
        let (assignment, notices) = self.assign(agent_id, &agent, None, terms)?;
        Ok(Conversation { thread, assignment, notices })
    }
}
