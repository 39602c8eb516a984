//! Agents search the threads of their own: those that their name is recorded for as their agent.

use std::sync::Arc;

use selvedge_engine::thread_search::{ThreadQuery, search_threads};
use selvedge_model::{Call, Cancel};
use selvedge_store::search::Query;
use selvedge_store::search::since::{since, utc_midnight};
use serde_json::{Value, json};

use super::Shared;
use super::thread_tools::{number, value};
use crate::effects::embed;

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
    let asked = ThreadQuery { query, vector, only: Some(own), limit };
    value(search_threads(&**shared.store(), &*shared.index, engine.trust(), &asked, cancel))
}

fn vector(shared: &Shared, text: &str, cancel: &Cancel) -> Result<(String, Vec<f32>), String> {
    let embedder = shared.project.embedder().map_err(|error| error.to_string())?;
    let embedder = embedder.ok_or("no embedder is configured: leave out `semantic`")?;
    let vectors = embed(&*embedder, &[text.to_owned()], cancel).map_err(|error| error.to_string())?;
    Ok((embedder.name().to_owned(), vectors.into_iter().next().unwrap_or_default()))
}
