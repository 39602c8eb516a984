//! Searching a whole chain: the committed logs of its threads, from the root to the end.
//!
//! Logs are read as streams, line by line, and only as far as needed. What is searched is what was said and recorded: the values of an
//! event, not the names of its fields, and never checkpoints. What must not be in a log was taken out before it was signed.

use std::io::BufRead;

use regex::{Regex, RegexBuilder};
use selvedge_log::lines;
use selvedge_model::ThreadId;
use selvedge_model::error::{Classify, Kind};
use selvedge_store::{Error as StoreError, Store};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::chain;

/// The most characters of what is shown around a match.
pub const SNIPPET_CHARS_MAX: usize = 500;
/// The most matches that are given of one event.
pub const MATCHES_MAX: usize = 5;
/// The most characters that are given of one match.
const MATCH_CHARS_MAX: usize = 200;
/// The most characters of a pattern.
const PATTERN_CHARS_MAX: usize = 1000;
/// The most memory that a pattern may become.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// How a query is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchType {
    /// Exactly these words.
    #[default]
    Text,
    /// A regular expression.
    Regex,
}

/// What to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The words or the pattern.
    pub query: String,
    /// How it is to be read.
    pub search_type: SearchType,
    /// Whether capitals count.
    pub is_exact: bool,
    /// The most events that are given.
    pub max_results: usize,
}

/// One event that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The thread.
    pub thread_id: ThreadId,
    /// What happened.
    pub event_type: String,
    /// The number of its line in the log.
    pub line_no: u64,
    /// What stands around the first match.
    pub snippet: String,
    /// The first matches themselves.
    pub matches: Vec<String>,
}

/// What was found in a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainFound {
    /// Always: there may be nothing.
    pub success: bool,
    /// How many threads were searched.
    pub chain_length: usize,
    /// They, root first.
    pub chain_threads: Vec<ThreadId>,
    /// What was found, in the order it happened.
    pub results: Vec<Found>,
    /// Whether there is more than is given.
    pub truncated: bool,
}

/// Why a chain could not be searched.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The pattern can't be used.
    #[error("`{pattern}` can't be searched for: {why}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        why: String,
    },
    /// A log can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chain can't be followed.
    #[error(transparent)]
    Engine(#[from] crate::Error),
    /// A line of a log is not what it should be.
    #[error("line {line} of the log of `{thread}` can't be read: {why}")]
    Line {
        /// The thread.
        thread: ThreadId,
        /// The number of the line.
        line: u64,
        /// Why.
        why: String,
    },
}

impl Classify for SearchError {
    fn kind(&self) -> Kind {
        match self {
            Self::Pattern { .. } => Kind::Invalid,
            Self::Store(source) => source.kind(),
            Self::Engine(source) => source.kind(),
            Self::Line { .. } => Kind::Integrity,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Pattern { .. } => "bad_pattern",
            Self::Store(source) => source.code(),
            Self::Engine(source) => source.code(),
            Self::Line { .. } => "damaged",
        }
    }

    fn retryable(&self) -> bool {
        match self {
            Self::Store(source) => source.retryable(),
            Self::Engine(source) => source.retryable(),
            Self::Pattern { .. } | Self::Line { .. } => false,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Pattern { .. } => Some("leave out `--regex` to search for exactly these words".to_owned()),
            Self::Store(source) => source.hint(),
            Self::Engine(source) => source.hint(),
            Self::Line { thread, .. } => {
                Some(format!("`selvedge verify {thread}` says how far the log can be relied on"))
            }
        }
    }
}

