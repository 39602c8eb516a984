//! A thread from its newest good snapshot and the log behind it; and that snapshot by itself, for whoever wants to look at it.

use selvedge_items::config::state_persistence::is_known_version;
use selvedge_log::Trust;
use selvedge_log::scan::{Scanner, examine};
use selvedge_model::{Event, ThreadId, Timestamp};
use selvedge_store::snapshot::{Kept, Read};
use selvedge_store::{Logs, Snapshots};
use serde_json::Value;

use super::WORTH_BYTES;
use super::body::{self, Body};
use super::form::{self, Base, CHAIN_MAX};
use super::keeper::{Keeper, Last};
use super::schema::Schema;
use crate::fold::Fold;

/// How many snapshots are looked at before the log is read from its beginning.
const TRIED_MAX: usize = 3;

/// The newest good snapshot of a thread, and what is wrong with those that are newer.
#[derive(Debug)]
pub struct Newest<T = Value> {
    /// The snapshot, whole and unpacked, if there is a good one.
    pub good: Option<(Kept, T)>,
    /// What is wrong with the others.
    pub bad: Vec<(Kept, String)>,
}

/// Finds the newest good snapshot of a thread: signed, in a form that is known, and as the schema says. Whether it is what the log says is
/// another question.
pub fn newest(
    store: &dyn Snapshots,
    schema: &Schema,
    archive: &str,
    thread: &ThreadId,
) -> selvedge_store::Result<Newest> {
    let shelf = Shelf { store, schema, archive, thread, kept: store.kept(thread, archive)? };
    Ok(shelf.first(|one| shelf.whole(one, shelf.read(one)?)))
}

/// Every snapshot of a thread, the newest first, with why it can't be used, if it can't.
pub fn examined(
    store: &dyn Snapshots,
    schema: &Schema,
    archive: &str,
    thread: &ThreadId,
) -> selvedge_store::Result<Vec<(Kept, Option<String>)>> {
    let shelf = Shelf { store, schema, archive, thread, kept: store.kept(thread, archive)? };
    let check = |one: &Kept| (one.clone(), shelf.read(one).and_then(|read| shelf.whole(one, read)).err());
    Ok(shelf.kept.iter().map(check).collect())
}

/// What a snapshot of a thread would say now, made from its log. Nothing is saved.
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
struct Shelf<'a> {
    store: &'a dyn Snapshots,
    schema: &'a Schema,
    archive: &'a str,
    thread: &'a ThreadId,
    /// All of them, the newest first.
    kept: Vec<Kept>,
}

impl Shelf<'_> {
    /// The newest that can be read.
    fn first<T>(&self, read: impl Fn(&Kept) -> Result<T, String>) -> Newest<T> {
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
    fn read(&self, one: &Kept) -> Result<Read, String> {
        self.store.read_snapshot(self.thread, one, self.archive).map_err(|error| error.to_string())
    }

    /// What a run goes on with. A whole snapshot that was checked against this very schema before it was signed is read just once.
    fn body(&self, one: &Kept) -> Result<Body, String> {
        let read = self.read(one)?;
        match serde_json::from_slice::<Body>(&read.text) {
            Ok(body) if body.schema() == Some(self.schema.digest()) && body.thread_id == *self.thread => {
                known(&body.version).map(|()| body)
            }
            _ => serde_json::from_value(self.whole(one, read)?)
                .map_err(|error| format!("a run can't go on from it: {error}")),
        }
    }

    /// What one says with everything that it stands on, each one checked.
    fn whole(&self, one: &Kept, read: Read) -> Result<Value, String> {
        let (mut body, changes) = self.stack(one, read)?;
        for change in changes.iter().rev() {
            body = form::changed(body, change).map_err(|error| error.to_string())?;
        }
        known(body.get("version").and_then(Value::as_str).unwrap_or_default())?;
        self.schema.check(&body).map_err(|error| error.to_string())?;
        match body.get("thread_id").and_then(Value::as_str) == Some(self.thread.as_str()) {
            true => Ok(body),
            false => Err("it is of another thread".to_owned()),
        }
    }

    /// The whole snapshot that one stands on, and the changes on top of it, the last first; each is rightly signed and the one that is meant.
    fn stack(&self, one: &Kept, read: Read) -> Result<(Value, Vec<Value>), String> {
        let unpacked = |read: Read| {
            let body = read.body().map_err(|error| error.to_string())?;
            form::unpacked(body).map_err(|error| error.to_string())
        };
        let mut top = unpacked(read)?;
        let mut changes = Vec::new();
        while let Some(base) = form::base_of(&top).map_err(|error| error.to_string())? {
            if changes.len() >= CHAIN_MAX as usize {
                return Err(format!("more than {CHAIN_MAX} snapshots stand on each other"));
            }
            changes.push(top);
            top = unpacked(self.below(one, &base)?)?;
        }
        Ok((top, changes))
    }

    /// The one that another stands on, or what is wrong with what is there in its place.
    fn below(&self, one: &Kept, base: &Base) -> Result<Read, String> {
        let mut wrong = "is not there".to_owned();
        let is_below = |kept: &&Kept| kept.version == base.log_version && kept.version < one.version;
        for kept in self.kept.iter().filter(is_below) {
            match self.read(kept) {
                Ok(read) if read.hash == base.hash => return Ok(read),
                Ok(_) => wrong = "is not there, but another one in its place".to_owned(),
                Err(why) => wrong = format!("is there and not good: {why}"),
            }
        }
        Err(format!("the one of version {} that it stands on {wrong}", base.log_version))
    }
}

