//! The outside world as recorded: a model that takes its recorded time, tools that give their recorded results, and no processes.
//!
//! Tools have their current names and definitions; none is executed. A tool gives the recorded outcome of the call in the current run, or
//! reports that it is unknown. Beyond the record it has no answer.

use std::sync::Arc;

use selvedge_model::answer::Drafts;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{Fields, Injected, Process, ToolFailure, ToolFailureClass, ToolOutcome};
use selvedge_model::message::Block;
use selvedge_model::path::Path;
use selvedge_model::scope::{CALL_CLEANUP_SOURCE, tool_call_path};
use selvedge_model::tool::{Call, Dispatch, Processes, Reconciled, Started, ToolKind};
use selvedge_model::{
    Answer, CallId, Cancel, Event, Manifest, Model, ModelError, NewThread, Output, Patch, Prompt, Stop, ThreadId, Tool,
    ToolError, ToolSpec,
};
use serde_json::{Value, json};

use super::cursor::{CallRecord, ReplayCursor};
use super::recording::RecordedChangeset;
use crate::approval::{with_change, with_redefinition};
use crate::decide::hooks::{failed_attempt, original};
use crate::graph::PATCH_SOURCE as GRAPH_SOURCE;
use crate::run_config::RunConfig;
use crate::spawn::{Children, NewChild, Refused};

/// The recorded model, with its recorded times.
pub(crate) struct RecordedModel {
    /// The current model, which knows its context size.
    pub(crate) today: Arc<dyn Model>,
    pub(crate) recorded: Arc<dyn Model>,
    pub(crate) tape: Arc<ReplayCursor>,
}

impl Model for RecordedModel {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let failed = self.tape.next_step().filter(|_| !self.tape.is_lease_lost());
            if let Some(error) = failed.and_then(|step| failed_attempt(&step.events)) {
                return Err(error);
            }
            let next = self.tape.next_step().filter(|step| step.asked_ms().is_some() && !self.tape.is_lease_lost());
            let Some(step) = next else {
                self.tape.go_beyond();
                return Err(ModelError::Permanent { why: "the record does not ask the model here".to_owned() });
            };
            if let Some(stop) = stop(step) {
                cancel.say(stop);
            }
            let answer = self.recorded.answer(prompt, draft, cancel).await;
            self.tape.let_answer();
            answer
        })
    }

    fn context_tokens_max(&self, model: &str) -> Option<u64> {
        self.today.context_tokens_max(model)
    }
}

/// What stopped the run that ends in this changeset, if it was stopped.
pub(crate) fn stop(step: &RecordedChangeset) -> Option<Stop> {
    match step.code()? {
        "cancelled" => Some(Stop::Cancelled),
        "killed" => Some(Stop::Killed),
        "duration_exceeded" => Some(Stop::OutOfTime),
        _ => None,
    }
}

/// A tool that gives its recorded results.
pub(crate) struct RecordedTool {
    pub(crate) spec: ToolSpec,
    pub(crate) kind: ToolKind,
    pub(crate) tape: Arc<ReplayCursor>,
}

/// A call that is ready to give its recorded result.
struct Ready {
    tool: String,
    call: Call,
    tape: Arc<ReplayCursor>,
}

impl Tool for RecordedTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn kind(&self) -> ToolKind {
        self.kind
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        let tool = self.spec.name.clone();
        match failure(&self.tape, call) {
            Some(ToolFailure { class: ToolFailureClass::NotStarted, why }) => {
                return Err(ToolError::NotStarted { tool, why });
            }
            Some(ToolFailure { class: ToolFailureClass::Panicked, why }) => {
                return Err(ToolError::Panicked { tool, why });
            }
            Some(ToolFailure { class: ToolFailureClass::Integrity, why }) => {
                return Err(ToolError::Integrity { tool, why });
            }
            _ => {}
        }
        Ok(Box::new(Ready { tool, call: call.clone(), tape: self.tape.clone() }))
    }

    fn reconcile(&self, call: &Call, _: &Cancel) -> Reconciled {
        match self.tape.call_record(&call.id) {
            CallRecord::Dispatched => Reconciled::NotDone,
            CallRecord::Ended(step, outcome) => Reconciled::Done(output(step, outcome, call, &self.tape)),
            CallRecord::Nothing => Reconciled::Unknown,
        }
    }
}

impl Started for Ready {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        Dispatch::Done(match self.tape.call_record(&self.call.id) {
            CallRecord::Ended(step, outcome) => Ok(output(step, outcome, &self.call, &self.tape)),
            _ => Err(ToolError::Lost { tool: self.tool, why: "the record has no outcome of it".to_owned() }),
        })
    }
}

/// Children that are only known from the record.
///
/// A child that was spawned in the record may be spawned, whatever its directive is now: only the limits are checked again. A refusal that
/// came from outside is repeated; any other is decided again.
pub(crate) struct RecordedChildren {
    pub(crate) today: Arc<dyn Children>,
    pub(crate) tape: Arc<ReplayCursor>,
}

impl Children for RecordedChildren {
    fn new_child(&self, call: &Call, parent: &Manifest) -> Result<NewChild, String> {
        if matches!(self.tape.call_record(&call.id), CallRecord::Dispatched) {
            let thread = NewThread::of(parent.agent_id.clone());
            return Ok(NewChild { thread, messages: Vec::new(), detached: false });
        }
        self.today.new_child(call, parent)
    }

    fn run_config(&self, _: &Manifest) -> Result<RunConfig, String> {
        Err("children are not run again".to_owned())
    }

