//! At which points of a run which event occurs, which hooks fire, and what follows from their results.
//!
//! | event | occurs | its occurrence |
//! |---|---|---|
//! | `build_system_prompt`, `thread_started`, `thread_continued` | before the first turn of the thread | the thread |
//! | `thread_resumed` | before the first turn of a run of a suspended thread | the run |
//! | `after_step` | a turn and its calls are over | the turn |
//! | `error` | an attempt failed | the run, the turn and the attempt |
//! | `limit` | before a turn that a limit forbids | the limit and the turn |
//! | `approval` | nothing is left to do but to wait for approvals | the first of the calls |
//! | `directive_return` | the outputs are on record | the turn |
//! | `context_limit_reached` | the next prompt is too long | the turn |
//! | `after_complete` | the run is about to end for good, or to hand off | the turn |
//!
//! - Conditions are judged once, when the event occurs, by what is on record: so a replay judges them the same.
//! - All hooks that match fire in one commit. The actions of a hook are made one after the other, those of several hooks at the same time.
//! - The id of a call follows from its occurrence: a hook whose call is on record has fired.
//! - A decision counts in the run in which its result was recorded, and in the next one if that run was lost.

mod context;
mod record;
mod results;

use std::collections::HashSet;
use std::ops::ControlFlow;

use selvedge_items::hook::{Control, HookEvent, Source};
use selvedge_items::interpolate::{Environment, Scope, fill};
use selvedge_log::hash::sha256;
use selvedge_model::event::{
    CallOpened, CallOrigin, Fields, HandoffReason, SuspendReason, Suspended, ToolFailureClass,
};
use selvedge_model::{CallId, Event, Message, ModelError, Reason, Role, Status};
use serde_json::{Value, json};

use crate::decide::asking::Turn;
use crate::decide::ending::{self, EndReason};
use crate::decide::{Commit, Live, Rules, Step, With, calls};
use crate::fold::Fold;
use crate::held::Delta;
use crate::hooks::{Hook, HookCall};

pub(super) use record::record;
pub(crate) use record::{Decided, failed_attempt};
pub(super) use results::came;
pub(crate) use results::original;

/// What the id of every call of a hook begins with.
const CALL_PREFIX: &str = "hook.";

/// How many attempts of one turn hooks can ask for.
const ATTEMPTS_MAX: u32 = 10;

/// What a process knows of the hooks of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct HookMemory {
    /// The calls of hooks that ended in this run.
    ended: HashSet<CallId>,
    /// Whether the run before this one was lost: its decisions count.
    is_after_loss: bool,
    /// Why the thread was suspended that runs again.
    resumed: Option<Suspended>,
    /// Whether a turn is over whose `after_step` may be due.
    is_turn_over: bool,
}

impl HookMemory {
    /// Of a run that begins, with a message of a user or without.
    pub(crate) fn new(suspended: Option<&Suspended>, has_message: bool) -> Self {
        let is_after_loss = suspended.is_some_and(Suspended::is_process_lost);
        Self {
            is_after_loss,
            resumed: suspended.cloned(),
            is_turn_over: is_after_loss && !has_message,
            ..Self::default()
        }
    }

    /// A turn has its answer.
    pub(crate) fn turn_is_over(&mut self) {
        self.is_turn_over = true;
    }

    /// These events are on record.
    pub(crate) fn committed(&mut self, events: &[Event]) {
        for event in events {
            let Event::ToolOutcome(outcome) = event else { continue };
            if outcome.call_id.as_str().starts_with(CALL_PREFIX) {
                self.ended.insert(outcome.call_id.clone());
            } else {
                // Its turn may be one of an earlier run.
                self.is_turn_over = true;
            }
        }
    }
}

/// An event that occurs.
pub(super) struct Occasion {
    event: HookEvent,
    occurrence: String,
    /// What the ids of its calls begin with.
    prefix: String,
}

impl Occasion {
    pub(super) fn new(fold: &Fold, event: HookEvent, occurrence: String) -> Self {
        let of = format!("{}:{}:{occurrence}", fold.head.log_id, event.as_str());
        let hex = sha256(of.as_bytes()).to_string();
        Self { event, occurrence, prefix: format!("{CALL_PREFIX}{}.", &hex[..16]) }
    }

