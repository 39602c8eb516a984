//! A tool that is a Rust function.

use std::fmt;
use std::sync::Arc;

use super::{Call, Dispatch, Output, Reconciled, Started, Tool, ToolError, ToolKind, ToolSpec};
use crate::cancel::Cancel;
use crate::event::{EffectClass, Process};

/// The function: called when the call is dispatched, on a thread of its own. It must return soon after it is cancelled.
type Run = dyn Fn(&Call, &Cancel) -> Result<Output, ToolError> + Send + Sync;

/// A tool that is a Rust function and runs in this process. The outcome of an interrupted call is unknown, unless the tool's class
/// allows it to be repeated; a tool that can find out implements [`Tool`] itself.
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
    /// A tool with this definition and function.
    pub fn new(
        spec: ToolSpec,
        run: impl Fn(&Call, &Cancel) -> Result<Output, ToolError> + Send + Sync + 'static,
    ) -> Self {
        Self { spec, kind: ToolKind::Work, run: Arc::new(run) }
    }

    /// The same tool, with this meaning to its run.
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
            EffectClass::AtMostOnce => Reconciled::Unsupported,
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
