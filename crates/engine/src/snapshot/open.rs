//! Loads a thread from its newest valid snapshot and the rest of the log; and that snapshot by itself, for display.

use selvedge_items::config::state_persistence::is_known_version;
use selvedge_log::Trust;
use selvedge_log::scan::{Scanner, examine};
use selvedge_model::{Event, ThreadId, Timestamp};
use selvedge_store::snapshot::{SnapshotInfo, VerifiedSnapshot};
use selvedge_store::{Logs, Snapshots};
use serde_json::Value;

use super::WORTH_BYTES;
use super::body::{self, Body};
use super::form::{self, Base, CHAIN_MAX};
use super::keeper::{Keeper, LastSave};
use super::schema::Schema;
use crate::fold::Fold;

/// How many snapshots are tried before the log is read from its beginning.
const TRIED_MAX: usize = 3;

/// The newest valid snapshot of a thread, and what is wrong with newer ones.
#[derive(Debug)]
pub struct Newest<T = Value> {
    /// The snapshot, full and unpacked, if there is a valid one.
    pub good: Option<(SnapshotInfo, T)>,
    /// What is wrong with the newer ones.
    pub bad: Vec<(SnapshotInfo, String)>,
}

/// Finds the newest valid snapshot of a thread: signed, in a known form, and accepted by the schema. Whether it agrees with the log is not
/// checked.
pub fn newest(
    store: &dyn Snapshots,
    schema: &Schema,
    archive: &str,
    thread: &ThreadId,
) -> selvedge_store::Result<Newest> {
    let reader = SnapshotReader { store, schema, archive, thread, kept: store.list_snapshots(thread, archive)? };
    Ok(reader.first(|one| reader.whole(one, reader.read(one)?)))
}

/// The same, among the versions that are wanted.
pub fn newest_of(
    store: &dyn Snapshots,
    schema: &Schema,
    archive: &str,
    thread: &ThreadId,
    wanted: &dyn Fn(u64) -> bool,
) -> selvedge_store::Result<Newest> {
    let reader = SnapshotReader { store, schema, archive, thread, kept: store.list_snapshots(thread, archive)? };
    let read = |one: &SnapshotInfo| {
        if wanted(one.version) {
            reader.whole(one, reader.read(one)?)
        } else {
            Err("it is of another version".to_owned())
        }
    };
    Ok(reader.first(read))
}

/// Every snapshot of a thread, newest first; for one that can't be used, with the reason.
pub fn examined(
    store: &dyn Snapshots,
    schema: &Schema,
    archive: &str,
    thread: &ThreadId,
) -> selvedge_store::Result<Vec<(SnapshotInfo, Option<String>)>> {
    let reader = SnapshotReader { store, schema, archive, thread, kept: store.list_snapshots(thread, archive)? };
    let check = |one: &SnapshotInfo| (one.clone(), reader.read(one).and_then(|read| reader.whole(one, read)).err());
    Ok(reader.kept.iter().map(check).collect())
}

/// The content of a snapshot of a thread as of now, made from its log. Nothing is saved.
pub fn from_log(
    logs: &dyn Logs,
    thread: &ThreadId,
    trust: &Trust,
    version: &str,
    now: Timestamp,
) -> selvedge_store::Result<Value> {
    Ok(body::of(&Fold::load(logs, thread, trust)?, "on_request", version, None, &[], now))
}

/// The snapshots of a thread, and how to read one.
struct SnapshotReader<'a> {
    store: &'a dyn Snapshots,
    schema: &'a Schema,
    archive: &'a str,
    thread: &'a ThreadId,
    /// All of them, newest first.
    kept: Vec<SnapshotInfo>,
}

impl SnapshotReader<'_> {
    /// The newest one that can be read.
    fn first<T>(&self, read: impl Fn(&SnapshotInfo) -> Result<T, String>) -> Newest<T> {
        let mut bad = Vec::new();
        for one in self.kept.iter().take(TRIED_MAX) {
            match read(one) {
                Ok(good) => return Newest { good: Some((one.clone(), good)), bad },
                Err(why) => bad.push((one.clone(), why)),
            }
        }
        Newest { good: None, bad }
    }

    /// Reads one and checks its signature.
    fn read(&self, one: &SnapshotInfo) -> Result<VerifiedSnapshot, String> {
        self.store.read_snapshot(self.thread, one, self.archive).map_err(|error| error.to_string())
    }

    /// The content for loading a thread. A full snapshot that was checked against this schema before it was signed is parsed just once.
    fn body(&self, one: &SnapshotInfo) -> Result<Body, String> {
        let read = self.read(one)?;
        match serde_json::from_slice::<Body>(&read.text) {
            Ok(body) if body.schema() == Some(self.schema.digest()) && body.thread_id == *self.thread => {
                known(&body.version).map(|()| body)
            }
            _ => serde_json::from_value(self.whole(one, read)?)
                .map_err(|error| format!("no thread can be loaded from it: {error}")),
        }
    }

    /// The full content of a snapshot, with all changes applied, and checked.
    fn whole(&self, one: &SnapshotInfo, read: VerifiedSnapshot) -> Result<Value, String> {
        let (mut body, changes) = self.stack(one, read)?;
        for change in changes.iter().rev() {
            body = form::changed(body, change).map_err(|error| error.to_string())?;
        }
        known(body.get("version").and_then(Value::as_str).unwrap_or_default())?;
        self.schema.check(&body).map_err(|error| error.to_string())?;
        if body.get("thread_id").and_then(Value::as_str) != Some(self.thread.as_str()) {
            return Err("it is of another thread".to_owned());
        }
        Ok(body)
    }

    /// The full snapshot that one is based on, and the changes on top of it, the last first; each has a valid signature and the right hash.
    fn stack(&self, one: &SnapshotInfo, read: VerifiedSnapshot) -> Result<(Value, Vec<Value>), String> {
        let unpacked = |read: VerifiedSnapshot| {
            let body = read.body().map_err(|error| error.to_string())?;
            form::unpacked(body).map_err(|error| error.to_string())
        };
        let mut top = unpacked(read)?;
        let mut changes = Vec::new();
        while let Some(base) = form::base_of(&top).map_err(|error| error.to_string())? {
            if changes.len() >= CHAIN_MAX as usize {
                return Err(format!("more than {CHAIN_MAX} changes are based on each other"));
            }
            changes.push(top);
            top = unpacked(self.below(one, &base)?)?;
        }
        Ok((top, changes))
    }

    /// The base of a snapshot; the error says what is wrong with it.
    fn below(&self, one: &SnapshotInfo, base: &Base) -> Result<VerifiedSnapshot, String> {
        let mut wrong = "does not exist".to_owned();
        let is_below = |kept: &&SnapshotInfo| kept.version == base.log_version && kept.version < one.version;
        for kept in self.kept.iter().filter(is_below) {
            match self.read(kept) {
                Ok(read) if read.hash == base.hash => return Ok(read),
                Ok(_) => wrong = "was replaced by another one".to_owned(),
                Err(why) => wrong = format!("is not valid: {why}"),
            }
        }
        Err(format!("its base of version {} {wrong}", base.log_version))
    }
}

