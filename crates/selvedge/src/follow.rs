//! Following the log of a thread, whichever process writes it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use selvedge_engine::Engine;
use selvedge_log::Line;
use selvedge_model::ThreadId;
use selvedge_model::blocking::on_thread;

use crate::error::Result;

/// How many lines are read at once.
const LINES_MAX: usize = 256;
/// The maximum time of one wait for the feed. A notification may be late, so the log is read again afterwards.
const LOOK: Duration = Duration::from_millis(500);

/// The committed lines of a thread, each once and in order. Made by [`Selvedge::follow`](crate::Selvedge::follow).
///
/// It never ends: a thread that has ended may be continued. Stop at the event that the program waits for, or check
/// [`Selvedge::status`](crate::Selvedge::status). A thread that was continued by a successor commits nothing more: follow the successor.
#[derive(Debug)]
pub struct Follow {
    engine: Engine,
    thread: ThreadId,
    next_line: u64,
    read: VecDeque<Line>,
}

impl Follow {
    pub(crate) fn new(engine: Engine, thread: ThreadId, next_line: u64) -> Self {
        Self { engine, thread, next_line, read: VecDeque::new() }
    }

    /// The next line, awaited on any runtime; it needs no thread while it waits. Dropping the future loses no line.
    pub async fn next(&mut self) -> Result<Line> {
        loop {
            let engine = self.engine.clone();
            let thread = self.thread.clone();
            let next_line = self.next_line;
            if let Some(line) = self.take() {
                return Ok(line);
            }
            let (position, lines) = on_thread(move || look(&engine, &thread, next_line)).await?;
            self.read.extend(lines);
            if self.read.is_empty() {
                self.engine.submit_feed_wait(position, LOOK)?.await;
            }
        }
    }

    /// Waits on this thread for the next line, at most this long; `None` if there was none.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Line>> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(line) = self.take() {
                return Ok(Some(line));
            }
            let (position, lines) = look(&self.engine, &self.thread, self.next_line)?;
            self.read.extend(lines);
            if !self.read.is_empty() {
                continue;
            }
            let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            self.engine.store().wait(position, left.min(LOOK))?;
        }
    }

    /// The number of the next line, where another follower can continue.
    pub fn next_line(&self) -> u64 {
        self.next_line
    }

    fn take(&mut self) -> Option<Line> {
        let line = self.read.pop_front()?;
        self.next_line = line.seq + 1;
        Some(line)
    }
}

/// The lines from a number on, and the feed's position before they were read: a commit in between ends the next wait at once.
fn look(engine: &Engine, thread: &ThreadId, first_line: u64) -> Result<(u64, Vec<Line>)> {
    let position = engine.store().position()?;
    Ok((position, engine.store().read(thread, first_line, LINES_MAX)?))
}
