//! Saves snapshots: builds them, checks them, encodes them, writes them with retries, and removes obsolete ones.

use std::sync::Arc;
use std::time::Duration;

use selvedge_items::config::state_persistence::{Action, Backoff, StatePersistence};
use selvedge_log::strict::check_canonicalizable;
use selvedge_model::error::Classify;
use selvedge_model::{Cancel, ThreadId, Timestamp};
use selvedge_store::snapshot::{Disposal, NEWEST, Replaced, SavedSnapshot, SnapshotFolder, SnapshotInfo};
use selvedge_store::{Error as StoreError, Snapshots};
use serde_json::{Value, json};

use super::body;
use super::form::{self, Base, CHAIN_MAX};
use super::retain::superfluous;
use super::schema::{Schema, SchemaError};
use super::trigger::{Progress, Trigger};
use crate::fold::Fold;

/// The default archive folder.
const ARCHIVE: &str = "archive";
/// The wait after the first failure.
const WAIT: Duration = Duration::from_millis(50);

/// Saves snapshots of threads, as configured.
pub struct Keeper {
    pub(super) store: Arc<dyn Snapshots>,
    pub(super) schema: Schema,
    pub(super) archive: String,
    config: StatePersistence,
}

/// The last snapshot of a thread that was saved, or tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastSave {
    pub(super) saved_version: Option<u64>,
    pub(super) tried_bytes: u64,
    pub(super) state_bytes: u64,
    /// The base for the next one, if it may be a change.
    under: Option<(Arc<Value>, Base)>,
    /// What was wrong with the previous newest snapshot, if anything was.
    pub(crate) notice: Option<String>,
    /// Whether it was already reported that the newest snapshot is not valid.
    pub(crate) is_told: bool,
    /// Why obsolete ones could not be removed, if they could not.
    pub(crate) untidy: Option<String>,
}

impl LastSave {
    /// A full snapshot of this length, of a log of this length.
    pub(super) fn whole(version: u64, log_bytes: u64, state_bytes: u64) -> Self {
        Self { saved_version: Some(version), tried_bytes: log_bytes, state_bytes, ..Self::default() }
    }

    /// The next one is full.
    pub(crate) fn clear_base(&mut self) {
        self.under = None;
    }
}

/// The state of the newest snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewestState {
    Absent,
    Valid,
    Invalid,
}

/// A snapshot that is to be saved.
pub(crate) struct SaveOrder {
    fold: Fold,
    seal: Option<String>,
    /// The trigger that it is saved for.
    trigger: &'static str,
    hooks: Vec<Value>,
    now: Timestamp,
}

/// A snapshot that could not be saved, archived or removed.
#[derive(Debug)]
pub(crate) struct SaveFailure {
    code: &'static str,
    pub(crate) why: String,
    attempts: u32,
}

impl SaveFailure {
    fn of(error: &StoreError, attempts: u32) -> Self {
        Self { code: error.code(), why: error.to_string(), attempts }
    }

