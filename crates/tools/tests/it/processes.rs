//! What an earlier life left behind is ended, and nobody else.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use selvedge_model::event::Process;
use selvedge_model::tool::Processes as _;
use selvedge_tools::ProcessGroups;

use crate::support::{eventually, identity, is_alive, pid_in, project};

/// A process in a group of its own, which dies with the test.
struct Leader(Child);

impl Leader {
    fn start(script: &str, key: Option<&str>) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).process_group(0).envs(key.map(|key| ("SELVEDGE_CALL_KEY", key)));
        Self(command.spawn().unwrap())
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
fn a_number_that_belongs_to_somebody_else_by_now_is_left_alone() {
    let mut leader = Leader::start("exec sleep 1000", Some("k"));
    let process = identity(leader.0.id());
    let others = [
        Process { start_time: process.start_time - 1, ..process.clone() },
        Process { start_time: process.start_time + 1, ..process.clone() },
        Process { boot_id: Some("another start of the machine".to_owned()), ..process.clone() },
    ];
    for other in others {
        assert_eq!(ProcessGroups.end(&other), Ok(false), "{other:?}");
    }
    assert!(leader.0.try_wait().unwrap().is_none());
    // A record from before the machine's start was written down is believed by its start time.
    assert_eq!(ProcessGroups.end(&Process { boot_id: None, ..process.clone() }), Ok(true));
    assert!(!is_alive(process.pid));
    assert_eq!(ProcessGroups.end(&process), Ok(false));
}

#[test]
fn a_process_that_does_not_lead_its_group_is_not_a_tool() {
    let (_folder, root) = project();
    let file = root.join("pid");
    let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
    let _leader = Leader::start(&script, Some("k"));
    let member = pid_in(&file);
    assert_eq!(ProcessGroups.end(&identity(member)), Ok(false));
    assert!(is_alive(member));
}

#[test]
fn a_stubborn_group_is_ended_whole() {
    let (_folder, root) = project();
    let file = root.join("pid");
    let script = format!("trap '' TERM; sleep 1000 & echo $! > {}; while :; do sleep 0.05; done", file.display());
    let leader = Leader::start(&script, Some("k"));
    let member = pid_in(&file);
    assert_eq!(ProcessGroups.end(&identity(leader.0.id())), Ok(true));
    assert!(!is_alive(member) && !is_alive(leader.0.id()));
}

#[test]
fn what_a_dead_leader_left_is_ended_if_it_was_a_tool() {
    let (_folder, root) = project();
    assert!(Command::new("mkfifo").arg(root.join("gate")).status().unwrap().success());
    for (key, ends) in [(Some("k"), true), (None, false)] {
        let file = root.join(if ends { "ours" } else { "theirs" });
        let script = format!("sleep 1000 & echo $! > {}; read never < {}", file.display(), root.join("gate").display());
        let mut leader = Leader::start(&script, key);
        let process = identity(leader.0.id());
        let member = pid_in(&file);
        leader.0.kill().unwrap();
        leader.0.wait().unwrap();
        assert!(is_alive(member));
        assert_eq!(ProcessGroups.end(&process), Ok(ends));
        match ends {
            true => eventually("the rest of the group is gone", || !is_alive(member)),
            false => assert!(is_alive(member)),
        }
        let pid = rustix::process::Pid::from_raw(member as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
