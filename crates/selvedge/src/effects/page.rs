//! Pages: brought up to every commit, thread by thread.
//!
//! While a thread runs, [`PageFollower`](crate::pages::PageFollower) keeps its page current; this is what makes sure.

use std::collections::BTreeSet;

use selvedge_model::Cancel;
use selvedge_store::Error as StoreError;
use selvedge_store::effects::{Effect, EffectState};

use super::{EffectRunner, Failed};
use crate::pages::update;

/// How many commits are looked at before the position is kept.
const COMMITS_AT_ONCE: usize = 1000;

impl EffectRunner {
    pub(super) fn pages(&self, cancel: &Cancel) -> Result<(), Failed> {
        let newest = self.store.position()?;
        if self.store.effect_state(Effect::Pages)?.position == Some(newest) {
            return Ok(());
        }
        let Some(_lock) = self.store.lock_effect(Effect::Pages)? else { return Ok(()) };
        let known = self.store.effect_state(Effect::Pages)?.position;
        let mut position = known.filter(|position| *position <= newest).unwrap_or(0);
        let mut failed = None;
        loop {
            let entries = self.store.after(position, COMMITS_AT_ONCE)?;
            let Some(last) = entries.last().map(|last| last.position) else { break };
            for thread in entries.into_iter().map(|entry| entry.thread).collect::<BTreeSet<_>>() {
                if cancel.said().is_some() {
                    return Ok(());
                }
                match update(&*self.store, self.engine.trust(), &thread) {
                    Ok(_) | Err(StoreError::NoThread(_) | StoreError::Deleted(_)) => {}
                    // One thread's page keeps no other from being written; `doctor` says what is wrong with a log.
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            position = last;
            let state = EffectState { position: Some(position), ..self.store.effect_state(Effect::Pages)? };
            self.store.set_effect_state(Effect::Pages, &state)?;
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}
