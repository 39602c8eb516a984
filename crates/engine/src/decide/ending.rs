//! When a run ends, and why.

use selvedge_model::answer::End;
use selvedge_model::event::{Fields, ManifestChanged, SuspendReason, Suspended};
use selvedge_model::fold::GraphEnd;
use selvedge_model::limits::{self, Cost, Limits, Reached};
use selvedge_model::message::Marker;
use selvedge_model::run::{Failure, FailureClass};
use selvedge_model::{Classify, Event, Message, ModelError, Reason, RunMeta, RunStatus, Status, Stop, ToolKind};
use serde_json::{Value, json};

use crate::decide::hooks::{self, Decided};
use crate::decide::money::Shortage;
use crate::decide::{Commit, Live, Rules, Step, With, asking, calls, context, graph, results};
use crate::fold::Fold;
use crate::held::Delta;
use crate::outcome;
use crate::run_config::RunConfig;
use crate::stop_policy::{self, PolicyMet};
use crate::thread_state::shortened;

/// The most characters of the last answer that the record of a run repeats; the whole answer is in its message.
const RECORDED_RESULT_CHARS_MAX: usize = 500;

/// Why a run ends.
#[derive(Clone, Debug)]
pub(crate) enum EndReason {
    Completed,
    Unreturned,
    Returned(Value),
    Reached(PolicyMet),
    Suspended(Suspended),
    Short(Shortage),
    Stopped(Stop),
    /// The model failed, and no attempts are left: the thread is suspended, and a resume tries again.
    Exhausted(Failed),
    Failed(Failed),
    /// Hooks decided so.
    Decided(Decided),
    /// The graph ended, and its end is on record.
    Graph(GraphEnd),
}

/// A failure that ends a run.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) code: &'static str,
    pub(crate) why: String,
    pub(crate) failure: Failure,
}

impl Failed {
    pub(crate) fn of_model(error: &ModelError) -> Self {
        let why = error.to_string();
        let unknown = || Failure { class: FailureClass::ModelFailed, why: why.clone() };
        Self { code: error.code(), failure: error.failure().unwrap_or_else(unknown), why }
    }
}

/// Why the run ends after its last step, if it does.
pub(super) fn ended(fold: &Fold, live: &Live, rules: &RunConfig) -> Option<EndReason> {
    if let Some(failed) = &live.failed {
        return Some(EndReason::Failed(failed.clone()));
    }
    if !fold.conversation.open().is_empty() {
        return None;
    }
    if let Some(content) = results::given(fold, rules, ToolKind::Return) {
        return Some(EndReason::Returned(content.get("outputs").unwrap_or(content).clone()));
    }
    Some(match live.answered? {
        End::Refused => EndReason::Failed(Failed {
            code: "model_declined",
            why: "the model declined to answer".to_owned(),
            failure: Failure { class: FailureClass::ModelDeclined, why: String::new() },
        }),
        End::Length => EndReason::Failed(Failed {
            code: "output_limit_reached",
            why: "the answer reached the token limit".to_owned(),
            failure: Failure { class: FailureClass::OutputLimitReached, why: String::new() },
        }),
        _ => completed(fold, rules),
    })
}

/// How a run ends that did all its work: without the outputs that it must return, it is incomplete.
pub(super) fn completed(fold: &Fold, rules: &RunConfig) -> EndReason {
    if rules.owes_outputs() && fold.manifest().outputs.is_none() { EndReason::Unreturned } else { EndReason::Completed }
}

/// Why the run ends now, if a stop was requested.
pub(super) fn stopped(fold: &Fold, live: &Live, rules: &RunConfig) -> Option<EndReason> {
    match live.stop? {
        Stop::OutOfTime => Some(EndReason::Suspended(out_of_time(fold, live, rules))),
        stop => Some(EndReason::Stopped(stop)),
    }
}

/// The stop policy that ends the run here, if one does.
pub(super) fn met(fold: &Fold, live: &Live, rules: &RunConfig) -> Option<PolicyMet> {
    let messages = fold.conversation.messages().get(live.judged..).unwrap_or_default();
    stop_policy::met(&rules.stops, &stop_policy::turns(&rules.stops, messages), live.text.as_deref())
}

