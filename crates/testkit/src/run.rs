//! The experiments. Each takes a plan, and gives a tally in which every broken promise says how it is seen again.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Tried;
use crate::check::{self, Held};
use crate::fact::Fact;
use crate::home::Home;
use crate::scenario::Scenario;
use crate::shim::{Bench, Blow};
use crate::tally::Tally;
use crate::trace::Record;
use crate::tree::Tree;

pub mod crowd;
pub mod damage;
pub mod fail;
pub mod kill;
pub mod power;
pub mod shutdown;

/// How much is tried.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tools.
    pub bench: Bench,
    /// Where chance begins.
    pub seed: u64,
    /// Only every so many calls are cut or let fail; 1 is each.
    pub stride: u64,
    /// Only this call.
    pub only: Option<u64>,
    /// How many states of the disk are looked at behind each call.
    pub states: usize,
    /// Whether the first broken promise is enough.
    pub first: bool,
}

impl Plan {
    /// Whether the n-th call is tried. Where only some are, the seed says which.
    fn takes(&self, n: u64) -> bool {
        self.only.map_or(n % self.stride == self.seed % self.stride, |only| only == n)
    }

    /// How to see something again.
    fn again(&self, experiment: &str, scenario: &str, n: u64) -> String {
        format!(
            "cargo xtask crash --experiment {experiment} --scenario {scenario} --seed {} --states {} --only {n}",
            self.seed, self.states
        )
    }
}

/// A scenario, ready to be run any number of times from the same beginning.
pub struct Ready {
    /// Which.
    pub scenario: &'static Scenario,
    /// Where it begins.
    pub before: Tree,
    /// What it does if nobody disturbs it.
    pub trace: Vec<Record>,
    /// Where it began when it was traced.
    pub calls: u64,
}

impl Ready {
    /// Prepares a scenario and runs it once undisturbed.
    pub fn make(plan: &Plan, scenario: &'static Scenario) -> Tried<Self> {
        let folder = plan.bench.folder()?;
        let root = folder.path().join("home");
        std::fs::create_dir(&root)?;
        let home = Home::make(&root, plan.seed.wrapping_mul(4))?;
        (scenario.prepare)(&home)?;
        let before = Tree::take(&root)?;
        let root = folder.path().join("run");
        before.put(&root)?;
        let ended = plan.bench.run(&[scenario.name], &root, Blow::None)?;
        if !ended.status.success() {
            return Err(format!("`{}` fails undisturbed: {}", scenario.name, ended.said).into());
        }
        if let Err(breach) = judge(scenario, &root, &ended.facts, 3) {
            return Err(format!("`{}` does not hold undisturbed: {breach}", scenario.name).into());
        }
        let calls = ended.trace.iter().map(|record| record.count).max().unwrap_or(0);
        Ok(Self { scenario, before, trace: ended.trace, calls })
    }
}

/// Looks at a home after a cut.
fn judge(scenario: &Scenario, root: &Path, facts: &[Fact], seed: u64) -> Held {
    check::after_cut(&Home::at(root, seed), scenario, facts)
}

/// Does `work` to every item on as many threads as there are cores, and joins what they came to.
pub fn spread<T: Sync>(plan: &Plan, items: &[T], work: impl Fn(&T) -> Tried<Tally> + Sync) -> Tried<Tally> {
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