    /// One that occurs once in a turn of the thread.
    fn of_turn(fold: &Fold, event: HookEvent) -> Self {
        Self::new(fold, event, turn(fold))
    }

    fn has_fired(&self, fold: &Fold) -> bool {
        fold.has_call_of(&self.prefix)
    }

    /// The id of an action; letters, digits and dots make a valid one.
    fn call(&self, hook: &Hook, action: usize) -> Option<CallId> {
        let hex = sha256(hook.placed.hook.id.as_bytes()).to_string();
        CallId::new(format!("{}{}.{action}", self.prefix, &hex[..16])).ok()
    }
}

/// The number of the thread's last turn, and of its messages of users: a message begins something new.
fn turn(fold: &Fold) -> String {
    format!("{}.{}", fold.manifest().cost.turns, fold.conversation.users())
}

/// What follows from an event: the next step of its hooks, or what they decided.
pub(super) type Reaction = ControlFlow<Step, Option<Decided>>;

/// Fires the hooks of an event, or their next actions; once all are back, what they decided. `lead` is recorded with the first of them.
pub(super) fn react(
    fold: &Fold,
    live: &Live,
    rules: &Rules,
    occasion: &Occasion,
    more: impl FnOnce() -> Value,
    lead: Option<Event>,
) -> Reaction {
    let mut hooks = rules.hooks.at(occasion.event).peekable();
    if hooks.peek().is_none() {
        return ControlFlow::Continue(None);
    }
    let is_fired = occasion.has_fired(fold);
    let is_stopped = live.stop.is_some();
    let mut values = None;
    let mut more = Some(more);
    let mut values = |fold: &Fold| -> Value {
        values.get_or_insert_with(|| context::of(fold, rules, occasion.event, more.take().map(|more| more()))).clone()
    };
    let mut fired = Vec::new();
    let mut opened = Vec::new();
    for (_, hook) in hooks.filter(|_| !is_stopped) {
        let next = if is_fired {
            next_action(fold, occasion, hook)
        } else {
            hook.placed.hook.condition.holds(&values(fold)).then_some(0)
        };
        let Some((action, call)) = next.and_then(|action| Some((action, hook.calls.get(action)?))) else { continue };
        let Some(call_id) = occasion.call(hook, action) else { continue };
        if action == 0 {
            fired.push(record::fired(hook, occasion.event, &occasion.occurrence, &call_id, &values(fold)));
        }
        opened.push(open(hook, call, call_id, &values(fold)));
    }
    if opened.is_empty() {
        return ControlFlow::Continue(if is_fired { decision(fold, live, rules, occasion) } else { None });
    }
    let lead = lead.filter(|_| !is_fired);
    let events = lead.into_iter().chain(fired).chain(opened).collect();
    let delta = Delta { events, ..Delta::default() };
    ControlFlow::Break(Commit::of(live, Reason::ToolIntentCommitted, delta).step())
}

/// The next action of a hook that has fired: the first that was not opened, if all before it ended without an error.
fn next_action(fold: &Fold, occasion: &Occasion, hook: &Hook) -> Option<usize> {
    for action in 0..hook.calls.len() {
        match fold.call(&occasion.call(hook, action)?) {
            // Its condition did not hold.
            None if action == 0 => return None,
            None => return Some(action),
            Some(call) if call.outcome.as_ref().is_none_or(|outcome| outcome.error.is_some()) => return None,
            Some(_) => {}
        }
    }
    None
}

fn open(hook: &Hook, call: &HookCall, call_id: CallId, values: &Value) -> Event {
    let environment = Environment { allowed: &[], variables: None };
    let call = match fill(&call.arguments, &Scope { values, environment }) {
        Ok(arguments) => HookCall { arguments, ..call.clone() },
        Err(error) => HookCall::unusable(call.source.clone(), error.to_string()),
    };
    let origin = CallOrigin::Hook { hook: hook.placed.hook.id.clone(), required: hook.placed.hook.required };
    Event::CallOpened(CallOpened { call_id, origin, tool: call.tool, arguments: call.arguments })
}

