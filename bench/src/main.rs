//! The cost of a commit, a load and a start, as ratios to baselines measured in the same run.
//!
//! The time of a disk's sync varies from minute to minute, so no time by itself means much: everything that syncs is measured in turns with
//! its baseline, round by round, and the ratio of each round is reported. Nothing here fails because something is slow.
//!
//! In reading order:
//!
//! - [`measure`]: laps, rounds and spread. [`moments`]: the times of events in a run. [`machine`]: the machine. [`report`]: the report.
//! - [`home`]: a store in a folder of its own. [`bare`]: the baseline. [`child`]: measurements in processes of their own.
//! - One file per measurement: [`warm`], [`append`], [`history`], [`crowd`], [`live`], [`waiting`], [`processes`], [`turns`], [`bytes`], [`loading`],
//!   [`snapshots`], [`chains`], [`search`], [`pages`], [`handoffs`], [`graphs`], [`spawns`], [`streams`], [`startup`], [`memory`].
//! - [`peers`]: the same work with other libraries. [`publish`]: `BENCHMARKS.md`. [`under_load`]: `cargo xtask load`.

mod append;
mod bare;
mod bytes;
mod chains;
mod child;
mod crowd;
mod graphs;
mod handoffs;
mod history;
mod home;
mod live;
mod loading;
mod machine;
mod measure;
mod memory;
mod moments;
mod pages;
mod peers;
mod processes;
mod publish;
mod report;
mod search;
mod snapshots;
mod spawns;
mod startup;
mod streams;
mod turns;
mod under_load;
mod waiting;
mod warm;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::machine::Machine;
use crate::report::Report;

/// The result of a measurement, or why it could not be made.
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The cost of a commit, a load and a start, as ratios to baselines measured in the same run.
#[derive(Parser)]
#[command(name = "cargo xtask bench", arg_required_else_help = false)]
struct Args {
    /// Fewer and shorter rounds: a quick check, not a figure.
    #[arg(long)]
    quick: bool,
    /// The folder to write to; the system's temporary folder by default. It must be on the disk that is to be measured.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Writes every number to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these measurements.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    only: Vec<What>,
    /// Measures everything, the peers too, and writes `BENCHMARKS.md`. Takes about ten minutes.
    #[arg(long)]
    publish: bool,
    /// The late turn that is compared with turn 100.
    #[arg(long, value_name = "TURN")]
    turn: Option<u64>,
    /// Gives every message an id, as an engine does that may send one twice.
    #[arg(long)]
    ids: bool,
    /// The role of a child process; used by the bench itself.
    #[command(subcommand)]
    child: Option<child::Role>,
}

/// The measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// One thread's commit, compared with a bare append.
    Warm,
    /// One append by a fresh process.
    Append,
    /// A late turn, compared with an early one.
    History,
    /// 64 threads, compared with 64 bare loops.
    Crowd,
    /// Ten thousand live threads, compared with 64.
    Live,
    /// Many runs that wait for their model.
    Waiting,
    /// Four processes, compared with each other.
    Processes,
    /// Whole turns through the engine.
    Turns,
    /// Bytes on disk, compared with bytes of text.
    Bytes,
    /// A verified load in a fresh process.
    Loading,
    /// Snapshots: their cost and what they save.
    Snapshots,
    /// Waking up across processes, and searching a long chain.
    Chains,
    /// Searching many threads, and what is done after a run.
    Search,
    /// The page of a thread, and searching knowledge.
    Pages,
    /// A thread whose context is full continues in another.
    Handoffs,
    /// A graph's steps, compared with commits.
    Graphs,
    /// A thread starts another, in its process or in one of its own.
    Spawns,
    /// Answers streamed over HTTP: a chunk, a large answer, many at once.
    Streams,
    /// Showing a short thread in a fresh process.
    Startup,
    /// The peak memory.
    Memory,
    /// Other libraries; only with `--publish` or if selected.
    Peers,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Plan {
    quick: bool,
    /// Rounds of everything that is measured in turns with its baseline.
    rounds: usize,
    /// How often a fresh process is started.
    starts: usize,
    late_turn: u64,
    ids: bool,
}

impl Plan {
    fn of(args: &Args) -> Self {
        let late_turn = args.turn.unwrap_or(match (args.quick, args.publish) {
            (true, _) => 500,
            (false, false) => 5_000,
            (false, true) => 10_000,
        });
        let (rounds, starts) = if args.quick { (3, 9) } else { (9, 21) };
        Self { quick: args.quick, rounds, starts, late_turn, ids: args.ids }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.child {
        Some(role) => role.play(),
        None => measure_all(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn measure_all(args: &Args) -> Outcome<()> {
    let plan = Plan::of(args);
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("selvedge-bench-").tempdir_in(&parent)?;
    let mut report = Report::new(Machine::look(folder.path())?, plan);
    let all = |what| args.only.is_empty() && (args.publish || what != What::Peers);
    let wanted = |what| all(what) || args.only.contains(&what);
    let steps: [(What, &str, Measurement); 21] = [
        (What::Warm, "A warm commit", warm::measure),
        (What::Append, "An append by a fresh process", append::measure),
        (What::History, "Late in a thread", history::measure),
        (What::Crowd, "Many threads", crowd::measure),
        (What::Live, "Live threads", live::measure),
        (What::Waiting, "Runs that wait", waiting::measure),
        (What::Processes, "Several processes", processes::measure),
        (What::Turns, "Turns", turns::measure),
        (What::Bytes, "Bytes", bytes::measure),
        (What::Loading, "Loading", loading::measure),
        (What::Snapshots, "Snapshots", snapshots::measure),
        (What::Chains, "Chains", chains::measure),
        (What::Search, "Searching, and after a run", search::measure),
        (What::Pages, "Pages and knowledge", pages::measure),
        (What::Handoffs, "Handoffs", handoffs::measure),
        (What::Graphs, "Graphs", graphs::measure),
        (What::Spawns, "Spawns", spawns::measure),
        (What::Streams, "Streams", streams::measure),
        (What::Startup, "Starting", startup::measure),
        (What::Memory, "Memory", memory::measure),
        (What::Peers, "", peers::measure),
    ];
    for (what, title, measure) in steps.into_iter().filter(|(what, ..)| wanted(*what)) {
        let name = format!("{what:?}").to_lowercase();
        report::progress(&name);
        let folder = folder.path().join(&name);
        std::fs::create_dir(&folder)?;
        if !title.is_empty() {
            report.section(title, &folder)?;
        }
        measure(&folder, plan, &mut report)?;
        std::fs::remove_dir_all(&folder)?;
    }
    let page = args.publish.then(|| Path::new("BENCHMARKS.md"));
    report.finish(folder.path(), args.json.as_deref(), page)
}

/// A measurement in a folder of its own.
type Measurement = fn(&Path, Plan, &mut Report) -> Outcome<()>;
