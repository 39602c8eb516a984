//! Conditions: a path into a value, an operator, a value to compare with, joined by `all`, `any` and `not`.
//!
//! Written as `{path: cost.turns, op: gte, value: 1}`, `{all: […]}`, `{any: […]}` or `{not: …}`; an empty one is always true.
//! The path is dotted text, or a list where a key itself has dots.
//!
//! Invariants:
//!
//! - Evaluating is pure and total: it never fails and never panics. A path that does not exist is `null`. Values that can't be
//!   compared make it false: `"5" gt 3` is false, and so is `"5" lt 3`.
//! - Errors are found when a condition is parsed: an unknown operator or a bad pattern is refused then. (An
//!   unknown operator used to be false for ever, unnoticed.)

use std::cmp::Ordering;

use regex::{Regex, RegexBuilder};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::nearest::advice;

const PATTERN_BYTES_MAX: usize = 1 << 20;
const PATH_STEPS_MAX: usize = 64;

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Eq,
    Ne,
    Gt,
    Gte,
    Lt,
    Lte,
    In,
    Contains,
    Regex,
    Exists,
}

/// All operators and their names.
const OPS: [(&str, Op); 10] = [
    ("eq", Op::Eq),
    ("ne", Op::Ne),
    ("gt", Op::Gt),
    ("gte", Op::Gte),
    ("lt", Op::Lt),
    ("lte", Op::Lte),
    ("in", Op::In),
    ("contains", Op::Contains),
    ("regex", Op::Regex),
    ("exists", Op::Exists),
];

/// A condition.
#[derive(Clone, Debug, Default)]
pub enum Condition {
    /// Always true.
    #[default]
    Always,
    /// One comparison.
    Compare(Comparison),
    /// All of these are true.
    All(Vec<Condition>),
    /// At least one of these is true.
    Any(Vec<Condition>),
    /// This one is false.
    Not(Box<Condition>),
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    path: Vec<String>,
    op: Op,
    value: Value,
    pattern: Option<Regex>,
}

impl Comparison {
    /// A checked comparison.
    pub fn new(path: Vec<String>, op: &str, value: Value) -> Result<Self, String> {
        if path.is_empty() || path.len() > PATH_STEPS_MAX || path.iter().any(String::is_empty) {
            return Err("a path has one to 64 steps, none of them empty".to_owned());
        }
        let known = OPS.iter().find(|(name, _)| *name == op).map(|(_, op)| *op);
        let op = known.ok_or_else(|| {
            format!("`{}` is not an operator: {}", op.escape_debug(), advice(op, &OPS.map(|(name, _)| name)))
        })?;
        let pattern = match (op, &value) {
            (Op::Regex, Value::String(text)) => Some(pattern(text)?),
            (Op::Regex, _) => return Err("`regex` needs a pattern as text".to_owned()),
            (Op::In, Value::Array(_) | Value::String(_)) => None,
            (Op::In, _) => return Err("`in` needs a list, or a text".to_owned()),
            (Op::Exists, Value::Null | Value::Bool(_)) => None,
            (Op::Exists, _) => return Err("`exists` takes `true`, `false` or nothing".to_owned()),
            _ => None,
        };
        Ok(Self { path, op, value, pattern })
    }

    fn holds(&self, context: &Value) -> bool {
        let found = look_up(context, &self.path).unwrap_or(&Value::Null);
        let ordered = |wanted: fn(Ordering) -> bool| compare(found, &self.value).is_some_and(wanted);
        match self.op {
            Op::Eq => equal(found, &self.value),
            Op::Ne => !equal(found, &self.value),
            Op::Gt => ordered(Ordering::is_gt),
            Op::Gte => ordered(Ordering::is_ge),
            Op::Lt => ordered(Ordering::is_lt),
            Op::Lte => ordered(Ordering::is_le),
            Op::In => contains(&self.value, found),
            Op::Contains => contains(found, &self.value),
            Op::Regex => match (&self.pattern, found) {
                (Some(pattern), Value::String(text)) => pattern.is_match(text),
                _ => false,
            },
            Op::Exists => found.is_null() == (self.value == Value::Bool(false)),
        }
    }
}

