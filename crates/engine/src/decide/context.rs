//! Whether the next prompt fits, and what happens when it does not.

use selvedge_model::ToolKind;
use selvedge_model::event::{HandoffReason, SuspendReason, Suspended};

use crate::continuation::successor_size;
use crate::decide::ending::{self, EndReason};
use crate::decide::{Live, Rules, Step, results};
use crate::fold::Fold;

/// The tokens of the context window of the run's model.
pub(crate) fn window(rules: &Rules) -> u64 {
    rules.model.context_tokens_max(&rules.model_name).unwrap_or(rules.continuation.window_tokens)
}

/// Roughly how many bytes the next prompt has.
pub(crate) fn prompt_size(fold: &Fold, rules: &Rules) -> usize {
    rules.prompt_base + fold.conversation.size()
}

/// The step if the context is full or the model asked for a handoff: a successor, unless that would not help.
pub(super) fn full(fold: &Fold, live: &Live, rules: &Rules) -> Option<Step> {
    let plan = &rules.continuation;
    let gauge = fold.gauge();
    let window = window(rules);
    let most = (plan.threshold * window as f64) as u64;
    let reason = if gauge.tokens(prompt_size(fold, rules)) >= most {
        HandoffReason::ContextFull
    } else if results::given(fold, rules, ToolKind::Handoff).is_some() {
        HandoffReason::Requested
    } else {
        return None;
    };
    let chain = fold.manifest().chain_position.saturating_add(1);
    if chain >= plan.chain_max {
        let suspended = trouble("chain_too_deep", chain, plan.chain_max);
        return Some(ending::end(fold, live, rules, EndReason::Suspended(suspended)));
    }
    let room = gauge.bytes(plan.ceiling(window));
    let begins_with = gauge.tokens(rules.prompt_base + successor_size(fold, rules, room));
    if begins_with < most {
        return Some(ending::hand_off(fold, live, rules, reason, room));
    }
    let suspended = trouble("context_too_small", begins_with, most);
    Some(ending::end(fold, live, rules, EndReason::Suspended(suspended)))
}

/// The thread is suspended because a successor would not help either.
fn trouble(code: &str, current: u64, maximum: u64) -> Suspended {
    let current = Some(current.into());
    let maximum = Some(maximum.into());
    Suspended { current, maximum, ..Suspended::because(SuspendReason::Error, code) }
}
