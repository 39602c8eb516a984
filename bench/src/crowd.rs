//! Many threads in one process against as many bare loops; measured in a process of its own, for its memory.

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

const THREADS: usize = 64;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (rounds, commits) = if plan.quick { ("3", "60") } else { ("7", "250") };
    let (found, _) = child::run(child::command("crowd", &folder.join("store"), &[rounds, commits])?)?;
    let all =
        |key: &str| -> Vec<f64> { found[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect() };
    let (ours, bare) = (all("commits_per_second"), all("bare_per_second"));
    let ratios: Vec<f64> = ours.iter().zip(&bare).map(|(a, b)| a / b).collect();
    let what = format!("{THREADS} threads ÷ {THREADS} unsigned bare loops, per second");
    report.figure("crowd_ratio", &what, Unit::Times, &Spread::of(&ratios), Goal::AtLeast(0.6));
    report.figure("crowd_per_second", "  commits of all threads", Unit::PerSecond, &Spread::of(&ours), Goal::None);
    report.figure(
        "crowd_bare_per_second",
        "  appends of all bare loops",
        Unit::PerSecond,
        &Spread::of(&bare),
        Goal::None,
    );
    let cpu = Spread::of(&all("cpu_us"));
    report.figure("crowd_cpu_us", "  processor time of a commit", Unit::Micros, &cpu, Goal::None);
    let bare_cpu = Spread::of(&all("bare_cpu_us"));
    report.figure("crowd_bare_cpu_us", "  processor time of a bare append", Unit::Micros, &bare_cpu, Goal::None);
    let peak = found["peak_kib"].as_f64().unwrap_or(0.0) / 1024.0;
    report.figure("crowd_peak_mib", "  peak memory of that process", Unit::Mebibytes, &Spread::of(&[peak]), Goal::None);
    report.method(
        "crowd",
        format!(
            "{THREADS} OS threads, each its own thread and lease, {commits} commits of 1 KiB each per round; bare loops each on a \
             file of its own, same bytes; {rounds} rounds in turns"
        ),
    );
    Ok(())
}

/// The whole measurement, in a process of its own.
pub(crate) fn run(folder: &Path, rounds: usize, commits: usize) -> Outcome<Value> {
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let writers = (0..THREADS).map(|index| Writer::create(&store, &format!("scribe-{index:012x}"), false));
    let mut writers = writers.collect::<Outcome<Vec<_>>>()?;
    let bare = (0..THREADS).map(|index| Bare::make(&folder.join(format!("bare-{index}"))));
    let mut bare = bare.collect::<Outcome<Vec<_>>>()?;
    let mut ours = || {
        let before = writers[0].transcript_bytes()?;
        let pace = together(&mut writers, commits, |writer| {
            let batch = writer.message()?;
            writer.commit(batch)
        })?;
        let growth = (writers[0].transcript_bytes()? - before) as usize / commits;
        Ok((pace, growth))
    };
    ours()?;
    let found = in_turns(rounds, ours, |(_, growth)| together(&mut bare, commits, |bare| bare.append(*growth)))?;
    store.close()?;
    let figures = |figure: fn(&((Pace, usize), Pace)) -> f64| found.iter().map(figure).collect::<Vec<_>>();
    Ok(json!({
        "commits_per_second": figures(|((pace, _), _)| pace.per_second),
        "bare_per_second": figures(|(_, pace)| pace.per_second),
        "cpu_us": figures(|((pace, _), _)| pace.cpu_us),
        "bare_cpu_us": figures(|(_, pace)| pace.cpu_us),
    }))
}

/// How fast a crowd was.
#[derive(Clone, Copy, Debug)]
struct Pace {
    per_second: f64,
    cpu_us: f64,
}

/// Lets every worker do `work` this often, all at once.
fn together<T: Send>(workers: &mut [T], times: usize, work: impl Fn(&mut T) -> Outcome<()> + Sync) -> Outcome<Pace> {
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
    Ok(Pace {
        per_second: total / took.as_secs_f64(),
        cpu_us: cpu().saturating_sub(began.1).as_secs_f64() * 1e6 / total,
    })
}