/// What the hooks of an event decided: a failure that ends the run, else the first decision in the order. Built-in places come last, and
/// observers decide nothing.
fn decision(fold: &Fold, live: &Live, rules: &Rules, occasion: &Occasion) -> Option<Decided> {
    let memory = &live.hooks;
    let mut decided: Option<(bool, Decided)> = None;
    for (_, hook) in rules.hooks.at(occasion.event) {
        let id = &hook.placed.hook.id;
        let of = |control| Decided { hook: id.clone(), event: occasion.event, control, is_failure: false };
        for action in 0..hook.calls.len() {
            let Some(call) = occasion.call(hook, action) else { continue };
            let Some(outcome) = fold.call(&call).and_then(|known| known.outcome.as_ref()) else { continue };
            if !memory.is_after_loss && !memory.ended.contains(&call) {
                continue;
            }
            if let Some(error) = &outcome.error {
                let is_broken =
                    outcome.failure.as_ref().is_some_and(|failure| failure.class == ToolFailureClass::Integrity);
                if is_broken || hook.placed.hook.required {
                    let error = format!("hook `{id}` failed: {error}");
                    return Some(Decided { is_failure: true, ..of(Control::Fail { error }) });
                }
            }
            let is_last = hook.placed.layer == Source::BuiltIn;
            let is_better = decided.as_ref().is_none_or(|(was_last, _)| *was_last && !is_last);
            let result = outcome.result.as_ref().filter(|_| !hook.placed.hook.observer && is_better);
            if let Some(Ok(control)) = result.and_then(Control::of) {
                decided = Some((is_last, of(control)));
            }
        }
    }
    decided.map(|(_, decided)| decided)
}

/// Ends the run as hooks decided, if that is what they decided.
pub(super) fn end_as(fold: &Fold, live: &Live, rules: &Rules, decided: Option<Decided>) -> Option<Step> {
    let decided = decided.filter(|decided| !decided.goes_on())?;
    Some(ending::end(fold, live, rules, EndReason::Decided(decided)))
}

/// Whether calls of hooks have no result.
fn are_open(fold: &Fold) -> bool {
    fold.conversation.open().iter().any(crate::conversation::OpenCall::is_of_hook)
}

/// The step for calls that hooks opened while a turn is under way.
pub(super) fn under_way(fold: &Fold, live: &Live, rules: &Rules) -> Option<Step> {
    if are_open(fold) { calls::next(fold, live, rules) } else { None }
}

/// The step of the hooks before the first turn, if there is one.
pub(super) fn beginning(fold: &Fold, live: &Live, rules: &Rules) -> Option<Step> {
    let mut occasions = Vec::new();
    if fold.manifest().cost.turns == 0 {
        let started = match fold.manifest().continuation_of {
            Some(_) => HookEvent::ThreadContinued,
            None => HookEvent::ThreadStarted,
        };
        occasions.extend([HookEvent::BuildSystemPrompt, started].map(|event| (event, "thread".to_owned())));
    }
    if live.turns == 0 && live.hooks.resumed.is_some() {
        occasions.push((HookEvent::ThreadResumed, live.run.to_string()));
    }
    for (event, occurrence) in occasions {
        let occasion = Occasion::new(fold, event, occurrence);
        match react(fold, live, rules, &occasion, || context::resumed(live.hooks.resumed.as_ref()), None) {
            ControlFlow::Break(step) => return Some(step),
            ControlFlow::Continue(decided) => {
                if let Some(end) = end_as(fold, live, rules, decided) {
                    return Some(end);
                }
            }
        }
    }
    None
}

/// The step of the hooks after a turn, if there is one.
pub(super) fn after_turn(fold: &Fold, live: &Live, rules: &Rules) -> Option<Step> {
    // After a crash the last turn counts, unless the user has said something since.
    let is_answer = |(message, _): (&Message, _)| message.role == Role::Assistant;
    let has_turn = fold.manifest().cost.turns > 0 && fold.conversation.last_exchange().is_some_and(is_answer);
    if !live.hooks.is_turn_over || !has_turn || live.failed.is_some() || !fold.conversation.open().is_empty() {
        return None;
    }
    let occasion = Occasion::of_turn(fold, HookEvent::AfterStep);
    match react(fold, live, rules, &occasion, || Value::Null, None) {
        ControlFlow::Break(step) => Some(step),
        ControlFlow::Continue(decided) => end_as(fold, live, rules, decided),
    }
}

