//! A process that is killed before, after or in the middle of each of its calls.

use std::os::unix::process::ExitStatusExt;

use crate::LabResult;
use crate::check::{Kind, breach};
use crate::run::{Plan, Ready, judge, spread};
use crate::shim::Fault;
use crate::tally::Tally;
use crate::trace::Call;

/// Kills a scenario at each included call.
pub fn run(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    // A few more than without faults: threads are not always scheduled in the same order.
    let calls: Vec<u64> = (1..=ready.calls + 2).filter(|n| plan.takes(*n)).collect();
    spread(plan, &calls, |n| at(plan, ready, *n))
}

/// Kills a scenario before and after each of its commits: at every call that makes one durable, regardless of the plan.
pub fn at_commits(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    let commits = ready.trace.iter().filter(|record| {
        record.call == Call::Sync && record.is_counted() && record.path.to_string_lossy().ends_with("registry.db-wal")
    });
    let commits: Vec<u64> = commits.map(|record| record.count).collect();
    if commits.is_empty() {
        return Err(format!("`{}` commits nothing", ready.scenario.name).into());
    }
    spread(plan, &commits, |n| at(plan, ready, *n))
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
