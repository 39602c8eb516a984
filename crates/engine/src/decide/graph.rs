//! The walker: what a graph's run does next. A second pure decision over the same driver.
//!
//! ```text
//! under way    commit outcomes, with the end of their step and the beginning of the next; continue calls in flight
//! requests     give verdicts on the requests that were read from the inbox
//! calls        what does each open call without a result need?                                              calls
//! stop         a stop was requested, or the running time is over                                            ending
//! ended        graph_completed hooks, then the end of the run
//! current      open the calls of the step, wait before an attempt, or end the step                          step, result
//! otherwise    graph_started, after_step; then the next step, or a successor
//! ```
//!
//! - One commit for each step: it ends a step with its change of state and begins the next. A step without calls begins and ends in one.
//! - The calls of a loop are calls of one step, opened as others come back, so that no more than its bound are open.
//! - The ids of calls follow from step, attempt and item, so that nothing is opened twice.

mod result;
mod step;
mod values;

use std::ops::ControlFlow;
use std::time::Duration;

use selvedge_items::graph::{Node, NodeKind, OnError};
use selvedge_items::hook::{Control, HookEvent};
use selvedge_model::event::{Fields, HandoffReason, ManifestChanged, SuspendReason, Suspended};
use selvedge_model::fold::{GraphEnd, GraphProgress, GraphStep};
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::run::{Failure, FailureClass};
use selvedge_model::{Event, Patch, Reason, RunMeta, Status, Timestamp};
use serde_json::{Value, json};

use crate::decide::hooks::{self, Occasion};
use crate::decide::{Commit, EndReason, Flight, Inbox, Live, Look, Rules, Step, With, calls, ending, requests};
use crate::fold::Fold;
use crate::graph::{GraphRules, PATCH_SOURCE};
use crate::held::Delta;

/// Everything that a decision about a graph looks at.
#[derive(Clone, Copy)]
struct Walk<'a> {
    fold: &'a Fold,
    live: &'a Live,
    rules: &'a Rules,
    graph: &'a GraphRules,
    progress: &'a GraphProgress,
    /// The step that begins, if it is not the recorded one.
    at: Option<(u64, &'a str)>,
}

/// What a graph's run does next.
pub(super) fn walk(fold: &Fold, live: &Live, rules: &Rules, graph: &GraphRules) -> Step {
    let Some(progress) = fold.thread().graph.as_deref() else {
        // A run of another kind does not begin with a graph.
        return ending::end(fold, live, rules, EndReason::Completed);
    };
    let walk = Walk { fold, live, rules, graph, progress, at: None };
    if let Some(step) = walk.under_way() {
        return step;
    }
    let is_in_flight = live.flights.iter().any(Flight::is_in_flight);
    if let Some(failed) = &live.failed {
        return ending::end(fold, live, rules, EndReason::Failed(failed.clone()));
    }
    if let Some(step) = walk.requests() {
        return step;
    }
    if let Some(step) = calls::next(fold, live, rules) {
        return step;
    }
    if is_in_flight {
        return Step::Wait(None);
    }
    if let Some(end) = &progress.ended {
        return walk.finish(end);
    }
    if let Some(why) = ending::stopped(fold, live, rules) {
        return ending::end(fold, live, rules, why);
    }
    if !progress.begun || progress.definition != graph.digest {
        return walk.begin();
    }
    match progress.current.as_ref() {
        Some(current) => walk.go_on(current),
        None => walk.between(),
    }
}

