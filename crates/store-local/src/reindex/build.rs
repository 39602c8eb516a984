//! Fills the new database.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rusqlite::params;
use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_log::scan::Examined;
use selvedge_log::{line, lines};
use selvedge_model::account::replay::DeletedPostings;
use selvedge_model::account::{AccountId, Record};
use selvedge_model::{Digest, Manifest, ThreadId, Timestamp};
use selvedge_store::account_records::{Children, Continuity};
use selvedge_store::derived::{DerivedVersion, LogRecords};
use selvedge_store::error::describe;
use selvedge_store::manifest::ParsedManifest;
use selvedge_store::{Error, Result};

use super::old::OldDatabase;
use super::tombstones;
use super::{LeftOut, Rebuild, Reindexed, Stores};
use crate::anchor;
use crate::core::io_error;
use crate::db::{Db, Sealer};
use crate::delete::EXCEEDS;
use crate::disk::OpenMode;
use crate::feed;
use crate::inbox;
use crate::layout::{Layout, check_folder, is_reserved, is_there, listed};
use crate::ledger;
use crate::manifest;
use crate::overlay::Overlay;
use crate::replay::{Replay, ReplayTarget, Replayed, read_log};
use crate::rows::{self, Row, bad_row, signed};
use crate::schema::{self, ConnectionMode, database};

/// What concerns more than one thread, until every log is read.
const GATHERED: &str = "
CREATE TEMP TABLE postings (account TEXT, version INTEGER, event_type TEXT, record TEXT);
CREATE TEMP TABLE memories (thread_id TEXT, version INTEGER, by_thread TEXT);
CREATE TEMP TABLE arrivals (thread INTEGER, version INTEGER, at INTEGER, line INTEGER, counts BLOB);
";

/// A new database that is being built.
pub(super) struct Builder<'a> {
    pub(super) new: &'a Db,
    layout: &'a Layout,
    rebuild: &'a Rebuild,
    pub(super) old: &'a OldDatabase,
    /// The old database, opened separately, with seals checked.
    pub(super) old_db: Option<Db>,
    /// Postings that logs record as lost.
    lost: Vec<DeletedPostings>,
    pub(super) result: &'a mut Reindexed,
}

/// Fills the new database from the logs. Nothing of it is durable on return.
pub(super) fn build(
    layout: &Layout,
    rebuild: &Rebuild,
    stores: Stores<'_>,
    old: &OldDatabase,
    path: &Path,
    result: &mut Reindexed,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    schema::create(path)?;
    let sealer = |store: &str| rebuild.signer.as_ref().map(|signer| Sealer::new(signer, store));
    let new = Db::open(path, ConnectionMode::Write, sealer(stores.id))?;
    let old_db = match old {
        OldDatabase::Readable => Some(Db::open_old(&layout.database(), sealer(stores.former))?),
        OldDatabase::Absent | OldDatabase::Unreadable | OldDatabase::Outdated => None,
    };
    // It is discarded after an error, and synced as a whole at the end.
    new.pragma_update(None, "journal_mode", "memory").map_err(database)?;
    new.pragma_update(None, "synchronous", "OFF").map_err(database)?;
    new.execute_batch(GATHERED).map_err(database)?;
    old.attach(&new, layout)?;
    if let Some(old) = &old_db {
        begin_anchor(&new, old, result)?;
    }
    let mut builder = Builder { new: &new, layout, rebuild, old, old_db, lost: Vec::new(), result };
    builder.threads(progress)?;
    builder.shorter_than_recorded()?;
    builder.ledger()?;
    builder.feed()?;
    builder.carry_keys()?;
    if let Some(old) = builder.old_db {
        old.close()?;
    }
    if matches!(old, OldDatabase::Readable) {
        new.execute("DETACH old", []).map_err(database)?;
    }
    new.pragma_update(None, "journal_mode", "wal").map_err(database)?;
    new.close()
}

