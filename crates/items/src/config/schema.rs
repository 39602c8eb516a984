//! JSON Schemas of the configuration for editors, generated from the keys.

use serde_json::{Map, Value, json};

use super::Config;
use super::section::{SECTIONS, Section};
use super::shape::{Key, Shape};

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The schema of every section's file, by the section's name.
pub fn schemas() -> Map<String, Value> {
    let built_in = Config::built_in();
    SECTIONS.iter().map(|section| (section.name.to_owned(), of_section(section, &built_in))).collect()
}

/// The schema of one section's file, if there is such a section.
pub fn schema(section: &str) -> Option<Value> {
    SECTIONS.iter().find(|known| known.name == section).map(|known| of_section(known, &Config::built_in()))
}

fn of_section(section: &Section, built_in: &Config) -> Value {
    let defaults = built_in.get(section.name).unwrap_or_default();
    let keys: Vec<&Key> = section.keys.iter().collect();
    let mut object = of_fields(&keys, &defaults);
    let whole = object.clone();
    if let Value::Object(properties) = &mut object["properties"] {
        // A file's content may be under the section's own name.
        properties.insert(section.name.to_owned(), whole);
        let means = "A file that this one adds to: `./NAME.yaml` beside it, or one below `config`.";
        properties.insert("extends".to_owned(), json!({"type": "string", "description": means}));
    }
    object["$schema"] = DIALECT.into();
    object["title"] = format!("config/{}", section.place).into();
    object["description"] = section.means.into();
    object
}

fn of_fields(keys: &[&Key], defaults: &Value) -> Value {
    let mut properties = Map::new();
    for key in keys {
        let default = defaults.get(key.name);
        let mut property = of_shape(&key.shape, default.unwrap_or(&Value::Null));
        property["description"] = key.means.into();
        if let (Some(default), false) = (default, matches!(key.shape, Shape::Fields(_))) {
            property["default"] = default.clone();
        }
        properties.insert(key.name.to_owned(), property);
    }
    let required: Vec<_> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut object = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        object["required"] = required.into();
    }
    object
}

fn of_shape(shape: &Shape, default: &Value) -> Value {
    match shape {
        Shape::Bool => json!({"type": "boolean"}),
        Shape::True => json!({"const": true}),
        Shape::Whole { min, max: u64::MAX } => json!({"type": "integer", "minimum": min}),
        Shape::Whole { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Shape::NeverOr(min) => json!({"anyOf": [{"const": 0}, {"type": "integer", "minimum": min}]}),
        Shape::Number { min, max } => json!({"type": "number", "minimum": min, "maximum": max}),
        Shape::Dollars => json!({"type": ["string", "number"], "pattern": "^[0-9]+(\\.[0-9]{1,9})?$", "minimum": 0}),
        Shape::Text(_) => json!({"type": "string", "minLength": 1}),
        Shape::Word(words) => json!({"enum": words}),
        Shape::Optional(shape) => json!({"anyOf": [of_shape(shape, default), {"type": "null"}]}),
        Shape::List(shape) => json!({"type": "array", "items": of_shape(shape, &Value::Null)}),
        Shape::Entries(_) => json!({"type": "array", "items": of_fields(&shape.keys(), &Value::Null)}),
        Shape::Fields(_) => of_fields(&shape.keys(), default),
        Shape::Map(shape) => json!({"type": "object", "additionalProperties": of_shape(shape, &Value::Null)}),
        Shape::Free => json!({"type": "object"}),
    }
}
