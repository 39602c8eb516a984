//! Threads: list, show, start, send, resume, stop; budgets and search.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use selvedge::{Cursor, Filter, Input, Job, Limit, Limits, Outcome, Stopped, Summary, ThreadState, Value, json};
use selvedge_model::{AgentId, CommitKey, DirectiveId, Message, Run, Status, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::listen::App;
use crate::problem::{Body, Parameters, Problem, Result};

/// The most threads of a page.
const PAGE_MAX: usize = 1000;

/// The query of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    agent: Option<String>,
    directive: Option<String>,
    status: Option<Status>,
    parent: Option<String>,
    text: Option<String>,
    #[serde(default = "fifty")]
    limit: usize,
    after: Option<u64>,
}

fn fifty() -> usize {
    50
}

pub(crate) async fn list(State(app): State<App>, Parameters(query): Parameters<ListQuery>) -> Result<Json<Value>> {
    let parent_id = match &query.parent {
        Some(parent) => Some(app.selvedge.find(parent).await?),
        None => None,
    };
    let filter = Filter {
        agent_id: query.agent.map(AgentId::new).transpose()?,
        directive: query.directive.map(DirectiveId::new).transpose()?,
        status: query.status,
        parent_id,
        text: query.text,
    };
    let limit = query.limit.clamp(1, PAGE_MAX);
    let page = app.selvedge.threads(filter, query.after.map(Cursor), limit).await?;
    let threads: Vec<Value> = page.items.iter().map(listed).collect();
    Ok(Json(json!({"threads": threads, "next": page.next})))
}

/// A thread as the command line lists it: one whose process died is stalled.
fn listed(summary: &Summary) -> Value {
    let mut shown = serde_json::to_value(summary).unwrap_or_default();
    shown["status"] = json!(ThreadState::from(summary));
    shown
}

/// The details of a thread, as `selvedge thread show --json` has them.
#[derive(Serialize)]
struct Details {
    #[serde(flatten)]
    summary: Value,
    head: selvedge_log::Head,
    chain: Vec<ThreadId>,
    children: Vec<Value>,
    runs: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
}

pub(crate) async fn show(State(app): State<App>, Path(thread): Path<String>) -> Result<Response> {
    let thread = app.selvedge.find(&thread).await?;
    let outcome = app.selvedge.status(&thread).await.ok();
    let details = app
        .read(move |store| {
            let summary = store.get(&thread)?;
            let ids = |summaries: Vec<Summary>| summaries.into_iter().map(|summary| summary.manifest.thread_id);
            Ok(Details {
                head: store.head(&thread)?,
                chain: ids(store.chain(&thread)?).collect(),
                children: store.children(&thread)?.iter().map(listed).collect(),
                runs: store.runs(&thread)?,
                summary: listed(&summary),
                outcome,
            })
        })
        .await?;
    Ok(Json(details).into_response())
}

pub(crate) async fn messages(State(app): State<App>, Path(thread): Path<String>) -> Result<Json<Vec<Message>>> {
    let thread = app.selvedge.find(&thread).await?;
    Ok(Json(app.selvedge.messages(&thread).await?))
}

/// The account of a thread's chain, and all accounts below it.
pub(crate) async fn budget(State(app): State<App>, Path(thread): Path<String>) -> Result<Json<Value>> {
    let thread = app.selvedge.find(&thread).await?;
    let accounts = app
        .read(move |store| {
            let account = store.get(&thread)?.manifest.chain_root_id;
            store.tree(&account)
        })
        .await?;
    Ok(Json(json!({"accounts": accounts})))
}

/// The query of a search.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchQuery {
    q: String,
    #[serde(default = "twenty")]
    limit: usize,
}

fn twenty() -> usize {
    20
}

pub(crate) async fn search(State(app): State<App>, Parameters(query): Parameters<SearchQuery>) -> Result<Json<Value>> {
    let found = app.selvedge.search(&query.q, query.limit.clamp(1, PAGE_MAX)).await?;
    Ok(Json(serde_json::to_value(found).map_err(|error| Problem::invalid(error.to_string()))?))
}

/// A new thread: a directive of the project with its inputs, or a message for an agent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewThread {
    directive: Option<String>,
    #[serde(default)]
    inputs: Map<String, Value>,
    text: Option<String>,
    agent: Option<String>,
    model: Option<String>,
    title: Option<String>,
    #[serde(default)]
    limits: Limits,
}

