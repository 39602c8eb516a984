//! Calls that fail, once or permanently. Everything acknowledged is still present, a failed sync is not repeated on the
//! same file, and after a temporary failure the process that has the store open can use it.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::io::Errno;
use selvedge_store::conformance::support::SeededIds;

use crate::LabResult;
use crate::check::{CheckResult, Kind, breach};
use crate::fact::FIRST_TRY;
use crate::run::{Plan, Ready, judge, power, spread};
use crate::shim::{Ended, Fault};
use crate::tally::Tally;
use crate::trace::{Call, Record};

/// Lets each included changing call fail, in every way that applies to it.
pub fn run(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    let calls: Vec<u64> = (1..=ready.calls).filter(|n| plan.takes(*n)).collect();
    spread(plan, &calls, |n| {
        let found = ready.trace.iter().find(|record| record.count == *n && record.is_counted());
        found.map_or_else(|| Ok(Tally::default()), |record| at(plan, ready, record, &faults(record.call, *n)))
    })
}

/// Lets each included reading call fail: open, read, stat, list, unlock.
pub fn looks(plan: &Plan, ready: &Ready) -> LabResult<Tally> {
    looks_at(plan, ready, |_| true)
}

/// The same for some calls.
pub fn looks_at(plan: &Plan, ready: &Ready, wanted: impl Fn(&Record) -> bool) -> LabResult<Tally> {
    let looks = ready.trace.iter().filter(|record| record.is_look() && wanted(record) && plan.takes(record.count));
    let looks: Vec<&Record> = looks.collect();
    spread(plan, &looks, |record| at(plan, ready, record, &look_faults(record.call, record.count)))
}

/// The ways in which a changing call can fail.
fn faults(call: Call, n: u64) -> Vec<Fault> {
    let errors: &[Errno] = match call {
        Call::Write | Call::Cut => &[Errno::IO, Errno::NOSPC, Errno::INTR],
        Call::Sync => &[Errno::IO, Errno::NOSPC, Errno::INTR],
        Call::Lock => &[Errno::IO, Errno::NOLCK, Errno::INTR],
        Call::Create => &[Errno::IO, Errno::NOSPC, Errno::MFILE, Errno::INTR],
        Call::MakeFolder | Call::Link | Call::Rename => &[Errno::IO, Errno::NOSPC],
        _ => &[Errno::IO],
    };
    let once = errors.iter().map(|error| Fault::Fail(n, error.raw_os_error()));
    let more = match call {
        Call::Write => vec![Fault::FailOn(n, Errno::NOSPC.raw_os_error()), Fault::Short(n)],
        Call::Sync => vec![Fault::FailOn(n, Errno::IO.raw_os_error())],
        _ => Vec::new(),
    };
    once.chain(more).collect()
}

/// The ways in which a reading call can fail.
fn look_faults(call: Call, n: u64) -> Vec<Fault> {
    let [io, files, interrupted] = [Errno::IO, Errno::MFILE, Errno::INTR].map(Errno::raw_os_error);
    match call {
        Call::Read => {
            vec![Fault::FailLook(n, io), Fault::FailLooks(n, io), Fault::FailLook(n, interrupted), Fault::ShortLook(n)]
        }
        Call::Open => vec![Fault::FailLook(n, io), Fault::FailLook(n, files), Fault::FailLook(n, interrupted)],
        _ => vec![Fault::FailLook(n, io)],
    }
}

fn at(plan: &Plan, ready: &Ready, record: &Record, faults: &[Fault]) -> LabResult<Tally> {
    let mut tally = Tally::default();
    let n = record.count;
    let experiment = if record.is_look() { "look" } else { "fail" };
    for fault in faults.iter().copied() {
        let folder = plan.bench.folder()?;
        let root = folder.path().join("home");
        ready.before.put(&root)?;
        // A retry only makes sense after a temporary failure.
        let words: &[&str] = if fault.is_once() { &[ready.scenario.name, "--retries"] } else { &[ready.scenario.name] };
        let ended = plan.bench.run(words, &root, fault)?;
        let about = |why: &str| format!("{fault:?} ({:?} of {}): {why}", record.call, record.path.display());
        let again = || plan.again(experiment, ready.scenario.name, n);
        let check = || {
            survived(&ended, fault)?;
            was_retried(&ended, fault, record)?;
            judge(ready.scenario, &root, &ended.facts, 3)?;
            names_it(&ended, record)?;
            if fault.must_be_retried() { Ok(()) } else { never_synced_again(&ended.trace) }
        };
        let held = check();
        tally.add(experiment, ready.scenario.name, again, held.map_err(|found| breach(found.kind, about(&found.why))));
        // What a failed sync left is never durable, and another failure may leave a partial change: so a power failure is
        // added.
        let is_worth_it = matches!(record.call, Call::Sync | Call::Rename | Call::Create | Call::MakeFolder);
        if is_worth_it && matches!(fault, Fault::Fail(..)) && !fault.must_be_retried() && !is_sqlites_own(&ended.trace)
        {
            let chance = SeededIds::new(plan.seed ^ n);
            power::cut(plan, ready, &ended.trace, n, &chance, &mut tally)?;
        }
    }
    Ok(tally)
}

