//! A call in flight: how it is executed, and its result.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use selvedge_model::blocking::try_on_thread;
use selvedge_model::event::{EffectClass, Process, ToolFailure};
use selvedge_model::tool::{Output, Reconciled, SandboxReached, Started};
use selvedge_model::{CallId, Cancel, Stop, ToolError};
use tokio::time::timeout;

use crate::calls::guarded;
use crate::decide::calls::ReadyCall;
use crate::spawn::Child;

/// A call that is ready behind its gate.
pub(crate) enum PreparedCall {
    Tool(Box<dyn Started>),
    Child(Box<Child>),
}

/// A call that is back.
pub(crate) struct EndedCall {
    pub(crate) call: CallId,
    pub(crate) landed: CallEnd,
    /// Why its tool failed.
    pub(crate) failure: Option<ToolFailure>,
    /// Whether it is the call of a child.
    pub(crate) is_child: bool,
}

/// The result of a call that was dispatched.
pub(crate) enum CallEnd {
    Output(Output),
    Unknown,
}

/// Dispatches a call and waits for its result.
pub(super) async fn execute(
    started: Box<dyn Started>,
    ready: Option<ReadyCall>,
    cancel: Cancel,
) -> (CallEnd, Option<ToolFailure>) {
    let class = ready.as_ref().map_or(EffectClass::AtMostOnce, |ready| ready.tool.spec().class);
    let name = ready.as_ref().map(|ready| ready.call.name.clone()).unwrap_or_default();
    let ended = guarded::dispatch(started, &name, class, &cancel).await;
    let (landed, failure) = call_end(ended, class == EffectClass::AtMostOnce);
    // A result that was lost may be known to the tool.
    if let (CallEnd::Unknown, Some(ReadyCall { tool, call, .. })) = (&landed, ready)
        && let Ok(asked) = try_on_thread(move || guarded::reconcile(&*tool, &call, &cancel))
        && let Reconciled::Done(output) = asked.await
    {
        return (CallEnd::Output(output), None);
    }
    (landed, failure)
}

/// Waits for a call that may take this long: then it is cancelled, and that is its result, unless it still succeeded or its outcome is
/// unknown.
pub(super) async fn in_time(
    work: impl Future<Output = (CallEnd, Option<ToolFailure>)>,
    most: Option<Duration>,
    cancel: &Cancel,
) -> (CallEnd, Option<ToolFailure>) {
    let Some(most) = most else { return work.await };
    let mut work = pin!(work);
    if let Ok(ended) = timeout(most, &mut work).await {
        return ended;
    }
    cancel.say(Stop::Cancelled);
    match work.await {
        (CallEnd::Output(output), _) if output.is_error => {
            let text = format!("it took longer than {} s and was stopped", most.as_secs());
            (CallEnd::Output(Output::error(text)), None)
        }
        ended => ended,
    }
}

/// What the end of a dispatched call means.
pub(crate) fn call_end(ended: Result<Output, ToolError>, is_once: bool) -> (CallEnd, Option<ToolFailure>) {
    match ended {
        Ok(output) => (CallEnd::Output(output), None),
        Err(ToolError::Lost { .. }) if is_once => (CallEnd::Unknown, None),
        Err(ToolError::Stopped { .. }) => {
            let text = "interrupted: the call was stopped; how much of it was executed is unknown";
            (CallEnd::Output(Output::error(text)), None)
        }
        Err(error) => {
            let failure = error.failure();
            (CallEnd::Output(Output::error(error.to_string())), failure)
        }
    }
}

impl PreparedCall {
    /// How much of its sandbox is enforced, if it has one.
    pub(crate) fn sandbox(&self) -> Option<SandboxReached> {
        match self {
            Self::Tool(started) => started.sandbox(),
            Self::Child(_) => None,
        }
    }

    /// The process that executes it, if there is one.
    pub(crate) fn process(&self) -> Option<Process> {
        match self {
            Self::Tool(started) => started.process(),
            Self::Child(child) => child.launched.as_ref().and_then(|launched| launched.process()),
        }
    }
}
