//! What must never reach a log: secrets that the process was given, and whatever looks like one.
//!
//! Runs before anything is hashed or signed, over every string of a changeset, keys of objects included. What is replaced is
//! gone: the log says that something was there, not what.

use selvedge_model::{Event, Message};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// What stands in a secret's place.
pub const REDACTED: &str = "[redacted]";

/// Something that looks like a secret: a beginning that gives it away, and what may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// How it begins, such as `sk-`.
    pub prefix: String,
    /// How many letters, digits, `-` and `_` must follow at least.
    pub length_min: usize,
}

/// Takes secrets out of what is to be committed.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: Vec<String>,
    patterns: Vec<Pattern>,
}

impl Redactor {
    /// A redactor for these secrets and patterns. Secrets of fewer than four characters are left out: they stand everywhere.
    pub fn new(secrets: impl IntoIterator<Item = String>, patterns: Vec<Pattern>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|secret| secret.chars().count() >= 4).collect();
        // The longest first: one secret may begin like another.
        secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self { secrets, patterns: patterns.into_iter().filter(|pattern| !pattern.prefix.is_empty()).collect() }
    }

    /// A text without secrets; nothing if it has none.
    pub fn text(&self, text: &str) -> Option<String> {
        let mut found: Option<String> = None;
        for secret in &self.secrets {
            let now = found.as_deref().unwrap_or(text);
            if now.contains(secret.as_str()) {
                found = Some(now.replace(secret.as_str(), REDACTED));
            }
        }
        for pattern in &self.patterns {
            let now = found.as_deref().unwrap_or(text);
            if let Some(clean) = pattern.clean(now) {
                found = Some(clean);
            }
        }
        found
    }

    /// Takes secrets out of a value in place.
    pub fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(clean) = self.text(text) {
                    *text = clean;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|item| self.value(item));
                if fields.keys().any(|key| self.text(key).is_some()) {
                    let cleaned = std::mem::take(fields).into_iter();
                    *fields = cleaned.map(|(key, item)| (self.text(&key).unwrap_or(key), item)).collect::<Map<_, _>>();
                }
            }
            _ => {}
        }
    }

    /// Takes secrets out of messages.
    pub(crate) fn messages(&self, messages: &mut [Message]) {
        messages.iter_mut().for_each(|message| self.any(message));
    }

    /// Takes secrets out of anything that can be written and read again.
    pub(crate) fn any<T: Serialize + DeserializeOwned>(&self, thing: &mut T) {
        if self.secrets.is_empty() && self.patterns.is_empty() {
            return;
        }
        let Ok(mut value) = serde_json::to_value(&*thing) else { return };
        let before = value.clone();
        self.value(&mut value);
        if value != before
            && let Ok(clean) = serde_json::from_value(value)
        {
            *thing = clean;
        }
    }

    /// Takes secrets out of events.
    pub(crate) fn events(&self, events: &mut [Event]) {
        events.iter_mut().for_each(|event| self.any(event));
    }
}

impl Pattern {
    fn clean(&self, text: &str) -> Option<String> {
        let mut rest = text;
        let mut clean = String::new();
        let mut found = false;
        while let Some(at) = rest.find(&self.prefix) {
            let (before, secret) = rest.split_at(at);
            let tail = &secret[self.prefix.len()..];
            let is_word = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            let length: usize = tail.chars().take_while(is_word).count();
            clean.push_str(before);
            if length >= self.length_min {
                clean.push_str(REDACTED);
                found = true;
            } else {
                clean.push_str(&secret[..self.prefix.len() + length]);
            }
            rest = &tail[length..];
        }
        clean.push_str(rest);
        found.then_some(clean)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redactor() -> Redactor {
        let patterns = vec![Pattern { prefix: "sk-".to_owned(), length_min: 8 }];
        Redactor::new(["hunter22".to_owned(), "hunter22-long".to_owned(), "abc".to_owned()], patterns)
    }

    #[test]
    fn secrets_are_taken_out_wherever_they_stand() {
        let mut value = json!({"hunter22": ["x hunter22-long y", {"k": "sk-0123456789 and sk-short"}], "abc": "abc"});
        redactor().value(&mut value);
        assert_eq!(value, json!({"[redacted]": ["x [redacted] y", {"k": "[redacted] and sk-short"}], "abc": "abc"}));
    }

    #[test]
    fn what_has_no_secret_is_left_alone() {
        assert_eq!(redactor().text("nothing here, not even sk-"), None);
        assert_eq!(Redactor::default().text("hunter22"), None);
    }
}
