//! A hand on a real process: the C shim, and the children it is loaded into.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::fact::{self, Fact};
use crate::trace::{self, Record};
use crate::{Tried, Trouble};

const SOURCE: &str = include_str!("../shim/shim.c");

/// How long a child may take; one that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is done to a child at its n-th call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// Nothing; what it does is only written down.
    None,
    /// It dies before the call.
    Before(u64),
    /// It dies after the call.
    After(u64),
    /// It dies when half the bytes are written.
    Half(u64),
    /// The call fails once.
    Fail(u64, i32),
    /// The call fails, and all that write after it.
    FailOn(u64, i32),
    /// Only half the bytes are written, and the call says so.
    Short(u64),
    /// The file system loses its power before the call.
    Shutdown(u64),
}

/// What became of a child.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// Whether it did not end by itself.
    pub hung: bool,
    /// What it said on its way.
    pub said: String,
    /// What it was told by the store.
    pub facts: Vec<Fact>,
    /// What it did.
    pub trace: Vec<Record>,
}

/// The tools: the shim and the program that children run.
#[derive(Clone, Debug)]
pub struct Bench {
    shim: PathBuf,
    program: PathBuf,
    /// Where homes are made; in memory if the machine has such a place.
    pub room: PathBuf,
}

impl Bench {
    /// Compiles the shim if need be. `program` is the laboratory's own binary.
    pub fn set_up(program: &Path) -> Tried<Self> {
        let folder = program.parent().ok_or("the program lies nowhere")?;
        let shim = compile("shim", SOURCE, &["-fPIC", "-shared"], folder, "so")?;
        let memory = Path::new("/dev/shm");
        let room = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Ok(Self { shim, program: program.to_owned(), room })
    }

    /// An empty folder that goes when it is dropped.
    pub fn folder(&self) -> Tried<tempfile::TempDir> {
        Ok(tempfile::Builder::new().prefix("selvedge-lab-").tempdir_in(&self.room)?)
    }

    /// The laboratory's own binary, for children without a shim.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The command of a child with the shim in it.
    pub fn child(&self, words: &[&str], root: &Path, aside: &Path, blow: Blow) -> Command {
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
        let (mode, at) = match blow {
            Blow::None => return command,
            Blow::Before(at) => ("before", at),
            Blow::After(at) => ("after", at),
            Blow::Half(at) => ("half", at),
            Blow::Fail(at, _) | Blow::FailOn(at, _) => ("error", at),
            Blow::Short(at) => ("short", at),
            Blow::Shutdown(at) => ("shutdown", at),
        };
        command.env("SELVEDGE_LAB_MODE", mode).env("SELVEDGE_LAB_AT", at.to_string());
        if let Blow::Fail(_, error) | Blow::FailOn(_, error) = blow {
            command.env("SELVEDGE_LAB_ERRNO", error.to_string());
        }
        if matches!(blow, Blow::FailOn(..)) {
            command.env("SELVEDGE_LAB_STICKY", "1");
        }
        command
    }

    /// Runs a child to its end.
    pub fn run(&self, words: &[&str], root: &Path, blow: Blow) -> Tried<Ended> {
        let aside = self.folder()?;
        let mut child = self.child(words, root, aside.path(), blow).spawn()?;
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

fn wait(child: &mut Child) -> Tried<(ExitStatus, bool)> {
    let began = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            return Ok((child.wait()?, true));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(4));
    }
}

/// Compiles a piece of C with the machine's own compiler, once for each text of it.
pub fn compile(name: &str, source: &str, flags: &[&str], folder: &Path, end: &str) -> Tried<PathBuf> {
    let digest = selvedge_log::hash::sha256(source.as_bytes());
    let target = folder.join(format!("selvedge-{name}-{}.{end}", digest.short()));
    if target.exists() {
        return Ok(target);
    }
    let aside = tempfile::tempdir_in(folder)?;
    let (text, made) = (aside.path().join(format!("{name}.c")), aside.path().join(name));
    fs::write(&text, source)?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    let output = command.args(["-O1", "-Wall"]).args(flags).arg("-o").arg(&made).arg(&text).arg("-ldl").output();
    let output = output.map_err(|error| -> Trouble { format!("the C compiler can't be started: {error}").into() })?;
    if !output.status.success() {
        return Err(format!("{name}.c does not compile: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    // Of several who compile at once the last one wins, and all have made the same.
    fs::rename(&made, &target)?;
    Ok(target)
}
