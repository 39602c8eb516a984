//! The builder: project, keys, models and tools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_engine::Redactor;
use selvedge_engine::redact::Pattern;
use selvedge_engine::snapshot::Keeper;
use selvedge_items::capability::Capability;
use selvedge_items::config::{Folders, SecretPattern, Unsigned};
use selvedge_items::{Config, Library, Policy};
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, Model, Price};
use selvedge_store_local::Access;
use selvedge_tools::{InvalidTool, Sandbox};
use tokio::runtime::Handle;

use crate::error::Result;
use crate::facade::{Defaults, OpenStore, Selvedge};
use crate::home::{Home, Server, open_store};
use crate::job::Limit;
use crate::project::models::{PricedModel, Provider, SCRIPTED};
use crate::project::{DEFAULT_AGENT, Models, Program, Project, ProjectError};
use crate::runtime::ProgramModel;
use crate::tool::Tool;

/// The options of [`Selvedge`]. Created by [`Selvedge::builder`].
///
/// ```
/// # fn main() -> Result<(), selvedge::Error> {
/// # let (project, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
/// use selvedge::{Limit, Selvedge};
///
/// let selvedge = Selvedge::builder()
///     .project(project.path())
///     .home(home.path())
///     .instructions("Answer in one sentence.")
///     .limit(Limit::Turns(10))
///     .open()?;
/// # _ = selvedge;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "nothing is opened before `open` is called"]
pub struct Builder {
    project: PathBuf,
    home: Option<PathBuf>,
    address: Option<String>,
    is_read_only: bool,
    agent: Option<String>,
    instructions: String,
    models: Vec<(String, PricedModel)>,
    default_model: Option<String>,
    tools: Vec<Tool>,
    allowed: Vec<String>,
    limits: Limits,
    environment: BTreeMap<String, String>,
    secrets: Vec<String>,
    sandbox_helper: Option<PathBuf>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Builder").field("project", &self.project).finish_non_exhaustive()
    }
}

impl Builder {
    /// The project's folder, with threads, directives, agents and tools in `.ai`; default: the current folder. It is created if it does not
    /// exist.
    pub fn project(mut self, folder: impl AsRef<Path>) -> Self {
        self.project = folder.as_ref().to_owned();
        self
    }

    /// The folder of the signing key and of the trusted keys; default: `.selvedge` in the project's folder.
    ///
    /// A user who can write this folder decides which keys are trusted, so set it if others can write to the project, such as a checkout. The
    /// command line uses `~/.config/selvedge`, or `SELVEDGE_HOME`; a program that works on the same threads uses the same folder.
    pub fn home(mut self, folder: impl AsRef<Path>) -> Self {
        self.home = Some(folder.as_ref().to_owned());
        self
    }

    /// Keeps the threads on a PostgreSQL server, at `postgres://USER:PASSWORD@HOST/DATABASE`, instead of the project's folder. The store is
    /// created if there is none. A password that the address lacks is `PGPASSWORD` of [`Builder::environment`]. Every program and worker on it needs the same signing key in its [`Builder::home`].
    #[cfg(feature = "postgres")]
    pub fn store(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// Opens the project without a key and without writing to it: for following, reading and verifying threads that another process runs.
    /// Calls that would write fail.
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// The default agent of threads; default: `agent`. `.ai/agents/NAME.yaml` may describe it.
    pub fn agent(mut self, name: impl Into<String>) -> Self {
        self.agent = Some(name.into());
        self
    }

    /// The system prompt of threads without a directive.
    pub fn instructions(mut self, text: impl Into<String>) -> Self {
        self.instructions = text.into();
        self
    }

    /// Adds a model under a name. The first one is the default; without any, an offline model echoes its input.
    ///
    /// It counts as free: use [`Builder::priced_model`] for one that costs money. The name is recorded in each thread, and a thread
    /// needs it for as long as it runs.
    pub fn model(self, name: impl Into<String>, model: impl Model + 'static) -> Self {
        self.priced_model(name, model, Price::default())
    }

    /// Adds a model whose tokens cost money. A call that a thread's [`Limit::Spend`] does not cover is not made. Prices in the
    /// configuration (`models.known`) take precedence.
    pub fn priced_model(mut self, name: impl Into<String>, model: impl Model + 'static, price: Price) -> Self {
        self.models
            .push((name.into(), PricedModel { model: Arc::new(model), price: Some(price), output_tokens_max: None }));
        self
    }

    /// The model of threads that say nothing else, such as `anthropic:claude-…` or a tier, instead of the first one that was added. Its
    /// key is looked for among the variables of [`Builder::environment`]; `models.providers` of the configuration lists the hosts.
    pub fn default_model(mut self, name: impl Into<String>) -> Self {
        self.default_model = Some(name.into());
        self
    }

    /// Adds a tool: a closure ([`Tool::function`]) or an implementation of [`model::Tool`](crate::model::Tool). Threads of
    /// [`Job::say`](crate::Job::say) may call it, directives if they permit it.
    pub fn tool(mut self, tool: impl Into<Tool>) -> Self {
        self.tools.push(tool.into());
        self
    }

    /// Grants a capability to threads of [`Job::say`](crate::Job::say) in addition to the program's own tools, such as `tool.file.read`, or
    /// `tool.file.*` for all below.
    pub fn allow(mut self, capability: impl Into<String>) -> Self {
        self.allowed.push(capability.into());
        self
    }

    /// The default of a limit; the others come from the configuration.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits = Limits::from(limit).over(&self.limits);
        self
    }

