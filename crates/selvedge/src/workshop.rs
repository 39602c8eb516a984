//! Running the directives of a project: what users write, made into threads and runs.
//!
//! A directive, an agent and the tools they may call become an [`Order`]: the thread to create, what its runs are done with, and
//! its first message. A thread that exists says itself what it was ordered with, so that it can be taken up by any process
//! ([`Workshop::assignment`]); what it may call is what was recorded at its birth, whatever its directive says today.

pub mod capabilities;
mod prompt;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use selvedge_engine::assignment::Gate;
use selvedge_engine::{Assignment, Permission};
use selvedge_items::capability::{Capabilities, Capability, Permissions};
use selvedge_items::directive::{Directive, ModelChoice};
use selvedge_items::input::{InputError, Type, bind};
use selvedge_items::interpolate::{Environment, InterpolationError};
use selvedge_items::library::{Kind, Library};
use selvedge_items::{Agent, ItemError, ToolDeclaration};
use selvedge_model::error::{Classify, Kind as ErrorKind};
use selvedge_model::limits::Limits;
use selvedge_model::tool::Risk;
use selvedge_model::{AgentId, DirectiveId, Manifest, Model, NewThread, Tool, ToolSpec};
use selvedge_providers::{Script, ScriptError, Scripted};
use selvedge_tools::{
    CommandSpec, CommandTool, DeclaredOutput, DirectiveReturn, FileList, FileRead, FileWrite, Folders, InvalidTool,
    Stdin, Surroundings, directive_return,
};
use serde_json::{Map, Value};

/// The agent that runs a directive when nobody says which.
pub const DEFAULT_AGENT: &str = "agent";
/// How a scripted model is named: this, and the path of its script.
pub const SCRIPTED: &str = "scripted:";
/// From which risk on somebody must have acknowledged what a tool can do.
const ACKNOWLEDGED_FROM: Risk = Risk::Dangerous;
/// How many turns a run has when nobody says.
const TURNS: u64 = 25;
/// How many tokens a run has when nobody says.
const TOKENS: u64 = 200_000;

/// Why a directive can't be run.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// An item is missing, not valid, or not trusted.
    #[error(transparent)]
    Item(#[from] ItemError),
    /// The inputs are not what the directive declares.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The body refers to something that is not there.
    #[error(transparent)]
    Interpolation(#[from] InterpolationError),
    /// A declared tool can't be one.
    #[error(transparent)]
    Tool(#[from] InvalidTool),
    /// A script can't be read.
    #[error("the script `{path}` can't be used: {source}")]
    Script {
        /// The script.
        path: String,
        /// What is wrong with it.
        source: ScriptError,
    },
    /// A script is not there.
    #[error("the script `{path}` can't be read: {why}")]
    NoScript {
        /// The script.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Nobody here knows the model.
    #[error("there is no provider for the model `{model}`")]
    NoModel {
        /// The model.
        model: String,
    },
}

impl Classify for OrderError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Item(error) => error.kind(),
            Self::Input(_) | Self::Interpolation(_) | Self::Tool(_) | Self::Script { .. } => ErrorKind::Invalid,
            Self::NoScript { .. } | Self::NoModel { .. } => ErrorKind::Absent,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Item(error) => error.code(),
            Self::Input(error) => error.code(),
            Self::Interpolation(error) => error.code(),
            Self::Tool(error) => error.code(),
            Self::Script { .. } => "script_invalid",
            Self::NoScript { .. } => "script_not_found",
            Self::NoModel { .. } => "model_unknown",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Item(error) => error.hint(),
            Self::Input(error) => error.hint(),
            Self::Interpolation(error) => error.hint(),
            Self::Tool(error) => error.hint(),
            Self::Script { source, .. } => source.hint(),
            Self::NoScript { .. } => Some("name a file inside the project: `--model scripted:PATH`".to_owned()),
            Self::NoModel { .. } => {
                Some("`--model scripted:FILE` answers from a script; without `--model` an offline one does".to_owned())
            }
        }
    }
}

/// A directive made ready to run.
#[derive(Debug)]
pub struct Order {
    /// The thread to create.
    pub thread: NewThread,
    /// What its runs are done with.
    pub assignment: Assignment,
    /// Its first message.
    pub task: String,
    /// What somebody should know who ordered it.
    pub notices: Vec<String>,
}

/// The tools of a project.
pub struct Tools {
    /// Those that can be used.
    pub ready: Vec<Arc<dyn Tool>>,
    /// What is wrong with the others.
    pub notices: Vec<String>,
}

/// What is asked for beside a directive.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// What the directive is given.
    pub inputs: Map<String, Value>,
    /// The agent that runs it.
    pub agent: Option<AgentId>,
    /// The model.
    pub model: Option<String>,
}

/// Makes what users write into threads and runs.
#[derive(Debug)]
pub struct Workshop {
    /// Where items are found.
    pub library: Library,
    /// The project's folder.
    pub project: PathBuf,
    /// The environment; tools see of it what they name.
    pub environment: BTreeMap<String, String>,
    /// What of it a directive may put into a prompt that names it.
    pub environment_allowed: Vec<String>,
}

