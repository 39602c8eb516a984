//! Chains of threads and the trees below them.
//!
//! Only reads. Every walk ends, whatever is on disk. A link that leads in a circle, or to a thread that does not exist, ends a chain; a deleted
//! thread in the middle does not, because its tombstone names its successor.

use std::collections::HashSet;

use selvedge_model::error::{Classify, Kind};
use selvedge_model::event::{Handoff, HandoffReason};
use selvedge_model::limits::Cost;
use selvedge_model::{AgentId, Event, Manifest, Role, Run, Status, ThreadId};
use selvedge_store::load::last_lines;
use selvedge_store::{Error as StoreError, Store, Summary, Tombstone};
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::outcome::{Outcome, is_incomplete};
use crate::thread_state::ThreadState;

/// The most links of a chain that are followed: more than any configuration allows.
const LINKS_MAX: usize = 10_000;
/// The most threads of one tree.
const THREADS_MAX: usize = 10_000;
/// How many generations of a tree are shown.
const GENERATIONS_MAX: usize = 64;
/// How many lines at the end of a log are searched for how the thread was continued.
const LAST_LINES: usize = 32;

/// The value of `Continued::how` for a thread that handed itself off.
const HANDOFF: &str = "handoff";

/// The summary of a thread, and whether it was deleted.
type Known = Option<(Summary, bool)>;

/// Where a chain ends.
#[derive(Clone, Debug)]
pub(crate) struct ChainEnd {
    /// The last thread that could be reached.
    pub(crate) thread: ThreadId,
    /// Its summary, if it exists.
    pub(crate) summary: Option<Summary>,
    pub(crate) is_deleted: bool,
    /// Why the chain can't be followed further, although it was continued.
    pub(crate) why: Option<String>,
}

/// One thread of a chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Its state by the registry; the cost is its own.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Its agent.
    pub agent_id: AgentId,
    /// How it was continued in the next one.
    pub continued: Option<Continued>,
}

/// How a thread was continued in a successor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Continued {
    /// `handoff` if it handed itself off, `resume` if it had ended and was resumed.
    pub how: &'static str,
    /// Why, if it handed itself off.
    pub reason: Option<HandoffReason>,
    /// The successor.
    pub new_thread_id: ThreadId,
    /// How many turns the successor started with.
    pub trailing_turns: u64,
    /// Everything else that was recorded.
    pub details: Value,
}

/// A chain, from its root to its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chain {
    /// Always true: a thread alone is a chain of one.
    pub success: bool,
    /// How many threads it has.
    pub chain_length: usize,
    /// Its threads, root first.
    pub chain: Vec<Link>,
}

/// A chain and the children that it spawned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tree {
    /// The state of the end of the chain, by the registry; the cost is that of the chain and all below it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The chain, root first.
    pub chain: Vec<Link>,
    /// The children, oldest first.
    pub children: Vec<Tree>,
    /// Whether there is more below than is shown.
    pub truncated: bool,
}

impl Tree {
    /// Whether any thread in it is running.
    pub fn is_active(&self) -> bool {
        self.chain.iter().any(|link| link.outcome.status == Status::Running)
            || self.children.iter().any(Self::is_active)
    }
}

/// The chain of a thread.
pub fn get_chain(store: &dyn Store, thread: &ThreadId) -> Result<Chain> {
    let chain = links(store, thread)?;
    Ok(Chain { success: true, chain_length: chain.len(), chain })
}

/// The chain of a thread and everything below it.
pub fn get_tree(store: &dyn Store, thread: &ThreadId) -> Result<Tree> {
    grow(store, links(store, thread)?, &mut HashSet::new(), 0)
}

/// The threads of a chain that are still there, root first.
pub(crate) fn threads(store: &dyn Store, thread: &ThreadId) -> Result<Vec<ThreadId>> {
    let found = walk(store, thread)?;
    Ok(found.into_iter().filter(|(_, is_deleted)| !is_deleted).map(|(link, _)| link.manifest.thread_id).collect())
}

/// What a whole chain used.
pub(crate) fn cost(store: &dyn Store, thread: &ThreadId) -> Result<Cost> {
    let mut total = Cost::default();
    for (link, _) in walk(store, thread)? {
        total.add(&link.manifest.cost);
    }
    Ok(total)
}

