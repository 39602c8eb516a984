//! Many runs that wait for their model: the cost of an idle process.

use std::fs;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use selvedge_engine::{Engine, Input, RunConfig, Submitted};
use selvedge_model::answer::{Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::message::Block;
use selvedge_model::{AgentId, Answer, Cancel, Model, ModelError, NewThread, Prompt, Status, Stop, ThreadId};
use selvedge_store_local::Access;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::home::Home;
use crate::machine::own_memory_kib;
use crate::measure::{Spread, cpu};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child, turns};

/// How many runs wait, and for how long the process is measured.
const RUNS: (usize, Duration) = (10_000, Duration::from_secs(5));
/// The same for a short run.
const RUNS_QUICK: (usize, Duration) = (50, Duration::from_millis(300));
/// How long runs may take to begin.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How many threads submit messages: as many as make large groups of commits.
const SUBMITTERS: usize = 64;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (runs, look) = if plan.quick { RUNS_QUICK } else { RUNS };
    let cancelled = runs / 10;
    let count = runs.to_string();
    let millis = look.as_millis().to_string();
    let (found, _) = child::run(child::command("waiting", &folder.join("store"), &[&count, &millis])?)?;
    let mut row = |key: &str, what: &str, unit: Unit, goal: Goal| {
        let figure = Spread::of(&[found[key].as_f64().unwrap_or(0.0)]);
        report.figure(&format!("waiting_{key}"), what, unit, &figure, goal);
    };
    row("share", &format!("{runs} runs that wait: share of a core"), Unit::Share, Goal::AtMost(0.01));
    row("threads", "  threads of the operating system", Unit::Count, Goal::AtMost(100.0));
    row("resident_mib", "  memory", Unit::Mebibytes, Goal::AtMost(500.0));
    row("created_per_second", "  threads created", Unit::PerSecond, Goal::AtLeast(1_000.0));
    row("began_per_second", "  runs begun, each with its message", Unit::PerSecond, Goal::AtLeast(1_000.0));
    row("ended_ms", "  all ended, from the last answer on", Unit::Millis, Goal::AtMost(15_000.0));
    row(
        "cancelled_ms",
        &format!("{cancelled} further runs cancelled at once, until all have ended"),
        Unit::Millis,
        Goal::AtMost(2_000.0),
    );
    report.method(
        "waiting",
        format!("{runs} runs of one turn in one process, submitted by {SUBMITTERS} threads that are gone then; once all have asked their model, the process is observed for {look:?}, then all are answered; {cancelled} further runs are cancelled, each by a request, while they wait for their model"),
    );
    Ok(())
}

/// A model that answers all that ask at once.
#[derive(Default)]
struct BlockingModel {
    asked: AtomicUsize,
    is_open: watch::Sender<bool>,
}

impl BlockingModel {
    fn open(&self) {
        self.is_open.send_replace(true);
    }
}

impl Model for BlockingModel {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let mut is_open = self.is_open.subscribe();
            let mut open = pin!(is_open.wait_for(|is_open| *is_open));
            let mut stopped = pin!(cancel.stopped());
            let is_stopped = poll_fn(|context| match stopped.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending => open.as_mut().poll(context).map(|_| false),
            });
            if is_stopped.await {
                return Err(ModelError::Stopped { partial: Vec::new(), usage: None });
            }
            let content = vec![Block::text("Done.")];
            Ok(Answer::new(content, End::Finished).using(Usage::default()))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// Submits a message to each thread, from many threads at once, and waits until every run has asked its model; returns the model, the runs
