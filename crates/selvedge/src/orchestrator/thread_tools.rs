//! The tools with which agents inspect threads and act on them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use selvedge_engine::Stopped;
use selvedge_engine::blobs::READ_TOOL;
use selvedge_engine::chain::get_chain;
use selvedge_engine::outcome::{aggregate_results, get_status};
use selvedge_engine::search::{Query, SearchType, chain_search};
use selvedge_engine::thread_state::ThreadState;
use selvedge_engine::transcript::read_transcript;
use selvedge_model::blocking::{BoxFuture, on_thread};
use selvedge_model::event::{EffectClass, Process};
use selvedge_model::tool::{Dispatch, Reconciled, Risk, Started, ToolKind};
use selvedge_model::{Call, Cancel, Output, Status, Stop, ThreadId, Tool, ToolError, ToolSpec};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{HANDOFF, SPAWN, Shared, blob, older_names, resume, search};

/// The error of a wait for a thread that waits for the calling one.
const DEADLOCK: &str = "deadlock: it waits for this thread";

/// The default number of events that a search returns.
const FOUND_MAX: usize = 50;

/// The future of a tool that waits.
type ResultFuture = BoxFuture<'static, Result<Value, String>>;

/// Finds out the outcome of a call that was dispatched.
type Reconcile = fn(&Arc<Shared>, &Call, &Cancel) -> Reconciled;

/// The function of a tool.
#[derive(Clone, Copy)]
enum Function {
    /// It reads logs or changes threads, and blocks.
    Blocks(fn(&Arc<Shared>, &Call, &Cancel) -> Result<Value, String>),
    /// It waits for threads; it is async, and needs no thread of the system meanwhile.
    Waits {
        run: fn(Arc<Shared>, Call, Cancel) -> ResultFuture,
        /// The threads that a call with these arguments waits for.
        awaited: fn(&Value) -> Vec<ThreadId>,
        /// Finds out the outcome of a call that was dispatched.
        reconcile: Option<Reconcile>,
    },
}

/// A tool that acts on threads.
struct ThreadTool {
    spec: ToolSpec,
    kind: ToolKind,
    function: Function,
    shared: Arc<Shared>,
}