impl Walk<'_> {
    /// The step for calls that this run makes; none if something else may be decided.
    fn under_way(&self) -> Option<Step> {
        let Self { fold, live, .. } = *self;
        let is_in_flight = live.flights.iter().any(Flight::is_in_flight);
        if live.failed.is_some() {
            return is_in_flight.then_some(Step::Wait(None));
        }
        let intents = calls::intents(fold, live);
        if !intents.is_empty() {
            let delta = Delta { events: intents, ..Delta::default() };
            return Some(
                Commit { with: With::Children, ..Commit::of(live, Reason::ToolIntentCommitted, delta) }.step(),
            );
        }
        if live.flights.iter().any(Flight::is_ready) {
            return Some(Step::Dispatch);
        }
        if !live.flights.iter().any(Flight::is_done) {
            return None;
        }
        let mut delta = Delta::default();
        calls::add_results(&mut delta, fold, live, self.rules);
        Some(self.commit(self.advanced(delta)))
    }

    /// The step for requests that were read, or are to be read. A decision about a call in flight waits until that is back.
    fn requests(&self) -> Option<Step> {
        let Self { fold, live, rules, .. } = *self;
        if let Some(pending) = live.requests.first()
            && pending.call().is_none_or(|call| live.flight(call).is_none())
        {
            return Some(requests::serve(fold, live, rules, pending));
        }
        (live.inbox == Inbox::Notified).then_some(Step::Look(Look::Inbox))
    }

    fn commit(&self, delta: Delta) -> Step {
        Commit::of(self.live, Reason::StepCommitted, delta).step()
    }

    /// Records the beginning of the graph, with its first state; or that a changed definition was accepted.
    fn begin(&self) -> Step {
        let Self { fold, graph, progress, .. } = *self;
        let start = progress.node.clone().unwrap_or_else(|| graph.definition.start.clone());
        let mut delta = Delta::default();
        let mut fields = json!({
            "graph_id": graph.id, "graph_run_id": fold.manifest().chain_root_id, "start_node": start,
            "definition": graph.digest,
        });
        if progress.begun {
            fields["accepted_change_of"] = json!(progress.definition);
        } else if fold.manifest().continuation_of.is_some() {
            fields["steps"] = json!(progress.step);
        } else {
            let mut wrong = None;
            for (key, template) in &graph.definition.state {
                // A state that was given, as for a single step, counts more.
                if fold.state().get(key).is_some() {
                    continue;
                }
                let value = values::fill(self, fold.state(), template, None, None).unwrap_or_else(|why| {
                    wrong = Some(format!("the initial state `{key}`: {why}"));
                    Value::Null
                });
                delta.patches.push(set(Path::keys([key.as_str()]), value));
            }
            if let Some(why) = wrong {
                delta.events.push(Event::GraphStarted(object(fields)));
                delta.events.push(self.failed(&why, None, progress.step));
                return self.commit(delta);
            }
        }
        delta.events.push(Event::GraphStarted(object(fields)));
        self.commit(delta)
    }

    /// Continues the step that has begun: all its open calls are back.
    fn go_on(&self, current: &GraphStep) -> Step {
        let Self { fold, live, rules, graph, progress, .. } = *self;
        if let Some(pause) = current.not_before.and_then(|time| until(live.now, time)) {
            if ending::is_out_of_time(fold, live, rules) {
                return super::suspend(fold, live, rules, ending::out_of_time(fold, live, rules));
            }
            return Step::Pause(pause);
        }
        let Some(node) = progress.node.as_deref().and_then(|name| graph.definition.node(name)) else {
            return self.lost_node();
        };
        // Hooks decide about an error before it is a result.
        if let Some(error) = self.error_of(node, current)
            && rules.hooks.at(HookEvent::Error).next().is_some()
        {
            let occasion = Occasion::new(fold, HookEvent::Error, format!("{}.{}", progress.step, current.attempt));
            let more = || {
                json!({
                    "error": {"message": error}, "attempt": current.attempt, "node": node.name, "step": progress.step,
                    "graph_id": graph.id,
                })
            };
            match hooks::react(fold, live, rules, &occasion, more, None) {
                ControlFlow::Break(step) => return step,
                ControlFlow::Continue(decided) => match decided.as_ref().map(|decided| &decided.control) {
                    Some(Control::Retry) if current.attempt < step::ATTEMPTS_MAX => {
                        return self.commit(self.again(node, current, &error, 0));
                    }
                    Some(Control::Continue | Control::Skip) => {
                        return self.commit(self.completed(Delta::default(), node, current, OnError::Continue));
                    }
                    Some(Control::Retry) | None => {}
                    Some(_) => {
                        if let Some(step) = hooks::end_as(fold, live, rules, decided) {
                            return step;
                        }
                    }
                },
            }
        }
        let delta = self.advance(Delta::default());
        if delta.events.is_empty() {
            // The record says that a call is open which is not: versions of the log were lost.
            let why = "the record of its step is incomplete";
            let delta = Delta { events: vec![self.failed(why, Some(&node.name), progress.step)], ..Delta::default() };
            return self.commit(delta);
        }
        self.commit(delta)
    }

    /// The node of the run is not in the definition: a change was accepted that removed it.
    fn lost_node(&self) -> Step {
        let name = self.progress.node.clone().unwrap_or_default();
        let why = format!("node `{name}` is not in the graph");
        let delta = Delta { events: vec![self.failed(&why, Some(&name), self.progress.step)], ..Delta::default() };
        self.commit(delta)
    }

    /// Between two steps: hooks, limits, a successor; then the next step.
    fn between(&self) -> Step {
        let Self { fold, live, rules, graph, progress, .. } = *self;
        // In a successor, nothing has begun or ended yet.
        let occasion = if progress.completed > 0 {
            Some((HookEvent::AfterStep, progress.step.to_string()))
        } else {
            fold.manifest().continuation_of.is_none().then(|| (HookEvent::GraphStarted, "graph".to_owned()))
        };
        if let Some((event, occurrence)) = occasion {
            let occasion = Occasion::new(fold, event, occurrence);
            let more =
                || json!({"graph_id": graph.id, "node": progress.node, "step": progress.step, "state": fold.state()});
            match hooks::react(fold, live, rules, &occasion, more, None) {
                ControlFlow::Break(step) => return step,
                ControlFlow::Continue(decided) => {
                    if let Some(end) = hooks::end_as(fold, live, rules, decided) {
                        return end;
                    }
                }
            }
        }
        if ending::is_out_of_time(fold, live, rules) {
            return super::suspend(fold, live, rules, ending::out_of_time(fold, live, rules));
        }
        if progress.step >= graph.definition.max_steps {
            return self.max_steps();
        }
        if progress.completed >= graph.definition.segment_steps {
            return self.next_segment();
        }
        self.commit(self.next_step(Delta::default()))
    }

    /// Fails the graph after its last step, once the hooks at the limit have run.
    fn max_steps(&self) -> Step {
        let Self { fold, live, rules, graph, progress, .. } = *self;
        let most = graph.definition.max_steps;
        let occasion = Occasion::new(fold, HookEvent::Limit, format!("max_steps.{}", progress.step));
        let more = || json!({"limit_code": MAX_STEPS, "current_value": progress.step, "current_max": most});
        match hooks::react(fold, live, rules, &occasion, more, None) {
            ControlFlow::Break(step) => return step,
            ControlFlow::Continue(decided) => {
                if let Some(end) = hooks::end_as(fold, live, rules, decided) {
                    return end;
                }
            }
        }
        let why = format!("it has made {most} steps, the most of this graph (`max_steps`)");
        let delta =
            Delta { events: vec![self.failed(&why, progress.node.as_deref(), progress.step)], ..Delta::default() };
        self.commit(delta)
    }

    /// Continues in a successor: this log is long enough.
    fn next_segment(&self) -> Step {
        let Self { fold, live, rules, .. } = *self;
        let position = fold.manifest().chain_position.saturating_add(1);
        let most = rules.continuation.chain_max;
        if position >= most {
            let suspended = Suspended {
                current: Some(position.into()),
                maximum: Some(most.into()),
                ..Suspended::because(SuspendReason::Error, "chain_too_deep")
            };
            return super::suspend(fold, live, rules, suspended);
        }
        let inputs = Box::new(fold.manifest().inputs.clone());
        let with = With::Handoff { reason: HandoffReason::SegmentFull, room: 0, inputs };
        ending::hand_off(fold, live, rules, None, with)
    }

    /// Ends the run whose graph has ended, after the hooks.
    fn finish(&self, end: &GraphEnd) -> Step {
        let Self { fold, live, rules, graph, progress, .. } = *self;
        let occasion = Occasion::new(fold, HookEvent::GraphCompleted, "graph".to_owned());
        let more = || {
            json!({
                "graph_id": graph.id, "status": end.status, "error": end.error, "output": end.output,
                "step": progress.step, "state": fold.state(),
            })
        };
        let reaction = if end.status == "cancelled" {
            ControlFlow::Continue(None)
        } else {
            hooks::react(fold, live, rules, &occasion, more, None)
        };
        match reaction {
            ControlFlow::Break(step) => step,
            ControlFlow::Continue(_) => ending::end(fold, live, rules, EndReason::Graph(end.clone())),
        }
    }

    /// The event of a graph that failed.
    fn failed(&self, why: &str, node: Option<&str>, steps: u64) -> Event {
        Event::GraphError(object(json!({
            "error": why, "node": node, "steps": steps, "elapsed_s": elapsed(self.progress.began_at, self.live.now),
        })))
    }
}

