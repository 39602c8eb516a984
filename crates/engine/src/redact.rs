//! Keeps secrets out of logs: those that the process was given, and texts that look like one.
//!
//! Runs before anything is hashed or signed, over every string of a changeset, including the keys of objects. What is replaced is gone: the
//! log shows that something was there, not what. Opaque provider data is not changed, because the provider would refuse it: a block of such
//! data that contains a secret is dropped, and signed reasoning that contains one loses its signature.

use std::borrow::Cow;

use selvedge_model::event::Fields;
use selvedge_model::message::Block;
use selvedge_model::op::Op;
use selvedge_model::{Event, Message, NewThread, Patch, Secrets};
use serde_json::{Map, Value};

/// What replaces a secret.
pub const REDACTED: &str = "[redacted]";

/// The form of a secret: a typical prefix, and what may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Its prefix, such as `sk-`.
    pub prefix: String,
    /// The least number of letters, digits, `-` and `_` that must follow.
    pub length_min: usize,
}

/// Removes secrets from what is to be committed.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: Vec<String>,
    patterns: Vec<Pattern>,
    /// Secrets that become known later.
    learned: Secrets,
}

impl Redactor {
    /// A redactor for these secrets and patterns. Secrets of fewer than four characters are ignored: they are everywhere. A secret is also
    /// recognized in its JSON form, and each longer line of a multi-line secret is a secret, too.
    pub fn new(secrets: impl IntoIterator<Item = String>, patterns: Vec<Pattern>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().flat_map(forms).collect();
        longest_first(&mut secrets);
        let patterns = patterns.into_iter().filter(|pattern| !pattern.prefix.is_empty()).collect();
        Self { secrets, patterns, learned: Secrets::default() }
    }

    /// The same, which also removes the secrets of this list, whenever they are added to it.
    #[must_use]
    pub fn learning(self, learned: Secrets) -> Self {
        Self { learned, ..self }
    }

