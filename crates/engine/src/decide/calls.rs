//! What calls without a result need: those of the last answer, and those that an earlier process left open.
//!
//! - A call that may run at most once and has no intent never ran: it is made now. Pure and idempotent calls are made again.
//! - A call with an intent and no outcome may have run. Its outcome is probed first (`Probe`).
//! - An unknown outcome suspends the thread until a person resolves the call. For a hook that is not required, it is recorded as an error,
//!   and the run continues.
//!
//! Whether a call is in a message or was opened by an event makes no other difference here.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

use selvedge_items::config::Wait;
use selvedge_log::hash::sha256;
use selvedge_model::event::{
    Ask, Decision, DecisionAction, EffectClass, Fields, Process, SuspendReason, Suspended, ToolIntent,
};
use selvedge_model::fold::{CallState as Known, Spawned};
use selvedge_model::tool::{Call, Output, SandboxReached};
use selvedge_model::{CallId, Event, Reason, Timestamp, Tool, ToolKind, ToolSpec};
use serde_json::{Value, json};

use crate::approval::{self, CallDecision};
use crate::conversation::OpenCall;
use crate::decide::results::{self, CallResult};
use crate::decide::{
    CallFinding, Commit, Flight, Inbox, Live, Look, Prepared, Rules, Stage, Step, With, ending, hooks, requests,
    suspend,
};
use crate::fold::Fold;
use crate::graph;
use crate::held::Delta;
use crate::run_config::Permission;
use crate::spawn::spawned;

/// The most calls that are made ready, and run, at the same time.
pub(super) const AT_ONCE_MAX: usize = 64;

/// How many characters of malformed arguments are shown to the model.
const MALFORMED_SHOWN: usize = 200;

/// A call without a result, and what it needs.
#[derive(Debug)]
pub(crate) struct PlannedCall {
    pub(crate) open: OpenCall,
    pub(crate) plan: CallPlan,
}

/// What a call without a result needs.
#[derive(Debug)]
pub(crate) enum CallPlan {
    /// It has its result: it is denied, its tool is gone, or its outcome is known.
    Answer(Output, Option<Box<Event>>),
    /// It is made.
    Make(ReadyCall),
    /// Its outcome must be probed.
    Probe(Probe),
    /// It needs an approval first.
    AwaitApproval(Ask),
    /// Its outcome is unknown.
    Unknown,
    /// A limit prevents it.
    Limited(Suspended),
}

/// A call whose outcome must be probed.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) ready: ReadyCall,
    /// The process that an earlier process of the engine started. It must end before anything else is done, whatever is known about the call.
    pub(crate) process: Option<Process>,
    /// Whether a person decided that it was not executed.
    pub(crate) is_undone: bool,
}

/// A call that may be made.
#[derive(Clone)]
pub(crate) struct ReadyCall {
    pub(crate) tool: Arc<dyn Tool>,
    pub(crate) call: Call,
    /// Who changed its arguments before approving it.
    pub(crate) changed_by: Option<String>,
    /// Whether it needed an approval.
    pub(crate) by_approval: bool,
    /// Whether its tool was redefined after it was approved.
    pub(crate) redefined: bool,
    /// The child that it has spawned already.
    pub(crate) child: Option<Spawned>,
}

impl std::fmt::Debug for ReadyCall {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ReadyCall")
            .field("call", &self.call.id)
            .field("tool", &self.call.name)
            .finish_non_exhaustive()
    }
}

impl ReadyCall {
    /// The result of the call, with a note for the model if its arguments or its tool were changed.
    pub(crate) fn annotated(&self, output: Output) -> Output {
        let output = if self.redefined { approval::with_redefinition(output) } else { output };
        match &self.changed_by {
            Some(who) => approval::with_change(output, who, &self.call.arguments),
            None => output,
        }
    }
}

/// What a call is made with, after its approval was checked.
struct Permitted {
    arguments: Value,
    /// Who changed them before approving the call.
    changed_by: Option<String>,
    /// Whether it needed an approval.
    by_approval: bool,
}

impl Permitted {
    /// What a call was made with that was dispatched earlier.
    fn before(open: &OpenCall, known: Option<&Known>) -> Self {
        let (arguments, changed_by) = approval::allowed_with(open, known);
        let by_approval = known.is_some_and(|known| known.decisions.iter().any(Decision::is_word));
        Self { arguments, changed_by, by_approval }
    }
}