    fn launch(&self, _: &ThreadId) -> Result<Box<dyn Started>, String> {
        Err("children are not run again".to_owned())
    }
}

/// Why the child of a call was refused, if the record says that the reason came from outside.
pub(crate) fn refused(tape: &ReplayCursor, call: &Call) -> Option<Refused> {
    let outside = [ToolFailureClass::ParentUnverified, ToolFailureClass::OverBudget, ToolFailureClass::NotLaunched];
    failure(tape, call).filter(|failure| outside.contains(&failure.class)).map(Refused::outside)
}

/// The recorded failure of a call whose tool gave no result.
fn failure(tape: &ReplayCursor, call: &Call) -> Option<ToolFailure> {
    match tape.call_record(&call.id) {
        CallRecord::Ended(_, outcome) => outcome.failure.clone(),
        _ => None,
    }
}

/// The recorded result of a tool, without the notes that the engine added for the model.
fn output(step: &RecordedChangeset, outcome: &ToolOutcome, call: &Call, tape: &ReplayCursor) -> Output {
    if let Some(injected) = injected(step, &call.id) {
        return Output { content: original(&injected), patches: patches(step, &call.id), ..Output::default() };
    }
    let mut content = match (&outcome.result, &outcome.error) {
        (Some(result), _) => result.clone(),
        (None, Some(error)) => shown(step, &call.id).filter(|shown| is_text_of(shown, error)).unwrap_or(json!(error)),
        (None, None) => Value::Null,
    };
    // The note that was added last is removed first.
    for who in tape.deciders(&call.id) {
        content = without(content, |output| with_change(output, who, &call.arguments));
    }
    content = without(content, with_redefinition);
    Output {
        content,
        is_error: outcome.error.is_some(),
        patches: patches(step, &call.id),
        state_actions: actions(step, &call.id),
    }
}

/// The context that a hook's call brought.
fn injected(step: &RecordedChangeset, call: &CallId) -> Option<Injected> {
    let of = |event: &Event| match event {
        Event::ContextInjected(fields) => Injected::of(fields).filter(|injected| injected.call_id == *call),
        _ => None,
    };
    step.events.iter().find_map(of)
}

fn is_text_of(value: &Value, text: &str) -> bool {
    serde_json::to_string(value).is_ok_and(|written| written == text)
}

/// The result of a call as the model got it.
fn shown(step: &RecordedChangeset, call: &CallId) -> Option<Value> {
    let messages = step.events.iter().filter_map(|event| match event {
        Event::Message(message) => Some(message),
        _ => None,
    });
    messages.flat_map(|message| &message.content).find_map(|block| match block {
        Block::ToolResult { call_id, content, .. } if call_id == call => Some(content.clone()),
        _ => None,
    })
}

/// A result without the note that this function adds, if it has it.
fn without(content: Value, note: impl Fn(Output) -> Output) -> Value {
    let noted = |content: Value| note(Output { content, ..Output::default() }).content;
    match content {
        Value::String(text) => {
            let rest = noted(json!("")).as_str().and_then(|prefix| text.strip_prefix(prefix)).map(str::to_owned);
            Value::String(rest.unwrap_or(text))
        }
        other => match other.get("result") {
            Some(result) if noted(result.clone()) == other => result.clone(),
            _ => other,
        },
    }
}

/// The state actions of a call: each names it.
fn actions(step: &RecordedChangeset, call: &CallId) -> Vec<Fields> {
    let of_call = |event: &Event| match event {
        Event::StateAction(action) if action.get("call_id") == Some(&json!(call)) => Some(action.clone()),
        _ => None,
    };
    step.events.iter().filter_map(of_call).collect()
}

/// The patches of a call, among those of its changeset.
///
/// The log does not say which call a patch belongs to, but all are in the order of the calls, and those that write state of one call, or
/// clean up after it, name it. So a patch belongs to the next call that is named, and those after the last of these to the last call that
/// succeeded: the order is kept either way.
fn patches(step: &RecordedChangeset, call: &CallId) -> Vec<Patch> {
    let outcomes = step.events.iter().filter_map(|event| match event {
        Event::ToolOutcome(outcome) => Some(outcome),
        _ => None,
    });
    let last = outcomes.clone().rfind(|outcome| outcome.error.is_none()).map(|outcome| &outcome.call_id);
    let named = |patch: &Patch| {
        let is_of = |outcome: &&ToolOutcome| {
            let place = tool_call_path(&outcome.call_id, &Path::root());
            patch.ops.iter().any(|op| op.path().starts_with(&place))
        };
        outcomes.clone().find(is_of).map(|outcome| &outcome.call_id)
    };
    let mut found = Vec::new();
    let mut waiting = Vec::new();
    for event in &step.events {
        let Event::Patch(patch) = event else { continue };
        // The engine makes its own cleanup again, and a graph its assignments.
        if !matches!(patch.source.as_deref(), Some(CALL_CLEANUP_SOURCE | GRAPH_SOURCE)) {
            waiting.push(patch.clone());
        }
        match named(patch) {
            Some(owner) if owner == call => found.append(&mut waiting),
            Some(_) => waiting.clear(),
            None => {}
        }
    }
    if last == Some(call) {
        found.append(&mut waiting);
    }
    found
}

/// No process of an earlier process is left to be ended.
pub(crate) struct NoProcesses;

impl Processes for NoProcesses {
    fn end(&self, _: &Process) -> Result<bool, ToolError> {
        Ok(false)
    }
}
