//! Items for people: the layer they come from and the state of their signatures.

use selvedge::items::knowledge::{Condition, KnowledgeEntry};
use selvedge::items::library::Entry;
use selvedge::items::{Layer, SignatureVerdict, Source};
use selvedge_log::Trust;
use serde_json::Value;

use crate::output::{BAD, BOLD, DIM, GOOD, WARN, line_width, paint};
use crate::text::{clean, key, one_line};

/// The layer of an item.
pub(crate) fn layer(entry: &Entry) -> &'static str {
    match (entry.layer, entry.hidden) {
        (Layer::Project, _) => "project",
        (Layer::User, false) => "user",
        (Layer::User, true) => "user (hidden)",
        (Layer::BuiltIn, false) => "built in",
        (Layer::BuiltIn, true) => "built in (hidden)",
    }
}

/// An entry of knowledge on one line: its id, where it is, and what its signature says.
pub(crate) fn knowledge_line(entry: &KnowledgeEntry) -> String {
    let from = match entry.layer {
        Layer::User => " (user)",
        Layer::Project | Layer::BuiltIn => "",
    };
    let shadowed = if entry.shadowed { ", shadowed by the project's" } else { "" };
    let style = match entry.condition {
        Condition::SignedAndIntact => GOOD,
        Condition::Unsigned => DIM,
        Condition::Untrusted => WARN,
        Condition::Damaged => BAD,
    };
    format!("{}{from}: {}{shadowed}", paint(BOLD, clean(&entry.id)), paint(style, entry.condition.as_str()))
}

/// The state of an item's signature.
pub(crate) fn signature(source: &Source, trust: &Trust) -> String {
    match &source.verdict {
        SignatureVerdict::BuiltIn => "built in".to_owned(),
        SignatureVerdict::Trusted { signer } => format!("signed by key {}", key(signer, trust)),
        SignatureVerdict::Unsigned { older: false } => "not signed".to_owned(),
        SignatureVerdict::Unsigned { older: true } => {
            "signed in Rye's format only, which does not cover all of it".to_owned()
        }
        SignatureVerdict::Untrusted { signer } => format!("signed by key {}, which is not trusted", clean(signer)),
        SignatureVerdict::Broken { why } => format!("invalid signature: {}", clean(why)),
    }
}

/// The description of an item for a list, or why it is invalid.
pub(crate) fn description(text: Option<&str>, error: Option<&Value>) -> String {
    match (text, error) {
        (Some(text), _) => one_line(text, line_width()),
        (None, error) => one_line(error.and_then(|error| error["message"].as_str()).unwrap_or_default(), 200),
    }
}
