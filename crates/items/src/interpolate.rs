//! Inserts values into a text.
//!
//! ```text
//! {input:k}          the input `k`; an error if it has no value     {input:k?}       empty if it has none
//! {input:k:default}  `default` if it has none                       {input:k|default} the same, older
//! ${inputs.k}        a path into the values of the scope            ${a.b.0 || c}    the first that is not null
//! {env:NAME}         an environment variable, if the configuration allows it; also {env:NAME:default}
//! ```
//!
//! Invariants:
//!
//! - **One pass.** Inserted text is never parsed again, so the text of a tool, a model or a user is never expanded.
//! - Only a text by the author of an item is a template; never call this on received text.
//! - `${x}` whose first name the scope does not know is plain text, so that a shell example is unchanged. It is reported.
//! - A backslash before an expression makes it plain text: `\{input:k}`.
//! - Only those environment variables are used that the text names *and* the caller allows.

mod expression;

use std::borrow::Cow;
use std::collections::BTreeMap;

use selvedge_model::error::{Classify, Kind};
use serde_json::{Map, Value};

use expression::{Expression, Fallback, Form, LocatedExpression, Piece, Pieces};

const INPUTS: &str = "inputs";

/// The environment variables that may be inserted into a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Environment<'a> {
    /// The names that the configuration allows.
    pub allowed: &'a [String],
    /// The variables of the process.
    pub variables: Option<&'a BTreeMap<String, String>>,
}

/// The values that a text may refer to.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Values by their first name; the inputs are `inputs`.
    pub values: &'a Value,
    /// The environment variables.
    pub environment: Environment<'a>,
}

/// A text with its values inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Expressions without a value, which are empty in the text.
    pub empty: Vec<String>,
    /// Expressions whose first name is unknown, which are unchanged in the text.
    pub unknown: Vec<String>,
}

/// Why a text can't be rendered.
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
    /// An environment variable is not set.
    #[error("line {line}: the environment has no `{name}`")]
    NoVariable {
        /// The variable.
        name: String,
        /// The line within the text, from 1.
        line: usize,
    },
    /// An environment variable is not allowed.
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

    /// The same, with the line counted from the start of the file, in which the text starts on line `first`.
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
            Self::NoInput { .. } => "interpolation_input_missing",
            Self::NoVariable { .. } => "interpolation_variable_missing",
            Self::NotAllowed { .. } => "interpolation_not_allowed",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoInput { name, .. } => {
                format!("give `--input {name}=…`, or write `{{input:{name}?}}` if it is optional")
            }
            Self::NoVariable { name, .. } => format!("set it, or write `{{env:{name}:default}}`"),
            Self::NotAllowed { name, .. } => format!(
                "allow it with `environment: [{name}]` in config/agent/run.yaml of the folder that holds your keys; a project can't allow \
                 it"
            ),
        })
    }
}

/// Inserts values into a template.
pub fn render(template: &str, scope: &Scope<'_>) -> Result<Rendered, InterpolationError> {
    let mut done = Rendered { text: String::with_capacity(template.len()), empty: Vec::new(), unknown: Vec::new() };
    for piece in Pieces::of(template) {
        match piece {
            Piece::Text(text) => done.text.push_str(text),
            Piece::Expression(expression) => {
                let line = || 1 + template[..expression.at].matches('\n').count();
                match expression.value(scope, line)? {
                    LocatedExpression::Value(value) => done.text.push_str(&as_text(&value)),
                    LocatedExpression::Nothing => done.empty.push(expression.source.to_owned()),
                    LocatedExpression::Unknown => {
                        done.text.push_str(expression.source);
                        done.unknown.push(expression.source.to_owned());
                    }
                }
            }
        }
    }
    Ok(done)
}

/// Inserts values into every text of a template value. A text that is a single expression becomes its value, of any
/// type; keys are unchanged.
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
            LocatedExpression::Value(value) => value.into_owned(),
            LocatedExpression::Nothing => Value::Null,
            LocatedExpression::Unknown => Value::String(text.to_owned()),
        });
    }
    render(text, scope).map(|rendered| Value::String(rendered.text))
}

/// The environment variables that a text names.
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

/// The environment variables that a text names.
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

/// The paths that the expressions of a text name, such as `state`, `count`; inputs in the short form begin with `inputs`.
pub fn paths(template: &str) -> Vec<Vec<String>> {
    let owned = |path: &Vec<&str>| path.iter().map(|step| (*step).to_owned()).collect();
    let named = |piece| match piece {
        Piece::Expression(Expression { kind: Form::Input { name, .. }, .. }) => {
            vec![vec![INPUTS.to_owned(), name.to_owned()]]
        }
        Piece::Expression(Expression { kind: Form::Paths(paths), .. }) => paths.iter().map(owned).collect(),
        _ => Vec::new(),
    };
    Pieces::of(template).flat_map(named).collect()
}

/// The inputs that an argument of a command names. Commands support `{input:k}` and `{input:k?}` only; any other expression
/// is returned as an error, since it would reach the command unchanged.
pub fn argument_inputs(template: &str) -> Result<Vec<String>, String> {
    let expressions = Pieces::of(template).filter_map(|piece| match piece {
        Piece::Expression(expression) => Some(expression),
        Piece::Text(_) => None,
    });
    let named = |expression: Expression<'_>| match expression.kind {
        Form::Input { name, otherwise: Fallback::Fail | Fallback::Nothing } => Ok(name.to_owned()),
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
