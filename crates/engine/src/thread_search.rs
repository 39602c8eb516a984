//! Searches all threads of a store: for a person, and for an agent within its own threads.
//!
//! The index is caught up first, and the result says what it lacks. Every hit is read back from the verified log before it is returned; one whose
//! log can't be verified is marked. If the index is wrong about a thread, the thread is indexed again and the search repeated, once.
//!
//! An agent's own threads are those that its name is recorded for as their agent, whichever run or family they belong to: a child that
//! another agent runs is not its own. That agent is compared with the verified log, not with the index, and a hit whose log can't be verified
//! is left out.

use selvedge_log::Trust;
use selvedge_model::{AgentId, Cancel, Classify, Digest, DirectiveId, Manifest, ThreadId, Timestamp};
use selvedge_store::search::document::PassageKind;
use selvedge_store::search::expression::left_out;
use selvedge_store::search::{
    Hit, IndexProgress, NotSearched, Query, Search, SearchRequest, read_back, read_unverified,
};
use selvedge_store::{Error as StoreError, Store};
use serde::Serialize;

/// The most characters of a neighbouring message.
const NEIGHBOUR_CHARS_MAX: usize = 200;

/// What to search for.
#[derive(Clone, Debug)]
pub struct ThreadQuery {
    /// The words and the filters.
    pub query: Query,
    /// The vector of the words, and the name of its embedder.
    pub vector: Option<(String, Vec<f32>)>,
    /// The agent whose own threads are searched; all threads without one.
    pub only: Option<AgentId>,
    /// The most threads that are returned.
    pub limit: usize,
}

/// The threads that match, the best first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ThreadsFound {
    /// Always true, even without any match.
    pub success: bool,
    /// One entry for each thread: its best passage.
    pub results: Vec<ThreadFound>,
    /// Whether more threads match.
    pub has_more: bool,
    /// Parts of the query that can't be searched for: less than three characters without a letter or a digit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// Commits that are not searched, because the index could not be brought up to date.
    pub commits_not_searched: u64,
    /// Why words alone were searched for, although passages of similar meaning were wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words_alone: Option<String>,
    /// Passages that were searched by words alone, because they have no vectors yet.
    pub passages_without_vectors: u64,
    /// Content that is not searched.
    pub not_searched: NotSearched,
}

/// The best passage of a thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadFound {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its agent.
    pub agent_id: AgentId,
    /// Its directive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// Its title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The kind of the passage.
    pub kind: PassageKind,
    /// The version whose changeset has it.
    pub version: u64,
    /// The number of the line that has it, or that names the blob.
    pub line_no: u64,
    /// The blob that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
    /// The byte of the text at which the passage begins.
    pub offset: u64,
    /// When it was written.
    pub at: Timestamp,
    /// The passage; absent if its log can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passage: Option<String>,
    /// The message before it, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The message after it, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many passages of the thread match.
    pub matches: u64,
    /// Why the passage is not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified: Option<Unverified>,
    /// The command that shows it.
    pub command: String,
}

/// Why a passage is not verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unverified {
    /// A stable code.
    pub code: String,
    /// A sentence.
    pub why: String,
}

/// Searches the threads of a store.
pub fn search_threads(
    store: &dyn Store,
    index: &dyn Search,
    trust: &Trust,
    asked: &ThreadQuery,
    cancel: &Cancel,
) -> Result<ThreadsFound, StoreError> {
    let mut query = asked.query.clone();
    if let Some(own) = &asked.only {
        let agents = &mut query.filters.agents;
        if !agents.is_empty() && !agents.contains(own) {
            return Ok(ThreadsFound { success: true, ..ThreadsFound::default() });
        }
        *agents = vec![own.clone()];
    }
    let IndexProgress { behind, .. } = index.catch_up(cancel)?;
    let vector = asked.vector.as_ref().map(|(name, vector)| (name.as_str(), vector.as_slice()));
    let ask = SearchRequest { query: &query, vector, limit: asked.limit };
    let mut is_again = false;
    loop {
        let found = index.search(&ask)?;
        let mut results = Vec::new();
        let mut wrong = Vec::new();
        for hit in &found.hits {
            match result(store, trust, hit, asked.only.as_ref())? {
                Looked::Found(found) => results.push(*found),
                Looked::Wrong => wrong.push(&hit.thread),
                Looked::Skipped => {}
            }
        }
        // A store that is only read can't correct its index; what is wrong stays left out.
        let is_corrected =
            !is_again && !wrong.is_empty() && wrong.iter().all(|thread| index.index_again(thread).is_ok());
        if is_corrected {
            is_again = true;
            continue;
        }
        return Ok(ThreadsFound {
            success: true,
            results,
            has_more: found.has_more,
            ignored: left_out(&query.expr).into_iter().map(str::to_owned).collect(),
            commits_not_searched: behind,
            words_alone: None,
            passages_without_vectors: found.without_vectors,
            not_searched: found.unsearched,
        });
    }
}

enum Looked {
    Found(Box<ThreadFound>),
    /// The log has no such passage.
    Wrong,
    /// It was deleted just now, or is not to be shown to the agent that asks.
    Skipped,
}

fn result(store: &dyn Store, trust: &Trust, hit: &Hit, only: Option<&AgentId>) -> Result<Looked, StoreError> {
    let summary = match store.get(&hit.thread) {
        Ok(summary) => summary,
        Err(StoreError::Deleted(_) | StoreError::NoThread(_)) => return Ok(Looked::Wrong),
        Err(error) => return Err(error),
    };
    let (read, unverified) = match read_back(store, trust, hit) {
        Ok(Some(read)) if only.is_none_or(|own| read.agent.as_ref() == Some(own)) => (Some(read), None),
        Ok(Some(_)) => return Ok(Looked::Skipped),
        Ok(None) => return Ok(Looked::Wrong),
        Err(StoreError::Deleted(_) | StoreError::NoThread(_)) => return Ok(Looked::Wrong),
        Err(error) if error.retryable() => return Err(error),
        Err(_) if only.is_some() => return Ok(Looked::Skipped),
        Err(error) => (None, Some(Unverified { code: error.code().to_owned(), why: error.to_string() })),
    };
    let Manifest { agent_id, directive, title, .. } = summary.manifest;
    let shortened = |text: String| crate::thread_state::shortened(text, NEIGHBOUR_CHARS_MAX);
    let (passage, agent, before, after) = match read {
        Some(read) => (Some(read.text), read.agent, read.before.map(shortened), read.after.map(shortened)),
        None => (read_unverified(store, hit), None, None, None),
    };
    Ok(Looked::Found(Box::new(ThreadFound {
        command: command(hit),
        thread_id: hit.thread.clone(),
        agent_id: agent.unwrap_or(agent_id),
        directive,
        title,
        kind: hit.kind,
        version: hit.version,
        line_no: hit.line,
        blob: hit.blob,
        offset: hit.offset,
        at: hit.at,
        passage,
        before,
        after,
        matches: hit.matches,
        unverified,
    })))
}

/// The command that shows a hit.
fn command(hit: &Hit) -> String {
    match &hit.blob {
        Some(blob) => format!("selvedge blob {} {}", hit.thread, blob.short()),
        // The first line of a log says nothing that is searched.
        None => format!("selvedge log {} --after {} --limit 1", hit.thread, hit.line.saturating_sub(1)),
    }
}