/// The effective limits: the thread's own, and those of the run configuration where it has none.
pub(crate) fn limits(fold: &Fold, rules: &RunConfig) -> Limits {
    fold.manifest().limits.as_ref().map_or_else(|| rules.limits.clone(), |own| own.over(&rules.limits))
}

/// The limit that the next turn would exceed. A money limit does not prevent a turn of a free model.
pub(super) fn limit(fold: &Fold, live: &Live, rules: &RunConfig) -> Option<Suspended> {
    let limits = limits(fold, rules);
    let spend = limits.spend.filter(|_| rules.is_paid());
    Limits { spend, ..limits }.reached(&fold.meter().used(live.running_ms)).map(over)
}

/// Whether the running time is over.
pub(super) fn is_out_of_time(fold: &Fold, live: &Live, rules: &RunConfig) -> bool {
    let most = Limits { duration_seconds: limits(fold, rules).duration_seconds, ..Limits::default() };
    most.reached(&fold.meter().used(live.running_ms)).is_some()
}

/// The thread is suspended because its running time is over.
pub(super) fn out_of_time(fold: &Fold, live: &Live, rules: &RunConfig) -> Suspended {
    let most = limits(fold, rules).duration_seconds.unwrap_or_default();
    let used = fold.meter().used(live.running_ms).cost.duration_ms / 1000;
    over(Reached { code: limits::DURATION_EXCEEDED, current: used.max(most).into(), maximum: most.into() })
}

/// The thread is suspended because it reached a limit.
pub(crate) fn over(reached: Reached) -> Suspended {
    let current = Some(reached.current);
    let maximum = Some(reached.maximum);
    Suspended { current, maximum, ..Suspended::because(SuspendReason::Limit, reached.code) }
}

/// Ends the run: always, even if nothing else is recorded. Results that are not on record, because a commit failed, are recorded with the end.
pub(super) fn end(fold: &Fold, live: &Live, rules: &Rules, why: EndReason) -> Step {
    let mut delta = unrecorded(fold, live, rules);
    let is_stopped = matches!(why, EndReason::Stopped(_));
    let ends_in_text = matches!(why, EndReason::Completed);
    let mut meta = record(&mut delta, fold, live, rules, why);
    delta.events.extend(graph::ended_otherwise(fold, live, meta.thread_status(), meta.termination_detail.as_deref()));
    if meta.thread_status() == Status::Completed {
        keep_session(&mut delta, fold, rules);
        meta.result = ends_in_text.then(|| answer(fold, live)).flatten();
    }
    finish(live, delta, meta, With::End { is_stopped })
}

/// The beginning of the last answer: of this run, or of one that was lost between its answer and its end.
fn answer(fold: &Fold, live: &Live) -> Option<String> {
    let recorded = || outcome::last_text(fold.conversation.messages().iter().map(|message| &**message));
    live.text.clone().or_else(recorded).map(|text| shortened(text, RECORDED_RESULT_CHARS_MAX))
}

/// Keeps the provider's session in the manifest. A run that failed changes nothing there: what the next run is offered is in the usage of
/// the last answer.
fn keep_session(delta: &mut Delta, fold: &Fold, rules: &Rules) {
    let last = delta.events.iter().rev().find_map(|event| match event {
        Event::Usage(usage) => usage.session.clone(),
        _ => None,
    });
    let session_id = last.or_else(|| fold.session_of(&rules.model_name).map(str::to_owned));
    if session_id.is_some() && session_id != fold.manifest().session_id {
        delta.events.push(Event::ManifestChanged(ManifestChanged { session_id, ..ManifestChanged::default() }));
    }
}

/// Ends the run with a handoff to a successor. `reached` is recorded with it, unless it is on record.
pub(super) fn hand_off(fold: &Fold, live: &Live, rules: &Rules, reached: Option<Event>, with: With) -> Step {
    let mut delta = unrecorded(fold, live, rules);
    delta.events.extend(reached);
    let meta = RunMeta { outcome: Some(Status::Continued), ..live.meta.clone().finished("continued") };
    finish(live, delta, meta, with)
}

/// The results of this run that are not on record.
fn unrecorded(fold: &Fold, live: &Live, rules: &Rules) -> Delta {
    let mut delta = Delta::default();
    calls::add_results(&mut delta, fold, live, rules);
    if let Some(turn) = &live.turn {
        asking::add(&mut delta, fold, live, rules, turn);
    }
    delta
}

