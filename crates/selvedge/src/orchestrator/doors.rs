//! The tools by which agents look at threads and act on them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use selvedge_engine::Stopped;
use selvedge_engine::chain::get_chain;
use selvedge_engine::outcome::{aggregate_results, get_status};
use selvedge_engine::search::{Query, SearchType, chain_search};
use selvedge_engine::standing::{Standing, list_active};
use selvedge_engine::transcript::read_transcript;
use selvedge_model::blocking::{BoxFuture, on_thread};
use selvedge_model::event::{EffectClass, Process};
use selvedge_model::tool::{Dispatch, Reconciled, Risk, Started, ToolKind};
use selvedge_model::{Call, Cancel, Output, Status, Stop, ThreadId, Tool, ToolError, ToolSpec};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{HANDOFF, SPAWN, Shared, older_names, resuming};

/// The tools that wait for threads.
const WAIT: &str = "wait_threads";
const RESUME: &str = "resume_thread";

/// Why nobody waits for a thread that waits for the calling one.
const LEADS_BACK: &str = "it waits for this thread: neither would come to an end";

/// How many events a search gives when nobody says.
const FOUND_MAX: usize = 50;

/// What comes of a door that waits.
type Came = BoxFuture<'static, Result<Value, String>>;

/// What a door does.
#[derive(Clone, Copy)]
enum Act {
    /// It reads logs, or changes threads, and blocks meanwhile.
    Blocks(fn(&Arc<Shared>, &Call, &Cancel) -> Result<Value, String>),
    /// It waits without a thread.
    Waits(fn(Arc<Shared>, Call, Cancel) -> Came),
}

/// A tool that acts on threads.
struct Door {
    spec: ToolSpec,
    kind: ToolKind,
    act: Act,
    shared: Arc<Shared>,
}

/// A door, its words, what it is given, how often it may run, how much harm it can do, and what it does.
struct Sign {
    name: &'static str,
    capability: &'static str,
    description: &'static str,
    input_schema: fn() -> Value,
    class: EffectClass,
    kind: ToolKind,
    risk: Risk,
    act: Act,
}

fn thread_id() -> Value {
    json!({
        "type": "object",
        "properties": {"thread_id": {"type": "string", "description": "The thread."}},
        "required": ["thread_id"],
        "additionalProperties": false,
    })
}

fn thread_ids(with_timeout: bool) -> Value {
    let mut properties =
        json!({"thread_ids": {"type": "array", "items": {"type": "string"}, "description": "The threads."}});
    if with_timeout {
        properties["timeout"] = json!({"type": "number", "minimum": 0, "description": "Seconds to wait at most."});
    }
    json!({"type": "object", "properties": properties, "required": ["thread_ids"], "additionalProperties": false})
}

