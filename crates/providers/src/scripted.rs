//! A model that answers from a script: the offline default and the model of tests.
//!
//! - **The same prompt gets the same answer**, in this process and in any later one. The next turn of the script depends on the conversation
//!   alone: every answer in it counts as the turn that would have been chosen at that place. So a run that was killed and resumed continues
//!   where its log ends, not where the process was.
//! - The exception is `fail`: failures before an answer are counted by attempts at one prompt in this process, because a prompt that is sent
//!   again is still the same prompt. Another process starts counting again.
//! - Nothing is stored on disk, and the network is not used.

mod choose;
mod prompt_view;
mod script;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use selvedge_model::answer::{Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::message::Block;
use selvedge_model::{Answer, CallId, Cancel, Draft, Model, ModelError, Prompt};
use tokio::time::timeout;

use prompt_view::PromptView;
pub use script::{
    Failure, NumberCondition, Piece, Price, Repeat, Script, ScriptError, ScriptedCall, ScriptedData, TextCondition,
    Turn, When,
};

/// A model that answers from a script.
#[derive(Debug)]
pub struct Scripted {
    script: Script,
    /// How often a prompt was sent whose answer has failures before it. A plain lock: it is held for a lookup.
    attempts: Mutex<HashMap<u64, usize>>,
}

impl Scripted {
    /// A model that answers from `script`.
    pub fn new(script: Script) -> Self {
        Self { script, attempts: Mutex::default() }
    }

    /// The default model: it answers that it is scripted, and repeats what it was sent.
    pub fn offline() -> Self {
        Self::new(Script::offline())
    }

    /// Its script.
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// The failure of this attempt, if the turn has one left for it.
    fn failure<'s>(&self, turn: &'s Turn, prompt: &Prompt<'_>) -> Option<&'s Failure> {
        // A session that was not offered can't be refused.
        let meets = |failure: &&Failure| !matches!(failure, Failure::SessionRefused(_)) || prompt.session.is_some();
        if turn.fail.is_empty() {
            return turn.error.as_ref().filter(meets);
        }
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = attempts.entry(fingerprint(prompt)).or_default();
        while let Some(failure) = turn.fail.get(*seen) {
            *seen += 1;
            if meets(&failure) {
                return Some(failure);
            }
        }
        turn.error.as_ref().filter(meets)
    }
}

impl Model for Scripted {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let sent = PromptView::of(prompt.messages);
            let Some(turn) = choose::turn(&self.script, prompt.messages) else {
                let why = format!(
                    "the script has no turn for answer {} of this conversation; add one, or let one `repeat: forever`",
                    sent.turns + 1
                );
                return Err(ModelError::Permanent { why });
            };
            let mut speech = StreamedAnswer { sent: &sent, draft, cancel, content: Vec::new(), usage: turn.usage };
            speech.pause(turn.delay_ms).await?;
            match self.failure(turn, prompt) {
                Some(failure) => Err(speech.fail(failure).await),
                None => speech.answer(turn).await,
            }
        })
    }

    fn context_tokens_max(&self, _model: &str) -> Option<u64> {
        self.script.context_tokens_max
    }
}

/// An answer that is being given.
struct StreamedAnswer<'a, 'd> {
    sent: &'a PromptView<'a>,
    draft: &'a mut Drafts<'d>,
    cancel: &'a Cancel,
    content: Vec<Block>,
    usage: Option<Usage>,
}

impl StreamedAnswer<'_, '_> {
    async fn answer(mut self, turn: &Turn) -> Result<Answer, ModelError> {
        self.think(&turn.think).await?;
        if let Some(ScriptedData { name, data }) = &turn.provider {
            self.content.push(Block::Opaque { provider: name.clone(), data: data.clone() });
        }
        self.say(&turn.say).await?;
        self.call(turn).await?;
        let end = if turn.calls.is_empty() { End::Finished } else { End::ToolCalls };
        let mut answer = Answer::new(self.content, turn.end.unwrap_or(end));
        answer.usage = self.usage;
        answer.session = turn.session.clone();
        Ok(answer)
    }