/// The step for the calls that this run makes; none if there are no such calls. Intents are committed before anything is dispatched. The
/// outcome of a call that may run only once is committed as soon as it is back, other outcomes together.
pub(super) fn under_way(fold: &Fold, live: &Live, rules: &Rules) -> Option<Step> {
    let in_flight = live.flights.iter().any(Flight::is_in_flight);
    if live.failed.is_some() {
        // The run does not end while a call is in flight: its outcome is not known yet.
        return in_flight.then_some(Step::Wait(None));
    }
    let intents = intents(fold, live);
    if !intents.is_empty() {
        let delta = Delta { events: intents, ..Delta::default() };
        return Some(Commit { with: With::Children, ..Commit::of(live, Reason::ToolIntentCommitted, delta) }.step());
    }
    if live.flights.iter().any(Flight::is_ready) {
        return Some(Step::Dispatch);
    }
    let is_due = live.flights.iter().any(Flight::must_be_recorded) || (!in_flight && !live.flights.is_empty());
    if is_due {
        let mut delta = Delta::default();
        add_results(&mut delta, fold, live, rules);
        return Some(Commit::of(live, Reason::ToolResultsCommitted, delta).step());
    }
    in_flight.then(|| while_in_flight(fold, live, rules))
}

/// The next step while calls are in flight: requests are answered, except a decision about a call that is itself in flight. The log has
/// an intent and no outcome of that call, so it would be judged as a call whose outcome is unknown. The decision, and the requests after
/// it, wait until the call has ended.
pub(super) fn while_in_flight(fold: &Fold, live: &Live, rules: &Rules) -> Step {
    if live.inbox == Inbox::Notified {
        return Step::Look(Look::Inbox);
    }
    match live.requests.first() {
        Some(pending) if pending.call().is_none_or(|call| live.flight(call).is_none()) => {
            requests::serve(fold, live, rules, pending)
        }
        _ => Step::Wait(None),
    }
}

/// The events to commit before calls are dispatched: approval requests, spawned children, and the intents of calls that may run at most
/// once or spawn a child.
pub(super) fn intents(fold: &Fold, live: &Live) -> Vec<Event> {
    let mut events: Vec<Event> = live.asks.iter().cloned().map(Event::Asked).collect();
    let ready = || {
        live.flights.iter().filter_map(|flight| match (&flight.ready, &flight.stage) {
            (Some(ready), Stage::Ready { prepared, is_recorded: false }) => Some((ready, prepared)),
            _ => None,
        })
    };
    for (ReadyCall { call, .. }, Prepared { born, .. }) in ready() {
        events.extend(born.iter().map(|(child, is_detached)| spawned(&call.id, child, *is_detached)));
    }
    for (ReadyCall { tool, call, .. }, Prepared { process, is_child, sandbox, .. }) in ready() {
        let spec = tool.spec();
        // A child that exists already has its intent, unless a new process is to run it.
        let is_there = fold.call(&call.id).is_some_and(|known| known.child.is_some());
        let is_known = is_there && *is_child && process.is_none();
        // The process that runs a child is recorded, whatever the effect class of the spawning tool.
        let is_recorded = spec.class == EffectClass::AtMostOnce || tool.kind() == ToolKind::Child;
        if is_recorded && !is_known {
            events.extend(sandbox.as_ref().map(|reached| sandboxed(&call.id, &spec.name, reached)));
            events.push(Event::ToolIntent(ToolIntent {
                call_id: call.id.clone(),
                tool: spec.name.clone(),
                class: spec.class,
                key: call.key.clone(),
                tool_hash: Some(spec.hash),
                process: process.clone(),
            }));
        }
    }
    events
}

/// The event that records how much of a call's sandbox is enforced.
pub(super) fn sandboxed(call: &CallId, tool: &str, reached: &SandboxReached) -> Event {
    let mut fields = reached.to_fields();
    fields.insert("call_id".to_owned(), call.as_str().into());
    fields.insert("tool".to_owned(), tool.into());
    Event::Sandboxed(fields)
}

/// Adds the results of calls that are back to a delta, in the order of the calls.
pub(super) fn add_results(delta: &mut Delta, fold: &Fold, live: &Live, rules: &Rules) {
    if !live.flights.iter().any(Flight::is_done) {
        return;
    }
    let mut state = results::state_after(fold, delta);
    for Flight { open, stage, event, .. } in &live.flights {
        let Stage::Done { output, blob, failure, .. } = stage else { continue };
        delta.events.extend(event.clone());
        let back = CallResult { output: output.clone(), blob: *blob, failure: failure.clone() };
        let back = hooks::came(delta, fold, rules, open, back);
        results::add(delta, &mut state, &rules.scopes, open, back);
    }
}