/// Where the chain of a thread ends now.
pub(crate) fn end(store: &dyn Store, thread: &ThreadId) -> Result<ChainEnd> {
    let mut at = thread.clone();
    let mut seen = HashSet::new();
    loop {
        seen.insert(at.clone());
        let Some((summary, is_deleted)) = known(store, &at)? else {
            return Ok(ChainEnd { thread: at, summary: None, is_deleted: false, why: None });
        };
        let why = match next(&summary.manifest) {
            Some(next) if seen.contains(&next) => format!("its chain leads in a circle, back to `{next}`"),
            Some(_) if seen.len() >= LINKS_MAX => format!("its chain has more than {LINKS_MAX} threads"),
            Some(next) if known(store, &next)?.is_none() => {
                format!("it was continued as `{next}`, which does not exist")
            }
            Some(next) => {
                at = next;
                continue;
            }
            None => return Ok(ChainEnd { thread: at, summary: Some(summary), is_deleted, why: None }),
        };
        return Ok(ChainEnd { thread: at, summary: Some(summary), is_deleted, why: Some(why) });
    }
}

/// The successor of a thread that is continued.
pub(crate) fn next(manifest: &Manifest) -> Option<ThreadId> {
    manifest.continuation_thread_id.clone().filter(|_| manifest.status == Status::Continued)
}

