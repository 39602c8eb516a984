//! One answer of the model: asked, drafted, and asked again when it failed.

use std::collections::HashSet;

use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::message::Block;
use selvedge_model::{CallId, Cancel, Classify, Draft, Ids, ModelError, Prompt, ToolSpec};

use crate::assignment::Assignment;
use crate::conversation::Conversation;
use crate::redact::Redactor;
use crate::told::Told;

/// What came of asking the model.
#[derive(Debug)]
pub(crate) enum Asked {
    /// It answered.
    Answered(Answer),
    /// It was told to stop; what it had said by then.
    Stopped(Vec<Block>),
    /// It failed for good.
    Failed(ModelError),
}

/// What a turn used, failed attempts included.
#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) usage: Usage,
}

impl Used {
    fn add(&mut self, usage: &Usage) {
        self.usage.input_tokens = self.usage.input_tokens.saturating_add(usage.input_tokens);
        self.usage.output_tokens = self.usage.output_tokens.saturating_add(usage.output_tokens);
    }
}

/// Asks the model for the next answer.
pub(crate) fn ask(
    work: &Assignment,
    tools: &[ToolSpec],
    conversation: &Conversation,
    session: Option<&str>,
    cancel: &Cancel,
    tell: &mut dyn FnMut(Told<'_>),
) -> (Asked, Used) {
    let mut prompt = Prompt {
        model: &work.model_name,
        system: &work.system,
        messages: conversation.messages(),
        tools,
        output_tokens_max: None,
        session,
    };
    let mut used = Used::default();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let mut drafted = false;
        let mut draft = |draft: Draft| {
            drafted = true;
            tell(Told::Draft(&draft));
        };
        let error = match work.model.answer(&prompt, &mut draft, cancel) {
            Ok(answer) => {
                used.add(&answer.usage);
                return (Asked::Answered(answer), used);
            }
            Err(error) => error,
        };
        if drafted {
            tell(Told::Draft(&Draft::Void));
        }
        let wait = match &error {
            ModelError::Stopped { partial, usage } => {
                used.add(usage);
                return (Asked::Stopped(partial.clone()), used);
            }
            // The log has everything that the session knew.
            ModelError::SessionRefused { .. } if prompt.session.take().is_some() => continue,
            ModelError::Cut { usage, .. } => {
                used.add(usage);
                work.patience.wait_after(attempt, None)
            }
            ModelError::RateLimited { retry_after, .. } => work.patience.wait_after(attempt, *retry_after),
            _ => work.patience.wait_after(attempt, None),
        };
        if !error.retryable() || attempt >= work.patience.attempts_max {
            return (Asked::Failed(error), used);
        }
        tell(Told::Retrying { why: &error.to_string() });
        if cancel.wait(wait).is_some() {
            return (Asked::Stopped(Vec::new()), used);
        }
    }
}

/// The content of an answer as it is recorded: every call has an id that no call of the thread had before. Providers use ids
/// again, and an id names a call for ever here.
pub(crate) fn with_own_ids(
    answer: Answer,
    conversation: &Conversation,
    redactor: &Redactor,
    ids: &dyn Ids,
) -> (Vec<Block>, End) {
    let mut here = HashSet::new();
    let mut content = answer.content;
    for block in &mut content {
        let Block::ToolCall { id, .. } = block else { continue };
        while conversation.knows_call(id) || redactor.text(id.as_str()).is_some() || !here.insert(id.clone()) {
            let fresh = CallId::new(format!("call_{}", ids.hex12()));
            // A name made of letters, digits and an underscore is an id.
            let Ok(fresh) = fresh else { break };
            *id = fresh;
        }
    }
    (content, answer.end)
}
