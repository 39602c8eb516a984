//! Conversations: threads that run no directive and answer what a person writes.

use selvedge_engine::RunConfig;
use selvedge_items::capability::Capabilities;
use selvedge_items::library::Kind;
use selvedge_items::{ItemError, Layer};
use selvedge_model::limits::Limits;
use selvedge_model::tool::Risk;
use selvedge_model::{AgentId, Manifest, NewThread};
use serde_json::Map;

use super::{DEFAULT_AGENT, Project, ProjectError, Recorded};

/// A conversation made ready to begin.
#[derive(Debug)]
pub struct Conversation {
    /// The thread to create.
    pub thread: NewThread,
    /// What its runs are done with.
    pub run_config: RunConfig,
    /// What the caller should know: tools that can't be used.
    pub notices: Vec<String>,
}

/// Whether a thread is a conversation: it runs no directive, no other thread started it, and its capabilities were recorded when it was
/// created.
pub fn is_conversation(thread: &Manifest) -> bool {
    thread.directive.is_none() && thread.parent_id.is_none() && thread.capabilities.is_some()
}

/// How many characters of the first message are the title of its conversation.
const TITLE_CHARS: usize = 60;

/// The title that a conversation begins with: the beginning of its first message, on one line. The system replaces it by one that it makes;
/// never one that a person gave.
pub fn first_title(message: &str) -> String {
    let clean = |word: &str| word.chars().filter(|c| !c.is_control()).collect::<String>();
    let text = message.split_whitespace().map(clean).collect::<Vec<_>>().join(" ");
    if text.chars().count() <= TITLE_CHARS {
        return text;
    }
    let cut: String = text.chars().take(TITLE_CHARS - 1).collect();
    format!("{cut}…")
}

impl Project {
    /// The agents that a conversation may be with if none is named: those of the project, or the default agent if it has none.
    pub fn chat_agents(&self) -> Result<Vec<AgentId>, ProjectError> {
        let listed = self.library.list(Kind::Agent)?;
        let names = listed.iter().filter(|entry| entry.layer == Layer::Project).map(|entry| entry.id.as_str());
        let mut agents = names.map(AgentId::new).collect::<Result<Vec<_>, _>>().map_err(ItemError::from)?;
        if agents.is_empty() {
            agents.push(AgentId::new(DEFAULT_AGENT).map_err(ItemError::from)?);
        }
        Ok(agents)
    }

    /// Makes a conversation with an agent ready to begin. It may call what the agent may call. The default agent need not be written down;
    /// then it may call nothing.
    pub fn conversation(
        &self,
        agent_id: AgentId,
        model: Option<String>,
        limits: Limits,
    ) -> Result<Conversation, ProjectError> {
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
            directive_id: None,
            task_id: None,
            task: None,
            inputs: &Map::new(),
        };
        let (run_config, notices) = self.assign(agent_id, &agent, None, terms)?;
        Ok(Conversation { thread, run_config, notices })
    }
}