impl Builder<'_> {
    /// Runs `work` in a transaction, which an error rolls back.
    fn in_transaction<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.new.execute_batch("BEGIN").map_err(database)?;
        let done = work(self);
        self.new.execute_batch(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).map_err(database)?;
        done
    }

    /// Indexes every thread, in the order of the creation times in their logs.
    fn threads(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let tombs = self.in_transaction(|this| {
            this.old.carry_position(this.new)?;
            tombstones::insert(this.new, this.layout, this.rebuild, this.old, this.result)
        })?;
        let mut threads = self.folders()?;
        let known: BTreeSet<_> = threads.iter().map(|(_, thread)| thread.clone()).collect();
        let missing = self.old.threads(self.new)?.into_iter().filter(|thread| !known.contains(thread));
        let without_folder: Vec<_> = tombs.keys().filter(|thread| !known.contains(*thread)).cloned().collect();
        threads.extend(missing.map(|thread| (Timestamp::from_micros(i64::MAX), thread)));
        threads.sort();
        let total = threads.len() as u64;
        for (done, (_, thread)) in (0..).zip(&threads) {
            progress(done, total);
            match tombs.get(thread) {
                Some(_) if fs::symlink_metadata(self.layout.thread(thread)).is_ok_and(|found| found.is_symlink()) => {
                    let why = "it was deleted, and a symbolic link is in place of its folder; move the link away";
                    self.leave_out(thread, why.to_owned(), false);
                }
                Some(head) if !tombstones::exceeds(self.layout, self.rebuild, thread, head)? => {
                    self.result.finished_deletions += u64::from(check_folder(&self.layout.thread(thread))?);
                    tombstones::bury(self.new, self.layout, &*self.rebuild.disk, thread)?;
                }
                Some(_) => self.leave_out(thread, EXCEEDS.to_owned(), false),
                None => self.thread(thread)?,
            }
        }
        for thread in without_folder {
            tombstones::bury(self.new, self.layout, &*self.rebuild.disk, &thread)?;
        }
        progress(total, total);
        Ok(())
    }

    /// The folders that have a log, and the time of each log's first line.
    fn folders(&self) -> Result<Vec<(Timestamp, ThreadId)>> {
        let root = self.layout.root();
        let mut found = Vec::new();
        for entry in listed(root)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(thread) = ThreadId::from_folder(&name) else { continue };
            if is_reserved(name.as_str()) {
                continue;
            }
            // Anything else here is ignored. A link is never followed; it is reported as left out.
            let kind = entry.file_type().map_err(io_error("check", &entry.path()))?;
            if kind.is_symlink() {
                found.push((Timestamp::from_micros(i64::MAX), thread));
            } else if kind.is_dir() && self.has_log(&thread)? {
                found.push((self.born(&thread), thread));
            }
        }
        Ok(found)
    }

    fn has_log(&self, thread: &ThreadId) -> Result<bool> {
        let path = self.layout.transcript(thread);
        match fs::symlink_metadata(&path) {
            Ok(found) => Ok(found.is_file()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error("check", &path)(error)),
        }
    }

    fn born(&self, thread: &ThreadId) -> Timestamp {
        let first = || {
            let file = self.rebuild.disk.open(&self.layout.transcript(thread), OpenMode::Read).ok()?;
            let mut buffer = Vec::new();
            let mut reader = std::io::BufReader::new(Overlay::of_file(Some(file)).ok()?);
            lines::next_line(&mut reader, &mut buffer).ok()?;
            line::decode(buffer.strip_suffix(b"\n")?).ok()
        };
        first().map_or(Timestamp::from_micros(i64::MAX), |line| line.timestamp)
    }

    fn leave_out(&mut self, thread: &ThreadId, why: String, is_known: bool) {
        self.result.left_out.push(LeftOut { thread: thread.clone(), why, is_known });
    }

    /// Indexes one thread, or keeps the old database's rows of it.
    fn thread(&mut self, thread: &ThreadId) -> Result<()> {
        match self.in_transaction(|this| this.index(thread)) {
            Ok(changesets) => {
                self.result.threads += 1;
                self.result.changesets += changesets;
                Ok(())
            }
            // A failure to write the new database is not the log's fault: the rebuild fails, rather than leaving a thread out.
            Err(error @ Error::Io { what: "write" | "open or write", .. }) => Err(error),
            Err(
                error @ (Error::Log { .. }
                | Error::Fold { .. }
                | Error::Integrity { .. }
                | Error::Unusable { .. }
                | Error::Io { .. }),
            ) => self.keep_old(thread, error.to_string()),
            Err(error) => Err(error),
        }
    }

    fn keep_old(&mut self, thread: &ThreadId, why: String) -> Result<()> {
        let known = self.in_transaction(|this| {
            let Some(known) = this.sealed_old_row(thread)? else { return Ok(false) };
            let now = this.old.carry_rows(this.new, &known)?;
            this.result.requests += this.carry_waiting(&known, now, &known.head)?;
            Ok(true)
        })?;
        self.leave_out(thread, why, known);
        Ok(())
    }

    /// Reads one log into the new database; returns its number of changesets.
    fn index(&mut self, thread: &ThreadId) -> Result<u64> {
        check_folder(&self.layout.thread(thread))?;
        let old = self.sealed_old_row(thread)?;
        let shown = self.shown(thread)?;
        let shown_version = shown.as_ref().map(|shown| shown.memory.version);
        let mut shown_hash = None;
        let mut replay = Replay::new(self.new, thread, ReplayTarget::New).having_consumed(self.consumed(old.as_ref())?);
        let watched = old.as_ref().map(|old| old.head.version);
        let disk = &*self.rebuild.disk;
        let examined = read_log(disk, self.layout, thread, &self.rebuild.trust, watched, |entry| {
            if shown_version == Some(entry.head.version) {
                shown_hash = Some(entry.head.hash);
            }
            replay.entry(entry);
        })
        .map_err(io_error("read", &self.layout.transcript(thread)))?;
        accept(thread, &examined, old.as_ref(), shown.as_ref(), shown_hash)?;
        let Some(tail) = examined.tail.as_ref() else {
            return Err(Error::Log { thread: thread.clone(), finding: Finding::Unsigned });
        };
        if old.is_none() && shown_version < examined.head().map(|head| head.version) {
            self.result.unconfirmed_ends += 1;
        }
        let epoch = old.as_ref().map_or(0, |old| old.epoch);
        let seal = self.rebuild.signer.as_ref().map(selvedge_log::Signer::seal_key);
        let Replayed { id, manifest, gathered } = replay.finish(tail, seal.as_ref(), epoch)?;
        let now = rows::existing(self.new, thread)?;
        match (old, &tail.head) {
            (Some(old), Some(head)) => self.result.requests += self.carry_waiting(&old, now, head)?,
            _ => inbox::note_consumed(self.new, &now)?,
        }
        self.mark(thread, id, &manifest, shown.as_ref())?;
        let changesets = gathered.versions.len() as u64;
        self.gather(thread, id, &gathered)?;
        Ok(changesets)
    }

    /// The content of `thread.json`; one that fails verification is ignored and left unchanged.
    fn shown(&mut self, thread: &ThreadId) -> Result<Option<ParsedManifest>> {
        match manifest::read(self.layout, &*self.rebuild.disk, &self.rebuild.trust, thread) {
            // One of an untrusted key is written again with the next commit.
            Err(Error::UntrustedKey { .. }) => Ok(None),
            Err(Error::Integrity { why, .. }) => {
                let notice = format!("`thread.json` of `{thread}` is ignored: {why}; `selvedge repair {thread}`");
                self.result.notices.push(notice);
                Ok(None)
            }
            other => other,
        }
    }

    /// Marks pending work of a thread: a manifest to be written, files of erased blobs to be removed.
    fn mark(&self, thread: &ThreadId, id: i64, now: &Manifest, shown: Option<&ParsedManifest>) -> Result<()> {
        let exists = is_there(&self.layout.manifest(thread))?;
        let is_current = match shown.and_then(|shown| shown.manifest.as_ref()) {
            Some(shown) => !now.shows_change_since(shown),
            // One that fails verification is left to `repair`, which moves it aside.
            None => exists,
        };
        let sql = "UPDATE threads SET manifest_stale = ? WHERE id = ?";
        rows::execute(self.new, sql, params![!is_current, id])?;
        let mut statement = self.new.prepare_cached("SELECT blob FROM erasures WHERE thread = ?").map_err(database)?;
        let blobs = statement.query_map([id], |row| row.get::<_, Vec<u8>>(0)).map_err(database)?;
        for blob in blobs.collect::<rusqlite::Result<Vec<_>>>().map_err(database)? {
            let name: [u8; 32] = blob.try_into().map_err(|_| bad_row("a digest has not 32 bytes"))?;
            if !is_there(&self.layout.blob(thread, &Digest(name)))? {
                let sql = "UPDATE erasures SET done = 1 WHERE thread = ? AND blob = ?";
                rows::execute(self.new, sql, params![id, &name[..]])?;
            }
        }
        Ok(())
    }

    fn gather(&mut self, thread: &ThreadId, id: i64, gathered: &LogRecords) -> Result<()> {
        self.lost.extend(gathered.lost.iter().cloned());
        for (event_type, record) in &gathered.postings {
            let text = serde_json::to_string(record).map_err(bad_row)?;
            let sql = "INSERT INTO temp.postings (account, version, event_type, record) VALUES (?, ?, ?, ?)";
            let version = signed(record.account_version);
            rows::execute(self.new, sql, params![record.account.as_str(), version, event_type, text])?;
        }
        for (other, version) in &gathered.memories {
            let sql = "INSERT INTO temp.memories (thread_id, version, by_thread) VALUES (?, ?, ?)";
            rows::execute(self.new, sql, params![other.as_str(), signed(*version), thread.as_str()])?;
        }
        for DerivedVersion { version, at, lines } in &gathered.versions {
            let sql = "INSERT INTO temp.arrivals (thread, version, at, line, counts) VALUES (?, ?, ?, ?, ?)";
            let line = signed(lines.start);
            let counts = feed::packed(lines);
            rows::execute(self.new, sql, params![id, signed(*version), at.as_micros(), line, counts])?;
        }
        Ok(())
    }

    /// Removes threads again of which other logs record more than their own has.
    fn shorter_than_recorded(&mut self) -> Result<()> {
        let sql = "SELECT t.id, t.thread_id, h.version, max(m.version), m.by_thread FROM threads AS t \
                   JOIN heads AS h ON h.id = t.id JOIN temp.memories AS m ON m.thread_id = t.thread_id \
                   GROUP BY t.id HAVING max(m.version) > h.version";
        let mut statement = self.new.prepare(sql).map_err(database)?;
        let found = statement.query_map([], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(3)?, row.get::<_, String>(4)?))
        });
        let found: Vec<(i64, String, i64, i64, String)> =
            found.map_err(database)?.collect::<rusqlite::Result<_>>().map_err(database)?;
        for (id, name, have, version, by) in found {
            let thread = ThreadId::new(name).map_err(bad_row)?;
            let why = Finding::Truncated {
                have: Some(rows::unsigned(have)),
                version: rows::unsigned(version),
                by: format!("`{by}`"),
            };
            let changesets = self.in_transaction(|this| {
                crate::delete::remove_rows(this.new, id)?;
                rows::execute(this.new, "DELETE FROM temp.arrivals WHERE thread = ?", [id])
            })?;
            self.result.threads -= 1;
            self.result.changesets -= changesets as u64;
            self.keep_old(&thread, describe(&thread, &why))?;
        }
        Ok(())
    }

    /// Posts everything to the accounts again.
    fn ledger(&mut self) -> Result<()> {
        self.in_transaction(|this| {
            let sql = "SELECT event_type, record FROM temp.postings ORDER BY account, version";
            let mut statement = this.new.prepare(sql).map_err(database)?;
            let mut found = statement.query([]).map_err(database)?;
            let mut incomplete = BTreeSet::<AccountId>::new();
            let mut children = BTreeMap::<AccountId, Children>::new();
            while let Some(row) = found.next().map_err(database)? {
                let event_type: String = row.get(0).map_err(database)?;
                let record: String = row.get(1).map_err(database)?;
                let record: Record = serde_json::from_str(&record).map_err(bad_row)?;
                children.entry(record.account.clone()).or_default().note(&event_type, &record);
                if ledger::take(this.new, &event_type, &record)? == Continuity::Gap {
                    incomplete.insert(record.account);
                }
            }
            for lost in std::mem::take(&mut this.lost) {
                if ledger::give_up(this.new, &lost)? {
                    incomplete.insert(lost.account);
                }
            }
            let mut incomplete = this.carry_accounts(incomplete.into_iter().collect())?;
            for (account, children) in &children {
                if !this.was_complete(account, children)? && ledger::note_incomplete(this.new, account, children)? {
                    incomplete.insert(account.clone());
                }
            }
            this.result.incomplete_accounts = incomplete.into_iter().collect();
            Ok(())
        })
    }

    /// Announces every version, in the order of the times in the logs.
    fn feed(&mut self) -> Result<()> {
        self.in_transaction(|this| {
            let sql = "INSERT INTO main.feed (thread, version, line, counts) \
                       SELECT thread, version, line, counts FROM temp.arrivals ORDER BY at, thread, version";
            rows::execute(this.new, sql, [])?;
            this.new.execute_batch(feed::CLOSE_GAPS).map_err(database)
        })
    }
}

