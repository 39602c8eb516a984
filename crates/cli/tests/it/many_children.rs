//! Many children of one parent, each a process of its own, eight at a time. Children and parent are killed by SIGKILL at random
//! moments, stopped, and fail; killed ones are resumed until nothing is left to do. Then every nano-dollar is where it
//! belongs.
//!
//! `SELVEDGE_TEST_CHILDREN` says how many, `SELVEDGE_TEST_SEED` where chance begins.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::{Event, Manifest, Status, ThreadId};
use selvedge_store::{Leases, Logs, Registry};
use selvedge_store_local::LocalStore;
use serde_json::json;

use crate::children::{family, keyed, keys_are_unique};
use crate::kills::Chance;
use crate::running::put;
use crate::support::{Ran, Sandbox};

const AT_ONCE: usize = 8;
const PRICE: &str = "price: { input_per_million_tokens: 0.1, output_per_million_tokens: 0.1 }\n";
const USAGE: &str = "usage: { input_tokens: 1000, output_tokens: 7 }";
/// What children there are: one that pays, one that is refused, one that fails first, one that takes its time.
const KINDS: [(&str, &str); 4] = [
    (
        "child",
        "turns:\n  - { calls: [{ tool: pay, arguments: { to: anna } }], USAGE }\n  - { say: Done., USAGE, repeat: forever }\n",
    ),
    ("refused", "turns:\n  - { error: { permanent: no }, repeat: forever }\n"),
    ("flaky", "turns:\n  - { fail: [{ transient: not yet }], say: Done., USAGE, repeat: forever }\n"),
    ("slow", "turns:\n  - { delay_ms: 150, say: Done., USAGE, repeat: forever }\n"),
];

/// A project in which `round N` starts eight children of kinds that chance chooses.
fn project(rounds: usize, chance: &mut Chance) -> Sandbox {
    let mut script = format!("{PRICE}turns:\n");
    for round in 0..rounds {
        let spawn = |kind: &str| format!("{{ tool: spawn_thread, arguments: {{ directive: {kind}, async: true }} }}");
        // Half of them have nothing wrong with them.
        let mut kind = || KINDS[(chance.below(8) as usize).saturating_sub(4)].0;
        let calls: Vec<String> = (0..AT_ONCE).map(|_| spawn(kind())).collect();
        script += &format!("  - {{ when: {{ user: {{ equals: round {round} }} }}, calls: [{}] }}\n", calls.join(", "));
    }
    script += &format!("  - {{ say: They are on their way., {USAGE}, repeat: forever }}\n");
    let sandbox = family(&script, "");
    for (kind, script) in KINDS {
        let directive = format!(
            "---\nname: {kind}\nversion: 1.0.0\nmodel: scripted:{kind}.yaml\npermissions: [tool.pay]\n---\nGo.\n"
        );
        put(&sandbox, &format!(".ai/directives/{kind}.md"), &directive);
        put(&sandbox, &format!("{kind}.yaml"), &format!("{PRICE}{}", script.replace("USAGE", USAGE)));
    }
    put(&sandbox, ".ai/tools/pay.yaml", &keyed());
    put(&sandbox, ".ai/config/agent/errors.yaml", "wait_ms: 5\n");
    sandbox
}

/// The parent, its children and what was done to them.
struct Nursery<'a> {
    sandbox: &'a Sandbox,
    store: LocalStore,
    parent: ThreadId,
    chance: Chance,
    /// Processes of this test that run a thread.
    runs: Vec<Child>,
    did: BTreeMap<&'static str, usize>,
}

