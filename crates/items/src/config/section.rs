//! The sections of the configuration: their names, files, keys and built-in defaults.

use super::shape::Key;
use super::{
    approvals, coordination, embeddings, errors, limits, models, redaction, run, scopes, state_keys, state_persistence,
    stops, web,
};

use crate::error::Flaw;

/// A section.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    /// Its purpose, as a sentence.
    pub(super) means: &'static str,
    /// Its file below `config`.
    pub(super) place: &'static str,
    /// An older path of its file; it is read too, with lower precedence.
    pub(super) older_place: Option<&'static str>,
    pub(super) keys: &'static [Key],
    /// The built-in file: the name it can be extended by, and its content.
    pub(super) built_in: (&'static str, &'static str),
}

/// A combination of values that is invalid; the key is relative to the section.
#[derive(Debug)]
pub(super) struct InvalidCombination {
    pub(super) key: Option<String>,
    pub(super) why: String,
}

impl InvalidCombination {
    pub(super) fn at(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self { key: Some(key.into()), why: why.into() }
    }

    pub(super) fn flaw(flaw: Flaw) -> Self {
        Self { key: None, why: flaw.why }
    }

    pub(super) fn of(error: serde_json::Error) -> Self {
        Self { key: None, why: error.to_string() }
    }
}

macro_rules! built_in {
    ($name:literal) => {
        (concat!("selvedge/agent/threads/config/", $name, ".yaml"), include_str!(concat!("builtin/", $name, ".yaml")))
    };
}

const fn agent(
    name: &'static str,
    place: &'static str,
    keys: &'static [Key],
    built_in: (&'static str, &'static str),
    means: &'static str,
) -> Section {
    Section { name, means, place, older_place: None, keys, built_in }
}

/// All sections, in the order in which people read them.
pub(super) const SECTIONS: &[Section] = &[
    agent("run", "agent/run.yaml", run::KEYS, built_in!("run"), "Settings for every run."),
    agent(
        "limits",
        "agent/limits.yaml",
        limits::KEYS,
        built_in!("limits"),
        "The default limits of a thread. A directive may set higher or lower ones, and `--limit` overrides both. The limits that a \
         thread was created with hold until they are raised explicitly, and a child never gets higher ones than its \
         parent.",
    ),
    agent(
        "stops",
        "agent/stops.yaml",
        stops::KEYS,
        built_in!("stops"),
        "When a run is stopped although the model would continue.",
    ),
    agent(
        "approvals",
        "agent/approvals.yaml",
        approvals::KEYS,
        built_in!("approvals"),
        "Which calls are made, denied, or need an approval.",
    ),
    agent("errors", "agent/errors.yaml", errors::KEYS, built_in!("errors"), "Retries and classes of model failures."),
    agent(
        "models",
        "agent/models.yaml",
        models::KEYS,
        built_in!("models"),
        "The providers, the known models, their prices and context windows.",
    ),
    agent(
        "embeddings",
        "agent/embeddings.yaml",
        embeddings::KEYS,
        built_in!("embeddings"),
        "Vectors of messages and results, for searches by meaning.",
    ),
    agent(
        "redaction",
        "agent/redaction.yaml",
        redaction::KEYS,
        built_in!("redaction"),
        "Patterns of secrets, which never reach a log.",
    ),
    agent("web", "agent/web.yaml", web::KEYS, built_in!("web"), "What `web.fetch` may reach."),
    agent("scopes", "agent/scopes.yaml", scopes::KEYS, built_in!("scopes"), "Lifetimes of values in a thread's state."),
    Section {
        name: "coordination",
        means: "Handoffs, waiting and concurrency of threads.",
        place: "agent/coordination.yaml",
        older_place: Some("coordination.yaml"),
        keys: coordination::KEYS,
        built_in: built_in!("coordination"),
    },
    Section {
        name: "state_persistence",
        means: "When a snapshot of a thread is saved to its `state.json`, in which form, and how long older ones are kept.",
        place: "state_persistence.yaml",
        older_place: None,
        keys: state_keys::KEYS,
        built_in: ("selvedge/agent/threads/config/state_schema.yaml", state_persistence::BUILTIN),
    },
];
