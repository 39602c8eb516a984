//! A call of a turn on its way: what it needs, how it is made, and what it came to.

use selvedge_model::event::{Ask, EffectClass, Process, Suspended, ToolFailure};
use selvedge_model::tool::{Output, Reconciled, Started};
use selvedge_model::{Cancel, Event, ToolError};

use crate::calls::guarded;
use crate::conversation::OpenCall;
use crate::decide::calls::{Plan, Planned, Ready};
use crate::engine::Engine;
use crate::spawn::{Child, Spawning};

/// A call on its way.
pub(super) struct Flight {
    pub(super) open: OpenCall,
    /// With what it is made, if it may be.
    pub(super) ready: Option<Ready>,
    pub(super) started: Option<Way>,
    pub(super) landed: Landed,
    /// Whether it was dispatched.
    was_made: bool,
    /// What else is recorded with its result.
    pub(super) event: Option<Event>,
    /// Why its tool did not answer.
    pub(super) failure: Option<ToolFailure>,
}

/// How a call is made.
pub(super) enum Way {
    Tool(Box<dyn Started>),
    Child(Box<Child>),
}

/// Where a call has come to.
pub(super) enum Landed {
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
        Self { open, ready, started: None, landed, was_made: false, event, failure: None }
    }

    /// What is asked about it, if somebody must allow it first.
    pub(super) fn ask(&self) -> Option<&Ask> {
        match &self.landed {
            Landed::Asked(ask) => Some(ask),
            _ => None,
        }
    }

    pub(super) fn is_child(&self) -> bool {
        matches!(self.started, Some(Way::Child(_)))
    }

    /// Asks its tool what became of it, if it was lost on the way.
    pub(super) fn look_again(&mut self, cancel: &Cancel) {
        if let (Landed::Unknown, Some(Ready { tool, call, .. })) = (&self.landed, &self.ready)
            && let Reconciled::Done(output) = guarded::reconcile(&**tool, call, cancel)
        {
            self.landed = Landed::Output(output);
        }
    }

    /// What the model is told that it came to.
    pub(super) fn told(&self, output: Output) -> Output {
        match &self.ready {
            Some(ready) if self.was_made => ready.told(output),
            _ => output,
        }
    }

    /// Waits for its place, if it starts a child.
    pub(super) fn enter(&mut self, engine: &Engine, spawning: Option<&Spawning>, cancel: &Cancel) {
        if let (Some(Way::Child(child)), Some(spawning)) = (&mut self.started, spawning) {
            child.enter(engine, spawning, cancel);
        }
    }

    /// Dispatches it and waits for what it comes to.
    pub(super) fn go(&mut self, engine: &Engine, spawning: Option<&Spawning>, cancel: &Cancel) {
        self.was_made = true;
        let started = match (self.started.take(), spawning) {
            (Some(Way::Tool(started)), _) => started,
            (Some(Way::Child(child)), Some(spawning)) => {
                self.landed = Landed::Output(child.go(engine, spawning, cancel));
                return;
            }
            _ => return,
        };
        let class = self.ready.as_ref().map_or(EffectClass::AtMostOnce, |ready| ready.tool.spec().class);
        let is_once = class == EffectClass::AtMostOnce;
        self.landed = match guarded::dispatch(started, &self.open.name, class, cancel) {
            Ok(output) => Landed::Output(output),
            Err(ToolError::Lost { .. }) if is_once => Landed::Unknown,
            Err(ToolError::Stopped { .. }) => Landed::Output(Output::error(
                "interrupted: the call was stopped; what it had done by then is not known",
            )),
            Err(error) => {
                self.failure = error.failure();
                Landed::Output(Output::error(error.to_string()))
            }
        };
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
