//! Embeddings: the vectors of passages, for searches by meaning.
//!
//! Which embedder there is, if any, the configuration says (`embeddings.model`). A passage is embedded once: its vector is kept in
//! `agents/<id>/embeddings.jsonl`, and from there in the search index. What has none is a question to the index, so one that was lost gets
//! them from the files again.

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_model::{AgentId, Cancel, EmbedError, Embedder};
use selvedge_store::Error as StoreError;
use selvedge_store::effects::{Effect, Embedding};
use selvedge_store::search::{UnembeddedPassage, read_unverified};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::{EffectRunner, Failed};

/// How many passages are embedded at once.
const PASSAGES_AT_ONCE: usize = 128;
/// How long a search waits for the vector of its query.
const QUERY_TIME: Duration = Duration::from_secs(5);

impl EffectRunner {
    pub(super) fn embeddings(&self, cancel: &Cancel) -> Result<(), Failed> {
        let Some(embedder) = self.project.embedder()? else { return Ok(()) };
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
                return Ok(());
            }
            self.embed_passages(&*embedder, pending, cancel)?;
        }
    }

    fn embed_passages(
        &self,
        embedder: &dyn Embedder,
        pending: Vec<UnembeddedPassage>,
        cancel: &Cancel,
    ) -> Result<(), Failed> {
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

/// The vector of a query and the name of its embedder. This blocks for a few seconds at most, and may be called inside a runtime.
pub fn embed_query(embedder: &dyn Embedder, text: &str, cancel: &Cancel) -> Result<(String, Vec<f32>), EmbedError> {
    let late = || EmbedError::Transient { why: format!("no vector within {} seconds", QUERY_TIME.as_secs()) };
    let texts = [text.to_owned()];
    let asked = async { timeout(QUERY_TIME, embedder.embed(&texts, cancel)).await.unwrap_or_else(|_| Err(late())) };
    let vector = wait_for(asked)?.into_iter().next().unwrap_or_default();
    Ok((embedder.name().to_owned(), vector))
}

/// Embeds texts. This blocks; it needs no runtime, and may be called inside one.
fn embed(embedder: &dyn Embedder, texts: &[String], cancel: &Cancel) -> Result<Vec<Vec<f32>>, EmbedError> {
    wait_for(embedder.embed(texts, cancel))
}

fn wait_for<T: Send>(work: impl Future<Output = Result<T, EmbedError>> + Send) -> Result<T, EmbedError> {
    let failed = |why: String| EmbedError::Transient { why };
    let work = || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(error.to_string()))?;
        runtime.block_on(work)
    };
    // On a thread of its own: a thread that belongs to a runtime can't wait for another one.
    std::thread::scope(|scope| {
        let joined = scope.spawn(work).join();
        joined.unwrap_or_else(|_| Err(failed("the embedder panicked".to_owned())))
    })
}