    /// The environment variables that have the keys of models and that command tools may declare. The process's own are not read; pass
    /// `std::env::vars()` for all of them.
    pub fn environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.environment.extend(variables);
        self
    }

    /// The program that restricts the processes of tools that declare a `sandbox`. It is started with arguments of its own: one whose `main`
    /// begins with [`tools::sandbox::helper::answer`](crate::tools::sandbox::helper::answer), such as `selvedge` itself. Without it, tools
    /// whose sandbox is required are refused.
    pub fn sandbox_helper(mut self, program: impl Into<PathBuf>) -> Self {
        self.sandbox_helper = Some(program.into());
        self
    }

    /// A text that must never reach a log: it is masked in messages, arguments, results and drafts.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secrets.push(secret.into());
        self
    }

    /// Opens the project.
    ///
    /// On return the folder has a store and a signing key, and threads whose process died are suspended:
    /// [`Selvedge::recovered`] lists them. A key is created only together with the store: a project with a store and a key in another
    /// folder is refused.
    pub fn open(self) -> Result<Selvedge> {
        let runtime = Handle::try_current().ok();
        let password = self.environment.get("PGPASSWORD").cloned();
        let server = self.address.map(|address| Server { address, password });
        let home = Home::of(&self.project, self.home.as_deref(), server, self.is_read_only)?;
        let trust = home.trust()?;
        let config =
            Config::load(&Folders { user: Some(home.folder.clone()), project: Some(home.project.join(".ai")) })?;
        let configured = Models::configured(&config.models, &self.environment);
        let (models, default_model) = models(configured, self.models, runtime.clone());
        let default_model = self.default_model.unwrap_or(default_model);
        let mut program = Program { instructions: self.instructions, ..Program::default() };
        for tool in self.tools {
            let (tool, approval) = tool.finish(runtime.clone())?;
            let name = tool.spec().name.clone();
            tool.spec().capability.parse::<Capability>()?;
            if program.tools.iter().any(|other| other.spec().name == name) {
                return Err(InvalidTool::new(&name, "another tool of the program has this name").into());
            }
            program.approvals.extend(approval.map(|why| (name, why)));
            program.tools.push(tool);
        }
        let own = program.tools.iter().map(|tool| tool.spec().capability.clone());
        let mut capabilities: Vec<String> = own.collect();
        for allowed in self.allowed {
            capabilities.push(allowed.parse::<Capability>()?.to_string());
        }
        let mut risks: Vec<_> = program.tools.iter().map(|tool| tool.spec().risk).collect();
        risks.sort_unstable();
        risks.dedup();
        let patterns = config.redaction.patterns.iter().map(|SecretPattern { prefix, length_min, .. }| Pattern {
            prefix: prefix.clone(),
            length_min: *length_min,
        });
        let redactor = Redactor::new(self.secrets.into_iter().chain(models.secrets()), patterns.collect())
            .learning(models.learned_secrets());
        let library = Library {
            project: Some(home.project.join(".ai")),
            user: Some(home.folder.clone()).filter(|folder| folder.is_dir()),
            trust: trust.clone(),
            policy: match config.run.unsigned {
                Unsigned::Allow => Policy::default(),
                Unsigned::Refuse => Policy::RequireTrusted,
            },
        };
        let access = if self.is_read_only { Access::ReadOnly } else { Access::ReadWrite };
        let (store, notices) = open_store(&home, access, trust.clone())?;
        let keeper = match access {
            Access::ReadWrite => Some(Keeper::new(store.clone(), config.state_persistence.clone())?),
            Access::ReadOnly => None,
        };
        let agent = AgentId::new(self.agent.as_deref().unwrap_or(DEFAULT_AGENT))?;
        let defaults = Defaults { agent, model: default_model, limits: self.limits, capabilities, risks };
        let folder = home.project.clone();
        let sandbox = self.sandbox_helper.map(Sandbox::new);
        let mcp = crate::project::mcp::servers(&folder, &self.environment, sandbox.as_ref());
        let project = Project { library, folder, environment: self.environment, config, models, program, sandbox, mcp };
        Selvedge::assemble(OpenStore { store, access, notices }, trust, project, keeper, redactor, defaults)
    }
}

/// The configured models and those of the program, by the first word of their names, and the name of the default one.
fn models(mut models: Models, given: Vec<(String, PricedModel)>, runtime: Option<Handle>) -> (Models, String) {
    let default = given.first().map_or(SCRIPTED, |(name, _)| name).to_owned();
    let mut by_word: BTreeMap<String, BTreeMap<String, PricedModel>> = BTreeMap::new();
    for (name, PricedModel { model, price, output_tokens_max }) in given {
        let word = name.split(':').next().unwrap_or_default().to_owned();
        let model = Arc::new(ProgramModel { model, runtime: runtime.clone() });
        by_word.entry(word).or_default().insert(name, PricedModel { model, price, output_tokens_max });
    }
    for (word, named) in by_word {
        let own = word.clone();
        let provider: Provider = Arc::new(move |wanted| {
            let name = wanted.name.map_or_else(|| own.clone(), |rest| format!("{own}:{rest}"));
            let known = || named.keys().cloned().collect();
            named.get(&name).cloned().ok_or_else(|| ProjectError::NoModel { model: name.clone(), known: known() })
        });
        models.register(word, provider);
    }
    (models, default)
}
