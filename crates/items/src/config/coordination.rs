//! How threads go on in others and wait for them: `agent/coordination.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, Say, Shape};

/// How threads go on in others and wait for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coordination {
    /// When a thread goes on in another one, and what it takes along.
    pub continuation: Continuation,
    /// How long somebody waits for threads.
    pub wait_threads: WaitThreads,
    /// How a log is taken that nobody who is trusted signed.
    pub transcript_integrity: TranscriptIntegrity,
    /// How much goes on at the same time.
    pub concurrency: Concurrency,
}

/// When a thread goes on in another one, and what it takes along.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// The share of the context window from which on a thread is handed off.
    pub trigger_threshold: f64,
    /// The most tokens of messages that a successor takes along.
    pub resume_ceiling_tokens: u64,
    /// The context window when neither provider nor configuration knows it.
    pub context_tokens: u64,
    /// The most threads of one chain.
    pub chain_max: u64,
    /// The directive that seeds a successor's first message.
    pub directive: String,
}

/// How long somebody waits for threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitThreads {
    /// Seconds, when nobody says.
    pub default_timeout: f64,
}

/// How a log with bytes beyond its last checkpoint is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptIntegrity {
    /// It is refused.
    #[default]
    Strict,
    /// It may be looked at, with a loud word, as long as its bytes agree with its checkpoints. It is never run.
    Lenient,
}

/// How much goes on at the same time.
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
        "The share of the context window from which on a thread is handed off to a successor.",
    ),
    Key::new(
        "resume_ceiling_tokens",
        Shape::Whole { min: 1, max: u64::MAX },
        "The most tokens of messages that a successor takes along. It never gets more than half of what would trigger the next handoff.",
    ),
    Key::new(
        "context_tokens",
        Shape::Whole { min: 1, max: u64::MAX },
        "The context window of a model of which neither its provider nor `models` knows it.",
    ),
    Key::new(
        "chain_max",
        Shape::Whole { min: 1, max: 10_000 },
        "How long a chain may be that a thread still hands itself over: one that would make it longer is suspended instead. Somebody \
         who resumes a thread may make it longer.",
    ),
    Key::new("directive", Shape::NAME, "The directive that makes a successor's first message."),
];

const WAIT_THREADS: &[Key] = &[Key::new(
    "default_timeout",
    Shape::Number { min: 0.0, max: 31_536_000.0 },
    "Seconds that somebody waits for threads without saying how long.",
)];

const CONCURRENCY: &[Key] = &[Key::new(
    "children_max",
    Shape::Whole { min: 1, max: 1000 },
    "The most children of one thread that run at the same time; others wait their turn. A child that is started without a ceiling of \
     its own for money gets an equal share of what its parent has left then, among so many children and the parent itself: half of it \
     if this is 1, a ninth if it is 8.",
)];

pub(super) const KEYS: &[Key] = &[
    Key::new("continuation", Shape::Fields(CONTINUATION), "When a thread goes on in another one, and what it takes along."),
    Key::new("wait_threads", Shape::Fields(WAIT_THREADS), "How long somebody waits for threads."),
    Key::new(
        "transcript_integrity",
        Shape::Word(&["lenient", "strict"]),
        "How a log is taken whose bytes agree with its checkpoints and whose signatures can't be believed: `strict` refuses it, \
         `lenient` lets it be looked at, with a loud word, and never run. Bytes beyond the last checkpoint are put aside in both.",
    )
    .says(Say::MoreCare),
    Key::new("concurrency", Shape::Fields(CONCURRENCY), "How much goes on at the same time."),
];
