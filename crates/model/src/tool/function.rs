//! A tool that is a function of the program.

use std::fmt;
use std::sync::Arc;

use super::{Call, Dispatch, Output, Reconciled, Started, Tool, ToolError, ToolKind, ToolSpec};
use crate::cancel::Cancel;
use crate::event::{EffectClass, Process};

/// What such a function is: it is called when the call is dispatched, on a thread of its own, and must return soon after it is told to stop.
type Run = dyn Fn(&Call, &Cancel) -> Result<Output, ToolError> + Send + Sync;

/// A tool that is a function of the program: what it does is done in this process. What became of a call that was cut off is not known,
/// unless its class says that it may be made again; a tool that can find out implements [`Tool`] itself.
pub struct Function {
    spec: ToolSpec,
    kind: ToolKind,
    run: Arc<Run>,
}

impl fmt::Debug for Function {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Function").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Function {
    /// A tool of this description that does this.
    pub fn new(
        spec: ToolSpec,
        run: impl Fn(&Call, &Cancel) -> Result<Output, ToolError> + Send + Sync + 'static,
    ) -> Self {
        Self { spec, kind: ToolKind::Work, run: Arc::new(run) }
    }

    /// The same, being this to the run that calls it.
    #[must_use]
    pub fn of_kind(self, kind: ToolKind) -> Self {
        Self { kind, ..self }
    }
}

impl Tool for Function {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn kind(&self) -> ToolKind {
        self.kind
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(Ready { call: call.clone(), run: self.run.clone() }))
    }

    fn reconcile(&self, _: &Call, _: &Cancel) -> Reconciled {
        match self.spec.class {
            EffectClass::AtMostOnce => Reconciled::Unknown,
            EffectClass::Pure | EffectClass::Idempotent => Reconciled::NotDone,
        }
    }
}

struct Ready {
    call: Call,
    run: Arc<Run>,
}

impl Started for Ready {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let cancel = cancel.clone();
        Dispatch::blocking(move || (self.run)(&self.call, &cancel))
    }
}
