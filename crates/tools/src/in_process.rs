//! A call that is executed in this process: nothing happens until it is dispatched.

use selvedge_model::digest::Digest;
use selvedge_model::event::{EffectClass, Process};
use selvedge_model::tool::{Dispatch, Risk, Started};
use selvedge_model::{Cancel, Output, ToolError, ToolSpec};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Work that waits to be dispatched.
pub(crate) struct InProcessCall {
    tool: String,
    work: Box<dyn FnOnce(&Cancel) -> Output + Send>,
}

impl InProcessCall {
    pub(crate) fn boxed(tool: &str, work: impl FnOnce() -> Output + Send + 'static) -> Box<dyn Started> {
        Self::stoppable(tool, move |_| work())
    }

    /// Work that may take long, and checks whether it was cancelled.
    pub(crate) fn stoppable(tool: &str, work: impl FnOnce(&Cancel) -> Output + Send + 'static) -> Box<dyn Started> {
        Box::new(Self { tool: tool.to_owned(), work: Box::new(work) })
    }
}

impl Started for InProcessCall {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let cancel = cancel.clone();
        match cancel.said() {
            Some(_) => Dispatch::Done(Err(ToolError::Stopped { tool: self.tool })),
            None => Dispatch::blocking(move || Ok((self.work)(&cancel))),
        }
    }
}

/// The definition of a built-in tool; its capability is derived from its name.
pub fn spec(name: &str, description: &str, input_schema: Value, class: EffectClass, risk: Risk) -> ToolSpec {
    let definition = json!([name, description, input_schema, class]);
    ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        capability: format!("tool.{}", name.replace('_', ".")),
        hash: hash(&definition).unwrap_or(Digest([0; 32])),
        input_schema,
        class,
        risk,
    }
}

/// SHA-256 of a definition in the canonical form of RFC 8785; none if it has a number that this form can't represent.
pub(crate) fn hash(definition: &impl serde::Serialize) -> Option<Digest> {
    let bytes = serde_json_canonicalizer::to_vec(definition).ok()?;
    Some(Digest(Sha256::digest(bytes).into()))
}
