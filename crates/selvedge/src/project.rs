//! Running the directives of a project: what users write, made into threads and runs.
//!
//! A directive, an agent and the tools they may call become an [`PreparedRun`]: the thread to create, the run configuration of its runs, and its
//! first message. An existing thread has a record of its order, so that any process can run it ([`Project::run_config`]); its capabilities
//! and acknowledged risks are those that were recorded when it was created, even if its directive has changed.

pub mod capabilities;
mod capability_tree;
mod chat;
mod continuation;
mod error;
mod gate;
mod graph;
mod hooks;
pub mod mcp;
pub mod models;
mod permissions;
mod program;
mod prompt;
mod rules;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use selvedge_engine::RunConfig;
use selvedge_engine::run_config::RetryPolicy;
use selvedge_items::capability::{Capabilities, Capability};
use selvedge_items::directive::{Directive, ModelChoice};
use selvedge_items::hook::Source;
use selvedge_items::input::{Type, bind};
use selvedge_items::interpolate::Environment;
use selvedge_items::knowledge::{self, LoadedKnowledge};
use selvedge_items::library::{Kind, Library};
use selvedge_items::{Agent, Config, ItemError};
use selvedge_model::event::{InjectedPlace, ThreadKind};
use selvedge_model::limits::Limits;
use selvedge_model::run::PromptPart;
use selvedge_model::tool::Risk;
use selvedge_model::{AgentId, Digest, DirectiveId, Embedder, Manifest, NewThread, Run, TaskId, Tool, ToolSpec};
use selvedge_tools::{
    CommandEnvironment, CommandTool, DeclaredOutput, DirectiveReturn, FileEdit, FileGlob, FileGrep, FileList, FileRead,
    FileWrite, Folders, Sandbox, Servers, WebFetch, WebOptions,
};
use serde_json::{Map, Value, json};

use crate::orchestrator::older_names::Older;
pub use chat::{Conversation, first_title, is_conversation};
use continuation::ContinuedDirective;
pub use error::ProjectError;
pub use graph::{GraphOptions, PreparedGraph};
pub use models::Models;
use models::{PricedModel, SCRIPTED};
pub use program::Program;
pub use rules::RuleSource;

/// The agent that runs a directive by default.
pub const DEFAULT_AGENT: &str = "agent";
/// The prefix of a model of which only the tier is known.
const TIER: &str = "tier:";
/// The highest risk of a tool that needs no acknowledgement.
const UNACKNOWLEDGED_MAX: Risk = Risk::External;

/// A directive that is prepared to run.
#[derive(Debug)]
pub struct PreparedRun {
    /// The thread to create.
    pub thread: NewThread,
    /// The run configuration of its runs.
    pub run_config: RunConfig,
    /// Its first message.
    pub task: String,
    /// Notices for the user.
    pub notices: Vec<String>,
}

/// The tools of a project.
pub struct Tools {
    /// The valid ones.
    pub ready: Vec<Arc<dyn Tool>>,
    /// The errors of the others.
    pub notices: Vec<String>,
}

/// The options of an order, next to its directive.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The inputs of the directive.
    pub inputs: Map<String, Value>,
    /// The agent that runs it.
    pub agent: Option<AgentId>,
    /// The model.
    pub model: Option<String>,
    /// Limits that replace the directive's.
    pub limits: Limits,
    /// The task that the thread belongs to; its text is part of the system prompt.
    pub task: Option<TaskId>,
}

/// What a thread keeps from its creation, even if its directive changes.
struct Recorded<'a> {
    capabilities: &'a Capabilities,
    acknowledged: &'a [Risk],
    limits: Limits,
    model: Option<String>,
    /// Its directive.
    directive_id: Option<&'a DirectiveId>,
    /// Its task.
    task_id: Option<&'a TaskId>,
    /// The text of its task.
    task: Option<String>,
    /// The inputs of its directive.
    inputs: &'a Map<String, Value>,
}