/// The call that failed. Threads are not always scheduled in the same order, so it may not be the intended one.
fn hit<'a>(ended: &'a Ended, meant: &'a Record) -> &'a Record {
    let hit = ended.trace.iter().find(|record| record.count == meant.count && record.is_look() == meant.is_look());
    hit.unwrap_or(meant)
}

/// Whether a file is SQLite's, which does not retry where we do.
fn is_sqlites(record: &Record) -> bool {
    let name = record.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name.starts_with("registry.db") || (name.starts_with("search.db") && !name.ends_with(".lock"))
}

/// Whether the call can be interrupted by a signal: only if it waits.
fn can_be_interrupted(record: &Record) -> bool {
    matches!(record.call, Call::Open | Call::Create | Call::Read | Call::Write | Call::Sync | Call::Cut | Call::Lock)
}

/// Checks that a call of ours that was interrupted, or did half of its work, was retried without an error.
fn was_retried(ended: &Ended, fault: Fault, meant: &Record) -> CheckResult {
    let hit = hit(ended, meant);
    let failed = ended.said.lines().find_map(|line| line.strip_prefix(FIRST_TRY));
    match failed {
        Some(why) if fault.must_be_retried() && can_be_interrupted(hit) && !is_sqlites(hit) => {
            Err(breach(Kind::Stuck, format!("a failure that should be retried was an error: {why}")))
        }
        _ => Ok(()),
    }
}

/// Checks that the error of a first attempt names the file or folder; for the database, its name is enough.
fn names_it(ended: &Ended, meant: &Record) -> CheckResult {
    let hit = hit(ended, meant);
    let name = hit.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = without_ending(&name);
    for said in ended.said.lines().filter_map(|line| line.strip_prefix(FIRST_TRY)) {
        let is_named = said.contains(name) || (is_sqlites(hit) && said.contains("database"));
        if !is_named {
            return Err(breach(Kind::Stuck, format!("the error does not name the file: {said}")));
        }
    }
    Ok(())
}

/// The final name of a temporary file: `.store.json.19780-2.tmp` becomes `store.json`.
fn without_ending(name: &str) -> &str {
    let Some(mut name) = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp")) else { return name };
    while let Some((before, end)) = name.rsplit_once('.')
        && end.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
    {
        name = before;
    }
    name
}

/// SQLite syncs the folder of a new write-ahead log right after the log, and ignores the result. If that sync fails
/// and the power fails as well, we can't help it.
fn is_sqlites_own(trace: &[Record]) -> bool {
    let counted: Vec<_> = trace.iter().filter(|record| record.is_counted() && record.call != Call::Lock).collect();
    let failed = counted.iter().position(|record| record.call == Call::Sync && record.failed);
    failed.and_then(|at| at.checked_sub(1)).is_some_and(|before| {
        let before = counted[before];
        before.call == Call::Sync && before.path.to_string_lossy().ends_with("registry.db-wal")
    })
}

/// The calls of a scenario; the call of the plan fails if there is one.
pub fn show(plan: &Plan, ready: &Ready) -> LabResult<String> {
    let fault = plan.only.map_or(Fault::None, |n| Fault::Fail(n, Errno::IO.raw_os_error()));
    let folder = plan.bench.folder()?;
    let root = folder.path().join("home");
    ready.before.put(&root)?;
    let ended = plan.bench.run(&[ready.scenario.name, "--retries"], &root, fault)?;
    let line = |record: &Record| {
        let fact = if record.call == Call::Ack {
            String::from_utf8_lossy(&record.data).trim().to_owned()
        } else {
            String::new()
        };
        format!(
            "{:>4} {:<12} {:>3} {:>7}+{:<6} {}{} {}{fact}\n",
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

/// Checks that a failure leads to an error at most: no panic, no crash; and if it was temporary, that the retry succeeded.
fn survived(ended: &Ended, fault: Fault) -> CheckResult {
    match ended.status.code() {
        _ if ended.hung => Err(breach(Kind::Stuck, "it hangs")),
        Some(0) => Ok(()),
        Some(1) if !fault.is_once() => Ok(()),
        Some(1) => Err(breach(Kind::Stuck, format!("one failure, and the retry failed too: {}", ended.said))),
        _ => Err(breach(Kind::Stuck, format!("it ended with {:?}: {}", ended.status.signal(), ended.said))),
    }
}

/// Whether it is a database that is built under another name and discarded on any error: if SQLite's sync of it fails, SQLite rolls back
/// and syncs that, and the build fails nevertheless.
fn is_built_aside(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_database = name.starts_with("registry.db");
    is_database
        && (name.contains(".db.new")
            || path.components().any(|part| part.as_os_str().to_string_lossy().ends_with(".partial")))
}

/// Checks that after a failed sync the same open file is never synced again: a second result would prove nothing.
fn never_synced_again(trace: &[Record]) -> CheckResult {
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
