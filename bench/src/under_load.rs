//! The load test: many threads, a long thread, a large one, many writers, a long time.
//!
//! Asserted are growth and bounds, never a time: what must cost the same with a hundred times more data, the maximum of memory, and that
//! neither memory nor descriptors grow while nothing is kept. Times are reported, as ratios where there is something to compare with.
//!
//! - [`threads`]: many threads in one store. [`events`]: one thread of many events. [`transcript`]: one of many bytes.
//! - [`writers`]: many that wait for one thread. [`soak`]: the same work again and again, for minutes.

pub(crate) mod events;
pub(crate) mod soak;
pub(crate) mod threads;
pub(crate) mod transcript;
pub(crate) mod writers;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use crate::machine::Machine;
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit, progress};
use crate::{Outcome, Plan};

/// The arguments.
#[derive(Args, Clone, Debug)]
pub(crate) struct LoadArgs {
    /// Repeats the same work for this many minutes, and watches memory and descriptors.
    #[arg(long, value_name = "MINUTES", default_value_t = 0.0)]
    soak: f64,
    /// A little of everything, to see that it works; times are not judged.
    #[arg(long)]
    small: bool,
    /// The folder to write to; the system's temporary folder by default.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Only these: threads, events, transcript, writers, soak.
    #[arg(long, value_delimiter = ',', value_name = "WHAT")]
    only: Vec<String>,
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) threads: usize,
    pub(crate) events: u64,
    pub(crate) transcript_mib: u64,
    pub(crate) writers: usize,
    pub(crate) soak: Duration,
}

impl Size {
    const WHOLE: Self =
        Self { threads: 10_000, events: 100_000, transcript_mib: 1_024, writers: 1_000, soak: Duration::ZERO };
    const SMALL: Self =
        Self { threads: 200, events: 2_000, transcript_mib: 16, writers: 40, soak: Duration::from_secs(2) };
}

/// Runs everything in a folder of its own; an error names the violated bounds.
pub(crate) fn run(args: &LoadArgs) -> Outcome<()> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("selvedge-load-").tempdir_in(&parent)?;
    let mut size = if args.small { Size::SMALL } else { Size::WHOLE };
    if args.soak > 0.0 {
        size.soak = Duration::from_secs_f64(args.soak * 60.0);
    }
    let plan = Plan { quick: args.small, rounds: 1, starts: 1, late_turn: 0, ids: false };
    let mut report = Report::new(Machine::look(folder.path())?, plan);
    let steps: [(&str, Measurement); 5] = [
        ("threads", threads::measure),
        ("events", events::measure),
        ("transcript", transcript::measure),
        ("writers", writers::measure),
        ("soak", soak::measure),
    ];
    for (name, measure) in steps {
        let is_asked = args.only.is_empty() || args.only.iter().any(|only| only == name);
        if !is_asked || (name == "soak" && size.soak.is_zero()) {
            continue;
        }
        progress(name);
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder)?;
        report.section(name, &folder)?;
        measure(&folder, size, &mut report)?;
        std::fs::remove_dir_all(&folder)?;
    }
    let mut missed = report.missed();
    // On a busy machine a short measurement takes any time.
    missed.retain(|what| !(args.small && what.contains("time")));
    report.finish(folder.path(), None, None)?;
    if missed.is_empty() { Ok(()) } else { Err(format!("these bounds are violated: {}", missed.join("; ")).into()) }
}

/// One kind of load, in a folder of its own.
type Measurement = fn(&Path, Size, &mut Report) -> Outcome<()>;

/// How long something takes, in milliseconds: the median of a few times.
fn millis<T>(times: usize, mut work: impl FnMut() -> Outcome<T>) -> Outcome<f64> {
    let mut each = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        work()?;
        each.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Spread::of(&each).median)
}

/// Reports one figure.
fn report_figure(report: &mut Report, what: &str, unit: Unit, figure: f64, goal: Goal) {
    report.figure(what, what, unit, &Spread::of(&[figure]), goal);
}
