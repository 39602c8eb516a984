//! The configuration: YAML in three layers, checked, merged and typed, with the file and the line of every value.
//!
//! ```text
//! built in                    selvedge/agent/threads/config/limits.yaml     the defaults, readable
//! the user's                  USER/config/agent/limits.yaml                 overrides them
//! the project's               PROJECT/.ai/config/agent/limits.yaml          overrides both, but can't be more lenient than the user
//! ```
//!
//! In reading order: [`Config`]; `section`, the sections; `shape`, the allowed values; `node` and `merge`, the parsed files and how they are
//! merged; `load`, where they are read; `guard`, the restrictions on a project; one file for each section, with its type, its keys and their
//! meaning; `schema` and `page`, the same for editors and for people.
//!
//! Invariants:
//!
//! - An unknown key or an invalid value is an error with its file and line. Nothing is ignored silently.
//! - A project can be stricter than its user, never more lenient.
//! - Nothing is cached: the files are read when a run starts, and the run keeps what it read.

mod approvals;
mod coordination;
mod embeddings;
mod error;
mod errors;
mod explain;
mod guard;
mod limits;
mod load;
mod merge;
mod models;
mod node;
mod page;
mod providers;
mod redaction;
mod run;
mod schema;
mod scopes;
mod section;
mod shape;
mod state_keys;
pub mod state_persistence;
mod stops;
mod web;

use selvedge_log::hash::sha256;
use selvedge_model::digest::Digest;
use selvedge_model::limits::Limits;
use selvedge_model::scope::Scopes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::Flaw;
use crate::library::Layer;
use load::{Loader, ParsedFile};
use merge::merge;
use node::Node;
use section::{InvalidCombination, SECTIONS, Section};

pub use approvals::{Action, ApprovalPolicy, Approvals, Decision, ResumeMode, Rule, Wait};
pub use coordination::{Concurrency, Continuation, Coordination, TranscriptIntegrity, WaitThreads};
pub use embeddings::{Embeddings, HASHING};
pub use error::ConfigError;
pub use errors::{Class, ErrorClass, Errors};
pub use explain::{Explained, LayerValue, Setting};
pub use load::Folders;
pub use models::{KnownModel, Models, TIERS};
pub use node::Origin;
pub use page::page;
pub use providers::{Format, Provider, Timeouts};
pub use redaction::{Redaction, SecretPattern};
pub use run::{Runs, Unsigned};
pub use schema::{schema, schemas};
pub use state_persistence::StatePersistence;
pub use stops::Stops;
pub use web::Web;

/// The configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings for every run.
    pub run: Runs,
    /// The default limits of a thread.
    pub limits: Limits,
    /// When a run is stopped although the model would continue.
    pub stops: Stops,
    /// Which calls are made, denied, or need an approval.
    pub approvals: Approvals,
    /// Retries and classes of model failures.
    pub errors: Errors,
    /// The known models, their prices and their hosts.
    pub models: Models,
    /// Which embedder makes vectors.
    pub embeddings: Embeddings,
    /// Patterns of secrets.
    pub redaction: Redaction,
    /// What `web.fetch` may reach.
    pub web: Web,
    /// Lifetimes of values in a state.
    pub scopes: Scopes,
    /// Handoffs, waiting and concurrency of threads.
    pub coordination: Coordination,
    /// When snapshots are saved, and how long they are kept.
    pub state_persistence: StatePersistence,
    loaded: Vec<Loaded>,
    notices: Vec<String>,
}

impl Default for Config {
    /// The built-in configuration.
    fn default() -> Self {
        Self::built_in()
    }
}

/// The files of a section, and the result of merging them.
#[derive(Clone, Debug)]
struct Loaded {
    section: &'static Section,
    /// The content of each file, the lowest layer first; what a project may not set is removed.
    stack: Vec<ParsedFile>,
    merged: Node,
}

impl Config {
    /// Loads the configuration below these folders; fails with its first error.
    pub fn load(folders: &Folders) -> Result<Self, ConfigError> {
        Self::check(folders).map_err(|mut errors| errors.swap_remove(0))
    }

    /// The same, but fails with all its errors, of which there is at least one.
    pub fn check(folders: &Folders) -> Result<Self, Vec<ConfigError>> {
        let mut loader = Loader { folders, errors: Vec::new(), notices: Vec::new(), seen: Vec::new() };
        let stacks: Vec<_> = SECTIONS.iter().map(|section| (section, loader.section(section))).collect();
        loader.report_unread_files();
        let Loader { mut errors, mut notices, .. } = loader;
        let providers = stacks.iter().filter(|(section, _)| section.name == "models");
        errors.extend(providers.flat_map(|(_, stack)| providers::check_project(stack)));
        if !errors.is_empty() {
            return Err(errors);
        }
        let loaded = stacks.into_iter().map(|(section, stack)| Loaded::new(section, stack, &mut notices)).collect();
        Self::typed(loaded, notices).map_err(|error| vec![error])
    }

