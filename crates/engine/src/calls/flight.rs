//! A call of a turn on its way: what it needs, how it is made, and what it came to.

use selvedge_model::blocking::try_on_thread;
use selvedge_model::event::{Ask, EffectClass, Process, Suspended, ToolFailure};
use selvedge_model::tool::{Output, Reconciled, Started};
use selvedge_model::{CallId, Cancel, Event, ToolError};
use serde_json::json;

use crate::calls::guarded;
use crate::conversation::OpenCall;
use crate::decide::calls::{Plan, Planned, Ready};
use crate::spawn::{Child, Refusal, Refused};

/// A call on its way.
pub(crate) struct Flight {
    pub(super) open: OpenCall,
    /// With what it is made, if it may be.
    pub(crate) ready: Option<Ready>,
    pub(super) started: Option<Way>,
    pub(super) landed: Landed,
    /// Whether it was dispatched, and is not back.
    is_away: bool,
    /// Whether it was dispatched.
    was_made: bool,
    /// Whether what it came to was taken.
    is_over: bool,
    /// Whether it is the call of a child.
    pub(super) has_child: bool,
    /// What else is recorded with its result.
    pub(super) event: Option<Event>,
    /// Why its tool did not answer.
    pub(super) failure: Option<ToolFailure>,
}

/// What a call came to.
pub(super) struct Back {
    pub(super) open: OpenCall,
    pub(super) landed: Landed,
    pub(super) failure: Option<ToolFailure>,
    /// What else is recorded with it.
    pub(super) event: Option<Event>,
    pub(super) has_child: bool,
}

/// How a call is made.
pub(super) enum Way {
    Tool(Box<dyn Started>),
    Child(Box<Child>),
}

/// Where a call has come to.
pub(crate) enum Landed {
    /// It is not decided yet.
    No,
    Output(Output),
    /// Somebody must allow it first.
    Asked(Ask),
    /// A ceiling keeps it from being made.
    Limited(Suspended),
    Unknown,
}

impl Flight {
    /// A call that needs this.
    pub(super) fn of(Planned { open, plan }: Planned) -> Self {
        let (mut ready, mut event) = (None, None);
        let landed = match plan {
            Plan::Answer(output, said) => {
                event = said;
                Landed::Output(output)
            }
            Plan::Make(call) => {
                ready = Some(call);
                Landed::No
            }
            Plan::Word(ask) => Landed::Asked(ask),
            Plan::Limited(suspended) => Landed::Limited(suspended),
            Plan::Unknown | Plan::Probe(_) => Landed::Unknown,
        };
        Self {
            open,
            ready,
            started: None,
            landed,
            is_away: false,
            was_made: false,
            is_over: false,
            has_child: false,
            event,
            failure: None,
        }
    }

    /// The call.
    pub(crate) fn call(&self) -> &CallId {
        &self.open.id
    }

    /// What is asked about it, if somebody must allow it first.
    pub(super) fn ask(&self) -> Option<&Ask> {
        match &self.landed {
            Landed::Asked(ask) => Some(ask),
            _ => None,
        }
    }

    /// Whether it is to be dispatched.
    pub(crate) fn is_ready(&self) -> bool {
        self.started.is_some()
    }

    /// Whether it is on its way, or still to be dispatched.
    pub(crate) fn is_open(&self) -> bool {
        self.is_away || self.is_ready()
    }

    /// Takes what is dispatched, if it is to be.
    pub(super) fn leave(&mut self) -> Option<(Way, Option<Ready>)> {
        let way = self.started.take()?;
        (self.is_away, self.was_made) = (true, true);
        Some((way, self.ready.clone()))
    }

    /// It has come to this.
    pub(super) fn come_back(&mut self, landed: Landed, failure: Option<ToolFailure>) {
        (self.is_away, self.landed, self.failure) = (false, landed, failure);
    }

