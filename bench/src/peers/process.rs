//! A peer: a process that receives commands line by line.

use std::io::{BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::measure::Lap;
use crate::{Outcome, child};

/// A running peer; ends when it is dropped.
pub(crate) struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    voice: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(command: &mut Command) -> Outcome<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let voice = BufReader::new(child.stdout.take().ok_or("a peer has no output")?);
        Ok(Self { child, stdin, voice })
    }

    /// Sends a command, without waiting.
    pub(crate) fn send(&mut self, command: &Value) -> Outcome<()> {
        let stdin = self.stdin.as_mut().ok_or("a peer has no input")?;
        writeln!(stdin, "{command}")?;
        Ok(stdin.flush()?)
    }

    /// Waits for its answer.
    pub(crate) fn receive(&mut self) -> Outcome<Value> {
        let line = child::read_line(&mut self.voice)?;
        if line.is_empty() {
            return Err("a peer ended without an answer; its output is above".into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Sends a command and waits for the answer.
    pub(crate) fn ask(&mut self, command: &Value) -> Outcome<Value> {
        self.send(command)?;
        self.receive()
    }

    /// Requests commits; returns how long each took, by the peer's own clock.
    pub(crate) fn commits(&mut self, command: &Value) -> Outcome<Lap> {
        let answer = self.ask(command)?;
        let each = answer["each_us"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        Ok(Lap { each, ..Lap::default() })
    }

    /// Its peak memory, in MiB.
    pub(crate) fn peak_mib(&mut self) -> Outcome<f64> {
        let answer = self.ask(&serde_json::json!({"do": "memory"}))?;
        Ok(answer["peak_kib"].as_f64().unwrap_or(0.0) / 1024.0)
    }

    /// Ends it cleanly.
    pub(crate) fn end(mut self) -> Outcome<()> {
        drop(self.stdin.take());
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends when its input is closed; one that hangs is killed.
        drop(self.stdin.take());
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
