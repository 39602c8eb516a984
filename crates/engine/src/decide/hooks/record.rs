//! What is recorded of hooks: that one fired, what it decided, and the end of a run that hooks ended.

use selvedge_items::hook::{Control, HookEvent};
use selvedge_model::event::{Fields, SuspendReason, Suspended};
use selvedge_model::message::Marker;
use selvedge_model::run::{Failure, FailureClass};
use selvedge_model::{CallId, Event, Message, ModelError, RunMeta, RunStatus, Status};
use serde_json::{Value, json};

use crate::decide::results;
use crate::decide::{Live, Rules};
use crate::fold::Fold;
use crate::held::Delta;
use crate::hooks::Hook;

/// The field with the failure of an attempt.
pub(super) const FAILURE: &str = "failure";

/// What hooks decided about a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decided {
    /// The hook whose decision counts.
    pub(crate) hook: String,
    pub(crate) event: HookEvent,
    pub(crate) control: Control,
    /// Whether it follows from a failure that the run can't continue after.
    pub(crate) is_failure: bool,
}

impl Decided {
    /// Whether the run continues.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self.control, Control::Retry | Control::Continue | Control::Skip)
    }
}

fn fields(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    }
}

/// A hook fired. At a failed attempt, the failure is recorded with it: a replay repeats it.
pub(super) fn fired(hook: &Hook, event: HookEvent, occurrence: &str, call: &CallId, values: &Value) -> Event {
    let placed = &hook.placed;
    let mut recorded = fields(json!({
        "hook": placed.hook.id, "event": event.as_str(), "occurrence": occurrence, "layer": placed.layer,
        "source": placed.source, "observer": placed.hook.observer, "call_id": call,
    }));
    recorded.extend(values.get(FAILURE).map(|failure| (FAILURE.to_owned(), failure.clone())));
    Event::HookFired(recorded)
}

/// The failed attempt at which these events say that hooks fired.
pub(crate) fn failed_attempt(events: &[Event]) -> Option<ModelError> {
    let of = |event: &Event| match event {
        Event::HookFired(fields) => serde_json::from_value::<Failure>(fields.get(FAILURE)?.clone()).ok(),
        _ => None,
    };
    ModelError::recorded(&events.iter().find_map(of)?)
}

/// What came of a hook's call besides its outcome: a decision, or that it brought nothing.
pub(super) fn result(hook: &Hook, call: &CallId, name: &str, value: Value) -> Event {
    let mut recorded = fields(json!({"hook": hook.placed.hook.id, "event": hook.placed.hook.event, "call_id": call}));
    recorded.insert(name.to_owned(), value);
    Event::HookFired(recorded)
}

/// Adds the events of a run's end that hooks decided to a delta; returns the record of the run.
pub(in crate::decide) fn record(
    delta: &mut Delta,
    fold: &Fold,
    live: &Live,
    rules: &Rules,
    decided: &Decided,
) -> RunMeta {
    let Decided { hook, event, control, is_failure } = decided;
    let done = |code: &str| live.meta.clone().finished(code);
    let detail = match control {
        Control::Fail { error } if *is_failure => error.clone(),
        Control::Fail { error } if !error.is_empty() => {
            format!("hook `{hook}` decided `fail` at `{}`: {error}", event.as_str())
        }
        _ => format!("hook `{hook}` decided `{}` at `{}`", control.as_str(), event.as_str()),
    };
    let interrupt = |delta: &mut Delta| {
        results::interrupt(
            delta,
            fold,
            &rules.scopes,
            "interrupted: a hook ended the run before this call was executed",
        );
    };
    let meta = match control {
        Control::Suspend { suspend_reason } => {
            delta.events.push(Event::Suspended(Suspended::because(*suspend_reason, "hook_suspended")));
            RunMeta { status: RunStatus::Waiting, ..done("hook_suspended") }
        }
        Control::Escalate { limit_type, current_value } => {
            let meta = done("hook_escalated");
            let code = limit_type.clone().or(meta.termination_code.clone());
            let current = current_value.clone();
            let suspended = Suspended { code: code.clone(), current, ..Suspended::because(SuspendReason::Limit, "") };
            delta.events.push(Event::Suspended(suspended));
            RunMeta { status: RunStatus::Waiting, termination_code: code, ..meta }
        }
        Control::Abort => {
            interrupt(delta);
            delta.messages.push(Message::marker(Marker::Stopped, format!("({detail})")));
            RunMeta { outcome: Some(Status::Cancelled), ..done("hook_aborted") }
        }
        Control::Fail { .. } => {
            interrupt(delta);
            delta.messages.push(Message::marker(Marker::Failed, format!("(error: {detail})")));
            let failure = Some(Failure { class: FailureClass::Hook, why: detail.clone() });
            let meta = if *is_failure { done("hook_failed") } else { done("hook_decided") };
            RunMeta { failure, outcome: Some(Status::Error), ..meta }
        }
        Control::Retry | Control::Continue | Control::Skip => {
            interrupt(delta);
            RunMeta { outcome: Some(Status::CompletedWithErrors), ..done("hook_skipped") }
        }
    };
    RunMeta { termination_detail: Some(detail), ..meta }
}
