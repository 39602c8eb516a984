//! A program that continues without this process, behind a gate until it is released.
//!
//! Its identity is known before it may act. If it is dropped before its release, or if this process dies before, its gate is closed and it
//! never ran. After its release it is independent: it has a group of its own, no terminal, and is not waited for.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::pipe::{PipeFlags, pipe_with};
use selvedge_model::event::Process;
use selvedge_model::tool::{Dispatch, Started};
use selvedge_model::{Cancel, Output, ToolError};

use super::identity::identity;

/// Waits for the gate, and becomes the program. It survives the end of its terminal.
const GATE: &str = r#"trap '' HUP
IFS= read -r go <&3 && [ "$go" = go ] || exit 125
unset go IFS PWD OLDPWD SHLVL
exec "$@" 3<&-"#;

/// A program that waits at its gate and then continues alone.
#[derive(Debug)]
pub struct Detached {
    child: Option<Child>,
    gate: Option<io::PipeWriter>,
    process: Option<Process>,
    name: String,
}

impl Detached {
    /// Starts a program, which waits at its gate. On return nothing of it has run. Refused if the process has no identity besides its process
    /// id: it could not be ended safely.
    pub fn start(
        program: &Path,
        arguments: &[String],
        environment: impl IntoIterator<Item = (String, String)>,
        folder: &Path,
    ) -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(GATE).arg("sh").arg(program).args(arguments);
        command.env_clear().envs(environment).current_dir(folder).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.fd_mappings(vec![FdMapping { parent_fd: reader, child_fd: 3 }]).map_err(io::Error::other)?;
        let child = command.spawn()?;
        let process = identity(child.id());
        let name = program.display().to_string();
        let detached = Self { child: Some(child), gate: Some(io::PipeWriter::from(writer)), process, name };
        match detached.process {
            Some(_) => Ok(detached),
            None => Err(io::Error::other("the start time of its process can't be read")),
        }
    }
}

impl Started for Detached {
    fn process(&self) -> Option<Process> {
        self.process.clone()
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        Dispatch::Done(self.let_go())
    }
}

impl Detached {
    fn let_go(mut self) -> Result<Output, ToolError> {
        let opened = self.gate.take().map_or(Err(io::ErrorKind::BrokenPipe.into()), |mut gate| gate.write_all(b"go\n"));
        match (opened, self.child.take()) {
            (Ok(()), Some(mut child)) => {
                // It is not waited for, but reaped when it ends. Without a thread it stays a zombie until this process ends.
                _ = std::thread::Builder::new().spawn(move || _ = child.wait());
                Ok(Output::text("released"))
            }
            (Err(error), child) => {
                self.child = child;
                Err(ToolError::NotStarted { tool: self.name.clone(), why: error.to_string() })
            }
            (Ok(()), None) => Err(ToolError::NotStarted { tool: self.name.clone(), why: "it is gone".to_owned() }),
        }
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        // Its gate is closed without a line, and it exits.
        drop(self.gate.take());
        if let Some(mut child) = self.child.take() {
            _ = child.wait();
        }
    }
}
