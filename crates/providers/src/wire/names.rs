//! The names of tools and the ids of calls, in the form that wire formats accept: `^[a-zA-Z0-9_-]{1,64}$`.
//!
//! - A name that is valid already is sent unchanged.
//! - In any other name each invalid character becomes `_`, and a name that is too long gets a hash of the whole name at its end.
//! - Two tools of one prompt with the same wire name are an error: a call of the model could mean either.

use std::borrow::Cow;
use std::collections::HashMap;

use selvedge_model::digest::hex;
use selvedge_model::{CallId, ModelError, ToolSpec};
use sha2::{Digest as _, Sha256};

/// The most characters of a name.
const CHARACTERS_MAX: usize = 64;

/// The wire names of the tools of one prompt.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The tools whose wire names differ from their own, by wire name.
    changed: HashMap<String, String>,
}

impl Names {
    /// The names of these tools; an error if two of them have the same wire name.
    pub fn new(tools: &[ToolSpec]) -> Result<Self, ModelError> {
        let mut seen: HashMap<Cow<'_, str>, &str> = HashMap::new();
        for tool in tools {
            let name = encoded(&tool.name);
            if let Some(other) = seen.insert(name.clone(), &tool.name)
                && other != tool.name
            {
                let why = format!("the tools `{other}` and `{}` have the same name `{name}` for the model", tool.name);
                return Err(ModelError::Permanent { why });
            }
        }
        Ok(Self::of(tools))
    }

    /// The names of tools that were checked when the request was built.
    pub fn of(tools: &[ToolSpec]) -> Self {
        let mut changed = HashMap::new();
        for tool in tools {
            if let Cow::Owned(name) = encoded(&tool.name) {
                changed.insert(name, tool.name.clone());
            }
        }
        Self { changed }
    }

    /// The wire name of a tool; also of one that the prompt does not offer, because older calls of it may be in the conversation.
    pub fn wire<'a>(&self, tool: &'a str) -> Cow<'a, str> {
        encoded(tool)
    }

    /// The tool that a model calls by this name; an unknown name is returned as it is.
    pub fn tool(&self, name: &str) -> String {
        self.changed.get(name).map_or_else(|| name.to_owned(), Clone::clone)
    }
}

/// The wire form of a call's id. The same id always has the same form.
pub fn call_id(id: &CallId) -> Cow<'_, str> {
    let text = id.as_str();
    if is_valid(text) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(hashed(text))
}

fn is_valid(text: &str) -> bool {
    (1..=CHARACTERS_MAX).contains(&text.len()) && text.chars().all(is_allowed)
}

fn is_allowed(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '-'
}

fn encoded(name: &str) -> Cow<'_, str> {
    if is_valid(name) {
        return Cow::Borrowed(name);
    }
    let replaced = replaced(name);
    if (1..=CHARACTERS_MAX).contains(&replaced.len()) { Cow::Owned(replaced) } else { Cow::Owned(hashed(name)) }
}

fn replaced(text: &str) -> String {
    text.chars().map(|character| if is_allowed(character) { character } else { '_' }).collect()
}

/// The beginning of a text and a hash of all of it.
fn hashed(text: &str) -> String {
    const HASH_BYTES: usize = 8;
    let hash = hex(&Sha256::digest(text.as_bytes())[..HASH_BYTES]);
    let head: String = replaced(text).chars().take(CHARACTERS_MAX - 1 - hash.len()).collect();
    format!("{head}_{hash}")
}

#[cfg(test)]
mod tests {
    use selvedge_model::Digest;
    use selvedge_model::event::EffectClass;
    use selvedge_model::tool::Risk;
    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> ToolSpec {
        ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            input_schema: json!({"type": "object"}),
            class: EffectClass::Pure,
            capability: String::new(),
            risk: Risk::Safe,
            hash: Digest([0; 32]),
        }
    }

    #[test]
    fn a_valid_name_is_unchanged_and_any_other_comes_back_as_it_was() {
        let long = "selvedge/agent/".to_owned() + &"x".repeat(90);
        let tools = ["read_file", "files/write", "größe", &long].map(tool);
        let names = Names::new(&tools).unwrap();
        assert_eq!(names.wire("read_file"), "read_file");
        assert_eq!(names.wire("files/write"), "files_write");
        for tool in &tools {
            let wire = names.wire(&tool.name).into_owned();
            assert!(is_valid(&wire), "{wire}");
            assert_eq!(names.tool(&wire), tool.name);
        }
        assert_eq!(names.tool("invented"), "invented");
    }

    #[test]
    fn two_tools_with_the_same_wire_name_are_refused_and_named() {
        let error = Names::new(&["a/b", "a.b"].map(tool)).unwrap_err().to_string();
        assert!(error.contains("`a/b`") && error.contains("`a.b`") && error.contains("`a_b`"), "{error}");
        assert!(Names::new(&["a_b", "a/b"].map(tool)).is_err());
    }

    #[test]
    fn call_ids_keep_their_identity() {
        let id = |text: &str| CallId::new(text).unwrap();
        assert_eq!(call_id(&id("toolu_01-A")), "toolu_01-A");
        let dotted = id("c.1");
        let other = id("c:1");
        assert!(is_valid(&call_id(&dotted)) && is_valid(&call_id(&other)));
        assert_ne!(call_id(&dotted), call_id(&other));
        assert_eq!(call_id(&dotted), call_id(&dotted));
        assert_eq!(call_id(&id(&"x".repeat(80))).len(), CHARACTERS_MAX);
    }
}
