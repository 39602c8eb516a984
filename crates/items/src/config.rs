//! How everything is set: YAML in three layers, checked, merged and typed, with the file and the line of every word of it.
//!
//! ```text
//! comes with the program      selvedge/agent/threads/config/limits.yaml     readable, and what every key has when nobody says more
//! the user's                  USER/config/agent/limits.yaml                 over it
//! the project's               PROJECT/.ai/config/agent/limits.yaml          over that, except for less care than the user's
//! ```
//!
//! In reading order: [`Config`]; `section`, what there is; `shape`, what may be said; `node` and `merge`, what was said and how it comes
//! together; `load`, where it is read; `guard`, what a project may not say; one file for each section, with its type, its keys and what
//! they mean; `schema` and `page`, the same for editors and for people.
//!
//! Invariants:
//!
//! - A key that is not known, or a value that does not fit, is an error with its file and line. Nothing is ever passed over in silence.
//! - A project asks for more care than its user, never for less.
//! - Nothing is kept: the files are read when a run begins, and what they say is that run's.

mod approvals;
mod coordination;
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
mod redaction;
mod run;
mod schema;
mod scopes;
mod section;
mod shape;
mod state_keys;
pub mod state_persistence;
mod stops;

use selvedge_log::hash::sha256;
use selvedge_model::digest::Digest;
use selvedge_model::limits::Limits;
use selvedge_model::scope::Scopes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::Flaw;
use crate::library::Layer;
use load::{Loader, Written};
use merge::merge;
use node::Node;
use section::{Misfit, SECTIONS, Section};

pub use approvals::{Action, ApprovalPolicy, Approvals, Decision, ResumeMode, Rule, Wait};
pub use coordination::{Concurrency, Continuation, Coordination, TranscriptIntegrity, WaitThreads};
pub use error::ConfigError;
pub use errors::{Class, ErrorClass, Errors};
pub use explain::{Explained, Said, Setting};
pub use load::Folders;
pub use models::{KnownModel, Models};
pub use node::Origin;
pub use page::page;
pub use redaction::{Redaction, SecretPattern};
pub use run::{Runs, Unsigned};
pub use schema::{schema, schemas};
pub use state_persistence::StatePersistence;
pub use stops::Stops;

/// How everything is set.
#[derive(Clone, Debug)]
pub struct Config {
    /// What holds for every run.
    pub run: Runs,
    /// What a thread may use when nobody says.
    pub limits: Limits,
    /// When a run stops although the model would go on.
    pub stops: Stops,
    /// Which calls are made, refused, or put before a person.
    pub approvals: Approvals,
    /// How failures of a model are met.
    pub errors: Errors,
    /// Which models there are and what they cost.
    pub models: Models,
    /// What looks like a secret.
    pub redaction: Redaction,
    /// How long what stands in a state lives.
    pub scopes: Scopes,
    /// How threads go on in others and wait for them.
    pub coordination: Coordination,
    /// When snapshots are saved, and how long they stay.
    pub state_persistence: StatePersistence,
    loaded: Vec<Loaded>,
    notices: Vec<String>,
}

impl Default for Config {
    /// What comes with the program alone.
    fn default() -> Self {
        Self::built_in()
    }
}

/// What was said about a section, and what comes of it.
#[derive(Clone, Debug)]
struct Loaded {
    section: &'static Section,
    /// By each file, the lowest first; what a project may not say is taken out.
    stack: Vec<Written>,
    merged: Node,
}

impl Config {
    /// Reads the configuration below these folders; the first thing that is wrong with it is the error.
    pub fn load(folders: &Folders) -> Result<Self, ConfigError> {
        Self::check(folders).map_err(|mut wrong| wrong.swap_remove(0))
    }

    /// The same with everything that is wrong with it, which is one thing at least.
    pub fn check(folders: &Folders) -> Result<Self, Vec<ConfigError>> {
        let mut loader = Loader { folders, wrong: Vec::new(), told: Vec::new(), seen: Vec::new() };
        let stacks: Vec<_> = SECTIONS.iter().map(|section| (section, loader.section(section))).collect();
        loader.tell_strangers();
        let Loader { wrong, told: mut notices, .. } = loader;
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let loaded = stacks.into_iter().map(|(section, stack)| Loaded::new(section, stack, &mut notices)).collect();
        Self::typed(loaded, notices).map_err(|error| vec![error])
    }

