//! Whether a request asks for thinking, and with how many tokens.

use std::sync::Arc;

use selvedge_model::message::Block;
use selvedge_model::{Message, Role};

use crate::wire::Dialect;

/// The fewest tokens that the API accepts.
const BUDGET_MIN: u64 = 1024;

/// The thinking of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// Switched off.
    Off,
    /// With at most this many tokens.
    On(u64),
}

impl Thinking {
    /// The thinking of a request with this conversation. Notes say where it differs from the configuration.
    pub(super) fn of(dialect: &Dialect, max_tokens: u64, messages: &[Arc<Message>], notes: &mut Vec<String>) -> Self {
        let Some(wanted) = dialect.thinking_tokens.filter(|tokens| *tokens > 0) else { return Self::Off };
        if lacks_thinking(messages, &dialect.provider) {
            notes.push(
                "thinking is off for this request: a thinking block of the open tool turn can't be sent back unchanged"
                    .to_owned(),
            );
            return Self::Off;
        }
        let wanted = wanted.max(BUDGET_MIN);
        if wanted < max_tokens {
            return Self::On(wanted);
        }
        // Half of the answer is left for what comes after the thoughts.
        let budget = max_tokens / 2;
        if budget < BUDGET_MIN {
            notes.push(format!(
                "thinking is off for this request: an answer of {max_tokens} tokens leaves no room for it"
            ));
            return Self::Off;
        }
        notes.push(format!("thinking is limited to {budget} tokens: the answer is limited to {max_tokens}"));
        Self::On(budget)
    }

    pub(super) fn is_on(self) -> bool {
        self != Self::Off
    }

    pub(super) fn budget(self) -> Option<u64> {
        match self {
            Self::Off => None,
            Self::On(budget) => Some(budget),
        }
    }
}

/// Whether a thinking block is not sent back to this provider: it has no signature, or another provider's.
pub(super) fn is_dropped(block: &Block, provider: &str) -> bool {
    match block {
        Block::Thinking { signature, provider: signer, .. } => {
            signature.is_none() || signer.as_deref() != Some(provider)
        }
        _ => false,
    }
}

/// Whether the conversation ends within a tool turn whose thinking can't be sent back whole. A tool turn begins with the first answer
/// after a message that is not a result, and the API wants it to begin with its thinking.
fn lacks_thinking(messages: &[Arc<Message>], provider: &str) -> bool {
    let has = |message: &Message, is_kind: fn(&Block) -> bool| message.content.iter().any(is_kind);
    let mut turn: Vec<&Message> = Vec::new();
    let mut is_within = false;
    for message in messages.iter().rev().filter(|message| !message.content.is_empty()) {
        match message.role {
            Role::System => {}
            Role::Assistant if is_within => {
                turn.push(message);
                is_within = false;
            }
            // Neighbours are one message for the API.
            Role::Assistant if !turn.is_empty() => turn.push(message),
            Role::Assistant => return false,
            Role::Tool => is_within = true,
            // A user may speak right after the results; before an answer that is not one to results, the turn has begun.
            Role::User if turn.is_empty() => {}
            Role::User => break,
        }
    }
    let Some(first) = turn.last() else { return false };
    if !turn.iter().any(|answer| has(answer, |block| matches!(block, Block::ToolCall { .. }))) {
        return false;
    }
    let begins =
        first.content.iter().find(|block| !matches!(block, Block::Text { text, .. } if text.trim().is_empty()));
    let begins_with_thinking = begins.is_some_and(|block| match block {
        Block::Thinking { .. } => !is_dropped(block, provider),
        Block::Opaque { provider: other, data } => other == provider && data["type"] == "redacted_thinking",
        _ => false,
    });
    let is_incomplete = turn.iter().any(|answer| answer.content.iter().any(|block| is_dropped(block, provider)));
    !begins_with_thinking || is_incomplete
}
