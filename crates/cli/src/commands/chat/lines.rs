//! Lines from stdin, one at a time: typed at a prompt, or piped in.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{QueueSelector, tcflush};

use super::interrupts::Interrupts;
use crate::error::{Failure, Result};

/// The most bytes of a message.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
const READ_BYTES: usize = 64 << 10;

/// What came from stdin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// A line or a message, without its end.
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// The end of the input, or Ctrl-D.
    End,
}

/// Reads stdin by itself: what is read ahead is here and nowhere else.
pub(crate) struct Lines {
    ahead: Vec<u8>,
    has_ended: bool,
    is_terminal: bool,
}

impl Lines {
    /// A program that reads JSON is shown no prompt, wherever its lines come from.
    pub(crate) fn new(is_for_program: bool) -> Self {
        Self { ahead: Vec::new(), has_ended: false, is_terminal: !is_for_program && io::stdin().is_terminal() }
    }

    /// Whether a person types.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// A message: one line, or several of which all but the last end in a backslash.
    pub(crate) fn message(&mut self, prompt: &str, interrupts: &Interrupts) -> Result<Typed> {
        let mut message = String::new();
        let mut prompt = prompt;
        loop {
            match self.line(prompt, interrupts)? {
                Typed::Text(line) => match continued(&line) {
                    Some(part) if message.len() < MESSAGE_BYTES_MAX => {
                        message.push_str(part);
                        message.push('\n');
                        prompt = "… ";
                    }
                    _ => return Ok(Typed::Text(message + &line)),
                },
                Typed::End if !message.is_empty() => return Ok(Typed::Text(message)),
                other => return Ok(other),
            }
        }
    }

    /// One line.
    pub(crate) fn line(&mut self, prompt: &str, interrupts: &Interrupts) -> Result<Typed> {
        self.ask(prompt);
        loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.ahead.drain(..=end).collect();
                return text(&line[..end]);
            }
            if self.ahead.len() > MESSAGE_BYTES_MAX {
                return Err(Failure::usage("a message can't be longer than 4 MiB"));
            }
            if self.has_ended {
                let last = std::mem::take(&mut self.ahead);
                return if last.is_empty() { Ok(Typed::End) } else { text(&last) };
            }
            if !self.wait(interrupts)? {
                return Ok(Typed::Interrupted);
            }
            self.read()?;
        }
    }

    /// Forgets what was typed before now: an answer to a question is one that came after it.
    pub(crate) fn forget_typed_ahead(&mut self) {
        if self.is_terminal {
            self.ahead.clear();
            // What can't be flushed is what stays.
            _ = tcflush(io::stdin().as_fd(), QueueSelector::IFlush);
        }
    }

    fn ask(&self, prompt: &str) {
        if self.is_terminal {
            let mut stderr = anstream::stderr().lock();
            // With stderr gone there is no place for a prompt.
            _ = write!(stderr, "{prompt}").and_then(|()| stderr.flush());
        }
    }

    /// Waits until there is something to read; false if Ctrl-C came first.
    fn wait(&self, interrupts: &Interrupts) -> Result<bool> {
        let stdin = io::stdin();
        let mut fds = [
            PollFd::from_borrowed_fd(interrupts.woken(), PollFlags::IN),
            PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
        ];
        loop {
            match poll(&mut fds, None) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        if fds[0].revents().is_empty() {
            return Ok(true);
        }
        interrupts.forget();
        Ok(false)
    }

    fn read(&mut self) -> Result<()> {
        let mut bytes = vec![0; READ_BYTES];
        match rustix::io::read(io::stdin().as_fd(), &mut bytes[..]) {
            Ok(0) => self.has_ended = true,
            Ok(read) => self.ahead.extend_from_slice(&bytes[..read]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(errno) => return Err(failed(errno)),
        }
        Ok(())
    }
}

fn failed(errno: rustix::io::Errno) -> Failure {
    Failure::io("read", Path::new("stdin"), &errno.into())
}

fn text(line: &[u8]) -> Result<Typed> {
    let text = std::str::from_utf8(line).map_err(|_| Failure::usage("a line of stdin is not UTF-8"))?;
    Ok(Typed::Text(text.strip_suffix('\r').unwrap_or(text).to_owned()))
}

/// The line without its backslash, if the message continues on the next line. Two backslashes at the end are text.
fn continued(line: &str) -> Option<&str> {
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    (backslashes % 2 == 1).then(|| &line[..line.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_at_the_end_continues_a_message_and_two_are_text() {
        assert_eq!(continued("one \\"), Some("one "));
        assert_eq!(continued("a path\\\\"), None);
        assert_eq!(continued("\\"), Some(""));
        assert_eq!(continued("plain"), None);
    }
}