    /// What comes with the program alone.
    pub fn built_in() -> Self {
        Self::load(&Folders::default()).expect("what comes with the program is valid")
    }

    fn typed(loaded: Vec<Loaded>, notices: Vec<String>) -> Result<Self, ConfigError> {
        fn of<T: DeserializeOwned>(value: Value) -> Result<T, Misfit> {
            serde_json::from_value(value).map_err(Misfit::of)
        }
        Ok(Self {
            run: read(&loaded, "run", of)?,
            limits: read(&loaded, "limits", of)?,
            stops: read(&loaded, "stops", of)?,
            approvals: approvals(&loaded)?,
            errors: read(&loaded, "errors", errors::read)?,
            models: read(&loaded, "models", of)?,
            redaction: read(&loaded, "redaction", of)?,
            scopes: read(&loaded, "scopes", scopes::read)?,
            coordination: read(&loaded, "coordination", of)?,
            state_persistence: read(&loaded, "state_persistence", |value| {
                StatePersistence::from_value(value).map_err(Misfit::flaw)
            })?,
            loaded,
            notices,
        })
    }

    /// What somebody should know who wrote it: files at older places or with names that nobody reads, words of a project that
    /// count for nothing.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// SHA-256 over everything that is set, whoever set it: two configurations with the same one mean the same.
    pub fn digest(&self) -> Digest {
        let all: Map<String, Value> =
            self.loaded.iter().map(|loaded| (loaded.section.name.to_owned(), loaded.merged.to_value())).collect();
        sha256(Value::Object(all).to_string().as_bytes())
    }
}

impl Loaded {
    fn new(section: &'static Section, stack: Vec<Written>, notices: &mut Vec<String>) -> Self {
        let user = merged(&stack, |layer| layer != Layer::Project);
        let mut counted = Vec::with_capacity(stack.len());
        for Written { layer, root } in stack {
            let (root, told) = match layer {
                Layer::Project => guard::guarded(section.keys, &user, root),
                _ => (root, Vec::new()),
            };
            notices.extend(told);
            counted.push(Written { layer, root });
        }
        let merged = merged(&counted, |_| true);
        Self { section, stack: counted, merged }
    }

    /// What only some layers say.
    fn said_by(&self, is_asked: impl Fn(Layer) -> bool) -> Value {
        merged(&self.stack, is_asked).to_value()
    }

    fn wrong(&self, Misfit { key, why }: Misfit) -> ConfigError {
        let blamed = key.as_ref().and_then(|key| self.merged.look_up(key)).map_or(&self.merged, |(_, node)| node);
        let why = match &key {
            Some(key) => format!("`{}.{key}`: {why}", self.section.name),
            None => why,
        };
        ConfigError::Invalid { file: blamed.at.file.to_string(), flaw: Flaw::new(why).on_line(blamed.at.line) }
    }
}

/// What some layers say together.
fn merged(stack: &[Written], is_asked: impl Fn(Layer) -> bool) -> Node {
    let said = stack.iter().filter(|written| is_asked(written.layer));
    said.fold(Node::nothing(), |below, written| merge(below, written.root.clone()))
}

fn section<'a>(loaded: &'a [Loaded], name: &str) -> &'a Loaded {
    loaded.iter().find(|loaded| loaded.section.name == name).expect("every section is loaded")
}

fn read<T>(loaded: &[Loaded], name: &str, of: impl FnOnce(Value) -> Result<T, Misfit>) -> Result<T, ConfigError> {
    let loaded = section(loaded, name);
    of(loaded.merged.to_value()).map_err(|misfit| loaded.wrong(misfit))
}

fn approvals(loaded: &[Loaded]) -> Result<Approvals, ConfigError> {
    let loaded = section(loaded, "approvals");
    let user = loaded.said_by(|layer| layer != Layer::Project);
    let project = loaded.said_by(|layer| layer == Layer::Project);
    Approvals::read(&loaded.merged.to_value(), user, project).map_err(|misfit| loaded.wrong(misfit))
}