impl Workshop {
    /// Makes a directive ready to run.
    pub fn order(&self, id: &DirectiveId, wishes: Wishes) -> Result<Order, OrderError> {
        let directive = self.library.directive(id)?;
        let (agent_id, agent) = self.agent(wishes.agent)?;
        let inputs = bind(&directive.item.inputs, wishes.inputs)?;
        let said = [agent.capabilities.as_ref(), directive.item.permissions.as_ref()];
        let capabilities = Capabilities::granted(said.map(|said| said.map(|said| &said.allow)));
        let model = wishes.model.or_else(|| model_of(&directive.item, &agent));
        let limits = with_defaults(&directive.item.limits);
        let thread = NewThread {
            directive: DirectiveId::new(directive.id()).ok(),
            model: model.clone(),
            inputs: inputs.clone(),
            limits: Some(limits.clone()),
            capabilities: Some(capabilities.to_strings()),
            ..NewThread::of(agent_id.clone())
        };
        let task = prompt::task(&directive.item, &inputs, self.environment())?;
        let (assignment, unusable) =
            self.assign(agent_id, &agent, Some(&directive.item), &capabilities, model, limits)?;
        let notices = task.notices.into_iter().chain(unusable).collect();
        Ok(Order { thread, assignment, task: task.text, notices })
    }

    /// What a thread's next run is done with, by what its own record says.
    pub fn assignment(&self, thread: &Manifest) -> Result<Assignment, OrderError> {
        // A directive that is gone makes no thread unusable: what it was told stands in the thread.
        let directive = match thread.directive.as_ref().map(|id| self.library.directive(id)).transpose() {
            Err(ItemError::NotFound { .. }) => None,
            directive => directive?,
        };
        let agent = match self.library.agent(&thread.agent_id) {
            Ok(agent) => agent.item,
            Err(ItemError::NotFound { .. }) => Agent::default(),
            Err(error) => return Err(error.into()),
        };
        let recorded = thread.capabilities.iter().flatten().filter_map(|token| token.parse::<Capability>().ok());
        let capabilities = Capabilities::new(recorded);
        let limits = with_defaults(thread.limits.as_ref().unwrap_or(&Limits::default()));
        let directive = directive.as_ref().map(|directive| &directive.item);
        let model = thread.model.clone();
        self.assign(thread.agent_id.clone(), &agent, directive, &capabilities, model, limits).map(|(work, _)| work)
    }

    fn agent(&self, wished: Option<AgentId>) -> Result<(AgentId, Agent), OrderError> {
        // The name of the default agent is a valid one.
        let id = wished.clone().or_else(|| AgentId::new(DEFAULT_AGENT).ok());
        let Some(id) = id else {
            return Err(ItemError::NotFound { what: "agent", id: String::new(), nearest: None }.into());
        };
        match self.library.agent(&id) {
            Ok(agent) => Ok((id, agent.item)),
            // Nobody asked for it, so it need not be written down.
            Err(ItemError::NotFound { .. }) if wished.is_none() => Ok((id, Agent::default())),
            Err(error) => Err(error.into()),
        }
    }