    /// As it is recorded in the thread.
    pub(crate) fn record(&self, trigger: &str) -> Value {
        let Self { code, why, attempts } = self;
        json!({"trigger": trigger, "code": code, "why": why, "attempts": attempts})
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Keeper").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Keeper {
    /// A keeper; refuses an invalid schema.
    pub fn new(store: Arc<dyn Snapshots>, config: StatePersistence) -> Result<Self, SchemaError> {
        let schema = Schema::new(&config.state)?;
        let archive = config.retention.on_completion.archive_folder().unwrap_or(ARCHIVE).to_owned();
        Ok(Self { store, schema, archive, config })
    }

    /// Whether a trigger saves now.
    pub(crate) fn is_due(&self, fold: &Fold, trigger: Trigger) -> bool {
        let LastSave { saved_version, tried_bytes, state_bytes, .. } = fold.saved;
        let progress = Progress {
            version: fold.head.version,
            log_bytes: fold.head.bytes,
            saved_version,
            tried_bytes,
            state_bytes,
        };
        trigger.is_due(&self.config.checkpoint, &progress)
    }

    /// Whether a trigger saves before the run continues.
    pub(crate) fn is_at_once(&self, trigger: Trigger) -> bool {
        trigger.is_at_once(&self.config.checkpoint)
    }

    /// The snapshot to save: the current fold, with the store's current seal. A store that can't seal returns its error when it saves.
    pub(crate) fn order(&self, fold: &Fold, trigger: &'static str, hooks: &[Value], now: Timestamp) -> SaveOrder {
        let seal = self.store.seal(fold.thread_id(), &fold.head).ok().flatten();
        SaveOrder { fold: fold.clone(), seal, trigger, hooks: hooks.to_vec(), now }
    }

    /// Saves a snapshot. On return it is durable, and obsolete ones are removed.
    pub(crate) fn save(&self, order: SaveOrder) -> Result<LastSave, SaveFailure> {
        let SaveOrder { ref fold, ref seal, trigger, ref hooks, now } = order;
        let schema = Some(self.schema.digest());
        let body = body::of(fold, trigger, &self.config.schema_version, schema, hooks, now);
        let refused = |error: SchemaError| SaveFailure { code: error.code(), why: error.to_string(), attempts: 0 };
        self.schema.check(&body).map_err(refused)?;
        let performance = &self.config.checkpoint.performance;
        let under = fold.saved.under.as_ref().filter(|(_, base)| performance.incremental && base.depth <= CHAIN_MAX);
        let changed = under.and_then(|(before, base)| Some((change(before, &body, base)?, base.depth)));
        let (document, depth) = match changed {
            Some((change, depth)) => (Some(change), depth),
            None => (None, 0),
        };
        let whole = document.as_ref().unwrap_or(&body);
        // What can't be signed as JSON can be signed as packed text.
        let packed = (performance.compress || check_canonicalizable(whole).is_err()).then(|| form::pack(whole));
        let text_bytes = packed.as_ref().and_then(|packed| packed["packed"]["bytes"].as_u64());
        let saved = match (packed, document) {
            (Some(mut packed), _) => self.write(fold, seal, &mut packed)?,
            (None, Some(mut change)) => self.write(fold, seal, &mut change)?,
            (None, None) if performance.incremental => self.write(fold, seal, &mut body.clone())?,
            (None, None) => {
                let mut body = body;
                let saved = self.write(fold, seal, &mut body)?;
                let Cleanup { notice, untidy } = self.tidy(fold, saved.before, now);
                return Ok(LastSave {
                    notice,
                    untidy,
                    ..LastSave::whole(fold.head.version, fold.head.bytes, saved.bytes)
                });
            }
        };
        let SavedSnapshot { hash, bytes, before: stood } = saved;
        let Cleanup { notice, untidy } = self.tidy(fold, stood, now);
        let before = if depth > 0 { fold.saved.state_bytes } else { 0 };
        let base = Base { log_version: fold.head.version, hash, depth: depth + 1 };
        Ok(LastSave {
            under: performance.incremental.then(|| (Arc::new(body), base)),
            notice,
            untidy,
            ..LastSave::whole(fold.head.version, fold.head.bytes, before + text_bytes.unwrap_or(bytes))
        })
    }

    /// The record of a save that failed: it is tried again after the log has grown.
    pub(crate) fn tried(fold: &Fold) -> LastSave {
        LastSave { tried_bytes: fold.head.bytes, ..fold.saved.clone() }
    }

    /// Writes a snapshot, with retries.
    fn write(&self, fold: &Fold, seal: &Option<String>, document: &mut Value) -> Result<SavedSnapshot, SaveFailure> {
        if let (Some(members), Some(seal)) = (document.as_object_mut(), seal) {
            members.insert("seal".to_owned(), Value::String(seal.clone()));
        }
        let retry = &self.config.checkpoint.performance.retry;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let error = match self.store.save(fold.thread_id(), document) {
                Ok(saved) => return Ok(saved),
                Err(error) => error,
            };
            let passes = matches!(error, StoreError::Io { .. } | StoreError::Database { .. });
            if !passes || attempts >= retry.attempts() {
                return Err(SaveFailure::of(&error, attempts));
            }
            let factor = match retry.backoff {
                Backoff::Exponential => 2_u32.saturating_pow(attempts - 1),
                Backoff::Constant => 1,
            };
            Cancel::new().wait(WAIT.saturating_mul(factor));
        }
    }

    /// Removes obsolete snapshots; returns what was wrong with `stood`, the previous newest one, if anything was. One that can't be removed
    /// now is removed after the next save; that is published, and not recorded, because nothing is missing. A snapshot that is not valid does
    /// not count, and is left for inspection. They are only read if any would be removed.
    fn tidy(&self, fold: &Fold, stood: Option<Replaced>, now: Timestamp) -> Cleanup {
        let thread = fold.thread_id();
        let kept = match self.store.list_snapshots(thread, &self.archive) {
            Ok(kept) => kept,
            Err(error) => {
                return Cleanup { notice: stood.and_then(|it| wrong(&it, fold, &[])), untidy: untidy(&error) };
            }
        };
        let notice =
            stood.and_then(|stood| wrong(&stood, fold, &kept).or_else(|| self.invalid_base(&stood, fold, &kept)));
        let newest = kept.iter().find(|kept| kept.place == SnapshotFolder::Newest);
        let mut older = at(&kept, SnapshotFolder::Older);
        if superfluous(&older, newest, &self.config.retention, now).is_empty() {
            return Cleanup { notice, untidy: None };
        }
        older.retain(|kept| self.is_good(thread, kept));
        let gone = superfluous(&older, newest, &self.config.retention, now);
        let away = self.store.dispose(thread, &gone, &self.archive, Disposal::Delete);
        Cleanup { notice, untidy: away.err().and_then(|error| untidy(&error)) }
    }

