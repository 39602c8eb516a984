//! Starts a program behind a gate.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use selvedge_model::event::Process;
use selvedge_model::tool::SandboxReached;

use super::identity::{descendants, identity};
use crate::sandbox::Folder;

/// Waits for the gate, and becomes the program. What sh itself adds to the environment is removed. If descriptor 3 is closed without a line,
/// the process that should have opened the gate is gone.
const GATE: &str = r#"IFS= read -r go <&3 && [ "$go" = go ] || exit 125
unset go IFS PWD OLDPWD SHLVL
exec "$@" 3<&-"#;

/// Waits for its input to be closed, which happens when this process dies, and kills its group. It is a child of this process and not of the
/// program, which might wait for it; so this process also reaps it.
const LEASH: &str = "trap '' TERM HUP INT; read -r end; kill -KILL 0";

/// What to run.
#[derive(Debug)]
pub(crate) struct ProcessSpec {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Its whole environment.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) folder: PathBuf,
    /// Its standard input; none means an empty one.
    pub(crate) stdin: Option<Vec<u8>>,
    pub(crate) timeout: Duration,
    pub(crate) stdout_bytes_max: usize,
    /// Whether it dies with this process.
    pub(crate) leashed: bool,
    /// Its sandbox, if it has one; the program is the helper then.
    pub(crate) confinement: Option<Confinement>,
}

/// What is kept for a program in a sandbox.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// How much of the sandbox is enforced.
    pub(crate) reached: SandboxReached,
    /// Its temporary folder, removed when the program has ended.
    pub(crate) temporary: Option<Folder>,
}

/// A program that waits at its gate. Dropping it ends the whole group.
#[derive(Debug)]
pub(crate) struct Gated {
    pub(super) child: Child,
    pub(super) pid: Pid,
    gate: Option<io::PipeWriter>,
    leash: Option<Child>,
    pub(super) stdin: Vec<u8>,
    pub(super) timeout: Duration,
    pub(super) stdout_bytes_max: usize,
    /// Whether the group is gone and the leader reaped.
    pub(super) is_over: bool,
    process: Option<Process>,
    confinement: Option<Confinement>,
}

impl Gated {
    /// Starts sh, which waits. On return nothing of the program has run.
    pub(crate) fn start(plan: ProcessSpec) -> io::Result<Self> {
        // Both ends are closed on exec, so no other child holds this gate open or reads from it.
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(GATE).arg("sh").arg(&plan.program);
        command.args(&plan.arguments).env_clear().envs(plan.environment).current_dir(&plan.folder);
        command.stdin(if plan.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.fd_mappings(vec![FdMapping { parent_fd: reader, child_fd: 3 }]).map_err(io::Error::other)?;
        let child = command.spawn()?;
        let mut gated = Self {
            process: identity(child.id()),
            pid: Pid::from_child(&child),
            child,
            gate: Some(io::PipeWriter::from(writer)),
            leash: None,
            stdin: plan.stdin.unwrap_or_default(),
            timeout: plan.timeout,
            stdout_bytes_max: plan.stdout_bytes_max,
            is_over: false,
            confinement: plan.confinement,
        };
        if plan.leashed {
            gated.leash = Some(leash(gated.pid)?);
        }
        Ok(gated)
    }

    /// Its identity, before and after its release.
    pub(crate) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// How much of its sandbox is enforced, if it has one.
    pub(crate) fn reached(&self) -> Option<&SandboxReached> {
        self.confinement.as_ref().map(|confinement| &confinement.reached)
    }

    /// Opens the gate. An error means that the program was gone and never ran.
    pub(super) fn open(&mut self) -> io::Result<()> {
        match self.gate.take() {
            Some(mut gate) => gate.write_all(b"go\n"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        if signal == Signal::KILL && self.confinement.as_ref().is_some_and(|it| it.temporary.is_some()) {
            // Without namespaces, what left the group would outlive the helper that is about to be killed.
            for pid in descendants(self.pid.as_raw_pid().unsigned_abs()) {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
            }
        }
        // The leader is not reaped yet, so the group can't be another one. An error means that it has no members left.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Reaps the killed processes, and returns the program's status.
    pub(super) fn bury(&mut self) -> io::Result<ExitStatus> {
        self.is_over = true;
        if let Some(leash) = &mut self.leash {
            leash.wait()?;
        }
        self.child.wait()
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        if !self.is_over {
            self.signal(Signal::KILL);
            let _ = self.bury();
        }
    }
}

/// Adds a watcher to the group.
fn leash(group: Pid) -> io::Result<Child> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", LEASH]).env_clear().current_dir("/").process_group(group.as_raw_pid());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