/// Makes the items that users write into threads and runs.
#[derive(Debug)]
pub struct Project {
    /// The items of project, user and program.
    pub library: Library,
    /// The project's folder.
    pub folder: PathBuf,
    /// The environment; a tool gets the variables that it declares.
    pub environment: BTreeMap<String, String>,
    /// The configuration.
    pub config: Config,
    /// The registered models.
    pub models: Models,
    /// The tools and instructions of the embedding program.
    pub program: Program,
    /// What restricts the processes of tools; without it nothing does.
    pub sandbox: Option<Sandbox>,
    /// The MCP servers of this process.
    pub mcp: Servers,
}

impl Project {
    /// The embedder that the configuration names, if it names one.
    pub fn embedder(&self) -> Result<Option<Arc<dyn Embedder>>, ProjectError> {
        self.models.embedder(&self.config.embeddings, &self.folder)
    }

    /// Prepares a directive to run.
    pub fn prepare(&self, id: &DirectiveId, options: RunOptions) -> Result<PreparedRun, ProjectError> {
        let directive = self.library.directive(id)?;
        let (agent_id, agent) = self.agent(options.agent)?;
        let inputs = bind(&directive.item.inputs, options.inputs)?;
        let permissions = [agent.capabilities.as_ref(), directive.item.permissions.as_ref()];
        let capabilities =
            Capabilities::granted(permissions.map(|permissions| permissions.map(|permissions| &permissions.allow)));
        let acknowledged = permissions.into_iter().flatten().flat_map(|permissions| &permissions.acknowledge);
        let mut acknowledged: Vec<Risk> = acknowledged.map(|one| one.risk).collect();
        acknowledged.sort_unstable();
        acknowledged.dedup();
        let model =
            options.model.map(|name| self.models.named(&name)).or_else(|| self.model_of(&directive.item, &agent));
        let limits = options.limits.over(&directive.item.limits).over(&self.config.limits);
        let thread = NewThread {
            directive: DirectiveId::new(directive.id()).ok(),
            model: model.clone(),
            inputs: inputs.clone(),
            limits: Some(limits.clone()),
            capabilities: Some(capabilities.to_strings()),
            acknowledged: acknowledged.clone(),
            task_id: options.task.clone(),
            ..NewThread::of(agent_id.clone())
        };
        let bound = options.task.as_ref().map(|task| self.task(task)).transpose()?;
        let brought = self.library.context(&directive)?;
        let task = prompt::task(&directive.item, &brought, &inputs, self.environment()).map_err(|source| {
            let file = self.library.file_of_body(&directive).to_owned();
            ProjectError::Interpolation { file, source: source.below(directive.item.body_line) }
        })?;
        let recorded_terms = Recorded {
            capabilities: &capabilities,
            acknowledged: &acknowledged,
            limits,
            model,
            directive_id: thread.directive.as_ref(),
            task_id: options.task.as_ref(),
            task: bound,
            inputs: &inputs,
        };
        let (run_config, unusable) =
            self.assign(agent_id, &agent, Some((&directive.item, &brought)), recorded_terms)?;
        let notices = task.notices.into_iter().chain(unusable).collect();
        Ok(PreparedRun { thread, run_config, task: task.text, notices })
    }

    /// The run configuration of a thread's next run, from its record; its `notices` list items that are missing since.
    pub fn run_config(&self, thread: &Manifest) -> Result<RunConfig, ProjectError> {
        if thread.kind == ThreadKind::Graph {
            return self.graph_config(thread);
        }
        let mut gone = Vec::new();
        // A missing directive makes no thread unusable: its messages are in the thread.
        let directive = match thread.directive.as_ref().map(|id| self.library.directive(id)).transpose() {
            Err(ItemError::NotFound { id, .. }) => {
                gone.push(format!(
                    "directive `{id}` is missing: the run continues without its description, context and outputs"
                ));
                None
            }
            directive => directive?,
        };
        let agent = match self.library.agent(&thread.agent_id) {
            Ok(agent) => agent.item,
            Err(ItemError::NotFound { id, .. }) => {
                // The default agent needs no file.
                if id != DEFAULT_AGENT {
                    gone.push(format!(
                        "agent `{id}` is missing: the run continues without identity and instructions; `selvedge agent new {id}` creates it"
                    ));
                }
                Agent::default()
            }
            Err(error) => return Err(error.into()),
        };
        let recorded = thread.capabilities.iter().flatten().filter_map(|token| token.parse::<Capability>().ok());
        let capabilities = Capabilities::new(recorded);
        let brought = directive.as_ref().map(|directive| self.library.context(directive)).transpose()?;
        let directive = directive.as_ref().map(|directive| &directive.item).zip(brought.as_ref());
        let task = match thread.task_id.as_ref().map(|task| self.task(task)).transpose() {
            // Nor does a missing task.
            Err(ProjectError::Item(ItemError::NotFound { .. } | ItemError::Name(_))) => {
                let id = thread.task_id.as_ref().map_or("", TaskId::as_str);
                gone.push(format!("task `{id}` is missing: the run continues without its text"));
                None
            }
            task => task?,
        };
        let recorded_terms = Recorded {
            capabilities: &capabilities,
            acknowledged: &thread.acknowledged,
            limits: thread.limits.clone().unwrap_or_default().over(&self.config.limits),
            model: thread.model.clone(),
            directive_id: thread.directive.as_ref(),
            task_id: thread.task_id.as_ref(),
            task,
            inputs: &thread.inputs,
        };
        let (work, _) = self.assign(thread.agent_id.clone(), &agent, directive, recorded_terms)?;
        Ok(RunConfig { notices: gone, ..work })
    }

