//! Effects without files: usage is derived anew each time, and vectors are only in the index.

use selvedge_model::{AgentId, Cancel};

use super::MemoryStore;
use crate::contract::Feed;
use crate::effects::{Effect, EffectLock, EffectState, Effects, Embedding};
use crate::error::Result;
use crate::usage::{UsageRecord, of_commits};

impl Effects for MemoryStore {
    fn record_usage(&self, _: &Cancel) -> Result<u64> {
        Ok(0)
    }

    fn each_usage(&self, each: &mut dyn FnMut(UsageRecord)) -> Result<()> {
        let entries = self.after(0, usize::MAX)?;
        for record in of_commits(self, &entries, |_, _| false).records {
            each(record);
        }
        Ok(())
    }

    fn put_embeddings(&self, _: &AgentId, _: &[Embedding]) -> Result<()> {
        Ok(())
    }

    /// The handles of one process share everything: an effect is never done by another one.
    fn lock_effect(&self, _: Effect) -> Result<Option<EffectLock>> {
        Ok(Some(EffectLock::new(Box::new(()))))
    }

    fn effect_state(&self, effect: Effect) -> Result<EffectState> {
        Ok(self.inner().effects.get(&effect).cloned().unwrap_or_default())
    }

    fn set_effect_state(&self, effect: Effect, state: &EffectState) -> Result<()> {
        self.inner().effects.insert(effect, state.clone());
        Ok(())
    }
}
