//! Searches a whole chain: the committed logs of its threads, from the root to the end.
//!
//! It searches what users, models and tools wrote: texts, the names, arguments and results of calls, why a run ended, and the blobs that have
//! what was too large for a line; not what only the program needs, such as ids, hashes and the names of events. Secrets were removed before the
//! log was signed. Logs are streamed and verified on the way, every hash and the last signature, before anything is returned. Blobs are
//! verified against their names; what of them can't be searched is counted.

use regex::{Regex, RegexBuilder};
use selvedge_log::Trust;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::{Digest, Event, ThreadId};
use selvedge_store::load::each_changeset;
use selvedge_store::search::NotSearched;
use selvedge_store::search::event_texts::each_said;
use selvedge_store::{Error as StoreError, Store};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::blobs::Texts;
use crate::chain;

/// The most characters shown around a match.
pub const SNIPPET_CHARS_MAX: usize = 500;
/// The most matches returned for one event.
pub const MATCHES_MAX: usize = 5;
/// The most characters returned of one match.
const MATCH_CHARS_MAX: usize = 200;
/// The most characters of a pattern.
const PATTERN_CHARS_MAX: usize = 1000;
/// The most memory of a compiled pattern.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// How a query is interpreted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchType {
    /// As a literal text.
    #[default]
    Text,
    /// As a regular expression.
    Regex,
}

/// What to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The text or the pattern.
    pub query: String,
    /// How it is interpreted.
    pub search_type: SearchType,
    /// Whether it is case-sensitive.
    pub is_exact: bool,
    /// The most events that are returned.
    pub max_results: usize,
}

/// One event that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventMatch {
    /// The thread.
    pub thread_id: ThreadId,
    /// The type of the event.
    pub event_type: String,
    /// The number of its line in the log.
    pub line_no: u64,
    /// The text around the first match.
    pub snippet: String,
    /// The first matches themselves.
    pub matches: Vec<String>,
    /// The blob that has them; absent if the line itself has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
}

/// The result of searching a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainMatches {
    /// Always true, even without any match.
    pub success: bool,
    /// How many threads were searched.
    pub chain_length: usize,
    /// These threads, root first.
    pub chain_threads: Vec<ThreadId>,
    /// The events that match, in order.
    pub results: Vec<EventMatch>,
    /// Whether there are more matches than are returned.
    pub truncated: bool,
    /// Content that could not be searched.
    pub not_searched: NotSearched,
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
        /// Whether it was to be a regular expression, and is not one.
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
            Self::Pattern { .. } => "invalid_pattern",
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
                Some("leave out `--regex` to search for the literal text".to_owned())
            }
            Self::Pattern { .. } => Some("give a few words to search for".to_owned()),
            Self::Store(source) => source.hint(),
            Self::Engine(source) => source.hint(),
        }
    }
}

/// Searches the chain of a thread. Every log is verified while it is searched: on success, every match is in a valid, signed log.
pub fn chain_search(
    store: &dyn Store,
    trust: &Trust,
    thread: &ThreadId,
    query: &Query,
) -> Result<ChainMatches, SearchError> {
    let needle = CompiledQuery::new(query)?;
    let chain_threads = chain::threads(store, thread)?;
    if chain_threads.is_empty() {
        // Returns an error that says whether it was deleted or never existed.
        store.get(thread)?;
    }
    let mut results = Vec::new();
    let mut truncated = false;
    let mut not_searched = NotSearched::default();
    for thread in &chain_threads {
        if truncated {
            break;
        }
        let mut texts = Texts::new(store, thread);
        let searched = each_changeset(store, thread, trust, |entry| {
            for line in &entry.lines {
                let found = if truncated { None } else { needle.find(&line.event, &mut texts) };
                let Some((snippet, matches, blob)) = found else {
                    continue;
                };
                if results.len() >= query.max_results {
                    // The rest of the log is still read: it is verified at its end.
                    truncated = true;
                    continue;
                }
                let event_type = event_type(&line.event);
                results.push(EventMatch {
                    thread_id: thread.clone(),
                    event_type,
                    line_no: line.seq,
                    snippet,
                    matches,
                    blob,
                });
            }
        });
        match searched {
            // It was deleted just now.
            Err(StoreError::Deleted(_)) => {}
            searched => _ = searched?,
        }
        not_searched += texts.left_out();
    }
    Ok(ChainMatches {
        success: true,
        chain_length: chain_threads.len(),
        chain_threads,
        results,
        truncated,
        not_searched,
    })
}

/// The type name of an event.
fn event_type(event: &Event) -> String {
    let named = serde_json::to_value(event).ok();
    let named = named.as_ref().and_then(|event| event.get("event_type")).and_then(Value::as_str);
    named.unwrap_or_default().to_owned()
}

/// A compiled query.
struct CompiledQuery {
    pattern: Regex,
}

impl CompiledQuery {
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

    /// The text around the first match in an event, and the matches; those in its blobs only if the event itself has none.
    fn find(&self, event: &Event, texts: &mut Texts<'_>) -> Option<(String, Vec<String>, Option<Digest>)> {
        let mut found = Matches::default();
        each_said(event, &mut |text| self.take(text, &mut found));
        if let Some(shown) = found.shown {
            return Some((shown, found.matches, None));
        }
        for blob in event.blobs() {
            texts.of(&blob, &mut |text| _ = self.take(text, &mut found));
            if let Some(shown) = found.shown {
                return Some((shown, found.matches, Some(blob)));
            }
        }
        None
    }

    /// Takes the matches in a text; false if there are enough.
    fn take(&self, text: &str, into: &mut Matches) -> bool {
        for found in self.pattern.find_iter(text).filter(|found| !found.is_empty()) {
            if into.shown.is_none() {
                into.shown = Some(around(text, found.range()));
            }
            into.matches.push(crate::thread_state::shortened(found.as_str().to_owned(), MATCH_CHARS_MAX));
            if into.matches.len() == MATCHES_MAX {
                return false;
            }
        }
        true
    }
}

/// The matches in one event.
#[derive(Default)]
struct Matches {
    shown: Option<String>,
    matches: Vec<String>,
}

/// Why a pattern was refused, on one line.
fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "the compiled pattern is too big".to_owned(),
        other => {
            let text = other.to_string();
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            last.trim().trim_start_matches("error: ").to_owned()
        }
    }
}

/// At most [`SNIPPET_CHARS_MAX`] characters with the match in the middle, as far as it fits.
fn around(text: &str, found: std::ops::Range<usize>) -> String {
    let long = text[found.clone()].chars().take(SNIPPET_CHARS_MAX).count();
    let before = (SNIPPET_CHARS_MAX - long) / 2;
    let start = text[..found.start].char_indices().rev().take(before).last().map_or(found.start, |(at, _)| at);
    text[start..].chars().take(SNIPPET_CHARS_MAX).collect()
}
