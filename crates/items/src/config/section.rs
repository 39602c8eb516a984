//! The sections of the configuration: what each is called, where its file lies, which keys it has and what comes with the program.

use super::shape::Key;
use super::{
    approvals, coordination, errors, limits, models, redaction, run, scopes, state_keys, state_persistence, stops,
};

use crate::error::Flaw;

/// A section.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    /// What it is about, in a sentence.
    pub(super) means: &'static str,
    /// Its file below `config`.
    pub(super) place: &'static str,
    /// A place where its file lay once; it is read too, below the other.
    pub(super) older_place: Option<&'static str>,
    pub(super) keys: &'static [Key],
    /// What comes with the program, and the name it can be extended by.
    pub(super) built_in: (&'static str, &'static str),
}

/// What can't be said together, or not in this way; the key is below the section's name.
#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) key: Option<String>,
    pub(super) why: String,
}

impl Misfit {
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
    agent("run", "agent/run.yaml", run::KEYS, built_in!("run"), "What holds for every run."),
    agent(
        "limits",
        "agent/limits.yaml",
        limits::KEYS,
        built_in!("limits"),
        "What a thread may use when neither its directive nor whoever runs it says. These are defaults: a directive may say more or \
         less, and `--limit` has the last word. What a thread was created with is its ceiling until somebody raises it, and a child \
         never gets more than its parent.",
    ),
    agent(
        "stops",
        "agent/stops.yaml",
        stops::KEYS,
        built_in!("stops"),
        "When a run stops although the model would go on.",
    ),
    agent(
        "approvals",
        "agent/approvals.yaml",
        approvals::KEYS,
        built_in!("approvals"),
        "Which calls are made, refused, or put before a person.",
    ),
    agent(
        "errors",
        "agent/errors.yaml",
        errors::KEYS,
        built_in!("errors"),
        "How failures of a model are met, and what they are.",
    ),
    agent(
        "models",
        "agent/models.yaml",
        models::KEYS,
        built_in!("models"),
        "Which models there are, what they cost and how much they can be told.",
    ),
    agent(
        "redaction",
        "agent/redaction.yaml",
        redaction::KEYS,
        built_in!("redaction"),
        "What looks like a secret and never reaches a log.",
    ),
    agent(
        "scopes",
        "agent/scopes.yaml",
        scopes::KEYS,
        built_in!("scopes"),
        "How long what stands in a thread's state lives.",
    ),
    Section {
        name: "coordination",
        means: "How threads go on in others and wait for them.",
        place: "agent/coordination.yaml",
        older_place: Some("coordination.yaml"),
        keys: coordination::KEYS,
        built_in: built_in!("coordination"),
    },
    Section {
        name: "state_persistence",
        means: "When a snapshot of a thread is saved to its `state.json`, in which form, and how long older ones stay.",
        place: "state_persistence.yaml",
        older_place: None,
        keys: state_keys::KEYS,
        built_in: ("selvedge/agent/threads/config/state_schema.yaml", state_persistence::BUILTIN),
    },
];
