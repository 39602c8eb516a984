//! Inputs and outputs of a run: declared with types, checked, and converted to the declared type.
//!
//! A command line gives every value as text, so text is converted: `--input count=5` is the number 5 where
//! an integer is declared. Nothing is dropped silently: invalid, missing and undeclared values are reported,
//! all at once.

mod value_type;

use selvedge_model::error::{Classify, Kind};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::nearest::nearest;
pub use value_type::Type;

/// A declared input.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(flatten)]
    pub of: Type,
    /// Whether it must be given.
    pub required: bool,
    /// Its value if none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// Its purpose.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// A declared output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(flatten)]
    pub of: Type,
    /// Whether a run is incomplete without it.
    pub required: bool,
    /// Its meaning.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// The written form of an input or an output, in either form of a directive.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fields {
    pub(crate) name: String,
    #[serde(default, rename = "type")]
    pub(crate) of: Option<String>,
    #[serde(default)]
    pub(crate) required: bool,
    #[serde(default)]
    pub(crate) default: Option<Value>,
    #[serde(default)]
    pub(crate) values: Vec<String>,
    #[serde(default)]
    pub(crate) description: String,
}

impl TryFrom<Fields> for Input {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        check_name(&fields.name)?;
        let of = Type::new(fields.of.as_deref().unwrap_or("string"), fields.values)?;
        let default = match fields.default.filter(|default| !default.is_null()) {
            None => None,
            Some(default) => Some(
                of.coerce(default).map_err(|wanted| format!("the default of `{}` should be {wanted}", fields.name))?,
            ),
        };
        Ok(Self { name: fields.name, of, required: fields.required, default, description: fields.description })
    }
}

impl TryFrom<Fields> for Output {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        check_name(&fields.name)?;
        if fields.default.is_some() {
            return Err(format!("the output `{}` can't have a default: the run sets it", fields.name));
        }
        let of = Type::new(fields.of.as_deref().unwrap_or("string"), fields.values)?;
        Ok(Self { name: fields.name, of, required: fields.required, description: fields.description })
    }
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Fields::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Output {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Fields::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

/// The rule for names in `{input:name}`.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.len() <= 64
        && name.bytes().all(plain)
}

fn check_name(name: &str) -> Result<(), String> {
    if is_name(name) {
        Ok(())
    } else {
        Err(format!("`{}` can't be a name: use at most 64 letters, digits, `_` and `-`", name.escape_debug()))
    }
}

/// Everything that is wrong with the given values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {what} can't be used: {}", .reasons.join("; "))]
pub struct InputError {
    /// Inputs or outputs.
    pub what: &'static str,
    /// The reasons, each with the name of the value.
    pub reasons: Vec<String>,
    missing: Vec<String>,
}

impl InputError {
    /// The names of required values that were not given.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }
}

impl Classify for InputError {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        "inputs_invalid"
    }

    fn hint(&self) -> Option<String> {
        let given: Vec<_> = self.missing.iter().map(|name| format!("--input {name}=…")).collect();
        (!given.is_empty() && self.what == "inputs").then(|| format!("give {}", given.join(" ")))
    }
}

/// The inputs of a run: the given values in the declared types, and the defaults. A directive that declares no inputs accepts
/// any.
pub fn bind(declared: &[Input], given: Map<String, Value>) -> Result<Map<String, Value>, InputError> {
    let slots = declared.iter().map(|input| {
        let Input { name, of, required, default, .. } = input;
        Slot { name, of, required: *required, default: default.as_ref() }
    });
    take("inputs", slots.collect(), given)
}

/// The outputs of a run in the declared types; a required one that is missing or `null` is an error. `false`, `0` and empty
/// text are values (they used to count as missing).
pub fn give_back(declared: &[Output], given: Map<String, Value>) -> Result<Map<String, Value>, InputError> {
    let slots = declared.iter().map(|output| {
        let Output { name, of, required, .. } = output;
        Slot { name, of, required: *required, default: None }
    });
    take("outputs", slots.collect(), given)
}

/// What an input and an output have in common.
struct Slot<'a> {
    name: &'a str,
    of: &'a Type,
    required: bool,
    default: Option<&'a Value>,
}

fn take(
    what: &'static str,
    declared: Vec<Slot<'_>>,
    given: Map<String, Value>,
) -> Result<Map<String, Value>, InputError> {
    if declared.is_empty() {
        return Ok(given);
    }
    let mut taken = Map::new();
    let mut reasons = Vec::new();
    let mut invalid = Vec::new();
    for (name, value) in given {
        match declared.iter().find(|slot| slot.name == name) {
            None => reasons.push(not_declared(&name, &declared)),
            Some(_) if value.is_null() => {}
            Some(slot) => match slot.of.coerce(value) {
                Ok(value) => drop(taken.insert(name, value)),
                Err(wanted) => {
                    reasons.push(format!("`{name}` should be {wanted}"));
                    invalid.push(name);
                }
            },
        }
    }
    let mut missing = Vec::new();
    for slot in &declared {
        match slot.default {
            _ if taken.contains_key(slot.name) || invalid.iter().any(|name| name == slot.name) => {}
            Some(default) => drop(taken.insert(slot.name.to_owned(), default.clone())),
            None if slot.required => missing.push(slot.name.to_owned()),
            None => {}
        }
    }
    for name in &missing {
        reasons.push(format!("`{name}` is required and missing"));
    }
    if !reasons.is_empty() {
        return Err(InputError { what, reasons, missing });
    }
    Ok(taken)
}

fn not_declared(name: &str, declared: &[Slot<'_>]) -> String {
    let near = nearest(name, declared.iter().map(|slot| slot.name));
    let known = || match declared {
        [] => "; none is".to_owned(),
        declared => {
            let names: Vec<_> = declared.iter().map(|slot| format!("`{}`", slot.name)).collect();
            format!("; declared: {}", names.join(", "))
        }
    };
    let near = near.map_or_else(known, |near| format!(" (did you mean `{near}`?)"));
    format!("`{}` is not declared{near}", name.escape_debug())
}

/// The JSON Schema of the outputs, for the tool that returns them.
pub fn output_schema(declared: &[Output]) -> Value {
    let property = |output: &Output| {
        let mut schema = output.of.schema();
        if !output.description.is_empty() {
            schema["description"] = json!(output.description);
        }
        (output.name.clone(), schema)
    };
    let required: Vec<&str> =
        declared.iter().filter(|output| output.required).map(|output| output.name.as_str()).collect();
    json!({
        "type": "object",
        "properties": declared.iter().map(property).collect::<Map<_, _>>(),
        "required": required,
        "additionalProperties": declared.is_empty(),
    })
}
