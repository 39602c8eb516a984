//! Whole turns through the engine: a scripted model that calls one tool of this process in every turn, each turn two durable commits.
//! Measured in a process of its own.

pub(crate) mod agent;
mod hooks;
pub(crate) mod timed;

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use selvedge_engine::snapshot::Keeper;
use selvedge_engine::{Engine, Input, Options, Redactor, RunConfig};
use selvedge_model::scope::Scopes;
use selvedge_model::{AgentId, Cancel, NewThread, ThreadId};
use selvedge_store::Store;
use selvedge_store_local::Access;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_tools::ProcessGroups;
use serde_json::{Value, json};

use crate::home::Home;
use crate::measure::{Spread, in_turns, settle};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};
use agent::CountingModel;
use timed::Timed;

/// The number of threads that the goal is about.
const THREADS: usize = 64;
const EARLY_TURN: usize = 50;
/// The number of turns of a window.
const WINDOW_TURNS: usize = 100;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (rounds, turns) = if plan.quick { ("3", "20") } else { ("7", "50") };
    for threads in [1, THREADS] {
        let store = folder.join(format!("store-{threads}"));
        let command = child::command("engine-turns", &store, &[&threads.to_string(), rounds, turns])?;
        add_figures(report, threads, &child::run(command)?.0);
    }
    let late = plan.late_turn.to_string();
    let command = child::command("late-turn", &folder.join("late"), &[&late, rounds])?;
    let (found, _) = child::run(command)?;
    let ratios: Vec<f64> = found["ratios"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    let what = format!("turn {late} ÷ turn {EARLY_TURN} of one thread, median time");
    report.figure("turns_late_ratio", &what, Unit::Times, &Spread::of(&ratios), Goal::AtMost(1.2));
    hooks::measure(&folder.join("hooks"), if plan.quick { 3 } else { 11 }, report)?;
    report.method(
        "turns",
        format!(
            "the engine on a local store; 1 and {THREADS} OS threads, each a thread of its own with one run of {turns} turns per round, {rounds} rounds; \
             in every turn a scripted model asks for one pure tool in the same process, and answer and result are a durable commit each; \
             time in the store is measured around each of its calls, time in the model around each answer, and the engine's own is the rest; \
             the late turn in windows of {WINDOW_TURNS} turns, in turns with windows of fresh threads, ratio per round, with a model that does not \
             look at the conversation"
        ),
    );
    Ok(())
}

