//! Ten thousand live threads in one store: every one of them is leased, and 64 OS threads commit to them in turn.

use std::path::Path;

use selvedge_store_local::{Access, LocalStore};
use serde_json::{Value, json};

use crate::crowd::{Throughput, together};
use crate::home::{Home, Writer};
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

/// How many OS threads commit.
const WORKERS: usize = 64;
/// The numbers of live threads that are measured; the others are compared with the first.
const LIVE: [usize; 4] = [64, 1_000, 4_000, 10_000];
/// The same for a short run.
const LIVE_QUICK: [usize; 2] = [64, 320];

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (counts, rounds): (&[usize], &str) = if plan.quick { (&LIVE_QUICK, "1") } else { (&LIVE, "5") };
    let counts_text = counts.iter().map(usize::to_string).collect::<Vec<_>>();
    let mut arguments = vec![rounds];
    arguments.extend(counts_text.iter().map(String::as_str));
    let (found, _) = child::run(child::command("live", &folder.join("store"), &arguments)?)?;
    for count in counts {
        add_figures(report, *count, &found);
    }
    let goal = if plan.quick { Goal::None } else { Goal::AtLeast(1_000.0) };
    let mut row = |key: &str, what: &str, goal: Goal| {
        let rate = Spread::of(&[found[key].as_f64().unwrap_or(0.0)]);
        report.figure(&format!("live_{key}"), what, Unit::PerSecond, &rate, goal);
    };
    row("created_per_second", "threads created, leased, first message", goal);
    row("released_per_second", "  leases released", Goal::None);
    row("acquired_per_second", "  leases acquired", Goal::None);
    row("after_per_second", "  first commits after that", Goal::None);
    let peak = Spread::of(&[found["peak_kib"].as_f64().unwrap_or(0.0) / 1024.0]);
    report.figure("live_peak_mib", "  peak memory of that process", Unit::Mebibytes, &peak, Goal::None);
    report.method(
        "live",
        format!(
            "{WORKERS} OS threads create {} threads, each with a lease that stays held and a first message; then they commit 1 KiB in turn \
             to the first {counts:?} of them, {rounds} rounds of all counts in turns",
            counts.last().unwrap_or(&0)
        ),
    );
    Ok(())
}

fn add_figures(report: &mut Report, count: usize, found: &Value) {
    let all = |key: &str, count: usize| -> Vec<f64> {
        let rounds = found["paces"].as_array().into_iter().flatten();
        rounds.filter_map(|round| round[count.to_string()][key].as_f64()).collect()
    };
    let rate = all("per_second", count);
    if count != LIVE[0] {
        let base = all("per_second", LIVE[0]);
        let ratios: Vec<f64> = rate.iter().zip(base).map(|(rate, base)| rate / base).collect();
        let goal = if count == LIVE[LIVE.len() - 1] { Goal::AtLeast(0.5) } else { Goal::None };
        let what = format!("{count} live threads ÷ {}, commits per second", LIVE[0]);
        report.figure(&format!("live_{count}_ratio"), &what, Unit::Times, &Spread::of(&ratios), goal);
    }
    let what = format!("  commits over {count} live threads");
    report.figure(&format!("live_{count}_per_second"), &what, Unit::PerSecond, &Spread::of(&rate), Goal::None);
    let cpu = Spread::of(&all("cpu_us", count));
    report.figure(&format!("live_{count}_cpu_us"), "  processor time of a commit", Unit::Cpu, &cpu, Goal::None);
}

/// One OS thread and the threads that it writes to, in turn.
struct Worker<'a> {
    place: usize,
    writers: Vec<Writer<'a>>,
    next: usize,
}

impl<'a> Worker<'a> {
    /// Creates a thread, acquires its lease and commits a first message.
    fn create(&mut self, store: &'a LocalStore) -> Outcome<()> {
        let name = format!("scribe-{:06x}{:06x}", self.place, self.writers.len());
        let mut writer = Writer::create(store, &name, false)?;
        let batch = writer.message()?;
        writer.commit(batch)?;
        self.writers.push(writer);
        Ok(())
    }

    /// Commits to the next of the first `live` threads of this worker.
    fn commit(&mut self, live: usize) -> Outcome<()> {
        self.next = if self.next + 1 < live { self.next + 1 } else { 0 };
        let writer = &mut self.writers[self.next];
        let batch = writer.message()?;
        writer.commit(batch)
    }
}

/// The whole measurement, in a process of its own.
pub(crate) fn run(folder: &Path, rounds: usize, counts: &[usize]) -> Outcome<Value> {
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let most = counts.iter().copied().max().unwrap_or(WORKERS).div_ceil(WORKERS);
    let mut workers: Vec<Worker<'_>> =
        (0..WORKERS).map(|place| Worker { place, writers: Vec::new(), next: 0 }).collect();
    let created = together(&mut workers, most, |worker| worker.create(&store))?;
    let mut paces = Vec::new();
    for _ in 0..rounds {
        let mut round = json!({});
        for count in counts {
            let live = count.div_ceil(WORKERS);
            // Every thread is committed to twice or more, and the total number of commits is the same for every count.
            let pace = together(&mut workers, most.max(10) * 2, |worker| worker.commit(live))?;
            round[count.to_string()] = json!({ "per_second": pace.per_second, "cpu_us": pace.cpu_us });
        }
        paces.push(round);
    }
    let released = each(&mut workers, most, |writer| writer.release())?;
    let acquired = each(&mut workers, most, |writer| writer.acquire())?;
    let after = together(&mut workers, most, |worker| worker.commit(most))?;
    each(&mut workers, most, |writer| writer.release())?;
    drop(workers);
    store.close()?;
    Ok(json!({
        "paces": paces,
        "created_per_second": created.per_second,
        "released_per_second": released.per_second,
        "acquired_per_second": acquired.per_second,
        "after_per_second": after.per_second,
    }))
}

/// Does something once with every thread.
fn each(
    workers: &mut [Worker<'_>],
    count: usize,
    work: impl Fn(&mut Writer<'_>) -> Outcome<()> + Sync,
) -> Outcome<Throughput> {
    workers.iter_mut().for_each(|worker| worker.next = 0);
    together(workers, count, |worker| {
        worker.next = (worker.next + 1) % count;
        work(&mut worker.writers[worker.next])
    })
}