    /// Every form of every secret that is known now, the longest first.
    fn known(&self) -> Cow<'_, [String]> {
        let learned = self.learned.all();
        if learned.is_empty() {
            return Cow::Borrowed(&self.secrets);
        }
        let mut known: Vec<String> = learned.into_iter().flat_map(forms).chain(self.secrets.iter().cloned()).collect();
        longest_first(&mut known);
        Cow::Owned(known)
    }

    /// Whether it never removes anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.known().is_empty() && self.patterns.is_empty()
    }

    /// The length of the longest secret that contains a blank.
    pub(crate) fn blank_bytes_max(&self) -> usize {
        let known = self.known();
        let blank = known.iter().filter(|secret| secret.contains(char::is_whitespace));
        blank.map(String::len).max().unwrap_or(0)
    }

    /// A text without secrets; none if it has no secrets.
    pub fn text(&self, text: &str) -> Option<String> {
        let mut found: Option<String> = None;
        for secret in self.known().iter() {
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

    /// Removes secrets from a value in place.
    pub fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(clean) = self.text(text) {
                    *text = clean;
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.value(item);
                }
            }
            Value::Object(fields) => {
                self.fields(fields);
                if fields.keys().any(|key| self.text(key).is_some()) {
                    let cleaned = std::mem::take(fields).into_iter();
                    *fields = cleaned.map(|(key, item)| (self.text(&key).unwrap_or(key), item)).collect::<Map<_, _>>();
                }
            }
            _ => {}
        }
    }

    /// Removes secrets from the content of messages; roles and call ids are not free text.
    pub(crate) fn messages(&self, messages: &mut [Message]) {
        for message in messages {
            message.content.retain(|block| !matches!(block, Block::Opaque { data, .. } if self.has_secret(data)));
            for block in &mut message.content {
                match block {
                    Block::Text { text, .. } => self.string(text),
                    Block::Thinking { text, signature, provider } => {
                        if let Some(clean) = self.text(text) {
                            *text = clean;
                            // The provider would refuse its signature under another text. Unsigned, the block is not sent back.
                            *signature = None;
                            *provider = None;
                        }
                    }
                    Block::ToolCall { arguments, .. } => self.value(arguments),
                    Block::ToolResult { content, .. } => self.value(content),
                    Block::Image { .. } | Block::Opaque { .. } => {}
                }
            }
        }
    }

    /// Whether a value contains a secret.
    fn has_secret(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.text(text).is_some(),
            Value::Array(items) => items.iter().any(|item| self.has_secret(item)),
            Value::Object(fields) => fields.iter().any(|(key, item)| self.text(key).is_some() || self.has_secret(item)),
            _ => false,
        }
    }

    /// Removes secrets from a new thread.
    pub(crate) fn thread(&self, thread: &mut NewThread) {
        self.option(&mut thread.title);
        self.fields(&mut thread.inputs);
    }

    /// Removes secrets from the values of patches.
    pub(crate) fn patches(&self, patches: &mut [Patch]) {
        for op in patches.iter_mut().flat_map(|patch| &mut patch.ops) {
            match op {
                Op::Set { value, .. }
                | Op::Append { value, .. }
                | Op::Insert { value, .. }
                | Op::Remove { value, .. } => self.value(value),
                Op::MergeObject { value, .. } => self.fields(value),
                Op::Delete { .. } | Op::Increment { .. } | Op::Decrement { .. } => {}
            }
        }
    }

    /// Removes secrets from state actions.
    pub(crate) fn actions(&self, actions: &mut [Fields]) {
        for action in actions {
            self.fields(action);
        }
    }

    /// Removes secrets from the free text of events.
    pub(crate) fn events(&self, events: &mut [Event]) {
        for event in events {
            match event {
                Event::CallOpened(opened) => self.value(&mut opened.arguments),
                Event::ToolOutcome(outcome) => {
                    self.option(&mut outcome.error);
                    if let Some(failure) = &mut outcome.failure {
                        self.string(&mut failure.why);
                    }
                    if let Some(result) = &mut outcome.result {
                        self.value(result);
                    }
                }
                Event::Decision(decision) => {
                    self.option(&mut decision.reason);
                    if let Some(result) = &mut decision.result {
                        self.value(result);
                    }
                }
                Event::ManifestChanged(changed) => {
                    self.option(&mut changed.title);
                    self.session(&mut changed.session_id);
                    if let Some(outputs) = &mut changed.outputs {
                        self.value(outputs);
                    }
                }
                Event::Usage(usage) => {
                    self.option(&mut usage.answered_by);
                    self.option(&mut usage.provider_id);
                    self.session(&mut usage.session);
                    for note in &mut usage.notes {
                        self.string(note);
                    }
                }
                Event::CapabilityDenied(fields)
                | Event::ContextInjected(fields)
                | Event::HookFired(fields)
                | Event::StateAction(fields) => self.fields(fields),
                _ => {}
            }
        }
    }

    fn fields(&self, fields: &mut Map<String, Value>) {
        for value in fields.values_mut() {
            self.value(value);
        }
    }

    /// Drops a session whose id contains a secret: its provider does not know it by another id.
    fn session(&self, id: &mut Option<String>) {
        if id.as_ref().is_some_and(|id| self.text(id).is_some()) {
            *id = None;
        }
    }

    fn option(&self, text: &mut Option<String>) {
        if let Some(text) = text {
            self.string(text);
        }
    }

    fn string(&self, text: &mut String) {
        if let Some(clean) = self.text(text) {
            *text = clean;
        }
    }
}

/// Sorts secrets: one may be a prefix of another.
fn longest_first(secrets: &mut Vec<String>) {
    secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
}