/// The step for the calls without a result; none if there are no such calls, or if only a stop remains to be obeyed.
pub(super) fn next(fold: &Fold, live: &Live, rules: &Rules) -> Option<Step> {
    let is_under_way = !live.flights.is_empty();
    let open: Vec<OpenCall> =
        fold.conversation.open().iter().filter(|open| live.flight(&open.id).is_none()).cloned().collect();
    if open.is_empty() {
        return None;
    }
    // Without time left, no call of an earlier process is made again.
    if live.turns == 0 && live.stop.is_none() && !is_under_way && ending::is_out_of_time(fold, live, rules) {
        return Some(suspend(fold, live, rules, ending::out_of_time(fold, live, rules)));
    }
    let mut open = open;
    if live.turns == 0 {
        // Calls that an earlier run left, and calls that were approved meanwhile, are ordered by id.
        // Those of hooks and nodes come last, in the order in which they were opened.
        open.sort_by(|one, other| match (one.is_of_message(), other.is_of_message()) {
            (false, false) => Ordering::Equal,
            (true, true) => one.id.cmp(&other.id),
            (one, other) => other.cmp(&one),
        });
    }
    let planned = open.into_iter().map(|open| PlannedCall { plan: plan(fold, live, rules, &open), open });
    let (probes, mut planned): (Vec<_>, Vec<_>) = planned.partition(|call| matches!(call.plan, CallPlan::Probe(_)));
    if !probes.is_empty() {
        let probe = |call: PlannedCall| match call.plan {
            CallPlan::Probe(probe) => Some(probe),
            _ => None,
        };
        return Some(Step::Probe(probes.into_iter().filter_map(probe).collect()));
    }
    // A decision that was posted before the expiry counts, whenever it is read.
    if live.inbox != Inbox::Read && planned.iter().any(|call| is_unanswered(fold, live.now, call)) {
        return Some(Step::Look(Look::Inbox));
    }
    let is_asked = planned.iter().any(|call| matches!(call.plan, CallPlan::AwaitApproval(_)));
    let mut made = 0;
    planned.retain(|call| match &call.plan {
        CallPlan::Make(_) if live.stop.is_some() => false,
        // An approved call waits for the undecided ones; it stays approved.
        CallPlan::Make(ready) if is_asked && rules.wait == Wait::All && ready.by_approval => false,
        // Each call that is ready may have a process and descriptors: the others follow as these end.
        CallPlan::Make(_) => {
            made += 1;
            made <= AT_ONCE_MAX
        }
        _ => true,
    });
    let is_due = |call: &PlannedCall| match &call.plan {
        CallPlan::Answer(..) | CallPlan::Make(_) => true,
        // The approval was not requested with the answer, because a rule or the tool was different then; it is requested now.
        CallPlan::AwaitApproval(ask) => !is_on_record(fold, ask),
        CallPlan::Probe(_) | CallPlan::Unknown | CallPlan::Limited(_) => false,
    };
    if planned.iter().any(is_due) {
        return Some(Step::Prepare(planned));
    }
    // The others of a loop come back first.
    if is_under_way {
        return Some(Step::Wait(None));
    }
    // A run that is to stop waits for no decision.
    live.stop.is_none().then(|| hooks::approval(fold, live, rules, left(planned)))
}

/// Whether a call is answered only because its approval request expired without a decision.
fn is_unanswered(fold: &Fold, now: Timestamp, PlannedCall { open, plan }: &PlannedCall) -> bool {
    let known = fold.call(&open.id).filter(|known| known.decisions.is_empty() && known.intent.is_none());
    let ask = known.and_then(|known| known.ask.as_ref());
    matches!(plan, CallPlan::Answer(..)) && ask.is_some_and(|ask| ask.is_over(now))
}

/// Whether exactly this approval request is on record.
pub(crate) fn is_on_record(fold: &Fold, ask: &Ask) -> bool {
    fold.call(&ask.call_id).and_then(|known| known.ask.as_ref()) == Some(ask)
}

