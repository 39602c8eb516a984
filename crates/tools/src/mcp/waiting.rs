//! An answer that a thread waits for, until it is there, the call is cancelled, or a time is over.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use selvedge_model::Cancel;

/// A place for one value.
#[derive(Debug)]
pub(super) struct Slot<T>(Arc<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    value: Mutex<Option<T>>,
    changed: Condvar,
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What ended the waiting.
pub(super) enum Waited<T> {
    Value(T),
    Cancelled,
    Late,
}

impl<T: Send + 'static> Slot<T> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner { value: Mutex::new(None), changed: Condvar::new() }))
    }

    /// Fills it; the first value counts.
    pub(super) fn fill(&self, value: T) {
        let mut place = self.0.lock();
        if place.is_none() {
            *place = Some(value);
        }
        self.0.changed.notify_all();
    }

    /// Waits for the value.
    pub(super) fn wait(&self, cancel: &Cancel, until: Instant) -> Waited<T> {
        let waker = Waker::from(self.0.clone());
        let mut stopped = cancel.stopped();
        let is_stopped = Pin::new(&mut stopped).poll(&mut Context::from_waker(&waker)) != Poll::Pending;
        let mut place = self.0.lock();
        loop {
            if let Some(value) = place.take() {
                return Waited::Value(value);
            }
            if is_stopped || cancel.said().is_some() {
                return Waited::Cancelled;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Waited::Late;
            }
            place = self.0.changed.wait_timeout(place, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> Inner<T> {
    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cancellation wakes the thread that waits.
impl<T: Send + 'static> Wake for Inner<T> {
    fn wake(self: Arc<Self>) {
        // Under the lock: the waiting thread has not looked yet, or is asleep.
        let _place = self.lock();
        self.changed.notify_all();
    }
}