/// The forms in which a secret may appear.
fn forms(secret: String) -> Vec<String> {
    let long_lines =
        secret.lines().filter(|line| secret.contains('\n') && line.chars().count() >= 8).map(str::to_owned);
    let mut forms: Vec<String> = long_lines.collect();
    forms.push(secret);
    let escaped = |form: &String| Value::String(form.clone()).to_string().trim_matches('"').to_owned();
    let escaped: Vec<String> = forms.iter().map(escaped).collect();
    forms.extend(escaped);
    forms.retain(|form| form.chars().count() >= 4);
    forms
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
    use selvedge_model::event::{CallOpened, CallOrigin};
    use serde_json::json;

    use super::*;

    fn redactor() -> Redactor {
        let patterns = vec![Pattern { prefix: "sk-".to_owned(), length_min: 8 }];
        Redactor::new(["hunter22".to_owned(), "hunter22-long".to_owned(), "abc".to_owned()], patterns)
    }

    #[test]
    fn secrets_are_removed_wherever_they_are() {
        let mut value = json!({"hunter22": ["x hunter22-long y", {"k": "sk-0123456789 and sk-short"}], "abc": "abc"});
        redactor().value(&mut value);
        assert_eq!(value, json!({"[redacted]": ["x [redacted] y", {"k": "[redacted] and sk-short"}], "abc": "abc"}));
    }

    #[test]
    fn a_secret_that_is_learned_later_is_removed_from_then_on() {
        let learned = Secrets::default();
        let redactor = redactor().learning(learned.clone());
        assert_eq!(redactor.text("hunter22 and learned-key"), Some("[redacted] and learned-key".to_owned()));
        learned.add("learned-key");
        learned.add("none");
        assert_eq!(redactor.text("hunter22 and learned-key, none"), Some("[redacted] and [redacted], none".to_owned()));
        assert!(!format!("{learned:?}").contains("learned-key"));
    }

    #[test]
    fn a_multi_line_secret_is_recognized_in_its_json_form() {
        let redactor = Redactor::new(["-----BEGIN canary\nline-two-canary\n\"quoted\"-END".to_owned()], Vec::new());
        let json = serde_json::to_string("a -----BEGIN canary\nline-two-canary\n\"quoted\"-END b").unwrap();
        assert_eq!(redactor.text(&json).unwrap(), "\"a [redacted] b\"");
        assert_eq!(redactor.text("only line-two-canary here").unwrap(), "only [redacted] here");
    }

    #[test]
    fn a_secret_that_is_a_word_of_the_format_breaks_nothing() {
        let redactor = Redactor::new(["assistant".to_owned(), "canary-1".to_owned()], Vec::new());
        let mut messages = [Message::text(selvedge_model::Role::Assistant, "I, assistant, know canary-1")];
        redactor.messages(&mut messages);
        assert_eq!(messages[0].role, selvedge_model::Role::Assistant);
        assert_eq!(messages[0].plain_text(), "I, [redacted], know [redacted]");
    }

    #[test]
    fn opaque_data_is_left_as_it_is_or_dropped_whole() {
        let opaque = |data| Block::Opaque { provider: "p".to_owned(), data };
        let good = opaque(json!({"sealed": ["gAAA", {"k": 1}]}));
        let content = vec![
            opaque(json!({"sealed": [{"hunter22": 1}]})),
            good.clone(),
            opaque(json!("x hunter22 y")),
            Block::text("says hunter22"),
        ];
        let mut messages = [Message { content, ..Message::text(selvedge_model::Role::Assistant, "") }];
        redactor().messages(&mut messages);
        assert_eq!(messages[0].content, [good, Block::text("says [redacted]")]);
    }

    /// The old signature was sent with the changed text, and the provider refused every further request of the thread.
    #[test]
    fn signed_reasoning_that_is_changed_loses_its_signature() {
        let signed = |text: &str| Block::Thinking {
            text: text.to_owned(),
            signature: Some("c2lnbmF0dXJl".to_owned()),
            provider: Some("anthropic".to_owned()),
        };
        let content = vec![signed("the password is hunter22"), signed("no secret")];
        let mut messages = [Message { content, ..Message::text(selvedge_model::Role::Assistant, "") }];
        redactor().messages(&mut messages);
        assert_eq!(messages[0].content, [Block::thinking("the password is [redacted]"), signed("no secret")]);
    }

    #[test]
    fn the_arguments_of_an_opened_call_are_free_text() {
        let origin = CallOrigin::Hook { hook: "h".to_owned(), required: false };
        let call_id = selvedge_model::CallId::new("c").unwrap();
        let tool = "t".to_owned();
        let arguments = json!({"token": "x hunter22 y"});
        let mut events = [Event::CallOpened(CallOpened { call_id, origin, tool, arguments })];
        redactor().events(&mut events);
        assert!(
            matches!(&events[0], Event::CallOpened(opened) if opened.arguments == json!({"token": "x [redacted] y"}))
        );
    }

    #[test]
    fn a_text_without_secrets_is_left_alone() {
        assert_eq!(redactor().text("nothing here, not even sk-"), None);
        assert_eq!(Redactor::default().text("hunter22"), None);
    }
}
