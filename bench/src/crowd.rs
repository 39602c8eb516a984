//! Many threads in one process, compared with as many bare loops; measured in a process of its own, for its memory.

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use selvedge_store_local::Access;
use serde_json::{Value, json};

use crate::bare::Bare;
use crate::home::{Home, Writer};
use crate::measure::{Spread, cpu, in_turns, settle};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const CROWDS: [usize; 2] = [8, 64];
/// The number of threads that the goal is about.
const THREADS: usize = 64;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (rounds, commits) = if plan.quick { ("3", "60") } else { ("7", "250") };
    for threads in CROWDS {
        let store = folder.join(format!("store-{threads}"));
        let command = child::command("crowd", &store, &[&threads.to_string(), rounds, commits])?;
        let (found, _) = child::run(command)?;
        add_figures(report, threads, &found);
    }
    report.method(
        "crowd",
        format!(
            "{CROWDS:?} OS threads, each its own thread and lease, {commits} commits of 1 KiB each per round; bare loops each on a \
             file of its own, with the bytes that the commits wrote; {rounds} rounds in turns"
        ),
    );
    Ok(())
}

fn add_figures(report: &mut Report, threads: usize, found: &Value) {
    let all =
        |key: &str| -> Vec<f64> { found[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect() };
    let ours = all("commits_per_second");
    let bare = all("bare_per_second");
    let ratios: Vec<f64> = ours.iter().zip(&bare).map(|(a, b)| a / b).collect();
    let what = format!("{threads} threads ÷ {threads} unsigned bare loops, per second");
    let key = |name: &str| if threads == THREADS { format!("crowd_{name}") } else { format!("crowd_{threads}_{name}") };
    let goal = if threads == THREADS { Goal::AtLeast(0.6) } else { Goal::None };
    report.figure(&key("ratio"), &what, Unit::Times, &Spread::of(&ratios), goal);
    let mut row = |name: &str, what: &str, unit: Unit, figures: &[f64]| {
        report.figure(&key(name), what, unit, &Spread::of(figures), Goal::None);
    };
    row("per_second", "  commits of all threads", Unit::PerSecond, &ours);
    row("bare_per_second", "  appends of all bare loops", Unit::PerSecond, &bare);
    row("cpu_us", "  processor time of a commit", Unit::Cpu, &all("cpu_us"));
    row("bare_cpu_us", "  processor time of a bare append", Unit::Cpu, &all("bare_cpu_us"));
    let peak = found["peak_kib"].as_f64().unwrap_or(0.0) / 1024.0;
    row("peak_mib", "  peak memory of that process", Unit::Mebibytes, &[peak]);
}

/// The whole measurement, in a process of its own.
pub(crate) fn run(folder: &Path, threads: usize, rounds: usize, commits: usize) -> Outcome<Value> {
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let writers = (0..threads).map(|index| Writer::create(&store, &format!("scribe-{index:012x}"), false));
    let mut writers = writers.collect::<Outcome<Vec<_>>>()?;
    committed(&mut writers, commits)?;
    let bare = writers.iter_mut().enumerate().map(|(index, writer)| {
        let path = folder.join(format!("bare-{index}"));
        Bare::make(&path, writer.written()?.split_off(1))
    });
    let mut bare = bare.collect::<Outcome<Vec<_>>>()?;
    let found = in_turns(rounds, || committed(&mut writers, commits), |_| together(&mut bare, commits, Bare::append))?;
    store.close()?;
    let figures = |figure: fn(&(Throughput, Throughput)) -> f64| found.iter().map(figure).collect::<Vec<_>>();
    Ok(json!({
        "commits_per_second": figures(|(pace, _)| pace.per_second),
        "bare_per_second": figures(|(_, pace)| pace.per_second),
        "cpu_us": figures(|(pace, _)| pace.cpu_us),
        "bare_cpu_us": figures(|(_, pace)| pace.cpu_us),
    }))
}

/// Lets every writer commit this often, all at once.
pub(crate) fn committed(writers: &mut [Writer<'_>], commits: usize) -> Outcome<Throughput> {
    together(writers, commits, |writer| {
        let batch = writer.message()?;
        writer.commit(batch)
    })
}

/// The throughput of many writers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throughput {
    pub(crate) per_second: f64,
    pub(crate) cpu_us: f64,
}

/// Lets every worker do `work` this often, all at once.
pub(crate) fn together<T: Send>(
    workers: &mut [T],
    times: usize,
    work: impl Fn(&mut T) -> Outcome<()> + Sync,
) -> Outcome<Throughput> {
    let start = Barrier::new(workers.len() + 1);
    let total = (workers.len() * times) as f64;
    let go = |worker: &mut T| {
        start.wait();
        (0..times).try_for_each(|_| work(worker))
    };
    let (began, outcomes) = thread::scope(|scope| {
        let go = &go;
        let running: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || go(worker))).collect();
        let began = (Instant::now(), cpu());
        start.wait();
        (began, running.into_iter().map(|worker| worker.join()).collect::<Vec<_>>())
    });
    let took = began.0.elapsed();
    for outcome in outcomes {
        outcome.map_err(|_| "a thread of the bench panicked")??;
    }
    settle();
    Ok(Throughput {
        per_second: total / took.as_secs_f64(),
        cpu_us: cpu().saturating_sub(began.1).as_secs_f64() * 1e6 / total,
    })
}
