//! Inspects the configuration: every key with its origin, one key, and its meaning.

use serde::Serialize;
use serde_json::Value;

use super::error::ConfigError;
use super::node::{Node, NodeContent, Origin};
use super::section::{SECTIONS, Section};
use super::shape::{Inside, Key, ProjectRule, Shape};
use super::{Config, Loaded};
use crate::library::Layer;
use crate::nearest::nearest;

/// A key that is set, and its origin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The key, such as `limits.turns`.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where it is set.
    #[serde(flatten)]
    pub origin: Origin,
}

/// The meaning of a key, and all its values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// The key.
    pub key: String,
    /// Its meaning.
    pub meaning: String,
    /// Its type, for people.
    #[serde(rename = "type")]
    pub type_name: String,
    /// How a project's value is restricted, if it is.
    pub project: Option<&'static str>,
    /// Its file, below `config`.
    pub file: &'static str,
    /// The effective value; absent if it is not set.
    pub value: Option<Value>,
    /// The values of all layers, the lowest first; the last counts.
    pub values: Vec<LayerValue>,
}

/// A value of a key, and its origin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerValue {
    /// The value.
    pub value: Value,
    /// Where it is set.
    #[serde(flatten)]
    pub origin: Origin,
}

impl Config {
    /// Every key that is set, section by section. Entries and lists are shown as a whole, as they are set.
    pub fn list(&self) -> Vec<Setting> {
        let mut list = Vec::new();
        for Loaded { section, merged, .. } in &self.loaded {
            for (name, field) in merged.fields() {
                let shape = section.keys.iter().find(|key| key.name == name).map(|key| &key.shape);
                flatten(&format!("{}.{name}", section.name), field, shape, &mut list);
            }
        }
        list
    }

    /// The files that were read, in increasing precedence.
    pub fn files(&self) -> Vec<String> {
        let written = self.loaded.iter().flat_map(|loaded| &loaded.stack);
        let written = written.filter(|written| written.layer != Layer::BuiltIn);
        written.map(|written| written.root.at.file.to_string()).collect()
    }

    /// The value of a key; a section, or a mapping inside one, is returned as a whole.
    pub fn get(&self, key: &str) -> Result<Value, ConfigError> {
        let (loaded, rest) = self.section_of(key)?;
        match rest {
            None => Ok(loaded.merged.to_value()),
            Some(rest) => match loaded.merged.look_up(rest) {
                Some((_, node)) => Ok(node.to_value()),
                // The key is known but not set.
                None => self.explain(key).map(|_| Value::Null),
            },
        }
    }

    /// The meaning of a key, or of a whole section, and all its values.
    pub fn explain(&self, key: &str) -> Result<Explained, ConfigError> {
        let (loaded, rest) = self.section_of(key)?;
        let steps = match rest.map(|rest| (rest, loaded.merged.look_up(rest))) {
            None => Vec::new(),
            Some((_, Some((steps, _)))) => steps,
            Some((rest, None)) => rest.split('.').map(str::to_owned).collect(),
        };
        let Some(Description { means, is, project_rule, is_key }) = describe(loaded.section, &steps) else {
            return Err(self.unknown(key));
        };
        let said = loaded.stack.iter().filter_map(|written| written.root.at_steps(&steps));
        let values = said.map(|node| LayerValue { value: node.to_value(), origin: node.at.clone() }).collect();
        let value = loaded.merged.at_steps(&steps).map(Node::to_value);
        // A declared key can be explained even if it is not set; an entry that does not exist can't.
        if value.is_none() && !is_key {
            return Err(self.unknown(key));
        }
        Ok(Explained {
            key: key.to_owned(),
            meaning: means,
            type_name: is,
            project: project(project_rule),
            file: loaded.section.place,
            value,
            values,
        })
    }

