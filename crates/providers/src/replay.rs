//! A model that gives its recorded answers.
//!
//! - **The next answer depends on the prompt alone**: on the number of its messages. So the model keeps no position, and a conversation that
//!   diverged finds no answer, rather than one that was meant for another prompt.
//! - An answer comes with its recorded usage, including that of failed attempts before it. For a call that failed for good, or that was
//!   stopped, the recorded error and usage are given.
//! - What the log does not have is not invented: drafts, and the text of an answer that broke off.
//! - A prompt that was sent twice with the same messages (by a run that was stopped and resumed) gets the answers in their order.
//!
//! Nothing is stored on disk, and the network is not used.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use selvedge_model::answer::{Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::TurnUsage;
use selvedge_model::message::Block;
use selvedge_model::run::FailureClass;
use selvedge_model::{Answer, Cancel, Event, Message, Model, ModelError, Prompt, Reason, Role};

/// One changeset of a record, as far as a model is concerned.
#[derive(Clone, Copy, Debug)]
pub struct RecordedEvents<'a> {
    /// Its reason.
    pub reason: Reason,
    /// Its events.
    pub events: &'a [Event],
}

/// A model that answers from a record.
#[derive(Debug)]
pub struct Replay {
    /// The recorded turns, by the number of messages in the prompt. A plain lock: it is held for a lookup.
    turns: Mutex<BTreeMap<usize, VecDeque<RecordedTurn>>>,
}

/// The result of one model call.
#[derive(Clone, Debug)]
enum RecordedTurn {
    Answered(Answer),
    Failed { error: ModelError, usage: Option<Usage> },
}

