//! Whether the next prompt fits, and what happens when it does not.

use selvedge_model::ToolKind;
use selvedge_model::event::{HandoffReason, SuspendReason, Suspended};

use crate::continuation::successor_size;
use crate::decide::ending::{self, EndReason};
use crate::decide::{Live, Rules, Step, hooks, results};
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
    let window = window(rules);
    let reason = if fold.gauge().tokens(prompt_size(fold, rules)) >= threshold(rules, window) {
        HandoffReason::ContextFull
    } else if results::given(fold, rules, ToolKind::Handoff).is_some() {
        HandoffReason::Requested
    } else {
        return None;
    };
    Some(hand_off(fold, live, rules, reason, window))
}

/// The step if the provider refused the prompt because it is too long, whatever was estimated: a successor, unless that would not help.
///
/// The prompt's own size counts as the window, so that a successor starts with at most half of it, and the next one with half of that.
pub(super) fn too_long(fold: &Fold, live: &Live, rules: &Rules) -> Step {
    let window = window(rules).min(fold.gauge().tokens(prompt_size(fold, rules)));
    hand_off(fold, live, rules, HandoffReason::ContextFull, window)
}

/// How many tokens of a window a prompt may have.
fn threshold(rules: &Rules, window: u64) -> u64 {
    (rules.continuation.threshold * window as f64) as u64
}

/// Hands off to a successor that fits into this window; if there is none, the thread is suspended.
fn hand_off(fold: &Fold, live: &Live, rules: &Rules, reason: HandoffReason, window: u64) -> Step {
    let plan = &rules.continuation;
    let gauge = fold.gauge();
    let most = threshold(rules, window);
    let chain = fold.manifest().chain_position.saturating_add(1);
    if chain >= plan.chain_max {
        let suspended = trouble("chain_too_deep", chain, plan.chain_max);
        return ending::end(fold, live, rules, EndReason::Suspended(suspended));
    }
    let room = gauge.bytes(plan.ceiling(window));
    // Before the first turn, all of its context came from hooks that fire again in each successor.
    let context = if fold.manifest().cost.turns == 0 { fold.conversation.context_size() } else { 0 };
    let begins_with = gauge.tokens(rules.prompt_base + context + successor_size(fold, rules, room));
    if begins_with < most {
        return hooks::handoff(fold, live, rules, reason, room);
    }
    let suspended = trouble("context_too_small", begins_with, most);
    ending::end(fold, live, rules, EndReason::Suspended(suspended))
}

/// The thread is suspended because a successor would not help either.
fn trouble(code: &str, current: u64, maximum: u64) -> Suspended {
    let current = Some(current.into());
    let maximum = Some(maximum.into());
    Suspended { current, maximum, ..Suspended::because(SuspendReason::Error, code) }
}
