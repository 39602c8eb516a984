//! An agent that calls a tool in every turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use selvedge_engine::RunConfig;
use selvedge_model::answer::{Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::EffectClass;
use selvedge_model::message::Block;
use selvedge_model::tool::{Function, Risk};
use selvedge_model::{AgentId, Answer, CallId, Cancel, Digest, Model, ModelError, Output, Prompt, ToolSpec};
use selvedge_providers::{Script, Scripted};
use serde_json::json;

use crate::Outcome;

/// A scripted model, and the time of all its answers.
pub(crate) struct TimedModel {
    inner: Scripted,
    nanos: AtomicU64,
}

impl TimedModel {
    pub(super) fn micros(&self) -> f64 {
        self.nanos.load(Ordering::Relaxed) as f64 / 1e3
    }
}

impl Model for TimedModel {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let began = Instant::now();
            let answer = self.inner.answer(prompt, draft, cancel).await;
            self.nanos.fetch_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            answer
        })
    }

    fn context_tokens_max(&self, model: &str) -> Option<u64> {
        self.inner.context_tokens_max(model)
    }
}

/// A model that calls the tool this often, ignores the conversation, and records when it was asked.
pub(super) struct CountingModel {
    turns: usize,
    asked: Mutex<Vec<Instant>>,
}

impl CountingModel {
    pub(super) fn new(turns: usize) -> Self {
        Self { turns, asked: Mutex::default() }
    }

    /// How long each turn took, in microseconds.
    pub(super) fn each(&self) -> Vec<f64> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e6).collect()
    }
}

impl Model for CountingModel {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.push(Instant::now());
            let id = CallId::new(format!("call_{}", prompt.messages.len()));
            let (block, end) = match id {
                Ok(id) if asked.len() <= self.turns => (Block::tool_call(id, "look", json!({})), End::ToolCalls),
                _ => (Block::text("That is all."), End::Finished),
            };
            Ok(Answer::new(vec![block], end).using(Usage::default()))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A scripted agent whose runs have this many turns, and its model.
pub(crate) fn scripted(turns: usize) -> Outcome<(Arc<TimedModel>, RunConfig)> {
    let looks =
        format!("turns: [{{say: Let me see., calls: [{{tool: look}}], repeat: {}}}, {{say: Done.}}]", turns - 1);
    let model = Arc::new(TimedModel { inner: Scripted::new(Script::parse(&looks)?), nanos: AtomicU64::new(0) });
    Ok((model.clone(), assigned(model)?))
}

/// An agent with a model and the tool.
pub(crate) fn assigned(model: Arc<dyn Model>) -> Outcome<RunConfig> {
    let mut work = RunConfig::new(AgentId::new("scribe")?, model, "scripted");
    work.tools = vec![Arc::new(plain("look"))];
    Ok(work)
}

/// A tool of this name without effects.
pub(crate) fn plain(name: &str) -> Function {
    pure(name, || "Everything is as it was.".to_owned())
}

/// A tool of this name without effects and with this answer.
pub(crate) fn pure(name: &str, answer: impl Fn() -> String + Send + Sync + 'static) -> Function {
    let spec = ToolSpec {
        name: name.to_owned(),
        description: "Looks around.".to_owned(),
        input_schema: json!({"type": "object"}),
        class: EffectClass::Pure,
        capability: format!("tool.{name}"),
        risk: Risk::Safe,
        hash: Digest([0; 32]),
    };
    Function::new(spec, move |_, _| Ok(Output::text(answer())))
}
