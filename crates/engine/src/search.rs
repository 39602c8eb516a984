//! Searching a whole chain: the committed logs of its threads, from the root to the end.
//!
//! What is searched is what people, models and tools said: texts, the names and arguments of calls, what came of them, and why a run
//! ended; not what only the program needs, such as ids, hashes and the names of events. What must not be in a log was taken out before it
//! was signed. Logs are read as streams and checked on the way, every hash and the last signature, before anything is given.

use regex::{Regex, RegexBuilder};
use selvedge_log::Trust;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::message::Block;
use selvedge_model::{Event, ThreadId};
use selvedge_store::load::each_changeset;
use selvedge_store::{Error as StoreError, Store};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
        /// Whether it was to be read as a regular expression, and can't be.
        is_regex: bool,
    },
    /// A log can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chain can't be followed.
    #[error(transparent)]
    Engine(#[from] crate::Error),
}

impl Classify for SearchError {
    fn kind(&self) -> Kind {
        match self {
            Self::Pattern { .. } => Kind::Invalid,
            Self::Store(source) => source.kind(),
            Self::Engine(source) => source.kind(),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Pattern { .. } => "bad_pattern",
            Self::Store(source) => source.code(),
            Self::Engine(source) => source.code(),
        }
    }

    fn retryable(&self) -> bool {
        match self {
            Self::Store(source) => source.retryable(),
            Self::Engine(source) => source.retryable(),
            Self::Pattern { .. } => false,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Pattern { is_regex: true, .. } => {
                Some("leave out `--regex` to search for exactly these words".to_owned())
            }
            Self::Pattern { .. } => Some("name a few words to look for".to_owned()),
            Self::Store(source) => source.hint(),
            Self::Engine(source) => source.hint(),
        }
    }
}

/// Searches the chain of a thread. Every log is checked while it is searched: what is found is what was signed, or nothing is given.
pub fn chain_search(
    store: &dyn Store,
    trust: &Trust,
    thread: &ThreadId,
    query: &Query,
) -> Result<ChainFound, SearchError> {
    let needle = Needle::new(query)?;
    let chain_threads = chain::threads(store, thread)?;
    if chain_threads.is_empty() {
        // Says whether it was deleted or never was.
        store.get(thread)?;
    }
    let (mut results, mut truncated) = (Vec::new(), false);
    for thread in &chain_threads {
        if truncated {
            break;
        }
        let searched = each_changeset(store, thread, trust, |entry| {
            for line in &entry.lines {
                let Some((snippet, matches)) = (if truncated { None } else { needle.find(&line.event) }) else {
                    continue;
                };
                if results.len() >= query.max_results {
                    // The rest of the log is still read: what stands in it is checked at its end.
                    truncated = true;
                    continue;
                }
                let event_type = event_type(&line.event);
                results.push(Found { thread_id: thread.clone(), event_type, line_no: line.seq, snippet, matches });
            }
        });
        match searched {
            // Deleted just now.
            Err(StoreError::Deleted(_)) => {}
            searched => _ = searched?,
        }
    }
    Ok(ChainFound { success: true, chain_length: chain_threads.len(), chain_threads, results, truncated })
}

/// The name of what happened.
fn event_type(event: &Event) -> String {
    let named = serde_json::to_value(event).ok();
    let named = named.as_ref().and_then(|event| event.get("event_type")).and_then(Value::as_str);
    named.unwrap_or_default().to_owned()
}

/// Gives every text of an event that somebody said or was told, in order, as long as `each` wants more. What only the program needs is
/// none of it: names of events and runs, ids, hashes, what was used.
fn each_said(event: &Event, each: &mut dyn FnMut(&str) -> bool) {
    match event {
        Event::Message(message) => _ = message.content.iter().all(|block| each_of_block(block, each)),
        // How a run ended stands nowhere else.
        Event::RunFinished(run) => _ = run.meta.termination_detail.as_deref().is_none_or(each),
        Event::Decision(decision) => _ = decision.reason.as_deref().is_none_or(each),
        // What a model had said when it was stopped.
        Event::ContextInjected(fields) => {
            let partial = fields.get("partial_cognition").and_then(|partial| partial.get("text"));
            _ = partial.and_then(Value::as_str).is_none_or(each);
        }
        _ => {}
    }
}

fn each_of_block(block: &Block, each: &mut dyn FnMut(&str) -> bool) -> bool {
    match block {
        Block::Text { text, .. } | Block::Thinking { text, .. } => each(text),
        Block::ToolCall { name, arguments, .. } => each(name) && each_text(arguments, each),
        Block::ToolResult { content, .. } => each_text(content, each),
        Block::Image { .. } | Block::Opaque { .. } => true,
    }
}

/// What is looked for.
struct Needle {
    pattern: Regex,
}

impl Needle {
    fn new(query: &Query) -> Result<Self, SearchError> {
        let refused = |why: String, is_regex| SearchError::Pattern { pattern: query.query.clone(), why, is_regex };
        if query.query.is_empty() {
            return Err(refused("it is empty".to_owned(), false));
        }
        if query.query.chars().count() > PATTERN_CHARS_MAX {
            let pattern: String = query.query.chars().take(40).chain(['…']).collect();
            let why = format!("it is longer than {PATTERN_CHARS_MAX} characters");
            return Err(SearchError::Pattern { pattern, why, is_regex: false });
        }
        let is_text = query.search_type == SearchType::Text;
        let source = if is_text { regex::escape(&query.query) } else { query.query.clone() };
        let pattern = RegexBuilder::new(&source)
            .case_insensitive(!query.is_exact)
            .multi_line(true)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(COMPILED_BYTES_MAX)
            .build()
            .map_err(|error| refused(reason(&error), !is_text))?;
        Ok(Self { pattern })
    }

    /// What stands around the first match in an event, and the matches.
    fn find(&self, event: &Event) -> Option<(String, Vec<String>)> {
        let (mut shown, mut matches) = (None, Vec::new());
        each_said(event, &mut |text| {
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
        shown.map(|shown| (shown, matches))
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