    /// Drafts the text before the failure, and returns the error.
    async fn fail(mut self, failure: &Failure) -> ModelError {
        let why = |why: &str| why.to_owned();
        match failure {
            Failure::Transient(text) => ModelError::Transient { why: why(text) },
            Failure::Unreached(text) => ModelError::Unreached { why: why(text) },
            Failure::Status { code, why: text, retry_after_ms } => {
                let retry_after = retry_after_ms.map(Duration::from_millis);
                ModelError::Status { status: *code, why: why(text), retry_after }
            }
            Failure::Permanent(text) => ModelError::Permanent { why: why(text) },
            Failure::ContextTooLong(text) => ModelError::ContextTooLong { why: why(text) },
            Failure::SessionRefused(text) => ModelError::SessionRefused { why: why(text) },
            Failure::RateLimited { why: text, retry_after_ms } => {
                ModelError::RateLimited { why: why(text), retry_after: retry_after_ms.map(Duration::from_millis) }
            }
            Failure::Cut { why: text, say, usage } => {
                // A usage of zero is none that the script gives.
                self.usage = Some(*usage).filter(|usage| *usage != Usage::default());
                match self.say(say).await {
                    Ok(()) => ModelError::Cut { why: why(text), partial: self.content, usage: self.usage },
                    Err(stopped) => stopped,
                }
            }
        }
    }

    async fn think(&mut self, pieces: &[Piece]) -> Result<(), ModelError> {
        self.pieces(
            pieces,
            |text| Draft::Thinking { text },
            |block| match block {
                Block::Thinking { text, .. } => Some(text),
                _ => None,
            },
            || Block::thinking(""),
        )
        .await
    }

    async fn say(&mut self, pieces: &[Piece]) -> Result<(), ModelError> {
        self.pieces(
            pieces,
            |text| Draft::Text { text },
            |block| match block {
                Block::Text { text, .. } => Some(text),
                _ => None,
            },
            || Block::text(String::new()),
        )
        .await
    }

    /// Drafts each piece and joins them in one block; when the answer is stopped, the block has the pieces so far.
    async fn pieces(
        &mut self,
        pieces: &[Piece],
        drafted: fn(String) -> Draft,
        text_of: fn(&mut Block) -> Option<&mut String>,
        new_block: fn() -> Block,
    ) -> Result<(), ModelError> {
        for (index, piece) in pieces.iter().enumerate() {
            self.pause(piece.delay_ms).await?;
            let text = self.sent.fill(&piece.text);
            (self.draft)(drafted(text.clone()));
            if index == 0 {
                self.content.push(new_block());
            }
            if let Some(whole) = self.content.last_mut().and_then(text_of) {
                whole.push_str(&text);
            }
        }
        Ok(())
    }

    async fn call(&mut self, turn: &Turn) -> Result<(), ModelError> {
        for (index, call) in turn.calls.iter().enumerate() {
            self.pause(0).await?;
            let id = match &call.id {
                Some(id) => id.clone(),
                None => CallId::new(format!("call_{}", self.sent.calls + index + 1))
                    .map_err(|error| ModelError::Permanent { why: error.to_string() })?,
            };
            (self.draft)(Draft::ToolCall { name: call.tool.clone(), id: Some(id.clone()) });
            let arguments = self.sent.fill_value(&call.arguments);
            (self.draft)(Draft::Arguments { id: Some(id.clone()), text: arguments.to_string() });
            self.content.push(Block::tool_call(id, call.tool.clone(), arguments));
        }
        Ok(())
    }

    /// Waits; when the answer is stopped, returns what was drafted so far as an error.
    async fn pause(&mut self, milliseconds: u64) -> Result<(), ModelError> {
        let stop = match milliseconds {
            0 => self.cancel.said(),
            _ => timeout(Duration::from_millis(milliseconds), self.cancel.stopped()).await.ok(),
        };
        match stop {
            None => Ok(()),
            Some(_) => Err(ModelError::Stopped { partial: std::mem::take(&mut self.content), usage: self.usage }),
        }
    }
}

/// Identifies a prompt, so that attempts at different prompts are counted separately.
fn fingerprint(prompt: &Prompt<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (prompt.system, prompt.messages.len()).hash(&mut hasher);
    for message in [prompt.messages.first(), prompt.messages.last()].into_iter().flatten() {
        (&message.id, &message.run_id, message.content_bytes()).hash(&mut hasher);
    }
    hasher.finish()
}
