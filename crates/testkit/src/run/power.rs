//! Power failures: the calls of a trace replayed onto a disk that loses what was not synced; and a second failure during the
//! recovery from the first.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use selvedge_store::conformance::support::SeededIds;

use crate::LabResult;
use crate::check::{Kind, breach};
use crate::disk::Disk;
use crate::fact::{self, Fact};
use crate::run::{Plan, Ready, judge, spread};
use crate::scenario::Scenario;
use crate::shim::Fault;
use crate::tally::Tally;
use crate::trace::{Call, Record};
use crate::tree::Tree;

/// Cuts the power after each included call.
pub fn run(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    // Each piece replays the trace up to its own part; that is cheap compared with checking the result.
    let pieces: Vec<usize> = (0..16).collect();
    spread(plan, &pieces, |piece| {
        let mut tally = Tally::default();
        replay(plan, &From::start(ready), &ready.trace, "power", &mut tally, &mut |place| {
            let n = place as u64;
            let takes = plan.takes(n) && place % pieces.len() == *piece;
            takes.then(|| (n, SeededIds::new(plan.seed ^ (n << 20))))
        })?;
        Ok(tally)
    })
}

/// Cuts the power at some points of a trace after the failed call.
pub(super) fn cut(
    plan: &Plan,
    ready: &Ready,
    trace: &[Record],
    n: u64,
    chance: &SeededIds,
    tally: &mut Tally,
) -> LabResult {
    let failed = trace.iter().position(|record| record.count == n && record.failed).unwrap_or(trace.len());
    let failed = failed.max(log_anew(trace, failed));
    let few = Plan { states: (plan.states / 4).max(2), ..plan.clone() };
    let stride = 3 * plan.stride as usize;
    replay(&few, &From::start(ready), trace, "fail+power", tally, &mut |place| {
        (place >= failed && (place - failed) % stride == 0).then(|| (n, chance.clone()))
    })
}

/// After a failed sync of SQLite's write-ahead log, everything in it is moved into the database. Until that is synced, a power failure may
/// leave pages that are newer than the log, and a database that must be rebuilt; the promises hold only after it.
fn log_anew(trace: &[Record], failed: usize) -> usize {
    let is_of_log = trace
        .get(failed)
        .is_some_and(|record| record.call == Call::Sync && record.path.to_string_lossy().ends_with("registry.db-wal"));
    let moved = |record: &Record| record.call == Call::Sync && !record.failed && record.path.ends_with("registry.db");
    if !is_of_log {
        return failed;
    }
    trace.iter().skip(failed).position(moved).map_or(trace.len(), |offset| failed + offset + 1)
}

/// The state before a trace.
struct From<'a> {
    scenario: &'static Scenario,
    before: &'a Tree,
    /// The facts acknowledged before it.
    facts: Vec<Fact>,
}

impl<'a> From<'a> {
    fn start(ready: &'a Ready) -> Self {
        Self { scenario: ready.scenario, before: &ready.before, facts: Vec::new() }
    }
}

fn replay(
    plan: &Plan,
    from: &From<'_>,
    trace: &[Record],
    experiment: &'static str,
    tally: &mut Tally,
    wanted: &mut dyn FnMut(usize) -> Option<(u64, SeededIds)>,
) -> LabResult {
    let name = experiment.split('+').next().unwrap_or(experiment);
    let again = |n| plan.again(name, from.scenario.name, n);
    each_cut(plan, from, trace, wanted, &mut |n, tree, facts| {
        if plan.first && !tally.breaches.is_empty() {
            return Ok(());
        }
        let folder = plan.bench.folder()?;
        let root = folder.path().join("home");
        tree.put(&root)?;
        let held = judge(from.scenario, &root, facts, 3);
        tally.add(experiment, from.scenario.name, || again(n), held);
        Ok(())
    })
}

/// Passes every state that power failures at the wanted points leave to `each`, with the facts acknowledged by then.
fn each_cut(
    plan: &Plan,
    from: &From<'_>,
    trace: &[Record],
    wanted: &mut dyn FnMut(usize) -> Option<(u64, SeededIds)>,
    each: &mut dyn FnMut(u64, Tree, &[Fact]) -> LabResult,
) -> LabResult {
    let mut disk = Disk::of(from.before);
    let mut facts = Vec::new();
    let mut seen = HashSet::new();
    for (place, record) in trace.iter().enumerate() {
        if record.call == Call::Ack {
            facts.extend_from_slice(&record.data);
        }
        disk.after(record);
        // Locks and reads change nothing; an acknowledgement does.
        if record.call == Call::Lock || record.is_look() {
            continue;
        }
        let Some((n, chance)) = wanted(place) else { continue };
        let facts: Vec<Fact> = from.facts.iter().cloned().chain(fact::parse(&facts)?).collect();
        for tree in disk.states(plan.states, &chance) {
            if seen.insert(digest(&tree, facts.len())) {
                each(n, tree, &facts)?;
            }
        }
    }
    Ok(())
}

/// The number of second power failures for each state that a first one left.
const SECOND_CUTS: u64 = 6;

/// Cuts the power after each included call, lets a process recover and run the scenario again, and cuts the power of that as well.
pub fn twice(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    let pieces: Vec<usize> = (0..16).collect();
    spread(plan, &pieces, |piece| {
        let mut tally = Tally::default();
        let mut wanted = |place: usize| {
            let n = place as u64;
            let takes = plan.takes(n) && place % pieces.len() == *piece;
            takes.then(|| (n, SeededIds::new(plan.seed ^ (n << 21))))
        };
        each_cut(plan, &From::start(ready), &ready.trace, &mut wanted, &mut |n, tree, facts| {
            again_from(plan, ready, n, &tree, facts, &mut tally)
        })?;
        Ok(tally)
    })
}

fn again_from(plan: &Plan, ready: &Ready, n: u64, tree: &Tree, facts: &[Fact], tally: &mut Tally) -> LabResult {
    let folder = plan.bench.folder()?;
    let root = folder.path().join("home");
    tree.put(&root)?;
    let ended = plan.bench.run(&[ready.scenario.name], &root, Fault::None)?;
    if !ended.status.success() {
        let why = format!("after the first power failure the second run fails: {}", ended.said);
        let again = || plan.again("twice", ready.scenario.name, n);
        tally.add("twice", ready.scenario.name, again, Err(breach(Kind::Stuck, why)));
        return Ok(());
    }
    // Half of the cuts are early, while the store is opened and recovers, the other half anywhere.
    let chance = SeededIds::new(plan.seed ^ (n << 22) ^ digest(tree, facts.len()));
    let changes: Vec<usize> = (0..ended.trace.len()).filter(|place| ended.trace[*place].is_counted()).collect();
    let early = (changes.len() as u64 / 4).max(1);
    let pick = |cut: u64| {
        changes.get(chance.below(if cut.is_multiple_of(2) { early } else { changes.len().max(1) as u64 }) as usize)
    };
    let places: HashSet<usize> = (0..SECOND_CUTS).filter_map(pick).copied().collect();
    let from = From { scenario: ready.scenario, before: tree, facts: facts.to_vec() };
    let one = Plan { states: 2, ..plan.clone() };
    replay(&one, &from, &ended.trace, "twice", tally, &mut |place| {
        places.contains(&place).then(|| (n, SeededIds::new(plan.seed ^ n ^ (place as u64) << 32)))
    })
}

fn digest(tree: &Tree, facts: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (tree, facts).hash(&mut hasher);
    hasher.finish()
}
