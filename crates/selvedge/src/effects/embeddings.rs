//! Embeddings: the vectors of passages, for searches by meaning.
//!
//! Which embedder there is, if any, the configuration says (`embeddings.model`). A passage is embedded once: its vector is kept in
//! `agents/<id>/embeddings.jsonl`, and from there in the search index.

use std::collections::BTreeMap;

use selvedge_model::{AgentId, Cancel, EmbedError, Embedder};
use selvedge_store::Error as StoreError;
use selvedge_store::effects::{Effect, EffectState, Embedding};
use selvedge_store::search::{UnembeddedPassage, read_unverified};
use tokio::runtime::Builder;

use super::{EffectRunner, Failed};

/// How many passages are embedded at once.
const PASSAGES_AT_ONCE: usize = 128;

impl EffectRunner {
    pub(super) fn embeddings(&self, cancel: &Cancel) -> Result<(), Failed> {
        let Some(embedder) = self.project.embedder()? else { return Ok(()) };
        let newest = self.store.position()?;
        let with = Some(format!("{} {}", embedder.dimensions(), embedder.name()));
        let state = self.store.effect_state(Effect::Embeddings)?;
        if state.position == Some(newest) && state.with == with {
            return Ok(());
        }
        let Some(_lock) = self.store.lock_effect(Effect::Embeddings)? else { return Ok(()) };
        if self.store.catch_up(cancel)?.behind > 0 {
            return Ok(());
        }
        loop {
            if cancel.said().is_some() {
                return Ok(());
            }
            let pending = self.store.pending_vectors(embedder.name(), embedder.dimensions(), PASSAGES_AT_ONCE)?;
            if pending.is_empty() {
                let state =
                    EffectState { position: Some(newest), with, ..self.store.effect_state(Effect::Embeddings)? };
                self.store.set_effect_state(Effect::Embeddings, &state)?;
                return Ok(());
            }
            self.embed(&*embedder, pending, cancel)?;
        }
    }

    fn embed(&self, embedder: &dyn Embedder, pending: Vec<UnembeddedPassage>, cancel: &Cancel) -> Result<(), Failed> {
        let mut passages = Vec::new();
        let mut texts = Vec::new();
        let mut agents = Vec::new();
        for passage in pending {
            // The text is that of the index, by its digest; a vector decides nothing.
            let agent = match self.store.get(&passage.hit.thread) {
                Ok(summary) => Some(summary.manifest.agent_id),
                Err(StoreError::Deleted(_) | StoreError::NoThread(_)) => None,
                Err(error) => return Err(error.into()),
            };
            match (agent, read_unverified(&*self.store, &passage.hit)) {
                (Some(agent), Some(text)) => {
                    passages.push(passage);
                    texts.push(text);
                    agents.push(agent);
                }
                // A vector of nothing: the passage is not asked for again, and never close to a query.
                _ => self.store.put_vectors(embedder.name(), &[(passage, vec![0.0; embedder.dimensions()])])?,
            }
        }
        if texts.is_empty() {
            return Ok(());
        }
        let vectors = embed(embedder, &texts, cancel).map_err(|error| Failed(error.to_string()))?;
        let mut of_agents: BTreeMap<AgentId, Vec<Embedding>> = BTreeMap::new();
        for ((passage, vector), agent) in passages.iter().zip(&vectors).zip(agents) {
            of_agents.entry(agent).or_default().push(Embedding::new(&passage.hit, embedder.name(), vector));
        }
        // The files first: what is in the index and not in a file would be embedded again after the index is lost.
        for (agent, embeddings) in of_agents {
            self.store.put_embeddings(&agent, &embeddings)?;
        }
        let vectors: Vec<_> = passages.into_iter().zip(vectors).collect();
        Ok(self.store.put_vectors(embedder.name(), &vectors)?)
    }
}

/// Embeds texts. This blocks; it needs no runtime, and may be called inside one.
pub fn embed(embedder: &dyn Embedder, texts: &[String], cancel: &Cancel) -> Result<Vec<Vec<f32>>, EmbedError> {
    let failed = |why: String| EmbedError::Transient { why };
    let work = || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(error.to_string()))?;
        runtime.block_on(embedder.embed(texts, cancel))
    };
    // On a thread of its own: a thread that belongs to a runtime can't wait for another one.
    std::thread::scope(|scope| {
        let joined = scope.spawn(work).join();
        joined.unwrap_or_else(|_| Err(failed("the embedder panicked".to_owned())))
    })
}
