//! The tools with which agents search, read and write knowledge.
//!
//! | tool | capability |
//! |---|---|
//! | `knowledge_search` | `fetch.knowledge.…`: only entries below one of these are searched |
//! | `knowledge_read` | `fetch.knowledge.<id>`, with `.` for each `/` |
//! | `knowledge_write` | `sign.knowledge.<id>` |
//!
//! What is not signed by a trusted key, or unsigned where the configuration refuses that, is not returned. An entry that an agent writes is
//! signed and says which thread wrote it; what a person wrote is never replaced.

use std::sync::Arc;

use selvedge_items::capability::{Capabilities, Capability};
use selvedge_items::knowledge::Condition;
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Function, Risk};
use selvedge_model::{Call, DirectiveId, Manifest, Output, Tool, ToolSpec};
use selvedge_store::search::Query;
use selvedge_tools::built_in;
use serde_json::{Value, json};

use super::Shared;
use crate::knowledge::{Entry, search_knowledge};

const SEARCH: &str = "knowledge_search";
const READ: &str = "knowledge_read";
const WRITE: &str = "knowledge_write";

/// The default number of entries that a search returns.
const FOUND: u64 = 10;

/// The capability for one entry: of the verb `fetch` or `sign`.
fn needed(verb: &str, id: &str) -> Option<Capability> {
    format!("selvedge.{verb}.knowledge.{}", id.replace('/', ".")).parse().ok()
}

fn may(capabilities: &Capabilities, verb: &str, id: &str) -> bool {
    needed(verb, id).is_some_and(|needed| capabilities.allows(&needed))
}

/// The definitions of the tools.
pub(crate) fn specs() -> [ToolSpec; 3] {
    let text = |description: &str| json!({"type": "string", "description": description});
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let limit = json!({"type": "integer", "minimum": 1, "maximum": 50, "description": "Default: 10."});
    let search = built_in(
        SEARCH,
        "Searches the knowledge of the project and the user: words that must all be there, \"a phrase\", OR, NOT, begin*.",
        object(json!({"query": text("The words."), "limit": limit}), json!(["query"])),
        EffectClass::Pure,
        Risk::Safe,
    );
    let read = built_in(
        READ,
        "Returns the text of an entry of knowledge.",
        object(json!({"id": text("The entry, such as `docs/api`.")}), json!(["id"])),
        EffectClass::Pure,
        Risk::Safe,
    );
    let tags = json!({"type": "array", "items": {"type": "string"}});
    let properties = json!({
        "id": text("The entry, such as `notes/api`."), "title": text("Its title."), "text": text("Its text, in Markdown."),
        "entry_type": text("Such as `learning` or `reference`. Default: `learning`."), "tags": tags,
    });
    let what = "Writes an entry of knowledge, or replaces one that an agent wrote.";
    let write =
        built_in(WRITE, what, object(properties, json!(["id", "title", "text"])), EffectClass::Idempotent, Risk::Write);
    let needs = |spec: ToolSpec, capability: &str| ToolSpec { capability: capability.to_owned(), ..spec };
    [
        // It searches whatever may be read.
        needs(search, "selvedge.fetch.knowledge.{}"),
        needs(read, "selvedge.fetch.knowledge.{id}"),
        needs(write, "selvedge.sign.knowledge.{id}"),
    ]
}

/// The tools.
pub(super) fn tools(shared: &Arc<Shared>) -> Vec<Arc<dyn Tool>> {
    let tool = |spec: ToolSpec, run: fn(&Shared, &Call) -> Result<Value, String>| {
        let shared = shared.clone();
        Arc::new(Function::new(spec, move |call, _| {
            Ok(match run(&shared, call) {
                Ok(content) => Output { content, ..Output::default() },
                Err(why) => Output::error(why),
            })
        })) as Arc<dyn Tool>
    };
    let [searching, reading, writing] = specs();
    vec![tool(searching, search), tool(reading, read), tool(writing, write)]
}

/// What the calling thread may do, from its verified log.
fn capabilities(shared: &Shared, call: &Call) -> Result<Capabilities, String> {
    let manifest: Manifest = shared.engine.manifest(&call.thread).map_err(|error| error.to_string())?;
    let tokens = manifest.capabilities.unwrap_or_default();
    Ok(Capabilities::new(tokens.iter().filter_map(|token| token.parse().ok())))
}

fn argument<'c>(call: &'c Call, name: &str) -> Result<&'c str, String> {
    call.arguments.get(name).and_then(Value::as_str).ok_or_else(|| format!("`{name}` is missing"))
}

fn search(shared: &Shared, call: &Call) -> Result<Value, String> {
    let query = Query::parse(argument(call, "query")?, &|_| None).map_err(|error| error.to_string())?;
    let limit = call.arguments.get("limit").and_then(Value::as_u64).unwrap_or(FOUND).clamp(1, 50);
    let capabilities = capabilities(shared, call)?;
    let library = &shared.project.library;
    let may_see = |id: &str| may(&capabilities, "fetch", id);
    let found = search_knowledge(library, &query, limit as usize, &may_see).map_err(|error| error.to_string())?;
    let more = found.more;
    let results = found.results.into_iter().map(|found| {
        let entry = &found.entry;
        let is_usable = !entry.shadowed && entry.condition != Condition::Damaged;
        json!({
            "id": entry.id, "title": entry.metadata.title, "entry_type": entry.metadata.entry_type, "tags": entry.metadata.tags,
            "condition": entry.condition, "layer": entry.layer, "shadowed": entry.shadowed, "score": found.score,
            "snippet": if is_usable { found.snippet.as_str() } else { "" },
        })
    });
    Ok(json!({"success": true, "results": results.collect::<Vec<_>>(), "more": more}))
}

fn read(shared: &Shared, call: &Call) -> Result<Value, String> {
    let id = argument(call, "id")?;
    if !may(&capabilities(shared, call)?, "fetch", id) {
        return Err(format!("the thread may not read `{id}`"));
    }
    let id = DirectiveId::new(id).map_err(|error| error.to_string())?;
    let found = shared.project.library.knowledge(&id).map_err(|error| error.to_string())?;
    let source = &found.sources[0];
    Ok(
        json!({"success": true, "id": found.id(), "digest": source.hash, "layer": source.layer, "text": found.item.body}),
    )
}

fn write(shared: &Shared, call: &Call) -> Result<Value, String> {
    let id = argument(call, "id")?;
    if !may(&capabilities(shared, call)?, "sign", id) {
        return Err(format!("the thread may not write `{id}`"));
    }
    let id = DirectiveId::new(id).map_err(|error| error.to_string())?;
    let entry_type = call.arguments.get("entry_type").and_then(Value::as_str).unwrap_or("learning");
    let tags = call.arguments.get("tags").and_then(Value::as_array).into_iter().flatten();
    let entry = Entry {
        title: argument(call, "title")?.to_owned(),
        entry_type: entry_type.to_owned(),
        written_by: call.thread.to_string(),
        tags: tags.filter_map(Value::as_str).map(str::to_owned).collect(),
        more: Vec::new(),
        body: argument(call, "text")?.to_owned(),
    };
    if entry.body.trim().is_empty() {
        return Err("`text` is empty".to_owned());
    }
    let digest = shared.write_knowledge(&id, &entry)?;
    Ok(json!({"success": true, "id": id, "digest": digest}))
}
