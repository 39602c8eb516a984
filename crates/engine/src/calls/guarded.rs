//! Calls of a tool that may panic: a tool is somebody else's code, and its panic is the end of a call, not of the run or the process.
//!
//! - What panics before it is dispatched never ran: that is the call's error.
//! - What panics on the way may have done something: it is lost, if it may run at most once, and an error else.
//! - What panics when it is asked after does not know.
//!
//! The panic itself is reported where it happened, by the panic hook of the program.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use selvedge_model::blocking::{BoxFuture, try_on_thread};
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Call, Dispatch, Output, Reconciled, Started};
use selvedge_model::{Cancel, Tool, ToolError};

use crate::within::within_grace;

/// Makes a call ready.
pub(super) fn start(tool: &dyn Tool, call: &Call) -> Result<Box<dyn Started>, ToolError> {
    // Nothing that the engine goes on with was touched by a tool that panicked.
    let started = catch_unwind(AssertUnwindSafe(|| tool.start(call)));
    started.unwrap_or_else(|panic| Err(ToolError::Panicked { tool: call.name.clone(), why: words(&*panic) }))
}

/// Dispatches a call and waits for its answer: without a thread, or on one of its own if it blocks. One that does not stop in time is
/// lost, if it may run at most once, and stopped else.
pub(super) async fn dispatch(
    started: Box<dyn Started>,
    tool: &str,
    class: EffectClass,
    cancel: &Cancel,
) -> Result<Output, ToolError> {
    let panicked = |panic: Box<dyn Any + Send>| {
        let (tool, why) = (tool.to_owned(), words(&*panic));
        Err(match class {
            EffectClass::AtMostOnce => ToolError::Lost { tool, why: format!("it panicked: {why}") },
            EffectClass::Pure | EffectClass::Idempotent => ToolError::Panicked { tool, why },
        })
    };
    let dispatch = match catch_unwind(AssertUnwindSafe(|| started.dispatch(cancel))) {
        Ok(dispatch) => dispatch,
        Err(panic) => return panicked(panic),
    };
    let ended = match dispatch {
        Dispatch::Done(done) => return done,
        Dispatch::Blocking(work) => match try_on_thread(move || catch_unwind(AssertUnwindSafe(work))) {
            Ok(blocking) => Some(blocking.await),
            // It never ran.
            Err(error) => return Err(ToolError::NotStarted { tool: tool.to_owned(), why: error.to_string() }),
        },
        Dispatch::Future(work) => within_grace(caught(work), cancel).await,
    };
    match ended {
        Some(Ok(ended)) => ended,
        Some(Err(panic)) => panicked(panic),
        None => {
            let tool = tool.to_owned();
            Err(match class {
                EffectClass::AtMostOnce => {
                    ToolError::Lost { tool, why: "it did not stop when it was told to".to_owned() }
                }
                EffectClass::Pure | EffectClass::Idempotent => ToolError::Stopped { tool },
            })
        }
    }
}

/// What a future comes to, or what it panics with.
async fn caught<T>(mut work: BoxFuture<'static, T>) -> std::thread::Result<T> {
    poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Asks a tool what became of a call.
pub(super) fn reconcile(tool: &dyn Tool, call: &Call, cancel: &Cancel) -> Reconciled {
    catch_unwind(AssertUnwindSafe(|| tool.reconcile(call, cancel))).unwrap_or(Reconciled::Unknown)
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it did not say why".to_owned())
}
