//! What calls without a result need: those just asked for, and those that an earlier life of the thread left open.
//!
//! - A call without an intent never ran, if it may run at most once: it is made now. Pure and idempotent ones are made again.
//! - A call with an intent and no outcome may have run. What became of it is found out first (`Probe`).
//! - An unknown outcome suspends the thread until a person says what became of the call. That of a hook which is not required is recorded
//!   as an error, and the run goes on.
//!
//! Whether a message asks for a call or it was opened by itself changes nothing else here.

use std::ops::ControlFlow;
use std::sync::Arc;

use selvedge_items::config::Wait;
use selvedge_log::hash::sha256;
use selvedge_model::event::{Ask, Decision, Fields, Process, SuspendReason, Suspended};
use selvedge_model::fold::{Call as Known, Spawned};
use selvedge_model::tool::{Call, Output};
use selvedge_model::{CallId, Event, Timestamp, Tool, ToolSpec};
use serde_json::{Value, json};

use crate::approval::{self, Word};
use crate::assignment::{Assignment, Permission};
use crate::conversation::OpenCall;
use crate::decide::{Inbox, Live, Step, Trace, ending, waits};
use crate::fold::Fold;

/// A call without a result, and what it needs.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) open: OpenCall,
    pub(crate) plan: Plan,
}

/// What a call without a result needs.
#[derive(Debug)]
pub(crate) enum Plan {
    /// It has its answer: it is denied, its tool is gone, or it is known what became of it.
    Answer(Output, Option<Event>),
    /// It is made.
    Make(Ready),
    /// What became of it must be found out.
    Probe(Probe),
    /// A person must allow it first.
    Word(Ask),
    /// What became of it is not known.
    Unknown,
    /// A ceiling keeps it from being made.
    Limited(Suspended),
}

/// A call of which must be found out what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) ready: Ready,
    /// What an earlier life began must not go on beside what is done now, whatever a person or the tool says of it.
    pub(crate) process: Option<Process>,
    /// Whether a person said already that it was not done.
    pub(crate) is_undone: bool,
}

/// A call that may be made.
#[derive(Clone)]
pub(crate) struct Ready {
    pub(crate) tool: Arc<dyn Tool>,
    pub(crate) call: Call,
    /// Who changed its arguments before allowing it.
    pub(crate) changed_by: Option<String>,
    /// Whether a person had to allow it.
    pub(crate) by_word: bool,
    /// Whether its tool was defined anew after a person had allowed it.
    pub(crate) redefined: bool,
    /// The child that it has started already.
    pub(crate) child: Option<Spawned>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Ready")
            .field("call", &self.call.id)
            .field("tool", &self.call.name)
            .finish_non_exhaustive()
    }
}

impl Ready {
    /// An answer of the call; if a person changed its arguments, or its tool was changed, the model is told.
    pub(crate) fn told(&self, output: Output) -> Output {
        let output = if self.redefined { approval::with_redefinition(output) } else { output };
        match &self.changed_by {
            Some(who) => approval::with_change(output, who, &self.call.arguments),
            None => output,
        }
    }
}

/// What a call is made with.
struct Given {
    arguments: Value,
    /// Who changed them before allowing it.
    changed_by: Option<String>,
    /// Whether a person had to allow it.
    by_word: bool,
}

impl Given {
    /// What a call was made with that was dispatched before.
    fn before(open: &OpenCall, known: Option<&Known>) -> Self {
        let (arguments, changed_by) = approval::allowed_with(open, known);
        let by_word = known.is_some_and(|known| known.decisions.iter().any(Decision::is_word));
        Self { arguments, changed_by, by_word }
    }
}

