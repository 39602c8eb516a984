//! A program that is kept running and spoken to, behind the same gate.

use std::io;
use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use super::gate::Gated;

/// How long it has after TERM, when it is no longer needed.
const GRACE: Duration = Duration::from_millis(500);

/// A program that runs. Dropping it ends the whole group.
#[derive(Debug)]
pub(crate) struct Serving(Gated);

/// Its standard input, output and error output.
pub(crate) type Ends = (ChildStdin, ChildStdout, ChildStderr);

impl Gated {
    /// Opens the gate, and returns the ends of the program's pipes.
    pub(crate) fn serve(mut self) -> io::Result<(Serving, Ends)> {
        let ends = (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = ends else { return Err(io::ErrorKind::BrokenPipe.into()) };
        self.open()?;
        Ok((Serving(self), (stdin, stdout, stderr)))
    }
}

impl Serving {
    fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.0.pid), options), Ok(None))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.signal(Signal::TERM);
        let until = Instant::now() + GRACE;
        while !self.has_exited() && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        // The drop of the inner value kills what is left.
    }
}
