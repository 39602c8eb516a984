//! Only processes that an earlier process of the engine left are ended.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

use selvedge_model::event::Process;
use selvedge_model::tool::Processes as _;
use selvedge_tools::ProcessGroups;

use crate::support::{eventually, identity, is_alive, pid_in, project};

/// A process in a group of its own, which dies with the test.
struct Leader(Child);

impl Leader {
    fn start(script: &str) -> Self {
        Self(Command::new("/bin/sh").args(["-c", script]).process_group(0).spawn().unwrap())
    }

    /// One that begins a session of its own, as a daemon can and a tool can't.
    fn of_a_session(script: &str) -> Self {
        Self(Command::new("setsid").args(["/bin/sh", "-c", script]).spawn().unwrap())
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_reuses_the_process_id_is_left_alone() {
    let mut leader = Leader::start("exec sleep 1000");
    let process = identity(leader.0.id());
    let impostors = [
        Process { start_time: process.start_time - 1, ..process.clone() },
        Process { start_time: process.start_time + 1, ..process.clone() },
        Process { boot_id: Some("another start of the machine".to_owned()), ..process.clone() },
    ];
    for other in impostors {
        assert_eq!(ProcessGroups.end(&other), Ok(false), "{other:?}");
    }
    assert!(leader.0.try_wait().unwrap().is_none());
    // A record without a boot id is matched by its start time.
    assert_eq!(ProcessGroups.end(&Process { boot_id: None, ..process.clone() }), Ok(true));
    assert!(!is_alive(process.pid));
    assert_eq!(ProcessGroups.end(&process), Ok(false));
}

#[test]
fn a_process_in_another_group_is_left_alone_and_not_reported_as_gone() {
    let (_folder, root) = project();
    let file = root.join("pid");
    let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
    let _leader = Leader::start(&script);
    let member = pid_in(&file);
    assert!(ProcessGroups.end(&identity(member)).is_err(), "it exists, and must not be reported as gone");
    assert!(is_alive(member));
}

#[test]
fn a_stubborn_group_is_ended_whole() {
    let (_folder, root) = project();
    let file = root.join("pid");
    let script = format!("trap '' TERM; sleep 1000 & echo $! > {}; while :; do sleep 0.05; done", file.display());
    let leader = Leader::start(&script);
    let member = pid_in(&file);
    assert_eq!(ProcessGroups.end(&identity(leader.0.id())), Ok(true));
    assert!(!is_alive(member) && !is_alive(leader.0.id()));
}

/// A tool that cleared its environment once kept running while its call was dispatched again.
#[test]
fn the_rest_of_a_dead_leader_s_group_is_ended_even_if_it_cleared_its_environment() {
    let (_folder, root) = project();
    let (process, member) = left_behind(&root, Leader::start);
    assert_eq!(ProcessGroups.end(&process), Ok(true));
    eventually("the rest of the group is gone", || !is_alive(member));
}

#[test]
fn a_foreign_daemon_with_the_same_group_id_is_left_alone() {
    let (_folder, root) = project();
    let (process, member) = left_behind(&root, Leader::of_a_session);
    assert_eq!(ProcessGroups.end(&process), Ok(false));
    assert!(is_alive(member));
    let pid = rustix::process::Pid::from_raw(member as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A leader that is dead and reaped, and a live member of its group.
fn left_behind(root: &Path, start: fn(&str) -> Leader) -> (Process, u32) {
    assert!(Command::new("mkfifo").arg(root.join("gate")).status().unwrap().success());
    let file = root.join("pid");
    let gate = root.join("gate");
    let script = format!("env -i sleep 1000 & echo $! > {}; read never < {}", file.display(), gate.display());
    let mut leader = start(&script);
    let member = pid_in(&file);
    let process = identity(leader.0.id());
    leader.0.kill().unwrap();
    leader.0.wait().unwrap();
    std::mem::forget(leader);
    assert!(is_alive(member));
    (process, member)
}