    /// The text of a task: the knowledge entry of that name below `tasks`.
    fn task(&self, task: &TaskId) -> Result<String, ProjectError> {
        let id = DirectiveId::new(format!("{}/{task}", knowledge::TASKS)).map_err(ItemError::from)?;
        Ok(self.library.knowledge(&id)?.item.body)
    }

    fn agent(&self, requested: Option<AgentId>) -> Result<(AgentId, Agent), ProjectError> {
        // The name of the default agent is a valid one.
        let id = requested.clone().or_else(|| AgentId::new(DEFAULT_AGENT).ok());
        let Some(id) = id else {
            return Err(ItemError::NotFound { what: "agent", id: String::new(), nearest: None }.into());
        };
        match self.library.agent(&id) {
            Ok(agent) => Ok((id, agent.item)),
            // The default agent needs no file.
            Err(ItemError::NotFound { .. }) if requested.is_none() => Ok((id, Agent::default())),
            Err(error) => Err(error.into()),
        }
    }

    /// The environment variables that a directive may use in a prompt.
    pub fn environment(&self) -> Environment<'_> {
        Environment { allowed: &self.config.run.environment, variables: Some(&self.environment) }
    }

    /// The run configuration of a run, and the errors of invalid tools.
    fn assign(
        &self,
        agent_id: AgentId,
        agent: &Agent,
        directive: Option<(&Directive, &LoadedKnowledge)>,
        terms: Recorded<'_>,
    ) -> Result<(RunConfig, Vec<String>), ProjectError> {
        let name = terms.model.unwrap_or_else(|| SCRIPTED.to_owned());
        let PricedModel { model, price: own_price, output_tokens_max } = self.models.make(&name, &self.folder)?;
        let risk_max = terms.acknowledged.iter().copied().max().unwrap_or_default().max(UNACKNOWLEDGED_MAX);
        let Tools { ready: mut tools, mut notices } = self.tools()?;
        let is_unacknowledged =
            |spec: &&ToolSpec| spec.risk > risk_max && gate::may_call(terms.capabilities, spec, &Value::Null).is_ok();
        notices.extend(tools.iter().map(|tool| tool.spec()).filter(is_unacknowledged).map(|spec| {
            let how = "`permissions: {allow: […], acknowledge: [{risk: dangerous, why: …}]}`";
            format!("tool `{}` is dangerous and not offered: acknowledge it with {how}", spec.name)
        }));
        if let Some((directive, _)) = directive {
            notices.extend(self.unmatched_permissions(directive, tools.iter().map(|tool| tool.spec()))?);
            let mut own = self.hooks(Some(directive))?;
            own.retain(|placed| placed.source == Source::Directive);
            notices.extend(self.hook_warnings(&own)?);
        }
        let outputs = directive.map(|(directive, _)| directive.outputs.as_slice()).unwrap_or_default();
        let prompt = prompt::Prompt {
            agent: (&agent_id, agent),
            directive,
            directive_id: terms.directive_id.map(DirectiveId::as_str),
            task: terms.task.as_deref().map(|task| (terms.task_id, task)),
            instructions: if directive.is_none() { &self.program.instructions } else { "" },
        };
        let (system, parts) = (prompt.system(), prompt.recorded());
        let mut work = RunConfig::new(agent_id, model, name);
        if !outputs.is_empty() {
            tools.push(Arc::new(DirectiveReturn::new(outputs.iter().map(declared).collect())?));
        }
        work.system = system;
        work.prompt = parts;
        work.tools = tools;
        let text = directive.map_or("", |(directive, _)| directive.body.as_str());
        let older = [Older::ThreadDirective, Older::Orchestrator].into_iter().filter(|older| older.is_in(text));
        let older = older.map(Older::offered_name).collect();
        work.gate = gate::gate(terms.capabilities.clone(), risk_max, self.config.approvals.clone(), older);
        work.gate = self.program.gate(work.gate);
        work.limits = terms.limits;
        work.hooks = Arc::new(self.ready_hooks(directive.map(|(directive, _)| directive))?);
        self.configure(&mut work);
        // The configured price counts, then the model's own.
        work.price = work.price.filter(|price| !price.is_free()).or(own_price).or(work.price);
        work.output_tokens_max = work.output_tokens_max.or(output_tokens_max);
        let window = self.config.models.context_tokens(&work.model_name);
        let original = ContinuedDirective {
            directive: directive.map(|(directive, _)| directive),
            inputs: terms.inputs,
            environment: self.environment(),
        };
        work.continuation = continuation::continuation(&self.library, &self.config.coordination, window, &original);
        Ok((work, notices))
    }

    /// Applies the configuration to a run configuration.
    fn configure(&self, work: &mut RunConfig) {
        let Config { models, stops, approvals, errors, .. } = &self.config;
        work.price = models.price(&work.model_name);
        work.output_tokens_max = models.output_tokens(&work.model_name);
        work.stops = stops.clone();
        work.wait = approvals.wait;
        work.classes = errors.classes.clone();
        work.retries = RetryPolicy {
            attempts_max: errors.attempts_max,
            wait: Duration::from_millis(errors.wait_ms),
            wait_max: Duration::from_millis(errors.wait_max_ms),
        };
        work.config = Some(self.config.digest());
    }

    /// All tools: the built-in ones, and those that the project and the user declare. An invalid tool does not affect the others; its
    /// error is in the notices.
    pub fn tools(&self) -> Result<Tools, ProjectError> {
        let mut tools = self.built_in_tools()?;
        let mut notices = Vec::new();
        let mut names = BTreeMap::new();
        for entry in self.library.list(Kind::Tool)?.into_iter().filter(|entry| !entry.hidden) {
            let Ok(id) = DirectiveId::new(&entry.id) else {
                // A link to a folder may hide tools that the user expects.
                let refused = entry.readable().err();
                notices.extend(refused.map(|error| format!("tools in `{}` can't be used: {error}", entry.id)));
                continue;
            };
            let name = entry.id.rsplit('/').next().unwrap_or_default().to_owned();
            if let Some(other) = names.get(&name) {
                notices.push(format!("tool `{id}` is not used: `{other}` has the same name `{name}`"));
                continue;
            }
            // Declared tools replace built-in ones of the same name, even if they are invalid.
            tools.retain(|other| other.spec().name != name);
            names.insert(name, entry.id);
            match self.declared_tool(&id) {
                Ok(tool) => tools.push(tool),
                Err(error) => notices.push(format!("tool `{id}` can't be used: {error}")),
            }
        }
        tools.extend(self.mcp_tools(&mut notices));
        // The program's own tools have priority: its code relies on them.
        let own = &self.program.tools;
        tools.retain(|other| own.iter().all(|tool| tool.spec().name != other.spec().name));
        tools.extend(own.iter().cloned());
        Ok(Tools { ready: tools, notices })
    }

    /// The built-in tools.
    pub fn built_in_tools(&self) -> Result<Vec<Arc<dyn Tool>>, ProjectError> {
        let folders = Folders::new(&self.folder, ["."])?;
        Ok(vec![
            Arc::new(FileRead::new(folders.clone())?),
            Arc::new(FileWrite::new(folders.clone())?),
            Arc::new(FileEdit::new(folders.clone())?),
            Arc::new(FileList::new(folders.clone())?),
            Arc::new(FileGlob::new(folders.clone())?),
            Arc::new(FileGrep::new(folders)?),
            Arc::new(WebFetch::new(WebOptions { allowed: self.config.web.allow.clone(), ..WebOptions::default() })?),
        ])
    }

    /// A tool that the project or the user declares.
    pub fn declared_tool(&self, id: &DirectiveId) -> Result<Arc<dyn Tool>, ProjectError> {
        let around = CommandEnvironment {
            root: self.folder.clone(),
            environment: self.environment.clone(),
            sandbox: self.sandbox.clone(),
        };
        let declaration = self.library.tool(id)?.item;
        Ok(Arc::new(CommandTool::new(declaration, &around)?))
    }

    /// The model that a directive or an agent names, by itself or by its tier.
    fn model_of(&self, directive: &Directive, agent: &Agent) -> Option<String> {
        let set = |tier: &String| self.config.models.tier(tier).map(str::to_owned);
        let tier =
            |tier: &String| self.models.tier(tier).or_else(|| set(tier)).unwrap_or_else(|| format!("{TIER}{tier}"));
        let named = |choice: &ModelChoice| choice.id.clone().or_else(|| choice.tier.as_ref().map(tier));
        directive.model.as_ref().and_then(named).or_else(|| agent.model.as_ref().and_then(named))
    }
}