    /// What it came to, once, if it is back.
    pub(super) fn land(&mut self) -> Option<Back> {
        if self.is_open() || std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let landed = match std::mem::replace(&mut self.landed, Landed::No) {
            Landed::Output(output) => Landed::Output(self.told(output)),
            other => other,
        };
        let (open, failure, event) = (self.open.clone(), self.failure.take(), self.event.take());
        Some(Back { open, landed, failure, event, has_child: self.has_child })
    }

    /// Makes it ready without anything around it, as a replay does.
    pub(crate) fn start_here(&mut self, started: Result<Box<dyn Started>, Refused>, is_child: bool) {
        match started {
            Ok(started) => self.started = Some(Way::Tool(started)),
            Err(refused) => self.refuse(refused, is_child),
        }
    }

    /// Carries it out on this thread, as a replay does: nothing of it waits.
    pub(crate) fn go_here(&mut self, cancel: &Cancel) {
        if let Some((Way::Tool(started), _)) = self.leave() {
            let (landed, failure) = landed(started.dispatch(cancel).wait(), self.is_once());
            self.come_back(landed, failure);
        }
    }

    /// It is not made.
    pub(super) fn refuse(&mut self, refused: Refused, is_child: bool) {
        match refused {
            Refused::Told(Refusal { text, failure }) => {
                let content = if is_child { json!({"success": false, "error": text}) } else { json!(text) };
                self.landed = Landed::Output(Output { content, is_error: true, ..Output::default() });
                self.failure = failure;
            }
            Refused::Waits(suspended) => self.landed = Landed::Limited(*suspended),
        }
    }

    /// Whether it may run only once.
    pub(super) fn is_once(&self) -> bool {
        self.ready.as_ref().is_none_or(|ready| ready.tool.spec().class == EffectClass::AtMostOnce)
    }

    /// What the model is told that it came to.
    fn told(&self, output: Output) -> Output {
        match &self.ready {
            Some(ready) if self.was_made => ready.told(output),
            _ => output,
        }
    }
}

/// Dispatches a call and waits for what it comes to.
pub(super) async fn go(
    started: Box<dyn Started>,
    ready: Option<Ready>,
    cancel: Cancel,
) -> (Landed, Option<ToolFailure>) {
    let class = ready.as_ref().map_or(EffectClass::AtMostOnce, |ready| ready.tool.spec().class);
    let name = ready.as_ref().map(|ready| ready.call.name.clone()).unwrap_or_default();
    let ended = guarded::dispatch(started, &name, class, &cancel).await;
    let (landed, failure) = landed(ended, class == EffectClass::AtMostOnce);
    // What was lost on the way may be known to the tool.
    if let (Landed::Unknown, Some(Ready { tool, call, .. })) = (&landed, ready)
        && let Ok(asked) = try_on_thread(move || guarded::reconcile(&*tool, &call, &cancel))
        && let Reconciled::Done(output) = asked.await
    {
        return (Landed::Output(output), None);
    }
    (landed, failure)
}

/// Where a call has come to that was dispatched.
fn landed(ended: Result<Output, ToolError>, is_once: bool) -> (Landed, Option<ToolFailure>) {
    match ended {
        Ok(output) => (Landed::Output(output), None),
        Err(ToolError::Lost { .. }) if is_once => (Landed::Unknown, None),
        Err(ToolError::Stopped { .. }) => {
            let text = "interrupted: the call was stopped; what it had done by then is not known";
            (Landed::Output(Output::error(text)), None)
        }
        Err(error) => {
            let failure = error.failure();
            (Landed::Output(Output::error(error.to_string())), failure)
        }
    }
}

impl Way {
    /// The process that makes it, if one does.
    pub(super) fn process(&self) -> Option<Process> {
        match self {
            Self::Tool(started) => started.process(),
            Self::Child(child) => child.launched.as_ref().and_then(|launched| launched.process()),
        }
    }
}
