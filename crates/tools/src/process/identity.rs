//! The identity of a process: its id, its start time, and the boot id of the machine.
//!
//! Read from `/proc`; without it, a process has no identity and never matches a recorded one.

use std::fs;

use selvedge_model::event::Process;

/// The contents of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) pid: u32,
    pub(super) is_dead: bool,
    pub(super) parent: u32,
    pub(super) group: u32,
    pub(super) session: u32,
    pub(super) start_time: u64,
}

/// The identity of a process that exists now.
pub(super) fn identity(pid: u32) -> Option<Process> {
    Some(Process { pid, start_time: stat(pid)?.start_time, boot_id: boot_id() })
}

/// The boot id of the machine.
pub(super) fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}

pub(super) fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `PID (NAME) STATE PPID GROUP SESSION …`; the name may contain anything, so the rest is found from the right.
fn parse(line: &[u8]) -> Option<Stat> {
    let line = String::from_utf8_lossy(line);
    let (pid, rest) = line.split_once(" (")?;
    let fields: Vec<_> = rest[rest.rfind(')')? + 1..].split_whitespace().collect();
    Some(Stat {
        pid: pid.parse().ok()?,
        is_dead: matches!(*fields.first()?, "Z" | "X" | "x"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

/// The live processes of a group; none if they can't be read.
pub(super) fn members(group: u32) -> Option<Vec<Stat>> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Some(pids.filter_map(stat).filter(|stat| stat.group == group && !stat.is_dead).collect())
}

/// The live processes below a process: its children, and theirs.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<Stat> = pids.filter_map(stat).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(all.iter().filter(|one| one.parent == parent).map(|one| one.pid));
        next += 1;
    }
    let is_alive = |pid: &u32| all.iter().any(|one| one.pid == *pid && !one.is_dead);
    found.into_iter().skip(1).filter(is_alive).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_is_parsed() {
        let line = b"42 (a) Z 1 (b) S 7 41 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        assert_eq!(
            parse(line),
            Some(Stat { pid: 42, is_dead: false, parent: 7, group: 41, session: 40, start_time: 987_654 })
        );
        assert_eq!(parse(b"42 (torn"), None);
    }
}
