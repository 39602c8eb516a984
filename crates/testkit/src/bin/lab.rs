//! The laboratory's command: what `cargo xtask crash` runs, and what its children run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it speaks to whoever sits at the terminal")]

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand, ValueEnum};
use selvedge_testkit::fact::Teller;
use selvedge_testkit::home::Home;
use selvedge_testkit::run::{Plan, Ready, crowd, damage, fail, kill, power, shutdown};
use selvedge_testkit::scenario::{self, Scenario};
use selvedge_testkit::shim::Bench;
use selvedge_testkit::tally::Tally;
use selvedge_testkit::{Tried, Trouble};

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
    /// Acts a scenario; started by the laboratory itself.
    #[command(hide = true)]
    Child(Child),
    /// Writes among others until it is killed; started by the laboratory itself.
    #[command(hide = true)]
    Crowd(Crowd),
}

#[derive(Args)]
struct Crowd {
    /// The home.
    #[arg(long)]
    root: PathBuf,
    /// Where to write what was acknowledged.
    #[arg(long)]
    acks: PathBuf,
    /// Where chance begins.
    #[arg(long)]
    seed: u64,
}

#[derive(Args)]
struct Child {
    scenario: String,
    /// The home.
    #[arg(long)]
    root: PathBuf,
    /// Where to write what was acknowledged.
    #[arg(long)]
    acks: PathBuf,
    /// Try what failed once more.
    #[arg(long)]
    stubborn: bool,
}

#[derive(Args)]
struct Work {
    /// Every call, and many more states behind each.
    #[arg(long)]
    long: bool,
    /// Where chance begins; it is always printed.
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
    /// How many states of the disk behind each call.
    #[arg(long)]
    states: Option<usize>,
    /// Only every so many calls.
    #[arg(long)]
    stride: Option<u64>,
    /// Stop at the first broken promise.
    #[arg(long)]
    first: bool,
    /// Prints what the scenario does, call by call, with the call of `--only` failing if there is one.
    #[arg(long)]
    show: bool,
    /// Says the scenarios and how many calls each has.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// A process that dies at its n-th call.
    Kill,
    /// A call that fails.
    Fail,
    /// A simulated disk that loses power.
    Power,
    /// A real file system that loses power.
    Shutdown,
    /// Files that somebody changed.
    Damage,
    /// Processes side by side, put to sleep and killed.
    Crowd,
}

fn main() -> ExitCode {
    let lab = Lab::parse();
    let done = match lab.role {
        Some(Role::Child(child)) => act(&child).map(|()| true),
        Some(Role::Crowd(child)) => crowd::act(&child.root, &child.acks, child.seed).map(|()| true),
        None => work(&lab.work),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn act(child: &Child) -> Tried {
    let scenario = scenario::named(&child.scenario)?;
    let paper = OpenOptions::new().create(true).append(true).open(&child.acks)?;
    let mut teller = Teller::on(paper);
    teller.stubborn = child.stubborn;
    (scenario.act)(&Home::at(&child.root, 2), &mut teller)
}

type Run = fn(&Plan, &Ready) -> Result<Tally, Trouble>;

/// The experiments that are made on every scenario.
const ON_SCENARIOS: [(Experiment, Run); 4] = [
    (Experiment::Kill, kill::run),
    (Experiment::Fail, fail::run),
    (Experiment::Power, power::run),
    (Experiment::Shutdown, shutdown::run),
];

fn plan(work: &Work) -> Tried<Plan> {
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

fn work(work: &Work) -> Tried<bool> {
    let plan = plan(work)?;
    println!("seed {}", plan.seed);
    let chosen: Vec<&Scenario> = match &work.scenario {
        Some(name) => vec![scenario::named(name)?],
        None => scenario::ALL.iter().collect(),
    };
    let wants = |experiment| work.experiment.is_none_or(|wanted| wanted == experiment);
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
            (_, true) => println!("{:<12} {:>5} calls", scenario.name, ready.calls),
            _ => {
                for (experiment, run) in ON_SCENARIOS.iter().filter(|(experiment, _)| wants(*experiment)) {
                    // A mount for each call takes its time: every scenario is cut, not every call of it.
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
        let (rounds, each) = if work.long { (20, 5) } else { (1, 3) };
        timed(&mut tally, "Crowd", || crowd::run(&plan, rounds, Duration::from_secs(each)))?;
    }
    println!("{tally}\nin {:.1} s, seed {}", began.elapsed().as_secs_f64(), plan.seed);
    Ok(tally.breaches.is_empty())
}

fn timed(tally: &mut Tally, what: &str, run: impl FnOnce() -> Tried<Tally>) -> Tried {
    let began = Instant::now();
    let done = run()?;
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("{what}: {} states in {seconds:.1} s, {} broken", done.states(), done.breaches.len());
    tally.join(done);
    Ok(())
}
