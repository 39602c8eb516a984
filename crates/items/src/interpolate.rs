//! How values get into a text.
//!
//! ```text
//! {input:k}          the input `k`; an error if it has no value     {input:k?}       nothing if it has none
//! {input:k:default}  `default` if it has none                       {input:k|default} the same, older
//! ${inputs.k}        a path into what the scope knows               ${a.b.0 || c}    the first that is not null
//! {env:NAME}         a variable of the environment, if configuration allows it; also {env:NAME:default}
//! ```
//!
//! Invariants:
//!
//! - **One pass.** What is put in is never looked at again, so what a tool, a model or a user said expands to nothing.
//! - Only a text that somebody wrote is a template; never call this on what came in.
//! - `${x}` whose first name the scope does not know is plain text: a shell example stays what it is. It is reported.
//! - A backslash before an expression makes it plain text: `\{input:k}`.
//! - Of the environment nothing is seen but what the text names *and* the caller allows.

mod expression;

use std::borrow::Cow;
use std::collections::BTreeMap;

use selvedge_model::error::{Classify, Kind};
use serde_json::{Map, Value};

use expression::{Expression, Form, Found, Otherwise, Piece, Pieces};

const INPUTS: &str = "inputs";

/// What of the environment may be put into a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Environment<'a> {
    /// The names that configuration allows.
    pub allowed: &'a [String],
    /// The variables, as whoever started the process was given them.
    pub variables: Option<&'a BTreeMap<String, String>>,
}

/// What a text may refer to.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Values by their first name; the inputs are `inputs`.
    pub values: &'a Value,
    /// What of the environment may be seen.
    pub environment: Environment<'a>,
}

/// A text with its values in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Expressions that found nothing and left nothing.
    pub empty: Vec<String>,
    /// Expressions whose first name is not known; they stand in the text as they were written.
    pub unknown: Vec<String>,
}

/// Why a text can't be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpolationError {
    /// An input has no value.
    #[error("line {line}: `{{input:{name}}}` has no value")]
    NoInput {
        /// The input.
        name: String,
        /// The line within the text, from 1.
        line: usize,
    },
    /// A variable of the environment has no value.
    #[error("line {line}: the environment has no `{name}`")]
    NoVariable {
        /// The variable.
        name: String,
        /// The line within the text, from 1.
        line: usize,
    },
    /// A variable of the environment may not be seen.
    #[error("line {line}: `{{env:{name}}}` is not allowed")]
    NotAllowed {
        /// The variable.
        name: String,
        /// The line within the text, from 1.
        line: usize,
    },
}

impl InterpolationError {
    /// The line, from 1.
    pub fn line(&self) -> usize {
        match self {
            Self::NoInput { line, .. } | Self::NoVariable { line, .. } | Self::NotAllowed { line, .. } => *line,
        }
    }

    /// The same, with the line counted from the beginning of the file, in which the text begins on line `first`.
    #[must_use]
    pub fn below(mut self, first: u64) -> Self {
        match &mut self {
            Self::NoInput { line, .. } | Self::NoVariable { line, .. } | Self::NotAllowed { line, .. } => {
                *line += usize::try_from(first.saturating_sub(1)).unwrap_or_default();
            }
        }
        self
    }
}

impl Classify for InterpolationError {
    fn kind(&self) -> Kind {
        match self {
            Self::NotAllowed { .. } => Kind::Denied,
            _ => Kind::Invalid,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NoInput { .. } => "interpolation_no_input",
            Self::NoVariable { .. } => "interpolation_no_variable",
            Self::NotAllowed { .. } => "interpolation_not_allowed",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoInput { name, .. } => {
                format!("give `--input {name}=…`, or write `{{input:{name}?}}` where it may be left out")
            }
            Self::NoVariable { name, .. } => format!("set it, or write `{{env:{name}:default}}`"),
            Self::NotAllowed { name, .. } => format!(
                "whose machine it is may allow it: `environment: [{name}]` in config/agent/run.yaml of the folder that holds your keys; a \
                 project can't"
            ),
        })
    }
}