/// The definition of a tool: name, capability, description, schema, effect class, risk and function.
struct Definition {
    name: &'static str,
    capability: &'static str,
    description: &'static str,
    input_schema: fn() -> Value,
    class: EffectClass,
    kind: ToolKind,
    risk: Risk,
    function: Function,
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

const DEFINITIONS: [Definition; 14] = [
    Definition {
        name: SPAWN,
        capability: "tool.threads.spawn",
        description: "Starts a directive as a child thread. Without `async`, waits for the child and returns its outcome; with it, returns \
                      the child's id at once, and `wait_threads` waits for it.",
        input_schema: || {
            json!({
                "type": "object",
                "properties": {
                    "directive": {"type": "string", "description": "The directive, such as `reports/weekly`."},
                    "inputs": {"type": "object", "description": "The inputs of the directive."},
                    "async": {"type": "boolean", "description": "Whether to return without waiting."},
                    "model": {"type": "string", "description": "The model; by default that of the directive or the agent."},
                    "agent": {"type": "string", "description": "The agent that runs the directive."},
                    "limits": {
                        "type": "object",
                        "description": "Limits of the child, at most those of this thread: turns, tokens, spend (dollars), spawns, depth, duration_seconds.",
                    },
                },
                "required": ["directive"],
                "additionalProperties": false,
            })
        },
        class: EffectClass::AtMostOnce,
        kind: ToolKind::Child,
        risk: Risk::Write,
        function: Function::Blocks(|_, _, _| Err("a child is started by the engine".to_owned())),
    },
    Definition {
        name: "wait_threads",
        capability: "tool.threads.wait",
        description: "Waits until threads have ended, following handoffs to successors, and returns the outcome of each.",
        input_schema: || thread_ids(true),
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Waits {
            run: |shared, call, cancel| Box::pin(wait(shared, call, cancel)),
            awaited: |arguments| arguments.get("thread_ids").and_then(Value::as_array).map(ids).unwrap_or_default(),
            reconcile: None,
        },
    },
    Definition {
        name: "get_status",
        capability: "tool.threads.status",
        description: "Returns the status of a thread.",
        input_schema: thread_id,
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Blocks(|shared, call, _| {
            let outcome = get_status(&**shared.store(), shared.engine.trust(), &thread(call)?);
            let outcome = outcome.map_err(|error| error.to_string())?;
            let is_known = outcome.status != ThreadState::NotFound;
            let mut result = json!(outcome);
            result["success"] = json!(is_known);
            if !is_known {
                result["error"] = json!(outcome.why);
            }
            Ok(result)
        }),
    },
    Definition {
        name: "list_active",
        capability: "tool.threads.list",
        description: "Lists the threads that are running now, in any process, and the children that were started and are about to run.",
        input_schema: || json!({"type": "object", "properties": {}, "additionalProperties": false}),
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Blocks(|shared, _, _| value(shared.engine.list_active())),
    },
    Definition {
        name: "aggregate_results",
        capability: "tool.threads.results",
        description: "Returns the outcomes of threads so far, without waiting.",
        input_schema: || thread_ids(false),
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Blocks(|shared, call, _| {
            let (asked, failed) = threads(call)?;
            let gathered = aggregate_results(&**shared.store(), shared.engine.trust(), &asked);
            value(gathered).map(|result| with_failed(result, failed))
        }),
    },
    Definition {
        name: "get_chain",
        capability: "tool.threads.chain",
        description: "Lists the threads of a chain, which is one execution across several threads, from the first to the current one.",
        input_schema: thread_id,
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Blocks(|shared, call, _| value(get_chain(&**shared.store(), &thread(call)?))),
    },
    Definition {
        name: "chain_search",
        capability: "tool.threads.search",
        description: "Searches the messages, calls and blobs of all threads of a chain, which is one execution across several threads.",
        input_schema: || {
            json!({
                "type": "object",
                "properties": {
                    "thread_id": {"type": "string", "description": "Any thread of the chain."},
                    "query": {"type": "string", "description": "A text, or a regular expression."},
                    "search_type": {"type": "string", "enum": ["text", "regex"]},
                    "max_results": {"type": "integer", "minimum": 1, "description": "The maximum number of events to return."},
                },
                "required": ["thread_id", "query"],
                "additionalProperties": false,
            })
        },
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Blocks(|shared, call, _| {
            let argument = |name: &str| call.arguments.get(name);
            let query = Query {
                query: argument("query").and_then(Value::as_str).ok_or("`query` is missing")?.to_owned(),
                search_type: match argument("search_type").and_then(Value::as_str) {
                    Some("regex") => SearchType::Regex,
                    Some("text") | None => SearchType::Text,
                    Some(other) => {
                        return Err(format!("unknown search type `{other}`; use `text` or `regex`"));
                    }
                },
                is_exact: false,
                max_results: number(call, "max_results")?.unwrap_or(FOUND_MAX),
            };
            value(chain_search(&**shared.store(), shared.engine.trust(), &thread(call)?, &query))
        }),
    },
    Definition {
        name: "search_threads",
        capability: "tool.threads.search",
        description: "Searches all earlier threads of this agent, and returns the best passage of each.",
        input_schema: search::input_schema,
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Blocks(search::search),
    },
    Definition {
        name: "read_transcript",
        capability: "tool.threads.read",
        description: "Returns the messages of a thread as text.",
        input_schema: || {
            json!({
                "type": "object",
                "properties": {
                    "thread_id": {"type": "string", "description": "The thread."},
                    "tail_lines": {"type": "integer", "minimum": 1, "description": "Return only this many lines from the end."},
                },
                "required": ["thread_id"],
                "additionalProperties": false,
            })
        },
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Blocks(|shared, call, _| {
            let tail = number(call, "tail_lines")?;
            value(read_transcript(&**shared.store(), shared.engine.trust(), &thread(call)?, tail))
        }),
    },
    Definition {
        name: READ_TOOL,
        capability: "tool.blob.read",
        description: "Reads a blob that this thread's log names, such as a tool result that was shortened. A long one is read in parts.",
        input_schema: blob::input_schema,
        class: EffectClass::Pure,
        kind: ToolKind::Work,
        risk: Risk::Safe,
        function: Function::Blocks(blob::read),
    },
    Definition {
        name: "cancel_thread",
        capability: "tool.threads.cancel",
        description: "Cancels a descendant of this thread, and its descendants.",
        input_schema: thread_id,
        class: EffectClass::Idempotent,
        kind: ToolKind::Work,
        risk: Risk::Write,
        function: Function::Blocks(|shared, call, _| stop(shared, call, Stop::Cancelled, "cancelled")),
    },
    Definition {
        name: "kill_thread",
        capability: "tool.threads.kill",
        description: "Kills a descendant of this thread, and its descendants.",
        input_schema: thread_id,
        class: EffectClass::Idempotent,
        kind: ToolKind::Work,
        risk: Risk::Write,
        function: Function::Blocks(|shared, call, _| stop(shared, call, Stop::Killed, "killed")),
    },
    Definition {
        name: "resume_thread",
        capability: "tool.threads.resume",
        description: "Resumes a descendant of this thread with a message, and waits for the outcome.",
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
        function: Function::Waits {
            run: |shared, call, cancel| Box::pin(resume::resume(shared, call, cancel)),
            awaited: |arguments| arguments.get("thread_id").map(|named| ids([named])).unwrap_or_default(),
            reconcile: Some(resume::reconcile),
        },
    },
    Definition {
        name: HANDOFF,
        capability: "tool.threads.handoff",
        description: "Hands this thread off to a successor that begins with the newest part of this conversation.",
        input_schema: || json!({"type": "object", "properties": {}, "additionalProperties": false}),
        class: EffectClass::Idempotent,
        kind: ToolKind::Handoff,
        risk: Risk::Safe,
        function: Function::Blocks(|_, call, _| {
            if call.arguments.as_object().is_none_or(serde_json::Map::is_empty) {
                Ok(json!({"success": true}))
            } else {
                Err("it takes no arguments".to_owned())
            }
        }),
    },
];

impl Definition {
    fn spec(&self) -> ToolSpec {
        let spec = selvedge_tools::built_in(self.name, self.description, (self.input_schema)(), self.class, self.risk);
        ToolSpec { capability: self.capability.to_owned(), ..spec }
    }
}

/// The definitions of all tools.
pub(super) fn specs() -> Vec<ToolSpec> {
    DEFINITIONS.iter().map(Definition::spec).collect()
}

/// All tools.
pub(super) fn all(shared: &Arc<Shared>) -> Vec<Arc<dyn Tool>> {
    let tool = |definition: &Definition| ThreadTool {
        spec: definition.spec(),
        kind: definition.kind,
        function: definition.function,
        shared: shared.clone(),
    };
    DEFINITIONS.iter().map(|definition| Arc::new(tool(definition)) as Arc<dyn Tool>).collect()
}

pub(super) fn value<T: Serialize, E: std::fmt::Display>(found: Result<T, E>) -> Result<Value, String> {
    let found = found.map_err(|error| error.to_string())?;
    serde_json::to_value(found).map_err(|error| error.to_string())
}

fn thread(call: &Call) -> Result<ThreadId, String> {
    let text = call.arguments.get("thread_id").and_then(Value::as_str).ok_or("`thread_id` is missing")?;
    ThreadId::new(text).map_err(|error| error.to_string())
}

/// The threads that a call names; and for each invalid id, under `__failed_` and its index, the error.
fn threads(call: &Call) -> Result<(Vec<ThreadId>, Map<String, Value>), String> {
    let listed = call.arguments.get("thread_ids").and_then(Value::as_array).ok_or("`thread_ids` is missing")?;
    let one = |listed: &Value| {
        let text = listed.as_str().ok_or_else(|| format!("{listed} is not a thread id"))?;
        ThreadId::new(text).map_err(|error| error.to_string())
    };
    let mut threads = Vec::new();
    let mut failed = Map::new();
    for (index, listed) in listed.iter().enumerate() {
        match one(listed) {
            Ok(thread) => threads.push(thread),
            Err(error) => failed.extend([refusal(index, &error)]),
        }
    }
    Ok((threads, failed))
}

/// The threads that a call of a tool waits for.
fn awaited(tool: &str, arguments: &Value) -> Vec<ThreadId> {
    let name = older_names::operation(tool, arguments);
    match DEFINITIONS.iter().find(|definition| definition.name == name).map(|definition| definition.function) {
        Some(Function::Waits { awaited, .. }) => awaited(arguments),
        Some(Function::Blocks(_)) | None => Vec::new(),
    }
}

/// The valid thread ids among these values.
fn ids<'v>(named: impl IntoIterator<Item = &'v Value>) -> Vec<ThreadId> {
    named.into_iter().filter_map(|named| ThreadId::new(named.as_str()?).ok()).collect()
}

