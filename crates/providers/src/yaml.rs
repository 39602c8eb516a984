//! Strict YAML parsing.
//!
//! Duplicate keys, unknown keys, merge keys, aliases, invalid numbers and a second document are errors, and every error names its line.

use serde::de::DeserializeOwned;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};

/// Why a text can't be read.
pub(crate) struct InvalidYaml {
    /// The line of the error, if known.
    pub(crate) line: Option<u64>,
    /// What is wrong.
    pub(crate) why: String,
}

/// Reads one document.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, InvalidYaml> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        non_finite_float_policy: NonFiniteFloatPolicy::Reject,
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_aliases: 0, max_anchors: 0 },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map(|location| location.line()).filter(|line| *line > 0);
        InvalidYaml { line, why: reason(&error) }
    })
}

/// The message of an error without its line, which is reported separately.
fn reason(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let place = text.rfind(" at line ").filter(|_| error.location().is_some());
    text[..place.unwrap_or(text.len())].trim().to_owned()
}