impl Nursery<'_> {
    fn children(&self) -> Vec<Manifest> {
        self.store.children(&self.parent).unwrap().into_iter().map(|child| child.manifest).collect()
    }

    fn status(&self, thread: &ThreadId) -> Status {
        self.store.get(thread).unwrap().manifest.status
    }

    fn is_alive(&self, thread: &ThreadId) -> bool {
        self.store.holder(thread).unwrap().is_some()
    }

    fn start(&mut self, args: &[&str]) -> usize {
        let mut command = self.sandbox.command(args);
        self.runs.push(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        self.runs.len() - 1
    }

    fn count(&mut self, what: &'static str) {
        *self.did.entry(what).or_default() += 1;
    }

    /// Asks the parent for the children of a round, and kills it now and then, until it has started them all.
    fn round(&mut self, round: usize) {
        let word = format!("round {round}");
        let parent = self.parent.to_string();
        let mut most_ms = 100;
        for attempt in 0.. {
            let spawned = self.children().len();
            match self.status(&self.parent) {
                status if status.is_terminal() && spawned == AT_ONCE * (round + 1) => return,
                // What was said to it was lost with the process that was to say it.
                status if status.is_terminal() => _ = self.start(&["send", &parent, &word]),
                _ => _ = self.start(&["resume", &parent]),
            }
            let run = self.runs.len() - 1;
            let until = Instant::now() + Duration::from_millis(self.chance.below(most_ms));
            most_ms += most_ms / 6;
            let is_spared = attempt > 0 && self.chance.below(3) == 0;
            while self.runs[run].try_wait().unwrap().is_none() {
                self.disturb();
                if Instant::now() > until && !is_spared {
                    self.runs[run].kill().unwrap();
                    self.count("parents killed");
                }
            }
        }
    }

    /// Resumes stalled ones, kills and stops others, until every child has ended.
    fn until_all_have_ended(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let waiting: Vec<ThreadId> = self
                .children()
                .into_iter()
                .filter(|child| !child.status.is_terminal())
                .map(|child| child.thread_id)
                .collect();
            if waiting.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "they never come to their end: {waiting:?}, {:?}", self.did);
            let stalled: Vec<_> = waiting.iter().filter(|child| !self.is_alive(child)).collect();
            for child in stalled {
                // A process that was just let go has not taken its thread yet.
                thread::sleep(Duration::from_millis(60));
                if !self.is_alive(child) && !self.status(child).is_terminal() {
                    self.start(&["resume", child.as_str()]);
                    self.count("children taken up");
                    thread::sleep(Duration::from_millis(30));
                }
            }
            self.disturb();
        }
    }

    /// Perhaps kills or stops a child.
    fn disturb(&mut self) {
        thread::sleep(Duration::from_millis(5 + self.chance.below(20)));
        self.runs.iter_mut().for_each(|run| _ = run.try_wait());
        let active: Vec<Manifest> = self.children().into_iter().filter(|child| !child.status.is_terminal()).collect();
        assert!(active.len() <= AT_ONCE, "{} at once: {}", active.len(), self.story());
        if active.is_empty() {
            return;
        }
        let child = active[self.chance.below(active.len() as u64) as usize].thread_id.clone();
        match self.chance.below(20) {
            0..5 if kill(&child, &self.processes()) => self.count("children killed"),
            5 => {
                let how = if self.chance.below(2) == 0 { "cancel" } else { "kill" };
                self.start(&[how, child.as_str()]);
                self.count("children stopped");
            }
            _ => {}
        }
    }

    /// The parent's log, to find out what went wrong.
    fn story(&self) -> String {
        let lines = self.store.read(&self.parent, 0, usize::MAX).unwrap();
        let told = lines.iter().filter(|line| !matches!(line.event, Event::Checkpoint(_)));
        told.map(|line| format!("\n{:.300}", format!("{:?}", line.event))).collect()
    }

    /// The processes that stand in the parent's log, and those of this test.
    fn processes(&self) -> Vec<u32> {
        let lines = self.store.read(&self.parent, 0, usize::MAX).unwrap();
        let recorded = lines.iter().filter_map(|line| match &line.event {
            Event::ToolIntent(intent) => intent.process.as_ref().map(|process| process.pid),
            _ => None,
        });
        recorded.chain(self.runs.iter().map(Child::id)).collect()
    }
}

/// Kills the process among these that runs a thread; by its command line, so that no other process dies because its pid was used
/// again.
fn kill(child: &ThreadId, pids: &[u32]) -> bool {
    let runs_it = |pid: &&u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.any(|word| word == b"resume")
            && line.split(|byte| *byte == 0).any(|word| word == child.as_str().as_bytes())
    };
    let Some(pid) = pids.iter().find(runs_it) else { return false };
    Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn many_children_in_processes_of_their_own_killed_at_random_leave_every_account_in_order() {
    let wanted = std::env::var("SELVEDGE_TEST_CHILDREN").ok().and_then(|count| count.parse().ok()).unwrap_or(40);
    let rounds = usize::div_ceil(wanted, AT_ONCE);
    let mut chance = Chance::any();
    let sandbox = project(rounds, &mut chance);
    let limits = ["--limit", "spend=100", "--limit", "spawns=100000"];
    let ran = sandbox.run(&[&["run", "parent", "--json"][..], &limits].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let parent = ThreadId::new(crate::running::thread_of(&ran)).unwrap();
    let store = sandbox.open();
    let mut nursery = Nursery { sandbox: &sandbox, store, parent, chance, runs: Vec::new(), did: BTreeMap::new() };
    for round in 0..rounds {
        nursery.round(round);
        nursery.until_all_have_ended();
    }
    let Nursery { store, parent, runs, did, .. } = nursery;
    runs.into_iter().for_each(|run| _ = Ran::of(run));
    store.close().unwrap();
    let shows = ["parents killed", "children killed", "children taken up"].iter().all(|what| did.contains_key(what));
    assert!(shows && did.values().sum::<usize>() > rounds, "the test shows nothing: {did:?}");
    is_conserved(&sandbox, parent.as_str(), rounds * AT_ONCE);
}

/// Every child has come to its end and paid at most once; nothing is set aside any more; the logs alone say so, to the nano-dollar.
#[track_caller]
fn is_conserved(sandbox: &Sandbox, parent: &str, children: usize) {
    let books = sandbox.run(&["budget", parent, "--verify", "--json"]).json();
    assert_eq!(books["verified"]["holds"], true, "{books}");
    let accounts = books["accounts"].as_array().unwrap();
    assert_eq!(accounts.len(), children + 1);
    for account in accounts {
        assert_eq!((&account["reserved_nanos"], &account["status"]), (&json!(0), &json!("closed")), "{account}");
    }
    let own: u64 = accounts[1..].iter().map(|account| account["own_nanos"].as_u64().unwrap()).sum();
    assert_eq!(accounts[0]["children_nanos"].as_u64(), Some(own), "to the nano-dollar");
    // What an answer costs: 1,007 tokens at a ten-millionth of a dollar.
    assert!(own >= children as u64 / 4 * 100_700, "hardly any child spent anything: the test shows nothing");
    let log = sandbox.run(&["log", parent, "--json"]).records();
    let count = |kind: &str| log.iter().filter(|line| line["event_type"] == kind).count();
    assert_eq!(count("child_spawned"), children);
    let paid = fs::read_to_string(sandbox.project().join("paid.txt")).unwrap_or_default().lines().count();
    keys_are_unique(sandbox, paid);
    let ran = sandbox.run(&["verify", "--all"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