/// Why a thread is suspended whose calls can't continue by themselves.
fn left(planned: Vec<PlannedCall>) -> Suspended {
    let mut unknown = Vec::new();
    let mut asked = Vec::new();
    let mut limited = None;
    for PlannedCall { open, plan } in planned {
        match plan {
            CallPlan::Unknown => unknown.push(open.id),
            CallPlan::AwaitApproval(ask) => asked.push(ask.call_id),
            CallPlan::Limited(suspended) => limited = Some(suspended),
            CallPlan::Answer(..) | CallPlan::Make(_) | CallPlan::Probe(_) => {}
        }
    }
    match (limited, unknown.is_empty(), asked.is_empty()) {
        (Some(limited), true, true) => limited,
        (_, is_known, _) => {
            let (reason, code) = if is_known {
                (SuspendReason::Approval, "approval")
            } else {
                (SuspendReason::OutcomeUnknown, "outcome_unknown")
            };
            Suspended { calls: unknown.into_iter().chain(asked).collect(), ..Suspended::because(reason, code) }
        }
    }
}

/// What a call without a result needs.
pub(crate) fn plan(fold: &Fold, live: &Live, rules: &Rules, open: &OpenCall) -> CallPlan {
    let known = fold.call(&open.id);
    if let Some(answer) = known.and_then(decided) {
        return CallPlan::Answer(answer, None);
    }
    let intent = known.and_then(|known| known.intent.as_ref());
    if let Some(written) = malformed(&open.arguments).filter(|_| intent.is_none()) {
        let text =
            format!("the arguments of this call are not a JSON object: {written}; make it again with valid JSON");
        return CallPlan::Answer(Output::error(text), None);
    }
    let Some(tool) = rules.own_tool(open).or_else(|| rules.tool(&open.name)) else {
        let text = match intent {
            None => format!("there is no tool `{}`", open.name),
            Some(_) => "interrupted: this call was dispatched, its tool no longer exists, and its outcome is unknown"
                .to_owned(),
        };
        return CallPlan::Answer(Output::error(text), None);
    };
    let Permitted { arguments, changed_by, by_approval } = match intent {
        // It was permitted before it was dispatched.
        Some(_) => Permitted::before(open, known),
        None => match permitted(fold, live.now, rules, open, &**tool) {
            ControlFlow::Continue(given) => given,
            ControlFlow::Break(plan) => return plan,
        },
    };
    let key = intent.map_or_else(|| key_of(fold, &open.id), |intent| intent.key.clone());
    let call = Call {
        thread: fold.thread_id().clone(),
        run: live.run.clone(),
        id: open.id.clone(),
        name: open.name.clone(),
        arguments,
        key,
    };
    let child = known.and_then(|known| known.child.clone());
    let redefined = by_approval && approval::was_redefined(known);
    let ready = ReadyCall { tool: tool.clone(), call, changed_by, by_approval, redefined, child };
    // A call that may run more than once is made again, whatever became of it.
    let is_uncertain = known.is_some_and(|known| known.uncertain) && tool.spec().class == EffectClass::AtMostOnce;
    let may_have_run = intent.is_some() || is_uncertain;
    let plan = match live.findings.get(&open.id) {
        // A hook that a limit prevents is recorded, and the run continues.
        Some(CallFinding::Limited(suspended)) if !open.suspends() => {
            let code = suspended.code.as_deref().unwrap_or("limit");
            return CallPlan::Answer(Output::error(format!("a limit prevents it: {code}")), None);
        }
        Some(CallFinding::Limited(suspended)) => return CallPlan::Limited(suspended.clone()),
        _ if !may_have_run => CallPlan::Make(ready),
        Some(CallFinding::Done(output)) => CallPlan::Answer(ready.annotated(output.clone()), None),
        Some(CallFinding::NotDone) => CallPlan::Make(ready),
        Some(CallFinding::Unknown) if open.suspends() => CallPlan::Unknown,
        Some(CallFinding::Unknown) => CallPlan::Answer(Output::error("the outcome of this call is unknown"), None),
        None => {
            let process = intent.and_then(|intent| intent.process.clone()).filter(|_| ready.child.is_none());
            // A child that exists was spawned, whatever a decision says.
            let is_undone = known.is_some_and(is_not_done) && ready.child.is_none();
            if is_undone && process.is_none() {
                CallPlan::Make(ready)
            } else {
                CallPlan::Probe(Probe { ready, process, is_undone })
            }
        }
    };
    // The outcome of a call does not depend on a rule; whether it is made does.
    match (plan, permission(rules, open, &**tool)) {
        (CallPlan::Make(_), Permission::Denied(why)) => refused(open, tool.spec(), &why),
        (plan, _) => plan,
    }
}