/// The error of an entry of the list.
fn refusal(index: usize, error: &str) -> (String, Value) {
    (format!("__failed_{index}"), json!({"status": "error", "error": error}))
}

/// The indexes of the threads in a call for which this holds.
fn indexes(call: &Call, holds: impl Fn(&str) -> bool) -> impl Iterator<Item = usize> {
    let listed = call.arguments.get("thread_ids").and_then(Value::as_array).into_iter().flatten().enumerate();
    listed.filter(move |(_, listed)| listed.as_str().is_some_and(&holds)).map(|(index, _)| index)
}

/// The result of a call, with the errors of invalid entries.
fn with_failed(mut result: Value, failed: Map<String, Value>) -> Value {
    if !failed.is_empty() {
        result["success"] = json!(false);
        if let Some(results) = result.get_mut("results").and_then(Value::as_object_mut) {
            results.extend(failed);
        }
    }
    result
}

/// A positive integer argument of a call.
pub(super) fn number(call: &Call, name: &str) -> Result<Option<usize>, String> {
    let given = call.arguments.get(name).filter(|given| !given.is_null());
    let whole =
        |given: &Value| given.as_u64().filter(|number| *number > 0).and_then(|number| usize::try_from(number).ok());
    given
        .map(|given| whole(given).ok_or_else(|| format!("`{name}` must be an integer above 0, not {given}")))
        .transpose()
}