/// Refuses a snapshot of an unknown format: its fields may have another meaning.
fn known(version: &str) -> Result<(), String> {
    if is_known_version(version) {
        return Ok(());
    }
    Err(format!("its format version `{}` is unknown", version.escape_debug()))
}

/// The result of looking for a snapshot to load a thread from.
pub(crate) enum Loaded {
    /// The thread, up to the end of its log.
    Fold(Box<Fold>),
    /// The log is to be read from its beginning; that needs no notice.
    Nothing,
    /// The same, for this reason, which is to be published.
    Refused(String),
}

impl Keeper {
    fn reader<'a>(&'a self, thread: &'a ThreadId, kept: Vec<SnapshotInfo>) -> SnapshotReader<'a> {
        SnapshotReader { store: &*self.store, schema: &self.schema, archive: &self.archive, thread, kept }
    }

    /// What is wrong with a snapshot, or with its base among all that are `kept`, if anything is.
    pub(super) fn fault(&self, thread: &ThreadId, one: &SnapshotInfo, kept: &[SnapshotInfo]) -> Option<String> {
        let reader = self.reader(thread, kept.to_vec());
        reader.read(one).and_then(|read| reader.stack(one, read)).err()
    }

    /// Loads a thread from its newest valid snapshot and the rest of the log, if its log is long enough for that.
    pub(crate) fn begin(&self, thread: &ThreadId, log_bytes: u64, trust: &Trust) -> Loaded {
        if log_bytes < WORTH_BYTES {
            return Loaded::Nothing;
        }
        let kept = match self.store.list_snapshots(thread, &self.archive) {
            Ok(kept) => kept,
            Err(error) => return Loaded::Refused(format!("the snapshots can't be read: {error}")),
        };
        let reader = self.reader(thread, kept);
        let found = reader.first(|one| reader.body(one));
        let refused = found.bad.first().map(|(kept, why)| format!("`{}` is not used: {why}", kept.name));
        let fold = found.good.map(|(kept, body)| self.with_later_log(thread, &kept, body, trust));
        match (fold, refused) {
            (Some(Loaded::Fold(mut fold)), refused) => {
                fold.notice = refused;
                Loaded::Fold(fold)
            }
            (_, Some(why)) => Loaded::Refused(why),
            (Some(loaded), None) => loaded,
            (None, None) => Loaded::Nothing,
        }
    }

    fn with_later_log(&self, thread: &ThreadId, kept: &SnapshotInfo, body: Body, trust: &Trust) -> Loaded {
        let refused = |why: &str| Loaded::Refused(format!("`{}` is not used: {why}", kept.name));
        let at = body.head().clone();
        let is_one = at.version == body.log_version && at.hash == body.log_hash && body.thread_id == *thread;
        if !is_one {
            return refused("it contradicts itself about the version that it folds");
        }
        // Without our store's seal for the log before it, every byte would have to be hashed; then it can as well be folded.
        let Some(seal) = body.seal.clone() else { return Loaded::Nothing };
        let later = match self.store.log_after(thread, &at, &seal) {
            Ok(Some(later)) => later,
            Ok(None) => return Loaded::Nothing,
            Err(error) => return refused(&error.to_string()),
        };
        let mut fold = body.into_fold();
        let scanner = Scanner::resuming(thread, trust, at.clone(), later.hash);
        let mut is_rotated = false;
        let mut failed = None;
        let examined = examine(later.bytes, scanner, |entry| {
            is_rotated |= entry.lines.iter().any(|line| matches!(line.event, Event::KeyRotated(_)));
            failed = failed.take().or_else(|| fold.absorb(entry).err());
        });
        let is_whole = examined.is_ok_and(|examined| examined.damage.is_none() && examined.unread.is_none());
        if is_rotated || failed.is_some() || !is_whole || fold.head != later.head {
            // If the log is damaged, reading all of it finds that.
            return Loaded::Nothing;
        }
        fold.saved = LastSave::whole(kept.version, at.bytes, kept.bytes);
        Loaded::Fold(Box::new(fold))
    }
}
