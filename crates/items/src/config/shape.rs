//! The keys, their meaning and their allowed values: the single description that files are checked against, that
//! `explain` and the documentation print, and that JSON Schemas are generated from.

use std::fmt;

use selvedge_model::money::Money;
use selvedge_model::shell;
use serde_json::Value;

use super::node::{Node, NodeContent};
use crate::error::Flaw;
use crate::nearest::{advice, nearest};

/// A key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// Its meaning, in a sentence or two.
    pub(super) means: &'static str,
    /// Whether every entry must have it.
    pub(super) required: bool,
    pub(super) project_rule: ProjectRule,
}

/// How a project's value is restricted if the user, or the program, has set the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProjectRule {
    /// Not at all.
    Anything,
    /// It must be at least as strict; the words of the shape are ordered from lenient to strict.
    Stricter,
    /// It may add entries, but not replace existing ones.
    AddOnly,
    /// It is ignored: only the user can set the key.
    Ignored,
}

/// The allowed values of a key.
#[derive(Debug)]
pub(super) enum Shape {
    /// True or false.
    Bool,
    /// Only true.
    True,
    /// A whole number.
    Whole {
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// 0, which means never, or a whole number of at least this.
    NeverOr(u64),
    /// A number.
    Number {
        /// The minimum.
        min: f64,
        /// The maximum.
        max: f64,
    },
    /// A decimal number of dollars, with or without quotes.
    Dollars,
    /// Text that satisfies a rule.
    Text(Check),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Such a value, or null.
    Optional(&'static Shape),
    /// A list of such values.
    List(&'static Shape),
    /// A list of entries, each with an `id`.
    Entries(&'static [Key]),
    /// These keys.
    Fields(&'static [Key]),
    /// Any keys, each with such a value.
    Map(&'static Shape),
    /// Any keys with any values.
    Free,
}

/// A rule for a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    /// What kind of text it is, for people.
    pub(super) what: &'static str,
    /// Why a text is invalid, if it is.
    pub(super) check: fn(&str) -> Result<(), String>,
}

impl Key {
    pub(super) const fn new(name: &'static str, shape: Shape, means: &'static str) -> Self {
        Self { name, shape, means, required: false, project_rule: ProjectRule::Anything }
    }

    pub(super) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) const fn project_rule(mut self, project_rule: ProjectRule) -> Self {
        self.project_rule = project_rule;
        self
    }
}

const ID: Key =
    Key::new("id", Shape::NAME, "The id of the entry. A higher layer replaces the entry with the same id.").required();

impl Shape {
    /// A whole number of at least 0.
    pub(super) const COUNT: Self = Self::Whole { min: 0, max: u64::MAX };
    /// Text that is not empty.
    pub(super) const NAME: Self = Self::Text(Check {
        what: "text",
        check: |text| if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(()) },
    });

    /// The keys inside, including the `id` of entries.
    pub(super) fn keys(&self) -> Vec<&'static Key> {
        match self {
            Self::Fields(keys) => keys.iter().collect(),
            Self::Entries(keys) => std::iter::once(&ID).chain(keys.iter()).collect(),
            Self::Optional(shape) => shape.keys(),
            _ => Vec::new(),
        }
    }

    /// The shape of the value at a step inside, and the key if it is declared.
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

    /// Checks a value; adds everything that is wrong with it to `wrong`.
    pub(super) fn check(&self, path: &str, node: &Node, wrong: &mut Vec<(u64, Flaw)>) {
        match (self, &node.content) {
            (Self::Optional(_), NodeContent::Scalar(Value::Null)) => {}
            (Self::Optional(shape), _) => shape.check(path, node, wrong),
            (Self::Fields(_), NodeContent::Fields(fields)) => check_fields(path, self, fields, wrong),
            (Self::Map(shape), NodeContent::Fields(fields)) => {
                for (name, field) in fields {
                    shape.check(&format!("{path}.{name}"), field, wrong);
                }
            }
            (Self::Free, NodeContent::Fields(_)) => {}
            (Self::List(shape), NodeContent::List(items)) => {
                for (index, item) in items.iter().enumerate() {
                    shape.check(&format!("{path}.{index}"), item, wrong);
                }
            }
            (Self::Entries(_), NodeContent::List(items)) => check_entries(path, self, items, wrong),
            (_, NodeContent::Scalar(value)) => {
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

    /// What to do about an invalid value.
    fn advice(&self, path: &str, value: &Value) -> String {
        match (self, value) {
            (Self::Word(words), Value::String(word)) if nearest(word, words.iter().copied()).is_some() => {
                advice(word, words)
            }
            (Self::Text(_), Value::Bool(_) | Value::Number(_)) => "put it in quotes".to_owned(),
            _ if self.fits_unquoted(value) => "remove the quotes".to_owned(),
            _ => format!("`selvedge config explain {}` shows its meaning", shell::word(path)),
        }
    }

    /// Whether a text would be valid without its quotes.
    fn fits_unquoted(&self, value: &Value) -> bool {
        let plain = value.as_str().and_then(|text| serde_json::from_str(text).ok());
        plain.is_some_and(|plain: Value| !plain.is_string() && self.check_scalar(&plain).is_ok())
    }

    fn is_whole(&self) -> bool {
        matches!(self, Self::Whole { max: u64::MAX, .. } | Self::NeverOr(_))
    }

    fn check_scalar(&self, value: &Value) -> Result<(), String> {
        let not_that = || match value.as_f64() {
            // Beyond 64 bits it was read as a float, but is a whole number.
            Some(number) if self.is_whole() && number >= u64::MAX as f64 => {
                format!("it is too large: at most {}", u64::MAX)
            }
            _ => format!("it must be {self}"),
        };
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

/// What is at a step inside a shape.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inside {
    /// A value of this shape.
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
                let flaw = Flaw::new(format!("`{}` is not a key of `{path}`", name.escape_debug()));
                wrong.push((field.at.line, flaw.hint(advice(name, &names))));
            }
        }
    }
}

fn check_entries(path: &str, shape: &Shape, items: &[Node], wrong: &mut Vec<(u64, Flaw)>) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let NodeContent::Fields(fields) = &item.content else {
            wrong.push((item.at.line, Flaw::new(format!("`{path}.{index}` is not an entry")).hint("write `- id: …`")));
            continue;
        };
        let path = item.id().map_or_else(|| format!("{path}.{index}"), |id| format!("{path}.{id}"));
        check_fields(&path, shape, fields, wrong);
        for key in shape.keys().into_iter().filter(|key| key.required) {
            if !fields.iter().any(|(name, _)| name == key.name) {
                let flaw = Flaw::new(format!("`{path}` has no `{}`", key.name));
                wrong
                    .push((item.at.line, flaw.hint(format!("entries are replaced as a whole: add `{}: …`", key.name))));
            }
        }
        if let Some(id) = item.id() {
            if seen.contains(&id) {
                let flaw = Flaw::new(format!("`{path}` occurs twice"));
                wrong.push((item.at.line, flaw.hint("keep one of them")));
            }
            seen.push(id);
        }
    }
}

fn shown(value: &Value) -> String {
    format!("`{}`", value.as_str().map_or_else(|| value.to_string(), |text| text.escape_debug().to_string()))
}

/// The description of the allowed values, for people.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("`true` or `false`"),
            Self::True => f.write_str("`true`"),
            Self::Whole { min, max: u64::MAX } => write!(f, "a whole number of at least {min}"),
            Self::Whole { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::NeverOr(min) => write!(f, "0 or a whole number of at least {min}"),
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
            Self::Map(shape) => write!(f, "a mapping with your own keys, each value {shape}"),
            Self::Free => f.write_str("a mapping"),
        }
    }
}