/// The timeout of a call.
fn timeout(shared: &Shared, call: &Call) -> Result<Duration, String> {
    match call.arguments.get("timeout").filter(|given| !given.is_null()) {
        None => Ok(shared.default_timeout()),
        Some(given) => match given.as_f64().filter(|seconds| *seconds >= 0.0) {
            Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
            None => Err(format!("`timeout` must be a number of seconds, not {given}")),
        },
    }
}

/// The thread that a call names, if it is a descendant of the calling thread.
pub(super) fn descendant(shared: &Shared, call: &Call) -> Result<ThreadId, String> {
    let wanted = thread(call)?;
    let store = shared.store();
    let text = |error: selvedge_store::Error| error.to_string();
    let mut known: HashSet<ThreadId> = HashSet::new();
    let mut open = vec![wanted.clone()];
    while let Some(next) = open.pop() {
        for link in store.chain(&next).map_err(text)? {
            let Some(parent) = link.manifest.parent_id else { continue };
            let chain = store.chain(&parent).map_err(text)?;
            if chain.iter().any(|link| link.manifest.thread_id == call.thread) {
                return Ok(wanted);
            }
            if known.insert(parent.clone()) {
                open.push(parent);
            }
        }
    }
    Err(format!("`{wanted}` is not a descendant of this thread"))
}