/// The code of a graph that made all its steps.
const MAX_STEPS: &str = "max_steps_exceeded";

/// Adds the end of a graph's run to a delta; returns the record of the run.
pub(super) fn record(delta: &mut Delta, live: &Live, end: GraphEnd) -> RunMeta {
    let GraphEnd { status, error, output, .. } = end;
    let done = |code: &str| live.meta.clone().finished(code);
    if let Some(outputs) = output.filter(|output| !output.is_null()) {
        let changed = ManifestChanged { outputs: Some(outputs), ..ManifestChanged::default() };
        delta.events.push(Event::ManifestChanged(changed));
    }
    match (status.as_str(), error) {
        ("completed", _) => done("completed"),
        ("completed_with_errors", why) => RunMeta {
            outcome: Some(Status::CompletedWithErrors),
            termination_detail: why,
            ..done("completed_with_errors")
        },
        ("cancelled", _) => done("cancelled"),
        (_, why) => {
            let why = why.unwrap_or_default();
            let failure = Some(Failure { class: FailureClass::Graph, why: why.clone() });
            RunMeta { failure, outcome: Some(Status::Error), termination_detail: Some(why), ..done("graph_failed") }
        }
    }
}

/// The event of a graph whose run ends for good although the graph has not ended: it was stopped, or the run failed.
pub(super) fn ended_otherwise(fold: &Fold, live: &Live, status: Status, why: Option<&str>) -> Option<Event> {
    let progress = fold.thread().graph.as_deref().filter(|progress| progress.ended.is_none())?;
    let mut fields = object(json!({
        "node": progress.node, "steps": progress.step, "elapsed_s": elapsed(progress.began_at, live.now),
    }));
    match status {
        Status::Cancelled | Status::Killed => {
            fields.insert("reason".to_owned(), json!(status));
            Some(Event::GraphCancelled(fields))
        }
        Status::Error => {
            fields.insert("error".to_owned(), json!(why));
            Some(Event::GraphError(fields))
        }
        Status::Completed | Status::CompletedWithErrors => {
            fields.insert("status".to_owned(), json!(status));
            Some(Event::GraphCompleted(fields))
        }
        _ => None,
    }
}

/// How long until a time, if it is not over.
fn until(now: Timestamp, time: Timestamp) -> Option<Duration> {
    let left = time.as_micros().saturating_sub(now.as_micros());
    u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_micros)
}

/// The seconds between two times, with three digits.
fn elapsed(from: Timestamp, to: Timestamp) -> Value {
    let millis = to.as_micros().saturating_sub(from.as_micros()).max(0) / 1000;
    json!(millis as f64 / 1000.0)
}

fn set(path: Path, value: Value) -> Patch {
    Patch::new(vec![Op::Set { path, value }]).from_source(PATCH_SOURCE)
}

fn object(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    }
}

/// Whether a node makes calls.
fn has_calls(node: &Node) -> bool {
    use selvedge_items::graph::Awaited;
    match &node.kind {
        NodeKind::Action { .. }
        | NodeKind::Foreach { .. }
        | NodeKind::Approval { .. }
        | NodeKind::Wait(Awaited::Threads { .. }) => true,
        NodeKind::Gate | NodeKind::Return { .. } | NodeKind::Wait(Awaited::Until(_) | Awaited::Seconds(_)) => false,
    }
}