    /// The section of a key, and the key inside it.
    fn section_of<'k>(&self, key: &'k str) -> Result<(&Loaded, Option<&'k str>), ConfigError> {
        let (name, rest) = key.split_once('.').map_or((key, None), |(name, rest)| (name, Some(rest)));
        let loaded = self.loaded.iter().find(|loaded| loaded.section.name == name);
        loaded.map(|loaded| (loaded, rest)).ok_or_else(|| self.unknown(key))
    }

    fn unknown(&self, key: &str) -> ConfigError {
        let mut known: Vec<String> = self.list().into_iter().map(|setting| setting.key).collect();
        for section in SECTIONS {
            known.push(section.name.to_owned());
            for key in section.keys {
                paths(section.name, key, &mut known);
            }
        }
        let near = nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
        // Only the end of the key may have been typed.
        let tail = format!(".{key}");
        let near = near.or_else(|| known.into_iter().find(|known| !key.is_empty() && known.ends_with(&tail)));
        ConfigError::UnknownKey { key: key.to_owned(), nearest: near }
    }
}

/// The paths of a key and of the declared keys inside it.
fn paths(around: &str, key: &Key, known: &mut Vec<String>) {
    let path = format!("{around}.{}", key.name);
    if let Shape::Fields(keys) = &key.shape {
        for key in *keys {
            paths(&path, key, known);
        }
    }
    known.push(path);
}

struct Description {
    means: String,
    is: String,
    project_rule: ProjectRule,
    /// Whether it is a declared key, rather than an entry or a user's own key.
    is_key: bool,
}

fn describe(section: &'static Section, steps: &[String]) -> Option<Description> {
    let Some((first, rest)) = steps.split_first() else {
        let is = Shape::Fields(section.keys).to_string();
        return Some(Description {
            means: section.means.to_owned(),
            is,
            project_rule: ProjectRule::Anything,
            is_key: true,
        });
    };
    let key = section.keys.iter().find(|key| key.name == first)?;
    let mut now = Description {
        means: key.means.to_owned(),
        is: key.shape.to_string(),
        project_rule: key.project_rule,
        is_key: true,
    };
    let mut inside = Inside::Shape(&key.shape);
    for step in rest {
        let (next, key) = match inside {
            Inside::Shape(shape) => shape.inside(step)?,
            Inside::Entry(keys) => {
                let key = Shape::Entries(keys).keys().into_iter().find(|key| key.name == step)?;
                (Inside::Shape(&key.shape), Some(key))
            }
        };
        inside = next;
        now.is_key = key.is_some();
        if let Some(key) = key {
            now.means = key.means.to_owned();
        }
        now.is = match inside {
            Inside::Shape(shape) => shape.to_string(),
            Inside::Entry(keys) => {
                let names: Vec<_> =
                    Shape::Entries(keys).keys().into_iter().map(|key| format!("`{}`", key.name)).collect();
                format!("an entry with the keys {}", names.join(", "))
            }
        };
    }
    Some(now)
}

fn project(project_rule: ProjectRule) -> Option<&'static str> {
    match project_rule {
        ProjectRule::Anything => None,
        ProjectRule::Stricter => Some("a project can be stricter than the user, never more lenient"),
        ProjectRule::AddOnly => Some("a project can add entries, but not replace the user's"),
        ProjectRule::Ignored => Some("only the user can set it; a project's value is ignored"),
    }
}

fn flatten(path: &str, node: &Node, shape: Option<&'static Shape>, list: &mut Vec<Setting>) {
    let is_free = matches!(shape, Some(Shape::Free));
    let entries = matches!(&node.content, NodeContent::List(items) if items.iter().any(|item| item.id().is_some()));
    let is_whole = match &node.content {
        NodeContent::Scalar(_) => true,
        NodeContent::List(_) => !entries,
        NodeContent::Fields(fields) => is_free || fields.is_empty(),
    };
    if is_whole {
        list.push(Setting { key: path.to_owned(), value: node.to_value(), origin: node.at.clone() });
        return;
    }
    for (name, child) in node.children() {
        let path = format!("{path}.{name}");
        if entries {
            list.push(Setting { key: path, value: child.to_value(), origin: child.at.clone() });
            continue;
        }
        let shape = shape.and_then(|shape| shape.inside(&name)).and_then(|(inside, _)| match inside {
            Inside::Shape(shape) => Some(shape),
            Inside::Entry(_) => None,
        });
        flatten(&path, child, shape, list);
    }
}
