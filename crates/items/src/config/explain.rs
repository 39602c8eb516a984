//! Looking at what is set: every key with its origin, one key, and what it means.

use serde::Serialize;
use serde_json::Value;

use super::error::ConfigError;
use super::node::{Content, Node, Origin};
use super::section::{SECTIONS, Section};
use super::shape::{Inside, Key, Say, Shape};
use super::{Config, Loaded};
use crate::library::Layer;
use crate::nearest::nearest;

/// A key that is set, and by whom.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The key, such as `limits.turns`.
    pub key: String,
    /// What it is set to.
    pub value: Value,
    /// Where.
    #[serde(flatten)]
    pub origin: Origin,
}

/// What a key means, and everything that is said at it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// The key.
    pub key: String,
    /// What it means.
    pub means: String,
    /// What may be said there, for people.
    pub is: String,
    /// What a project may say there, if not anything.
    pub project: Option<&'static str>,
    /// The file it belongs in, below `config`.
    pub file: &'static str,
    /// What counts; absent if nothing is said.
    pub value: Option<Value>,
    /// Everything that is said, the lowest layer first; the last counts.
    pub values: Vec<Said>,
}

/// What was said at a key, and where.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Said {
    /// What was said.
    pub value: Value,
    /// Where.
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

    /// The files that were read, in the order in which they count.
    pub fn files(&self) -> Vec<String> {
        let written = self.loaded.iter().flat_map(|loaded| &loaded.stack);
        let written = written.filter(|written| written.layer != Layer::BuiltIn);
        written.map(|written| written.root.at.file.to_string()).collect()
    }

    /// What a key is set to; a section, or a mapping inside one, is given as a whole.
    pub fn get(&self, key: &str) -> Result<Value, ConfigError> {
        let (loaded, rest) = self.section_of(key)?;
        match rest {
            None => Ok(loaded.merged.to_value()),
            Some(rest) => match loaded.merged.look_up(rest) {
                Some((_, node)) => Ok(node.to_value()),
                // Known and not set.
                None => self.explain(key).map(|_| Value::Null),
            },
        }
    }

    /// What a key, or a whole section, means, and everything that is said at it.
    pub fn explain(&self, key: &str) -> Result<Explained, ConfigError> {
        let (loaded, rest) = self.section_of(key)?;
        let steps = match rest.map(|rest| (rest, loaded.merged.look_up(rest))) {
            None => Vec::new(),
            Some((_, Some((steps, _)))) => steps,
            Some((rest, None)) => rest.split('.').map(str::to_owned).collect(),
        };
        let Some(Description { means, is, says, is_key }) = describe(loaded.section, &steps) else {
            return Err(self.unknown(key));
        };
        let said = loaded.stack.iter().filter_map(|written| written.root.at_steps(&steps));
        let values = said.map(|node| Said { value: node.to_value(), origin: node.at.clone() }).collect();
        let value = loaded.merged.at_steps(&steps).map(Node::to_value);
        // What has a name of its own can be explained before anybody says it; an entry that nobody has written can't.
        if value.is_none() && !is_key {
            return Err(self.unknown(key));
        }
        let (project, file) = (project(says), loaded.section.place);
        Ok(Explained { key: key.to_owned(), means, is, project, file, value, values })
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
            section.keys.iter().for_each(|key| paths(section.name, key, &mut known));
        }
        let near = nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
        // Somebody may have typed the end of it.
        let tail = format!(".{key}");
        let near = near.or_else(|| known.into_iter().find(|known| !key.is_empty() && known.ends_with(&tail)));
        ConfigError::UnknownKey { key: key.to_owned(), nearest: near }
    }
}

/// The paths of a key and of those inside it that always stand there.
fn paths(around: &str, key: &Key, known: &mut Vec<String>) {
    let path = format!("{around}.{}", key.name);
    if let Shape::Fields(keys) = &key.shape {
        keys.iter().for_each(|key| paths(&path, key, known));
    }
    known.push(path);
}

struct Description {
    means: String,
    is: String,
    says: Say,
    /// Whether it has a name of its own, rather than being an entry or a key that somebody made up.
    is_key: bool,
}

fn describe(section: &'static Section, steps: &[String]) -> Option<Description> {
    let Some((first, rest)) = steps.split_first() else {
        let is = Shape::Fields(section.keys).to_string();
        return Some(Description { means: section.means.to_owned(), is, says: Say::Anything, is_key: true });
    };
    let key = section.keys.iter().find(|key| key.name == first)?;
    let mut now = Description { means: key.means.to_owned(), is: key.shape.to_string(), says: key.says, is_key: true };
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

fn project(says: Say) -> Option<&'static str> {
    match says {
        Say::Anything => None,
        Say::MoreCare => Some("a project can ask for more care than the user, never for less"),
        Say::More => Some("a project can add entries, and replace none of the user's"),
        Say::User => Some("only the user's counts; a project can't say anything"),
    }
}

fn flatten(path: &str, node: &Node, shape: Option<&'static Shape>, list: &mut Vec<Setting>) {
    let is_free = matches!(shape, Some(Shape::Free));
    let entries = matches!(&node.content, Content::List(items) if items.iter().any(|item| item.id().is_some()));
    let is_whole = match &node.content {
        Content::Scalar(_) => true,
        Content::List(_) => !entries,
        Content::Fields(fields) => is_free || fields.is_empty(),
    };
    if is_whole {
        list.push(Setting { key: path.to_owned(), value: node.to_value(), origin: node.at.clone() });
        return;
    }
    for (name, child) in node.children() {
        let path = format!("{path}.{name}");
        match entries {
            true => list.push(Setting { key: path, value: child.to_value(), origin: child.at.clone() }),
            false => {
                let shape = shape.and_then(|shape| shape.inside(&name)).and_then(|(inside, _)| match inside {
                    Inside::Shape(shape) => Some(shape),
                    Inside::Entry(_) => None,
                });
                flatten(&path, child, shape, list);
            }
        }
    }
}
