//! One subscriber's end of the bus.
//!
//! A mutex with a condition variable and a stored waker: it can be read from threads and from any async runtime, and this crate needs none.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use selvedge_model::ThreadId;

use super::backlog::Backlog;
use super::{Bus, RunEvent, Watched};

/// The state that the bus and a subscription share.
#[derive(Debug)]
pub(crate) struct Queue {
    watched: Watched,
    /// The first thread of the watched thread's chain, once known.
    chain: OnceLock<ThreadId>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    backlog: Backlog,
    waker: Option<Waker>,
    is_closed: bool,
}

impl Queue {
    pub(crate) fn new(watched: Watched, chain: Option<ThreadId>) -> Self {
        let chain = chain.map_or_else(OnceLock::new, OnceLock::from);
        Self { watched, chain, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Whether it watches this thread. A thread that is continued commits nothing any more, so of a chain only the watched thread and its
    /// successors publish.
    pub(crate) fn wants(&self, thread: &ThreadId, chain: &ThreadId) -> bool {
        match &self.watched {
            Watched::All => true,
            Watched::Thread(watched) if watched == thread => {
                self.chain.get_or_init(|| chain.clone());
                true
            }
            Watched::Thread(_) => self.chain.get() == Some(chain),
        }
    }

    /// Changes the queue, and wakes the subscriber.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Backlog)) {
        let mut state = self.lock();
        if !state.is_closed {
            change(&mut state.backlog);
            self.wake(state);
        }
    }

    /// Marks that no more events come.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives the events of an engine from [`crate::Engine::subscribe`] on, until it is dropped.
///
/// Unread events are queued within bounds ([`super::QUEUE_EVENTS_MAX`], [`super::QUEUE_DRAFT_BYTES_MAX`], [`super::QUEUE_BYTES_MAX`]); what
/// exceeds them is replaced by a [`RunEvent::Missed`].
pub struct Subscription {
    queue: Arc<Queue>,
    bus: Weak<Bus>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Subscription").field("watched", &self.queue.watched).finish_non_exhaustive()
    }
}

/// The event queue of the caller of an operation, if it watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallerEvents(Option<Arc<Queue>>);

impl CallerEvents {
    /// A queue, and the subscription that reads it.
    pub(crate) fn new() -> (Self, Subscription) {
        let queue = Arc::new(Queue::new(Watched::All, None));
        (Self(Some(queue.clone())), Subscription::new(queue, Weak::new()))
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Adds an event; `commit_bytes` is the length that a commit added to its log.
    pub(crate) fn push(&self, event: &RunEvent, commit_bytes: usize) {
        if let Some(queue) = &self.0 {
            queue.change(|backlog| backlog.push(event, commit_bytes));
        }
    }

    /// Marks that no more events come.
    pub(crate) fn close(&self) {
        if let Some(queue) = &self.0 {
            queue.close();
        }
    }
}

impl Subscription {
    pub(crate) fn new(queue: Arc<Queue>, bus: Weak<Bus>) -> Self {
        Self { queue, bus }
    }

    /// Waits this long for the next event; returns none if there was none, and at once if the engine is gone.
    pub fn recv(&mut self, timeout: Duration) -> Option<RunEvent> {
        let is_idle = |state: &mut State| state.backlog.is_empty() && !state.is_closed;
        let waited = self.queue.changed.wait_timeout_while(self.queue.lock(), timeout, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.backlog.pop()
    }

    /// The next event, if there is one.
    pub fn try_recv(&mut self) -> Option<RunEvent> {
        self.queue.lock().backlog.pop()
    }

    /// The next event, for an async runtime; `None` once the engine is gone and everything was received.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<RunEvent>> {
        let mut state = self.queue.lock();
        if let Some(event) = state.backlog.pop() {
            return Poll::Ready(Some(event));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// The next event, awaited on any runtime; `None` once the engine is gone and everything was received. Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<RunEvent> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Whether the engine is gone and everything was received.
    pub fn is_closed(&self) -> bool {
        let state = self.queue.lock();
        state.is_closed && state.backlog.is_empty()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Nothing is queued for a subscriber that is gone.
        let mut state = self.queue.lock();
        state.is_closed = true;
        state.backlog = Backlog::default();
        drop(state);
        if let Some(bus) = self.bus.upgrade() {
            bus.unsubscribe(&self.queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use selvedge_model::{Draft, Reason, RunId};

    use super::*;

    /// Two runs publish as fast as they can while two subscribers read, one of them slowly.
    #[test]
    fn publishers_and_readers_at_the_same_time_lose_nothing_without_a_missed() {
        const COMMITS: u64 = 2_000;
        let bus = Arc::new(Bus::default());
        let threads = ["00000000000a", "00000000000b"].map(|end| ThreadId::generate("side", end));
        let fast = bus.subscribe(Watched::All, None);
        let slow = bus.subscribe(Watched::All, None);
        std::thread::scope(|scope| {
            let fast = scope.spawn(|| read(fast, &threads, Duration::ZERO));
            let slow = scope.spawn(|| read(slow, &threads, Duration::from_micros(20)));
            let publishing = threads.each_ref().map(|thread| {
                let bus = bus.clone();
                scope.spawn(move || publish(&bus, thread, COMMITS))
            });
            for done in publishing {
                done.join().unwrap();
            }
            drop(bus);
            for counted in [fast, slow] {
                assert_eq!(counted.join().unwrap(), (2 * COMMITS, 2 * COMMITS * 3));
            }
        });
    }

    fn publish(bus: &Bus, thread: &ThreadId, commits: u64) {
        let run = RunId::new("run").unwrap();
        for version in 0..commits {
            for _ in 0..3 {
                let draft = Draft::Text { text: "x".to_owned() };
                bus.publish(thread, &RunEvent::Draft { thread: thread.clone(), run: run.clone(), attempt: 1, draft });
            }
            let committed = RunEvent::Committed {
                thread: thread.clone(),
                run: Some(run.clone()),
                version,
                reason: Reason::Lifecycle,
                first_line: version,
                events: Arc::from([]),
            };
            bus.publish_sized(thread, &committed, 100);
        }
    }

    /// How many commits and drafts were received or reported as missed.
    fn read(mut subscription: Subscription, threads: &[ThreadId; 2], pause: Duration) -> (u64, u64) {
        let mut counted = (0, 0);
        let mut next = [0, 0];
        while !subscription.is_closed() {
            let Some(event) = subscription.recv(Duration::from_secs(20)) else { continue };
            match event {
                RunEvent::Draft { .. } => counted.1 += 1,
                RunEvent::Committed { thread, first_line, .. } => {
                    counted.0 += 1;
                    let next = &mut next[usize::from(thread == threads[1])];
                    assert!(first_line >= *next, "in order");
                    *next = first_line + 1;
                }
                RunEvent::Missed { drafts, commits, first_lines, .. } => {
                    counted = (counted.0 + commits, counted.1 + drafts);
                    for (thread, first_line) in first_lines {
                        let next = &mut next[usize::from(thread == threads[1])];
                        assert!(first_line >= *next, "in order");
                        *next = first_line + 1;
                    }
                }
                other => panic!("{other:?}"),
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
        counted
    }

    #[test]
    fn without_a_subscriber_nothing_is_kept() {
        let bus = Arc::new(Bus::default());
        assert!(!bus.is_watched());
        let subscription = bus.subscribe(Watched::All, None);
        assert!(bus.is_watched());
        drop(subscription);
        assert!(!bus.is_watched());
    }
}
