//! What starts a run: an input, and the request that asked for it.

use selvedge_model::event::ManifestChanged;
use selvedge_model::{Answered, Event, Input, Origin, RequestId, RequestKind, Verdict};

use crate::held::{Delta, HeldThread};

/// What starts a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Start {
    pub(crate) input: Input,
    /// The request that asked for it, if its sender may send it again under the same id.
    pub(crate) request: Option<RunRequest>,
}

/// What a run begins with, after it was admitted.
#[derive(Clone, Debug)]
pub(crate) struct Beginning {
    pub(crate) start: Start,
    /// The limits after the raise that the input asks for.
    pub(crate) raised: Option<ManifestChanged>,
}

/// A request that asks for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunRequest {
    pub(crate) id: RequestId,
    /// Whether it is pending in the inbox; the commit that answers it consumes it.
    pub(crate) is_posted: bool,
}

impl Start {
    /// A run that no request asks for.
    pub(crate) fn of(input: Input) -> Self {
        Self { input, request: None }
    }

    /// The same start, with the input of a request that was sent.
    pub(crate) fn with(self, (id, sent): (RequestId, Input)) -> Self {
        let input = Input { raise: self.input.raise.or(sent.raise), ..sent };
        Self { input, request: Some(RunRequest { id, is_posted: true }) }
    }

    /// The first run of a successor.
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

impl RunRequest {
    /// Adds the verdict on the request to a delta.
    pub(crate) fn answer(self, delta: &mut Delta, verdict: Verdict, why: Option<String>) {
        let request_id = self.id.clone();
        delta.events.push(Event::RequestAnswered(Answered { request_id, kind: RequestKind::Send, verdict, why }));
        if self.is_posted {
            delta.consumed.push(self.id);
        }
    }
}

impl HeldThread {
    /// The origin of a run with this input. The first run of a child serves its parent's request, in whichever process it runs.
    pub(crate) fn origin(&self, input: &Input) -> String {
        let is_child = self.fold.manifest().parent_run_id.is_some();
        let is_first = is_child && input.is_empty() && input.origin == Origin::User && self.is_unstarted();
        let origin = if is_first { &Origin::Subagent } else { &input.origin };
        origin.as_str().to_owned()
    }
}
