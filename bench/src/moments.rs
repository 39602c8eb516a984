//! When what happened in a run: its models say when they are asked, and whoever watches it when something was committed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use selvedge_engine::Told;
use selvedge_model::answer::{End, Usage};
use selvedge_model::message::Block;
use selvedge_model::{Answer, CallId, Cancel, Draft, Event, Model, ModelError, Prompt, Reason};
use serde_json::{Value, json};

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A model was asked.
    Asked(Who),
    /// Something was committed for this reason, by a thread that is watched.
    Committed(Reason),
    /// A thread was handed over.
    HandedOver,
}

/// Whose model was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Itself,
    Child,
}

/// Everything that happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Moments(Arc<Mutex<Vec<(What, Instant)>>>);

impl Moments {
    pub(crate) fn note(&self, what: What) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((what, Instant::now()));
    }

    /// Notes what is told of a run.
    pub(crate) fn hear(&self, told: &Told<'_>) {
        if let Told::Committed { reason, events, .. } = told {
            let hands_over = events.iter().any(|event| matches!(event, Event::ThreadHandoff(_)));
            self.note(if hands_over { What::HandedOver } else { What::Committed(*reason) });
        }
    }

    /// Everything so far; then nothing has happened.
    pub(crate) fn take(&self) -> Vec<(What, Instant)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How many microseconds lie between two moments.
pub(crate) fn micros(from: &(What, Instant), to: &(What, Instant)) -> f64 {
    to.1.duration_since(from.1).as_secs_f64() * 1e6
}

/// A model that says when it is asked, calls what it is told to turn by turn, and then is done. It counts its turns by itself, so it
/// goes on with its list in every thread of a chain.
pub(crate) struct Watched {
    who: Who,
    text: String,
    /// The tool of each turn, with its arguments.
    calls: Vec<(&'static str, Value)>,
    asked: Mutex<usize>,
    moments: Moments,
}

impl Watched {
    pub(crate) fn new(who: Who, text: &str, calls: Vec<(&'static str, Value)>, moments: &Moments) -> Self {
        Self { who, text: text.to_owned(), calls, asked: Mutex::default(), moments: moments.clone() }
    }
}

impl Model for Watched {
    fn answer(&self, _: &Prompt<'_>, _: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        self.moments.note(What::Asked(self.who));
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = *asked;
        *asked += 1;
        let mut content = vec![Block::text(self.text.clone())];
        let id =
            CallId::new(format!("call_{turn}")).map_err(|error| ModelError::Permanent { why: error.to_string() })?;
        let end = match self.calls.get(turn).cloned() {
            Some((name, arguments)) => {
                content.push(Block::tool_call(id, name.to_owned(), arguments));
                End::ToolCalls
            }
            None => End::Finished,
        };
        Ok(Answer { content, end, usage: Some(Usage::default()), session: None })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A call without arguments, so often.
pub(crate) fn calls(name: &'static str, times: usize) -> Vec<(&'static str, Value)> {
    vec![(name, json!({})); times]
}
