//! The experiments. Each takes a plan and returns a tally, in which every broken promise has the command that reproduces it.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::LabResult;
use crate::check::{self, CheckResult};
use crate::fact::Fact;
use crate::home::Home;
use crate::scenario::Scenario;
use crate::shim::{Bench, Fault};
use crate::tally::Tally;
use crate::trace::Record;
use crate::tree::Tree;

pub mod concurrent;
pub mod damage;
pub mod fail;
pub mod kill;
pub mod power;
pub mod shutdown;

/// The extent of the experiments.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tools.
    pub bench: Bench,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Only every n-th call is interrupted or fails; 1 means each.
    pub stride: u64,
    /// Only this call.
    pub only: Option<u64>,
    /// How many disk states are checked after each call.
    pub states: usize,
    /// Whether to stop at the first broken promise.
    pub first: bool,
}

impl Plan {
    /// Whether the n-th call is included. If only some are, the seed decides which.
    fn takes(&self, n: u64) -> bool {
        self.only.map_or(n % self.stride == self.seed % self.stride, |only| only == n)
    }

    /// The command that reproduces a result.
    fn again(&self, experiment: &str, scenario: &str, n: u64) -> String {
        format!(
            "cargo xtask crash --experiment {experiment} --scenario {scenario} --seed {} --states {} --only {n}",
            self.seed, self.states
        )
    }
}

/// A scenario that can be run any number of times from the same state.
pub struct Ready {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// The state before it.
    pub before: Tree,
    /// Its calls when nothing interrupts it.
    pub trace: Vec<Record>,
    /// The number of its changing calls.
    pub calls: u64,
    /// The number of its reading calls.
    pub looks: u64,
}

impl Ready {
    /// Prepares a scenario and runs it once without faults.
    pub fn make(plan: &Plan, scenario: &'static Scenario) -> LabResult<Self> {
        let folder = plan.bench.folder()?;
        let root = folder.path().join("home");
        std::fs::create_dir(&root)?;
        let home = Home::make(&root, plan.seed.wrapping_mul(4))?;
        (scenario.prepare)(&home)?;
        let before = Tree::take(&root)?;
        let root = folder.path().join("run");
        before.put(&root)?;
        let ended = plan.bench.run(&[scenario.name], &root, Fault::None)?;
        if !ended.status.success() {
            return Err(format!("`{}` fails without faults: {}", scenario.name, ended.said).into());
        }
        if let Err(breach) = judge(scenario, &root, &ended.facts, 3) {
            return Err(format!("`{}` breaks a promise without faults: {breach}", scenario.name).into());
        }
        let most = |takes: fn(&Record) -> bool| {
            ended.trace.iter().filter(|record| takes(record)).map(|record| record.count).max().unwrap_or(0)
        };
        let calls = most(Record::is_counted);
        let looks = most(Record::is_look);
        Ok(Self { scenario, before, trace: ended.trace, calls, looks })
    }
}

/// Checks a home after an interruption.
fn judge(scenario: &Scenario, root: &Path, facts: &[Fact], seed: u64) -> CheckResult {
    check::after_cut(&Home::at(root, seed), scenario, facts)
}

/// Applies `work` to every item on as many threads as there are cores, and joins the tallies.
pub fn spread<T: Sync>(plan: &Plan, items: &[T], work: impl Fn(&T) -> LabResult<Tally> + Sync) -> LabResult<Tally> {
    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Ok(Tally::default()));
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(items.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let done = work(item);
                    let mut tally = tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match (&mut *tally, done) {
                        (Ok(tally), Ok(done)) => {
                            tally.join(done);
                            if plan.first && !tally.breaches.is_empty() {
                                next.store(items.len(), Ordering::Relaxed);
                            }
                        }
                        (Ok(_), Err(error)) => *tally = Err(error),
                        (Err(_), _) => return,
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