fn finish(live: &Live, mut delta: Delta, mut meta: RunMeta, with: With) -> Step {
    let mut cost = Cost { turns: 0, ..live.used.clone() };
    for event in &delta.events {
        if let Event::Usage(usage) = event {
            cost.add(&usage.cost);
        }
    }
    cost.turns = live.turns;
    cost.duration_ms = live.running_ms;
    meta.input_tokens = cost.input_tokens;
    meta.output_tokens = cost.output_tokens;
    meta.cost = Some(cost);
    let step = live.turn_number().and_then(|turn| u32::try_from(turn).ok());
    for message in &mut delta.messages {
        message.step = message.step.or(step);
    }
    let is_overcharged = live.turn.as_ref().is_some_and(asking::Turn::is_overcharged);
    let meta = Some(meta);
    Commit { turn: None, meta, is_overcharged, with, ..Commit::of(live, Reason::RunFinished, delta) }.step()
}

/// Adds the events of the run's end to a delta; returns the record of the run.
fn record(delta: &mut Delta, fold: &Fold, live: &Live, rules: &Rules, why: EndReason) -> RunMeta {
    let done = |code: &str| live.meta.clone().finished(code);
    let waits = |delta: &mut Delta, code: &str, suspended: Suspended| {
        delta.events.push(Event::Suspended(suspended));
        RunMeta { status: RunStatus::Waiting, ..live.meta.clone().finished(code) }
    };
    match why {
        EndReason::Completed => done("completed"),
        EndReason::Unreturned => RunMeta {
            outcome: Some(Status::CompletedWithErrors),
            termination_detail: Some("it ended without returning the required outputs".to_owned()),
            ..done("outputs_missing")
        },
        EndReason::Returned(outputs) => {
            let changed = ManifestChanged { outputs: Some(outputs), ..ManifestChanged::default() };
            delta.events.push(Event::ManifestChanged(changed));
            done("completed")
        }
        EndReason::Reached(PolicyMet { code, detail, is_trouble }) => {
            let meta = if is_trouble {
                waits(delta, code, Suspended::because(SuspendReason::Error, code))
            } else {
                done(code)
            };
            RunMeta { termination_detail: Some(detail), ..meta }
        }
        EndReason::Short(Shortage { suspended, detail }) => {
            let meta = waits(delta, limits::SPEND_EXCEEDED, suspended);
            RunMeta { termination_detail: Some(detail), ..meta }
        }
        EndReason::Suspended(suspended) => {
            let code = suspended.code.clone().unwrap_or_else(|| "suspended".to_owned());
            waits(delta, &code, suspended)
        }
        EndReason::Stopped(stop) => {
            results::interrupt(
                delta,
                fold,
                &rules.scopes,
                "interrupted: the run was stopped before this call was executed",
            );
            delta.messages.push(Message::marker(Marker::Stopped, "(stopped by user)"));
            done(if stop == Stop::Killed { "killed" } else { "cancelled" })
        }
        EndReason::Exhausted(Failed { code, why, failure }) => {
            let meta = waits(delta, code, Suspended::because(SuspendReason::Error, code));
            RunMeta { failure: Some(failure), termination_detail: Some(why), ..meta }
        }
        EndReason::Decided(decided) => hooks::record(delta, fold, live, rules, &decided),
        EndReason::Graph(end) => graph::record(delta, live, end),
        EndReason::Failed(Failed { code, why, failure }) => {
            results::interrupt(delta, fold, &rules.scopes, "interrupted: the run failed before this call was executed");
            delta.messages.push(Message::marker(Marker::Failed, format!("(error: {why})")));
            let failure = Some(failure);
            let outcome = Some(Status::Error);
            RunMeta { failure, outcome, termination_detail: Some(why), ..done(code) }
        }
    }
}

/// How full the context is.
pub(super) fn limit_reached(fold: &Fold, rules: &Rules) -> Fields {
    let tokens_used = fold.gauge().tokens(context::prompt_size(fold, rules));
    let window = context::window(rules);
    let usage_ratio = tokens_used as f64 / window.max(1) as f64;
    match json!({"tokens_used": tokens_used, "tokens_limit": window, "usage_ratio": usage_ratio}) {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    }
}
