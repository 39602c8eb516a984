//! One answer of the model: asked, drafted, and asked again when it failed.

use std::collections::HashSet;

use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::message::Block;
use selvedge_model::{Cancel, Draft, ModelError, Money, Prompt, ToolSpec};

use crate::assignment::Assignment;
use crate::decide::asking::{self, Again};
use crate::error::Result;
use crate::held::{Held, Of};
use crate::ledger::{Allowed, Bid, Refused, Settled, Spent};
use crate::told::Told;

/// What came of asking the model.
#[derive(Debug)]
pub(crate) enum Asked {
    /// It answered.
    Answered(Answer),
    /// It was told to stop; what it had said by then.
    Stopped(Vec<Block>),
    /// It failed, and asking again does not help.
    Failed(ModelError),
    /// It failed, and was asked often enough.
    Exhausted(ModelError),
    /// It was not asked, or not asked again: the account does not hold what that may cost.
    Refused(Refused),
}

/// How the model is asked.
pub(crate) struct Asking<'a> {
    pub(crate) work: &'a Assignment,
    pub(crate) tools: &'a [ToolSpec],
    pub(crate) session: Option<&'a str>,
    pub(crate) cancel: &'a Cancel,
    /// What must be reserved before each attempt; nothing for a model that costs nothing.
    pub(crate) bid: Option<Bid>,
    /// What the commits of reservations belong to.
    pub(crate) of: Of,
}

/// What a turn used, failed attempts included.
#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) usage: Usage,
    /// How often the model was asked.
    pub(crate) attempts: u32,
    /// What the last attempt was sent, as its provider counts.
    pub(crate) last_input_tokens: u64,
    /// Whether the provider did not say what its answer used.
    pub(crate) is_uncounted: bool,
    /// What it was all settled at.
    pub(crate) spend: Money,
    /// Of that, what nobody knows.
    pub(crate) spend_unknown: Money,
}

impl Used {
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

/// Asks the model for the next answer.
///
/// What an attempt costs is reserved, durably, before it is made, and what became of it is in the delta on return.
pub(crate) fn ask(held: &mut Held<'_>, asking: &Asking<'_>, tell: &mut dyn FnMut(Told<'_>)) -> Result<(Asked, Used)> {
    let Asking { work, tools, cancel, bid, of, .. } = asking;
    let mut session = asking.session;
    let mut used = Used::default();
    loop {
        let output_tokens_max = match bid {
            Some(bid) => match held.reserve(*bid, of, tell)? {
                Allowed::Up(tokens) => Some(tokens),
                Allowed::Refused(refused) => return Ok((Asked::Refused(refused), used)),
            },
            None => None,
        };
        if used.attempts == 0 {
            held.keep_before_turn(tell);
        }
        used.attempts += 1;
        let attempt = used.attempts;
        let prompt = Prompt {
            model: &work.model_name,
            system: &work.system,
            messages: held.fold.conversation.messages(),
            tools,
            output_tokens_max,
            session,
        };
        let mut drafted = false;
        let mut draft = |draft: Draft| {
            drafted = true;
            tell(Told::Draft(&draft));
        };
        let error = match work.model.answer(&prompt, &mut draft, cancel) {
            Ok(answer) => {
                let counted = answer.usage.filter(|usage| !usage.estimated);
                used.add(&answer.usage.unwrap_or_default());
                if counted.is_none() {
                    (used.is_uncounted, used.last_input_tokens) = (true, 0);
                }
                // A provider that does not count has not worked for nothing.
                used.pay(held.settle(counted.map_or(Spent::Unknown, Spent::Counted))?);
                return Ok((Asked::Answered(answer), used));
            }
            Err(error) => error,
        };
        used.pay(held.settle(Spent::by(&error))?);
        // What a model had said when it was told to stop is kept.
        if drafted && !matches!(error, ModelError::Stopped { .. }) {
            tell(Told::Draft(&Draft::Void));
        }
        if let ModelError::Stopped { usage, .. } | ModelError::Cut { usage, .. } = &error {
            used.add(usage);
        }
        if let ModelError::Stopped { partial, .. } = error {
            return Ok((Asked::Stopped(partial), used));
        }
        let wait = match asking::again(work, &error, attempt, session.is_some()) {
            Again::WithoutSession => {
                session = None;
                continue;
            }
            Again::After(wait) => wait,
            Again::Exhausted => return Ok((Asked::Exhausted(error), used)),
            Again::Never => return Ok((Asked::Failed(error), used)),
        };
        tell(Told::Retrying { why: &error.to_string() });
        if cancel.wait(wait).is_some() {
            return Ok((Asked::Stopped(Vec::new()), used));
        }
    }
}

/// The content of an answer as it is recorded: every call has an id that no call of the thread had before. Providers use ids
/// again, and an id names a call for ever here.
pub(crate) fn with_own_ids(answer: Answer, held: &Held<'_>) -> (Vec<Block>, End) {
    let (conversation, redactor) = (&held.fold.conversation, &held.engine.redactor);
    let (mut here, mut made_up) = (HashSet::new(), 0);
    let mut content = answer.content;
    for block in &mut content {
        let Block::ToolCall { id, .. } = block else { continue };
        while conversation.knows_call(id) || redactor.text(id.as_str()).is_some() || !here.insert(id.clone()) {
            // A name made of letters, digits and an underscore is an id.
            let Some(fresh) = held.next_call(made_up) else { break };
            made_up += 1;
            *id = fresh;
        }
    }
    (content, answer.end)
}
