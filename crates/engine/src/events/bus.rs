//! Distributes events to the subscriptions that want them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use selvedge_model::ThreadId;

use super::backlog::Backlog;
use super::subscription::Queue;
use super::{RunEvent, Subscription, Watched};

/// The subscriptions of one engine.
#[derive(Debug, Default)]
pub(crate) struct Bus {
    /// How many there are: the only thing that publishing reads while there is none.
    count: AtomicUsize,
    /// Replaced as a whole, so that no lock is held while an event is delivered: a waker may subscribe or unsubscribe.
    queues: RwLock<Arc<[Arc<Queue>]>>,
}

impl Bus {
    /// A new subscription; `chain` is the first thread of the watched thread's chain, if it is known.
    pub(crate) fn subscribe(self: &Arc<Self>, watched: Watched, chain: Option<ThreadId>) -> Subscription {
        let queue = Arc::new(Queue::new(watched, chain));
        self.replace(|queues| queues.push(queue.clone()));
        Subscription::new(queue, Arc::downgrade(self))
    }

    pub(crate) fn unsubscribe(&self, queue: &Arc<Queue>) {
        self.replace(|queues| queues.retain(|other| !Arc::ptr_eq(other, queue)));
    }

    fn replace(&self, change: impl FnOnce(&mut Vec<Arc<Queue>>)) {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = queues.to_vec();
        change(&mut changed);
        self.count.store(changed.len(), Ordering::Release);
        *queues = changed.into();
    }

    /// Whether there is a subscription.
    pub(crate) fn is_watched(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Publishes an event of a thread of this chain.
    pub(crate) fn publish(&self, chain: &ThreadId, event: &RunEvent) {
        self.publish_sized(chain, event, 0);
    }

    /// The same for a commit that added this many bytes to its log.
    pub(crate) fn publish_sized(&self, chain: &ThreadId, event: &RunEvent, commit_bytes: usize) {
        let Some(thread) = event.thread() else { return };
        self.change(thread, chain, |backlog| backlog.push(event, commit_bytes));
    }

    /// Reports a commit that could not be read back as missed.
    pub(crate) fn publish_missed(&self, thread: &ThreadId, chain: &ThreadId, first_line: u64) {
        self.change(thread, chain, |backlog| backlog.miss_commit(thread, first_line));
    }

    fn change(&self, thread: &ThreadId, chain: &ThreadId, change: impl Fn(&mut Backlog)) {
        if !self.is_watched() {
            return;
        }
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner).clone();
        for queue in queues.iter().filter(|queue| queue.wants(thread, chain)) {
            queue.change(&change);
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let queues = self.queues.get_mut().unwrap_or_else(PoisonError::into_inner);
        for queue in queues.iter() {
            queue.close();
        }
    }
}
