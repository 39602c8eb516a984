//! Calls a tool that may panic: a tool is third-party code, and its panic ends a call, not the run or the process.
//!
//! - A panic before the dispatch: the call never ran, and the panic is its error.
//! - A panic during execution: the call may have had an effect. It is lost, if it may run at most once, and an error otherwise.
//! - A panic in `reconcile`: the outcome is unknown.
//!
//! The panic itself is reported where it happened, by the panic hook of the program.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{io, thread};

use selvedge_model::blocking::{OnThread, try_on_thread};
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Call, Dispatch, Output, Reconciled, Started};
use selvedge_model::{Cancel, Tool, ToolError};

use crate::grace::within_grace;
use crate::tasks::{catch_panic, panic_message};

/// Makes a call ready.
pub(super) fn start(tool: &dyn Tool, call: &Call) -> Result<Box<dyn Started>, ToolError> {
    // The engine shares no state with a tool that a panic could leave broken.
    let started = catch_unwind(AssertUnwindSafe(|| tool.start(call)));
    started.unwrap_or_else(|panic| Err(ToolError::Panicked { tool: call.name.clone(), why: panic_message(&*panic) }))
}

/// Dispatches a call and waits for its result: without a thread, or on one of its own if it blocks. A call that does not stop in time is
/// lost, if it may run at most once, and stopped otherwise.
pub(super) async fn dispatch(
    started: Box<dyn Started>,
    tool: &str,
    class: EffectClass,
    cancel: &Cancel,
) -> Result<Output, ToolError> {
    dispatch_by(started, tool, class, cancel, try_on_thread).await
}

/// Blocking code whose panic is caught.
type Blocking = Box<dyn FnOnce() -> thread::Result<Result<Output, ToolError>> + Send>;

/// The same; blocking code runs on a thread that `begin` starts.
async fn dispatch_by(
    started: Box<dyn Started>,
    tool: &str,
    class: EffectClass,
    cancel: &Cancel,
    begin: impl FnOnce(Blocking) -> io::Result<OnThread<thread::Result<Result<Output, ToolError>>>>,
) -> Result<Output, ToolError> {
    let panicked = |panic: Box<dyn Any + Send>| {
        let tool = tool.to_owned();
        let why = panic_message(&*panic);
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
        Dispatch::Blocking(work) => match begin(Box::new(move || catch_unwind(AssertUnwindSafe(work)))) {
            Ok(blocking) => Some(blocking.await),
            // It never ran.
            Err(error) => return Err(ToolError::NotStarted { tool: tool.to_owned(), why: error.to_string() }),
        },
        Dispatch::Future(work) => within_grace(catch_panic(work), cancel).await,
    };
    match ended {
        Some(Ok(ended)) => ended,
        Some(Err(panic)) => panicked(panic),
        None => {
            let tool = tool.to_owned();
            Err(match class {
                EffectClass::AtMostOnce => {
                    ToolError::Lost { tool, why: "it did not stop when it was cancelled".to_owned() }
                }
                EffectClass::Pure | EffectClass::Idempotent => ToolError::Stopped { tool },
            })
        }
    }
}

/// Asks a tool for the outcome of a call.
pub(super) fn reconcile(tool: &dyn Tool, call: &Call, cancel: &Cancel) -> Reconciled {
    catch_unwind(AssertUnwindSafe(|| tool.reconcile(call, cancel))).unwrap_or(Reconciled::Unknown)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use selvedge_model::blocking::wait;
    use selvedge_model::event::Process;

    use super::*;

    struct Slow(Arc<AtomicBool>);

    impl Started for Slow {
        fn process(&self) -> Option<Process> {
            None
        }

        fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
            Dispatch::Blocking(Box::new(move || {
                self.0.store(true, Ordering::SeqCst);
                Ok(Output::text("done"))
            }))
        }
    }

    #[test]
    fn a_call_whose_thread_can_not_be_started_never_ran_whatever_its_class() {
        for class in [EffectClass::Pure, EffectClass::AtMostOnce] {
            let ran = Arc::new(AtomicBool::new(false));
            let cancel = Cancel::new();
            let none = |_| Err(io::Error::other("no thread left"));
            let ended = wait(dispatch_by(Box::new(Slow(ran.clone())), "slow", class, &cancel, none));
            assert!(matches!(&ended, Err(ToolError::NotStarted { why, .. }) if why == "no thread left"), "{ended:?}");
            assert!(!ran.load(Ordering::SeqCst));
        }
    }
}
