//! Opens the gate of a program and waits for its end.
//!
//! One thread does it all: it sleeps on the program's end, on its pipes, and on a pipe of our own that a cancellation writes to.

use std::future::Future;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, read, write};
use rustix::process::{Signal, WaitId, WaitIdOptions, test_kill_process_group, waitid};
use selvedge_model::cancel::Stopped;
use selvedge_model::{Cancel, Stop};

use super::bounded_output::{KeptHead, KeptTail};
use super::gate::Gated;
use super::identity::members;

/// How long a program has between TERM and KILL.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How long the kernel has to carry out KILL.
const KILL: Duration = Duration::from_secs(10);
/// How long to wait for output after every process that should write it is dead.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// How often to check for what can't be slept on.
const LOOK_UP: Duration = Duration::from_millis(20);
const STDERR_BYTES_MAX: usize = 4096;
const READ_BYTES: usize = 64 * 1024;
/// How many reads in a row before the clock is checked again.
const READS_MAX: usize = 16;

/// How a program ended.
#[derive(Debug)]
pub(crate) enum ProcessEnd {
    /// By itself, or by a signal from outside.
    Exited(ExitStatus),
    /// It exceeded its time limit and was ended.
    TimedOut,
    /// It was cancelled and ended.
    Stopped,
    /// It was gone before its gate was opened, and never ran.
    NeverRan,
    /// Its end could not be observed.
    Unseen(String),
}

/// A program that ended, and its output.
#[derive(Debug)]
pub(crate) struct EndedProcess {
    pub(crate) end: ProcessEnd,
    pub(crate) stdout: KeptHead,
    pub(crate) stderr: KeptTail,
    /// Whether a process outside its group still holds its output open.
    pub(crate) has_escaped: bool,
}

impl Gated {
    /// Opens the gate and waits until the program and everything in its group is gone.
    pub(crate) fn run(mut self, cancel: &Cancel) -> EndedProcess {
        let mut pipes = Pipes::of(&mut self);
        // A successful write proves nothing: for a moment after another thread's fork, the pipe has a reader that is not sh.
        let end = if self.has_exited() || self.open().is_err() {
            Some(ProcessEnd::NeverRan)
        } else {
            self.watch(&mut pipes, cancel)
        };
        self.signal(Signal::KILL);
        let end = self.reap(end);
        pipes.last_words();
        let has_escaped = pipes.stdout.is_some() || pipes.stderr.is_some();
        EndedProcess { end, stdout: pipes.head, stderr: pipes.tail, has_escaped }
    }

    /// Waits for the leader's end, and ends it when it is time; returns how it ended, if not by itself.
    fn watch(&mut self, pipes: &mut Pipes, cancel: &Cancel) -> Option<ProcessEnd> {
        let ended = exit_of(self);
        let mut stop = StopPipe::new(cancel);
        let mut deadline = Instant::now() + self.timeout;
        let mut ending: Option<(ProcessEnd, Signal)> = None;
        loop {
            pipes.pump();
            if self.has_exited() {
                return ending.map(|(end, _)| end);
            }
            let now = Instant::now();
            let said = cancel.said();
            let last = ending.as_ref().map(|(_, signal)| *signal);
            let next = match last {
                None if said.is_some() => Some((ProcessEnd::Stopped, Signal::TERM)),
                None if now >= deadline => Some((ProcessEnd::TimedOut, Signal::TERM)),
                Some(Signal::TERM) if said == Some(Stop::Killed) || now >= deadline => {
                    ending.take().map(|(end, _)| (end, Signal::KILL))
                }
                Some(Signal::KILL) if now >= deadline => {
                    return Some(ProcessEnd::Unseen("it can't be killed".to_owned()));
                }
                _ => None,
            };
            if let Some((end, signal)) = next {
                self.signal(signal);
                deadline = now + if signal == Signal::TERM { GRACE } else { KILL };
                ending = Some((end, signal));
                continue;
            }
            if stop.is_beyond(said) {
                continue;
            }
            let most = deadline.saturating_duration_since(now);
            match (&ended, &stop.reader) {
                (Some(ended), Some(stop)) => pipes.sleep([ended.as_fd(), stop.as_fd()], most),
                (ended, stop) => {
                    let events = ended.iter().map(OwnedFd::as_fd).chain(stop.iter().map(PipeReader::as_fd));
                    pipes.sleep(events, LOOK_UP.min(most));
                }
            }
        }
    }

    /// Whether the leader has ended; it is not reaped, so that its process id is not reused.
    fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None) | Err(Errno::INTR))
    }

    /// Takes the leader's status and waits for the rest of the group to be gone.
    fn reap(&mut self, end: Option<ProcessEnd>) -> ProcessEnd {
        if let Some(end @ ProcessEnd::Unseen(_)) = end {
            self.is_over = true;
            return end;
        }
        let status = self.bury();
        let until = Instant::now() + KILL;
        while !is_gone(self.pid) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        end.unwrap_or_else(|| status.map_or_else(|error| ProcessEnd::Unseen(error.to_string()), ProcessEnd::Exited))
    }
}

/// Whether a group has no live members. Zombies don't count.
pub(super) fn is_gone(group: rustix::process::Pid) -> bool {
    test_kill_process_group(group) == Err(Errno::SRCH)
        || members(group.as_raw_pid().unsigned_abs()).is_some_and(|members| members.is_empty())
}

