//! Wakes tasks that wait for commits: of this process, and of any other.
//!
//! One thread of the operating system follows the store's feed while there are waiters.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_store::Store;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long to wait for the store at a time; the thread may outlive its engine by this.
const EVERY: Duration = Duration::from_millis(100);

/// Wakes tasks that wait for commits.
pub(crate) struct Feed {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    state: Mutex<State>,
    changed: Condvar,
    /// The feed position of the newest commit that was seen.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    waiting: usize,
    is_followed: bool,
    is_closed: bool,
}

impl Feed {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let shared = Shared { store, state: Mutex::default(), changed: Condvar::new(), newest: watch::Sender::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// Waits for a commit after this position, at most this long.
    pub(crate) async fn after(&self, position: u64, most: Duration) {
        let mut newest = self.shared.newest.subscribe();
        let waiting = Waiting::begin(&self.shared);
        // In either case the caller checks its condition again.
        _ = timeout(most, newest.wait_for(|newest| *newest > position)).await;
        drop(waiting);
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

/// Counts a waiter until it is dropped.
struct Waiting<'f>(&'f Arc<Shared>);

impl<'f> Waiting<'f> {
    fn begin(shared: &'f Arc<Shared>) -> Self {
        let mut state = shared.lock();
        state.waiting += 1;
        if !state.is_followed {
            let own = shared.clone();
            // Without the thread, every waiter checks again when its time is over.
            let started = std::thread::Builder::new().name("feed".to_owned()).spawn(move || own.follow());
            state.is_followed = started.is_ok();
        }
        drop(state);
        shared.changed.notify_all();
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self) {
        loop {
            let is_idle = |state: &mut State| state.waiting == 0 && !state.is_closed;
            let state = self.changed.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
            if state.is_closed {
                return;
            }
            drop(state);
            let before = *self.newest.borrow();
            match self.store.wait(before, EVERY).and_then(|_| self.store.position()) {
                Ok(newest) if newest > before => _ = self.newest.send_replace(newest),
                Ok(_) => {}
                // A failed read is repeated after a pause.
                Err(_) => std::thread::sleep(EVERY),
            }
        }
    }
}
