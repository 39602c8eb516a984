//! The laboratory's command: what `cargo xtask crash` runs, and what its children run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a command-line program")]

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand, ValueEnum};
use selvedge_testkit::fact::FactRecorder;
use selvedge_testkit::home::Home;
use selvedge_testkit::page::{RunInfo, with_counts};
use selvedge_testkit::run::{Plan, Ready, concurrent, damage, fail, kill, power, shutdown};
use selvedge_testkit::scenario::{self, Scenario};
use selvedge_testkit::shim::Bench;
use selvedge_testkit::tally::Tally;
use selvedge_testkit::{LabError, LabResult};

/// The crash laboratory.
#[derive(Parser)]
#[command(name = "cargo xtask crash", args_conflicts_with_subcommands = true)]
struct Lab {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    work: Work,
}

#[derive(Subcommand)]
enum Role {
    /// Runs a scenario; started by the laboratory itself.
    #[command(hide = true)]
    Child(Child),
    /// Writes concurrently with other processes until it is killed; started by the laboratory itself.
    #[command(hide = true)]
    Crowd(Crowd),
}

#[derive(Args)]
struct Crowd {
    /// The home.
    #[arg(long)]
    root: PathBuf,
    /// Where to write acknowledged facts.
    #[arg(long)]
    acks: PathBuf,
    /// The seed of the random numbers.
    #[arg(long)]
    seed: u64,
}

#[derive(Args)]
struct Child {
    scenario: String,
    /// The home.
    #[arg(long)]
    root: PathBuf,
    /// Where to write acknowledged facts.
    #[arg(long)]
    acks: PathBuf,
    /// Retry a call that failed once.
    #[arg(long)]
    retries: bool,
}

#[derive(Args)]
struct Work {
    /// Every call, and many more disk states after each.
    #[arg(long)]
    long: bool,
    /// The seed of the random numbers; it is always printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this scenario.
    #[arg(long)]
    scenario: Option<String>,
    /// Only this experiment.
    #[arg(long, value_enum)]
    experiment: Option<Experiment>,
    /// Only this call.
    #[arg(long)]
    only: Option<u64>,
    /// How many disk states to check after each call.
    #[arg(long)]
    states: Option<usize>,
    /// Only every n-th call.
    #[arg(long)]
    stride: Option<u64>,
    /// Stop at the first broken promise.
    #[arg(long)]
    first: bool,
    /// Print the calls of the scenario; the call of `--only`, if given, fails.
    #[arg(long)]
    show: bool,
    /// Write the counts and the commit into docs/LABORATORY.md.
    #[arg(long, conflicts_with_all = ["scenario", "only", "show", "list"])]
    record: bool,
    /// List the scenarios and their numbers of calls.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// A process that dies at its n-th call.
    Kill,
    /// A changing call that fails.
    Fail,
    /// A reading call that fails.
    Look,
    /// A simulated disk that loses power.
    Power,
    /// The same, interrupted a second time during recovery.
    Twice,
    /// A real file system that loses power.
    Shutdown,
    /// Files that were modified.
    Damage,
    /// Concurrent processes that are paused and killed.
    Crowd,
}

fn main() -> ExitCode {
    let lab = Lab::parse();
    let is_role = lab.role.is_some();
    let done = match lab.role {
        Some(Role::Child(child)) => act(&child).map(|()| true),
        Some(Role::Crowd(child)) => concurrent::act(&child.root, &child.acks, child.seed).map(|()| true),
        None => work(&lab.work),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        // A promise was broken.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            // The experiment could not run: that says nothing about any promise.
            if is_role { ExitCode::FAILURE } else { ExitCode::from(2) }
        }
    }
}

fn act(child: &Child) -> LabResult {
    let scenario = scenario::named(&child.scenario)?;
    let acks = OpenOptions::new().create(true).append(true).open(&child.acks)?;
    let mut recorder = FactRecorder::on(acks);
    recorder.retries = child.retries;
    (scenario.act)(&Home::at(&child.root, 2), &mut recorder)
}

type Run = fn(&Plan, &Ready) -> Result<Tally, LabError>;