fn stop(shared: &Arc<Shared>, call: &Call, stop: Stop, word: &str) -> Result<Value, String> {
    let thread = descendant(shared, call)?;
    let Stopped { status, pid } = shared.engine.stop(&thread, stop).map_err(|error| error.to_string())?;
    let mut result = json!({"success": true, "thread_id": thread, "status": status});
    if stop == Stop::Killed {
        result["pid"] = json!(pid);
    }
    // A thread that had already ended does not change.
    result[word] =
        json!(!matches!(status, Status::Completed | Status::CompletedWithErrors | Status::Error | Status::Continued));
    Ok(result)
}

struct StartedCall {
    function: Function,
    call: Call,
    shared: Arc<Shared>,
}

impl Started for StartedCall {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let Self { function, call, shared } = *self;
        let cancel = cancel.clone();
        match (cancel.said(), function) {
            (Some(_), _) => Dispatch::Done(Err(ToolError::Stopped { tool: call.name })),
            (None, Function::Waits { run, .. }) => {
                Dispatch::future(async move { Ok(output(run(shared, call, cancel).await)) })
            }
            (None, Function::Blocks(function)) => {
                Dispatch::blocking(move || Ok(output(function(&shared, &call, &cancel))))
            }
        }
    }
}

/// The output of the tool.
fn output(result: Result<Value, String>) -> Output {
    match result {
        Ok(content) => {
            // A failed child is not an error of the call that waited for it.
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
    let WaitRequest { threads, timeout, failed } = on_thread(move || wait_request(&own, &call)).await?;
    let waited = shared.engine.wait_async(&threads, timeout, &cancel).await;
    value(waited).map(|result| with_failed(result, failed))
}

/// The threads that a call waits for.
struct WaitRequest {
    threads: Vec<ThreadId>,
    timeout: Duration,
    /// The errors of the others.
    failed: Map<String, Value>,
}

fn wait_request(shared: &Shared, call: &Call) -> Result<WaitRequest, String> {
    let timeout = timeout(shared, call)?;
    let (mut asked, mut failed) = threads(call)?;
    // A thread can't wait for its own chain.
    let own = shared.store().chain(&call.thread).map_err(|error| error.to_string())?;
    let is_own = |thread: &str| own.iter().any(|link| link.manifest.thread_id.as_str() == thread);
    asked.retain(|thread| !is_own(thread.as_str()));
    failed.extend(indexes(call, is_own).map(|index| refusal(index, "a thread can't wait for itself")));
    // Nor for a thread that waits for it.
    let engine = &shared.engine;
    let at_once = shared.at_once();
    let is_deadlock = |thread: &&ThreadId| engine.waits_for(thread, &call.thread, &awaited, at_once).unwrap_or(false);
    let circular: Vec<ThreadId> = asked.iter().filter(is_deadlock).cloned().collect();
    asked.retain(|thread| !circular.contains(thread));
    let is_circular = |thread: &str| circular.iter().any(|known| known.as_str() == thread);
    failed.extend(indexes(call, is_circular).map(|index| refusal(index, DEADLOCK)));
    Ok(WaitRequest { threads: asked, timeout, failed })
}

impl Tool for ThreadTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn kind(&self) -> ToolKind {
        self.kind
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(StartedCall { function: self.function, call: call.clone(), shared: self.shared.clone() }))
    }

    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled {
        match self.function {
            Function::Waits { reconcile: Some(reconcile), .. } => reconcile(&self.shared, call, cancel),
            Function::Waits { .. } | Function::Blocks(_) => Reconciled::Unsupported,
        }
    }
}