    fn environment(&self) -> Environment<'_> {
        Environment { allowed: &self.environment_allowed, variables: Some(&self.environment) }
    }

    /// What a run is done with, and what is wrong with tools that it has to do without.
    fn assign(
        &self,
        agent_id: AgentId,
        agent: &Agent,
        directive: Option<&Directive>,
        capabilities: &Capabilities,
        model: Option<String>,
        limits: Limits,
    ) -> Result<(Assignment, Vec<String>), OrderError> {
        let (model, name) = self.model(model)?;
        let acknowledged: Vec<&Permissions> =
            [agent.capabilities.as_ref(), directive.and_then(|directive| directive.permissions.as_ref())]
                .into_iter()
                .flatten()
                .collect();
        let accepts = |risk: Risk| {
            risk < ACKNOWLEDGED_FROM || acknowledged.iter().any(|said| said.accepts(risk, ACKNOWLEDGED_FROM))
        };
        let risk_max = [Risk::Dangerous, Risk::External, Risk::Write].into_iter().find(|risk| accepts(*risk));
        let Tools { ready: mut tools, notices } = self.tools()?;
        let outputs = directive.map(|directive| directive.outputs.as_slice()).unwrap_or_default();
        let mut work = Assignment::new(agent_id, model, name);
        if !outputs.is_empty() {
            tools.push(Arc::new(DirectiveReturn::new(outputs.iter().map(declared).collect())?));
            work.return_tool = Some(directive_return::NAME.to_owned());
        }
        work.system = prompt::system(agent, directive);
        work.tools = tools;
        work.gate = gate(capabilities.clone(), risk_max.unwrap_or(Risk::Safe));
        work.limits = limits;
        Ok((work, notices))
    }

    /// Every tool there is: those that come with the program, and those that the project and the user declare.
    /// One that can't be used keeps nobody from using the others; what is wrong with it comes beside them.
    pub fn tools(&self) -> Result<Tools, OrderError> {
        let mut tools = self.built_in_tools()?;
        let mut notices = Vec::new();
        for entry in self.library.list(Kind::Tool)?.into_iter().filter(|entry| !entry.hidden) {
            let Ok(id) = DirectiveId::new(&entry.id) else { continue };
            match self.declared_tool(&id) {
                Ok(tool) => {
                    // The project's and the user's own come first.
                    tools.retain(|other| other.spec().name != tool.spec().name);
                    tools.push(tool);
                }
                Err(error) => notices.push(format!("tool `{id}` can't be used: {error}")),
            }
        }
        Ok(Tools { ready: tools, notices })
    }

    /// The tools that come with the program.
    pub fn built_in_tools(&self) -> Result<Vec<Arc<dyn Tool>>, OrderError> {
        let folders = Folders::new(&self.project, ["."])?;
        Ok(vec![
            Arc::new(FileRead::new(folders.clone())?),
            Arc::new(FileWrite::new(folders.clone())?),
            Arc::new(FileList::new(folders)?),
        ])
    }

    /// A tool that the project or the user declares.
    pub fn declared_tool(&self, id: &DirectiveId) -> Result<Arc<dyn Tool>, OrderError> {
        let around = Surroundings { root: self.project.clone(), environment: self.environment.clone() };
        let declaration = self.library.tool(id)?.item;
        Ok(Arc::new(CommandTool::new(command(declaration), &around)?))
    }

    fn model(&self, wished: Option<String>) -> Result<(Arc<dyn Model>, String), OrderError> {
        let Some(name) = wished else { return Ok((Arc::new(Scripted::offline()), "scripted".to_owned())) };
        let Some(path) = name.strip_prefix(SCRIPTED) else {
            return match name.as_str() {
                "scripted" => Ok((Arc::new(Scripted::offline()), name)),
                _ => Err(OrderError::NoModel { model: name }),
            };
        };
        let no_script = |why: String| OrderError::NoScript { path: path.to_owned(), why };
        let file = self.project.join(path).canonicalize().map_err(|error| no_script(error.to_string()))?;
        let is_inside = self.project.canonicalize().is_ok_and(|project| file.starts_with(project));
        if !is_inside {
            return Err(no_script("it lies outside the project".to_owned()));
        }
        let text = std::fs::read_to_string(&file).map_err(|error| no_script(error.to_string()))?;
        let script = Script::parse(&text).map_err(|source| OrderError::Script { path: path.to_owned(), source })?;
        Ok((Arc::new(Scripted::new(script)), name))
    }
}

/// The model that a directive or an agent names; a tier is a name that a provider must know.
fn model_of(directive: &Directive, agent: &Agent) -> Option<String> {
    let tier = |tier: &String| format!("tier:{tier}");
    let named = |choice: &ModelChoice| choice.id.clone().or_else(|| choice.tier.as_ref().map(tier));
    directive.model.as_ref().and_then(named).or_else(|| agent.model.as_ref().and_then(named))
}

fn with_defaults(limits: &Limits) -> Limits {
    let mut limits = limits.clone();
    limits.turns.get_or_insert(TURNS);
    limits.tokens.get_or_insert(TOKENS);
    limits
}

fn may_call(capabilities: &Capabilities, spec: &ToolSpec) -> Result<(), String> {
    // Giving back results is what a directive with outputs is for.
    if spec.name == directive_return::NAME {
        return Ok(());
    }
    match spec.capability.parse::<Capability>() {
        Ok(needed) if capabilities.allows(&needed) => Ok(()),
        Ok(needed) => Err(format!("the thread has no capability `{needed}`")),
        Err(error) => Err(error.to_string()),
    }
}

fn gate(capabilities: Capabilities, risk_max: Risk) -> Gate {
    Arc::new(move |spec, _| match may_call(&capabilities, spec) {
        Ok(()) if spec.risk <= risk_max => Permission::Allowed,
        Ok(()) => Permission::Denied(format!("nobody acknowledged what `{}` can do", spec.name)),
        Err(why) => Permission::Denied(why),
    })
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

fn command(declaration: ToolDeclaration) -> CommandSpec {
    let stdin = match declaration.stdin {
        selvedge_items::tool::Stdin::None => Stdin::None,
        selvedge_items::tool::Stdin::Json => Stdin::Json,
    };
    CommandSpec {
        name: declaration.name,
        description: declaration.description,
        input_schema: declaration.input_schema,
        command: declaration.command,
        stdin,
        timeout_seconds: declaration.timeout_seconds,
        output_bytes_max: declaration.output_bytes_max,
        environment: declaration.environment,
        working_folder: declaration.working_folder,
        class: declaration.class,
        reconcile: declaration.reconcile,
        capability: declaration.capability,
        risk: declaration.risk,
    }
}
