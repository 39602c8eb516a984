//! Entries of knowledge: searched by people and agents ([`search_knowledge`]), and written by agents ([`Entry`]).
//!
//! An entry has its metadata in a block of YAML and is signed with the key of the store. `written_by` names the thread that wrote it: only
//! entries that have it are ever replaced by an agent, so nothing of a person is.

mod search;

use std::fmt::Write;

use selvedge_model::DirectiveId;

pub use search::{FOUND_MAX, KnowledgeAnswer, KnowledgeFound, search_knowledge};

/// The field that names the thread that wrote an entry.
const WRITTEN_BY: &str = "written_by";

/// An entry of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its title.
    pub title: String,
    /// What kind of entry it is.
    pub entry_type: String,
    /// The thread that wrote it.
    pub written_by: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Further fields, as texts.
    pub more: Vec<(String, String)>,
    /// Its text.
    pub body: String,
}

impl Entry {
    /// Its file, without the signature.
    pub fn text(&self, id: &DirectiveId) -> String {
        let (category, name) = id.as_str().rsplit_once('/').unwrap_or(("", id.as_str()));
        let mut text = String::from("```yaml\n");
        let fields = [("name", name), ("title", &self.title), ("entry_type", &self.entry_type), ("category", category)];
        let fixed = [("version", "1.0.0"), ("author", "selvedge"), (WRITTEN_BY, &self.written_by)];
        let more = self.more.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in fields.into_iter().chain(fixed).chain(more) {
            // A JSON string is a YAML string, whatever it has in it.
            _ = writeln!(text, "{name}: {}", serde_json::json!(value));
        }
        _ = writeln!(text, "tags: {}", serde_json::json!(self.tags));
        _ = write!(text, "```\n\n{}\n", self.body.trim());
        text
    }

    /// Whether an agent wrote this entry, rather than a person.
    pub fn is_of_agent(text: &str) -> bool {
        let metadata = text.lines().skip(1).take_while(|line| !line.starts_with("```"));
        let is_field = |line: &str| line.strip_prefix(WRITTEN_BY).is_some_and(|rest| rest.starts_with(':'));
        text.starts_with("```yaml\n") && metadata.into_iter().any(is_field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_an_agent_is_told_from_one_of_a_person() {
        let id = DirectiveId::new("agent/threads/a/t-1-summary").unwrap();
        let entry = Entry {
            title: "A: \"b\"\n```".to_owned(),
            entry_type: "thread_summary".to_owned(),
            written_by: "t-2".to_owned(),
            tags: vec!["x".to_owned()],
            more: vec![],
            body: "All done.\n```yaml\nwritten_by: me\n```".to_owned(),
        };
        let text = entry.text(&id);
        assert!(Entry::is_of_agent(&text) && text.contains("name: \"t-1-summary\"\n"), "{text}");
        assert_eq!(selvedge_items::Knowledge::parse(&text).unwrap().body, entry.body);
        for other in
            ["", "written_by: x\n", "```yaml\nname: x\n```\nwritten_by: x\n", "```yaml\nwritten_by_me: x\n```\n"]
        {
            assert!(!Entry::is_of_agent(other), "{other}");
        }
    }
}