impl Replay {
    /// A model that answers as recorded in the changesets of a log, in their order.
    pub fn new<'a>(record: impl IntoIterator<Item = RecordedEvents<'a>>) -> Self {
        let mut turns: BTreeMap<usize, VecDeque<RecordedTurn>> = BTreeMap::new();
        let mut known = HashSet::new();
        let mut messages = 0;
        // Why an answer ended the run is recorded only in the next changeset.
        let mut answered: Option<usize> = None;
        for changeset in record {
            if let Some(turn) = answered.take().and_then(|at| turns.get_mut(&at)?.back_mut()) {
                turn.ended(changeset.events);
            }
            if let Some(turn) = RecordedTurn::of(&changeset) {
                answered = matches!(turn, RecordedTurn::Answered(_)).then_some(messages);
                turns.entry(messages).or_default().push_back(turn);
            }
            let said = changeset.events.iter().filter_map(message);
            messages += said.filter(|message| message.id.as_ref().is_none_or(|id| known.insert(id.clone()))).count();
        }
        Self { turns: Mutex::new(turns) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, VecDeque<RecordedTurn>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model for Replay {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(std::future::ready(self.next(prompt)))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

impl Replay {
    /// The next result for this prompt.
    fn next(&self, prompt: &Prompt<'_>) -> Result<Answer, ModelError> {
        let mut turns = self.lock();
        let queue = turns.get_mut(&prompt.messages.len());
        match queue.and_then(|queue| queue.front_mut().map(RecordedTurn::next).map(|next| (next, queue))) {
            Some((Ok(answer), queue)) => {
                queue.pop_front();
                Ok(answer)
            }
            Some((Err(error), queue)) => {
                // A call that was stopped is not repeated; one that failed may be.
                if matches!(error, ModelError::Stopped { .. }) {
                    queue.pop_front();
                }
                Err(error)
            }
            None => Err(ModelError::Permanent { why: "the record has no answer to this prompt".to_owned() }),
        }
    }
}

impl RecordedTurn {
    /// The model call of a changeset; none if it has none.
    fn of(changeset: &RecordedEvents<'_>) -> Option<Self> {
        let used = changeset.events.iter().find_map(|event| match event {
            Event::Usage(used) => Some(used),
            _ => None,
        })?;
        match changeset.reason {
            Reason::AssistantTurnCommitted => Some(Self::Answered(answer(changeset.events, used)?)),
            Reason::RunFinished => {
                failure(changeset.events).map(|error| Self::Failed { error, usage: usage_of_failure(used) })
            }
            _ => None,
        }
    }

    /// Sets how an answer ended, by the next changeset.
    fn ended(&mut self, next: &[Event]) {
        let failure = next.iter().find_map(|event| match event {
            Event::RunFinished(run) => run.meta.failure.as_ref(),
            _ => None,
        });
        if let (Self::Answered(answer), Some(failure)) = (self, failure) {
            answer.end = match failure.class {
                FailureClass::OutputLimitReached => End::Length,
                FailureClass::ModelDeclined => End::Refused,
                _ => answer.end,
            };
        }
    }

    /// The next result. The usage of a failed call is given once, by an attempt that broke off if the error itself has no usage.
    fn next(&mut self) -> Result<Answer, ModelError> {
        match self {
            Self::Answered(answer) => Ok(answer.clone()),
            Self::Failed { error, usage } => {
                let used = std::mem::take(usage);
                Err(match error {
                    ModelError::Stopped { partial, .. } => {
                        ModelError::Stopped { partial: partial.clone(), usage: used }
                    }
                    ModelError::Cut { why, .. } => {
                        ModelError::Cut { why: why.clone(), partial: Vec::new(), usage: used }
                    }
                    other if used.is_none() => other.clone(),
                    other => ModelError::Cut { why: other.to_string(), partial: Vec::new(), usage: used },
                })
            }
        }
    }
}

fn message(event: &Event) -> Option<&Message> {
    match event {
        Event::Message(message) => Some(message),
        _ => None,
    }
}

fn usage(used: &TurnUsage) -> Usage {
    Usage {
        input_tokens: used.cost.input_tokens,
        output_tokens: used.cost.output_tokens,
        cache_read_tokens: used.cache_read_tokens,
        cache_write_tokens: used.cache_write_tokens,
        estimated: used.estimated,
    }
}

/// The usage of attempts that failed; none if no tokens were counted. It is not complete if the cost was unknown.
fn usage_of_failure(used: &TurnUsage) -> Option<Usage> {
    let known = usage(used);
    let is_counted = known.input_tokens > 0 || known.output_tokens > 0;
    is_counted.then(|| Usage { estimated: !used.cost.spend_unknown.is_zero(), ..known })
}

fn answer(events: &[Event], used: &TurnUsage) -> Option<Answer> {
    let said = events.iter().filter_map(message).find(|message| message.role == Role::Assistant)?;
    let asks = said.content.iter().any(|block| matches!(block, Block::ToolCall { .. }));
    let session = events.iter().find_map(|event| match event {
        Event::ManifestChanged(changed) => changed.session_id.clone(),
        _ => None,
    });
    let end = if asks { End::ToolCalls } else { End::Finished };
    let mut answer = Answer::new(said.content.clone(), end).using(usage(used));
    answer.session = used.session.clone().or(session);
    answer.notes = used.notes.clone();
    answer.charged = used.charged;
    answer.model = used.answered_by.clone();
    answer.provider_id = used.provider_id.clone();
    Some(answer)
}

/// Why there was no answer: the run ended with the model call.
fn failure(events: &[Event]) -> Option<ModelError> {
    let meta = events.iter().find_map(|event| match event {
        Event::RunFinished(run) => Some(&run.meta),
        _ => None,
    })?;
    match (&meta.failure, meta.termination_code.as_deref()) {
        (Some(failure), _) => ModelError::recorded(failure),
        (None, Some("cancelled" | "killed" | "duration_exceeded")) => {
            Some(ModelError::Stopped { partial: partial(events).into_iter().collect(), usage: None })
        }
        // The model was not the reason why the run ended.
        (None, _) => None,
    }
}

/// The partial text of a model that was stopped.
fn partial(events: &[Event]) -> Option<Block> {
    events.iter().find_map(|event| match event {
        Event::ContextInjected(fields) => {
            let text = fields.get("partial_cognition")?.get("text")?.as_str()?.to_owned();
            Some(Block::text(text))
        }
        _ => None,
    })
}
