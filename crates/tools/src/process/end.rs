//! Ends processes that an earlier process of the engine left.
//!
//! A process id alone identifies no process: one is ended only if its start time, and the boot id of the machine, are those on record. Its
//! environment proves nothing: a program can clear it (`env -i`).
//!
//! If the leader is gone, the rest of its group is identified by this:
//!
//! - A process id is not reused while it is the id of a process, a group or a session, including zombies. So a process with this id and
//!   another start time proves that the recorded group has died out.
//! - A group leader can't begin a session, and a group belongs to one session. So the recorded group belongs to a session that is older than
//!   its leader and has another id. A foreign daemon, left by a later leader with the same id, belongs to a session of that id; processes of
//!   a later login belong to a younger session.
//!
//! What remains possible: all process ids were used up and began again, a job of an older session got this one, its first process is gone and
//! the rest of the job lives. It would be ended instead of a tool that died by itself. Between the check and the signal an id could also be
//! reused; that takes all ids within microseconds. From within another container than the tool's, nothing of it is visible.

use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use selvedge_model::ToolError;
use selvedge_model::event::Process;
use selvedge_model::tool::Processes;

use super::identity::{Stat, boot_id, members, stat};
use super::run::{GRACE, is_gone};

/// Ends recorded process groups.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessGroups;

const KILL: Duration = Duration::from_secs(10);

impl Processes for ProcessGroups {
    fn end(&self, process: &Process) -> Result<bool, ToolError> {
        let Some(group) = living(process)? else { return Ok(false) };
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
        Err(lost(process, "it can't be killed".to_owned()))
    }

    fn may_live(&self, process: &Process) -> bool {
        !matches!(living(process), Ok(None))
    }
}

/// The group of a recorded process, if it is still that one and has a live member.
fn living(process: &Process) -> Result<Option<Pid>, ToolError> {
    let Some(group) = group_of(process.pid) else { return Ok(None) };
    if process.boot_id.is_some() && process.boot_id != boot_id() {
        return Ok(None);
    }
    let leader = stat(process.pid);
    let is_left = match &leader {
        Some(leader) if leader.start_time != process.start_time => false,
        Some(leader) if !leader.is_dead && leader.group != process.pid => {
            return Err(lost(process, "it left its group and is still running".to_owned()));
        }
        Some(leader) if !leader.is_dead => true,
        _ => {
            let members = members(process.pid).unwrap_or_default();
            let is_ours = |member: &Stat| leader.is_some() || is_of(process, member, stat(member.session).as_ref());
            // All members of a group have the same origin, so the first decides for all.
            members.first().is_some_and(is_ours)
        }
    };
    Ok(is_left.then_some(group))
}

/// Whether a member of a group whose leader is gone and reaped belongs to the recorded process; `session` is the session leader, if it
/// lives.
fn is_of(process: &Process, member: &Stat, session: Option<&Stat>) -> bool {
    let is_older = |session: &Stat| session.start_time <= process.start_time;
    process.boot_id.is_some() && member.session != process.pid && session.is_none_or(is_older)
}

/// The group of a process id. Signalling group 0 or 1 would mean this process itself, or all processes.
fn group_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw)
}

fn lost(process: &Process, why: String) -> ToolError {
    ToolError::Lost { tool: format!("process {}", process.pid), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tested without `end`: an error there would end everything on the machine.
    #[test]
    fn ids_that_mean_all_processes_or_none_name_no_group() {
        for pid in [0, 1, 1 << 31, u32::MAX] {
            assert_eq!(group_of(pid), None, "{pid}");
        }
        assert_eq!(group_of(2), Pid::from_raw(2));
    }

    #[test]
    fn a_group_without_its_leader_is_known_by_its_session() {
        let process = Process { pid: 70, start_time: 1000, boot_id: Some("boot".to_owned()) };
        let stat = |pid, session, start_time| Stat { pid, is_dead: false, parent: 1, group: 70, session, start_time };
        let login = stat(9, 9, 10);
        let later = stat(90, 90, 1001);
        assert!(is_of(&process, &stat(71, 9, 1005), Some(&login)));
        assert!(is_of(&process, &stat(71, 9, 1005), None), "the session leader is gone, too");
        assert!(!is_of(&process, &stat(171, 70, 2000), None), "a group leader can't have begun a session");
        assert!(!is_of(&process, &stat(171, 90, 2000), Some(&later)), "the session is younger than the tool");
        let somewhen = Process { boot_id: None, ..process };
        assert!(!is_of(&somewhen, &stat(71, 9, 1005), Some(&login)), "the machine may have been rebooted");
    }
}