/// Refuses a snapshot of a format that is not known: what it says may mean something else there.
fn known(version: &str) -> Result<(), String> {
    match is_known_version(version) {
        true => Ok(()),
        false => Err(format!("its format has the version `{}`, which is not known", version.escape_debug())),
    }
}

/// What became of looking for a snapshot to begin with.
pub(crate) enum Begun {
    /// The thread, up to the end of its log.
    Fold(Box<Fold>),
    /// The log is to be read from its beginning, and there is nothing to say about that.
    Nothing,
    /// The same, because of this.
    Refused(String),
}

impl Keeper {
    fn shelf<'a>(&'a self, thread: &'a ThreadId, kept: Vec<Kept>) -> Shelf<'a> {
        Shelf { store: &*self.store, schema: &self.schema, archive: &self.archive, thread, kept }
    }

    /// What is wrong with a snapshot, or with what it stands on among all that are `kept`, if anything is.
    pub(super) fn fault(&self, thread: &ThreadId, one: &Kept, kept: &[Kept]) -> Option<String> {
        let shelf = self.shelf(thread, kept.to_vec());
        shelf.read(one).and_then(|read| shelf.stack(one, read)).err()
    }

    /// A thread from its newest good snapshot and the log behind it, when its log is long enough for that.
    pub(crate) fn begin(&self, thread: &ThreadId, log_bytes: u64, trust: &Trust) -> Begun {
        if log_bytes < WORTH_BYTES {
            return Begun::Nothing;
        }
        let kept = match self.store.kept(thread, &self.archive) {
            Ok(kept) => kept,
            Err(error) => return Begun::Refused(format!("the snapshots can't be read: {error}")),
        };
        let shelf = self.shelf(thread, kept);
        let found = shelf.first(|one| shelf.body(one));
        let refused = found.bad.first().map(|(kept, why)| format!("`{}` is not used: {why}", kept.name));
        let fold = found.good.map(|(kept, body)| self.behind(thread, &kept, body, trust));
        match (fold, refused) {
            (Some(Begun::Fold(mut fold)), refused) => {
                fold.notice = refused;
                Begun::Fold(fold)
            }
            (_, Some(why)) => Begun::Refused(why),
            (Some(begun), None) => begun,
            (None, None) => Begun::Nothing,
        }
    }

    fn behind(&self, thread: &ThreadId, kept: &Kept, body: Body, trust: &Trust) -> Begun {
        let refused = |why: &str| Begun::Refused(format!("`{}` is not used: {why}", kept.name));
        let at = body.head().clone();
        let is_one = at.version == body.log_version && at.hash == body.log_hash && body.thread_id == *thread;
        if !is_one {
            return refused("it says two things of what it folds");
        }
        // Without the word of our own store for what stands before, every byte is to be hashed; then it is as well folded.
        let Some(seal) = body.seal.clone() else { return Begun::Nothing };
        let behind = match self.store.behind(thread, &at, &seal) {
            Ok(Some(behind)) => behind,
            Ok(None) => return Begun::Nothing,
            Err(error) => return refused(&error.to_string()),
        };
        let mut fold = body.into_fold();
        let scanner = Scanner::resuming(thread, trust, at.clone(), behind.hash);
        let (mut is_rotated, mut failed) = (false, None);
        let examined = examine(behind.bytes, scanner, |entry| {
            is_rotated |= entry.lines.iter().any(|line| matches!(line.event, Event::KeyRotated(_)));
            failed = failed.take().or_else(|| fold.absorb(entry).err());
        });
        let is_whole = examined.is_ok_and(|examined| examined.damage.is_none());
        if is_rotated || failed.is_some() || !is_whole || fold.head != behind.head {
            // What is wrong with the log, if anything is, is found by whoever reads all of it.
            return Begun::Nothing;
        }
        fold.saved = Last::whole(kept.version, at.bytes, kept.bytes);
        Begun::Fold(Box::new(fold))
    }
}
