//! `selvedge thread show`: the details of a thread, without its messages.

use std::path::PathBuf;

use selvedge::Outcome;
use selvedge::needs::{self, Need};
use selvedge_engine::ledger::audit::{self, Cause};
use selvedge_engine::outcome::of_thread;
use selvedge_engine::thread_state::ThreadState;
use selvedge_legacy::nova::Origin;
use selvedge_log::Head;
use selvedge_model::limits::Limits;
use selvedge_model::{Posted, Run, ThreadId};
use selvedge_store::{Backend, Summary};
use selvedge_store_local::Access;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::imported;
use crate::output::{BOLD, Output, paint};
use crate::text::{clean, count, grouped, incomplete, key, local, spent};

/// Show the details of a thread
///
/// A thread whose process died is `stalled`; the command that resumes it is shown. Writes nothing.
///
/// JSON: {"thread_id", "agent_id", "status", "version", "title", "created_at", "updated_at", "cost", …, "head":{"version", "lines",
/// "bytes", "hash", "epoch", "signer", …}, "folder", "chain":[ID…], "children":[ID…], "runs":[…], "requests":[…], "incomplete" (true
/// if postings of its account are missing), "incomplete_cause" ("not_in_store" or "lost"), "imported":{"format", "source", "at", "witnessed"}, "needs":{"reason", "code", "why",
/// "commands":[TEXT…], …}, "outcome":{…} (as the last object of `selvedge run`)}. Empty fields are left out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
}

#[derive(Serialize)]
struct ThreadDetails {
    #[serde(flatten)]
    summary: Summary,
    head: Head,
    #[serde(serialize_with = "crate::text::in_json")]
    folder: PathBuf,
    chain: Vec<ThreadId>,
    children: Vec<ThreadId>,
    runs: Vec<Run>,
    requests: Vec<Posted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imported: Option<Origin>,
    /// Whether logs of its family are missing, or were lost.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    incomplete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete_cause: Option<Cause>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    needs: Option<Need>,
    /// Its outcome, from its verified log; absent if that can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    /// Replaces the status of the registry: a thread whose process died is stalled.
    #[serde(skip)]
    state: ThreadState,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    let shown = look(&thread, &*store)?;
    if context.output.is_json() {
        let mut record = serde_json::to_value(&shown).unwrap_or_default();
        record["status"] = serde_json::json!(shown.state);
        return context.output.record(&record);
    }
    let key = key(&shown.head.signer, store.trust());
    show(&shown, &key, context.output)
}

fn look(thread: &ThreadId, store: &dyn Backend) -> Result<ThreadDetails> {
    let ids = |summaries: Vec<Summary>| summaries.into_iter().map(|summary| summary.manifest.thread_id).collect();
    let summary = store.get(thread)?;
    let account = store.account(&summary.manifest.chain_root_id)?;
    let incomplete_cause = account.map(|account| audit::cause(store, &account)).transpose()?.flatten();
    Ok(ThreadDetails {
        outcome: of_thread(store, store.trust(), &summary).ok(),
        incomplete: incomplete_cause.is_some(),
        incomplete_cause,
        state: ThreadState::from(&summary),
        needs: needs::need_of(store, &summary),
        summary,
        head: store.head(thread)?,
        folder: store.location(thread),
        chain: ids(store.chain(thread)?),
        children: ids(store.children(thread)?),
        runs: store.runs(thread)?,
        requests: store.pending(thread)?.into_iter().map(|waiting| waiting.posted).collect(),
        imported: imported::find(store, thread),
    })
}

fn show(shown: &ThreadDetails, key: &str, output: &Output) -> Result<()> {
    let Summary { manifest, version, .. } = &shown.summary;
    let optional = |value: Option<&str>| value.map(clean);
    let listed = |ids: &[ThreadId]| {
        (!ids.is_empty()).then(|| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    };
    let in_chain = (shown.chain.len() > 1).then(|| listed(&shown.chain)).flatten();
    let head = &shown.head;
    let runs = shown.runs.len() as u64;
    let rows = [
        ("thread", Some(paint(BOLD, &manifest.thread_id))),
        ("title", optional(manifest.title.as_deref())),
        ("agent", Some(manifest.agent_id.to_string())),
        ("directive", manifest.directive.as_ref().map(ToString::to_string)),
        ("task", optional(manifest.task_id.as_ref().map(|task| task.as_str()))),
        ("status", Some(shown.state.to_string())),
        ("next", shown.needs.as_ref().and_then(next)),
        ("limits", manifest.limits.as_ref().map(limits)),
        ("version", Some(version.to_string())),
        ("log", Some(format!("{}, {}, signed by {key}", count(head.lines, "line"), count(head.bytes, "byte")))),
        ("created", Some(local(manifest.created_at))),
        ("updated", Some(local(manifest.updated_at))),
        ("runs", (runs > 0).then(|| runs.to_string())),
        ("spent", manifest.cost.has_spent().then(|| spent(&manifest.cost))),
        ("budget", shown.incomplete_cause.map(|cause| incomplete(cause).to_owned())),
        ("parent", manifest.parent_id.as_ref().map(ToString::to_string)),
        ("children", listed(&shown.children)),
        ("chain", in_chain),
        ("requests", (!shown.requests.is_empty()).then(|| format!("{} pending", shown.requests.len()))),
        ("origin", shown.imported.as_ref().map(imported::sentence)),
        ("folder", Some(shown.folder.display().to_string())),
    ];
    let lines = rows.into_iter().filter_map(|(name, value)| value.map(|value| format!("{name:<10}{value}")));
    output.text(lines.collect::<Vec<_>>().join("\n"))
}

/// The next command. For a call whose outcome is unknown that is the inbox: how it is resolved depends on what is known of it.
fn next(need: &Need) -> Option<String> {
    if need.is_unknown_call() {
        return Some(format!("`selvedge inbox {}`", need.thread_id));
    }
    need.commands.first().map(|command| format!("`{command}`"))
}

/// Limits, on one line.
fn limits(limits: &Limits) -> String {
    let number = |name: &str, most: Option<u64>| most.map(|most| format!("{name} {}", grouped(most)));
    let limits_text = [
        number("turns", limits.turns),
        number("tokens", limits.tokens),
        limits.spend.map(|most| format!("spend ${most}")),
        number("spawns", limits.spawns),
        number("depth", limits.depth),
        number("duration", limits.duration_seconds).map(|most| format!("{most} s")),
    ];
    limits_text.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
