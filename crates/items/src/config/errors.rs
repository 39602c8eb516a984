//! How failures of a model are met, and what they are: `agent/errors.yaml`.
//!
//! A provider says of its own failures whether trying again can help. The classes here are asked first, in their order, so that
//! somebody who knows better than a provider can say so; where none of them fits, the provider's word counts.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::section::Misfit;
use super::shape::{Key, Shape};

/// How failures of a model are met, and what they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Errors {
    /// How often a call is made at most.
    pub attempts_max: u32,
    /// Milliseconds to wait after the first failure; twice as long after each further one.
    pub wait_ms: u64,
    /// Milliseconds to wait at most.
    pub wait_max_ms: u64,
    /// What failures are; the first that fits counts.
    pub classes: Vec<ErrorClass>,
}

/// What a failure is, by its code or its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorClass {
    /// What it is called.
    pub id: String,
    /// The class.
    pub class: Class,
    /// Codes of HTTP, one of which it has.
    #[serde(default)]
    pub codes: Vec<u16>,
    /// Texts, one of which its message holds; small and capital letters are the same.
    #[serde(default)]
    pub texts: Vec<String>,
}

/// What a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Trying again may help.
    Transient,
    /// Trying again later may help.
    RateLimited,
    /// Trying again does not help.
    Permanent,
    /// Somebody stopped it.
    Cancelled,
}

impl Class {
    /// Whether trying again may help.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Transient | Self::RateLimited)
    }
}

impl Errors {
    /// What a failure with this code and text is, by the first class that fits; nothing if none does.
    pub fn classify(&self, code: Option<u16>, text: &str) -> Option<&ErrorClass> {
        self.classes.iter().find(|class| class.fits(code, text))
    }
}

/// A class that names nothing would fit nothing.
pub(super) fn read(value: Value) -> Result<Errors, Misfit> {
    let errors: Errors = serde_json::from_value(value).map_err(Misfit::of)?;
    match errors.classes.iter().find(|class| class.codes.is_empty() && class.texts.is_empty()) {
        Some(class) => Err(Misfit::at(format!("classes.{}", class.id), "it names neither `codes` nor `texts`")),
        None => Ok(errors),
    }
}

impl ErrorClass {
    /// Whether a failure has one of the codes and one of the texts, where there are any; `text` is in small letters.
    pub fn fits(&self, code: Option<u16>, text: &str) -> bool {
        let by_code = self.codes.is_empty() || code.is_some_and(|code| self.codes.contains(&code));
        let by_text = self.texts.is_empty() || self.texts.iter().any(|part| text.contains(&part.to_lowercase()));
        by_code && by_text
    }
}

const CLASS: &[Key] = &[
    Key::new(
        "class",
        Shape::Word(&["transient", "rate_limited", "permanent", "cancelled"]),
        "What such a failure is; the first two are tried again.",
    )
    .required(),
    Key::new(
        "codes",
        Shape::List(&Shape::Whole { min: 0, max: 999 }),
        "Codes of HTTP, one of which it has; 0 is that of a model that could not be reached at all.",
    ),
    Key::new(
        "texts",
        Shape::List(&Shape::NAME),
        "Texts, one of which its message holds; small and capital letters are the same. If there are codes too, one of each must fit.",
    ),
];

pub(super) const KEYS: &[Key] = &[
    Key::new("attempts_max", Shape::Whole { min: 1, max: 100 }, "How often the model is asked at most for one answer."),
    Key::new(
        "wait_ms",
        Shape::Whole { min: 0, max: 3_600_000 },
        "Milliseconds to wait after the first failure, twice as long after each further one, unless the provider says how long.",
    ),
    Key::new(
        "wait_max_ms",
        Shape::Whole { min: 0, max: 86_400_000 },
        "Milliseconds to wait at most, whatever the provider says.",
    ),
    Key::new(
        "classes",
        Shape::Entries(CLASS),
        "What failures are, asked in this order; where none fits, the provider's own word counts.",
    ),
];
