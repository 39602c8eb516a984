//! A process that is killed before, after or in the middle of each of its calls.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::LabResult;
use crate::check::{Kind, breach};
use crate::run::{Plan, Ready, judge, spread};
use crate::scenario::streams;
use crate::shim::Fault;
use crate::tally::Tally;
use crate::trace::{Call, Record};

/// Kills a scenario at each included call.
pub fn run(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    // A few more than without faults: threads are not always scheduled in the same order.
    let calls: Vec<u64> = (1..=ready.calls + 2).filter(|n| plan.takes(*n)).collect();
    spread(plan, &calls, |n| at(plan, ready, *n))
}

/// Kills a scenario before and after each of its commits: at every call that makes one durable, regardless of the plan.
pub fn at_commits(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    let is_commit =
        |record: &Record| record.call == Call::Sync && record.path.to_string_lossy().ends_with("registry.db-wal");
    at_calls(plan, ready, is_commit, "commits nothing")
}

/// Kills a scenario while its model streams an answer: before, after and in the middle of each write of the host's books, which has one
/// for every piece that it sends.
pub fn in_streams(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    let is_piece = |record: &Record| record.call == Call::Write && record.path == Path::new(streams::BOOKS);
    at_calls(plan, ready, is_piece, "streams nothing")
}

/// Kills a scenario at the calls that are wanted, regardless of the plan.
fn at_calls(plan: &Plan, ready: &Ready, wanted: impl Fn(&Record) -> bool, otherwise: &str) -> LabResult<Tally> {
    let calls = ready.trace.iter().filter(|record| record.is_counted() && wanted(record));
    let calls: Vec<u64> = calls.map(|record| record.count).collect();
    if calls.is_empty() {
        return Err(format!("`{}` {otherwise}", ready.scenario.name).into());
    }
    spread(plan, &calls, |n| at(plan, ready, *n))
}

fn at(plan: &Plan, ready: &Ready, n: u64) -> LabResult<Tally> {
    let mut tally = Tally::default();
    let is_write = ready.trace.iter().any(|record| record.count == n && record.call == Call::Write);
    let mut faults = vec![Fault::Before(n), Fault::After(n)];
    faults.extend(is_write.then_some(Fault::Half(n)));
    for fault in faults {
        let folder = plan.bench.folder()?;
        let root = folder.path().join("home");
        ready.before.put(&root)?;
        let ended = plan.bench.run(&[ready.scenario.name], &root, fault)?;
        let held = match ended.status.signal() {
            _ if ended.hung => Err(breach(Kind::Stuck, "it hangs")),
            None if !ended.status.success() => {
                Err(breach(Kind::Stuck, format!("{fault:?}: it was not killed, but failed: {}", ended.said)))
            }
            _ => judge(ready.scenario, &root, &ended.facts, 3),
        };
        let held = held.map_err(|found| breach(found.kind, format!("{fault:?}: {}", found.why)));
        tally.add("kill", ready.scenario.name, || plan.again("kill", ready.scenario.name, n), held);
    }
    Ok(tally)
}
