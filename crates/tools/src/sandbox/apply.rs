//! What the helper does: the outer one makes namespaces and waits, the inner one restricts itself and starts the program.
//!
//! Every restriction of a plan is applied, or the program is not started.

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt as _, FdMapping};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, LandlockStatus, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getgid, getpid, getuid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, setrlimit, setsid, wait,
};
use rustix::thread::{CapabilitySet, UnshareFlags, remove_capability_from_bounding_set};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::helper::ARGUMENT;
use super::plan::{Namespaces, Plan, Tmpfs};
use crate::process::descendants;

/// The newest version of Landlock whose rights this knows.
const LANDLOCK_KNOWN: i32 = 7;
/// How long the processes of a program have after TERM, less than the engine waits before it kills.
const GRACE: Duration = Duration::from_millis(1500);
/// How long the kernel has to carry out KILL.
const KILL: Duration = Duration::from_secs(10);
/// The inner helper writes here which signal ended the program.
const REPORT: &str = "/proc/self/fd/3";
/// System calls for sockets and for what could make them, on the usual and on the x32 ABI.
const SOCKET_CALLS: [i64; 2] = [libc_numbers::SOCKET, libc_numbers::IO_URING_SETUP];
const X32: i64 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
mod libc_numbers {
    pub(super) const SOCKET: i64 = 41;
    pub(super) const IO_URING_SETUP: i64 = 425;
}

#[cfg(not(target_arch = "x86_64"))]
mod libc_numbers {
    pub(super) const SOCKET: i64 = 198;
    pub(super) const IO_URING_SETUP: i64 = 425;
}

type Done<T> = Result<T, String>;

/// Adds what was attempted to an error.
fn tried<T, E: std::fmt::Display>(what: &str, outcome: Result<T, E>) -> Done<T> {
    outcome.map_err(|error| format!("{what}: {error}"))
}

/// The version of Landlock that this kernel has, as far as it is known here.
pub(super) fn landlock_version() -> Done<u32> {
    let ruleset = tried("landlock", Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)))?;
    let status = tried("landlock", tried("landlock", ruleset.create())?.restrict_self())?;
    Ok(match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => (effective_abi as i32).min(LANDLOCK_KNOWN).unsigned_abs(),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => 0,
    })
}

/// Makes namespaces, starts the inner helper in them, and waits until all is over. Its exit is that of the program.
pub(super) fn outer(plan: &Plan, argument: &OsString, program: &[OsString]) -> Done<ExitCode> {
    let mut signals = tried("signals", Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD]))?;
    tried("subreaper", set_child_subreaper(Some(getpid())))?;
    if let Some(namespaces) = plan.namespaces {
        unshare(namespaces)?;
    }
    if let Some(temporary) = &plan.temporary {
        mount_temporary(temporary)?;
    }
    let (mut reader, writer) =
        tried("pipe", pipe_with(PipeFlags::CLOEXEC)).map(|(reader, writer)| (fs::File::from(reader), writer))?;
    let helper = tried("its own program", std::env::current_exe())?;
    let mut command = Command::new(helper);
    command.args([ARGUMENT, "inner"]).arg(argument).args(program);
    tried("pipe", command.fd_mappings(vec![FdMapping { parent_fd: writer, child_fd: 3 }]))?;
    let child = tried("start", command.spawn())?;
    drop(command);
    let inner = Pid::from_child(&child);
    let status = supervise(&mut signals, inner)?;
    end_descendants();
    let mut report = String::new();
    let _ = reader.read_to_string(&mut report);
    let signal = report.trim().parse().ok().or_else(|| status.signal());
    if let Some(signal) = signal {
        // Ends this process like the program.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return Ok(ExitCode::from(128_u8.saturating_add(u8::try_from(signal).unwrap_or(127))));
    }
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// Waits for the end of a process; passes TERM on to it, and kills everything below if it does not end in time.
fn supervise(signals: &mut Signals, inner: Pid) -> Done<ExitStatus> {
    loop {
        if let Some(status) = reaped(inner)? {
            return Ok(status);
        }
        let mut is_stopped = false;
        for signal in signals.wait() {
            is_stopped |= signal != SIGCHLD;
        }
        if is_stopped {
            return stop(inner);
        }
    }
}

