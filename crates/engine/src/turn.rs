//! One turn of the model: how often it was asked, and what that used.

use std::collections::HashSet;

use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::message::Block;
use selvedge_model::{ModelError, Money, Timestamp};

use crate::held::Held;
use crate::ledger::{Bid, Settled};

/// A turn whose answer is being asked for.
pub(crate) struct Turn {
    /// When it was first asked for.
    pub(crate) asked_at: Timestamp,
    /// How long the prompt is.
    pub(crate) prompt_bytes: usize,
    /// What must be reserved before each attempt; nothing for a model that costs nothing.
    pub(crate) bid: Option<Bid>,
    /// The session of an outside engine that is offered.
    pub(crate) session: Option<String>,
    /// How many tokens the answer may have, as far as they are paid for.
    pub(crate) output_tokens_max: Option<u64>,
    /// How often the model was asked.
    pub(crate) attempts: u32,
    /// What came of the last attempt and was not taken in yet.
    pub(crate) reply: Option<Result<Answer, ModelError>>,
    /// What all attempts used.
    pub(crate) used: Used,
}

impl Turn {
    pub(crate) fn new(asked_at: Timestamp, prompt_bytes: usize, bid: Option<Bid>, session: Option<String>) -> Self {
        let used = Used::default();
        Self { asked_at, prompt_bytes, bid, session, output_tokens_max: None, attempts: 0, reply: None, used }
    }
}

/// What a turn used, failed attempts included.
#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) usage: Usage,
    /// What the last attempt was sent, as its provider counts.
    pub(crate) last_input_tokens: u64,
    /// Whether the provider did not say what its answer used.
    pub(crate) is_uncounted: bool,
    /// What it was all settled at.
    pub(crate) spend: Money,
    /// Of that, what is not known.
    pub(crate) spend_unknown: Money,
}

impl Used {
    /// Takes in what an answer used.
    pub(crate) fn answered(&mut self, answer: &Answer, settled: Settled) {
        self.add(&answer.usage.unwrap_or_default());
        if answer.usage.is_none_or(|usage| usage.estimated) {
            (self.is_uncounted, self.last_input_tokens) = (true, 0);
        }
        self.pay(settled);
    }

    /// Takes in what an attempt used that failed.
    pub(crate) fn failed(&mut self, error: &ModelError, settled: Settled) {
        self.pay(settled);
        if let ModelError::Stopped { usage, .. } | ModelError::Cut { usage, .. } = error {
            self.add(usage);
        }
    }

    fn pay(&mut self, settled: Settled) {
        self.spend = self.spend.saturating_add(settled.amount);
        self.spend_unknown = self.spend_unknown.saturating_add(settled.unknown());
    }

    fn add(&mut self, usage: &Usage) {
        self.last_input_tokens = usage.input_tokens;
        self.usage.input_tokens = self.usage.input_tokens.saturating_add(usage.input_tokens);
        self.usage.output_tokens = self.usage.output_tokens.saturating_add(usage.output_tokens);
        self.usage.cache_read_tokens = self.usage.cache_read_tokens.saturating_add(usage.cache_read_tokens);
        self.usage.cache_write_tokens = self.usage.cache_write_tokens.saturating_add(usage.cache_write_tokens);
    }
}

/// The content of an answer as it is recorded: every call has an id that no call of the thread had before. Providers use ids
/// again, and an id names a call for ever here.
pub(crate) fn with_own_ids(answer: Answer, held: &Held) -> (Vec<Block>, End) {
    let (thread, redactor) = (held.fold.thread(), &held.engine.redactor);
    let (mut here, mut made_up) = (HashSet::new(), 0);
    let mut content = answer.content;
    for block in &mut content {
        let Block::ToolCall { id, .. } = block else { continue };
        while thread.knows_call(id) || redactor.text(id.as_str()).is_some() || !here.insert(id.clone()) {
            // A name made of letters, digits and an underscore is an id.
            let Some(fresh) = held.next_call(made_up) else { break };
            made_up += 1;
            *id = fresh;
        }
    }
    (content, answer.end)
}
