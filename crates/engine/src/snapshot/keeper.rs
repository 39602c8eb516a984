//! Saving snapshots: made, checked, brought into form, written with patience, and the superfluous ones taken away.

use std::sync::Arc;
use std::time::Duration;

use selvedge_items::config::state_persistence::{Action, Backoff, StatePersistence};
use selvedge_log::strict::check_canonicalizable;
use selvedge_model::error::Classify;
use selvedge_model::{Cancel, ThreadId, Timestamp};
use selvedge_store::snapshot::{Away, Before, Kept, NEWEST, Place, Saved};
use selvedge_store::{Error as StoreError, Snapshots};
use serde_json::{Value, json};

use super::body;
use super::form::{self, Base, CHAIN_MAX};
use super::retain::superfluous;
use super::schema::{Schema, SchemaError};
use super::trigger::{Progress, Trigger};
use crate::fold::Fold;

/// Where an archive lies when the configuration says nothing that can be used.
const ARCHIVE: &str = "archive";
/// How long to wait after the first failure.
const WAIT: Duration = Duration::from_millis(50);

/// Saves snapshots of threads, as a configuration says.
pub struct Keeper {
    pub(super) store: Arc<dyn Snapshots>,
    pub(super) schema: Schema,
    pub(super) archive: String,
    config: StatePersistence,
}

/// What is known of the last snapshot of a thread that was saved, or tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Last {
    pub(super) saved_version: Option<u64>,
    pub(super) tried_bytes: u64,
    pub(super) state_bytes: u64,
    /// What the next one can stand on, if it says only what changed.
    under: Option<(Arc<Value>, Base)>,
    /// What was wrong with what stood in its place, if anything was.
    pub(crate) notice: Option<String>,
    /// Whether it was told already that what stands there is not good.
    pub(crate) is_told: bool,
    /// Why superfluous ones could not be taken away, if they could not.
    pub(crate) untidy: Option<String>,
}

impl Last {
    /// A whole snapshot of this length, of a log that was as long as this.
    pub(super) fn whole(version: u64, log_bytes: u64, state_bytes: u64) -> Self {
        Self { saved_version: Some(version), tried_bytes: log_bytes, state_bytes, ..Self::default() }
    }

    /// The next one says everything, and stands on no other.
    pub(crate) fn stand_on_nothing(&mut self) {
        self.under = None;
    }
}

/// What stands in the place of the newest snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewestIs {
    Absent,
    Good,
    Bad,
}

/// A snapshot that is to be saved.
pub(crate) struct Order {
    fold: Fold,
    seal: Option<String>,
    /// What it is saved for.
    trigger: &'static str,
    hooks: Vec<Value>,
    now: Timestamp,
}

/// A snapshot that could not be saved, or put away.
#[derive(Debug)]
pub(crate) struct Failure {
    code: &'static str,
    pub(crate) why: String,
    attempts: u32,
}

impl Failure {
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
    /// A keeper; refuses a schema that is none.
    pub fn new(store: Arc<dyn Snapshots>, config: StatePersistence) -> Result<Self, SchemaError> {
        let schema = Schema::new(&config.state)?;
        let archive = config.retention.on_completion.archive_folder().unwrap_or(ARCHIVE).to_owned();
        Ok(Self { store, schema, archive, config })
    }

    /// Whether a trigger saves now.
    pub(crate) fn is_due(&self, fold: &Fold, trigger: Trigger) -> bool {
        let Last { saved_version, tried_bytes, state_bytes, .. } = fold.saved;
        let progress = Progress {
            version: fold.head.version,
            log_bytes: fold.head.bytes,
            saved_version,
            tried_bytes,
            state_bytes,
        };
        trigger.is_due(&self.config.checkpoint, &progress)
    }

    /// Whether a trigger saves before the run goes on.
    pub(crate) fn is_at_once(&self, trigger: Trigger) -> bool {
        trigger.is_at_once(&self.config.checkpoint)
    }

    /// What is to be saved: what is known now, with the store's seal of now. A store that can't seal says so when it saves.
    pub(crate) fn order(&self, fold: &Fold, trigger: &'static str, hooks: &[Value], now: Timestamp) -> Order {
        let seal = self.store.seal(fold.thread_id(), &fold.head).ok().flatten();
        Order { fold: fold.clone(), seal, trigger, hooks: hooks.to_vec(), now }
    }

