//! What starts a run: an input, and the request that asked for it.

use selvedge_model::{Answered, Event, Input, Origin, RequestId, RequestKind, Verdict};

use crate::held::{Delta, Held};

/// What starts a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Start {
    pub(crate) input: Input,
    /// The request that asked for it, if it has an id that its sender may use again.
    pub(crate) request: Option<Asked>,
}

/// A request that asks for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) id: RequestId,
    /// Whether it waits in the inbox, from which the commit that answers it takes it.
    pub(crate) is_posted: bool,
}

impl Start {
    /// A run that no request asks for.
    pub(crate) fn of(input: Input) -> Self {
        Self { input, request: None }
    }

    /// The same, saying what was sent.
    pub(crate) fn with(self, (id, sent): (RequestId, Input)) -> Self {
        let input = Input { raise: self.input.raise.or(sent.raise), ..sent };
        Self { input, request: Some(Asked { id, is_posted: true }) }
    }

    /// A thread goes on that took over from another one.
    pub(crate) fn continuing() -> Self {
        Self::of(Input::continuing())
    }

    pub(crate) fn is_continuing(&self) -> bool {
        self.input.is_continuing()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_empty()
    }
}

impl Asked {
    /// Puts into a delta what becomes of the request.
    pub(crate) fn answer(self, delta: &mut Delta, verdict: Verdict, why: Option<String>) {
        let request_id = self.id.clone();
        delta.events.push(Event::RequestAnswered(Answered { request_id, kind: RequestKind::Send, verdict, why }));
        if self.is_posted {
            delta.consumed.push(self.id);
        }
    }
}

impl Held {
    /// Where a run with this input comes from. The first run of a child goes on with what its parent asked for, in whichever process it is.
    pub(crate) fn origin(&self, input: &Input) -> String {
        let is_child = self.fold.manifest().parent_run_id.is_some();
        let is_first = is_child && input.is_empty() && input.origin == Origin::User && self.is_unbegun();
        let origin = if is_first { &Origin::Subagent } else { &input.origin };
        origin.as_str().to_owned()
    }
}