pub(crate) async fn start(
    State(app): State<App>,
    headers: HeaderMap,
    Body(asked): Body<NewThread>,
) -> Result<(StatusCode, Json<Value>)> {
    let mut job = match (asked.directive, asked.text) {
        (Some(directive), None) => Job::directive(directive),
        (None, Some(text)) if !text.trim().is_empty() => Job::say(text),
        (None, Some(_)) => return Err(Problem::invalid("`text` is empty")),
        _ => return Err(Problem::invalid("a thread begins with a `directive` or with a `text`, and not with both")),
    };
    for (name, value) in asked.inputs {
        job = job.input(name, value);
    }
    if let Some(agent) = asked.agent {
        job = job.agent(agent);
    }
    if let Some(model) = asked.model {
        job = job.model(model);
    }
    if let Some(title) = asked.title {
        job = job.title(title);
    }
    for limit in limits(&asked.limits) {
        job = job.limit(limit);
    }
    if let Some(key) = key(&headers)? {
        job = job.key(key);
    }
    let thread = app.selvedge.start(job).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({"thread_id": thread}))))
}

fn limits(limits: &Limits) -> Vec<Limit> {
    let Limits { turns, tokens, spend, spawns, depth, duration_seconds } = limits;
    let duration = duration_seconds.map(std::time::Duration::from_secs).map(Limit::Duration);
    let all = [
        turns.map(Limit::Turns),
        tokens.map(Limit::Tokens),
        spend.map(Limit::Spend),
        spawns.map(Limit::Spawns),
        depth.map(Limit::Depth),
        duration,
    ];
    all.into_iter().flatten().collect()
}

/// The key under which a request counts once, if the caller gives one.
fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key.to_str().map_err(|_| Problem::invalid("`Idempotency-Key` is not plain ASCII text"))?;
    CommitKey::new(format!("run:{key}"))?;
    Ok(Some(key.to_owned()))
}

/// A message.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    text: String,
}

pub(crate) async fn send(
    State(app): State<App>,
    Path(thread): Path<String>,
    headers: HeaderMap,
    Body(asked): Body<Send>,
) -> Result<(StatusCode, Json<Value>)> {
    if asked.text.trim().is_empty() {
        return Err(Problem::invalid("`text` is empty"));
    }
    let thread = app.selvedge.find(&thread).await?;
    match key(&headers)? {
        Some(key) => app.selvedge.submit_as(&thread, key, asked.text).await?,
        None => app.selvedge.submit(&thread, asked.text).await?,
    }
    Ok((StatusCode::ACCEPTED, Json(json!({"thread_id": thread}))))
}

/// A resumption: a message and higher limits, both optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resume {
    text: Option<String>,
    #[serde(default)]
    raise: Option<Limits>,
}

pub(crate) async fn resume(
    State(app): State<App>,
    Path(thread): Path<String>,
    Body(asked): Body<Resume>,
) -> Result<(StatusCode, Json<Value>)> {
    let thread = app.selvedge.find(&thread).await?;
    let mut input = match asked.text {
        Some(text) => Input::from(text),
        None => Input::nothing(),
    };
    if let Some(limits) = asked.raise {
        input = input.raising(limits);
    }
    app.selvedge.submit_resume(&thread, input).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({"thread_id": thread}))))
}

pub(crate) async fn cancel(State(app): State<App>, Path(thread): Path<String>) -> Result<(StatusCode, Json<Value>)> {
    let thread = app.selvedge.find(&thread).await?;
    Ok(stopped(&thread, app.selvedge.cancel(&thread).await?))
}

pub(crate) async fn kill(State(app): State<App>, Path(thread): Path<String>) -> Result<(StatusCode, Json<Value>)> {
    let thread = app.selvedge.find(&thread).await?;
    Ok(stopped(&thread, app.selvedge.kill(&thread).await?))
}

fn stopped(thread: &ThreadId, stopped: Stopped) -> (StatusCode, Json<Value>) {
    let Stopped { status, pid } = stopped;
    (StatusCode::ACCEPTED, Json(json!({"thread_id": thread, "status": status, "pid": pid})))
}

/// The code of a one-time link.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Session {
    code: String,
}

pub(crate) async fn session(State(app): State<App>, Body(asked): Body<Session>) -> Result<Json<Value>> {
    let token = app.access.begin_session(&asked.code, &*app.ids)?;
    Ok(Json(json!({"token": token, "scope": "admin"})))
}

/// What this server is.
pub(crate) async fn whoami(State(app): State<App>) -> Json<Value> {
    Json(json!({"name": "selvedge", "version": env!("CARGO_PKG_VERSION"), "project": app.name}))
}
