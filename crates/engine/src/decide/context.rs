//! Whether the next prompt fits, and what happens when it does not.

use selvedge_model::event::{HandoffReason, SuspendReason, Suspended};

use crate::assignment::Assignment;
use crate::continuation::successor_size;
use crate::decide::ending::Why;
use crate::decide::{Live, Step};
use crate::fold::Fold;

/// How many tokens the context window of the run's model has.
pub(crate) fn window(rules: &Assignment) -> u64 {
    rules.model.context_tokens_max(&rules.model_name).unwrap_or(rules.continuation.window_tokens)
}

/// How many bytes the next prompt has, roughly.
pub(crate) fn prompt_size(fold: &Fold, live: &Live) -> usize {
    live.prompt_base + fold.conversation.size()
}

/// What happens if the context is full or the model asked for a successor: another thread goes on, unless that would not help.
pub(super) fn full(fold: &Fold, live: &Live, rules: &Assignment) -> Option<Step> {
    let (plan, gauge, window) = (&rules.continuation, fold.gauge(), window(rules));
    let most = (plan.threshold * window as f64) as u64;
    let reason = match gauge.tokens(prompt_size(fold, live)) >= most {
        true => HandoffReason::ContextFull,
        false if live.hands_over => HandoffReason::Requested,
        false => return None,
    };
    let chain = fold.manifest().chain_position.saturating_add(1);
    if chain >= plan.chain_max {
        return Some(trouble("chain_too_deep", chain, plan.chain_max));
    }
    let room = gauge.bytes(plan.ceiling(window));
    let begins_with = gauge.tokens(live.prompt_base + successor_size(fold, rules, room));
    Some(match begins_with < most {
        true => Step::HandOver { reason, room },
        false => trouble("context_too_small", begins_with, most),
    })
}

/// The thread waits because it can't go on in another one either.
fn trouble(code: &str, current: u64, maximum: u64) -> Step {
    let (current, maximum) = (Some(current.into()), Some(maximum.into()));
    let suspended = Suspended { current, maximum, ..Suspended::because(SuspendReason::Error, code) };
    Step::End(Why::Suspended(suspended))
}
