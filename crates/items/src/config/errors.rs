//! Retries and classes of model failures: `agent/errors.yaml`.
//!
//! A provider classifies its own failures as retryable or not. The classes here are tried first, in their order, so that
//! a user can override a provider; if none matches, the provider's classification counts.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::section::InvalidCombination;
use super::shape::{Key, Shape};

/// Retries and classes of model failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Errors {
    /// The most attempts of a call.
    pub attempts_max: u32,
    /// Milliseconds to wait after the first failure; doubled after each further one.
    pub wait_ms: u64,
    /// The maximum wait in milliseconds.
    pub wait_max_ms: u64,
    /// The classes; the first match counts.
    pub classes: Vec<ErrorClass>,
}

/// A class of failures, by HTTP status or text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorClass {
    /// Its id.
    pub id: String,
    /// The class.
    pub class: Class,
    /// HTTP statuses, one of which must match.
    #[serde(default)]
    pub codes: Vec<u16>,
    /// Texts, one of which its message must contain, ignoring case.
    #[serde(default)]
    pub texts: Vec<String>,
}

/// How a failure is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A retry may help.
    Transient,
    /// A later retry may help.
    RateLimited,
    /// A retry does not help.
    Permanent,
    /// It was cancelled.
    Cancelled,
}

impl Class {
    /// Whether a retry may help.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Transient | Self::RateLimited)
    }
}

impl Errors {
    /// The first class that matches a failure with this status and text; `None` if none does.
    pub fn classify(&self, code: Option<u16>, text: &str) -> Option<&ErrorClass> {
        self.classes.iter().find(|class| class.fits(code, text))
    }
}

/// Reads the section; a class without statuses and texts would match nothing and is refused.
pub(super) fn read(value: Value) -> Result<Errors, InvalidCombination> {
    let errors: Errors = serde_json::from_value(value).map_err(InvalidCombination::of)?;
    match errors.classes.iter().find(|class| class.codes.is_empty() && class.texts.is_empty()) {
        Some(class) => {
            Err(InvalidCombination::at(format!("classes.{}", class.id), "it names neither `codes` nor `texts`"))
        }
        None => Ok(errors),
    }
}

impl ErrorClass {
    /// Whether a failure has one of the statuses and one of the texts, if there are any; `text` is in lower case.
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
        "How such a failure is treated; the first two are retried.",
    )
    .required(),
    Key::new(
        "codes",
        Shape::List(&Shape::Whole { min: 0, max: 999 }),
        "HTTP statuses, one of which must match; 0 means that the model could not be reached at all.",
    ),
    Key::new(
        "texts",
        Shape::List(&Shape::NAME),
        "Texts, one of which the message must contain, ignoring case. If there are codes too, one of each must match.",
    ),
];

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "attempts_max",
        Shape::Whole { min: 1, max: 100 },
        "The maximum number of attempts to get one answer of the model.",
    ),
    Key::new(
        "wait_ms",
        Shape::Whole { min: 0, max: 3_600_000 },
        "Milliseconds to wait after the first failure, doubled after each further one, unless the provider specifies the time.",
    ),
    Key::new(
        "wait_max_ms",
        Shape::Whole { min: 0, max: 86_400_000 },
        "The maximum wait in milliseconds. If the provider asks for more, the thread is suspended at once, and a resume tries again.",
    ),
    Key::new(
        "classes",
        Shape::Entries(CLASS),
        "Classes of failures, tried in this order; if none matches, the provider's own classification counts.",
    ),
];