const SIGNS: [Sign; 12] = [
    Sign {
        name: SPAWN,
        capability: "tool.threads.spawn",
        description: "Starts a directive as a child thread. Without `async` it is waited for, and what came of it is the answer; with it \
                      the answer is the child's id, and `wait_threads` waits for it.",
        input_schema: || {
            json!({
                "type": "object",
                "properties": {
                    "directive": {"type": "string", "description": "The directive, such as `reports/weekly`."},
                    "inputs": {"type": "object", "description": "What the directive is given."},
                    "async": {"type": "boolean", "description": "Whether to go on without waiting."},
                    "model": {"type": "string"},
                    "agent": {"type": "string"},
                    "limits": {
                        "type": "object",
                        "description": "Ceilings of the child, never above those of this thread: turns, tokens, spend (dollars), spawns, depth, duration_seconds.",
                    },
                },
                "required": ["directive"],
                "additionalProperties": false,
            })
        },
        class: EffectClass::AtMostOnce,
        kind: ToolKind::Child,
        risk: Risk::Write,
        act: Act::Blocks(|_, _, _| Err("a child is started by the engine".to_owned())),
    },
    Sign {
        name: WAIT,
        capability: "tool.threads.wait",
        description: "Waits until threads have come to an end, following them where they go on, and gives what came of each.",
        input_schema: || thread_ids(true),
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        act: Act::Waits(|shared, call, cancel| Box::pin(wait(shared, call, cancel))),
    },
    Sign {
        name: "get_status",
        capability: "tool.threads.status",
        description: "How a thread stands.",
        input_schema: thread_id,
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        act: Act::Blocks(|shared, call, _| {
            let outcome = get_status(&**shared.store(), shared.engine.trust(), &thread(call)?);
            let outcome = outcome.map_err(|error| error.to_string())?;
            let is_known = outcome.status != Standing::NotFound;
            let mut told = json!(outcome);
            told["success"] = json!(is_known);
            if !is_known {
                told["error"] = json!(outcome.why);
            }
            Ok(told)
        }),
    },
    Sign {
        name: "list_active",
        capability: "tool.threads.list",
        description: "The threads that run now, in any process.",
        input_schema: || json!({"type": "object", "properties": {}, "additionalProperties": false}),
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        act: Act::Blocks(|shared, _, _| value(list_active(&**shared.store()))),
    },
    Sign {
        name: "aggregate_results",
        capability: "tool.threads.results",
        description: "What came of threads so far, without waiting.",
        input_schema: || thread_ids(false),
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        act: Act::Blocks(|shared, call, _| {
            let (asked, failed) = threads(call)?;
            let gathered = aggregate_results(&**shared.store(), shared.engine.trust(), &asked);
            value(gathered).map(|told| with_failed(told, failed))
        }),
    },
    Sign {
        name: "get_chain",
        capability: "tool.threads.chain",
        description: "The threads of one execution, from the first to the one that goes on.",
        input_schema: thread_id,
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        act: Act::Blocks(|shared, call, _| value(get_chain(&**shared.store(), &thread(call)?))),
    },
    Sign {
        name: "chain_search",
        capability: "tool.threads.search",
        description: "Searches everything that was said and done in all threads of one execution.",
        input_schema: || {
            json!({
                "type": "object",
                "properties": {
                    "thread_id": {"type": "string"},
                    "query": {"type": "string", "description": "Words, or a pattern."},
                    "search_type": {"type": "string", "enum": ["text", "regex"]},
                    "max_results": {"type": "integer", "minimum": 1},
                },
                "required": ["thread_id", "query"],
                "additionalProperties": false,
            })
        },
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        act: Act::Blocks(|shared, call, _| {
            let said = |name: &str| call.arguments.get(name);
            let query = Query {
                query: said("query").and_then(Value::as_str).ok_or("`query` is missing")?.to_owned(),
                search_type: match said("search_type").and_then(Value::as_str) {
                    Some("regex") => SearchType::Regex,
                    Some("text") | None => SearchType::Text,
                    Some(other) => {
                        return Err(format!("there is no search type `{other}`; there are `text` and `regex`"));
                    }
                },
                is_exact: false,
                max_results: number(call, "max_results")?.unwrap_or(FOUND_MAX),
            };
            value(chain_search(&**shared.store(), shared.engine.trust(), &thread(call)?, &query))
        }),
    },
    Sign {
        name: "read_transcript",
        capability: "tool.threads.read",
        description: "What was said in a thread, readable.",
        input_schema: || {
            json!({
                "type": "object",
                "properties": {"thread_id": {"type": "string"}, "tail_lines": {"type": "integer", "minimum": 1}},
                "required": ["thread_id"],
                "additionalProperties": false,
            })
        },
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        act: Act::Blocks(|shared, call, _| {
            let tail = number(call, "tail_lines")?;
            value(read_transcript(&**shared.store(), shared.engine.trust(), &thread(call)?, tail))
        }),
    },
    Sign {
        name: "cancel_thread",
        capability: "tool.threads.cancel",
        description: "Asks a thread that this one started, and all that it started, to stop.",
        input_schema: thread_id,
        class: EffectClass::Idempotent,
        kind: ToolKind::Work,
        risk: Risk::Write,
        act: Act::Blocks(|shared, call, _| stop(shared, call, Stop::Cancelled, "cancelled")),
    },
    Sign {
        name: "kill_thread",
        capability: "tool.threads.kill",
        description: "Ends a thread that this one started, and all that it started, by force.",
        input_schema: thread_id,
        class: EffectClass::Idempotent,
        kind: ToolKind::Work,
        risk: Risk::Write,
        act: Act::Blocks(|shared, call, _| stop(shared, call, Stop::Killed, "killed")),
    },
    Sign {
        name: RESUME,
        capability: "tool.threads.resume",
        description: "Goes on with a thread that this one started, with a message, and waits for what comes of it.",
        input_schema: || {
            json!({
                "type": "object",
                "properties": {"thread_id": {"type": "string"}, "message": {"type": "string"}},
                "required": ["thread_id", "message"],
                "additionalProperties": false,
            })
        },
        class: EffectClass::AtMostOnce,
        kind: ToolKind::Work,
        risk: Risk::Write,
        act: Act::Blocks(resuming::resume),
    },
    Sign {
        name: HANDOFF,
        capability: "tool.threads.handoff",
        description: "Hands this thread's work over to a successor that begins with the newest part of this conversation.",
        input_schema: || json!({"type": "object", "properties": {}, "additionalProperties": false}),
        class: EffectClass::Idempotent,
        kind: ToolKind::Handoff,
        risk: Risk::Safe,
        act: Act::Blocks(|_, call, _| match call.arguments.as_object().is_none_or(serde_json::Map::is_empty) {
            true => Ok(json!({"success": true})),
            false => Err("it hands over this thread and takes no arguments".to_owned()),
        }),
    },
];