fn add_figures(report: &mut Report, threads: usize, found: &Value) {
    let all =
        |key: &str| -> Vec<f64> { found[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect() };
    let what = format!("durable turns of {threads} {}", if threads == 1 { "thread" } else { "threads" });
    let goal = if threads == THREADS { Goal::AtLeast(3_000.0) } else { Goal::None };
    let mut row = |name: &str, what: &str, unit: Unit, goal: Goal| {
        report.figure(&format!("turns_{threads}_{name}"), what, unit, &Spread::of(&all(name)), goal);
    };
    row("per_second", &what, Unit::PerSecond, goal);
    if threads == 1 {
        row("store_us", "  of a turn in the store", Unit::Micros, Goal::None);
        row("model_us", "  of a turn in the scripted model", Unit::Micros, Goal::None);
        row("engine_us", "  of a turn in the engine itself", Unit::Micros, Goal::None);
    }
}

/// The whole measurement, in a process of its own.
pub(crate) fn run(folder: &Path, threads: usize, rounds: usize, turns: usize) -> Outcome<Value> {
    let home = Home::make(folder)?;
    let store = Arc::new(Timed::new(home.open(Access::ReadWrite)?));
    let engine = engine(&home, store.clone())?;
    let (model, work) = agent::scripted(turns)?;
    round(&engine, &work, &fresh(&engine, &work, threads)?, turns)?;
    let mut found = Vec::new();
    for _ in 0..rounds {
        let fresh = fresh(&engine, &work, threads)?;
        let before = (store.micros(), model.micros());
        let seconds = round(&engine, &work, &fresh, turns)?;
        let total = (threads * turns) as f64;
        let in_store = (store.micros() - before.0) / total;
        let in_model = (model.micros() - before.1) / total;
        found.push((total / seconds, in_store, in_model, seconds * 1e6 / total - in_store - in_model));
    }
    let figures = |figure: fn(&(f64, f64, f64, f64)) -> f64| found.iter().map(figure).collect::<Vec<_>>();
    Ok(json!({
        "per_second": figures(|found| found.0),
        "store_us": figures(|found| found.1),
        "model_us": figures(|found| found.2),
        "engine_us": figures(|found| found.3),
    }))
}

/// Threads that have not run yet.
fn fresh(engine: &Engine, work: &RunConfig, threads: usize) -> Outcome<Vec<ThreadId>> {
    let fresh = (0..threads).map(|_| Ok(engine.create(NewThread::of(work.agent_id.clone()), Vec::new())?));
    let fresh = fresh.collect();
    settle();
    fresh
}

/// One run of each of some threads, all at once; returns how long it took, in seconds.
fn round(engine: &Engine, work: &RunConfig, threads: &[ThreadId], turns: usize) -> Outcome<f64> {
    let start = Barrier::new(threads.len() + 1);
    let go = |thread: &ThreadId| -> Outcome<()> {
        start.wait();
        let ended = engine.send(thread, Input::text("look around"), work, &Cancel::new(), &mut |_| {})?;
        let had = ended.run_cost.as_ref().map_or(0, |cost| cost.turns);
        if had != turns as u64 {
            return Err(format!("a run had {had} turns, not {turns}: {:?}", ended.why).into());
        }
        Ok(())
    };
    let (began, outcomes) = thread::scope(|scope| {
        let go = &go;
        let running: Vec<_> = threads.iter().map(|thread| scope.spawn(move || go(thread))).collect();
        start.wait();
        (Instant::now(), running.into_iter().map(|run| run.join()).collect::<Vec<_>>())
    });
    let took = began.elapsed().as_secs_f64();
    for outcome in outcomes {
        outcome.map_err(|_| "a thread of the bench panicked")??;
    }
    Ok(took)
}

/// Whether a late turn costs the same as an early one, in a process of its own.
pub(crate) fn late(folder: &Path, late_turn: usize, rounds: usize) -> Outcome<Value> {
    let home = Home::make(folder)?;
    let engine = engine(&home, Arc::new(home.open(Access::ReadWrite)?))?;
    let create = || {
        engine.create(NewThread::of(AgentId::new("scribe")?), Vec::new()).map_err(Box::<dyn Error + Send + Sync>::from)
    };
    let old = create()?;
    // The windows are around the late turn, half of them on either side.
    timed_turns(&engine, &old, late_turn.saturating_sub(WINDOW_TURNS * rounds / 2))?;
    let early = || {
        let young = create()?;
        settle();
        Ok(timed_turns(&engine, &young, EARLY_TURN + WINDOW_TURNS)?.split_off(EARLY_TURN))
    };
    early()?;
    let found = in_turns(rounds, early, |_| timed_turns(&engine, &old, WINDOW_TURNS))?;
    let ratios = found.iter().map(|(early, late)| Spread::of(late).median / Spread::of(early).median);
    Ok(json!({"ratios": ratios.collect::<Vec<_>>()}))
}

/// A run of this many turns and a last one; returns how long each of them took, in microseconds.
fn timed_turns(engine: &Engine, thread: &ThreadId, turns: usize) -> Outcome<Vec<f64>> {
    let timed_turns = Arc::new(CountingModel::new(turns));
    let work = agent::assigned(timed_turns.clone())?;
    round(engine, &work, std::slice::from_ref(thread), turns + 1)?;
    Ok(timed_turns.each())
}

/// An engine on a store of this home.
pub(crate) fn engine(home: &Home, store: Arc<dyn Store>) -> Outcome<Engine> {
    engine_keeping(home, store, None)
}

/// The same, with snapshots if there is a keeper.
pub(crate) fn engine_keeping(home: &Home, store: Arc<dyn Store>, snapshots: Option<Keeper>) -> Outcome<Engine> {
    Ok(Engine::new(Options {
        store,
        trust: home.options(Access::ReadWrite)?.trust,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        processes: Arc::new(ProcessGroups),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots,
        prepare: None,
    }))
}
