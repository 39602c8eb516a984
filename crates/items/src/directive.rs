//! Directives: the task of an agent, and its bounds.
//!
//! A directive is a Markdown file in one of two forms, which are read into one type:
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
//! Everything after the metadata is the body: the instructions of the agent. The file's name is the directive's name. What a
//! directive does not set is inherited from the one that it `extends`; see [`Directive::inherit`].
//!
//! Invariants: size and nesting are bounded before anything is parsed, document types and custom entities are
//! refused, and an unknown key is an error that names the nearest known one.

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
use crate::read::BYTE_ORDER_MARK;
pub use front_matter::ModelChoice;
use split::{Metadata, Split};

/// The most bytes that a directive may have.
pub const BYTES_MAX: usize = 1 << 20;

/// The task of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Directive {
    /// Its name, which is that of its file.
    pub name: String,
    /// Its version, as `1.2.3`.
    pub version: String,
    /// Its purpose.
    pub description: String,
    /// The folder it belongs into, if it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Its author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The requested model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelChoice>,
    /// Its limits.
    pub limits: Limits,
    /// What it may call; absent means no restriction of its own, unlike an empty set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// Its inputs.
    pub inputs: Vec<Input>,
    /// Its outputs.
    pub outputs: Vec<Output>,
    /// Its hooks.
    pub hooks: Vec<Hook>,
    /// Knowledge that is added to its prompts.
    pub context: Context,
    /// The directive that it inherits from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extends: Option<DirectiveId>,
    /// The directive that creates the first message of a successor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation_directive: Option<DirectiveId>,
    /// Other metadata, as plain texts without a meaning to this program.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
    /// The line of its file on which the body begins, from 1.
    pub body_line: u64,
    /// The instructions of the agent.
    pub body: String,
}

/// Knowledge that is added to prompts, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// In the system prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system: Vec<String>,
    /// Before the first message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// After it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Left out, even if an ancestor or a hook adds it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suppress: Vec<String>,
}

impl Directive {
    /// Parses a directive in either form; a signature line is skipped.
    pub fn parse(text: &str) -> Result<Self, Flaw> {
        if text.len() > BYTES_MAX {
            return Err(Flaw::new("it is larger than 1 MiB").hint("move long material into knowledge and refer to it"));
        }
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let content = Comment::Html.unsigned(text);
        let first_line = if content.len() < text.len() { 2 } else { 1 };
        let content = content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&content);
        let Split { metadata, body, body_line } = split::split(content, first_line)?;
        let directive = match metadata {
            Metadata::Xml { text, line } => fence::read(text, line)?,
            Metadata::Yaml { text, line } => front_matter::read(text, line)?,
        };
        directive.check()?;
        Ok(Self { body: body.to_owned(), body_line, ..directive })
    }

    /// The rules for both forms.
    fn check(&self) -> Result<(), Flaw> {
        let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        if self.name.is_empty() || self.name.len() > 100 || !self.name.bytes().all(plain) {
            let why = format!("`{}` can't be the name of a directive", self.name.escape_debug());
            return Err(Flaw::new(why).hint("use lower-case letters, digits, `_` and `-`, as in its file's name"));
        }
        if !is_version(&self.version) {
            let why = format!("`{}` is not a version", self.version.escape_debug());
            return Err(Flaw::new(why).hint("write three numbers, such as `1.0.0`"));
        }
        if let Some(name) = self.limits.first_zero() {
            let flaw = Flaw::new(format!("with a limit `{name}` of 0 nothing could run"));
            return Err(flaw.hint("the minimum is 1; omit it to use the project's default"));
        }
        unique("input", self.inputs.iter().map(|input| &input.name))?;
        unique("output", self.outputs.iter().map(|output| &output.name))?;
        unique("hook", self.hooks.iter().map(|hook| &hook.id))
    }

    /// Checks that it may be where it was found: its name is that of its file, and its category, if it has one, that of its folder.
    pub fn check_place(&self, id: &DirectiveId) -> Result<(), Flaw> {
        let (folder, name) = id.as_str().rsplit_once('/').unwrap_or(("", id.as_str()));
        if self.name != name {
            let why = format!("it is named `{}`, but its file `{name}`", self.name);
            return Err(Flaw::new(why).hint("rename one of them"));
        }
        match &self.category {
            Some(category) if category != folder => {
                let why = format!("its category is `{}`, but its folder `{folder}`", category.escape_debug());
                Err(Flaw::new(why).hint("move it, or change or remove the category"))
            }
            _ => Ok(()),
        }
    }

    /// The environment variables that its body names.
    pub fn environment_names(&self) -> Vec<String> {
        interpolate::environment_names(&self.body)
    }

    /// Warnings that don't keep it from running.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.body.trim().is_empty() {
            warnings.push("its body is empty: the agent gets no instructions".to_owned());
        }
        let declared = |name: &String| self.inputs.iter().any(|input| input.name == *name);
        let named = interpolate::input_names(&self.body);
        for name in named.iter().filter(|name| !declared(name)) {
            warnings.push(format!("its body names the input `{name}`, which is not declared"));
        }
        warnings
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
                Flaw::new(format!("the {what} `{}` occurs twice", name.escape_debug())).hint("keep one of them")
            );
        }
    }
    Ok(())
}