/// Continues the epochs of the old anchor, and reports rows that were replaced by older ones.
fn begin_anchor(new: &Db, old: &Db, result: &mut Reindexed) -> Result<()> {
    if let Err(error) = anchor::check_all(old) {
        result.notices.push(format!("{error}: requests that were posted since are lost, and must be sent again"));
    }
    anchor::begin(new, anchor::epoch(old).unwrap_or(0) + 1)
}

/// Refuses a log that is shorter than some record of it, or that fails verification.
fn accept(
    thread: &ThreadId,
    examined: &Examined,
    old: Option<&Row>,
    shown: Option<&ParsedManifest>,
    shown_hash: Option<Digest>,
) -> Result<()> {
    let remembered: Vec<_> = shown.iter().map(|shown| shown.memory.clone()).collect();
    let evidence = Evidence {
        head: old.map(|old| &old.head),
        file_bytes: examined.bytes,
        healed_bytes: 0,
        remembered: &remembered,
    };
    let finding = match judge(examined, evidence, Mode::Strict).finding {
        Finding::Sound | Finding::Foreign { .. } | Finding::DatabaseBehind { .. } => {
            let hash = shown.and_then(|shown| shown.memory.hash);
            match (hash, shown_hash) {
                (Some(said), Some(found)) if said != found => {
                    let why = "it shows another log at its version".to_owned();
                    Finding::Contradicted { by: "thread.json".to_owned(), why }
                }
                _ => return Ok(()),
            }
        }
        finding => finding,
    };
    Err(Error::Log { thread: thread.clone(), finding })
}
