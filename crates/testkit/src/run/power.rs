//! Power cuts: the calls of a trace replayed onto a disk that loses what was not synced.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use selvedge_store::conformance::support::SeededIds;

use crate::Tried;
use crate::disk::Disk;
use crate::fact;
use crate::run::{Plan, Ready, judge, spread};
use crate::tally::Tally;
use crate::trace::{Call, Record};
use crate::tree::Tree;

/// Cuts the power behind every call that the plan takes.
pub fn run(plan: &Plan, ready: &Ready) -> Tried<Tally> {
    // Each piece replays the trace to its own part of it; cheap against looking at what is left.
    let pieces: Vec<usize> = (0..16).collect();
    spread(plan, &pieces, |piece| {
        let mut tally = Tally::default();
        replay(plan, ready, &ready.trace, "power", &mut tally, &mut |place| {
            let n = place as u64;
            let takes = plan.takes(n) && place % pieces.len() == *piece;
            takes.then(|| (n, SeededIds::new(plan.seed ^ (n << 20))))
        })?;
        Ok(tally)
    })
}

/// Cuts the power at some places of a trace behind the call that failed.
pub(super) fn cut(
    plan: &Plan,
    ready: &Ready,
    trace: &[Record],
    n: u64,
    chance: &SeededIds,
    tally: &mut Tally,
) -> Tried {
    let failed = trace.iter().position(|record| record.count == n && record.failed).unwrap_or(trace.len());
    let failed = failed.max(log_anew(trace, failed));
    let few = Plan { states: (plan.states / 4).max(2), ..plan.clone() };
    let stride = 3 * plan.stride as usize;
    replay(&few, ready, trace, "fail+power", tally, &mut |place| {
        (place >= failed && (place - failed) % stride == 0).then(|| (n, chance.clone()))
    })
}

/// After a failed sync of SQLite's write-ahead log everything in it is moved into the database. Until that is synced, a power cut may
/// leave pages that are newer than the log, and a database that must be rebuilt; what is promised begins behind it.
fn log_anew(trace: &[Record], failed: usize) -> usize {
    let is_of_log = trace
        .get(failed)
        .is_some_and(|record| record.call == Call::Sync && record.path.to_string_lossy().ends_with("registry.db-wal"));
    let moved = |record: &Record| record.call == Call::Sync && !record.failed && record.path.ends_with("registry.db");
    match is_of_log {
        true => trace.iter().skip(failed).position(moved).map_or(trace.len(), |behind| failed + behind + 1),
        false => failed,
    }
}

fn replay(
    plan: &Plan,
    ready: &Ready,
    trace: &[Record],
    experiment: &'static str,
    tally: &mut Tally,
    wanted: &mut dyn FnMut(usize) -> Option<(u64, SeededIds)>,
) -> Tried {
    let mut disk = Disk::of(&ready.before);
    let mut told = Vec::new();
    let mut seen = HashSet::new();
    for (place, record) in trace.iter().enumerate() {
        if record.call == Call::Ack {
            told.extend_from_slice(&record.data);
        }
        disk.after(record);
        // Locks and openings change nothing; an acknowledgement does.
        if matches!(record.call, Call::Lock | Call::Open) {
            continue;
        }
        if plan.first && !tally.breaches.is_empty() {
            break;
        }
        let Some((n, chance)) = wanted(place) else { continue };
        let facts = fact::parse(&told)?;
        for tree in disk.states(plan.states, &chance) {
            if !seen.insert(digest(&tree, facts.len())) {
                continue;
            }
            let folder = plan.bench.folder()?;
            let root = folder.path().join("home");
            tree.put(&root)?;
            let held = judge(ready.scenario, &root, &facts, 3);
            let name = experiment.split('+').next().unwrap_or(experiment);
            tally.add(experiment, ready.scenario.name, || plan.again(name, ready.scenario.name, n), held);
        }
    }
    Ok(())
}

fn digest(tree: &Tree, told: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (tree, told).hash(&mut hasher);
    hasher.finish()
}