/// What a call that was never dispatched is made with; or what it needs, if it may not be made now.
///
/// An approval request stays pending until it is decided, and a decision counts, even if the rule has changed since. Only a rule that denies
/// the call overrides an approval.
fn permitted(
    fold: &Fold,
    now: Timestamp,
    rules: &Rules,
    open: &OpenCall,
    tool: &dyn Tool,
) -> ControlFlow<CallPlan, Permitted> {
    let permission = permission(rules, open, tool);
    let tool = tool.spec();
    let known = fold.call(&open.id);
    let hash = approval::action_hash(&fold.head.log_id, open, tool);
    let asked = known.and_then(|known| known.ask.as_ref());
    let ask = match (permission, approval::decision_on(open, known, &hash, now), asked) {
        (_, CallDecision::Answer(output), _) => return ControlFlow::Break(CallPlan::Answer(output, None)),
        (Permission::Denied(why), ..) => return ControlFlow::Break(refused(open, tool, &why)),
        (_, CallDecision::Approved { arguments, changed_by }, _) => {
            return ControlFlow::Continue(Permitted { arguments, changed_by, by_approval: true });
        }
        // A pending approval request is kept as it was, including its expiry.
        (_, CallDecision::Pending, Some(ask)) if ask.action_hash == hash => ask.clone(),
        // The log, the call and its arguments are the same, so the tool was redefined.
        (Permission::Ask(asking), CallDecision::Pending, Some(_)) => {
            Ask { redefined: true, ..approval::ask(&asking, hash, open, now) }
        }
        (_, CallDecision::Pending, Some(ask)) => Ask { action_hash: hash, redefined: true, ..ask.clone() },
        (Permission::Ask(asking), CallDecision::Pending, None) => approval::ask(&asking, hash, open, now),
        (_, CallDecision::Pending, None) => {
            let arguments = open.arguments.clone();
            return ControlFlow::Continue(Permitted { arguments, changed_by: None, by_approval: false });
        }
    };
    ControlFlow::Break(CallPlan::AwaitApproval(ask))
}

/// Whether a call may be made. A tool that only hooks or nodes call needs no capability.
fn permission(rules: &Rules, open: &OpenCall, tool: &dyn Tool) -> Permission {
    match rules.own_tool(open) {
        // A child needs the capability of every child.
        Some(own) if open.is_of_node() && own.kind() == ToolKind::Child => rules.permission(tool, &open.arguments),
        Some(_) => graph::permission(open),
        None => rules.permission(tool, &open.arguments),
    }
}

/// The beginning of arguments that are not JSON, as the model wrote them.
pub(super) fn malformed(arguments: &Value) -> Option<String> {
    arguments.as_str().map(|written| written.chars().take(MALFORMED_SHOWN).collect())
}

/// The idempotency key of a call: the same for every dispatch, in every process.
fn key_of(fold: &Fold, call: &CallId) -> String {
    sha256(format!("{}:{call}", fold.head.log_id).as_bytes()).to_string()
}

/// The result of a call by a person's decision about its outcome.
fn decided(known: &Known) -> Option<Output> {
    let decision = known.decisions.iter().rev().find(|decision| !decision.is_word())?;
    match decision.action {
        DecisionAction::Done => {
            Some(Output { content: decision.result.clone().unwrap_or(json!("done")), ..Output::default() })
        }
        DecisionAction::Unknown => {
            Some(Output::error("it is unknown whether this call was executed; find out before making it again"))
        }
        DecisionAction::NotDone | DecisionAction::Approve | DecisionAction::Edit | DecisionAction::Deny => None,
    }
}

fn is_not_done(known: &Known) -> bool {
    known.decisions.iter().any(|decision| decision.action == DecisionAction::NotDone)
}

/// The plan for a call that a rule denies.
fn refused(open: &OpenCall, tool: &ToolSpec, why: &str) -> CallPlan {
    let fields = json!({"call_id": open.id, "tool": open.name, "capability": tool.capability, "why": why});
    let denied = match fields {
        Value::Object(fields) => Event::CapabilityDenied(fields),
        _ => Event::CapabilityDenied(Fields::new()),
    };
    CallPlan::Answer(Output::error(format!("not allowed: {why}")), Some(Box::new(denied)))
}
