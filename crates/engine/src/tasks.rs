//! Where runs go on: tasks of the engine's own runtime, and a private pool for everything that blocks.
//!
//! - A run is a task. What it waits for (a model, a tool, a child) costs no thread.
//! - The store blocks. What a run does between two waits runs on the pool: as many threads as make large groups of commits, and no more.
//!   Nothing that may wait long runs there.
//! - Code of tools that blocks gets a thread of its own ([`selvedge_model::blocking`]).
//!
//! Threads are started when they are needed: an engine that only reads starts none.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// How many threads commit at the same time: measured, so many make groups as large as a thread for each run would.
const POOL_THREADS_MAX: usize = 64;
/// How many threads poll the tasks. They only ever do so for a moment.
const WORKERS: usize = 2;

/// The runtime and the pool of an engine.
#[derive(Default)]
pub(crate) struct Tasks {
    runtime: Mutex<Option<Runtime>>,
    pool: Pool,
    going: Arc<Count>,
}

/// How many tasks go on.
#[derive(Default)]
struct Count {
    count: Mutex<usize>,
    changed: Condvar,
}

/// A task goes on, until this is dropped.
struct Going(Arc<Count>);

impl Going {
    fn begin(count: &Arc<Count>) -> Self {
        *count.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(count.clone())
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.changed.notify_all();
    }
}

impl Tasks {
    /// Lets something go on by itself. It ends by itself, whatever becomes of what is given.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<Task<T>> {
        let going = Going::begin(&self.going);
        let work = async move {
            let _going = going;
            work.await
        };
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(Task(runtime.spawn(work)));
        }
        let started = Builder::new_multi_thread().worker_threads(WORKERS).thread_name("runs").enable_time().build();
        let started = started.map_err(|error| Error::NoRuntime { why: error.to_string() })?;
        Ok(Task(runtime.insert(started).spawn(work)))
    }

    /// Waits until nothing goes on, at most this long; gives whether nothing does.
    pub(crate) fn wait_idle(&self, most: Duration) -> bool {
        let count = self.going.count.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, _) = self
            .going
            .changed
            .wait_timeout_while(count, most, |count| *count > 0)
            .unwrap_or_else(PoisonError::into_inner);
        *count == 0
    }

    /// The same, not waited for.
    pub(crate) fn soon(&self, work: impl FnOnce() + Send + 'static) {
        self.pool.push(Box::new(move || {
            // A panic was reported where it happened.
            _ = catch_unwind(AssertUnwindSafe(work));
        }));
    }

    /// Does something that blocks, but not for long. A panic of it goes on where it is awaited.
    pub(crate) async fn block<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = oneshot::channel();
        self.pool.push(Box::new(move || {
            // The task that asked may be gone; what was done is dropped here then.
            _ = tell.send(catch_unwind(AssertUnwindSafe(work)));
        }));
        match told.await {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => resume_unwind(panic),
            // The pool runs whatever it was given.
            Err(_) => resume_unwind(Box::new("what was to be done was dropped")),
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        let runtime = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle of an engine may be dropped by a task, where waiting is not allowed. No task is left but that one: each holds
        // a handle.
        runtime.into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Something that goes on by itself; awaited, what it comes to.
#[derive(Debug)]
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(context).map(|done| match done {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Nothing aborts a task but the end of its runtime, which the task itself keeps from ending.
                Err(_) => resume_unwind(Box::new("the engine was shut down")),
            },
        })
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that do what they are given, in order; no more of them than are needed.
#[derive(Default)]
struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    given: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is given until the pool is gone.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            if state.is_closed {
                return;
            }
            state.idle += 1;
            state = self.given.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle = state.idle.saturating_sub(1);
        }
    }
}

impl Pool {
    fn push(&self, job: Job) {
        let mut state = self.shared.lock();
        state.jobs.push_back(job);
        if state.jobs.len() > state.idle && state.threads < POOL_THREADS_MAX {
            let shared = self.shared.clone();
            if thread::Builder::new().name("commits".to_owned()).spawn(move || shared.work()).is_ok() {
                state.threads += 1;
                return;
            }
            if state.threads == 0 {
                // No thread at all can be had: it is done here.
                let job = state.jobs.pop_back();
                drop(state);
                job.into_iter().for_each(|job| job());
                return;
            }
        }
        drop(state);
        self.shared.given.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Not waited for: the last handle of an engine may be dropped by one of them.
        self.shared.lock().is_closed = true;
        self.shared.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use selvedge_model::blocking::wait;

    use super::*;

    #[test]
    fn everything_that_is_given_is_done_by_no_more_threads_than_allowed() {
        let tasks = Arc::new(Tasks::default());
        let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |number: usize| {
            let (tasks, inside, most) = (tasks.clone(), inside.clone(), most.clone());
            async move {
                let blocking = move || {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(1));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    number
                };
                tasks.block(blocking).await
            }
        };
        let given: Vec<_> = (0..500).map(|number| tasks.spawn(work(number)).unwrap()).collect();
        let done: Vec<usize> = given.into_iter().map(wait).collect();
        assert_eq!(done, (0..500).collect::<Vec<_>>());
        let (most, threads) = (most.load(Ordering::SeqCst), tasks.pool.shared.lock().threads);
        assert!((1..=POOL_THREADS_MAX).contains(&most) && threads <= POOL_THREADS_MAX, "{most} of {threads}");
    }

    #[test]
    fn a_panic_goes_on_where_it_is_awaited_and_the_pool_goes_on_without_it() {
        let tasks = Arc::new(Tasks::default());
        let own = tasks.clone();
        let panicking = tasks.spawn(async move { own.block(|| resume_unwind(Box::new("so"))).await }).unwrap();
        let ended: std::thread::Result<()> = catch_unwind(AssertUnwindSafe(|| wait(panicking)));
        assert_eq!(ended.unwrap_err().downcast_ref::<&str>(), Some(&"so"));
        assert_eq!(wait(tasks.block(|| 7)), 7);
    }

    #[test]
    fn it_is_idle_once_everything_has_ended_also_by_a_panic() {
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
    fn the_last_handle_may_be_dropped_anywhere() {
        let tasks = Arc::new(Tasks::default());
        let own = tasks.clone();
        let done = tasks.spawn(async move { own.block(|| 1).await }).unwrap();
        drop(tasks);
        assert_eq!(wait(done), 1);
    }
}