/// Searches the chain of a thread.
pub fn chain_search(store: &dyn Store, thread: &ThreadId, query: &Query) -> Result<ChainFound, SearchError> {
    let needle = Needle::new(query)?;
    let chain_threads = chain::threads(store, thread)?;
    if chain_threads.is_empty() {
        // Says whether it was deleted or never was.
        store.get(thread)?;
    }
    let (mut results, mut truncated) = (Vec::new(), false);
    for thread in &chain_threads {
        let reader = match store.transcript(thread) {
            Ok((_, reader)) => reader,
            // Deleted just now.
            Err(StoreError::Deleted(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        if !search_log(thread, reader, &needle, query.max_results, &mut results)? {
            truncated = true;
            break;
        }
    }
    Ok(ChainFound { success: true, chain_length: chain_threads.len(), chain_threads, results, truncated })
}

/// Searches one log; false if there was more to be found than may be.
fn search_log(
    thread: &ThreadId,
    mut reader: Box<dyn BufRead + Send>,
    needle: &Needle,
    results_max: usize,
    results: &mut Vec<Found>,
) -> Result<bool, SearchError> {
    let broken = |line, why: String| SearchError::Line { thread: thread.clone(), line, why };
    let mut line = Vec::new();
    let mut line_no = 0;
    while lines::next_line(&mut reader, &mut line).map_err(|error| broken(line_no, error.to_string()))? {
        let text = std::str::from_utf8(&line).map_err(|error| broken(line_no, error.to_string()))?;
        if needle.may_be_in(text) {
            let event: Recorded<'_> = serde_json::from_str(text).map_err(|error| broken(line_no, error.to_string()))?;
            if let Some((snippet, matches)) = needle.find(&event).map_err(|error| broken(line_no, error.to_string()))? {
                if results.len() >= results_max {
                    return Ok(false);
                }
                let event_type = event.event_type;
                results.push(Found { thread_id: thread.clone(), event_type, line_no, snippet, matches });
            }
        }
        line_no += 1;
    }
    Ok(true)
}

/// As much of a line as is needed to search it.
#[derive(Deserialize)]
struct Recorded<'a> {
    event_type: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// What is looked for.
struct Needle {
    pattern: Regex,
    /// Whether a line can be passed over that does not have it as it stands: true for words without anything that is written
    /// differently in JSON.
    is_plain: bool,
}

impl Needle {
    fn new(query: &Query) -> Result<Self, SearchError> {
        let refused = |why: String| SearchError::Pattern { pattern: query.query.clone(), why };
        if query.query.is_empty() {
            return Err(refused("it is empty".to_owned()));
        }
        if query.query.chars().count() > PATTERN_CHARS_MAX {
            let pattern: String = query.query.chars().take(40).chain(['…']).collect();
            let why = format!("it is longer than {PATTERN_CHARS_MAX} characters");
            return Err(SearchError::Pattern { pattern, why });
        }
        let is_text = query.search_type == SearchType::Text;
        let source = if is_text { regex::escape(&query.query) } else { query.query.clone() };
        let pattern = RegexBuilder::new(&source)
            .case_insensitive(!query.is_exact)
            .multi_line(true)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(COMPILED_BYTES_MAX)
            .build()
            .map_err(|error| refused(reason(&error)))?;
        let is_plain = is_text && !query.query.contains(|c: char| c.is_control() || matches!(c, '"' | '\\' | '/'));
        Ok(Self { pattern, is_plain })
    }

    /// Whether a line must be looked at closely. What was written by others may have any character as an escape.
    fn may_be_in(&self, line: &str) -> bool {
        !self.is_plain || line.contains("\\u") || self.pattern.is_match(line)
    }

    /// What stands around the first match in an event, and the matches.
    fn find(&self, event: &Recorded<'_>) -> serde_json::Result<Option<(String, Vec<String>)>> {
        if event.event_type == "checkpoint" {
            return Ok(None);
        }
        let payload: Value = serde_json::from_str(event.payload.get())?;
        let (mut shown, mut matches) = (None, Vec::new());
        each_text(&payload, &mut |text| {
            for found in self.pattern.find_iter(text).filter(|found| !found.is_empty()) {
                if shown.is_none() {
                    shown = Some(around(text, found.range()));
                }
                matches.push(crate::standing::shortened(found.as_str().to_owned(), MATCH_CHARS_MAX));
                if matches.len() == MATCHES_MAX {
                    return false;
                }
            }
            true
        });
        Ok(shown.map(|shown| (shown, matches)))
    }
}

/// Why a pattern was refused, on one line.
fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "it becomes too big".to_owned(),
        other => {
            let text = other.to_string();
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            last.trim().trim_start_matches("error: ").to_owned()
        }
    }
}

/// Gives every value that is a text or a number, in order, as long as `each` wants more.
fn each_text(value: &Value, each: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        Value::String(text) => each(text),
        Value::Number(number) => each(&number.to_string()),
        Value::Array(values) => values.iter().all(|value| each_text(value, each)),
        Value::Object(fields) => fields.values().all(|value| each_text(value, each)),
        Value::Null | Value::Bool(_) => true,
    }
}

/// At most [`SNIPPET_CHARS_MAX`] characters with the match, as far as it fits, in their middle.
fn around(text: &str, found: std::ops::Range<usize>) -> String {
    let long = text[found.clone()].chars().take(SNIPPET_CHARS_MAX).count();
    let before = (SNIPPET_CHARS_MAX - long) / 2;
    let start = text[..found.start].char_indices().rev().take(before).last().map_or(found.start, |(at, _)| at);
    text[start..].chars().take(SNIPPET_CHARS_MAX).collect()
}
