//! Measurements in a process of their own: this program, started again.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::{Value, json};

use crate::machine::own_memory_kib;
use crate::streams::host::Stream;
use crate::{
    Outcome, append, chains, crowd, live, loading, peers, processes, spawns, startup, streams, turns, under_load,
    waiting,
};

/// What such a process does. Each answers with one line of JSON.
#[derive(Clone, Debug, Subcommand)]
#[command(hide = true)]
pub(crate) enum Role {
    /// Nothing: the cost of starting a process.
    #[command(hide = true)]
    Nothing,
    /// Loads a thread, verified.
    #[command(hide = true)]
    Load { folder: PathBuf, thread: String },
    /// Verifies a thread.
    #[command(hide = true)]
    Verify { folder: PathBuf, thread: String },
    /// Appends one message.
    #[command(hide = true)]
    Append { folder: PathBuf, thread: String, name: String },
    /// Shows a thread.
    #[command(hide = true)]
    Show { folder: PathBuf, thread: String },
    /// Many threads, compared with as many bare loops.
    #[command(hide = true)]
    Crowd { folder: PathBuf, threads: usize, rounds: usize, commits: usize },
    /// Many live threads, written in turn.
    #[command(hide = true)]
    Live { folder: PathBuf, rounds: usize, counts: Vec<usize> },
    /// Many runs that wait.
    #[command(hide = true)]
    Waiting { folder: PathBuf, runs: usize, look_ms: u64 },
    /// Streams answers until standard input ends.
    #[command(hide = true)]
    StreamHost,
    /// The cost of a streamed chunk.
    #[command(hide = true)]
    StreamChunks { folder: PathBuf, url: String, rounds: usize, chunks: usize },
    /// One large answer.
    #[command(hide = true)]
    StreamLarge { folder: PathBuf, url: String, way: String, format: String },
    /// Many streamed answers at once.
    #[command(hide = true)]
    StreamCrowd { folder: PathBuf, url: String, stream: Stream },
    /// Whole turns through the engine.
    #[command(hide = true)]
    EngineTurns { folder: PathBuf, threads: usize, rounds: usize, turns: usize },
    /// A late turn through the engine, compared with an early one.
    #[command(hide = true)]
    LateTurn { folder: PathBuf, turn: usize, rounds: usize },
    /// Whole turns in a fresh store.
    #[command(hide = true)]
    Turns { folder: PathBuf, turns: u64 },
    /// One of two processes that write to one thread.
    #[command(hide = true)]
    Race { folder: PathBuf, thread: String, count: usize },
    /// Waits for the threads that it is sent.
    #[command(hide = true)]
    Waiter { folder: PathBuf },
    /// Runs a detached child.
    #[command(hide = true)]
    Spawned { folder: PathBuf, thread: String },
    /// The load test; memory and descriptors must not grow.
    UnderLoad(under_load::LoadArgs),
    /// One of several processes that write at once.
    #[command(hide = true)]
    Rival { folder: PathBuf, name: String },
}

impl Role {
    pub(crate) fn play(&self) -> Outcome<()> {
        let mut answer = match self {
            Self::Nothing => json!({}),
            Self::Load { folder, thread } => loading::load(folder, thread)?,
            Self::Verify { folder, thread } => under_load::transcript::verify(folder, thread)?,
            Self::UnderLoad(args) => return under_load::run(args),
            Self::Append { folder, thread, name } => append::append(folder, thread, name)?,
            Self::Show { folder, thread } => startup::show(folder, thread)?,
            Self::Crowd { folder, threads, rounds, commits } => crowd::run(folder, *threads, *rounds, *commits)?,
            Self::Live { folder, rounds, counts } => live::run(folder, *rounds, counts)?,
            Self::Waiting { folder, runs, look_ms } => waiting::run(folder, *runs, Duration::from_millis(*look_ms))?,
            Self::StreamHost => return streams::host::serve(),
            Self::StreamChunks { folder, url, rounds, chunks } => streams::chunks(folder, url, *rounds, *chunks)?,
            Self::StreamLarge { folder, url, way, format } => streams::large(folder, url, way, format)?,
            Self::StreamCrowd { folder, url, stream } => streams::crowd(folder, url, *stream)?,
            Self::EngineTurns { folder, threads, rounds, turns } => turns::run(folder, *threads, *rounds, *turns)?,
            Self::LateTurn { folder, turn, rounds } => turns::late(folder, *turn, *rounds)?,
            Self::Turns { folder, turns } => peers::turns::write(folder, *turns)?,
            Self::Race { folder, thread, count } => peers::race::write(folder, thread, *count)?,
            Self::Waiter { folder } => return chains::waiter(folder),
            Self::Spawned { folder, thread } => spawns::run_child(folder, thread)?,
            Self::Rival { folder, name } => return processes::rival(folder, name),
        };
        answer["peak_kib"] = own_memory_kib("VmHWM").into();
        say(&answer)
    }
}

/// Prints one line for the parent process.
pub(crate) fn say(value: &Value) -> Outcome<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{value}")?;
    stdout.flush()?;
    Ok(())
}

/// Reads one line.
pub(crate) fn read_line(from: &mut impl BufRead) -> Outcome<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// This program, in a role.
pub(crate) fn command(role: &str, folder: &Path, rest: &[&str]) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(role).arg(folder).args(rest).stdout(Stdio::piped());
    Ok(command)
}

/// Runs a process to its end; returns its output and how long it lived.
pub(crate) fn run(mut command: Command) -> Outcome<(Value, Duration)> {
    let start = Instant::now();
    let output = command.stderr(Stdio::inherit()).output()?;
    let took = start.elapsed();
    if !output.status.success() {
        return Err(format!("a process of the bench failed: {}", output.status).into());
    }
    Ok((serde_json::from_slice(&output.stdout)?, took))
}

/// Starts a process that does nothing, `times` times; returns how long each lived, in milliseconds.
pub(crate) fn nothing(times: usize) -> Outcome<Vec<f64>> {
    let start = || -> Outcome<f64> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("nothing");
        Ok(run(command)?.1.as_secs_f64() * 1e3)
    };
    (0..times).map(|_| start()).collect()
}