/// The summary of a thread, also if it was deleted.
pub(crate) fn known(store: &dyn Store, thread: &ThreadId) -> selvedge_store::Result<Known> {
    match store.get(thread) {
        Ok(summary) => Ok(Some((summary, false))),
        Err(StoreError::Deleted(_)) => Ok(store.tombstone(thread)?.map(|tombstone| {
            let Tombstone { manifest, head, .. } = tombstone;
            (Summary { manifest, version: head.version, holder: None }, true)
        })),
        Err(StoreError::NoThread(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The summaries of a thread's whole chain, root first, including deleted threads.
pub(crate) fn walk(store: &dyn Store, thread: &ThreadId) -> selvedge_store::Result<Vec<(Summary, bool)>> {
    let Some(here) = known(store, thread)? else { return Ok(Vec::new()) };
    let mut seen = HashSet::from([thread.clone()]);
    let mut follow =
        |mut at: Option<ThreadId>, step: fn(&Manifest) -> Option<ThreadId>| -> selvedge_store::Result<Vec<_>> {
            let mut found = Vec::new();
            while let Some(id) = at.take().filter(|id| found.len() < LINKS_MAX && seen.insert(id.clone())) {
                let Some(link) = known(store, &id)? else { break };
                at = step(&link.0.manifest);
                found.push(link);
            }
            Ok(found)
        };
    let mut chain = follow(here.0.manifest.continuation_of.clone(), |manifest| manifest.continuation_of.clone())?;
    chain.reverse();
    let later = follow(next(&here.0.manifest), next)?;
    chain.push(here);
    chain.extend(later);
    Ok(chain)
}

fn links(store: &dyn Store, thread: &ThreadId) -> Result<Vec<Link>> {
    let found = walk(store, thread)?;
    if found.is_empty() {
        return Err(StoreError::NoThread(thread.to_string()).into());
    }
    found.into_iter().map(|(summary, is_deleted)| link(store, summary, is_deleted)).collect()
}

fn link(store: &dyn Store, summary: Summary, is_deleted: bool) -> Result<Link> {
    let status = if is_deleted { ThreadState::Deleted } else { ThreadState::from(&summary) };
    let Summary { manifest, holder, .. } = summary;
    let holder = holder.filter(|_| manifest.status == Status::Running);
    let (continued, _) = match status {
        ThreadState::Is(Status::Continued) => unless_damaged(how_continued(store, &manifest.thread_id))?,
        _ => (None, None),
    };
    let incomplete = is_incomplete(store, &manifest)?;
    let outcome = match status {
        ThreadState::Deleted => Outcome::of_manifest(&manifest, status),
        _ => match store.runs(&manifest.thread_id)?.pop() {
            Some(run) => {
                let (text, why) = unless_damaged(last_text(store, &run))?;
                Outcome::of_run(&manifest, status, &run.run_id, Some(&run.meta), text).because(why)
            }
            None => Outcome::of_manifest(&manifest, status),
        },
    };
    let outcome = Outcome { holder, incomplete, ..outcome };
    Ok(Link { outcome, agent_id: manifest.agent_id, continued })
}

/// What was read from a log; nothing, and why, if the log is damaged. The other threads are shown all the same.
fn unless_damaged<T>(read: Result<Option<T>>) -> Result<(Option<T>, Option<String>)> {
    match read {
        Ok(read) => Ok((read, None)),
        Err(Error::Store(error)) if error.kind() == Kind::Integrity => Ok((None, Some(error.to_string()))),
        Err(error) => Err(error),
    }
}

/// Whether a thread that is continued handed itself off.
pub(crate) fn is_handed_off(store: &dyn Store, thread: &ThreadId) -> Result<bool> {
    match how_continued(store, thread) {
        // It was deleted just now; its tombstone names the successor.
        Err(Error::Store(StoreError::Deleted(_) | StoreError::NoThread(_))) => Ok(false),
        how => Ok(how?.is_some_and(|how| how.how == HANDOFF)),
    }
}

/// The last text of the model in a run, if it is near the end of the log.
fn last_text(store: &dyn Store, run: &Run) -> Result<Option<String>> {
    let last = last_lines(store, &run.thread_id, LAST_LINES)?;
    let said = last.into_iter().rev().filter_map(|line| match line.event {
        Event::Message(message) if message.role == Role::Assistant => Some(message),
        _ => None,
    });
    let mut of_run = said.filter(|message| message.run_id.as_ref().is_none_or(|id| *id == run.run_id));
    Ok(of_run.find_map(|message| Some(message.plain_text()).filter(|text| !text.is_empty())))
}

/// How a thread was continued, by the end of its log.
fn how_continued(store: &dyn Store, thread: &ThreadId) -> Result<Option<Continued>> {
    let last = last_lines(store, thread, LAST_LINES)?;
    let continued = |how, handoff: Handoff| Continued {
        how,
        reason: handoff.reason,
        new_thread_id: handoff.new_thread_id,
        trailing_turns: handoff.trailing_turns,
        details: Value::Object(handoff.details),
    };
    Ok(last.into_iter().rev().find_map(|line| match line.event {
        Event::ThreadHandoff(handoff) => Some(continued(HANDOFF, handoff)),
        Event::ThreadResumed(handoff) => Some(continued("resume", handoff)),
        _ => None,
    }))
}

/// The tree below a chain. No thread is shown twice, so that a circle of children ends, too.
fn grow(store: &dyn Store, chain: Vec<Link>, seen: &mut HashSet<ThreadId>, generation: usize) -> Result<Tree> {
    seen.extend(chain.iter().map(|link| link.outcome.thread_id.clone()));
    let mut cost = Cost::default();
    for link in &chain {
        cost.add(&link.outcome.cost);
    }
    let mut children = Vec::new();
    let mut truncated = false;
    for parent in chain.iter().map(|link| &link.outcome).filter(|link| link.status != ThreadState::Deleted) {
        for child in store.children(&parent.thread_id)? {
            if seen.contains(&child.manifest.thread_id) {
                continue;
            }
            if seen.len() >= THREADS_MAX || generation >= GENERATIONS_MAX {
                truncated = true;
                break;
            }
            let below = links(store, &child.manifest.thread_id)?;
            let below = below.into_iter().filter(|link| !seen.contains(&link.outcome.thread_id)).collect();
            let child = grow(store, below, seen, generation + 1)?;
            truncated |= child.truncated;
            cost.add(&child.outcome.cost);
            children.push(child);
        }
    }
    // A chain has at least the thread that was asked for.
    let Some(end) = chain.last() else { return Err(StoreError::NoThread(String::new()).into()) };
    let incomplete = end.outcome.incomplete || children.iter().any(|child| child.outcome.incomplete);
    Ok(Tree { outcome: Outcome { cost, incomplete, ..end.outcome.clone() }, chain, children, truncated })
}
