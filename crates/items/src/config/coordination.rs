//! Handoffs, waiting and concurrency of threads: `agent/coordination.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, ProjectRule, Shape};

/// Handoffs, waiting and concurrency of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coordination {
    /// When a thread is handed off to a successor, and what the successor gets.
    pub continuation: Continuation,
    /// How long a wait for threads takes at most.
    pub wait_threads: WaitThreads,
    /// How logs without a trusted signature are treated.
    pub transcript_integrity: TranscriptIntegrity,
    /// How many children run at the same time.
    pub concurrency: Concurrency,
}

/// When a thread is handed off to a successor, and what the successor gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// The fraction of the context window at which a thread is handed off.
    pub trigger_threshold: f64,
    /// The most tokens of messages that are carried over to a successor.
    pub resume_ceiling_tokens: u64,
    /// The context window if neither provider nor configuration knows it.
    pub context_tokens: u64,
    /// The most threads of one chain.
    pub chain_max: u64,
    /// The directive that seeds a successor's first message.
    pub directive: String,
}

/// How long a wait for threads takes at most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitThreads {
    /// The default timeout in seconds.
    pub default_timeout: f64,
}

/// How a log without a trusted signature is treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptIntegrity {
    /// It is refused.
    #[default]
    Strict,
    /// It may be inspected with a warning, if its bytes match its checkpoints. It is never run.
    Lenient,
}

/// How many children run at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// The most children of a thread that run at the same time.
    pub children_max: u64,
}

const CONTINUATION: &[Key] = &[
    Key::new(
        "trigger_threshold",
        Shape::Number { min: 0.1, max: 1.0 },
        "The fraction of the context window at which a thread is handed off to a successor.",
    ),
    Key::new(
        "resume_ceiling_tokens",
        Shape::Whole { min: 1, max: u64::MAX },
        "The maximum number of tokens of messages that are carried over to a successor, which never starts with more than half of what would trigger the next handoff.",
    ),
    Key::new(
        "context_tokens",
        Shape::Whole { min: 1, max: u64::MAX },
        "The context window of a model for which neither its provider nor `models` knows it.",
    ),
    Key::new(
        "chain_max",
        Shape::Whole { min: 1, max: 10_000 },
        "The maximum number of threads in a chain. A handoff that would exceed it suspends the thread instead; an explicit resume may \
         exceed it.",
    ),
    Key::new("directive", Shape::NAME, "The directive that creates a successor's first message."),
];

const WAIT_THREADS: &[Key] = &[Key::new(
    "default_timeout",
    Shape::Number { min: 0.0, max: 31_536_000.0 },
    "The timeout in seconds for waiting for threads, if none is given.",
)];

const CONCURRENCY: &[Key] = &[Key::new(
    "children_max",
    Shape::Whole { min: 1, max: 1000 },
    "The maximum number of children of one thread that run at the same time; further ones are queued. A child that is started without a spending \
     limit of its own gets an equal share of what its parent has left, divided among this many children and the parent itself: half of it \
     if this is 1, a ninth if it is 8.",
)];

pub(super) const KEYS: &[Key] = &[
    Key::new("continuation", Shape::Fields(CONTINUATION), "When a thread is handed off to a successor, and what the successor gets."),
    Key::new("wait_threads", Shape::Fields(WAIT_THREADS), "How long a wait for threads takes at most."),
    Key::new(
        "transcript_integrity",
        Shape::Word(&["lenient", "strict"]),
        "How a log is treated whose bytes match its checkpoints but whose signatures can't be trusted: `strict` refuses it, \
         `lenient` allows inspecting it with a warning, but never running it. Bytes after the last checkpoint are quarantined in both.",
    )
    .project_rule(ProjectRule::Stricter),
    Key::new("concurrency", Shape::Fields(CONCURRENCY), "How many children run at the same time."),
];