fn stop(inner: Pid) -> Done<ExitStatus> {
    // In a session of its own, and its group is that of its process id.
    let _ = kill_process(inner, Signal::TERM);
    let _ = kill_process_group(inner, Signal::TERM);
    let until = Instant::now() + GRACE;
    while Instant::now() < until {
        if let Some(status) = reaped(inner)? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = kill_process(inner, Signal::KILL);
    loop {
        if let Some(status) = reaped(inner)? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reaps what has ended; the status of this process if it is among it.
fn reaped(wanted: Pid) -> Done<Option<ExitStatus>> {
    let mut found = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == wanted => found = Some(ExitStatus::from_raw(status.as_raw())),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return Ok(found),
            Err(rustix::io::Errno::CHILD) if found.is_some() => return Ok(found),
            Err(error) => return Err(format!("wait: {error}")),
        }
    }
}

/// Ends everything below this process, which inherits orphans.
fn end_descendants() {
    let until = Instant::now() + KILL;
    while Instant::now() < until {
        let left = descendants(getpid().as_raw_nonzero().get().unsigned_abs());
        let _ = reaped(getpid());
        if left.is_empty() {
            return;
        }
        for pid in left {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Gives this process namespaces of its own, with the same user and group in them.
#[expect(deprecated, reason = "the other function is unsafe because of a flag that is not used here: CLONE_FILES")]
fn unshare(namespaces: Namespaces) -> Done<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let mut flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC;
    flags.set(UnshareFlags::NEWNET, namespaces.network);
    tried("namespaces", rustix::thread::unshare(flags))?;
    tried("groups", fs::write("/proc/self/setgroups", "deny"))?;
    tried("user", fs::write("/proc/self/uid_map", format!("{user} {user} 1")))?;
    tried("group", fs::write("/proc/self/gid_map", format!("{group} {group} 1")))
}

fn mount_temporary(temporary: &Tmpfs) -> Done<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    tried("mounts", mount_change("/", private))?;
    let options = format!("size={},nr_inodes=65536,mode=700", temporary.bytes);
    let options = tried("tmpfs", std::ffi::CString::new(options))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    tried("tmpfs", mount("tmpfs", &temporary.path, "tmpfs", flags, Some(options.as_c_str())))
}

/// Restricts itself, and becomes the program, or starts it as the first process of a process namespace.
pub(super) fn inner(plan: &Plan, program: &[OsString]) -> Done<ExitCode> {
    tried("death signal", set_parent_process_death_signal(Some(Signal::KILL)))?;
    tried("session", setsid())?;
    let report = tried("report", fs::File::options().write(true).open(REPORT))?;
    // Not even the report is left to the program.
    close_fds::set_fds_cloexec(3, &[]);
    limit(plan)?;
    drop_capabilities();
    tried("no_new_privs", rustix::thread::set_no_new_privs(true))?;
    if plan.landlock > 0 {
        restrict(plan)?;
    }
    if plan.socket_filter {
        filter_sockets()?;
    }
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    if plan.namespaces.is_none() {
        return Err(format!("`{}`: {}", program[0].display(), command.exec()));
    }
    first_process(&mut command, report)
}

/// Starts the program as the second process of the namespace, and reaps what ends. When it exits, everything in the namespace is killed.
fn first_process(command: &mut Command, mut report: fs::File) -> Done<ExitCode> {
    let mut signals = tried("signals", Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD]))?;
    let child = tried("the program", command.process_group(0).spawn())?;
    let program = Pid::from_child(&child);
    loop {
        if let Some(status) = reaped(program)? {
            if let Some(signal) = status.signal() {
                let _ = writeln!(report, "{signal}");
            }
            return Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)));
        }
        for signal in signals.wait() {
            if signal != SIGCHLD {
                let _ = kill_process_group(program, Signal::TERM);
            }
        }
    }
}

fn limit(plan: &Plan) -> Done<()> {
    let limits = [
        (Resource::As, plan.limits.memory),
        (Resource::Fsize, plan.limits.file),
        (Resource::Cpu, plan.limits.processor),
        (Resource::Nproc, plan.limits.processes),
        (Resource::Core, Some(0)),
    ];
    for (resource, most) in limits.into_iter().filter_map(|(resource, most)| Some((resource, most?))) {
        let now = rustix::process::getrlimit(resource).maximum;
        let most = now.map_or(most, |now| now.min(most));
        tried("limits", setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }))?;
    }
    Ok(())
}

/// A program that is started as root, in a namespace or not, gets none of root's powers back. A user without them has nothing to drop.
fn drop_capabilities() {
    for number in 0..64_u32 {
        let _ = remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number));
    }
    let _ = rustix::thread::clear_ambient_capability_set();
}

fn restrict(plan: &Plan) -> Done<()> {
    let abi = ABI::from(i32::try_from(plan.landlock).unwrap_or(LANDLOCK_KNOWN).min(LANDLOCK_KNOWN));
    let mut rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules = tried("landlock", rules.handle_access(AccessFs::from_all(abi)))?;
    if plan.no_tcp {
        rules = tried("landlock", rules.handle_access(AccessNet::from_all(ABI::V4)))?;
    }
    if plan.landlock >= 6 {
        rules = tried("landlock", rules.scope(Scope::from_all(ABI::V6)))?;
    }
    let rules = tried("landlock", rules.create())?;
    let rules = tried("landlock", rules.add_rules(path_beneath_rules(&plan.read, AccessFs::from_read(abi))))?;
    let rules = tried("landlock", rules.add_rules(path_beneath_rules(&plan.write, AccessFs::from_all(abi))))?;
    let status = tried("landlock", rules.restrict_self())?;
    if status.ruleset != RulesetStatus::FullyEnforced {
        return Err(format!("landlock: {:?}", status.ruleset));
    }
    Ok(())
}

fn filter_sockets() -> Done<()> {
    let target = if cfg!(target_arch = "x86_64") { TargetArch::x86_64 } else { TargetArch::aarch64 };
    let numbers = SOCKET_CALLS.iter().flat_map(|number| [*number, X32 | number]);
    let rules = numbers.map(|number| (number, Vec::new())).collect();
    let refused = SeccompAction::Errno(Errno::ACCESS_RAW);
    let filter = tried("filter", SeccompFilter::new(rules, SeccompAction::Allow, refused, target))?;
    let filter: BpfProgram = tried("filter", filter.try_into())?;
    tried("filter", seccompiler::apply_filter(&filter))
}

/// Numbers of errors.
struct Errno;

impl Errno {
    const ACCESS_RAW: u32 = 13;
}
