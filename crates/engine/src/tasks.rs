//! Runs are tasks, polled by a private pool of threads.
//!
//! - A run is a task. While it waits (for a model, a tool, a child) it occupies no thread.
//! - The store blocks, so a task may block for moments while it is polled: the pool has as many threads as make large groups of commits, and
//!   no more. Nothing that may take long happens there.
//! - Waits for other threads read the store on a few threads of their own, so that a read does not queue after commits.
//! - Blocking code of tools gets a thread of its own ([`selvedge_model::blocking`]).
//! - Timers, and the sockets of models that call servers, belong to a small tokio runtime; every task is polled inside it.
//!
//! Threads are started on demand: an engine that only reads starts none.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use selvedge_model::blocking::{BoxFuture, OnThread, Pool};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// The most threads that commit at the same time: measured, this many make groups as large as one thread for each run would.
const POOL_THREADS_MAX: usize = 64;
/// The most threads that only read: a read does not queue after commits.
const READERS_MAX: usize = 4;
/// The number of threads that serve timers and sockets.
const WORKERS: usize = 2;

/// The tasks of an engine, and their threads.
pub(crate) struct Tasks {
    runtime: Mutex<Option<Runtime>>,
    /// Starts the runtime.
    starts: fn() -> io::Result<Runtime>,
    pool: Arc<Pool>,
    readers: Pool,
    active: Arc<Count>,
}

/// The number of active tasks.
#[derive(Default)]
struct Count {
    count: Mutex<usize>,
    changed: Condvar,
}

/// Counts a task as active until it is dropped.
struct ActiveTask(Arc<Count>);

impl ActiveTask {
    fn begin(count: &Arc<Count>) -> Self {
        *count.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(count.clone())
    }
}

impl Drop for ActiveTask {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.changed.notify_all();
    }
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            runtime: Mutex::default(),
            starts: || Builder::new_multi_thread().worker_threads(WORKERS).thread_name("runs").enable_all().build(),
            pool: Arc::new(Pool::bounded(POOL_THREADS_MAX)),
            readers: Pool::bounded(READERS_MAX),
            active: Arc::default(),
        }
    }
}

impl Tasks {
    /// Spawns a task. It runs to its end, even if the handle is dropped.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<Task<T>> {
        let (tell, told) = oneshot::channel();
        let runtime = self.runtime()?;
        let active = ActiveTask::begin(&self.active);
        let work = async move {
            let done = catch_panic(Box::pin(work)).await;
            drop(active);
            // The receiver may be gone.
            _ = tell.send(done);
        };
        Arc::new(Polled {
            work: Mutex::new(Some(Box::pin(work))),
            state: AtomicU8::new(IDLE),
            pool: self.pool.clone(),
            runtime,
        })
        .wake();
        Ok(Task(told))
    }

    /// Makes sure that tasks can run.
    pub(crate) fn start(&self) -> Result<()> {
        self.runtime().map(|_| ())
    }

    fn runtime(&self) -> Result<Handle> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(runtime.handle().clone());
        }
        let started = (self.starts)().map_err(|error| Error::NoRuntime { why: error.to_string() })?;
        Ok(runtime.insert(started).handle().clone())
    }

    /// Waits until no task is active, at most this long; returns whether none is.
    pub(crate) fn wait_idle(&self, most: Duration) -> bool {
        let count = self.active.count.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, _) = self
            .active
            .changed
            .wait_timeout_while(count, most, |count| *count > 0)
            .unwrap_or_else(PoisonError::into_inner);
        *count == 0
    }

    /// Reads from the store for code that must not block. A panic is resumed where the result is awaited.
    pub(crate) fn read<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> OnThread<T> {
        self.readers.run(work)
    }

    /// Tasks that can't get any threads.
    #[cfg(test)]
    pub(crate) fn without_threads() -> Self {
        let mut tasks = Self::default();
        tasks.starts = || Err(io::Error::other("no threads"));
        tasks
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        let runtime = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle of an engine may be dropped by a task, where waiting is not allowed. No other task is left then: each holds a
        // handle.
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

/// The handle of a task; awaited, it gives the task's result.
#[derive(Debug)]
pub(crate) struct Task<T>(oneshot::Receiver<thread::Result<T>>);

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(context).map(|done| match done {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => resume_unwind(panic),
            // Nothing drops a task before its end.
            Err(_) => resume_unwind(Box::new("the engine was shut down")),
        })
    }
}

/// The result of a future, or its panic.
pub(crate) async fn catch_panic<T>(mut work: BoxFuture<'_, T>) -> thread::Result<T> {
    poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

/// A task as the pool has it: polled by one thread at a time, once for all wake-ups since the last poll.
struct Polled {
    /// None after it has ended.
    work: Mutex<Option<BoxFuture<'static, ()>>>,
    state: AtomicU8,
    pool: Arc<Pool>,
    runtime: Handle,
}

/// It is neither polled nor queued.
const IDLE: u8 = 0;
/// It is polled, or queued for it.
const QUEUED: u8 = 1;
/// The same, and it was woken since: it is polled once more.
const WOKEN: u8 = 2;

impl Wake for Polled {
    fn wake(self: Arc<Self>) {
        let next = |state| Some(if state == IDLE { QUEUED } else { WOKEN });
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(IDLE) {
            self.queue();
        }
    }
}

impl Polled {
    fn queue(self: Arc<Self>) {
        self.pool.clone().go(move || self.poll());
    }

    fn poll(self: Arc<Self>) {
        // This poll sees everything that woke it until now.
        self.state.swap(QUEUED, Ordering::AcqRel);
        let waker = Waker::from(self.clone());
        let _inside = self.runtime.enter();
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(active) = work.as_mut() else { return };
        if active.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            *work = None;
            return;
        }
        drop(work);
        if self.state.compare_exchange(QUEUED, IDLE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.queue();
        }
    }
}

#[cfg(test)]
mod tests {
    use selvedge_model::blocking::wait;

    use super::*;

    #[test]
    fn it_is_idle_after_every_task_has_ended_also_by_a_panic() {
        let tasks = Tasks::default();
        let (tell, told) = oneshot::channel::<()>();
        let one = tasks.spawn(async { _ = told.await }).unwrap();
        let other = tasks.spawn(async { resume_unwind(Box::new("so")) }).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| wait(other))).is_err());
        assert!(!tasks.wait_idle(Duration::from_millis(5)));
        tell.send(()).unwrap();
        wait(one);
        assert!(tasks.wait_idle(Duration::MAX));
    }

    #[test]
    fn a_read_does_not_queue_after_commits() {
        let tasks = Arc::new(Tasks::default());
        let (go_on, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        // As many tasks as there are threads block, as on a slow disk.
        let block = |_| {
            let held = held.clone();
            tasks.spawn(async move { _ = held.lock().unwrap_or_else(PoisonError::into_inner).recv() }).unwrap()
        };
        let blocked: Vec<_> = (0..POOL_THREADS_MAX + 1).map(block).collect();
        assert_eq!(wait(tasks.read(|| 7)), 7);
        drop(go_on);
        blocked.into_iter().for_each(wait);
    }

    #[test]
    fn the_last_handle_may_be_dropped_anywhere() {
        let tasks = Arc::new(Tasks::default());
        let own = tasks.clone();
        let done = tasks.spawn(async move { own.read(|| 1).await }).unwrap();
        drop(tasks);
        assert_eq!(wait(done), 1);
    }
}
