//! When a run ends, and why.

use selvedge_model::answer::End;
use selvedge_model::event::{SuspendReason, Suspended};
use selvedge_model::limits::{self, Limits, Reached};
use selvedge_model::run::{Failure, FailureClass};
use selvedge_model::{Classify, ModelError, Stop};
use serde_json::Value;

use crate::assignment::Assignment;
use crate::decide::Live;
use crate::fold::Fold;
use crate::ledger::Refused;
use crate::stops::{self, Met};

/// Why a run ends.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    Completed,
    Unreturned,
    Returned(Value),
    Reached(Met),
    Suspended(Suspended),
    Refused(Refused),
    Stopped(Stop),
    /// The model failed, and was asked often enough: the thread waits, and a resume asks again.
    Exhausted(Failed),
    Failed(Failed),
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

/// Why there is no answer of the model.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// It was told to stop.
    Stopped,
    /// It failed, and asking again does not help.
    Failed(Failed),
    /// It failed, and was asked often enough.
    Exhausted(Failed),
    /// The account does not hold what asking it may cost.
    Refused(Refused),
}

/// Why the run ends with what happened last, if it does.
pub(super) fn ended(fold: &Fold, live: &Live, rules: &Assignment) -> Option<Why> {
    match &live.trouble {
        Some(Trouble::Stopped) => return Some(stopped(fold, live, rules).unwrap_or(Why::Stopped(Stop::Cancelled))),
        Some(Trouble::Failed(failed)) => return Some(Why::Failed(failed.clone())),
        // A thread that is to stop does not wait for anything.
        Some(Trouble::Exhausted(failed)) => {
            return Some(stopped(fold, live, rules).unwrap_or_else(|| Why::Exhausted(failed.clone())));
        }
        Some(Trouble::Refused(refused)) => {
            return Some(stopped(fold, live, rules).unwrap_or_else(|| Why::Refused(refused.clone())));
        }
        None => {}
    }
    if !fold.conversation.open().is_empty() {
        return None;
    }
    if let Some(outputs) = &live.returned {
        return Some(Why::Returned(outputs.clone()));
    }
    Some(match live.answered? {
        End::Refused => Why::Failed(Failed {
            code: "model_refused",
            why: "the model refuses to answer".to_owned(),
            failure: Failure { class: FailureClass::ModelDeclined, why: String::new() },
        }),
        End::Length => Why::Failed(Failed {
            code: "model_length",
            why: "the answer ran into the most tokens it may have".to_owned(),
            failure: Failure { class: FailureClass::ModelLength, why: String::new() },
        }),
        _ => completed(fold, rules),
    })
}

/// A run that owes outputs and gives none has not done what it was told.
pub(super) fn completed(fold: &Fold, rules: &Assignment) -> Why {
    match rules.owes_outputs() && fold.manifest().outputs.is_none() {
        true => Why::Unreturned,
        false => Why::Completed,
    }
}

/// Why the run ends now, if it was told to stop.
pub(super) fn stopped(fold: &Fold, live: &Live, rules: &Assignment) -> Option<Why> {
    match live.stop? {
        Stop::OutOfTime => Some(Why::Suspended(out_of_time(fold, live, rules))),
        stop => Some(Why::Stopped(stop)),
    }
}

/// The policy that stops it here, if one does.
pub(super) fn met(fold: &Fold, live: &Live, rules: &Assignment) -> Option<Met> {
    let messages = fold.conversation.messages().get(live.judged..).unwrap_or_default();
    stops::met(&rules.stops, &stops::rounds(&rules.stops, messages), live.text.as_deref())
}

/// The limits that count: the thread's own, and those it is run with where it has none.
pub(crate) fn limits(fold: &Fold, rules: &Assignment) -> Limits {
    fold.manifest().limits.as_ref().map_or_else(|| rules.limits.clone(), |own| own.over(&rules.limits))
}

/// The ceiling that the next turn would break. No ceiling of money keeps a call from being made that costs none.
pub(super) fn limit(fold: &Fold, live: &Live, rules: &Assignment) -> Option<Suspended> {
    let limits = limits(fold, rules);
    let spend = limits.spend.filter(|_| rules.is_paid());
    Limits { spend, ..limits }.reached(&fold.meter().used(live.running_ms)).map(over)
}

/// Whether the running time is over.
pub(super) fn is_out_of_time(fold: &Fold, live: &Live, rules: &Assignment) -> bool {
    let most = Limits { duration_seconds: limits(fold, rules).duration_seconds, ..Limits::default() };
    most.reached(&fold.meter().used(live.running_ms)).is_some()
}

/// The thread waits because its running time is over.
pub(super) fn out_of_time(fold: &Fold, live: &Live, rules: &Assignment) -> Suspended {
    let most = limits(fold, rules).duration_seconds.unwrap_or_default();
    let used = fold.meter().used(live.running_ms).cost.duration_ms / 1000;
    over(Reached { code: limits::DURATION_EXCEEDED, current: used.max(most).into(), maximum: most.into() })
}

/// A thread that waits because it reached a ceiling.
pub(crate) fn over(reached: Reached) -> Suspended {
    let (current, maximum) = (Some(reached.current), Some(reached.maximum));
    Suspended { current, maximum, ..Suspended::because(SuspendReason::Limit, reached.code) }
}