/// What is done about the calls without a result; nothing if there are none, or if only a stop is left to be obeyed.
pub(super) fn next(fold: &Fold, live: &Live, rules: &Assignment) -> Option<Step> {
    let open = fold.conversation.open();
    if open.is_empty() {
        return None;
    }
    // Without time left, nothing is begun again that an earlier life left open.
    if live.turns == 0 && live.stop.is_none() && ending::is_out_of_time(fold, live, rules) {
        return Some(waits(live, ending::out_of_time(fold, live, rules)));
    }
    let mut open = open.to_vec();
    if live.turns == 0 {
        // What an earlier run left, and what was allowed meanwhile, goes in the order of the calls' names.
        open.sort_by(|one, other| one.id.cmp(&other.id));
    }
    let planned = open.into_iter().map(|open| Planned { plan: plan(fold, live, rules, &open), open });
    let (probes, mut planned): (Vec<_>, Vec<_>) = planned.partition(|call| matches!(call.plan, Plan::Probe(_)));
    if !probes.is_empty() {
        let probe = |call: Planned| match call.plan {
            Plan::Probe(probe) => Some(probe),
            _ => None,
        };
        return Some(Step::Probe(probes.into_iter().filter_map(probe).collect()));
    }
    // A word that was left in time counts, whenever it is heard.
    if live.inbox != Inbox::Heard && planned.iter().any(|call| is_unanswered(fold, live.now, call)) {
        return Some(Step::Hear);
    }
    let is_asked = planned.iter().any(|call| matches!(call.plan, Plan::Word(_)));
    planned.retain(|call| match &call.plan {
        Plan::Make(_) if live.stop.is_some() => false,
        // What was allowed waits for the others that are asked about; it stays allowed.
        Plan::Make(ready) => !(is_asked && rules.wait == Wait::All && ready.by_word),
        _ => true,
    });
    let is_due = |call: &Planned| match &call.plan {
        Plan::Answer(..) | Plan::Make(_) => true,
        // What was not asked when the model asked for the call, because a rule or the tool was another one then, is asked now.
        Plan::Word(ask) => !is_on_record(fold, ask),
        Plan::Probe(_) | Plan::Unknown | Plan::Limited(_) => false,
    };
    if planned.iter().any(is_due) {
        return Some(Step::Calls(planned));
    }
    // A run that is to stop waits for no decision.
    live.stop.is_none().then(|| waits(live, left(planned)))
}

/// Whether a call is answered only because no decision came in time.
fn is_unanswered(fold: &Fold, now: Timestamp, Planned { open, plan }: &Planned) -> bool {
    let known = fold.call(&open.id).filter(|known| known.decisions.is_empty() && known.intent.is_none());
    let ask = known.and_then(|known| known.ask.as_ref());
    matches!(plan, Plan::Answer(..)) && ask.is_some_and(|ask| ask.is_over(now))
}

/// Whether exactly this ask is on record.
pub(crate) fn is_on_record(fold: &Fold, ask: &Ask) -> bool {
    fold.call(&ask.call_id).and_then(|known| known.ask.as_ref()) == Some(ask)
}

/// What a thread waits for whose calls can't go on by themselves.
fn left(planned: Vec<Planned>) -> Suspended {
    let (mut unknown, mut asked, mut limited) = (Vec::new(), Vec::new(), None);
    for Planned { open, plan } in planned {
        match plan {
            Plan::Unknown => unknown.push(open.id),
            Plan::Word(ask) => asked.push(ask.call_id),
            Plan::Limited(suspended) => limited = Some(suspended),
            Plan::Answer(..) | Plan::Make(_) | Plan::Probe(_) => {}
        }
    }
    match (limited, unknown.is_empty(), asked.is_empty()) {
        (Some(limited), true, true) => limited,
        (_, is_known, _) => {
            let (reason, code) = match is_known {
                true => (SuspendReason::Approval, "approval"),
                false => (SuspendReason::OutcomeUnknown, "outcome_unknown"),
            };
            Suspended { calls: unknown.into_iter().chain(asked).collect(), ..Suspended::because(reason, code) }
        }
    }
}

