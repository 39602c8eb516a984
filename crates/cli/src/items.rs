//! How items are put into words: where they were found and what is known of their signatures.

use selvedge::items::library::Entry;
use selvedge::items::{Layer, Source, Verdict};
use selvedge_log::Trust;
use serde_json::Value;

use crate::output::line_width;
use crate::text::{clean, key, one_line};

/// The place an item was found in.
pub(crate) fn layer(entry: &Entry) -> &'static str {
    match (entry.layer, entry.hidden) {
        (Layer::Project, _) => "project",
        (Layer::User, false) => "user",
        (Layer::User, true) => "user (hidden)",
        (Layer::BuiltIn, false) => "built in",
        (Layer::BuiltIn, true) => "built in (hidden)",
    }
}

/// What is known of an item's signature.
pub(crate) fn signature(source: &Source, trust: &Trust) -> String {
    match &source.verdict {
        Verdict::BuiltIn => "comes with the program".to_owned(),
        Verdict::Trusted { signer } => format!("signed by key {}", key(signer, trust)),
        Verdict::Unsigned { older: false } => "not signed".to_owned(),
        Verdict::Unsigned { older: true } => "signed in the older form only, which does not cover all of it".to_owned(),
        Verdict::Untrusted { signer } => format!("signed by key {}, which is not trusted", clean(signer)),
        Verdict::Broken { why } => format!("broken: {}", clean(why)),
    }
}

/// What a line of a list says of an item: what it is for, or why it can't be used.
pub(crate) fn said(description: Option<&str>, error: Option<&Value>) -> String {
    match (description, error) {
        (Some(description), _) => one_line(description, line_width()),
        (None, error) => one_line(error.and_then(|error| error["message"].as_str()).unwrap_or_default(), 200),
    }
}
