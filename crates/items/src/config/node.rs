//! A parsed file, with the file and the line of every value.

use std::fmt;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use crate::error::Flaw;
use crate::library::Layer;
use crate::yaml;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The layer.
    pub layer: Layer,
    /// The file; the name of a built-in one, otherwise a path.
    #[serde(serialize_with = "as_text")]
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u64,
}

fn as_text<S: serde::Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) at: Origin,
    pub(super) content: NodeContent,
}

/// The content of a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodeContent {
    Scalar(Value),
    List(Vec<Node>),
    Fields(Vec<(String, Node)>),
}

impl Node {
    /// Parses a file; an empty one is an empty mapping.
    pub(super) fn parse(text: &str, layer: Layer, file: &Arc<str>) -> Result<Self, Flaw> {
        let is_empty = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
        let mut node = if is_empty { Self::nothing() } else { yaml::parse_yaml(text, 1)? };
        node.stamp(layer, file);
        Ok(node)
    }

    /// A mapping without keys.
    pub(super) fn nothing() -> Self {
        Self {
            at: Origin { layer: Layer::BuiltIn, file: Arc::from(""), line: 1 },
            content: NodeContent::Fields(Vec::new()),
        }
    }

    fn stamp(&mut self, layer: Layer, file: &Arc<str>) {
        self.at.layer = layer;
        self.at.file = file.clone();
        match &mut self.content {
            NodeContent::Scalar(_) => {}
            NodeContent::List(items) => items.iter_mut().for_each(|item| item.stamp(layer, file)),
            NodeContent::Fields(fields) => fields.iter_mut().for_each(|(_, field)| field.stamp(layer, file)),
        }
    }

    /// The keys, if it is a mapping.
    pub(super) fn fields(&self) -> &[(String, Node)] {
        match &self.content {
            NodeContent::Fields(fields) => fields,
            _ => &[],
        }
    }

    /// The keys, to be changed, if it is a mapping.
    pub(super) fn fields_mut(&mut self) -> Option<&mut Vec<(String, Node)>> {
        match &mut self.content {
            NodeContent::Fields(fields) => Some(fields),
            _ => None,
        }
    }

    /// The value of a key.
    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        self.fields().iter().find(|(key, _)| key == name).map(|(_, field)| field)
    }

    /// Removes a key and returns its value.
    pub(super) fn take(&mut self, name: &str) -> Option<Self> {
        let fields = self.fields_mut()?;
        let at = fields.iter().position(|(key, _)| key == name)?;
        Some(fields.remove(at).1)
    }

    /// The id of an entry of a list.
    pub(super) fn id(&self) -> Option<&str> {
        match &self.field("id")?.content {
            NodeContent::Scalar(Value::String(id)) => Some(id),
            _ => None,
        }
    }

    /// Its text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            NodeContent::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The value at a path of keys, ids of entries and indexes of lists, joined by dots, with the steps to it. Names may contain dots
    /// themselves.
    pub(super) fn look_up(&self, path: &str) -> Option<(Vec<String>, &Self)> {
        self.children().into_iter().find_map(|(name, child)| {
            let rest = path.strip_prefix(name.as_str())?;
            if rest.is_empty() {
                return Some((vec![name], child));
            }
            let (mut steps, found) = child.look_up(rest.strip_prefix('.')?)?;
            steps.insert(0, name);
            Some((steps, found))
        })
    }

    /// The value at these steps.
    pub(super) fn at_steps(&self, steps: &[String]) -> Option<&Self> {
        match steps {
            [] => Some(self),
            [first, rest @ ..] => {
                let (_, child) = self.children().into_iter().find(|(name, _)| name == first)?;
                child.at_steps(rest)
            }
        }
    }

    /// The values directly inside: by key, by the id of an entry, or else by index.
    pub(super) fn children(&self) -> Vec<(String, &Self)> {
        match &self.content {
            NodeContent::Scalar(_) => Vec::new(),
            NodeContent::List(items) => {
                let name = |(index, item): (usize, &Self)| item.id().map_or_else(|| index.to_string(), str::to_owned);
                items.iter().enumerate().map(|(index, item)| (name((index, item)), item)).collect()
            }
            NodeContent::Fields(fields) => fields.iter().map(|(name, field)| (name.clone(), field)).collect(),
        }
    }

    /// The value without its origin.
    pub(super) fn to_value(&self) -> Value {
        match &self.content {
            NodeContent::Scalar(value) => value.clone(),
            NodeContent::List(items) => Value::Array(items.iter().map(Self::to_value).collect()),
            NodeContent::Fields(fields) => Value::Object(
                fields.iter().map(|(name, field)| (name.clone(), field.to_value())).collect::<Map<_, _>>(),
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<NodeContent>::deserialize(deserializer)?;
        Ok(Self::on_line(spanned.referenced.line(), spanned.value))
    }
}

impl Node {
    /// A value of which only the line is known yet.
    fn on_line(line: u64, content: NodeContent) -> Self {
        Self { at: Origin { layer: Layer::BuiltIn, file: Arc::from(""), line: line.max(1) }, content }
    }
}

impl<'de> Deserialize<'de> for NodeContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = NodeContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number, a boolean, null, a list or a mapping")
    }

    fn visit_bool<E>(self, value: bool) -> Result<NodeContent, E> {
        Ok(NodeContent::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<NodeContent, E> {
        Ok(NodeContent::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<NodeContent, E> {
        Ok(NodeContent::Scalar(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<NodeContent, E> {
        match serde_json::Number::from_f64(value) {
            Some(number) => Ok(NodeContent::Scalar(Value::Number(number))),
            None => Err(E::custom("a number must be finite")),
        }
    }

    fn visit_str<E>(self, value: &str) -> Result<NodeContent, E> {
        Ok(NodeContent::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<NodeContent, E> {
        Ok(NodeContent::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<NodeContent, E> {
        Ok(NodeContent::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<NodeContent, D::Error> {
        NodeContent::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NodeContent, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(NodeContent::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<NodeContent, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let content = entries.next_value::<NodeContent>()?;
            // The line of a key is where people look for its value.
            fields.push((key.value, Node::on_line(key.referenced.line(), content)));
        }
        Ok(NodeContent::Fields(fields))
    }
}