    /// Saves a snapshot. On return it is durable, and those that are superfluous now are gone.
    pub(crate) fn save(&self, order: Order) -> Result<Last, Failure> {
        let Order { ref fold, ref seal, trigger, ref hooks, now } = order;
        let schema = Some(self.schema.digest());
        let body = body::of(fold, trigger, &self.config.schema_version, schema, hooks, now);
        let refused = |error: SchemaError| Failure { code: error.code(), why: error.to_string(), attempts: 0 };
        self.schema.check(&body).map_err(refused)?;
        let performance = &self.config.checkpoint.performance;
        let under = fold.saved.under.as_ref().filter(|(_, base)| performance.incremental && base.depth <= CHAIN_MAX);
        let changed = under.and_then(|(before, base)| Some((change(before, &body, base)?, base.depth)));
        let (document, depth) = match changed {
            Some((change, depth)) => (Some(change), depth),
            None => (None, 0),
        };
        let whole = document.as_ref().unwrap_or(&body);
        // What can't be signed as it is can be signed as the text that it is.
        let packed = (performance.compress || check_canonicalizable(whole).is_err()).then(|| form::pack(whole));
        let text_bytes = packed.as_ref().and_then(|packed| packed["packed"]["bytes"].as_u64());
        let saved = match (packed, document) {
            (Some(mut packed), _) => self.write(fold, seal, &mut packed)?,
            (None, Some(mut change)) => self.write(fold, seal, &mut change)?,
            (None, None) if performance.incremental => self.write(fold, seal, &mut body.clone())?,
            (None, None) => {
                let mut body = body;
                let saved = self.write(fold, seal, &mut body)?;
                let Tidied { notice, untidy } = self.tidy(fold, saved.before, now);
                return Ok(Last { notice, untidy, ..Last::whole(fold.head.version, fold.head.bytes, saved.bytes) });
            }
        };
        let Saved { hash, bytes, before: stood } = saved;
        let Tidied { notice, untidy } = self.tidy(fold, stood, now);
        let before = if depth > 0 { fold.saved.state_bytes } else { 0 };
        let base = Base { log_version: fold.head.version, hash, depth: depth + 1 };
        Ok(Last {
            under: performance.incremental.then(|| (Arc::new(body), base)),
            notice,
            untidy,
            ..Last::whole(fold.head.version, fold.head.bytes, before + text_bytes.unwrap_or(bytes))
        })
    }

    /// What is remembered of a save that failed: it is tried again once the log has grown.
    pub(crate) fn tried(fold: &Fold) -> Last {
        Last { tried_bytes: fold.head.bytes, ..fold.saved.clone() }
    }

