//! Calls that fail: once, or from then on. What was acknowledged is there all the same, a sync that failed is not tried again on the
//! same file, and after a failure that passes the store is usable by whoever has it open.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::io::Errno;
use selvedge_store::conformance::support::SeededIds;

use crate::Tried;
use crate::check::{Held, Kind, breach};
use crate::run::{Plan, Ready, judge, power, spread};
use crate::shim::{Blow, Ended};
use crate::tally::Tally;
use crate::trace::{Call, Record};

/// Lets every call fail that the plan takes, in every way that fits it.
pub fn run(plan: &Plan, ready: &Ready) -> Tried<Tally> {
    let calls: Vec<u64> = (1..=ready.calls).filter(|n| plan.takes(*n)).collect();
    spread(plan, &calls, |n| at(plan, ready, *n))
}

fn blows(call: Call, n: u64) -> Vec<Blow> {
    let [io, full, interrupted] = [Errno::IO, Errno::NOSPC, Errno::INTR].map(Errno::raw_os_error);
    match call {
        Call::Write => vec![
            Blow::Fail(n, io),
            Blow::Fail(n, full),
            Blow::FailOn(n, full),
            Blow::Fail(n, interrupted),
            Blow::Short(n),
        ],
        Call::Sync => vec![Blow::Fail(n, io), Blow::FailOn(n, io), Blow::Fail(n, full)],
        Call::Lock => vec![Blow::Fail(n, io), Blow::Fail(n, interrupted)],
        Call::Create | Call::MakeFolder | Call::Link => vec![Blow::Fail(n, io), Blow::Fail(n, full)],
        _ => vec![Blow::Fail(n, io)],
    }
}

fn at(plan: &Plan, ready: &Ready, n: u64) -> Tried<Tally> {
    let mut tally = Tally::default();
    let Some(record) = ready.trace.iter().find(|record| record.count == n && record.is_counted()) else {
        return Ok(tally);
    };
    for blow in blows(record.call, n) {
        let folder = plan.bench.folder()?;
        let root = folder.path().join("home");
        ready.before.put(&root)?;
        // Only what passes is worth a second try.
        let words: &[&str] = match blow {
            Blow::FailOn(..) => &[ready.scenario.name],
            _ => &[ready.scenario.name, "--stubborn"],
        };
        let ended = plan.bench.run(words, &root, blow)?;
        let about = |why: &str| format!("{blow:?} ({:?} of {}): {why}", record.call, record.path.display());
        let again = || plan.again("fail", ready.scenario.name, n);
        let held = survived(&ended, blow)
            .and_then(|()| judge(ready.scenario, &root, &ended.facts, 3))
            .and_then(|()| if is_interruption(blow) { Ok(()) } else { never_synced_again(&ended.trace) });
        tally.add("fail", ready.scenario.name, again, held.map_err(|found| breach(found.kind, about(&found.why))));
        // What a failed sync left is unsure for ever, and what another failure left may be half of something: so the power may go
        // as well.
        let is_worth_it = matches!(record.call, Call::Sync | Call::Rename | Call::Create | Call::MakeFolder);
        if is_worth_it && matches!(blow, Blow::Fail(..)) && !is_sqlites_own(&ended.trace) {
            let chance = SeededIds::new(plan.seed ^ n);
            power::cut(plan, ready, &ended.trace, n, &chance, &mut tally)?;
        }
    }
    Ok(tally)
}

/// Whether a call is only interrupted. Threads don't always meet in the same order, so what was meant for a write may hit a sync; one that
/// was interrupted did nothing yet, and is made again.
fn is_interruption(blow: Blow) -> bool {
    matches!(blow, Blow::Fail(_, error) if error == Errno::INTR.raw_os_error())
}

/// SQLite syncs the folder of a new write-ahead log right behind the log, and does not look at the answer. That this one fails
/// and the power goes as well is out of our hands.
fn is_sqlites_own(trace: &[Record]) -> bool {
    let counted: Vec<_> = trace.iter().filter(|record| record.is_counted() && record.call != Call::Lock).collect();
    let failed = counted.iter().position(|record| record.call == Call::Sync && record.failed);
    failed.and_then(|at| at.checked_sub(1)).is_some_and(|before| {
        let before = counted[before];
        before.call == Call::Sync && before.path.to_string_lossy().ends_with("registry.db-wal")
    })
}

/// What a scenario does, call by call; the call of the plan fails if there is one.
pub fn show(plan: &Plan, ready: &Ready) -> Tried<String> {
    let blow = plan.only.map_or(Blow::None, |n| Blow::Fail(n, Errno::IO.raw_os_error()));
    let folder = plan.bench.folder()?;
    let root = folder.path().join("home");
    ready.before.put(&root)?;
    let ended = plan.bench.run(&[ready.scenario.name, "--stubborn"], &root, blow)?;
    let line = |record: &Record| {
        let told = if record.call == Call::Ack {
            String::from_utf8_lossy(&record.data).trim().to_owned()
        } else {
            String::new()
        };
        format!(
            "{:>4} {:<12} {:>3} {:>7}+{:<6} {}{} {}{told}\n",
            record.count,
            format!("{:?}", record.call),
            record.file,
            record.offset,
            record.data.len(),
            if record.failed { "FAILED " } else { "" },
            record.path.display(),
            record.second.display(),
        )
    };
    let lines: String = ended.trace.iter().map(line).collect();
    Ok(format!("{lines}{}{}\n", ended.said, ended.status))
}

/// A failure is answered with an error at most: no panic, no death; and if it passes, the second try succeeds.
fn survived(ended: &Ended, blow: Blow) -> Held {
    let passes = !matches!(blow, Blow::FailOn(..));
    match ended.status.code() {
        _ if ended.hung => Err(breach(Kind::Stuck, "it hangs")),
        Some(0) => Ok(()),
        Some(1) if !passes => Ok(()),
        Some(1) => Err(breach(Kind::Stuck, format!("one failure and the second try failed too: {}", ended.said))),
        _ => Err(breach(Kind::Stuck, format!("it ended with {:?}: {}", ended.status.signal(), ended.said))),
    }
}

/// A database that is built beside its place and thrown away on any error: when SQLite's sync of it fails, SQLite rolls back and syncs
/// that, and what it was built for ends in the error all the same.
fn is_built_aside(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_database = name.starts_with("registry.db");
    is_database
        && (name.contains(".db.new")
            || path.components().any(|part| part.as_os_str().to_string_lossy().ends_with(".partial")))
}

/// After a failed sync the same open file is never synced again: the second answer would prove nothing.
fn never_synced_again(trace: &[Record]) -> Held {
    let mut failed: HashSet<i32> = HashSet::new();
    for record in trace {
        match record.call {
            Call::Open | Call::Create => _ = failed.remove(&record.file),
            Call::Sync if record.failed => _ = failed.insert(record.file),
            Call::Sync if failed.contains(&record.file) && !is_built_aside(&record.path) => {
                let why = format!("`{}` was synced again after its sync had failed", record.path.display());
                return Err(breach(Kind::Lost, why));
            }
            _ => {}
        }
    }
    Ok(())
}
