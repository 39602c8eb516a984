//! The types of inputs and outputs, and the conversion of values.

use serde::Serialize;
use serde_json::{Value, json};

use crate::nearest::advice;

/// The type of an input or an output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Type {
    /// Text.
    #[default]
    String,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A list of anything.
    List,
    /// An object of anything.
    Object,
    /// One of these texts.
    Enum {
        /// The texts.
        values: Vec<String>,
    },
}

/// All names of types; the last five are older ones.
const TYPES: [&str; 12] =
    ["string", "integer", "number", "boolean", "list", "object", "enum", "array", "int", "float", "bool", "dict"];

impl Type {
    /// The type with this name; an `enum` needs its values.
    pub fn new(name: &str, values: Vec<String>) -> Result<Self, String> {
        let is_enum = name == "enum";
        if is_enum == values.is_empty() {
            return Err(if is_enum {
                "an `enum` needs its `values`".to_owned()
            } else {
                format!("`values` are only for the type `enum`, not for `{}`", name.escape_debug())
            });
        }
        Ok(match name {
            "string" => Self::String,
            "integer" | "int" => Self::Integer,
            "number" | "float" => Self::Number,
            "boolean" | "bool" => Self::Boolean,
            "list" | "array" => Self::List,
            "object" | "dict" => Self::Object,
            "enum" => Self::Enum { values },
            other => return Err(format!("`{}` is not a type: {}", other.escape_debug(), advice(other, &TYPES[..7]))),
        })
    }

    /// The value converted to this type, or a description of what is expected.
    pub(super) fn coerce(&self, value: Value) -> Result<Value, String> {
        let (fits, wanted) = match self {
            Self::String => (as_text(&value), "a text".to_owned()),
            Self::Integer => (as_integer(&value), integer(&value)),
            Self::Number => (as_number(&value), "a number".to_owned()),
            Self::Boolean => (as_boolean(&value), "`true` or `false`".to_owned()),
            Self::List => (from_json(&value, Value::is_array), "a list, as JSON".to_owned()),
            Self::Object => (from_json(&value, Value::is_object), "an object, as JSON".to_owned()),
            Self::Enum { values } => {
                let known =
                    as_text(&value).filter(|text| values.iter().any(|known| Some(known.as_str()) == text.as_str()));
                (known, format!("one of {}", values.join(", ")))
            }
        };
        fits.ok_or(wanted)
    }

    /// The JSON Schema of a value of this type.
    pub(super) fn schema(&self) -> Value {
        match self {
            Self::String => json!({ "type": "string" }),
            Self::Integer => json!({ "type": "integer" }),
            Self::Number => json!({ "type": "number" }),
            Self::Boolean => json!({ "type": "boolean" }),
            Self::List => json!({ "type": "array" }),
            Self::Object => json!({ "type": "object" }),
            Self::Enum { values } => json!({ "type": "string", "enum": values }),
        }
    }
}

/// What is expected of an integer.
fn integer(value: &Value) -> String {
    let digits = value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_owned());
    let digits = digits.strip_prefix(['-', '+']).unwrap_or(&digits);
    let is_large = value.as_f64().is_some_and(|float| float.fract() == 0.0)
        || !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if is_large {
        format!("a whole number within 64 bits, from {} to {}", i64::MIN, u64::MAX)
    } else {
        "a whole number".to_owned()
    }
}

fn as_text(value: &Value) -> Option<Value> {
    match value {
        Value::String(_) => Some(value.clone()),
        Value::Number(number) => Some(Value::String(number.to_string())),
        Value::Bool(truth) => Some(Value::String(truth.to_string())),
        _ => None,
    }
}

fn as_integer(value: &Value) -> Option<Value> {
    match value {
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(value.clone()),
        // Below this bound a float represents every whole number exactly.
        Value::Number(number) => number
            .as_f64()
            .filter(|float| float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0)
            .map(|float| json!(float as i64)),
        Value::String(text) => {
            text.trim().parse::<i64>().map(Value::from).or_else(|_| text.trim().parse::<u64>().map(Value::from)).ok()
        }
        _ => None,
    }
}

fn as_number(value: &Value) -> Option<Value> {
    match value {
        Value::Number(_) => Some(value.clone()),
        Value::String(text) => as_integer(value)
            .or_else(|| text.trim().parse::<f64>().ok().and_then(serde_json::Number::from_f64).map(Value::Number)),
        _ => None,
    }
}

fn as_boolean(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(_) => Some(value.clone()),
        Value::String(text) => text.trim().parse::<bool>().ok().map(Value::Bool),
        _ => None,
    }
}

fn from_json(value: &Value, fits: fn(&Value) -> bool) -> Option<Value> {
    match value {
        Value::String(text) => serde_json::from_str(text).ok().filter(fits),
        other => Some(other.clone()).filter(fits),
    }
}
