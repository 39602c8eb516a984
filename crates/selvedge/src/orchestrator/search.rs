//! Agents search the threads of their own: those that their name is recorded for as their agent.

use std::sync::Arc;

use selvedge_engine::thread_search::{ThreadQuery, ThreadsFound, search_threads};
use selvedge_model::{Call, Cancel, EmbedError};
use selvedge_store::search::Query;
use selvedge_store::search::since::{since, utc_midnight};
use serde_json::{Value, json};

use super::Shared;
use super::thread_tools::{number, value};
use crate::effects::embed_query;

/// The default number of threads.
const FOUND: usize = 5;
/// The most threads.
const FOUND_MAX: usize = 20;

pub(super) fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "Words that must all be there; \"a phrase\", OR, NOT, parentheses, begin*; filters: directive: status: since:7d.",
            },
            "semantic": {"type": "boolean", "description": "Whether to find passages of similar meaning as well."},
            "limit": {"type": "integer", "minimum": 1, "maximum": FOUND_MAX, "description": "The maximum number of threads. Default: 5."},
        },
        "required": ["query"],
        "additionalProperties": false,
    })
}

/// The threads of the calling thread's agent that match.
pub(super) fn search(shared: &Arc<Shared>, call: &Call, cancel: &Cancel) -> Result<Value, String> {
    let text = call.arguments.get("query").and_then(Value::as_str).ok_or("`query` is missing")?;
    let limit = number(call, "limit")?.unwrap_or(FOUND).min(FOUND_MAX);
    let engine = &shared.engine;
    let now = engine.now();
    let query = Query::parse(text, &|text| since(text, now, &utc_midnight)).map_err(|error| error.to_string())?;
    // From the verified log: the agent in the database is not trusted.
    let own = engine.manifest(&call.thread).map_err(|error| error.to_string())?.agent_id;
    let is_semantic = call.arguments.get("semantic").and_then(Value::as_bool) == Some(true);
    let vector = if is_semantic { Some(vector(shared, text, cancel)?) } else { None };
    let (vector, words_alone) = match vector {
        Some(Ok(vector)) => (Some(vector), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, None),
    };
    let asked = ThreadQuery { query, vector, only: Some(own), limit };
    let found = search_threads(&**shared.store(), &*shared.index, engine.trust(), &asked, cancel);
    value(found.map(|found| ThreadsFound { words_alone, ..found }))
}

/// The vector of a query; an embedder that does not answer is no reason not to search by words.
fn vector(shared: &Shared, text: &str, cancel: &Cancel) -> Result<Result<(String, Vec<f32>), EmbedError>, String> {
    let embedder = shared.project.embedder().map_err(|error| error.to_string())?;
    let embedder = embedder.ok_or("no embedder is configured: leave out `semantic`")?;
    Ok(embed_query(&*embedder, text, cancel))
}