    /// Writes with patience.
    fn write(&self, fold: &Fold, seal: &Option<String>, document: &mut Value) -> Result<Saved, Failure> {
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
                return Err(Failure::of(&error, attempts));
            }
            let factor = match retry.backoff {
                Backoff::Exponential => 2_u32.saturating_pow(attempts - 1),
                Backoff::Constant => 1,
            };
            Cancel::new().wait(WAIT.saturating_mul(factor));
        }
    }

    /// Takes superfluous snapshots away, and says what was wrong with what `stood` in the place of the newest, if anything was. What can't be
    /// taken away now is so after the next save; that is told, and not recorded, because nothing is missing. One that is not good counts
    /// for nothing, and is left for whoever looks into it; they are only read when something would go.
    fn tidy(&self, fold: &Fold, stood: Option<Before>, now: Timestamp) -> Tidied {
        let thread = fold.thread_id();
        let kept = match self.store.kept(thread, &self.archive) {
            Ok(kept) => kept,
            Err(error) => return Tidied { notice: stood.and_then(|it| wrong(&it, fold, &[])), untidy: untidy(&error) },
        };
        let notice = stood.and_then(|stood| wrong(&stood, fold, &kept).or_else(|| self.unfounded(&stood, fold, &kept)));
        let newest = kept.iter().find(|kept| kept.place == Place::Newest);
        let mut older = at(&kept, Place::Older);
        if superfluous(&older, newest, &self.config.retention, now).is_empty() {
            return Tidied { notice, untidy: None };
        }
        older.retain(|kept| self.is_good(thread, kept));
        let gone = superfluous(&older, newest, &self.config.retention, now);
        let away = self.store.put_away(thread, &gone, &self.archive, Away::Delete);
        Tidied { notice, untidy: away.err().and_then(|error| untidy(&error)) }
    }

    /// What is wrong with what the snapshot stands on that `stood` in the place of the newest. What was saved in this life is not looked at
    /// again: what it stands on was saved in it too.
    fn unfounded(&self, stood: &Before, fold: &Fold, kept: &[Kept]) -> Option<String> {
        let Before::Kept(version) = stood else { return None };
        let is_it = |one: &&Kept| one.place == Place::Older && one.version == *version && one.base.is_some();
        let one = kept.iter().find(is_it).filter(|_| fold.saved.under.is_none())?;
        self.fault(fold.thread_id(), one, kept).map(|why| not_good(&why))
    }

    /// What stands in the place of the newest snapshot; it is not good either if it stands on one that is not.
    pub(crate) fn newest(&self, thread: &ThreadId) -> NewestIs {
        // What keeps all of them from being read is said by whoever puts them away.
        let kept = self.store.kept(thread, &self.archive).unwrap_or_default();
        match kept.iter().find(|one| one.place == Place::Newest) {
            Some(one) if self.fault(thread, one, &kept).is_some() => NewestIs::Bad,
            Some(_) => NewestIs::Good,
            None => NewestIs::Absent,
        }
    }

    /// Whether the snapshots of a thread that is completed stay where they are.
    pub(crate) fn keeps_completed(&self) -> bool {
        self.config.retention.on_completion.action == Action::Keep
    }

    fn is_good(&self, thread: &ThreadId, kept: &Kept) -> bool {
        self.store.read_snapshot(thread, kept, &self.archive).is_ok()
    }

    /// What becomes of the snapshots of a thread that is completed. They are projections: what can't be done is left, and why is given.
    /// Older ones that are not good stay where they are, for whoever looks into it: nothing was made of them, and the list of snapshots
    /// names them.
    pub(crate) fn complete(&self, thread: &ThreadId, now: Timestamp) -> Result<(), Failure> {
        let action = self.config.retention.on_completion.action;
        if action == Action::Keep {
            return Ok(());
        }
        self.put_all_away(thread, action, now).map_err(|error| Failure::of(&error, 1))
    }

    fn put_all_away(&self, thread: &ThreadId, action: Action, now: Timestamp) -> selvedge_store::Result<()> {
        let kept = self.store.kept(thread, &self.archive)?;
        let mut here: Vec<Kept> = kept.iter().filter(|kept| kept.place != Place::Archived).cloned().collect();
        if here.is_empty() {
            return Ok(());
        }
        if action == Action::Delete {
            // What is no snapshot can perhaps not be removed: it comes last.
            here.sort_by_key(|kept| !kept.is_told());
            return self.store.put_away(thread, &here, &self.archive, Away::Delete);
        }
        here.retain(|kept| self.is_good(thread, kept));
        self.store.put_away(thread, &here, &self.archive, Away::Archive(&self.archive))?;
        let kept = self.store.kept(thread, &self.archive)?;
        let gone = superfluous(&at(&kept, Place::Archived), None, &self.config.retention, now);
        self.store.put_away(thread, &gone, &self.archive, Away::Delete)
    }
}

/// What came of taking superfluous snapshots away.
struct Tidied {
    /// What was wrong with what stood in the place of the newest.
    notice: Option<String>,
    /// Why they could not be taken away.
    untidy: Option<String>,
}

fn untidy(error: &StoreError) -> Option<String> {
    Some(format!("older snapshots that are superfluous could not be taken away: {error}"))
}

fn not_good(why: &str) -> String {
    format!("`{NEWEST}` was not good, and is made anew: {why}")
}

/// What was wrong with what stood in the place of the newest snapshot: it was not good, or older than one that is known.
fn wrong(stood: &Before, fold: &Fold, kept: &[Kept]) -> Option<String> {
    match stood {
        Before::Bad(why) => Some(not_good(why)),
        Before::Kept(version) => {
            let others = kept.iter().filter(|kept| kept.place == Place::Older).map(|kept| kept.version);
            let known = others.chain(fold.saved.saved_version).filter(|known| *known < fold.head.version).max();
            known.filter(|known| known > version).map(|known| {
                format!("`{NEWEST}` was that of version {version}, though one of version {known} was saved after it; it is made anew")
            })
        }
    }
}

fn at(kept: &[Kept], place: Place) -> Vec<Kept> {
    kept.iter().filter(|kept| kept.place == place).cloned().collect()
}

/// Only what changed, if that can be told and says the same.
fn change(before: &Value, body: &Value, base: &Base) -> Option<Value> {
    let change = form::change(before, body, base);
    form::changed(before.clone(), &change).is_ok_and(|again| again == *body).then_some(change)
}
