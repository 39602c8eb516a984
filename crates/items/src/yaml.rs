//! The only reader of YAML. It is stricter than YAML, so that a file means what it looks like.
//!
//! - `true` and `false` are the only booleans; text that looks like a number must be quoted.
//! - No anchors, aliases, merge keys, custom tags, second documents or duplicate keys.
//! - Size, nesting and number of nodes are bounded before anything is deserialised.
//! - An unknown key is an error that names the nearest known one.

use serde::de::DeserializeOwned;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, Options};

use crate::error::Flaw;
use crate::nearest::advice;

/// The most bytes of YAML that are parsed.
pub const BYTES_MAX: usize = 256 * 1024;
/// The deepest nesting.
pub const DEPTH_MAX: usize = 32;
const NODES_MAX: usize = 10_000;

/// Parses one document; `first_line` is the line of its file where it starts, from 1.
pub fn parse_yaml<T: DeserializeOwned>(text: &str, first_line: u64) -> Result<T, Flaw> {
    if text.len() > BYTES_MAX {
        return Err(Flaw::new(format!("it has more than {} KiB of YAML", BYTES_MAX / 1024)).on_line(first_line));
    }
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| flaw(&error, first_line))
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * NODES_MAX,
            max_nodes: NODES_MAX,
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_documents: 1,
            max_anchors: 0,
            max_aliases: 0,
            max_merge_keys: 0,
            max_total_scalar_bytes: BYTES_MAX,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        no_schema: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn flaw(error: &Error, first_line: u64) -> Flaw {
    let error = error.without_snippet();
    let flaw = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            Flaw::new(format!("`{}` is not a known key", field.escape_debug())).hint(advice(field, expected))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            Flaw::new(format!("`{}` is unknown here", variant.escape_debug())).hint(advice(variant, expected))
        }
        Error::SerdeMissingField { field, .. } => {
            Flaw::new(format!("`{field}` is missing")).hint(format!("add `{field}: …`"))
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            Flaw::new(format!("`{}` occurs twice", key.escape_debug())).hint("keep one of them")
        }
        Error::QuotingRequired { .. } => {
            Flaw::new("text that looks like a number, a boolean or null").hint("put it in quotes")
        }
        Error::Unexpected { expected: "sequence start", .. } => {
            Flaw::new("expected a list").hint("write `[one, two]`, or one `- …` on each line")
        }
        Error::Unexpected { expected: "mapping start", .. } => Flaw::new("expected keys with values"),
        Error::Budget { .. } => Flaw::new(format!("too large, or not supported: {}", reason(error)))
            .hint("anchors, aliases and second documents are not supported; write it out, and shorten it"),
        _ => Flaw::new(reason(error)),
    };
    match error.location().filter(|location| location.line() > 0) {
        Some(location) => flaw.at(first_line + location.line() - 1, location.column()),
        None => flaw.on_line(first_line),
    }
}

/// The reader's message on one line, without the position, which is given separately.
fn reason(error: &Error) -> String {
    let text = error.to_string().lines().next().unwrap_or_default().to_owned();
    let end = [" at line ", " (line ", ": line "].iter().filter_map(|mark| text.rfind(mark)).min();
    let text = end.map_or(text.as_str(), |end| &text[..end]);
    text.to_owned()
}