impl Condition {
    /// Whether it is true for these values.
    pub fn holds(&self, context: &Value) -> bool {
        match self {
            Self::Always => true,
            Self::Compare(comparison) => comparison.holds(context),
            Self::All(all) => all.iter().all(|one| one.holds(context)),
            Self::Any(any) => any.iter().any(|one| one.holds(context)),
            Self::Not(not) => !not.holds(context),
        }
    }

    /// The paths that it looks at.
    pub fn paths(&self) -> Vec<&[String]> {
        match self {
            Self::Always => Vec::new(),
            Self::Compare(comparison) => vec![&comparison.path],
            Self::All(all) | Self::Any(all) => all.iter().flat_map(Self::paths).collect(),
            Self::Not(not) => not.paths(),
        }
    }

    fn to_value(&self) -> Value {
        let list = |of: &[Self]| Value::Array(of.iter().map(Self::to_value).collect());
        match self {
            Self::Always => json!({}),
            Self::Compare(Comparison { path, op, value, .. }) => {
                let name = OPS.iter().find(|(_, known)| known == op).map_or("", |(name, _)| *name);
                json!({ "path": path, "op": name, "value": value })
            }
            Self::All(all) => json!({ "all": list(all) }),
            Self::Any(any) => json!({ "any": list(any) }),
            Self::Not(not) => json!({ "not": not.to_value() }),
        }
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.to_value() == other.to_value()
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            path: Option<Value>,
            op: Option<String>,
            #[serde(default)]
            value: Value,
            all: Option<Vec<Condition>>,
            any: Option<Vec<Condition>>,
            not: Option<Box<Condition>>,
        }
        let fields = Fields::deserialize(deserializer)?;
        match fields {
            Fields { path: None, op: None, value: Value::Null, all: None, any: None, not: None } => Ok(Self::Always),
            Fields { path: Some(path), op, value, all: None, any: None, not: None } => {
                let path = steps_of(path).ok_or_else(|| D::Error::custom("a path is text, or a list of texts"))?;
                let op = op.as_deref().unwrap_or("eq");
                Comparison::new(path, op, value).map(Self::Compare).map_err(D::Error::custom)
            }
            Fields { path: None, op: None, value: Value::Null, all: Some(all), any: None, not: None } => {
                Ok(Self::All(all))
            }
            Fields { path: None, op: None, value: Value::Null, all: None, any: Some(any), not: None } => {
                Ok(Self::Any(any))
            }
            Fields { path: None, op: None, value: Value::Null, all: None, any: None, not: Some(not) } => {
                Ok(Self::Not(not))
            }
            _ => Err(D::Error::custom("a condition is one of `path` with `op` and `value`, `all`, `any`, `not`")),
        }
    }
}

fn steps_of(path: Value) -> Option<Vec<String>> {
    match path {
        Value::String(text) => Some(text.split('.').map(str::to_owned).collect()),
        Value::Array(steps) => steps.into_iter().map(|step| step.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// The value at a path: keys of objects, and indexes of lists.
pub fn look_up<'a, S: AsRef<str>>(value: &'a Value, path: &[S]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(members) => members.get(step.as_ref()),
        Value::Array(items) => items.get(step.as_ref().parse::<usize>().ok()?),
        _ => None,
    })
}

/// A pattern with bounded memory and linear time.
fn pattern(text: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX).build();
    built.map_err(|error| {
        let reason = error.to_string();
        format!("the pattern is not valid: {}", reason.lines().last().unwrap_or_default())
    })
}

/// Numbers are compared by value, everything else by type and content.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(_), Value::Number(_)) => compare(one, other) == Some(Ordering::Equal),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| equal(value, other)))
        }
        (one, other) => one == other,
    }
}

/// The order of two numbers or two texts; other values have none.
fn compare(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (whole(one), whole(other)) {
            (Some(one), Some(other)) => Some(one.cmp(&other)),
            _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
        },
        (Value::String(one), Value::String(other)) => Some(one.cmp(other)),
        _ => None,
    }
}

fn whole(number: &serde_json::Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Array(items), part) => items.iter().any(|item| equal(item, part)),
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
        (Value::Object(members), Value::String(key)) => members.contains_key(key),
        _ => false,
    }
}
