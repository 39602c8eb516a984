//! What is done after an answer was delivered: usage, pages, titles, embeddings.
//!
//! Each effect is independent of the others, has its lock and its position in the feed, and delays no answer. It stops when it is cancelled;
//! what is left is done by the next process that has the store open. A failure is kept with the effect's state, where `selvedge doctor` finds
//! it, until an attempt succeeds.

mod embeddings;
mod page;
mod titles;

use std::sync::Arc;

use selvedge_engine::Engine;
use selvedge_model::{Cancel, Classify};
use selvedge_store::Backend;
use selvedge_store::effects::{Effect, EffectFailure, EffectState};

use crate::project::Project;

pub use embeddings::embed_query;

/// How long an effect rests after an attempt that had to be stopped, in microseconds: a host that does not answer would delay the end of every
/// command.
const REST_MICROS: i64 = 60 * 1_000_000;
/// The most characters of a failure that are kept.
const WHY_CHARS_MAX: usize = 500;

/// Does what is due after runs.
#[derive(Clone)]
pub struct EffectRunner {
    store: Arc<dyn Backend>,
    engine: Engine,
    project: Arc<Project>,
}

/// Why an effect failed, as a sentence.
pub(crate) struct Failed(String);

impl<E: Classify> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl EffectRunner {
    /// The effects of a project's threads.
    pub fn new(store: Arc<dyn Backend>, engine: Engine, project: Arc<Project>) -> Self {
        Self { store, engine, project }
    }

    /// Does what is due, until it is cancelled; not what had to be stopped within the last minute. It blocks, and must not be called inside a
    /// tokio runtime.
    pub fn run(&self, cancel: &Cancel) {
        self.run_one(Effect::Usage, cancel);
        let run = |effect| {
            if !self.is_resting(effect) {
                self.run_one(effect, cancel);
            }
        };
        // At the same time: a model that does not answer must not keep the embedder waiting, nor the other way round.
        std::thread::scope(|scope| {
            let titles = || run(Effect::Titles);
            let spawned = std::thread::Builder::new().name("titles".to_owned()).spawn_scoped(scope, titles);
            run(Effect::Embeddings);
            if spawned.is_err() {
                titles();
            }
        });
        // A title that was made is on the page, too.
        self.run_one(Effect::Pages, cancel);
    }

    fn is_resting(&self, effect: Effect) -> bool {
        let failure = self.store.effect_state(effect).ok().and_then(|state| state.failure);
        failure.is_some_and(|failure| {
            failure.stopped && (self.engine.now().as_micros() - failure.at.as_micros()).abs() < REST_MICROS
        })
    }

    /// Does what is due of one effect.
    pub fn run_one(&self, effect: Effect, cancel: &Cancel) {
        let failed = match effect {
            Effect::Usage => self.store.record_usage(cancel).map(|_| ()).map_err(Failed::from),
            Effect::Pages => self.pages(cancel),
            Effect::Titles => self.titles(cancel),
            Effect::Embeddings => self.embeddings(cancel),
        };
        self.note(effect, failed.err(), cancel);
    }

    /// Keeps a failure, or forgets the last one.
    fn note(&self, effect: Effect, failed: Option<Failed>, cancel: &Cancel) {
        if cancel.said().is_some() && failed.is_none() {
            return;
        }
        // A state that can't be read or written is a problem of the store, which has its own findings.
        let Ok(state) = self.store.effect_state(effect) else { return };
        let failure = failed.map(|Failed(why)| {
            let why = self.engine.redacted(&why.chars().take(WHY_CHARS_MAX).collect::<String>());
            EffectFailure { at: self.engine.now(), why, stopped: cancel.said().is_some() }
        });
        if failure.is_some() || state.failure.is_some() {
            _ = self.store.set_effect_state(effect, &EffectState { failure, ..state });
        }
    }
}