/// and how long that took.
fn begin(engine: &Engine, threads: &[ThreadId]) -> Outcome<(Arc<BlockingModel>, Vec<Submitted>, Duration)> {
    let gate = Arc::new(BlockingModel::default());
    let work = Arc::new(RunConfig::new(AgentId::new("scribe")?, gate.clone(), "gate"));
    let began = Instant::now();
    let submit = |threads: &[ThreadId]| -> Outcome<Vec<Submitted>> {
        let submit = |thread| Ok(engine.submit(thread, Input::text("Go."), work.clone(), &Cancel::new())?);
        threads.iter().map(submit).collect()
    };
    let running: Vec<Submitted> = std::thread::scope(|scope| -> Outcome<_> {
        let chunks = threads.chunks(threads.len().div_ceil(SUBMITTERS).max(1));
        let submitting: Vec<_> = chunks.map(|chunk| scope.spawn(|| submit(chunk))).collect();
        let submitted = submitting.into_iter().map(|each| each.join().map_err(|_| "a thread of the bench panicked")?);
        Ok(submitted.collect::<Outcome<Vec<_>>>()?.into_iter().flatten().collect())
    })?;
    while gate.asked.load(Ordering::SeqCst) < threads.len() {
        if began.elapsed() > TIMEOUT {
            return Err("not every run of the bench asked its model".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((gate, running, began.elapsed()))
}

/// The whole measurement, in a process of its own.
pub(crate) fn run(folder: &Path, runs: usize, look: Duration) -> Outcome<Value> {
    let home = Home::make(folder)?;
    let store = Arc::new(home.open(Access::ReadWrite)?);
    let engine = turns::engine(&home, store.clone())?;
    let create = || Ok(engine.create(NewThread::of(AgentId::new("scribe")?), Vec::new())?);
    let cancelled = runs / 10;
    let creating = Instant::now();
    let mut threads: Vec<ThreadId> = std::thread::scope(|scope| -> Outcome<_> {
        let counts = (0..SUBMITTERS).map(|number| (runs + cancelled + number) / SUBMITTERS);
        let create = |count| (0..count).map(|_| create()).collect::<Outcome<Vec<_>>>();
        let creating: Vec<_> = counts.map(|count| scope.spawn(move || create(count))).collect();
        let created = creating.into_iter().map(|each| each.join().map_err(|_| "a thread of the bench panicked")?);
        Ok(created.collect::<Outcome<Vec<_>>>()?.into_iter().flatten().collect())
    })?;
    let created = creating.elapsed();
    let further = threads.split_off(runs);
    let (gate, running, asked) = begin(&engine, &threads)?;
    // What the beginning left to do in the background is not what waiting costs.
    std::thread::sleep(Duration::from_millis(500));
    let from = Instant::now();
    let used = cpu();
    std::thread::sleep(look);
    let share = cpu().saturating_sub(used).as_secs_f64() / from.elapsed().as_secs_f64();
    let tasks = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let resident_mib = own_memory_kib("VmRSS") as f64 / 1024.0;
    let answered = Instant::now();
    gate.open();
    for run in running {
        if run.wait(&mut |_| {})?.status.status() != Some(Status::Completed) {
            return Err("a run of the bench did not complete".into());
        }
    }
    let ended = answered.elapsed();
    let (_gate, running, _) = begin(&engine, &further)?;
    let cancelling = Instant::now();
    std::thread::scope(|scope| {
        for chunk in further.chunks(further.len().div_ceil(SUBMITTERS).max(1)) {
            // A thread that can't be cancelled is found below.
            scope.spawn(|| chunk.iter().for_each(|thread| _ = engine.stop(thread, Stop::Cancelled)));
        }
    });
    for run in running {
        if run.wait(&mut |_| {})?.status.status() != Some(Status::Cancelled) {
            return Err("a run of the bench was not cancelled".into());
        }
    }
    let cancelled = cancelling.elapsed();
    Ok(json!({
        "share": share,
        "threads": tasks,
        "resident_mib": resident_mib,
        "created_per_second": (runs + further.len()) as f64 / created.as_secs_f64(),
        "began_per_second": runs as f64 / asked.as_secs_f64(),
        "cancelled_ms": cancelled.as_secs_f64() * 1e3,
        "ended_ms": ended.as_secs_f64() * 1e3,
    }))
}