/// The experiments that are run on every scenario.
const ON_SCENARIOS: [(Experiment, Run); 6] = [
    (Experiment::Kill, kill::run),
    (Experiment::Fail, fail::run),
    (Experiment::Look, fail::looks),
    (Experiment::Power, power::run),
    (Experiment::Twice, power::twice),
    (Experiment::Shutdown, shutdown::run),
];

fn plan(work: &Work) -> LabResult<Plan> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    Ok(Plan {
        bench: Bench::set_up(&std::env::current_exe()?)?,
        seed: work.seed.unwrap_or(now % 1_000_000),
        stride: work.stride.unwrap_or(if work.long { 1 } else { 11 }).max(1),
        only: work.only,
        states: work.states.unwrap_or(if work.long { 24 } else { 3 }),
        first: work.first,
    })
}

fn work(work: &Work) -> LabResult<bool> {
    let plan = plan(work)?;
    println!("seed {}", plan.seed);
    let chosen: Vec<&Scenario> = match &work.scenario {
        Some(name) => vec![scenario::named(name)?],
        None => scenario::ALL.iter().collect(),
    };
    let wants = |experiment| work.experiment.is_none_or(|wanted| wanted == experiment);
    // Determined before the experiments: the tree may have changed when they end.
    let commit = if work.record { commit()? } else { String::new() };
    let began = Instant::now();
    let mut tally = Tally::default();
    for scenario in chosen {
        let needed = work.show || work.list || ON_SCENARIOS.iter().any(|(experiment, _)| wants(*experiment));
        if !needed {
            break;
        }
        let ready = Ready::make(&plan, scenario)?;
        match (work.show, work.list) {
            (true, _) => print!("{}", fail::show(&plan, &ready)?),
            (_, true) => println!("{:<12} {:>5} calls, {:>5} looks", scenario.name, ready.calls, ready.looks),
            _ => {
                for (experiment, run) in ON_SCENARIOS.iter().filter(|(experiment, _)| wants(*experiment)) {
                    // Mounting for each call is slow: every scenario is interrupted, but at fewer calls.
                    let rarely = Plan { stride: plan.stride.max(if work.long { 5 } else { 29 }), ..plan.clone() };
                    let plan = if *experiment == Experiment::Shutdown { &rarely } else { &plan };
                    timed(&mut tally, &format!("{experiment:?} {}", scenario.name), || run(plan, &ready))?;
                }
            }
        }
    }
    if work.show || work.list {
        return Ok(true);
    }
    if work.scenario.is_none() && wants(Experiment::Damage) {
        timed(&mut tally, "Damage", || damage::run(&plan))?;
    }
    if work.scenario.is_none() && wants(Experiment::Crowd) {
        let rounds = if work.long { 20 } else { 1 };
        let each = if work.long { 5 } else { 3 };
        timed(&mut tally, "Crowd", || concurrent::run(&plan, rounds, Duration::from_secs(each)))?;
    }
    println!("{tally}\nin {:.1} s, seed {}", began.elapsed().as_secs_f64(), plan.seed);
    if work.record {
        record(&tally, &plan, commit)?;
    }
    Ok(tally.breaches.is_empty())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The tested commit, with a `+` if the tree has uncommitted changes; those of `docs` don't count.
fn commit() -> LabResult<String> {
    let git = |words: &[&str]| -> LabResult<String> {
        let output = Command::new("git").args(words).current_dir(root()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let is_changed = !git(&["status", "--porcelain", "--untracked-files=no", ":!docs"])?.is_empty();
    Ok(git(&["rev-parse", "--short=10", "HEAD"])? + if is_changed { "+" } else { "" })
}

/// Writes the results of a run into the laboratory's page.
fn record(tally: &Tally, plan: &Plan, commit: String) -> LabResult {
    let words = format!("--seed {} --stride {} --states {}", plan.seed, plan.stride, plan.states);
    let path = root().join("docs/LABORATORY.md");
    let page = std::fs::read_to_string(&path)?;
    let page = with_counts(&page, tally, &RunInfo { words, commit }).ok_or("the page has no section for counts")?;
    Ok(std::fs::write(&path, page)?)
}

fn timed(tally: &mut Tally, what: &str, run: impl FnOnce() -> LabResult<Tally>) -> LabResult {
    let began = Instant::now();
    let done = run()?;
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("{what}: {} states in {seconds:.1} s, {} broken", done.states(), done.breaches.len());
    tally.join(done);
    Ok(())
}
