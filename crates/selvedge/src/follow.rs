//! Following the log of a thread, whichever process writes it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use selvedge_engine::{Engine, Waiter};
use selvedge_log::Line;
use selvedge_model::ThreadId;
use selvedge_model::blocking::on_thread;

use crate::error::Result;

/// How many lines are read at once.
const LINES_MAX: usize = 256;

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
    /// Wakes it when the thread has a commit; absent before the first wait.
    waiter: Option<Waiter>,
}

impl Follow {
    pub(crate) fn new(engine: Engine, thread: ThreadId, next_line: u64) -> Self {
        Self { engine, thread, next_line, read: VecDeque::new(), waiter: None }
    }

    /// The next line, awaited on any runtime; it needs no thread while it waits. Dropping the future loses no line.
    pub async fn next(&mut self) -> Result<Line> {
        loop {
            if let Some(line) = self.take() {
                return Ok(line);
            }
            // Registered before the log is read, so that no commit in between is missed.
            if self.waiter.is_none() {
                self.waiter = Some(self.engine.waiter(&self.thread)?);
            }
            let store = self.engine.store().clone();
            let thread = self.thread.clone();
            let next_line = self.next_line;
            self.read.extend(on_thread(move || store.read(&thread, next_line, LINES_MAX)).await?);
            if let Some(waiter) = self.waiter.as_ref().filter(|_| self.read.is_empty()) {
                waiter.woken().await;
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
            let store = self.engine.store();
            // Read first: a commit in between ends the wait at once.
            let position = store.position()?;
            self.read.extend(store.read(&self.thread, self.next_line, LINES_MAX)?);
            if !self.read.is_empty() {
                continue;
            }
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            store.wait(position, left)?;
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
