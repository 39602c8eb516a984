//! Directives: what an agent is told to do, and within which bounds.
//!
//! A directive is a Markdown file in one of two forms, and one type stands behind both:
//!
//! ~~~text
//! # Weekly report                                   ---
//! ```xml                                            name: weekly_report
//! <directive name="weekly_report" version="1.0.0">  version: 1.0.0
//!   <metadata>…</metadata>                          limits: { turns: 5 }
//!   <inputs><input name="city"/></inputs>           inputs: [{ name: city }]
//! </directive>                                      ---
//! ```                                               Report on {input:city}.
//! Report on {input:city}.
//! ~~~
//!
//! Everything behind the metadata is the body: the text that the agent is told. The file's name is the directive's name. What a
//! directive does not say, the one that it `extends` says; see [`Directive::inherit`].
//!
//! Invariants: size and nesting are bounded before anything is made of them, document types and entities of its own are
//! refused, and a key that nobody knows is an error that names the nearest.

mod fence;
mod front_matter;
mod inherit;
mod split;
mod xml;

use selvedge_log::document::Comment;
use selvedge_model::id::DirectiveId;
use selvedge_model::limits::Limits;
use serde::Serialize;
use std::collections::BTreeMap;

use crate::capability::Permissions;
use crate::error::Flaw;
use crate::hook::Hook;
use crate::input::{Input, Output};
use crate::interpolate;
pub use front_matter::ModelChoice;
use split::{Metadata, Split};

/// The most bytes that a directive may have.
pub const BYTES_MAX: usize = 1 << 20;

/// What an agent is told to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Directive {
    /// Its name, which is its file's.
    pub name: String,
    /// Its version, as `1.2.3`.
    pub version: String,
    /// What it is for.
    pub description: String,
    /// The folder it belongs into, if it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Who wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The model it wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelChoice>,
    /// Its ceilings.
    pub limits: Limits,
    /// What it may call; absent means that it says nothing, which is not the same as an empty set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// What it is given.
    pub inputs: Vec<Input>,
    /// What it gives back.
    pub outputs: Vec<Output>,
    /// What it wants done at events.
    pub hooks: Vec<Hook>,
    /// Knowledge that goes into its prompts.
    pub context: Context,
    /// The directive that says what this one does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extends: Option<DirectiveId>,
    /// The directive that seeds the first message of a successor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation_directive: Option<DirectiveId>,
    /// What else it says about itself, in plain texts; nothing here has a meaning.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
    /// The line of its file on which the body begins, from 1.
    pub body_line: u64,
    /// What the agent is told.
    pub body: String,
}

/// Knowledge that goes into prompts, by its ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Into the rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system: Vec<String>,
    /// Before the first message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Behind it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Not at all, though an ancestor or a hook would bring it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suppress: Vec<String>,
}

impl Directive {
    /// Reads a directive in either form; a line that signs it is passed over.
    pub fn parse(text: &str) -> Result<Self, Flaw> {
        if text.len() > BYTES_MAX {
            return Err(Flaw::new("it is larger than 1 MiB").hint("put long material into knowledge and name it"));
        }
        let content = Comment::Html.unsigned(text);
        let first_line = if content.len() < text.len() { 2 } else { 1 };
        let Split { metadata, body, body_line } = split::split(&content, first_line)?;
        let directive = match metadata {
            Metadata::Xml { text, line } => fence::read(text, line)?,
            Metadata::Yaml { text, line } => front_matter::read(text, line)?,
        };
        directive.check()?;
        Ok(Self { body: body.to_owned(), body_line, ..directive })
    }

    /// What both forms have to keep to.
    fn check(&self) -> Result<(), Flaw> {
        let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        if self.name.is_empty() || self.name.len() > 100 || !self.name.bytes().all(plain) {
            let why = format!("`{}` can't be the name of a directive", self.name.escape_debug());
            return Err(Flaw::new(why).hint("use lower-case letters, digits, `_` and `-`, as in its file's name"));
        }
        if !is_version(&self.version) {
            let why = format!("`{}` is no version", self.version.escape_debug());
            return Err(Flaw::new(why).hint("write three numbers, such as `1.0.0`"));
        }
        unique("input", self.inputs.iter().map(|input| &input.name))?;
        unique("output", self.outputs.iter().map(|output| &output.name))?;
        unique("hook", self.hooks.iter().map(|hook| &hook.id))
    }

    /// Whether it may lie where it was found: its name is its file's, and its category, if it has one, its folder.
    pub fn check_place(&self, id: &DirectiveId) -> Result<(), Flaw> {
        let (folder, name) = id.as_str().rsplit_once('/').unwrap_or(("", id.as_str()));
        if self.name != name {
            let why = format!("it is named `{}` and lies in the file of `{name}`", self.name);
            return Err(Flaw::new(why).hint("rename one of them"));
        }
        match &self.category {
            Some(category) if category != folder => {
                let why = format!("its category is `{}` and its folder `{folder}`", category.escape_debug());
                Err(Flaw::new(why).hint("move it, change the category, or leave it out"))
            }
            _ => Ok(()),
        }
    }

    /// The variables of the environment that its body names.
    pub fn environment_names(&self) -> Vec<String> {
        interpolate::environment_names(&self.body)
    }

    /// What a careful reader would ask about; nothing that keeps it from running.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.body.trim().is_empty() {
            doubts.push("its body is empty: the agent is told nothing".to_owned());
        }
        let declared = |name: &String| self.inputs.iter().any(|input| input.name == *name);
        if !self.inputs.is_empty() {
            let named = interpolate::input_names(&self.body);
            doubts.extend(
                named
                    .iter()
                    .filter(|name| !declared(name))
                    .map(|name| format!("its body names the input `{name}`, which is not declared")),
            );
        }
        doubts
    }
}

fn is_version(text: &str) -> bool {
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let number = |part: &str| !part.is_empty() && part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    core.split('.').count() == 3 && core.split('.').all(number) && text.len() <= 64 && text.bytes().all(plain)
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<(), Flaw> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(
                Flaw::new(format!("the {what} `{}` is there twice", name.escape_debug())).hint("keep one of them")
            );
        }
    }
    Ok(())
}
