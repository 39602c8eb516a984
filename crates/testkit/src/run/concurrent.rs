//! Concurrent processes on the same threads, some of them paused, resumed after their leases were taken over, and killed.
//!
//! At the end, everything that any of them was acknowledged is true, no version was acknowledged twice, every batch is complete, no older
//! epoch wrote after a newer one, and the ledger agrees with the logs.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use selvedge_model::account::Posting;
use selvedge_model::{Batch, Changeset, CommitKey, Money, Part, Reason, ThreadId};
use selvedge_store::conformance::support::{SeededIds, batch as of, birth, id, new_thread, part, says};
use selvedge_store::{Acquire, Commit, Leases};

use crate::LabResult;
use crate::check::{CheckResult, Kind, accepts_appends, all_consistent, breach, facts_hold, or};
use crate::fact::{self, Fact, FactRecorder};
use crate::home::Home;
use crate::run::Plan;
use crate::tally::Tally;

/// How many processes run at a time.
const PROCESSES: usize = 4;

fn threads() -> [ThreadId; 2] {
    [id("one-0123456789ab"), id("two-0123456789ab")]
}

/// Runs concurrent processes for a while, and checks the result.
pub fn run(plan: &Plan, rounds: u64, each: Duration) -> LabResult<Tally> {
    let mut tally = Tally::default();
    for round in 0..rounds {
        let seed = plan.seed.wrapping_add(round);
        let again = || format!("cargo xtask crash --experiment crowd --seed {seed}");
        let folder = plan.bench.folder()?;
        let facts = run_processes(plan, folder.path(), seed, each)?;
        let held = judge(&Home::at(&folder.path().join("home"), seed ^ 0xffff), &facts);
        tally.add("crowd", "all", again, held);
        // Each acknowledged fact is one more that could have been lost.
        for _ in facts {
            tally.add("told", "crowd", String::new, Ok(()));
        }
    }
    Ok(tally)
}

fn run_processes(plan: &Plan, folder: &Path, seed: u64, each: Duration) -> LabResult<Vec<Fact>> {
    let root = folder.join("home");
    fs::create_dir(&root)?;
    let home = Home::make(&root, seed)?;
    let store = home.open()?;
    for thread in threads() {
        store.commit(Batch::of(birth(&thread, new_thread())))?;
    }
    let [one, _] = threads();
    let opened = Posting::Open { account: one.clone(), parent: None, max: Some(Money::from_nanos(1_000)?) };
    store.commit(Batch::of(posts(&one, opened)))?;
    store.close()?;
    let mut ack_files: Vec<PathBuf> = Vec::new();
    let mut start = || -> LabResult<Child> {
        let ack_file = folder.join(format!("acks-{}", ack_files.len()));
        let mut command = Command::new(plan.bench.program());
        command.args(["crowd", "--root"]).arg(&root).arg("--acks").arg(&ack_file);
        command.args(["--seed", &format!("{}", seed.wrapping_mul(1000).wrapping_add(ack_files.len() as u64 + 1))]);
        ack_files.push(ack_file);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
    };
    let mut crowd = (0..PROCESSES).map(|_| start()).collect::<LabResult<Vec<_>>>()?;
    let chance = SeededIds::new(seed);
    let until = Instant::now() + each;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5 + chance.below(40)));
        let which = chance.below(PROCESSES as u64) as usize;
        let pid = Pid::from_child(&crowd[which]);
        match chance.below(3) {
            0 => {
                crowd[which].kill()?;
                crowd[which].wait()?;
                crowd[which] = start()?;
            }
            // Long enough for another process to take over its leases.
            _ => {
                _ = kill_process(pid, Signal::STOP);
                std::thread::sleep(Duration::from_millis(20 + chance.below(60)));
                _ = kill_process(pid, Signal::CONT);
            }
        }
    }
    for mut child in crowd {
        child.kill()?;
        child.wait()?;
    }
    let mut facts = Vec::new();
    for ack_file in ack_files {
        facts.extend(fact::parse(&fs::read(ack_file).unwrap_or_default())?);
    }
    Ok(facts)
}

fn judge(home: &Home, facts: &[Fact]) -> CheckResult {
    let mut acknowledged: BTreeMap<(&ThreadId, u64), &CommitKey> = BTreeMap::new();
    for fact in facts {
        if let Fact::Own { what } = fact {
            return Err(breach(Kind::Lost, what.clone()));
        }
        let Fact::Committed { key, versions } = fact else { continue };
        for (thread, version) in versions {
            if let Some(other) = acknowledged.insert((thread, *version), key) {
                return Err(breach(
                    Kind::Blended,
                    format!("`{thread}` {version} was acknowledged to `{other}` and `{key}`"),
                ));
            }
        }
    }
    let store = home.open().map_err(or(Kind::Stuck, "the store can't be opened"))?;
    facts_hold(home, &store, facts)?;
    all_consistent(&store)?;
    accepts_appends(&store)
}

fn posts(thread: &ThreadId, posting: Posting) -> Part {
    Part { postings: vec![posting], ..part(thread, Changeset::empty(Reason::Reserved)) }
}

/// Whether the file itself contains a commit, regardless of the database.
fn is_seen(home: &Home, thread: &ThreadId, key: &str) -> LabResult<bool> {
    let text = fs::read_to_string(home.threads().join(thread.folder()).join("transcript.jsonl"))?;
    Ok(text.contains(&format!("\"key\":\"{key}\"")))
}

/// The work of one process, until it is killed.
pub fn act(root: &Path, acks: &Path, seed: u64) -> LabResult {
    let home = Home::at(root, seed);
    let mut recorder = FactRecorder::on(OpenOptions::new().create(true).append(true).open(acks)?);
    let chance = SeededIds::new(seed ^ 0x5eed);
    let store = home.open()?;
    let [one, two] = threads();
    for number in 0.. {
        let key = |what: &str| format!("{what}-{seed}-{number}");
        // A commit may be refused because another process was faster or holds the lease.
        match chance.below(5) {
            0 => {
                let key = key("append");
                if recorder.commit(&store, &key, Batch::of(part(&one, says("alone")))).is_ok()
                    && !is_seen(&home, &one, &key)?
                {
                    recorder.record(Fact::Own {
                        what: format!("`{key}` was acknowledged before it was in the transcript"),
                    })?;
                }
            }
            1 => {
                let parts = [part(&one, says("one of two")), part(&two, says("two of two"))];
                _ = recorder.commit(&store, &key("batch"), of(parts));
            }
            2 => {
                let account = one.clone();
                let reservation = id(&key("call"));
                let amount = Money::from_nanos(40)?;
                let reserve = Posting::Reserve { account, reservation, amount, child: None };
                if recorder.commit(&store, &key("reserve"), Batch::of(posts(&two, reserve))).is_ok() {
                    let release = Posting::Release { account: one.clone(), reservation: id(&key("call")) };
                    _ = recorder.commit(&store, &key("release"), Batch::of(posts(&two, release)));
                }
            }
            _ => {
                let thread = if chance.below(2) == 0 { &one } else { &two };
                let how = Acquire { take_over: chance.below(2) == 0, wait: Duration::from_millis(5) };
                if let Ok(lease) = store.acquire(thread, how) {
                    for step in 0..3 {
                        let batch = Batch::of(part(thread, says("under a lease")).under(lease.epoch));
                        _ = recorder.commit(&store, &key(&format!("leased-{step}")), batch);
                    }
                    _ = store.release(&lease);
                }
            }
        }
    }
    Ok(())
}
