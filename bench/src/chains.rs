//! Chains: how soon another process that waits for a thread wakes up, and the cost of searching a long chain.

use std::io::{BufReader, Write, stdin};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use selvedge_engine::search::{Query, SearchType, chain_search};
use selvedge_engine::wait::wait_threads;
use selvedge_model::event::{Fields, Handoff, Predecessor};
use selvedge_model::{
    AgentId, Batch, Changeset, Event, Expect, Message, NewThread, Part, Reason, Role, RunId, RunMeta, ThreadId,
};
use selvedge_store::{Acquire, Commit, Leases, Logs};
use selvedge_store_local::{Access, LocalStore};
use selvedge_tools::ProcessGroups;
use serde_json::{Value, json};

use crate::home::Home;
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const THREADS: usize = 100;
const EVENTS: usize = 1_000;
/// Time enough for another process to start waiting.
const BEGIN: Duration = Duration::from_millis(40);

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let home = Home::make(&folder.join("store"))?;
    let store = home.open(Access::ReadWrite)?;
    let late = wake(&home, &store, if plan.quick { 50 } else { 400 })?;
    let what = "another process that waits wakes up, after the commit";
    report.figure("wake_up_ms", what, Unit::Millis, &Spread::of(&late), Goal::AtMost(20.0));
    let mut sorted = late;
    sorted.sort_by(f64::total_cmp);
    let slow = sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default();
    report.figure("wake_up_p99_ms", "  the slowest of a hundred", Unit::Millis, &Spread::of(&[slow]), Goal::None);
    let threads = if plan.quick { THREADS / 10 } else { THREADS };
    let root = long_chain(&store, threads)?;
    for (key, name, search_type, query) in [
        ("chain_search_text_ms", "by input", SearchType::Text, "needle in the hay"),
        ("chain_search_regex_ms", "by a pattern", SearchType::Regex, r"needle\s+in.*hay"),
    ] {
        let query = Query { query: query.to_owned(), search_type, is_exact: false, max_results: 1_000 };
        let mut took = Vec::new();
        for _ in 0..plan.rounds {
            let start = Instant::now();
            let found = chain_search(&store, store.trust(), &root, &query)?;
            took.push(start.elapsed().as_secs_f64() * 1e3);
            assert_eq!(found.results.len(), threads, "one in each thread");
        }
        let what = format!("{threads} threads of {EVENTS} events searched {name}");
        report.figure(key, &what, Unit::Millis, &Spread::of(&took), Goal::None);
    }
    report.method(
        "chains",
        format!("a run's last commit acknowledged to `wait` returning in another process, which waited {BEGIN:?} before; a chain with one match in each thread, warm page cache"),
    );
    Ok(store.close()?)
}

/// How many milliseconds after the end of a run was acknowledged another process noticed it.
fn wake(home: &Home, store: &LocalStore, times: usize) -> Outcome<Vec<f64>> {
    let mut waiter = child::command("waiter", home.folder(), &[])?.stdin(Stdio::piped()).spawn()?;
    let mut output = BufReader::new(waiter.stdout.take().ok_or("a process of the bench has no output")?);
    let mut input = waiter.stdin.take().ok_or("a process of the bench has no input")?;
    child::read_line(&mut output)?;
    let agent = AgentId::new("scribe")?;
    let mut late = Vec::new();
    for number in 0..times {
        let thread = ThreadId::new(format!("woken-{number:012x}"))?;
        store.commit(Batch::of(birth(&thread, NewThread::of(agent.clone()))))?;
        let lease = store.acquire(&thread, Acquire::default())?;
        let meta = RunMeta::started(agent.clone(), "user");
        let run = |meta, reason| -> Outcome<Batch> {
            let changeset =
                Changeset { run_id: Some(RunId::new("r1")?), run_meta: Some(meta), ..Changeset::empty(reason) };
            Ok(Batch::of(Part::new(thread.clone(), Expect::Any, changeset).under(lease.epoch)))
        };
        store.commit(run(meta.clone(), Reason::UserMessage)?)?;
        writeln!(input, "{thread}")?;
        input.flush()?;
        thread::sleep(BEGIN);
        store.commit(run(meta.finished("natural"), Reason::RunFinished)?)?;
        let committed = now();
        let answer: Value = serde_json::from_str(&child::read_line(&mut output)?)?;
        late.push((answer["at"].as_f64().unwrap_or_default() - committed).max(0.0));
        store.release(&lease)?;
    }
    drop(input);
    waiter.wait()?;
    Ok(late)
}

/// The other process: waits for each thread that it is sent, and reports when it ended.
pub(crate) fn waiter(folder: &Path) -> Outcome<()> {
    let store = Home::at(folder)?.open(Access::ReadOnly)?;
    child::say(&json!({"ready": true}))?;
    let mut input = BufReader::new(stdin());
    while let Ok(thread) = ThreadId::new(child::read_line(&mut input)?) {
        let waited = wait_threads(&store, store.trust(), &ProcessGroups, &[thread], Duration::from_secs(60))?;
        child::say(&json!({"at": now(), "success": waited.success}))?;
    }
    Ok(())
}

/// Milliseconds on a clock that all processes share.
pub(crate) fn now() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

fn birth(thread: &ThreadId, new: NewThread) -> Part {
    Part::new(thread.clone(), Expect::Absent, Changeset::creating(new))
}

/// A chain of threads with this many events each, one of which is found.
fn long_chain(store: &LocalStore, threads: usize) -> Outcome<ThreadId> {
    let agent = AgentId::new("scribe")?;
    let name = |number: usize| ThreadId::new(format!("link-{number:012x}"));
    store.commit(Batch::of(birth(&name(0)?, NewThread::of(agent.clone()))))?;
    for number in 0..threads {
        let thread = name(number)?;
        // The creation, its checkpoint, the run's end, the handoff and two more checkpoints are events, too.
        let message = |index: usize| {
            if index == EVENTS / 2 {
                return Message::text(Role::User, "the needle in the haystack");
            }
            Message::text(Role::User, format!("message {index}: {}", "the quick brown fox jumps ".repeat(8)))
        };
        let messages = (0..EVENTS - 6).map(message).collect();
        let said = Changeset { messages, ..Changeset::empty(Reason::UserMessage) };
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, said)))?;
        if number + 1 == threads {
            continue;
        }
        let head = store.head(&thread)?;
        let next = name(number + 1)?;
        let handoff = Handoff {
            new_thread_id: next.clone(),
            reason: None,
            directive: None,
            trailing_turns: 0,
            details: Fields::new(),
        };
        let ended = Changeset {
            run_id: Some(RunId::new("r1")?),
            run_meta: Some(RunMeta::started(agent.clone(), "user").finished("continued")),
            events: vec![Event::ThreadHandoff(handoff)],
            ..Changeset::empty(Reason::RunFinished)
        };
        let started = Changeset {
            run_id: Some(RunId::new("r1")?),
            run_meta: Some(RunMeta::started(agent.clone(), "user")),
            ..Changeset::empty(Reason::UserMessage)
        };
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, started)))?;
        let before =
            Predecessor { thread_id: thread.clone(), version: head.version + 1, hash: store.head(&thread)?.hash };
        let new =
            NewThread { continuation_of: Some(before), chain_root_id: Some(name(0)?), ..NewThread::of(agent.clone()) };
        let mut both = Batch::of(Part::new(thread, Expect::Any, ended));
        both.parts.push(birth(&next, new));
        store.commit(both)?;
    }
    Ok(name(0)?)
}
