//! Many runs that wait for their model: what a process that does nothing costs.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_engine::{Assignment, Input};
use selvedge_model::answer::{End, Usage};
use selvedge_model::message::Block;
use selvedge_model::{AgentId, Answer, Cancel, Draft, Model, ModelError, NewThread, Prompt};
use selvedge_store_local::Access;
use serde_json::{Value, json};

use crate::home::Home;
use crate::machine::own_memory_kib;
use crate::measure::{Spread, cpu};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child, turns};

/// How many runs wait, and for how long they are looked at.
const RUNS: (usize, Duration) = (1_000, Duration::from_secs(5));
/// The same for a short run.
const RUNS_QUICK: (usize, Duration) = (50, Duration::from_millis(300));

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (runs, look) = if plan.quick { RUNS_QUICK } else { RUNS };
    let (count, millis) = (runs.to_string(), look.as_millis().to_string());
    let (found, _) = child::run(child::command("waiting", &folder.join("store"), &[&count, &millis])?)?;
    let mut row = |key: &str, what: &str, unit: Unit, goal: Goal| {
        let figure = Spread::of(&[found[key].as_f64().unwrap_or(0.0)]);
        report.figure(&format!("waiting_{key}"), what, unit, &figure, goal);
    };
    row("share", &format!("{runs} runs that wait: share of a core"), Unit::Share, Goal::AtMost(0.01));
    row("threads_each", "  threads of the operating system per run", Unit::Times, Goal::None);
    row("resident_mib", "  memory", Unit::Mebibytes, Goal::None);
    row("began_per_second", "  runs begun", Unit::PerSecond, Goal::None);
    row("ended_per_second", "  runs ended once all are answered", Unit::PerSecond, Goal::None);
    report.method(
        "waiting",
        format!("{runs} runs of one turn in one process; once all have asked their model, the process is looked at for {look:?}, then all are answered"),
    );
    Ok(())
}

/// A model that answers all who ask at once.
#[derive(Default)]
struct Gate {
    asked: AtomicUsize,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

impl Model for Gate {
    fn answer(&self, _: &Prompt<'_>, _: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap_or_else(PoisonError::into_inner);
        }
        let content = vec![Block::text("Done.")];
        Ok(Answer { content, end: End::Finished, usage: Some(Usage::default()), session: None })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// The whole measurement, in a process of its own.
pub(crate) fn run(folder: &Path, runs: usize, look: Duration) -> Outcome<Value> {
    let home = Home::make(folder)?;
    let store = Arc::new(home.open(Access::ReadWrite)?);
    let engine = turns::engine(&home, store.clone())?;
    let gate = Arc::new(Gate::default());
    let work = Assignment::new(AgentId::new("scribe")?, gate.clone(), "gate");
    let create = || Ok(engine.create(NewThread::of(AgentId::new("scribe")?), Vec::new())?);
    let threads = (0..runs).map(|_| create()).collect::<Outcome<Vec<_>>>()?;
    let began = Instant::now();
    let found = std::thread::scope(|scope| -> Outcome<Value> {
        let running: Vec<_> = threads
            .iter()
            .map(|thread| {
                scope.spawn(|| engine.send(thread, Input::text("Go."), &work, &Cancel::new(), &mut |_| {}).map(|_| ()))
            })
            .collect();
        while gate.asked.load(Ordering::SeqCst) < runs && running.iter().all(|run| !run.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let asked = began.elapsed();
        // What the beginning left to do in the background is not what waiting costs.
        std::thread::sleep(Duration::from_millis(500));
        let (from, used) = (Instant::now(), cpu());
        std::thread::sleep(look);
        let share = cpu().saturating_sub(used).as_secs_f64() / from.elapsed().as_secs_f64();
        let tasks = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
        let resident_mib = own_memory_kib("VmRSS") as f64 / 1024.0;
        let answered = Instant::now();
        gate.open();
        for run in running {
            run.join().map_err(|_| "a run panicked")??;
        }
        Ok(json!({
            "share": share,
            "threads_each": tasks as f64 / runs as f64,
            "resident_mib": resident_mib,
            "began_per_second": runs as f64 / asked.as_secs_f64(),
            "ended_per_second": runs as f64 / answered.elapsed().as_secs_f64(),
        }))
    })?;
    drop(engine);
    Ok(found)
}