impl Sign {
    fn spec(&self) -> ToolSpec {
        let spec = selvedge_tools::built_in(self.name, self.description, (self.input_schema)(), self.class, self.risk);
        ToolSpec { capability: self.capability.to_owned(), ..spec }
    }
}

/// What is told of each door.
pub(super) fn specs() -> Vec<ToolSpec> {
    SIGNS.iter().map(Sign::spec).collect()
}

/// All doors.
pub(super) fn all(shared: &Arc<Shared>) -> Vec<Arc<dyn Tool>> {
    let door = |sign: &Sign| Door { spec: sign.spec(), kind: sign.kind, act: sign.act, shared: shared.clone() };
    SIGNS.iter().map(|sign| Arc::new(door(sign)) as Arc<dyn Tool>).collect()
}

fn value<T: Serialize, E: std::fmt::Display>(found: Result<T, E>) -> Result<Value, String> {
    let found = found.map_err(|error| error.to_string())?;
    serde_json::to_value(found).map_err(|error| error.to_string())
}

fn thread(call: &Call) -> Result<ThreadId, String> {
    let text = call.arguments.get("thread_id").and_then(Value::as_str).ok_or("`thread_id` is missing")?;
    ThreadId::new(text).map_err(|error| error.to_string())
}

/// The threads that a call names; and under `__failed_` and its place in the list, why what stands there can't be one.
fn threads(call: &Call) -> Result<(Vec<ThreadId>, Map<String, Value>), String> {
    let listed = call.arguments.get("thread_ids").and_then(Value::as_array).ok_or("`thread_ids` is missing")?;
    let one = |listed: &Value| {
        let text = listed.as_str().ok_or_else(|| format!("{listed} is no thread's id"))?;
        ThreadId::new(text).map_err(|error| error.to_string())
    };
    let (mut threads, mut failed) = (Vec::new(), Map::new());
    for (index, listed) in listed.iter().enumerate() {
        match one(listed) {
            Ok(thread) => threads.push(thread),
            Err(error) => failed.extend([refusal(index, &error)]),
        }
    }
    Ok((threads, failed))
}

/// The threads that a call waits for.
fn awaited(tool: &str, arguments: &Value) -> Vec<ThreadId> {
    let named = match older_names::operation(tool, arguments) {
        WAIT => arguments.get("thread_ids").and_then(Value::as_array).map_or(&[][..], Vec::as_slice),
        RESUME => arguments.get("thread_id").map_or(&[][..], std::slice::from_ref),
        _ => &[],
    };
    named.iter().filter_map(|named| ThreadId::new(named.as_str()?).ok()).collect()
}

/// What is said of something in a list that can't be done.
fn refusal(index: usize, error: &str) -> (String, Value) {
    (format!("__failed_{index}"), json!({"status": "error", "error": error}))
}

/// Where a call names threads of which this holds.
fn places(call: &Call, holds: impl Fn(&str) -> bool) -> impl Iterator<Item = usize> {
    let listed = call.arguments.get("thread_ids").and_then(Value::as_array).into_iter().flatten().enumerate();
    listed.filter(move |(_, listed)| listed.as_str().is_some_and(&holds)).map(|(index, _)| index)
}

/// What is told of threads, and of what could not be one.
fn with_failed(mut told: Value, failed: Map<String, Value>) -> Value {
    if !failed.is_empty() {
        told["success"] = json!(false);
        if let Some(results) = told.get_mut("results").and_then(Value::as_object_mut) {
            results.extend(failed);
        }
    }
    told
}

/// A whole number above nothing, if a call has it.
fn number(call: &Call, name: &str) -> Result<Option<usize>, String> {
    let given = call.arguments.get(name).filter(|given| !given.is_null());
    let whole =
        |given: &Value| given.as_u64().filter(|number| *number > 0).and_then(|number| usize::try_from(number).ok());
    given
        .map(|given| whole(given).ok_or_else(|| format!("`{name}` must be a whole number above 0, not {given}")))
        .transpose()
}

/// How long a call is to wait.
fn timeout(shared: &Shared, call: &Call) -> Result<Duration, String> {
    match call.arguments.get("timeout").filter(|given| !given.is_null()) {
        None => Ok(shared.patience()),
        Some(given) => match given.as_f64().filter(|seconds| *seconds >= 0.0) {
            Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
            None => Err(format!("`timeout` must be a number of seconds, not {given}")),
        },
    }
}