/// Ends a run, after the hooks at `directive_return` and `after_complete` if it ends for good.
pub(super) fn complete(fold: &Fold, live: &Live, rules: &Rules, why: EndReason) -> Step {
    let status = match &why {
        _ if live.failed.is_some() => None,
        EndReason::Completed | EndReason::Returned(_) => Some(Status::Completed),
        EndReason::Reached(met) if !met.is_trouble => Some(Status::Completed),
        EndReason::Unreturned => Some(Status::CompletedWithErrors),
        EndReason::Failed(_) => Some(Status::Error),
        _ => None,
    };
    let Some(status) = status else { return ending::end(fold, live, rules, why) };
    if let EndReason::Returned(outputs) = &why {
        let occasion = Occasion::of_turn(fold, HookEvent::DirectiveReturn);
        match react(fold, live, rules, &occasion, || json!({"outputs": outputs}), None) {
            ControlFlow::Break(step) => return step,
            ControlFlow::Continue(decided) => {
                if let Some(end) = end_as(fold, live, rules, decided) {
                    return end;
                }
            }
        }
    }
    let occasion = Occasion::of_turn(fold, HookEvent::AfterComplete);
    match react(fold, live, rules, &occasion, || json!({"status": status, "handoff": false}), None) {
        ControlFlow::Break(step) => step,
        // It has ended: only a failure still changes how.
        ControlFlow::Continue(Some(decided)) if decided.is_failure => {
            ending::end(fold, live, rules, EndReason::Decided(decided))
        }
        ControlFlow::Continue(_) => ending::end(fold, live, rules, why),
    }
}

/// The step at a limit; none if hooks let the run go on for one more turn.
pub(super) fn limit(fold: &Fold, live: &Live, rules: &Rules, suspended: Suspended) -> Option<Step> {
    match at_limit(fold, live, rules, &suspended) {
        ControlFlow::Break(step) => Some(step),
        ControlFlow::Continue(Some(decided)) if decided.goes_on() => None,
        ControlFlow::Continue(Some(decided)) => Some(ending::end(fold, live, rules, EndReason::Decided(decided))),
        ControlFlow::Continue(None) => Some(super::suspend(fold, live, rules, suspended)),
    }
}

/// The same for a limit that no hook can extend, such as that of money.
pub(super) fn hard_limit(fold: &Fold, live: &Live, rules: &Rules, suspended: &Suspended, why: EndReason) -> Step {
    match at_limit(fold, live, rules, suspended) {
        ControlFlow::Break(step) => step,
        ControlFlow::Continue(Some(decided)) if !decided.goes_on() => {
            ending::end(fold, live, rules, EndReason::Decided(decided))
        }
        ControlFlow::Continue(_) => ending::end(fold, live, rules, why),
    }
}

fn at_limit(fold: &Fold, live: &Live, rules: &Rules, suspended: &Suspended) -> Reaction {
    let code = suspended.code.as_deref().unwrap_or_default();
    let turns = fold.manifest().cost.turns;
    let users = fold.conversation.users();
    let of = |turns: u64| Occasion::new(fold, HookEvent::Limit, format!("{code}.{turns}.{users}"));
    // One more turn was granted already.
    if turns.checked_sub(1).is_some_and(|before| of(before).has_fired(fold)) {
        return ControlFlow::Continue(None);
    }
    let more = || {
        json!({
            "limit_code": code, "current_value": suspended.current, "current_max": suspended.maximum,
            "error_context": {"last_assistant": context::last_answer(fold)},
        })
    };
    react(fold, live, rules, &of(turns), more, None)
}

/// Suspends the run at its approvals, after their hooks.
pub(super) fn approval(fold: &Fold, live: &Live, rules: &Rules, suspended: Suspended) -> Step {
    let first = suspended.calls.first().filter(|_| suspended.reason == SuspendReason::Approval);
    let Some(first) = first else { return super::suspend(fold, live, rules, suspended) };
    let occasion = Occasion::new(fold, HookEvent::Approval, first.to_string());
    match react(fold, live, rules, &occasion, || json!({"calls": fold.manifest().asks}), None) {
        ControlFlow::Break(step) => step,
        ControlFlow::Continue(decided) => {
            end_as(fold, live, rules, decided).unwrap_or_else(|| super::suspend(fold, live, rules, suspended))
        }
    }
}

