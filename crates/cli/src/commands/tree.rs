//! `selvedge tree`: a chain and its children.

use std::time::Duration;

use selvedge::needs::{self, Need};
use selvedge_engine::chain::{Link, Tree, get_tree};
use selvedge_engine::ledger::audit::{self, Cause};
use selvedge_engine::thread_state::ThreadState;
use selvedge_store::Backend;
use selvedge_store_local::Access;
use serde_json::Value;

use crate::commands::wait::painted_state;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::needs::Shown as _;
use crate::output::{BOLD, DIM, WARN, paint};
use crate::text::{count, spent};

/// How long to wait for a commit before checking stdout, and whether running processes are alive.
const POLL: Duration = Duration::from_millis(500);

/// Show a thread, its chain and its children as a tree
///
/// Each line is a chain: its threads from root to end, the status of the end, and what the chain and its children used (`incomplete`
/// if logs of its family are missing or were lost). A thread whose process died is `stalled`. Below a stalled thread, and below a child that waits
/// for a person, is the command that continues it: the thread keeps its reserved money until then. Below a thread that waits for a call whose
/// outcome is unknown are the call, what is known about it, and the commands that resolve it. Writes nothing.
///
/// JSON: as the last object of `selvedge run`, for the end of the chain, without "result"; with "cost" of the chain and its children,
/// and {"chain":[…], "children":[…], "truncated", "unknown_calls":[…]}: "chain" as of `selvedge chain`, "children" like this object,
/// "unknown_calls" as of `selvedge budget`. With --follow, one object for each change.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// Show the tree again whenever it changes, until nothing in it is running
    #[arg(short, long)]
    follow: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    let look = || get_tree(&*store, &thread).map_err(|error| Failure::of(&error));
    // Read before the tree: a commit in between is seen now or in the next round, never missed.
    let mut position = store.position()?;
    let mut tree = look()?;
    show(&tree, &*store, context)?;
    while args.follow && tree.is_active() && !context.output.is_closed() {
        store.wait(position, POLL)?;
        position = store.position()?;
        let now = look()?;
        if now != tree {
            tree = now;
            if !context.output.is_json() {
                context.output.text("")?;
            }
            show(&tree, &*store, context)?;
        }
    }
    Ok(())
}

fn show(tree: &Tree, store: &dyn Backend, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        return context.output.record(&in_json(tree, store));
    }
    let mut lines = vec![line(tree, store)];
    if tree.outcome.status == ThreadState::Stalled {
        lines.extend(need(tree, store).map(|need| paint(WARN, need.sentence())));
    }
    lines.extend(unknown_calls(tree, store));
    branch(tree, "", store, &mut lines);
    context.output.text(lines.join("\n"))
}

fn branch(tree: &Tree, before: &str, store: &dyn Backend, lines: &mut Vec<String>) {
    let last = tree.children.len().saturating_sub(1);
    for (number, child) in tree.children.iter().enumerate() {
        let (own, below) = if number == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        lines.push(format!("{before}{}{}", paint(DIM, own), line(child, store)));
        lines.extend(need(child, store).map(|need| format!("{before}{below}{}", paint(WARN, need.sentence()))));
        lines.extend(unknown_calls(child, store).into_iter().map(|line| format!("{before}{below}{line}")));
        branch(child, &format!("{before}{below}"), store, lines);
    }
    if tree.truncated && tree.children.is_empty() {
        lines.push(format!("{before}{}", paint(DIM, "└─ …")));
    }
}

/// What a child waits for, if it waits for a person.
fn need(child: &Tree, store: &dyn Backend) -> Option<Need> {
    needs::need_of(store, &store.get(&child.outcome.thread_id).ok()?)
}

/// The calls of a thread whose outcome is unknown.
fn unknown_needs(tree: &Tree, store: &dyn Backend) -> Vec<Need> {
    let Ok(thread) = store.get(&tree.outcome.thread_id) else { return Vec::new() };
    needs::unknown_calls(store, store.trust(), &thread)
}

/// The same, line by line.
fn unknown_calls(tree: &Tree, store: &dyn Backend) -> Vec<String> {
    unknown_needs(tree, store).iter().flat_map(Need::unknown_call).map(|line| paint(WARN, line)).collect()
}

/// A tree as programs read it: each chain with the calls of its end whose outcome is unknown.
fn in_json(tree: &Tree, store: &dyn Backend) -> Value {
    let mut record = serde_json::to_value(tree).unwrap_or_default();
    record["children"] = tree.children.iter().map(|child| in_json(child, store)).collect();
    record["unknown_calls"] = unknown_needs(tree, store).iter().map(Need::unknown_call_json).collect();
    record
}

fn line(tree: &Tree, store: &dyn Backend) -> String {
    let ids: Vec<String> = tree.chain.iter().map(|link: &Link| link.outcome.thread_id.to_string()).collect();
    let (end, earlier) = ids.split_last().map_or(("", &[][..]), |(end, earlier)| (end.as_str(), earlier));
    let earlier: String = earlier.iter().map(|id| format!("{id} → ")).collect();
    let missing = match incomplete_cause(tree, store) {
        Some(Cause::NotInStore) => ", incomplete: logs are not in this store",
        Some(Cause::Lost) => ", incomplete: postings were lost",
        None => "",
    };
    let used = format!("{}, {}{missing}", count(tree.outcome.cost.turns, "turn"), spent(&tree.outcome.cost));
    format!("{}{} {} {}", paint(DIM, earlier), paint(BOLD, end), painted_state(tree.outcome.status), paint(DIM, used))
}

/// Why what a tree used is not wholly known. Either the account of its chain or that of a chain below it is incomplete.
fn incomplete_cause(tree: &Tree, store: &dyn Backend) -> Option<Cause> {
    if !tree.outcome.incomplete {
        return None;
    }
    let root = tree.chain.first().map(|link| &link.outcome.thread_id)?;
    let account = store.account(root).ok().flatten();
    let own = account.and_then(|account| audit::cause(store, &account).ok().flatten());
    let below = || tree.children.iter().find_map(|child| incomplete_cause(child, store));
    Some(own.or_else(below).unwrap_or(Cause::NotInStore))
}
