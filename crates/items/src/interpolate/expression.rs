//! One expression: how it is found in a text, and its value.

use std::borrow::Cow;

use serde_json::Value;

use super::{INPUTS, InterpolationError, Scope};
use crate::condition::look_up;
use crate::input::is_name;

/// Longer ones are not expressions.
const EXPRESSION_BYTES_MAX: usize = 512;

/// What is inserted if there is no value.
#[derive(Debug)]
pub(super) enum Fallback<'a> {
    Fail,
    Nothing,
    Text(&'a str),
}

#[derive(Debug)]
pub(super) enum Form<'a> {
    Input { name: &'a str, otherwise: Fallback<'a> },
    Environment { name: &'a str, otherwise: Fallback<'a> },
    Paths(Vec<Vec<&'a str>>),
}

#[derive(Debug)]
pub(super) struct Expression<'a> {
    pub(super) kind: Form<'a>,
    pub(super) source: &'a str,
    pub(super) at: usize,
}

pub(super) enum LocatedExpression<'a> {
    Value(Cow<'a, Value>),
    Nothing,
    Unknown,
}

impl Expression<'_> {
    /// Its value; `line` gives its line for an error.
    pub(super) fn value<'s>(
        &self,
        scope: &Scope<'s>,
        line: impl Fn() -> usize,
    ) -> Result<LocatedExpression<'s>, InterpolationError> {
        let (found, otherwise) = match &self.kind {
            Form::Paths(paths) => return Ok(first_of(paths, scope.values)),
            Form::Input { name, otherwise } => {
                let found = look_up(scope.values, &[INPUTS, name]).filter(|value| !value.is_null());
                (found.map(Cow::Borrowed), otherwise)
            }
            Form::Environment { name, otherwise } => {
                if !scope.environment.allowed.iter().any(|allowed| allowed == name) {
                    return Err(InterpolationError::NotAllowed { name: (*name).to_owned(), line: line() });
                }
                let found = scope.environment.variables.and_then(|variables| variables.get(*name));
                (found.map(|text| Cow::Owned(Value::String(text.clone()))), otherwise)
            }
        };
        match (found, otherwise, &self.kind) {
            (Some(found), ..) => Ok(LocatedExpression::Value(found)),
            (None, Fallback::Text(text), _) => {
                Ok(LocatedExpression::Value(Cow::Owned(Value::String((*text).to_owned()))))
            }
            (None, Fallback::Nothing, _) => Ok(LocatedExpression::Nothing),
            (None, Fallback::Fail, Form::Environment { name, .. }) => {
                Err(InterpolationError::NoVariable { name: (*name).to_owned(), line: line() })
            }
            (None, Fallback::Fail, Form::Input { name, .. }) => {
                Err(InterpolationError::NoInput { name: (*name).to_owned(), line: line() })
            }
            (None, Fallback::Fail, Form::Paths(_)) => Ok(LocatedExpression::Nothing),
        }
    }
}

fn first_of<'s>(paths: &[Vec<&str>], values: &'s Value) -> LocatedExpression<'s> {
    if paths.iter().all(|path| values.get(path[0]).is_none()) {
        return LocatedExpression::Unknown;
    }
    let found = paths.iter().find_map(|path| look_up(values, path).filter(|value| !value.is_null()));
    found.map_or(LocatedExpression::Nothing, |value| LocatedExpression::Value(Cow::Borrowed(value)))
}

pub(super) enum Piece<'a> {
    Text(&'a str),
    Expression(Expression<'a>),
}

/// The pieces of a text, from left to right; together they are the text, except for the backslashes before expressions.
pub(super) struct Pieces<'a> {
    text: &'a str,
    at: usize,
    /// An expression that was found after the text before it.
    next: Option<Expression<'a>>,
    /// The end of an expression that a backslash makes plain.
    plain_until: usize,
    /// The end of the last brace that closes: no expression starts after it.
    closed_at: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let closed_at = text.rfind('}').map_or(0, |at| at + 1);
        Self { text, at: 0, next: None, plain_until: 0, closed_at }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if let Some(expression) = self.next.take() {
            return Some(Piece::Expression(expression));
        }
        let start = self.at;
        let mut look = start.max(self.plain_until);
        while let Some(mark) = self.text.get(look..self.closed_at).and_then(|open| open.find(['{', '$'])) {
            let at = look + mark;
            let Some(expression) = expression_at(self.text, at) else {
                look = at + 1;
                continue;
            };
            let end = at + expression.source.len();
            if self.text[start..at].ends_with('\\') {
                // The text up to the backslash, then the expression as plain text.
                self.at = at;
                self.plain_until = end;
                return Some(Piece::Text(&self.text[start..at - 1]));
            }
            self.at = end;
            if at == start {
                return Some(Piece::Expression(expression));
            }
            self.next = Some(expression);
            return Some(Piece::Text(&self.text[start..at]));
        }
        self.at = self.text.len();
        (start < self.text.len()).then(|| Piece::Text(&self.text[start..]))
    }
}

/// The expression that starts at this position, if there is one.
fn expression_at(text: &str, at: usize) -> Option<Expression<'_>> {
    let rest = &text[at..];
    let limit = rest.len().min(EXPRESSION_BYTES_MAX);
    let end = rest.bytes().take(limit).position(|byte| byte == b'}' || byte == b'\n')?;
    let source = rest.get(..=end).filter(|source| source.ends_with('}'))?;
    let inside = source.get(..end)?;
    let kind = if let Some(inside) = inside.strip_prefix("${") {
        Form::Paths(inside.split("||").map(path).collect::<Option<_>>()?)
    } else if let Some(inside) = inside.strip_prefix("{input:") {
        let (name, otherwise) = named(inside)?;
        Form::Input { name, otherwise }
    } else {
        let (name, otherwise) = named(inside.strip_prefix("{env:")?)?;
        Form::Environment { name, otherwise }
    };
    Some(Expression { kind, source, at })
}

fn named(inside: &str) -> Option<(&str, Fallback<'_>)> {
    let end = inside.find(['?', ':', '|']).unwrap_or(inside.len());
    let (name, rest) = inside.split_at(end);
    let otherwise = match rest {
        "" => Fallback::Fail,
        "?" => Fallback::Nothing,
        _ if rest.starts_with('?') => return None,
        rest => Fallback::Text(&rest[1..]),
    };
    is_name(name).then_some((name, otherwise))
}

fn path(text: &str) -> Option<Vec<&str>> {
    let steps: Vec<&str> = text.trim().split('.').collect();
    let plain = |step: &&str| {
        !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    steps.iter().all(plain).then_some(steps)
}
