//! Handoffs: how long an execution pauses when a thread whose context is full continues in another one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use selvedge_engine::{Engine, Input};
use selvedge_model::{Cancel, NewThread, ThreadId};
use selvedge_store::Registry;
use selvedge_store_local::Access;

use crate::bare::Bare;
use crate::home::{Home, changesets};
use crate::measure::{Spread, lap, settle, timed};
use crate::moments::{Happened, Moments, RecordingModel, RecordingStore, Who, calls, micros};
use crate::report::{Goal, Report, Unit};
use crate::turns::agent::assigned;
use crate::turns::engine;
use crate::turns::timed::Timed;
use crate::{Outcome, Plan};

/// The length of a model's text in a turn.
const TEXT_BYTES: usize = 4_096;
/// A context that is full after about thirty turns, so that a successor inherits as much as it may by default: 16,000 tokens.
const WINDOW_TOKENS: u64 = 40_000;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let home = Home::make(&folder.join("store"))?;
    let store = Arc::new(Timed::new(home.open(Access::ReadWrite)?));
    let moments = Moments::default();
    let noted = moments.clone();
    let engine = engine(&home, Arc::new(RecordingStore::new(store.clone(), move |what| noted.note(what))))?;
    let turns = if plan.quick { 120 } else { 600 };
    let warm = run(&engine, &store, &moments, turns)?;
    let mut bare = Bare::make(&folder.join("bare"), written(&store, &warm.thread)?)?;
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        let ran = run(&engine, &store, &moments, turns)?;
        let floor = lap(ran.batches_us.len(), || timed(|| bare.append()))?;
        rounds.push((ran, floor));
    }
    let handoffs: Vec<f64> = rounds.iter().flat_map(|(ran, _)| ran.handoffs_us.iter().copied()).collect();
    let what = "a handoff: the turn's end to the successor's first call";
    report.figure("handoff_us", what, Unit::Micros, &Spread::of(&handoffs), Goal::None);
    let median = |figures: &[f64]| Spread::of(figures).median;
    let ratio = Spread::over(&rounds, |(ran, _)| median(&ran.handoffs_us) / median(&ran.turns_us));
    report.figure("handoff_turns", "  ÷ a turn of the same chain", Unit::Times, &ratio, Goal::None);
    let commits: Vec<f64> = rounds.iter().flat_map(|(ran, _)| ran.batches_us.iter().copied()).collect();
    report.figure("handoff_commit_us", "  of that the one batch", Unit::Micros, &Spread::of(&commits), Goal::None);
    let ratio = Spread::over(&rounds, |(ran, floor)| median(&ran.batches_us) / floor.median());
    let what = "  the batch ÷ a bare append + fdatasync of as many bytes";
    report.figure("handoff_commit_ratio", what, Unit::Times, &ratio, Goal::None);
    report.method(
        "handoffs",
        format!(
            "chains of {turns} turns, one call of a pure tool and {TEXT_BYTES} bytes of text each, in a context of {WINDOW_TOKENS} tokens; from the \
             acknowledgement of the turn's last commit to the next model being asked, the new thread's lease, fold and first commit \
             included; a turn is the time between two questions in one thread; bare appends of the bytes that earlier batches wrote, \
             after each chain, ratio of medians per round"
        ),
    );
    Ok(())
}

/// The measurements of one chain.
struct ChainTimes {
    thread: ThreadId,
    handoffs_us: Vec<f64>,
    turns_us: Vec<f64>,
    batches_us: Vec<f64>,
}

/// Runs a chain.
fn run(engine: &Engine, store: &Timed, moments: &Moments, turns: usize) -> Outcome<ChainTimes> {
    let text = "the quick brown fox jumps over the lazy dog; ".repeat(TEXT_BYTES / 45 + 1);
    let model = RecordingModel::new(Who::Itself, &text[..TEXT_BYTES], calls("look", turns), moments);
    let mut work = assigned(Arc::new(model))?;
    work.continuation.window_tokens = WINDOW_TOKENS;
    let thread = engine.create(NewThread::of(work.agent_id.clone()), Vec::new())?;
    settle();
    drop(store.take_batches());
    drop(moments.take());
    engine.send(&thread, Input::text("look around"), &work, &Cancel::new(), &mut |_| {})?;
    let batches_us = store.take_batches();
    let all = moments.take();
    let mut handoffs_us = Vec::new();
    let mut turns_us = Vec::new();
    for (place, moment) in all.iter().enumerate() {
        let asked = all[place + 1..].iter().position(|later| later.0 == Happened::Asked(Who::Itself));
        let Some(asked) = asked.map(|behind| place + 1 + behind) else { break };
        let between = all[place..asked].iter().any(|(what, _)| *what == Happened::HandedOver);
        match moment.0 {
            // The commit before it is the turn's end.
            Happened::HandedOver if place > 0 => handoffs_us.push(micros(&all[place - 1], &all[asked])),
            Happened::Asked(_) if !between => turns_us.push(micros(moment, &all[asked])),
            _ => {}
        }
    }
    match handoffs_us.len() {
        0 => Err("a chain of the bench never handed itself over".into()),
        found if found != batches_us.len() => Err(format!("{found} handoffs, {} batches", batches_us.len()).into()),
        _ => Ok(ChainTimes { thread, handoffs_us, turns_us, batches_us }),
    }
}

/// The bytes that the batches of a chain wrote: the old thread's last changeset and the new one's first.
fn written(store: &Timed, thread: &ThreadId) -> Outcome<Vec<Vec<u8>>> {
    let mut logs = Vec::new();
    for link in store.chain(thread)? {
        let file = store.inner().thread_folder(&link.manifest.thread_id).join("transcript.jsonl");
        logs.push(changesets(&fs::read(file)?));
    }
    let both = logs.windows(2).filter_map(|pair| Some([&pair[0].last()?[..], &pair[1].first()?[..]].concat()));
    Ok(both.collect())
}