/// The notice if the system prompt of a thread's next run differs from that of its last run with a recorded one. The old prompt is not
/// stored, only its digest.
pub fn prompt_changed_since(runs: &[Run], work: &RunConfig) -> Option<String> {
    let last = runs.iter().rev().find(|run| run.meta.system.is_some())?;
    let before = last.meta.system?;
    let now = work.system_digest();
    (before != now).then(|| {
        let changed: Vec<String> = prompt_changes(&last.meta.prompt, &work.prompt).map(|(what, ..)| what).collect();
        let what = if changed.is_empty() || last.meta.prompt.is_empty() {
            "its directive, agent, task or knowledge was edited".to_owned()
        } else {
            format!("{} changed", changed.join(", "))
        };
        let before = before.short();
        let now = now.short();
        format!("the system prompt changed since the last run (digest {before} then, {now} now): {what}")
    })
}

/// The texts of a system prompt that differ: each with its digest then and now, none where it was not or is not a part of the prompt.
pub fn prompt_changes<'a>(
    before: &'a [PromptPart],
    now: &'a [PromptPart],
) -> impl Iterator<Item = (String, Option<Digest>, Option<Digest>)> + 'a {
    let of_system = |part: &&PromptPart| part.position == InjectedPlace::System;
    let same = |one: &PromptPart, other: &PromptPart| (one.source, &one.id) == (other.source, &other.id);
    let digest_in = move |parts: &[PromptPart], part: &PromptPart| {
        parts.iter().filter(of_system).find(|other| same(part, other)).map(|other| other.digest)
    };
    let named = |part: &PromptPart| {
        let source = json!(part.source);
        let id = part.id.as_ref().map(|id| format!(" `{id}`")).unwrap_or_default();
        format!("{}{id}", source.as_str().unwrap_or_default())
    };
    let changed = before.iter().filter(of_system).filter_map(move |part| {
        let now = digest_in(now, part);
        (now != Some(part.digest)).then(|| (named(part), Some(part.digest), now))
    });
    let is_new = move |part: &&PromptPart| digest_in(before, part).is_none();
    let new = now.iter().filter(of_system).filter(is_new).map(move |part| (named(part), None, Some(part.digest)));
    changed.chain(new)
}

fn declared(output: &selvedge_items::input::Output) -> DeclaredOutput {
    DeclaredOutput {
        name: output.name.clone(),
        description: output.description.clone(),
        json_type: Some(json_type(&output.of).to_owned()),
        required: output.required,
    }
}

fn json_type(of: &Type) -> &'static str {
    match of {
        Type::String | Type::Enum { .. } => "string",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
        Type::List => "array",
        Type::Object => "object",
    }
}
