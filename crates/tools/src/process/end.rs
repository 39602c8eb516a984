//! Ending what an earlier life of the engine left behind.
//!
//! A number alone names nobody: a process is ended only if its start time, and the start of the machine, are those on record. If the leader is
//! gone and others of its group live, they are ended if they were started as tools. Between the look and the signal a number could in principle
//! change hands; it takes a wrap-around of all numbers within microseconds.

use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use selvedge_model::ToolError;
use selvedge_model::event::Process;
use selvedge_model::tool::Processes;

use super::identity::{boot_id, is_a_tool, members, stat};
use super::run::{GRACE, is_gone};

/// Ends recorded process groups.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessGroups;

const KILL: Duration = Duration::from_secs(10);

impl Processes for ProcessGroups {
    fn end(&self, process: &Process) -> Result<bool, ToolError> {
        let Some(group) = living(process) else { return Ok(false) };
        for (signal, most) in [(Signal::TERM, GRACE), (Signal::KILL, KILL)] {
            match kill_process_group(group, signal) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Ok(true),
                Err(errno) => return Err(lost(process, format!("it can't be ended: {errno}"))),
            }
            let until = Instant::now() + most;
            while Instant::now() < until {
                if is_gone(group) {
                    return Ok(true);
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        Err(lost(process, "it does not die".to_owned()))
    }
}

/// The group of a recorded process, if it is still that one and somebody in it lives.
fn living(process: &Process) -> Option<Pid> {
    let group = group_of(process.pid)?;
    if process.boot_id.is_some() && process.boot_id != boot_id() {
        return None;
    }
    match stat(process.pid) {
        // While anybody of the group lives, its number is given to nobody else.
        Some(leader) if leader.start_time != process.start_time => None,
        Some(leader) if !leader.is_dead => (leader.group == process.pid).then_some(group),
        _ => {
            let is_left =
                |member: &super::identity::Stat| member.start_time >= process.start_time && is_a_tool(member.pid);
            members(process.pid)?.iter().any(is_left).then_some(group)
        }
    }
}

/// The group that a number names. To signal a group of 0 or 1 would mean ourselves, or everybody.
fn group_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw)
}

fn lost(process: &Process, why: String) -> ToolError {
    ToolError::Lost { tool: format!("process {}", process.pid), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Shown without `end`: if it were wrong there, the test would end everything on the machine.
    #[test]
    fn numbers_that_mean_everybody_or_nobody_name_no_group() {
        for pid in [0, 1, 1 << 31, u32::MAX] {
            assert_eq!(group_of(pid), None, "{pid}");
        }
        assert_eq!(group_of(2), Pid::from_raw(2));
    }
}
