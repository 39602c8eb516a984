//! Knowledge: text that is added to prompts unchanged. `.ai/knowledge/<id>.md`.
//!
//! Markdown. Metadata in a first block, between lines of `---` or in a block of `yaml`, is for people and for search, and is never part
//! of a prompt. Nothing in it is interpolated.
//!
//! [`Metadata`] reads that block, for lists, search and checks. Whether an entry may be used is decided by its signature alone, which covers
//! all of the file.
//!
//! A directive's `context` names what it needs; [`Library::context`] loads it. The text of a task is the entry `tasks/<task id>`.

mod entries;
mod metadata;

use std::borrow::Cow;

use selvedge_log::document::Comment;
use selvedge_model::id::DirectiveId;
use serde::Serialize;

use crate::directive::Directive;
use crate::error::{Flaw, ItemError};
use crate::library::{Kind, Library, Resolved, Source};
use crate::read::BYTE_ORDER_MARK;

pub use entries::{Condition, KnowledgeEntry};
pub use metadata::Metadata;

/// The folder of knowledge with the texts of tasks.
pub const TASKS: &str = "tasks";

/// An entry of knowledge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Knowledge {
    /// The text for the prompt.
    pub body: String,
}

/// The knowledge of a directive's `context`, each entry marked with its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedKnowledge {
    /// For the system prompt.
    pub system: Vec<Brought>,
    /// Before the first message.
    pub before: Vec<Brought>,
    /// After it.
    pub after: Vec<Brought>,
}

/// An entry of knowledge for a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Its id.
    pub id: String,
    /// Its text, marked with its name.
    pub text: String,
}

impl Knowledge {
    /// Parses an entry; a signature line is skipped.
    pub fn parse(text: &str) -> Result<Self, Flaw> {
        match split(text)?.body.trim() {
            "" => Err(Flaw::new("it has no text").hint("write what the model should know below the metadata")),
            body => Ok(Self { body: body.to_owned() }),
        }
    }

    /// The entry as it appears in a prompt.
    pub fn marked(&self, id: &str) -> String {
        // A text can't end its element: what it says stays inside.
        let body = self.body.replace("</knowledge", "<\\/knowledge");
        format!("<knowledge id=\"{id}\">\n{body}\n</knowledge>")
    }
}

/// The parts of an entry.
struct Parts<'a> {
    /// The line of the file on which the content begins, after the signature.
    first_line: u64,
    /// The YAML of the first block.
    metadata: Option<&'a str>,
    /// The text after it.
    body: Cow<'a, str>,
}

/// Splits an entry; a signature line is skipped.
fn split(text: &str) -> Result<Parts<'_>, Flaw> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let content = match Comment::Html.unsigned(text) {
        Cow::Borrowed(content) => content,
        // A line before the signature can't begin metadata.
        Cow::Owned(body) => return Ok(Parts { first_line: 1, metadata: None, body: Cow::Owned(body) }),
    };
    let first_line = if content.len() < text.len() { 2 } else { 1 };
    let content = content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(content);
    let close = match content.lines().next().map(str::trim_end) {
        Some("---") => "---",
        Some("```yaml") => "```",
        _ => return Ok(Parts { first_line, metadata: None, body: content.into() }),
    };
    let begin = content.find('\n').map_or(content.len(), |end| end + 1);
    let mut end = 0;
    for (index, line) in content.split_inclusive('\n').enumerate() {
        if index > 0 && line.trim_end() == close {
            let body = content[end + line.len()..].into();
            return Ok(Parts { first_line, metadata: Some(&content[begin..end]), body });
        }
        end += line.len();
    }
    let flaw = Flaw::new("the metadata is not closed").on_line(first_line);
    Err(flaw.hint(format!("end it with a line that is `{close}`")))
}

impl Library {
    /// An entry of knowledge that may be used. Its name follows the rule for directives.
    pub fn knowledge(&self, id: &DirectiveId) -> Result<Resolved<Knowledge>, ItemError> {
        let found = self.find(Kind::Knowledge, id.as_str())?;
        let parsed = Knowledge::parse(&found.text);
        let item = parsed.map_err(|flaw| ItemError::Invalid { file: found.source.file.clone(), flaw })?;
        Resolved { item, sources: vec![found.source] }.permitted(self.policy)
    }

    /// The knowledge of a directive's `context`. A missing entry is an error with the file and the line that name it.
    pub fn context(&self, directive: &Resolved<Directive>) -> Result<LoadedKnowledge, ItemError> {
        let bring = |ids: &[String]| -> Result<Vec<Brought>, ItemError> {
            ids.iter().map(|id| self.bring(id, &directive.sources)).collect()
        };
        let context = &directive.item.context;
        Ok(LoadedKnowledge {
            system: bring(&context.system)?,
            before: bring(&context.before)?,
            after: bring(&context.after)?,
        })
    }

    fn bring(&self, id: &str, named_by: &[Source]) -> Result<Brought, ItemError> {
        let found = DirectiveId::new(id).map_err(ItemError::from).and_then(|known| self.knowledge(&known));
        match found {
            Ok(found) => Ok(Brought { id: found.id().to_owned(), text: found.item.marked(found.id()) }),
            Err(error @ (ItemError::NotFound { .. } | ItemError::Name(_))) => {
                let (file, line) = self.naming(id, named_by);
                let mut flaw = Flaw::new(format!("its context names `{id}`, but {error}"));
                flaw = flaw.hint(format!("create `.ai/knowledge/{id}.md`, or remove `{id}` from the context"));
                flaw.line = line;
                Err(ItemError::Invalid { file, flaw })
            }
            Err(error) => Err(error),
        }
    }

    /// The file with a directive's body: its own, or that of the nearest ancestor that has one.
    pub fn file_of_body<'a>(&self, directive: &'a Resolved<Directive>) -> &'a str {
        let has_it = |source: &&Source| {
            let found = self.look(Kind::Directive, &source.id).ok().flatten();
            found.is_some_and(|found| found.text.trim_end().ends_with(directive.item.body.trim_end()))
        };
        let source = directive.sources.iter().find(has_it).or(directive.sources.first());
        source.map_or("", |source| source.file.as_str())
    }

    /// The file, of a directive and its ancestors, that names an entry, and the line.
    fn naming(&self, id: &str, named_by: &[Source]) -> (String, Option<u64>) {
        let at = |source: &Source| {
            let text = self.look(Kind::Directive, &source.id).ok()??.text;
            let line = (1..).zip(text.lines()).find(|(_, line)| has_word(line, id));
            line.map(|(number, _)| (source.file.clone(), Some(number)))
        };
        let own = || (named_by.first().map(|source| source.file.clone()).unwrap_or_default(), None);
        named_by.iter().find_map(at).unwrap_or_else(own)
    }
}

/// Whether a line contains an id as a separate word.
fn has_word(line: &str, id: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | '/');
    let stands_alone =
        |(start, _): (usize, &str)| !line[..start].ends_with(is_part) && !line[start + id.len()..].starts_with(is_part);
    !id.is_empty() && line.match_indices(id).any(stands_alone)
}
