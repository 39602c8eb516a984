//! `selvedge store status`: who works on a store, and what waits.

use selvedge_model::{OwnerId, ThreadId, Timestamp};
use selvedge_store::{Backend, Filter};
use selvedge_store_local::Access;
use serde::Serialize;
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Result;
use crate::text::{clean, count, local};

/// How many threads and requests are looked at at once.
const PAGE: usize = 1000;

/// Show the leases of a store, what waits in it, and its replication
///
/// Lists the threads that a live process or worker holds, the leases of dead ones, which the next process takes over, and how many requests
/// wait, with the oldest of them. On PostgreSQL also the standbys, and whether a commit waits for one.
///
/// JSON: {"store_id", "store", "threads", "leases":[{"thread_id", "owner"}], "expired":[{"thread_id", "owner"}],
/// "requests":{"waiting", "oldest":{"thread_id", "request_id", "kind", "posted_at"}|null}, "replication":{…}|null}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct Held {
    thread_id: ThreadId,
    owner: OwnerId,
}

#[derive(Serialize)]
struct Oldest {
    thread_id: ThreadId,
    request_id: String,
    kind: &'static str,
    posted_at: Timestamp,
}

#[derive(Serialize)]
struct Requests {
    waiting: u64,
    oldest: Option<Oldest>,
}

#[derive(Serialize)]
struct Status {
    store_id: String,
    store: String,
    threads: u64,
    leases: Vec<Held>,
    expired: Vec<Held>,
    requests: Requests,
    replication: Value,
}

pub(crate) fn run(context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let (threads, leases) = leases(&*store)?;
    let expired = store.expired()?.into_iter().map(|lease| Held { thread_id: lease.thread, owner: lease.owner });
    let status = Status {
        store_id: store.store_id()?,
        store: place(context)?,
        threads,
        leases,
        expired: expired.collect(),
        requests: requests(&*store)?,
        replication: replication(context)?,
    };
    if context.output.is_json() { context.output.record(&status) } else { show(&status, context) }
}

#[cfg(feature = "postgres")]
fn place(context: &Context<'_>) -> Result<String> {
    match context.address() {
        Some(address) => Ok(selvedge_store_postgres::shown(address)),
        None => Ok(context.project()?.display().to_string()),
    }
}

#[cfg(not(feature = "postgres"))]
fn place(context: &Context<'_>) -> Result<String> {
    Ok(context.project()?.display().to_string())
}

/// How many threads there are, and those with a live holder.
fn leases(store: &dyn Backend) -> Result<(u64, Vec<Held>)> {
    let mut threads = 0;
    let mut held = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        threads += page.items.len() as u64;
        for one in page.items {
            held.extend(one.holder.map(|owner| Held { thread_id: one.manifest.thread_id, owner }));
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok((threads, held));
        }
    }
}

fn requests(store: &dyn Backend) -> Result<Requests> {
    let mut waiting = 0;
    let mut oldest = None;
    let mut after = 0;
    loop {
        let page = store.arrivals(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(Requests { waiting, oldest }) };
        after = last.number;
        waiting += page.len() as u64;
        if oldest.is_none()
            && let Some(first) = page.first()
        {
            let found = store.pending(&first.thread)?.into_iter().next();
            oldest = found.map(|found| Oldest {
                thread_id: first.thread.clone(),
                request_id: found.posted.id.to_string(),
                kind: found.posted.request.kind().as_str(),
                posted_at: found.posted.at,
            });
        }
    }
}

#[cfg(feature = "postgres")]
fn replication(context: &Context<'_>) -> Result<Value> {
    let Some(address) = context.address() else { return Ok(Value::Null) };
    let found = selvedge_store_postgres::replication(address, std::env::var("PGPASSWORD").ok().as_deref())?;
    let standbys =
        found.standbys.iter().map(|(name, state, lag)| json!({"name": name, "state": state, "bytes_behind": lag}));
    Ok(json!({"commits_wait_for": found.waits_for, "standbys": standbys.collect::<Vec<_>>()}))
}

#[cfg(not(feature = "postgres"))]
fn replication(_: &Context<'_>) -> Result<Value> {
    Ok(json!(null))
}

fn show(status: &Status, context: &Context<'_>) -> Result<()> {
    let output = context.output;
    output.text(format!("{}: {}", status.store, count(status.threads, "thread")))?;
    for held in &status.leases {
        output.text(format!("leased: {} to {}", held.thread_id, clean(&held.owner.in_words())))?;
    }
    for held in &status.expired {
        output.text(format!("expired: {} of {}, which is dead", held.thread_id, clean(&held.owner.in_words())))?;
    }
    output.text(format!("{} waiting", count(status.requests.waiting, "request")))?;
    if let Some(oldest) = &status.requests.oldest {
        output.text(format!("oldest: {} to {} since {}", oldest.kind, oldest.thread_id, local(oldest.posted_at)))?;
    }
    if let Some(waits_for) = status.replication["commits_wait_for"].as_str() {
        let standbys = status.replication["standbys"].as_array().map_or(0, Vec::len);
        let waits = if waits_for.is_empty() { "no standby" } else { waits_for };
        output.text(format!("{}; a commit waits for {}", count(standbys as u64, "standby"), clean(waits)))?;
    }
    Ok(())
}
