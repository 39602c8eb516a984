//! How a run begins: its input, the verdict on its request, and the cleanup of state that earlier runs left.

use std::borrow::Cow;

use selvedge_model::{Event, Message, Reason, Role, Verdict};

use crate::conversation::OpenCall;
use crate::decide::calls::{self, CallPlan};
use crate::decide::results::{self, CallResult};
use crate::decide::{Commit, Live, Rules, Step, With};
use crate::fold::Fold;
use crate::held::Delta;
use crate::start::{Beginning, Start};

/// Commits the beginning of a run.
pub(super) fn begin(fold: &Fold, live: &Live, rules: &Rules, Beginning { start, raised }: &Beginning) -> Step {
    let Start { input, request } = start;
    let mut delta = Delta::default();
    delta.events.extend(raised.clone().map(Event::ManifestChanged));
    let is_new = |message: &&Message| !message.id.as_ref().is_some_and(|id| fold.conversation.knows(id));
    let messages: Vec<Message> = input.messages.iter().filter(is_new).cloned().collect();
    // To a graph, a message is data; its approvals wait for their decisions.
    if rules.graph.is_none() && messages.iter().any(|message| message.role == Role::User) {
        cancel_pending_approvals(&mut delta, fold, live, rules);
    }
    let state = input.state.as_ref().unwrap_or(fold.state());
    delta.messages.extend(messages);
    delta.patches.extend(rules.scopes.run_cleanup(state));
    delta.state.clone_from(&input.state);
    if let Some(asked) = request {
        asked.clone().answer(&mut delta, Verdict::Applied, None);
    }
    let meta = Some(live.meta.clone());
    let with = With::Funds { raise: input.raise.clone() };
    Commit { meta, with, ..Commit::of(live, Reason::UserMessage, delta) }.step()
}

/// Answers the calls that still wait for an approval: a message came instead.
fn cancel_pending_approvals(delta: &mut Delta, fold: &Fold, live: &Live, rules: &Rules) {
    let mut state = Cow::Borrowed(fold.state());
    let is_awaited = |call: &&OpenCall| {
        let known = fold.call(&call.id);
        let is_asked = known.is_some_and(|known| known.ask.is_some() && known.intent.is_none());
        is_asked && matches!(calls::plan(fold, live, rules, call), CallPlan::AwaitApproval(_))
    };
    for open in fold.conversation.open().iter().filter(is_awaited) {
        let back = CallResult::error("not executed: a new message came before this call was approved");
        results::add(delta, &mut state, &rules.scopes, open, back);
    }
}
