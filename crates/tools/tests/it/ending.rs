//! However a command ends, no process of it is left, and an unknown effect is not reported as known.

use std::fs;
use std::time::{Duration, Instant};

use selvedge_model::{Cancel, Stop, Tool, ToolError};
use serde_json::json;

use crate::support::{
    at_most_once, call, eventually, is_alive, pid_in, project, script, text, tool, tool_in, use_tool,
};

const STUBBORN: &str = "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done";

#[test]
fn a_gate_that_is_never_opened_runs_nothing() {
    let (_folder, root) = project();
    for class in [script, at_most_once] {
        let started = tool_in(&root, class("touch effect")).start(&call("tool", json!({}))).unwrap();
        let pid = started.process().unwrap().pid;
        std::thread::sleep(Duration::from_millis(100));
        assert!(is_alive(pid));
        drop(started);
        assert!(!is_alive(pid));
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    }
}

#[test]
fn the_process_that_is_recorded_is_the_one_that_runs() {
    let started = tool(at_most_once("echo $$")).start(&call("tool", json!({}))).unwrap();
    let process = started.process().unwrap();
    assert!(process.start_time > 0 && process.boot_id.as_ref().is_some_and(|id| id.len() == 36));
    assert!(process.machine.as_ref().is_some_and(|machine| !machine.is_empty()));
    let here = selvedge_model::event::Process { machine: None, ..process.clone() };
    assert_eq!(here, crate::support::identity(process.pid));
    let output = started.dispatch(&Cancel::new()).wait().unwrap();
    assert_eq!(text(&output).trim(), process.pid.to_string());
}

#[test]
fn a_command_that_dies_at_its_gate_never_ran() {
    let (_folder, root) = project();
    let started = tool_in(&root, at_most_once("touch effect")).start(&call("tool", json!({}))).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(started.process().unwrap().pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("it died", || !is_alive(pid.as_raw_pid().unsigned_abs()));
    assert!(matches!(started.dispatch(&Cancel::new()).wait(), Err(ToolError::NotStarted { .. })));
    assert!(!root.join("effect").exists());
}

#[test]
fn a_stop_before_the_gate_opens_keeps_it_shut() {
    let (_folder, root) = project();
    let started = tool_in(&root, at_most_once("touch effect")).start(&call("tool", json!({}))).unwrap();
    let cancel = Cancel::new();
    cancel.say(Stop::Cancelled);
    assert_eq!(started.dispatch(&cancel).wait(), Err(ToolError::Stopped { tool: "tool".to_owned() }));
    assert!(!root.join("effect").exists());
}

#[test]
fn a_daemon_in_the_group_dies_with_the_command() {
    let (_folder, root) = project();
    for class in [script, at_most_once] {
        let said =
            "(trap '' TERM HUP; echo $$; exec sleep 1000) </dev/null >/dev/null 2>&1 & echo $! > pid; echo begun";
        let output = use_tool(&tool_in(&root, class(said)), json!({})).unwrap();
        assert_eq!(text(&output), "begun\n");
        assert!(!is_alive(pid_in(&root.join("pid"))));
    }
}

#[test]
fn a_daemon_that_holds_the_output_open_does_not_block() {
    let (_folder, root) = project();
    let begun = Instant::now();
    let output = use_tool(&tool_in(&root, script("sleep 1000 & echo $! > pid; echo begun")), json!({})).unwrap();
    assert_eq!(text(&output), "begun\n");
    assert!(!is_alive(pid_in(&root.join("pid"))));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_process_that_left_the_group_is_reported() {
    let (_folder, root) = project();
    let said = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & while [ ! -s pid ]; do sleep 0.01; done; echo begun";
    let output = use_tool(&tool_in(&root, script(said)), json!({})).unwrap();
    let pid = pid_in(&root.join("pid"));
    assert!(is_alive(pid), "it can't be found, and that is reported");
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    assert_eq!(text(&output), "begun\n\n[a process that left the tool's group is still running]");
}

#[test]
fn a_command_that_hangs_is_ended_by_its_time_limit() {
    let mut spec = script("echo begun; exec sleep 1000");
    spec.timeout_seconds = 1;
    let begun = Instant::now();
    let output = use_tool(&tool(spec.clone()), json!({})).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(text(&output), "`tool` failed: it exceeded its time limit and was ended\nstdout:\nbegun");
    // The effect of an at_most_once tool is unknown then.
    spec.class = selvedge_model::event::EffectClass::AtMostOnce;
    assert!(matches!(use_tool(&tool(spec), json!({})), Err(ToolError::Lost { .. })));
}

#[test]
fn a_command_that_ignores_term_is_killed() {
    let (_folder, root) = project();
    let mut spec = script(STUBBORN);
    spec.timeout_seconds = 1;
    let begun = Instant::now();
    let output = use_tool(&tool_in(&root, spec), json!({})).unwrap();
    assert!(output.is_error && begun.elapsed() < Duration::from_secs(15), "{output:?}");
    assert!(!is_alive(pid_in(&root.join("pid"))));
}

#[test]
fn a_stop_ends_a_command_and_a_kill_does_not_wait() {
    let (_folder, root) = project();
    for (said, stop, most) in [
        ("echo $$ > pid; exec sleep 1000", Stop::Cancelled, Duration::from_millis(1500)),
        ("echo $$ > pid; exec sleep 1000", Stop::OutOfTime, Duration::from_millis(1500)),
        (STUBBORN, Stop::Cancelled, Duration::from_secs(10)),
        (STUBBORN, Stop::Killed, Duration::from_millis(1500)),
    ] {
        let _ = fs::remove_file(root.join("pid"));
        let cancel = Cancel::new();
        let started = tool_in(&root, at_most_once(said)).start(&call("tool", json!({}))).unwrap();
        let (answer, took) = std::thread::scope(|scope| {
            let answer = scope.spawn(|| started.dispatch(&cancel).wait());
            let pid = pid_in(&root.join("pid"));
            let begun = Instant::now();
            cancel.say(stop);
            let answer = answer.join().unwrap();
            assert!(!is_alive(pid));
            (answer, begun.elapsed())
        });
        assert_eq!(answer, Err(ToolError::Stopped { tool: "tool".to_owned() }));
        assert!(took < most, "{said} {stop:?} took {took:?}");
    }
}

#[test]
fn a_command_that_was_killed_from_outside_is_an_error_or_lost() {
    let output = use_tool(&tool(script("echo begun; kill -9 $$")), json!({})).unwrap();
    assert_eq!(text(&output), "`tool` failed: it was ended by signal 9\nstdout:\nbegun");
    let lost = ToolError::Lost { tool: "tool".to_owned(), why: "it was ended by signal 9".to_owned() };
    assert_eq!(use_tool(&tool(at_most_once("kill -9 $$")), json!({})), Err(lost));
}

#[test]
fn a_command_that_ended_leaves_no_zombie() {
    for class in [script, at_most_once] {
        let started = tool(class("true")).start(&call("tool", json!({}))).unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(started.process().unwrap().pid).unwrap()).unwrap();
        started.dispatch(&Cancel::new()).wait().unwrap();
        assert_eq!(rustix::process::test_kill_process_group(pid), Err(rustix::io::Errno::SRCH));
    }
}
