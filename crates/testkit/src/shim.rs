//! Fault injection into a real process: the C shim, and the children it is loaded into.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::fact::{self, Fact};
use crate::trace::{self, Record};
use crate::{LabError, LabResult};

const SOURCE: &str = include_str!("../shim/shim.c");

/// The timeout of a child.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A fault that is injected into a child at its n-th call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None; its calls are only recorded.
    None,
    /// It dies before the call.
    Before(u64),
    /// It dies after the call.
    After(u64),
    /// It dies after half the bytes are written.
    Half(u64),
    /// The call fails once.
    Fail(u64, i32),
    /// The call fails, and so do all later changing calls.
    FailOn(u64, i32),
    /// Only half the bytes are written, and the call reports that.
    Short(u64),
    /// The n-th reading call fails once.
    FailLook(u64, i32),
    /// It fails, and so do all later reading calls.
    FailLooks(u64, i32),
    /// The n-th reading call, a read, returns half of what was requested.
    ShortLook(u64),
    /// The file system loses its power before the call.
    Shutdown(u64),
}

impl Fault {
    /// The error that the call returns.
    pub fn error(self) -> Option<i32> {
        match self {
            Self::Fail(_, error) | Self::FailOn(_, error) | Self::FailLook(_, error) | Self::FailLooks(_, error) => {
                Some(error)
            }
            _ => None,
        }
    }

    /// Whether it affects only one call.
    pub fn is_once(self) -> bool {
        !matches!(self, Self::FailOn(..) | Self::FailLooks(..))
    }

    /// Whether it should go unnoticed: the call did nothing yet, or part of its work, and must be retried.
    pub fn must_be_retried(self) -> bool {
        let is_interruption = self.error() == Some(rustix::io::Errno::INTR.raw_os_error());
        is_interruption || matches!(self, Self::Short(_) | Self::ShortLook(_))
    }
}

/// The result of a child.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether it timed out.
    pub hung: bool,
    /// Its standard error output.
    pub said: String,
    /// The facts that it recorded.
    pub facts: Vec<Fact>,
    /// Its calls.
    pub trace: Vec<Record>,
}

/// The tools: the shim, and the program of the children.
#[derive(Clone, Debug)]
pub struct Bench {
    shim: PathBuf,
    program: PathBuf,
    /// Where homes are created; in memory if possible.
    pub room: PathBuf,
}

impl Bench {
    /// Compiles the shim if needed. `program` is the laboratory's own binary.
    pub fn set_up(program: &Path) -> LabResult<Self> {
        let folder = program.parent().ok_or("the program has no folder")?;
        let shim = compile("shim", SOURCE, &["-fPIC", "-shared"], folder, "so")?;
        let memory = Path::new("/dev/shm");
        let room = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Ok(Self { shim, program: program.to_owned(), room })
    }

    /// An empty folder that is deleted when dropped.
    pub fn folder(&self) -> LabResult<tempfile::TempDir> {
        Ok(tempfile::Builder::new().prefix("selvedge-lab-").tempdir_in(&self.room)?)
    }

    /// The laboratory's own binary, for children without the shim.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The command of a child with the shim loaded.
    pub fn child(&self, words: &[&str], root: &Path, aside: &Path, fault: Fault) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("child").args(words).arg("--root").arg(root).arg("--acks").arg(aside.join("acks"));
        command
            .env("LD_PRELOAD", &self.shim)
            .env("SELVEDGE_LAB_ROOT", root)
            .env("SELVEDGE_LAB_TRACE", aside.join("trace"))
            .env("SELVEDGE_LAB_ACKS", aside.join("acks"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let (mode, at) = match fault {
            Fault::None => return command,
            Fault::Before(at) => ("before", at),
            Fault::After(at) => ("after", at),
            Fault::Half(at) => ("half", at),
            Fault::Fail(at, _) | Fault::FailOn(at, _) | Fault::FailLook(at, _) | Fault::FailLooks(at, _) => {
                ("error", at)
            }
            Fault::Short(at) | Fault::ShortLook(at) => ("short", at),
            Fault::Shutdown(at) => ("shutdown", at),
        };
        command.env("SELVEDGE_LAB_MODE", mode).env("SELVEDGE_LAB_AT", at.to_string());
        if let Some(error) = fault.error() {
            command.env("SELVEDGE_LAB_ERRNO", error.to_string());
        }
        if !fault.is_once() {
            command.env("SELVEDGE_LAB_STICKY", "1");
        }
        if matches!(fault, Fault::FailLook(..) | Fault::FailLooks(..) | Fault::ShortLook(_)) {
            command.env("SELVEDGE_LAB_LOOKS", "1");
        }
        command
    }

    /// Runs a child to its end.
    pub fn run(&self, words: &[&str], root: &Path, fault: Fault) -> LabResult<Ended> {
        let aside = self.folder()?;
        let mut child = self.child(words, root, aside.path(), fault).spawn()?;
        let (status, hung) = wait(&mut child)?;
        let mut said = String::new();
        if let Some(mut out) = child.stderr.take() {
            _ = std::io::Read::read_to_string(&mut out, &mut said);
        }
        let facts = fact::parse(&fs::read(aside.path().join("acks")).unwrap_or_default())?;
        let trace = trace::read(&aside.path().join("trace"), root)?;
        Ok(Ended { status, hung, said, facts, trace })
    }
}

fn wait(child: &mut Child) -> LabResult<(ExitStatus, bool)> {
    let began = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        if began.elapsed() > TIMEOUT {
            child.kill()?;
            return Ok((child.wait()?, true));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(4));
    }
}

/// Compiles C source with the system's compiler, once for each version of the source.
pub fn compile(name: &str, source: &str, flags: &[&str], folder: &Path, end: &str) -> LabResult<PathBuf> {
    let digest = selvedge_log::hash::sha256(source.as_bytes());
    let target = folder.join(format!("selvedge-{name}-{}.{end}", digest.short()));
    if target.exists() {
        return Ok(target);
    }
    let aside = tempfile::tempdir_in(folder)?;
    let text = aside.path().join(format!("{name}.c"));
    let made = aside.path().join(name);
    fs::write(&text, source)?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    let output = command.args(["-O1", "-Wall"]).args(flags).arg("-o").arg(&made).arg(&text).arg("-ldl").output();
    let output = output.map_err(|error| -> LabError { format!("the C compiler can't be started: {error}").into() })?;
    if !output.status.success() {
        return Err(format!("{name}.c does not compile: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    // If several processes compile at once, the last one wins; all have the same result.
    fs::rename(&made, &target)?;
    Ok(target)
}
