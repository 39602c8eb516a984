//! Usage, titles and vectors: records in the database, each effect under a lock of the database.

use selvedge_model::{AgentId, Cancel};
use selvedge_store::effects::{Effect, EffectLock, EffectState, Effects, Embedding};
use selvedge_store::usage::{UsageRecord, of_commits};
use selvedge_store::{Feed as _, Result};

use crate::core::Core;
use crate::open::PostgresStore;
use crate::pool::Connection;
use crate::rows;

/// How many commits are looked at between two states.
const COMMITS_AT_ONCE: usize = 500;

impl Core {
    /// Takes a lock of the whole store on a connection of its own; none if another process has it. It ends with the connection.
    pub(crate) fn try_lock(&self, name: &str) -> Result<Option<Connection>> {
        let mut connection = self.pool.connect(None)?;
        let name = format!("selvedge {} {name}", self.pool.address().schema);
        let sql = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        let is_ours = connection.first(sql, &[&name])?.is_some_and(|row| row.get(0));
        Ok(is_ours.then_some(connection))
    }

    pub(crate) fn state_of<T: serde::de::DeserializeOwned + Default>(&self, name: &str) -> Result<T> {
        let sql = "SELECT state FROM effects WHERE effect = $1";
        let found: Option<String> =
            self.read(|connection| Ok(connection.first(sql, &[&name])?.map(|row| row.get(0))))?;
        Ok(found.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    }

    pub(crate) fn set_state_of<T: serde::Serialize>(&self, name: &str, state: &T) -> Result<()> {
        let sql = "INSERT INTO effects (effect, state) VALUES ($1, $2) ON CONFLICT (effect) DO UPDATE SET state = excluded.state";
        let text = rows::to_json(state)?;
        self.read(|connection| Ok(connection.execute(sql, &[&name, &text]).map(drop)?))
    }
}

impl Effects for PostgresStore {
    fn record_usage(&self, cancel: &Cancel) -> Result<u64> {
        let core = &self.core;
        core.signing()?;
        let mut state = self.effect_state(Effect::Usage)?;
        if state.position.is_some_and(|position| self.position().is_ok_and(|newest| newest <= position)) {
            return Ok(0);
        }
        let Some(_lock) = core.try_lock("usage")? else { return Ok(0) };
        state = self.effect_state(Effect::Usage)?;
        let mut added = 0;
        loop {
            let entries = self.after(state.position.unwrap_or(0), COMMITS_AT_ONCE)?;
            let Some(last) = entries.last().map(|last| last.position) else { return Ok(added) };
            if cancel.said().is_some() {
                return Ok(added);
            }
            let derived = of_commits(self, &entries, |_, _| false);
            for record in &derived.records {
                added += self.put_usage(record)?;
            }
            if let Some(failed) = derived.failed {
                return Err(failed);
            }
            state.position = Some(last);
            state.failure = None;
            self.set_effect_state(Effect::Usage, &state)?;
        }
    }

    fn each_usage(&self, each: &mut dyn FnMut(UsageRecord)) -> Result<()> {
        let sql = "SELECT number, record FROM usage_records WHERE number > $1 ORDER BY number LIMIT 1000";
        let mut after = 0_i64;
        loop {
            let page = self.core.read(|connection| Ok(connection.query(sql, &[&after])?))?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.get(0);
            for row in &page {
                if let Ok(record) = serde_json::from_str(row.get(1)) {
                    each(record);
                }
            }
        }
    }

    /// The vectors are in the index (`search`), with their passages: there is no file beside it.
    fn put_embeddings(&self, _: &AgentId, _: &[Embedding]) -> Result<()> {
        Ok(())
    }

    fn lock_effect(&self, effect: Effect) -> Result<Option<EffectLock>> {
        let lock = self.core.try_lock(&format!("effect {}", effect.as_str()))?;
        Ok(lock.map(|connection| EffectLock::new(Box::new(connection))))
    }

    fn effect_state(&self, effect: Effect) -> Result<EffectState> {
        self.core.state_of(effect.as_str())
    }

    fn set_effect_state(&self, effect: Effect, state: &EffectState) -> Result<()> {
        self.core.set_state_of(effect.as_str(), state)
    }
}

impl PostgresStore {
    fn put_usage(&self, record: &UsageRecord) -> Result<u64> {
        let (thread, version) = record.key();
        let root = match self.core.find(&thread)? {
            Some(row) => row.root.as_str().to_owned(),
            None => thread.as_str().to_owned(),
        };
        let sql =
            "INSERT INTO usage_records (root, thread, version, record) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
        let (version, text) = (rows::signed(version), rows::to_json(record)?);
        self.core.read(|connection| Ok(connection.execute(sql, &[&root, &thread.as_str(), &version, &text])?))
    }
}
