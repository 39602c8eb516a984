//! The metadata of an entry of knowledge: for people and for search, never for a prompt.
//!
//! Reading it is separate from reading the text, so that no metadata, however large or wrong, keeps a prompt from being built or gets into
//! it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::split;
use crate::error::Flaw;
use crate::yaml::parse_yaml;

/// The metadata of an entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// Its name, which is that of its file.
    #[serde(default, alias = "id", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What kind of entry it is: `reference`, `learning`, `pattern`, `context` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_type: Option<String>,
    /// The folder it belongs into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Value>,
    /// Its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// When it was created, as its author says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Value>,
    /// The thread that wrote it, if an agent did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<String>,
    /// Words to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Entries that it builds on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extends: Vec<String>,
    /// Entries, and paths of files, that it refers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<String>,
    /// Who uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

impl Metadata {
    /// Reads the metadata of an entry; an entry without a block has none.
    pub fn read(text: &str) -> Result<Self, Flaw> {
        let split = split(text)?;
        match split.metadata {
            Some(yaml) if !yaml.trim().is_empty() => parse_yaml(yaml, split.first_line + 1),
            _ => Ok(Self::default()),
        }
    }

    /// What does not fit its place: the name of its file and its folder.
    pub fn misfits(&self, id: &str) -> Vec<String> {
        let (folder, stem) = id.rsplit_once('/').unwrap_or(("", id));
        let mut misfits = Vec::new();
        let shown = |text: &str| text.escape_debug().to_string();
        if let Some(name) = self.name.as_deref().filter(|name| *name != stem) {
            misfits.push(format!("it is named `{}`, but its file `{stem}`", shown(name)));
        }
        if let Some(category) = self.category.as_deref().filter(|category| *category != folder) {
            misfits.push(format!("its category is `{}`, but its folder `{folder}`", shown(category)));
        }
        misfits
    }
}