/// What hooks want after a failed attempt.
pub(super) enum AfterError {
    /// This step.
    Step(Step),
    /// The attempt is made again: after the usual wait, or at once.
    Again { at_once: bool },
    /// What the engine does without hooks.
    Nothing,
}

/// The hooks at a failed attempt.
pub(super) fn error(
    fold: &Fold,
    live: &Live,
    rules: &Rules,
    turn: &Turn,
    error: &ModelError,
    is_retryable: bool,
) -> AfterError {
    // A stop is obeyed, and what is too long or has lost its session is answered by the engine itself.
    let is_own = matches!(
        error,
        ModelError::Stopped { .. } | ModelError::SessionRefused { .. } | ModelError::ContextTooLong { .. }
    );
    if is_own {
        return AfterError::Nothing;
    }
    let occurrence = format!("{}.{}.{}", live.run, live.turns, turn.attempts);
    let occasion = Occasion::new(fold, HookEvent::Error, occurrence);
    match react(fold, live, rules, &occasion, || context::error(turn, error, is_retryable), None) {
        ControlFlow::Break(step) => AfterError::Step(step),
        ControlFlow::Continue(None) => AfterError::Nothing,
        ControlFlow::Continue(Some(decided)) => match &decided.control {
            Control::Retry if turn.attempts < ATTEMPTS_MAX => AfterError::Again { at_once: false },
            Control::Continue if turn.attempts < ATTEMPTS_MAX => AfterError::Again { at_once: true },
            Control::Retry | Control::Continue => AfterError::Nothing,
            _ => AfterError::Step(ending::end(fold, live, rules, EndReason::Decided(decided))),
        },
    }
}

/// Hands off to a successor, after the hooks: `context_limit_reached`, then `after_complete` inside the old run.
pub(super) fn handoff(fold: &Fold, live: &Live, rules: &Rules, reason: HandoffReason, room: usize) -> Step {
    let is_full = reason == HandoffReason::ContextFull;
    let full = Occasion::of_turn(fold, HookEvent::ContextLimitReached);
    let complete = Occasion::of_turn(fold, HookEvent::AfterComplete);
    let is_on_record = full.has_fired(fold) || complete.has_fired(fold);
    let reached = || Event::ContextLimitReached(ending::limit_reached(fold, rules));
    let lead = || (is_full && !is_on_record).then(reached);
    if is_full {
        let more = || Value::Object(ending::limit_reached(fold, rules));
        match react(fold, live, rules, &full, more, lead()) {
            ControlFlow::Break(step) => return step,
            ControlFlow::Continue(decided) => {
                if let Some(end) = end_as(fold, live, rules, decided) {
                    return end;
                }
            }
        }
    }
    match react(fold, live, rules, &complete, || json!({"status": Status::Continued, "handoff": true}), lead()) {
        ControlFlow::Break(step) => return step,
        ControlFlow::Continue(Some(decided)) if decided.is_failure => {
            return ending::end(fold, live, rules, EndReason::Decided(decided));
        }
        ControlFlow::Continue(_) => {}
    }
    let inputs = successor_inputs(fold, rules, &complete);
    ending::hand_off(fold, live, rules, lead(), With::Handoff { reason, room, inputs: Box::new(inputs) })
}

/// The input that names the summary of the thread before.
const PREVIOUS_SUMMARY: &str = "previous_summary_id";

/// The inputs of a successor: those of this thread, with the summary that a hook made of it. Without one, no older summary is passed on.
fn successor_inputs(fold: &Fold, rules: &Rules, complete: &Occasion) -> Fields {
    let calls = rules.hooks.at(HookEvent::AfterComplete);
    let calls = calls.flat_map(|(_, hook)| (0..hook.calls.len()).filter_map(|action| complete.call(hook, action)));
    let results = calls.filter_map(|call| fold.call(&call)?.outcome.as_ref()?.result.as_ref());
    let summary = results.filter_map(|result| result.get(PREVIOUS_SUMMARY).filter(|id| id.is_string())).last();
    let mut inputs = fold.manifest().inputs.clone();
    inputs.remove(PREVIOUS_SUMMARY);
    inputs.extend(summary.map(|summary| (PREVIOUS_SUMMARY.to_owned(), summary.clone())));
    inputs
}
