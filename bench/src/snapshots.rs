//! The cost of snapshots in a run, and what they save when a long thread is loaded.
//!
//! The cost for a run is the time between a commit and the next event: nothing else is in between but the engine itself, which is measured
//! by the same run without snapshots.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use selvedge_engine::snapshot::Keeper;
use selvedge_engine::{Engine, Input, RunConfig};
use selvedge_items::config::StatePersistence;
use selvedge_model::answer::{Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::message::Block;
use selvedge_model::{AgentId, Answer, CallId, Cancel, Model, ModelError, NewThread, Prompt, Stop, ThreadId};
use selvedge_store::{Registry, Snapshots};
use selvedge_store_local::{Access, LocalStore};

use crate::home::Home;
use crate::measure::{Spread, in_turns, settle};
use crate::moments::{Happened, RecordingStore};
use crate::report::{Goal, Report, Unit};
use crate::turns::agent::pure;
use crate::turns::engine_keeping;
use crate::{Outcome, Plan};

/// The number of turns over which the cost is spread.
const TURNS: usize = 1_000;
/// The length of every text.
const TEXT_BYTES: usize = 1_024;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let rounds = if plan.quick { 2 } else { plan.rounds };
    cost(&folder.join("cost"), rounds, report)?;
    let turns = if plan.quick { 1_000 } else { 10_000 };
    load(&folder.join("load"), turns, plan, report)?;
    report.method(
        "snapshots",
        format!(
            "one thread of {TURNS} turns in one run, every text of {TEXT_BYTES} bytes, with snapshots as they are by default and without, in turns, \
             {rounds} rounds; what a run pays is the time between a commit and the next call of model or tool, less the same without \
             snapshots; loading: the engine takes up a completed thread of {turns} turns, each time by a new store and engine, warm page cache"
        ),
    );
    Ok(())
}

fn cost(folder: &Path, rounds: usize, report: &mut Report) -> Outcome<()> {
    let home = Home::make(folder)?;
    run(&home, true, 100)?;
    let found = in_turns(rounds, || run(&home, false, TURNS), |_| run(&home, true, TURNS))?;
    let per_turn = |ran: &RunTimes| ran.between_us / TURNS as f64;
    let costs: Vec<f64> = found.iter().map(|(without, with)| per_turn(with) - per_turn(without)).collect();
    let shares = found.iter().zip(&costs).map(|((without, _), cost)| cost * TURNS as f64 / without.whole_us);
    let what = format!("snapshots over {TURNS} turns, of the time of a turn without them");
    report.figure("snapshots_share", &what, Unit::Share, &Spread::of(&shares.collect::<Vec<_>>()), Goal::AtMost(0.05));
    report.figure("snapshots_turn_us", "  of a turn in snapshots", Unit::Micros, &Spread::of(&costs), Goal::None);
    // Saving in the background still uses the disk and the processor.
    let whole = found.iter().map(|(without, with)| with.whole_us / without.whole_us).collect::<Vec<_>>();
    let what = "  a whole run with them ÷ one without";
    report.figure("snapshots_run_ratio", what, Unit::Times, &Spread::of(&whole), Goal::AtMost(1.05));
    report.number("snapshots_kept", found.iter().map(|(_, with)| with.kept).collect());
    Ok(())
}

fn load(folder: &Path, turns: usize, plan: Plan, report: &mut Report) -> Outcome<()> {
    let home = Home::make(folder)?;
    let thread = run(&home, true, turns)?.thread;
    settle();
    let take_up = |keeps: bool| -> Outcome<f64> {
        let (engine, store) = made(&home, keeps, |_| {})?;
        let began = Instant::now();
        engine.stop(&thread, Stop::Cancelled)?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        drop((engine, store));
        Ok(took)
    };
    take_up(true)?;
    let found = in_turns(plan.rounds, || take_up(false), |_| take_up(true))?;
    let of = |figure: fn(&(f64, f64)) -> f64| Spread::of(&found.iter().map(figure).collect::<Vec<_>>());
    let what = format!("a thread of {turns} turns from its snapshot and the log behind it");
    report.figure("snapshots_load_ms", &what, Unit::Millis, &of(|found| found.1), Goal::None);
    report.figure("snapshots_fold_ms", "  from its log alone", Unit::Millis, &of(|found| found.0), Goal::None);
    let ratio = of(|found| found.1 / found.0);
    report.figure("snapshots_load_ratio", "  the first ÷ the second", Unit::Times, &ratio, Goal::AtMost(1.0));
    Ok(())
}

