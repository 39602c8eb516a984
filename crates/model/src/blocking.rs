//! Between code that blocks and code that awaits, without a runtime.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// A future that can be stored and sent.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Waits on this thread until a future has ended.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs code that blocks on a thread of its own. It begins at once; dropping the future does not stop it. A panic of it goes on where
/// the future is awaited.
pub fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> OnThread<T> {
    try_on_thread(work).unwrap_or_else(|error| {
        let done = Some(Err(Box::new(format!("no thread could be started: {error}")) as _));
        OnThread { shared: Arc::new(Mutex::new(Shared { done, waker: None })) }
    })
}

/// The same; an error if no thread could be started, and then nothing of the work was done.
pub fn try_on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<OnThread<T>> {
    let shared = Arc::new(Mutex::new(Shared { done: None, waker: None }));
    let other = shared.clone();
    thread::Builder::new().name("blocking".to_owned()).spawn(move || {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        finish(&other, done);
    })?;
    Ok(OnThread { shared })
}

fn finish<T>(shared: &Mutex<Shared<T>>, done: thread::Result<T>) {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    shared.done = Some(done);
    let waker = shared.waker.take();
    drop(shared);
    waker.into_iter().for_each(Waker::wake);
}

struct Shared<T> {
    done: Option<thread::Result<T>>,
    waker: Option<Waker>,
}

/// What code on a thread of its own comes to: see [`on_thread`].
#[must_use = "what it comes to is only known when it is awaited"]
pub struct OnThread<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

impl<T> std::fmt::Debug for OnThread<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("OnThread")
    }
}

impl<T> Future for OnThread<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.done.take() {
            Some(Ok(done)) => Poll::Ready(done),
            Some(Err(panic)) => {
                drop(shared);
                std::panic::resume_unwind(panic)
            }
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_blocks_is_awaited_and_what_awaits_is_waited_for() {
        let (tell, told) = mpsc::channel();
        let blocked = on_thread(move || told.recv().unwrap());
        tell.send(7).unwrap();
        assert_eq!(wait(async { blocked.await + 1 }), 8);
    }

    #[test]
    fn a_panic_goes_on_where_it_is_awaited() {
        let panicked = on_thread(|| std::panic::resume_unwind(Box::new("so")));
        let caught: thread::Result<()> = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait(panicked)));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"so"));
    }
}
