//! What keys there are, what they mean and what may be said at them: the one description that files are checked against, that
//! `explain` and the documentation print, and that JSON Schemas are made of.

use std::fmt;

use selvedge_model::money::Money;
use selvedge_model::shell;
use serde_json::Value;

use super::node::{Content, Node};
use crate::error::Flaw;
use crate::nearest::{advice, nearest};

/// A key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// What it means, in a sentence or two.
    pub(super) means: &'static str,
    /// Whether an entry without it is none.
    pub(super) required: bool,
    pub(super) says: Say,
}

/// What a project may say at a key that the user, or the program, has said something at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// Anything.
    Anything,
    /// What is at least as careful; the words of the shape stand in the order of care.
    MoreCare,
    /// New entries, and no others in the place of those there are.
    More,
    /// Nothing: only the user's word counts.
    User,
}

/// What may be said at a key.
#[derive(Debug)]
pub(super) enum Shape {
    /// True or false.
    Bool,
    /// True, and nothing else.
    True,
    /// A whole number.
    Whole {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// 0, which is never, or a whole number from this one on.
    NeverOr(u64),
    /// A number.
    Number {
        /// The least.
        min: f64,
        /// The greatest.
        max: f64,
    },
    /// A decimal number of dollars, with or without quotes.
    Dollars,
    /// Text that holds to a rule.
    Text(Check),
    /// One of these words.
    Word(&'static [&'static str]),
    /// That, or null.
    Optional(&'static Shape),
    /// A list of such.
    List(&'static Shape),
    /// A list of entries, each with an `id`.
    Entries(&'static [Key]),
    /// These keys.
    Fields(&'static [Key]),
    /// Any keys, each with such a value.
    Map(&'static Shape),
    /// Keys with whatever stands behind them.
    Free,
}

/// A rule for a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    /// What the text is, for people.
    pub(super) what: &'static str,
    /// What is wrong with one, if anything is.
    pub(super) check: fn(&str) -> Result<(), String>,
}

impl Key {
    pub(super) const fn new(name: &'static str, shape: Shape, means: &'static str) -> Self {
        Self { name, shape, means, required: false, says: Say::Anything }
    }

    pub(super) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) const fn says(mut self, says: Say) -> Self {
        self.says = says;
        self
    }
}

const ID: Key =
    Key::new("id", Shape::NAME, "What the entry is called. A later layer replaces the entry of the same name.")
        .required();

impl Shape {
    /// A whole number from nought on.
    pub(super) const COUNT: Self = Self::Whole { min: 0, max: u64::MAX };
    /// Text that is not empty.
    pub(super) const NAME: Self = Self::Text(Check {
        what: "text",
        check: |text| if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(()) },
    });

    /// The keys inside, with the `id` of entries.
    pub(super) fn keys(&self) -> Vec<&'static Key> {
        match self {
            Self::Fields(keys) => keys.iter().collect(),
            Self::Entries(keys) => std::iter::once(&ID).chain(keys.iter()).collect(),
            Self::Optional(shape) => shape.keys(),
            _ => Vec::new(),
        }
    }

    /// The shape of what stands at a step inside, and what is known of that step.
    pub(super) fn inside(&self, step: &str) -> Option<(Inside, Option<&'static Key>)> {
        match self {
            Self::Fields(keys) => {
                let key = keys.iter().find(|key| key.name == step)?;
                Some((Inside::Shape(&key.shape), Some(key)))
            }
            Self::Entries(keys) => Some((Inside::Entry(keys), None)),
            Self::Map(shape) => Some((Inside::Shape(shape), None)),
            Self::Optional(shape) => shape.inside(step),
            Self::Free => Some((Inside::Shape(&Self::Free), None)),
            _ => None,
        }
    }

    /// Checks what somebody wrote; everything that is wrong with it is told.
    pub(super) fn check(&self, path: &str, node: &Node, wrong: &mut Vec<(u64, Flaw)>) {
        match (self, &node.content) {
            (Self::Optional(_), Content::Scalar(Value::Null)) => {}
            (Self::Optional(shape), _) => shape.check(path, node, wrong),
            (Self::Fields(_), Content::Fields(fields)) => check_fields(path, self, fields, wrong),
            (Self::Map(shape), Content::Fields(fields)) => {
                fields.iter().for_each(|(name, field)| shape.check(&format!("{path}.{name}"), field, wrong));
            }
            (Self::Free, Content::Fields(_)) => {}
            (Self::List(shape), Content::List(items)) => {
                items.iter().enumerate().for_each(|(index, item)| shape.check(&format!("{path}.{index}"), item, wrong));
            }
            (Self::Entries(_), Content::List(items)) => check_entries(path, self, items, wrong),
            (_, Content::Scalar(value)) => {
                if let Err(why) = self.check_scalar(value) {
                    let text = if self.fits_unquoted(value) { "the text " } else { "" };
                    let flaw = Flaw::new(format!("`{path}` can't be {text}{}: {why}", shown(value)));
                    wrong.push((node.at.line, flaw.hint(self.advice(path, value))));
                }
            }
            _ => {
                let flaw = Flaw::new(format!("`{path}` must be {self}"));
                wrong.push((node.at.line, flaw.hint(self.advice(path, &Value::Null))));
            }
        }
    }

    /// What to do about a value that does not fit.
    fn advice(&self, path: &str, value: &Value) -> String {
        match (self, value) {
            (Self::Word(words), Value::String(word)) if nearest(word, words.iter().copied()).is_some() => {
                advice(word, words)
            }
            (Self::Text(_), Value::Bool(_) | Value::Number(_)) => "put it in quotes".to_owned(),
            _ if self.fits_unquoted(value) => "take the quotes away".to_owned(),
            _ => format!("`selvedge config explain {}` says what it means", shell::word(path)),
        }
    }

    /// Whether a text is what is wanted but for its quotes.
    fn fits_unquoted(&self, value: &Value) -> bool {
        let plain = value.as_str().and_then(|text| serde_json::from_str(text).ok());
        plain.is_some_and(|plain: Value| !plain.is_string() && self.check_scalar(&plain).is_ok())
    }

    fn check_scalar(&self, value: &Value) -> Result<(), String> {
        let not_that = || format!("it must be {self}");
        match self {
            Self::Bool => value.as_bool().map(drop).ok_or_else(not_that),
            Self::True => value.as_bool().filter(|said| *said).map(drop).ok_or_else(not_that),
            Self::Whole { min, max } => {
                value.as_u64().filter(|number| number >= min && number <= max).map(drop).ok_or_else(not_that)
            }
            Self::NeverOr(min) => {
                value.as_u64().filter(|number| *number == 0 || number >= min).map(drop).ok_or_else(not_that)
            }
            Self::Number { min, max } => {
                value.as_f64().filter(|number| number >= min && number <= max).map(drop).ok_or_else(not_that)
            }
            Self::Dollars => match value {
                Value::String(text) => text.parse::<Money>().map(drop).map_err(|_| not_that()),
                Value::Number(number) => number.to_string().parse::<Money>().map(drop).map_err(|_| not_that()),
                _ => Err(not_that()),
            },
            Self::Text(rule) => match value {
                Value::String(text) => (rule.check)(text),
                _ => Err(not_that()),
            },
            Self::Word(words) => match value.as_str() {
                Some(word) if words.contains(&word) => Ok(()),
                _ => Err(not_that()),
            },
            _ => Err(not_that()),
        }
    }
}

/// What stands at a step inside a shape.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inside {
    /// Something of this shape.
    Shape(&'static Shape),
    /// An entry with these keys.
    Entry(&'static [Key]),
}

fn check_fields(path: &str, shape: &Shape, fields: &[(String, Node)], wrong: &mut Vec<(u64, Flaw)>) {
    let keys = shape.keys();
    for (name, field) in fields {
        match keys.iter().find(|key| key.name == name) {
            Some(key) => key.shape.check(&format!("{path}.{name}"), field, wrong),
            None => {
                let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
                let flaw = Flaw::new(format!("`{}` is no key in `{path}`", name.escape_debug()));
                wrong.push((field.at.line, flaw.hint(advice(name, &names))));
            }
        }
    }
}

fn check_entries(path: &str, shape: &Shape, items: &[Node], wrong: &mut Vec<(u64, Flaw)>) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Content::Fields(fields) = &item.content else {
            wrong.push((item.at.line, Flaw::new(format!("`{path}.{index}` is no entry")).hint("write `- id: …`")));
            continue;
        };
        let path = item.id().map_or_else(|| format!("{path}.{index}"), |id| format!("{path}.{id}"));
        check_fields(&path, shape, fields, wrong);
        for key in shape.keys().into_iter().filter(|key| key.required) {
            if !fields.iter().any(|(name, _)| name == key.name) {
                let flaw = Flaw::new(format!("`{path}` has no `{}`", key.name));
                wrong.push((item.at.line, flaw.hint(format!("an entry is taken as a whole: add `{}: …`", key.name))));
            }
        }
        if let Some(id) = item.id() {
            if seen.contains(&id) {
                let flaw = Flaw::new(format!("`{path}` is there twice"));
                wrong.push((item.at.line, flaw.hint("keep one of them")));
            }
            seen.push(id);
        }
    }
}

fn shown(value: &Value) -> String {
    format!("`{}`", value.as_str().map_or_else(|| value.to_string(), |text| text.escape_debug().to_string()))
}

/// What people are told that it must be.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("`true` or `false`"),
            Self::True => f.write_str("`true`"),
            Self::Whole { min, max: u64::MAX } => write!(f, "a whole number from {min} on"),
            Self::Whole { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::NeverOr(min) => write!(f, "0 or a whole number from {min} on"),
            Self::Number { min, max } => write!(f, "a number from {min} to {max}"),
            Self::Dollars => f.write_str("an amount of dollars such as `0.50`"),
            Self::Text(rule) => f.write_str(rule.what),
            Self::Word(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                write!(f, "one of {}", words.join(", "))
            }
            Self::Optional(shape) => write!(f, "{shape}, or `null`"),
            Self::List(shape) => write!(f, "a list, each item {shape}"),
            Self::Entries(_) => f.write_str("a list of entries, each with an `id`"),
            Self::Fields(keys) => {
                let names: Vec<_> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
                write!(f, "a mapping with the keys {}", names.join(", "))
            }
            Self::Map(shape) => write!(f, "a mapping with keys of your own, each {shape}"),
            Self::Free => f.write_str("a mapping"),
        }
    }
}