/// The measurements of a run.
struct RunTimes {
    thread: ThreadId,
    whole_us: f64,
    /// Between commits and the next events.
    between_us: f64,
    kept: usize,
}

fn made(
    home: &Home,
    keeps: bool,
    note: impl Fn(Happened) + Send + Sync + 'static,
) -> Outcome<(Engine, Arc<LocalStore>)> {
    let store = Arc::new(home.open(Access::ReadWrite)?);
    let keeper = keeps.then(|| Keeper::new(store.clone(), StatePersistence::builtin())).transpose()?;
    Ok((engine_keeping(home, Arc::new(RecordingStore::new(store.clone(), note)), keeper)?, store))
}

fn run(home: &Home, keeps: bool, turns: usize) -> Outcome<RunTimes> {
    let gauge = Arc::new(TokenEstimate::default());
    let committed = gauge.clone();
    let (engine, store) = made(home, keeps, move |_| committed.committed())?;
    let mut work =
        RunConfig::new(AgentId::new("scribe")?, Arc::new(CallingModel { turns, gauge: gauge.clone() }), "talker");
    let looked = gauge.clone();
    work.tools = vec![Arc::new(pure("look", move || {
        looked.next_event();
        text()
    }))];
    // It stays one thread, however long.
    work.continuation.window_tokens = u64::MAX / 4;
    let thread = engine.create(NewThread::of(work.agent_id.clone()), Vec::new())?;
    settle();
    let began = Instant::now();
    let ended = engine.send(&thread, Input::text("look around"), &work, &Cancel::new(), &mut |_| {})?;
    let whole_us = began.elapsed().as_secs_f64() * 1e6;
    let had = ended.run_cost.as_ref().map_or(0, |cost| cost.turns);
    if had != turns as u64 || store.get(&thread)?.manifest.run_id.is_some() {
        return Err(format!("a run had {had} turns, not {turns}: {:?}", ended.why).into());
    }
    let kept = store.list_snapshots(&thread, "archive")?.len();
    Ok(RunTimes { thread, whole_us, between_us: gauge.nanos.load(Ordering::Relaxed) as f64 / 1e3, kept })
}

/// Adds up the time between a commit and the next event.
#[derive(Default)]
struct TokenEstimate {
    committed_at: Mutex<Option<Instant>>,
    nanos: AtomicU64,
}

impl TokenEstimate {
    fn committed(&self) {
        *self.committed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn next_event(&self) {
        if let Some(committed_at) = self.committed_at.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.nanos
                .fetch_add(u64::try_from(committed_at.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }
}

/// A model that calls the tool in all its turns but the last.
struct CallingModel {
    turns: usize,
    gauge: Arc<TokenEstimate>,
}

fn text() -> String {
    "Nothing that is written twice is read twice. ".chars().cycle().take(TEXT_BYTES).collect()
}

impl Model for CallingModel {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            self.gauge.next_event();
            let turn = prompt.messages.len() / 2;
            let mut content = vec![Block::text(text())];
            let id = CallId::new(format!("call_{turn}"))
                .map_err(|error| ModelError::Permanent { why: error.to_string() })?;
            let end = if turn + 1 < self.turns { End::ToolCalls } else { End::Finished };
            if end == End::ToolCalls {
                content.push(Block::tool_call(id, "look", serde_json::json!({"turn": turn})));
            }
            Ok(Answer::new(content, end).using(Usage::default()))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}