    /// The built-in configuration.
    pub fn built_in() -> Self {
        Self::load(&Folders::default()).expect("the built-in configuration is valid")
    }

    fn typed(loaded: Vec<Loaded>, notices: Vec<String>) -> Result<Self, ConfigError> {
        fn of<T: DeserializeOwned>(value: Value) -> Result<T, InvalidCombination> {
            serde_json::from_value(value).map_err(InvalidCombination::of)
        }
        Ok(Self {
            run: read(&loaded, "run", of)?,
            limits: read(&loaded, "limits", of)?,
            stops: read(&loaded, "stops", of)?,
            approvals: approvals(&loaded)?,
            errors: read(&loaded, "errors", errors::read)?,
            models: read(&loaded, "models", models::read)?,
            embeddings: read(&loaded, "embeddings", of)?,
            redaction: read(&loaded, "redaction", of)?,
            web: read(&loaded, "web", of)?,
            scopes: read(&loaded, "scopes", scopes::read)?,
            coordination: read(&loaded, "coordination", of)?,
            state_persistence: read(&loaded, "state_persistence", |value| {
                StatePersistence::from_value(value).map_err(InvalidCombination::flaw)
            })?,
            loaded,
            notices,
        })
    }

    /// Notices for the author of the files: files at older paths or with unknown names, and values of a project that are
    /// ignored.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// SHA-256 over all values, whichever file set them: two configurations with the same digest are equivalent.
    pub fn digest(&self) -> Digest {
        let all: Map<String, Value> =
            self.loaded.iter().map(|loaded| (loaded.section.name.to_owned(), loaded.merged.to_value())).collect();
        sha256(Value::Object(all).to_string().as_bytes())
    }
}

impl Loaded {
    fn new(section: &'static Section, stack: Vec<ParsedFile>, notices: &mut Vec<String>) -> Self {
        let user = merged(&stack, |layer| layer != Layer::Project);
        let mut counted = Vec::with_capacity(stack.len());
        for ParsedFile { layer, root } in stack {
            let (root, ignored) = match layer {
                Layer::Project => guard::restrict(section.keys, &user, root),
                _ => (root, Vec::new()),
            };
            notices.extend(ignored);
            counted.push(ParsedFile { layer, root });
        }
        let merged = merged(&counted, |_| true);
        Self { section, stack: counted, merged }
    }

    /// The merged value of some layers.
    fn value_of(&self, is_included: impl Fn(Layer) -> bool) -> Value {
        merged(&self.stack, is_included).to_value()
    }

    fn error(&self, InvalidCombination { key, why }: InvalidCombination) -> ConfigError {
        let blamed = key.as_ref().and_then(|key| self.merged.look_up(key)).map_or(&self.merged, |(_, node)| node);
        let why = match &key {
            Some(key) => format!("`{}.{key}`: {why}", self.section.name),
            None => why,
        };
        ConfigError::Invalid { file: blamed.at.file.to_string(), flaw: Flaw::new(why).on_line(blamed.at.line) }
    }
}

/// The merged content of some layers.
fn merged(stack: &[ParsedFile], is_included: impl Fn(Layer) -> bool) -> Node {
    let mut merged = Node::nothing();
    for written in stack.iter().filter(|written| is_included(written.layer)) {
        merged = merge(merged, written.root.clone());
    }
    merged
}

fn section<'a>(loaded: &'a [Loaded], name: &str) -> &'a Loaded {
    loaded.iter().find(|loaded| loaded.section.name == name).expect("every section is loaded")
}

fn read<T>(
    loaded: &[Loaded],
    name: &str,
    of: impl FnOnce(Value) -> Result<T, InvalidCombination>,
) -> Result<T, ConfigError> {
    let loaded = section(loaded, name);
    of(loaded.merged.to_value()).map_err(|misfit| loaded.error(misfit))
}

fn approvals(loaded: &[Loaded]) -> Result<Approvals, ConfigError> {
    let loaded = section(loaded, "approvals");
    let user = loaded.value_of(|layer| layer != Layer::Project);
    let project = loaded.value_of(|layer| layer == Layer::Project);
    Approvals::read(&loaded.merged.to_value(), user, project).map_err(|misfit| loaded.error(misfit))
}
