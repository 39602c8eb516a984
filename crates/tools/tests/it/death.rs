//! What happens to a tool when the engine is killed, and what a flood of output costs.
//!
//! The engine is this program again; an environment variable says what it does.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use selvedge_model::event::Process;
use selvedge_model::tool::{CommandSpec, Processes as _};
use selvedge_model::{Cancel, Tool};
use selvedge_tools::ProcessGroups;
use serde_json::json;

use crate::support::project;
use crate::support::{at_most_once, call, eventually, is_alive, pid_in, script, text, tool_in, use_tool};

const TASK: &str = "SELVEDGE_TEST_TASK";
const ROOT: &str = "SELVEDGE_TEST_ROOT";
const LONG: &str = "echo $$ > pid; (echo $$; exec sleep 1000) & while :; do sleep 0.05; done";

/// The engine's side.
#[test]
#[ignore = "run by other tests, in a process of its own"]
fn engine() {
    let (Some(task), Some(root)) = (std::env::var_os(TASK), std::env::var_os(ROOT)) else { return };
    let root = Path::new(&root);
    match task.to_str().unwrap() {
        "gate pure" => start(root, script("touch effect"), false),
        "gate once" => start(root, at_most_once("touch effect"), false),
        "run pure" => start(root, script(LONG), true),
        "run once" => start(root, at_most_once(LONG), true),
        "flood" => flood(root),
        other => panic!("{other}"),
    }
}

fn start(root: &Path, spec: CommandSpec, dispatch: bool) {
    let started = tool_in(root, spec).start(&call("tool", json!({}))).unwrap();
    println!("\nsaid {}", serde_json::to_string(&started.process().unwrap()).unwrap());
    if dispatch {
        let _ = started.dispatch(&Cancel::new()).wait();
    }
    std::thread::sleep(Duration::from_secs(60));
}

fn flood(root: &Path) {
    let mut spec = script("head -c 1000000000 /dev/zero; head -c 100000000 /dev/zero >&2; exit 1");
    spec.output_bytes_max = 1000;
    let output = use_tool(&tool_in(root, spec), json!({})).unwrap();
    assert!(text(&output).contains("[999999000 more bytes were dropped]"));
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("\nsaid {}", peak.trim().strip_suffix(" kB").unwrap());
}

/// The test's side: an engine that can be killed.
struct Engine {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Engine {
    fn start(task: &str, root: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "death::engine", "--nocapture"]).env(TASK, task).env(ROOT, root);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    fn says(&mut self) -> String {
        let mut lines = (&mut self.said).lines().map(Result::unwrap);
        lines.find_map(|line| line.strip_prefix("said ").map(str::to_owned)).expect("the engine prints something")
    }

    fn process(&mut self) -> Process {
        serde_json::from_str(&self.says()).unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_tool_whose_engine_dies_before_the_gate_never_runs() {
    for task in ["gate pure", "gate once"] {
        let (_folder, root) = project();
        let mut engine = Engine::start(task, &root);
        let process = engine.process();
        assert!(is_alive(process.pid));
        engine.kill();
        eventually("the shell at the gate is gone", || !is_alive(process.pid));
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "{task}");
        eventually("and so is its group", || ProcessGroups.end(&process) == Ok(false));
    }
}

#[test]
fn a_pure_tool_dies_with_its_engine() {
    let (_folder, root) = project();
    let mut engine = Engine::start("run pure", &root);
    let process = engine.process();
    assert_eq!(pid_in(&root.join("pid")), process.pid);
    engine.kill();
    eventually("the tool is gone", || !is_alive(process.pid));
    eventually("and so is its group", || ProcessGroups.end(&process) == Ok(false));
}

#[test]
fn an_at_most_once_tool_outlives_its_engine_and_is_ended_by_its_record() {
    let (_folder, root) = project();
    let mut engine = Engine::start("run once", &root);
    let process = engine.process();
    assert_eq!(pid_in(&root.join("pid")), process.pid);
    engine.kill();
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_alive(process.pid) && ProcessGroups.may_live(&process));
    assert_eq!(ProcessGroups.end(&process), Ok(true));
    assert!(!is_alive(process.pid) && !ProcessGroups.may_live(&process));
    assert_eq!(ProcessGroups.end(&process), Ok(false));
}

#[test]
fn a_gigabyte_of_output_costs_no_memory() {
    let (_folder, root) = project();
    let peak_kilobytes: u64 = Engine::start("flood", &root).says().parse().unwrap();
    assert!(peak_kilobytes < 64 * 1024, "{peak_kilobytes} kB");
}