/// Puts values into a text that somebody wrote.
pub fn render(template: &str, scope: &Scope<'_>) -> Result<Rendered, InterpolationError> {
    let mut done = Rendered { text: String::with_capacity(template.len()), empty: Vec::new(), unknown: Vec::new() };
    for piece in Pieces::of(template) {
        match piece {
            Piece::Text(text) => done.text.push_str(text),
            Piece::Expression(expression) => {
                let line = || 1 + template[..expression.at].matches('\n').count();
                match expression.value(scope, line)? {
                    Found::Value(value) => done.text.push_str(&as_text(&value)),
                    Found::Nothing => done.empty.push(expression.source.to_owned()),
                    Found::Unknown => {
                        done.text.push_str(expression.source);
                        done.unknown.push(expression.source.to_owned());
                    }
                }
            }
        }
    }
    Ok(done)
}

/// Puts values into every text of a value that somebody wrote. A text that is one expression becomes its value, of whatever
/// type; keys stay as they are.
pub fn fill(template: &Value, scope: &Scope<'_>) -> Result<Value, InterpolationError> {
    Ok(match template {
        Value::String(text) => fill_text(text, scope)?,
        Value::Array(items) => Value::Array(items.iter().map(|item| fill(item, scope)).collect::<Result<_, _>>()?),
        Value::Object(members) => {
            let filled = members.iter().map(|(key, value)| Ok((key.clone(), fill(value, scope)?)));
            Value::Object(filled.collect::<Result<Map<_, _>, _>>()?)
        }
        other => other.clone(),
    })
}

fn fill_text(text: &str, scope: &Scope<'_>) -> Result<Value, InterpolationError> {
    let mut pieces = Pieces::of(text);
    if let (Some(Piece::Expression(whole)), None) = (pieces.next(), pieces.next()) {
        return Ok(match whole.value(scope, || 1)? {
            Found::Value(value) => value.into_owned(),
            Found::Nothing => Value::Null,
            Found::Unknown => Value::String(text.to_owned()),
        });
    }
    render(text, scope).map(|rendered| Value::String(rendered.text))
}

/// The variables of the environment that a text names.
pub fn environment_names(template: &str) -> Vec<String> {
    let name = |piece| match piece {
        Piece::Expression(Expression { kind: Form::Environment { name, .. }, .. }) => Some(name.to_owned()),
        _ => None,
    };
    let mut names: Vec<String> = Pieces::of(template).filter_map(name).collect();
    names.sort();
    names.dedup();
    names
}

/// The inputs that a text names, in the short form or as `${inputs.…}`.
pub fn input_names(template: &str) -> Vec<String> {
    let named = |piece| match piece {
        Piece::Expression(Expression { kind: Form::Input { name, .. }, .. }) => vec![name.to_owned()],
        Piece::Expression(Expression { kind: Form::Paths(paths), .. }) => {
            let inputs = paths.iter().filter(|path| path.len() > 1 && path[0] == INPUTS);
            inputs.map(|path| path[1].to_owned()).collect()
        }
        _ => Vec::new(),
    };
    let mut names: Vec<String> = Pieces::of(template).flat_map(named).collect();
    names.sort();
    names.dedup();
    names
}

/// The variables of the environment that a text names.
pub fn variable_names(template: &str) -> Vec<String> {
    let named = |piece| match piece {
        Piece::Expression(Expression { kind: Form::Environment { name, .. }, .. }) => Some(name.to_owned()),
        _ => None,
    };
    let mut names: Vec<String> = Pieces::of(template).filter_map(named).collect();
    names.sort();
    names.dedup();
    names
}

/// The inputs that an argument of a command names. What runs commands knows `{input:k}` and `{input:k?}`; any other expression
/// is given back as an error, since it would reach the command as it is written.
pub fn argument_inputs(template: &str) -> Result<Vec<String>, String> {
    let expressions = Pieces::of(template).filter_map(|piece| match piece {
        Piece::Expression(expression) => Some(expression),
        Piece::Text(_) => None,
    });
    let named = |expression: Expression<'_>| match expression.kind {
        Form::Input { name, otherwise: Otherwise::Fail | Otherwise::Nothing } => Ok(name.to_owned()),
        _ => Err(expression.source.to_owned()),
    };
    expressions.map(named).collect()
}

fn as_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        Value::Null => Cow::Borrowed(""),
        other => Cow::Owned(other.to_string()),
    }
}