/// The thread that a call names, if the calling one started it, or one that it started did.
pub(super) fn own(shared: &Shared, call: &Call) -> Result<ThreadId, String> {
    let wanted = thread(call)?;
    let (store, words) = (shared.store(), |error: selvedge_store::Error| error.to_string());
    let mut known: HashSet<ThreadId> = HashSet::new();
    let mut open = vec![wanted.clone()];
    while let Some(next) = open.pop() {
        for link in store.chain(&next).map_err(words)? {
            let Some(parent) = link.manifest.parent_id else { continue };
            let chain = store.chain(&parent).map_err(words)?;
            if chain.iter().any(|link| link.manifest.thread_id == call.thread) {
                return Ok(wanted);
            }
            if known.insert(parent.clone()) {
                open.push(parent);
            }
        }
    }
    Err(format!("`{wanted}` was not started by this thread"))
}

fn stop(shared: &Arc<Shared>, call: &Call, stop: Stop, word: &str) -> Result<Value, String> {
    let thread = own(shared, call)?;
    let Stopped { status, pid } = shared.engine.stop(&thread, stop).map_err(|error| error.to_string())?;
    let mut told = json!({"success": true, "thread_id": thread, "status": status});
    if stop == Stop::Killed {
        told["pid"] = json!(pid);
    }
    // One that had come to an end before stays as it was.
    told[word] =
        json!(!matches!(status, Status::Completed | Status::CompletedWithErrors | Status::Error | Status::Continued));
    Ok(told)
}

struct Entered {
    act: Act,
    call: Call,
    shared: Arc<Shared>,
}

impl Started for Entered {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let Self { act, call, shared } = *self;
        let cancel = cancel.clone();
        match (cancel.said(), act) {
            (Some(_), _) => Dispatch::Done(Err(ToolError::Stopped { tool: call.name })),
            (None, Act::Waits(act)) => Dispatch::future(async move { Ok(output(act(shared, call, cancel).await)) }),
            (None, Act::Blocks(act)) => Dispatch::blocking(move || Ok(output(act(&shared, &call, &cancel)))),
        }
    }
}

/// What the model is told.
fn output(came: Result<Value, String>) -> Output {
    match came {
        Ok(content) => {
            // That a child failed is no failure of the thread that waited for it.
            let is_error = content.get("error").is_some();
            Output { content, is_error, ..Output::default() }
        }
        Err(error) => {
            Output { content: json!({"success": false, "error": error}), is_error: true, ..Output::default() }
        }
    }
}

/// Waits for threads.
async fn wait(shared: Arc<Shared>, call: Call, cancel: Cancel) -> Result<Value, String> {
    let own = shared.clone();
    let Awaitable { asked, timeout, failed } = on_thread(move || awaitable(&own, &call)).await?;
    let waited = shared.engine.wait_async(&asked, timeout, &cancel).await;
    value(waited).map(|told| with_failed(told, failed))
}

/// What a call may wait for.
struct Awaitable {
    asked: Vec<ThreadId>,
    timeout: Duration,
    /// Why not for the others.
    failed: Map<String, Value>,
}

fn awaitable(shared: &Shared, call: &Call) -> Result<Awaitable, String> {
    let timeout = timeout(shared, call)?;
    let (mut asked, mut failed) = threads(call)?;
    // Nothing waits for the end of the run in which it waits.
    let own = shared.store().chain(&call.thread).map_err(|error| error.to_string())?;
    let is_own = |thread: &str| own.iter().any(|link| link.manifest.thread_id.as_str() == thread);
    asked.retain(|thread| !is_own(thread.as_str()));
    failed.extend(places(call, is_own).map(|index| refusal(index, "a thread can't wait for itself")));
    // Nor for what waits for it.
    let (engine, at_once) = (&shared.engine, shared.at_once());
    let leads_back = |thread: &&ThreadId| engine.waits_for(thread, &call.thread, &awaited, at_once).unwrap_or(false);
    let circular: Vec<ThreadId> = asked.iter().filter(leads_back).cloned().collect();
    asked.retain(|thread| !circular.contains(thread));
    let is_circular = |thread: &str| circular.iter().any(|known| known.as_str() == thread);
    failed.extend(places(call, is_circular).map(|index| refusal(index, LEADS_BACK)));
    Ok(Awaitable { asked, timeout, failed })
}

impl Tool for Door {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn kind(&self) -> ToolKind {
        self.kind
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(Entered { act: self.act, call: call.clone(), shared: self.shared.clone() }))
    }

    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled {
        match self.spec.name == RESUME {
            true => resuming::reconcile(&self.shared, call, cancel),
            false => Reconciled::Unknown,
        }
    }
}
