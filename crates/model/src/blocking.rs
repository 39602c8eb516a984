//! Bridges blocking and asynchronous code without a runtime.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use std::{fmt, io};

/// A future that can be stored and sent.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Blocks this thread until a future is ready, and returns its output.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

/// Wakes the waiting thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// How long an idle thread is kept: starting one costs more than a short call.
const KEPT: Duration = Duration::from_secs(10);

/// Threads for blocking code. Their number grows with the work, up to a bound; a thread ends after ten idle seconds.
///
/// With a bound, work beyond it is queued, so each piece should be short. Without one, all work starts at once.
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool of at most `most` threads.
    pub fn bounded(most: usize) -> Self {
        Self::new(Some(most))
    }

    /// A pool with as many threads as there is work for.
    pub fn unbounded() -> Self {
        Self::new(None)
    }

    fn new(most: Option<usize>) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), given: Condvar::new(), most }) }
    }

    /// Runs blocking code on a thread of the pool. Dropping the future does not stop the code; a panic in it resumes where the future is
    /// awaited. The code runs on the calling thread if no thread is free and none can be started.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> OnThread<T> {
        let (job, done) = promise(work);
        if let Err((_, job)) = self.shared.push(job) {
            job();
        }
        done
    }

    /// The same as [`Self::run`], for work whose result is not needed.
    pub fn go(&self, work: impl FnOnce() + Send + 'static) {
        // A panic was reported where it happened.
        let job = Box::new(move || _ = catch_unwind(AssertUnwindSafe(work)));
        if let Err((_, job)) = self.shared.push(job) {
            job();
        }
    }

    /// The same as [`Self::run`], but fails without running any of the work if no thread is free and none can be started.
    pub fn try_run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<OnThread<T>> {
        let (job, done) = promise(work);
        self.shared.push(job).map(|()| done).map_err(|(error, _)| error)
    }

    /// The current number of threads.
    pub fn threads(&self) -> usize {
        self.shared.lock().threads
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The threads are not joined: one of them may be the one that drops the pool.
        self.shared.lock().is_closed = true;
        self.shared.given.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pool").field("most", &self.shared.most).finish_non_exhaustive()
    }
}

static THREADS: LazyLock<Pool> = LazyLock::new(Pool::unbounded);

/// Runs code that may block for long on a thread of its own: see [`Pool::run`].
pub fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> OnThread<T> {
    THREADS.run(work)
}

/// The same, but fails without running any of the work if no thread could be started.
pub fn try_on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<OnThread<T>> {
    THREADS.try_run(work)
}

type Job = Box<dyn FnOnce() + Send>;

struct Shared {
    state: Mutex<State>,
    given: Condvar,
    most: Option<usize>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// The number of threads that wait for a job.
    idle: usize,
    is_closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(self: &Arc<Self>, job: Job) -> Result<(), (io::Error, Job)> {
        let mut state = self.lock();
        if state.jobs.len() < state.idle {
            state.jobs.push_back(job);
            drop(state);
            self.given.notify_one();
            return Ok(());
        }
        if self.most.is_none_or(|most| state.threads < most) {
            let shared = self.clone();
            match thread::Builder::new().name("blocking".to_owned()).spawn(move || shared.work()) {
                Ok(_) => state.threads += 1,
                // With a bound, the existing threads will take the job from the queue.
                Err(error) if self.most.is_none() || state.threads == 0 => return Err((error, job)),
                Err(_) => {}
            }
        }
        state.jobs.push_back(job);
        Ok(())
    }

    /// The loop of one thread.
    fn work(&self) {
        let mut state = self.lock();
        let mut has_waited = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                (state, has_waited) = (self.lock(), false);
                continue;
            }
            if state.is_closed || has_waited {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let (woken, wait) = self.given.wait_timeout(state, KEPT).unwrap_or_else(PoisonError::into_inner);
            (state, has_waited) = (woken, wait.timed_out());
            state.idle -= 1;
        }
    }
}

/// A job that stores the result of the work, or its panic, for the future that awaits it.
fn promise<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Job, OnThread<T>) {
    let slot = Arc::new(Mutex::new(Slot { done: None, waker: None }));
    let own = slot.clone();
    let job = move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        let mut slot = own.lock().unwrap_or_else(PoisonError::into_inner);
        slot.done = Some(done);
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    (Box::new(job), OnThread { slot })
}

struct Slot<T> {
    done: Option<thread::Result<T>>,
    waker: Option<Waker>,
}

/// The result of code on another thread: see [`Pool::run`].
#[must_use = "the result is only known once it is awaited"]
pub struct OnThread<T> {
    slot: Arc<Mutex<Slot<T>>>,
}

impl<T> fmt::Debug for OnThread<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OnThread")
    }
}

impl<T> Future for OnThread<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.done.take() {
            Some(Ok(done)) => Poll::Ready(done),
            Some(Err(panic)) => {
                drop(slot);
                resume_unwind(panic)
            }
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn blocking_code_is_awaited_and_a_future_is_waited_for() {
        let (sender, receiver) = mpsc::channel();
        let blocked = on_thread(move || receiver.recv().unwrap());
        sender.send(7).unwrap();
        assert_eq!(wait(async { blocked.await + 1 }), 8);
    }

    #[test]
    fn a_panic_resumes_where_it_is_awaited_and_the_thread_survives() {
        let pool = Pool::bounded(1);
        let panicked = pool.run(|| resume_unwind(Box::new("so")));
        let caught: thread::Result<()> = catch_unwind(AssertUnwindSafe(|| wait(panicked)));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"so"));
        assert_eq!(wait(pool.run(|| 7)), 7);
        assert_eq!(pool.threads(), 1);
    }

    #[test]
    fn an_idle_thread_is_reused_and_a_new_one_is_started_when_all_are_busy() {
        let pool = Pool::unbounded();
        for number in 0..100 {
            assert_eq!(wait(pool.run(move || number)), number);
            // A job's result arrives before its thread waits for the next one.
            while pool.shared.lock().idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(pool.threads(), 1);
        // All five jobs must run at once, or none of them ends.
        let barrier = Arc::new(std::sync::Barrier::new(5));
        let inside: Vec<_> = std::iter::repeat_with(|| barrier.clone()).take(5).collect();
        let inside: Vec<_> = inside.into_iter().map(|barrier| pool.run(move || _ = barrier.wait())).collect();
        inside.into_iter().for_each(wait);
        assert!((5..=6).contains(&pool.threads()), "{}", pool.threads());
    }

    #[test]
    fn a_bound_holds_and_all_work_is_done() {
        let pool = Pool::bounded(3);
        let inside = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let work = |number: usize| {
            let inside = inside.clone();
            let most = most.clone();
            move || {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                number
            }
        };
        let given: Vec<_> = (0..500).map(|number| pool.run(work(number))).collect();
        let done: Vec<usize> = given.into_iter().map(wait).collect();
        assert_eq!(done, (0..500).collect::<Vec<_>>());
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)) && pool.threads() <= 3);
    }
}