    /// What is wrong with the base of `stood`, the previous newest snapshot. A snapshot that was saved by this process is not checked again:
    /// its base was saved by it, too.
    fn invalid_base(&self, stood: &Replaced, fold: &Fold, kept: &[SnapshotInfo]) -> Option<String> {
        let Replaced::Kept(version) = stood else { return None };
        let is_it =
            |one: &&SnapshotInfo| one.place == SnapshotFolder::Older && one.version == *version && one.base.is_some();
        let one = kept.iter().find(is_it).filter(|_| fold.saved.under.is_none())?;
        self.fault(fold.thread_id(), one, kept).map(|why| invalid_notice(&why))
    }

    /// The state of the newest snapshot; it is not valid either if its base is not.
    pub(crate) fn newest(&self, thread: &ThreadId) -> NewestState {
        // An error that concerns all of them is reported when they are archived or removed.
        let kept = self.store.list_snapshots(thread, &self.archive).unwrap_or_default();
        match kept.iter().find(|one| one.place == SnapshotFolder::Newest) {
            Some(one) if self.fault(thread, one, &kept).is_some() => NewestState::Invalid,
            Some(_) => NewestState::Valid,
            None => NewestState::Absent,
        }
    }

    /// Whether the snapshots of a completed thread stay where they are.
    pub(crate) fn keeps_completed(&self) -> bool {
        self.config.retention.on_completion.action == Action::Keep
    }

    fn is_good(&self, thread: &ThreadId, kept: &SnapshotInfo) -> bool {
        self.store.read_snapshot(thread, kept, &self.archive).is_ok()
    }

    /// Archives or removes the snapshots of a completed thread, as configured. They are projections: what can't be done is left, and the
    /// reason is returned. Older ones that are not valid stay where they are, for inspection: nothing was loaded from them, and the list of
    /// snapshots names them.
    pub(crate) fn complete(&self, thread: &ThreadId, now: Timestamp) -> Result<(), SaveFailure> {
        let action = self.config.retention.on_completion.action;
        if action == Action::Keep {
            return Ok(());
        }
        self.put_all_away(thread, action, now).map_err(|error| SaveFailure::of(&error, 1))
    }

    fn put_all_away(&self, thread: &ThreadId, action: Action, now: Timestamp) -> selvedge_store::Result<()> {
        let kept = self.store.list_snapshots(thread, &self.archive)?;
        let mut here: Vec<SnapshotInfo> =
            kept.iter().filter(|kept| kept.place != SnapshotFolder::Archived).cloned().collect();
        if here.is_empty() {
            return Ok(());
        }
        if action == Action::Delete {
            // A file that is not a snapshot may not be removable: it comes last.
            here.sort_by_key(|kept| !kept.is_snapshot());
            return self.store.dispose(thread, &here, &self.archive, Disposal::Delete);
        }
        here.retain(|kept| self.is_good(thread, kept));
        self.store.dispose(thread, &here, &self.archive, Disposal::Archive(&self.archive))?;
        let kept = self.store.list_snapshots(thread, &self.archive)?;
        let gone = superfluous(&at(&kept, SnapshotFolder::Archived), None, &self.config.retention, now);
        self.store.dispose(thread, &gone, &self.archive, Disposal::Delete)
    }
}

/// The result of removing obsolete snapshots.
struct Cleanup {
    /// What was wrong with the previous newest snapshot.
    notice: Option<String>,
    /// Why obsolete ones could not be removed.
    untidy: Option<String>,
}

fn untidy(error: &StoreError) -> Option<String> {
    Some(format!("obsolete snapshots could not be removed: {error}"))
}

fn invalid_notice(why: &str) -> String {
    format!("`{NEWEST}` was not valid, and is rebuilt: {why}")
}

/// What was wrong with the previous newest snapshot: it was not valid, or older than another one.
fn wrong(stood: &Replaced, fold: &Fold, kept: &[SnapshotInfo]) -> Option<String> {
    match stood {
        Replaced::Bad(why) => Some(invalid_notice(why)),
        Replaced::Kept(version) => {
            let older = kept.iter().filter(|kept| kept.place == SnapshotFolder::Older).map(|kept| kept.version);
            let known = older.chain(fold.saved.saved_version).filter(|known| *known < fold.head.version).max();
            known.filter(|known| known > version).map(|known| {
                format!("`{NEWEST}` was that of version {version}, although one of version {known} was saved after it; it is rebuilt")
            })
        }
    }
}

fn at(kept: &[SnapshotInfo], place: SnapshotFolder) -> Vec<SnapshotInfo> {
    kept.iter().filter(|kept| kept.place == place).cloned().collect()
}

/// The change from `before` to `body`, if applying it gives exactly `body`.
fn change(before: &Value, body: &Value, base: &Base) -> Option<Value> {
    let change = form::change(before, body, base);
    form::changed(before.clone(), &change).is_ok_and(|again| again == *body).then_some(change)
}
