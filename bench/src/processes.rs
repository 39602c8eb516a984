//! Several processes that write to one store at once: whether one of them starves.

use std::io::{BufReader, Write, stdin};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use selvedge_store_local::Access;
use serde_json::{Value, json};

use crate::home::{Home, Writer};
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const PROCESSES: usize = 4;
const THREADS: usize = 16;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (rounds, seconds) = if plan.quick { (2, 2) } else { (5, 3) };
    let home = Home::make(&folder.join("store"))?;
    let start = |index: usize| -> Outcome<Child> {
        let name = index.to_string();
        Ok(child::command("rival", home.folder(), &[&name])?.stdin(Stdio::piped()).spawn()?)
    };
    let mut rivals = (0..PROCESSES).map(start).collect::<Outcome<Vec<_>>>()?;
    let found = contest(&mut rivals, rounds, seconds);
    for rival in &mut rivals {
        // It ends when its input is closed.
        drop(rival.stdin.take());
        rival.wait()?;
    }
    let found = found?;
    let share = |counts: &Vec<f64>| {
        let spread = Spread::of(counts);
        spread.min / spread.max
    };
    let what = format!("{PROCESSES} processes of {THREADS} threads: slowest ÷ fastest");
    report.figure("processes_ratio", &what, Unit::Times, &Spread::over(&found, share), Goal::AtLeast(0.5));
    let total = Spread::over(&found, |counts| counts.iter().sum::<f64>() / f64::from(seconds));
    report.figure("processes_per_second", "  commits of all processes", Unit::PerSecond, &total, Goal::None);
    report.number("processes_commits", json!(found));
    report.method(
        "processes",
        format!("{PROCESSES} processes, each {THREADS} OS threads with a thread of its own, {rounds} rounds of {seconds} s on one store"),
    );
    Ok(())
}

/// Lets all of them run `rounds` times; returns the commits of each.
fn contest(rivals: &mut [Child], rounds: usize, seconds: u32) -> Outcome<Vec<Vec<f64>>> {
    let mut voices: Vec<_> = rivals.iter_mut().filter_map(|rival| rival.stdout.take()).map(BufReader::new).collect();
    for voice in &mut voices {
        child::read_line(voice)?;
    }
    let mut found = Vec::new();
    for _ in 0..rounds {
        for rival in rivals.iter_mut() {
            let stdin = rival.stdin.as_mut().ok_or("a process of the bench has no input")?;
            writeln!(stdin, "{seconds}")?;
            stdin.flush()?;
        }
        let mut counts = Vec::new();
        for voice in &mut voices {
            let answer: Value = serde_json::from_str(&child::read_line(voice)?)?;
            counts.push(answer["commits"].as_f64().unwrap_or(0.0));
        }
        found.push(counts);
    }
    Ok(found)
}

/// One of the processes: reports that it is ready, then commits for as many seconds as requested, again and again.
pub(crate) fn rival(folder: &Path, name: &str) -> Outcome<()> {
    let home = Home::at(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let writers = (0..THREADS).map(|index| Writer::create(&store, &format!("rival{name}-{index:012x}"), false));
    let mut writers = writers.collect::<Outcome<Vec<_>>>()?;
    child::say(&json!({"ready": true}))?;
    let mut input = BufReader::new(stdin());
    while let Ok(seconds) = child::read_line(&mut input)?.parse::<u64>() {
        let until = Instant::now() + Duration::from_secs(seconds);
        let write = |writer: &mut Writer<'_>| -> Outcome<u64> {
            let mut count = 0;
            while Instant::now() < until {
                let batch = writer.message()?;
                writer.commit(batch)?;
                count += 1;
            }
            Ok(count)
        };
        let counts = thread::scope(|scope| {
            let running: Vec<_> = writers.iter_mut().map(|writer| scope.spawn(|| write(writer))).collect();
            running
                .into_iter()
                .map(|worker| worker.join().map_err(|_| "a thread panicked")?)
                .collect::<Outcome<Vec<_>>>()
        })?;
        child::say(&json!({"commits": counts.iter().sum::<u64>()}))?;
    }
    Ok(store.close()?)
}