/// A descriptor to sleep on until the leader ends. Without it, the end is noticed at the next check.
#[cfg(target_os = "linux")]
fn exit_of(gated: &Gated) -> Option<OwnedFd> {
    rustix::process::pidfd_open(gated.pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn exit_of(_gated: &Gated) -> Option<OwnedFd> {
    None
}

/// A cancellation, as something that can be slept on.
struct StopPipe {
    cancel: Cancel,
    /// Readable once the program is to be stopped; absent if there was no descriptor for it.
    reader: Option<PipeReader>,
    waker: Waker,
    /// Keeps the waker registered.
    stopped: Option<Stopped>,
}

/// Writes to a pipe when it is woken.
struct WakePipe(PipeWriter);

impl Wake for WakePipe {
    fn wake(self: Arc<Self>) {
        // If the pipe is full, it is readable.
        let _ = write(&self.0, &[0]);
    }
}

impl StopPipe {
    fn new(cancel: &Cancel) -> Self {
        let cancel = cancel.clone();
        let pipe = io::pipe()
            .ok()
            .filter(|(reader, writer)| ioctl_fionbio(reader, true).is_ok() && ioctl_fionbio(writer, true).is_ok());
        match pipe {
            Some((reader, writer)) => {
                let waker = Waker::from(Arc::new(WakePipe(writer)));
                Self { cancel, reader: Some(reader), waker, stopped: None }
            }
            None => Self { cancel, reader: None, waker: Waker::noop().clone(), stopped: None },
        }
    }

    /// Whether there is a more urgent reason to stop than this one; if not, the pipe becomes readable once there is.
    fn is_beyond(&mut self, known: Option<Stop>) -> bool {
        if let Some(reader) = &self.reader {
            let _ = read(reader, &mut [0; 8]);
        }
        let mut stopped = self.cancel.stopped_beyond(known);
        let is_ready = Pin::new(&mut stopped).poll(&mut Context::from_waker(&self.waker)).is_ready();
        self.stopped = Some(stopped);
        is_ready
    }
}

/// Our ends of the program's pipes, until they are closed, and what came through them.
struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    to_write: Vec<u8>,
    written: usize,
    head: KeptHead,
    tail: KeptTail,
    buffer: Vec<u8>,
}

impl Pipes {
    fn of(gated: &mut Gated) -> Self {
        let pipes = Self {
            stdin: gated.child.stdin.take().map(OwnedFd::from),
            stdout: gated.child.stdout.take().map(OwnedFd::from),
            stderr: gated.child.stderr.take().map(OwnedFd::from),
            to_write: std::mem::take(&mut gated.stdin),
            written: 0,
            head: KeptHead::new(gated.stdout_bytes_max),
            tail: KeptTail::new(STDERR_BYTES_MAX),
            buffer: vec![0; READ_BYTES],
        };
        for pipe in [&pipes.stdin, &pipes.stdout, &pipes.stderr].into_iter().flatten() {
            // Our end has its own flags; the program's is unchanged. This never fails for a pipe.
            let _ = ioctl_fionbio(pipe, true);
        }
        pipes
    }

    /// Reads and writes without blocking, up to a bound.
    fn pump(&mut self) {
        drain(&mut self.stdout, &mut self.buffer, &mut |bytes| self.head.add(bytes));
        drain(&mut self.stderr, &mut self.buffer, &mut |bytes| self.tail.add(bytes));
        while let Some(pipe) = &self.stdin {
            match write(pipe, &self.to_write[self.written..]) {
                Ok(count) if self.written + count < self.to_write.len() => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // All is written, or there is no reader any more.
                _ => self.stdin = None,
            }
        }
    }

    /// Sleeps until a pipe is ready or one of these events has happened, at most this long.
    fn sleep<'e>(&self, events: impl IntoIterator<Item = BorrowedFd<'e>>, most: Duration) {
        let reading = [&self.stdout, &self.stderr].into_iter().flatten().map(|pipe| (pipe.as_fd(), PollFlags::IN));
        let writing = self.stdin.iter().map(|pipe| (pipe.as_fd(), PollFlags::OUT));
        let events = events.into_iter().map(|event| (event, PollFlags::IN));
        let all = reading.chain(writing).chain(events);
        let mut all: Vec<_> = all.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        let seconds = i64::try_from(most.as_secs()).unwrap_or(i64::MAX);
        let most = Timespec { tv_sec: seconds, tv_nsec: i64::from(most.subsec_nanos()) };
        // Whatever the reason for waking up, the next check finds it.
        let _ = poll(&mut all, Some(&most));
    }

    /// Reads what the dead processes had written.
    fn last_words(&mut self) {
        self.stdin = None;
        let until = Instant::now() + LAST_WORDS;
        loop {
            self.pump();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || (self.stdout.is_none() && self.stderr.is_none()) {
                return;
            }
            self.sleep([], LOOK_UP.min(left));
        }
    }
}

fn drain(pipe: &mut Option<OwnedFd>, buffer: &mut [u8], add: &mut dyn FnMut(&[u8])) {
    for _ in 0..READS_MAX {
        let Some(open) = pipe else { return };
        match read(open, &mut *buffer) {
            Ok(0) => *pipe = None,
            Ok(count) => add(&buffer[..count]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return,
            Err(_) => *pipe = None,
        }
    }
}