/// What a call without a result needs.
pub(crate) fn plan(fold: &Fold, live: &Live, rules: &Assignment, open: &OpenCall) -> Plan {
    let known = fold.call(&open.id);
    if let Some(answer) = known.and_then(decided) {
        return Plan::Answer(answer, None);
    }
    let intent = known.and_then(|known| known.intent.as_ref());
    let Some(tool) = rules.tool(&open.name) else {
        let text = match intent {
            None => format!("there is no tool `{}`", open.name),
            Some(_) => {
                "interrupted: this call was dispatched, its tool is gone, and what became of it is not known".to_owned()
            }
        };
        return Plan::Answer(Output::error(text), None);
    };
    let Given { arguments, changed_by, by_word } = match intent {
        // It was allowed before it was dispatched.
        Some(_) => Given::before(open, known),
        None => match permitted(fold, live.now, rules, open, tool.spec()) {
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
    let redefined = by_word && approval::was_redefined(known);
    let ready = Ready { tool: tool.clone(), call, changed_by, by_word, redefined, child };
    let plan = match (intent, live.traces.get(&open.id)) {
        (_, Some(Trace::Limited(suspended))) => return Plan::Limited(suspended.clone()),
        (None, _) => Plan::Make(ready),
        (Some(_), Some(Trace::Done(output))) => Plan::Answer(ready.told(output.clone()), None),
        (Some(_), Some(Trace::NotDone)) => Plan::Make(ready),
        (Some(_), Some(Trace::Unknown)) if open.suspends() => Plan::Unknown,
        (Some(_), Some(Trace::Unknown)) => Plan::Answer(Output::error("what became of it is not known"), None),
        (Some(intent), None) => {
            let process = intent.process.clone().filter(|_| ready.child.is_none());
            // A child that is there was started, whatever a person says.
            let is_undone = known.is_some_and(is_not_done) && ready.child.is_none();
            match is_undone && process.is_none() {
                true => Plan::Make(ready),
                false => Plan::Probe(Probe { ready, process, is_undone }),
            }
        }
    };
    // What became of a call does not depend on a rule; whether it is made does.
    match (plan, (rules.gate)(tool.spec(), &open.arguments)) {
        (Plan::Make(_), Permission::Denied(why)) => refused(open, tool.spec(), &why),
        (plan, _) => plan,
    }
}

/// What a call that was never dispatched is made with; or what it needs, if it may not be made now.
///
/// What was asked is asked until a person answers it, and what was answered counts, whatever a rule says by now. Only a rule that
/// refuses counts for more than a word that allows.
fn permitted(
    fold: &Fold,
    now: Timestamp,
    rules: &Assignment,
    open: &OpenCall,
    tool: &ToolSpec,
) -> ControlFlow<Plan, Given> {
    let known = fold.call(&open.id);
    let hash = approval::action_hash(&fold.head.log_id, open, tool);
    let asked = known.and_then(|known| known.ask.as_ref());
    let ask = match ((rules.gate)(tool, &open.arguments), approval::word(open, known, &hash, now), asked) {
        (_, Word::Answer(output), _) => return ControlFlow::Break(Plan::Answer(output, None)),
        (Permission::Denied(why), ..) => return ControlFlow::Break(refused(open, tool, &why)),
        (_, Word::Given { arguments, changed_by }, _) => {
            return ControlFlow::Continue(Given { arguments, changed_by, by_word: true });
        }
        // What was asked before is asked again as it was, its time included.
        (_, Word::Awaited, Some(ask)) if ask.action_hash == hash => ask.clone(),
        // The log, the call and its arguments are the same, so it is the tool that is not.
        (Permission::Ask(asking), Word::Awaited, Some(_)) => {
            Ask { redefined: true, ..approval::ask(&asking, hash, open, now) }
        }
        (_, Word::Awaited, Some(ask)) => Ask { action_hash: hash, redefined: true, ..ask.clone() },
        (Permission::Ask(asking), Word::Awaited, None) => approval::ask(&asking, hash, open, now),
        (_, Word::Awaited, None) => {
            let arguments = open.arguments.clone();
            return ControlFlow::Continue(Given { arguments, changed_by: None, by_word: false });
        }
    };
    ControlFlow::Break(Plan::Word(ask))
}

/// What tells a tool that two dispatches are the same call: the same in every life of the thread.
fn key_of(fold: &Fold, call: &CallId) -> String {
    sha256(format!("{}:{call}", fold.head.log_id).as_bytes()).to_string()
}

/// What a person said became of a call.
fn decided(known: &Known) -> Option<Output> {
    let decision = known.decisions.iter().rev().find(|decision| !decision.is_word())?;
    match decision.action.as_str() {
        "done" => Some(Output { content: decision.result.clone().unwrap_or(json!("done")), ..Output::default() }),
        "unknown" => {
            Some(Output::error("nobody knows whether this call was carried out; find out before doing it again"))
        }
        _ => None,
    }
}

fn is_not_done(known: &Known) -> bool {
    known.decisions.iter().any(|decision| decision.action == "not_done")
}

/// A call that a rule refuses.
fn refused(open: &OpenCall, tool: &ToolSpec, why: &str) -> Plan {
    let fields = json!({"call_id": open.id, "tool": open.name, "capability": tool.capability, "why": why});
    let denied = match fields {
        Value::Object(fields) => Event::CapabilityDenied(fields),
        _ => Event::CapabilityDenied(Fields::new()),
    };
    Plan::Answer(Output::error(format!("not allowed: {why}")), Some(denied))
}
