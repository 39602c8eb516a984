//! Repairs one thread, under its lease.
//!
//! Nothing is deleted and no log is edited before its last checkpoint: files in the way are moved aside, and what was found and done is
//! signed into the log, as `recovery` events that lead a changeset of their own.
//!
//! | found | what is done |
//! |---|---|
//! | unsigned bytes after the log's end | moved to a quarantine file |
//! | `thread.json` is missing, outdated, or fails verification | the old one moved aside, a new one written |
//! | `capabilities.md` fails verification | moved aside; the next run writes it again |
//! | `state.json` fails verification, or contradicts the log | moved aside; a later run saves a new one |
//! | the log continues, signed, after the head in the database | the database is updated from the log |
//! | the log has no rows in the database | it is indexed |
//! | the log is cut off for good | only if the loss is accepted: it continues after the last version that is recorded anywhere |
//! | a blob is missing or changed | refused, unless something else is repaired; restore it from a backup |
//! | anything else before the last checkpoint | refused; the versions that are still proven are reported |
//!
//! (A log that is shorter because a crash left its bytes in the redo is repaired when the store is opened.)
//!
//! Each step is one transaction that also records what the next changeset must lead with; after a crash at any point, the next append or
//! repair continues from there.

mod provisional;

use std::fs;
use std::path::Path;

use selvedge_log::Head;
use selvedge_log::recovery::Finding;
use selvedge_model::account::replay::DeletedPostings;
use selvedge_model::event::Recovery;
use selvedge_model::{Batch, Changeset, Event, Expect, Part, Reason, Status, ThreadId};
use selvedge_store::snapshot::NEWEST;
use selvedge_store::verify::Verification;
use selvedge_store::{Acquire, Error, Lease, Result};
use serde::Serialize;

use crate::blobs::hash_file;
use crate::core::{Core, Durability, io_error};
use crate::db::Db;
use crate::disk::OpenMode;
use crate::feed::{self, FeedEnd};
use crate::import_log::{Requirement, write_gathered};
use crate::index;
use crate::leading_events;
use crate::manifest;
use crate::open::LocalStore;
use crate::redo::Redo;
use crate::replay::{Replay, ReplayTarget, Replayed, read_log};
use crate::rows::{self, Row, bad_row};
use crate::transcript_repair::free_name;

pub use provisional::Provisional;

/// The options of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Continue a log that is cut off, and record what is lost.
    pub accept_loss: bool,
    /// Report what would be done, and do nothing.
    pub dry_run: bool,
}

/// One thing that was repaired, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RepairStep {
    /// Unsigned bytes after the log's end.
    ForeignBytes {
        /// How many.
        bytes: u64,
    },
    /// The manifest.
    Manifest {
        /// What was wrong with it.
        why: String,
        /// The new name of the old one.
        #[serde(skip_serializing_if = "Option::is_none")]
        aside: Option<String>,
    },
    /// The capabilities file.
    Capabilities {
        /// What was wrong with it.
        why: String,
        /// The new name of the file.
        #[serde(skip_serializing_if = "Option::is_none")]
        aside: Option<String>,
    },
    /// The newest snapshot.
    Snapshot {
        /// What was wrong with it.
        why: String,
        /// The new name of the file.
        #[serde(skip_serializing_if = "Option::is_none")]
        aside: Option<String>,
    },
    /// The database was older than the log.
    DatabaseBehind {
        /// The version it had.
        database: u64,
        /// The version it has now.
        file: u64,
    },
    /// The log had no rows in the database.
    NotIndexed {
        /// The version it has now.
        version: u64,
    },
    /// Versions are lost for good.
    Loss {
        /// The first one.
        from_version: u64,
        /// The last one that is recorded anywhere.
        to_version: u64,
        /// The record that has it.
        by: String,
    },
    /// What a signed snapshot of a lost version has was restored, provisionally.
    Provisional {
        /// The version of the snapshot.
        log_version: u64,
        /// How many messages.
        messages: u64,
        /// The snapshot.
        by: String,
    },
}

/// The result of a repair, or of its dry run.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// The thread.
    pub thread: ThreadId,
    /// What was repaired; empty if nothing had to be.
    pub mended: Vec<RepairStep>,
    /// The version of the changeset that records it, or the version it was at.
    pub version: u64,
}

impl LocalStore {
    /// Repairs a thread. Refused while a live process holds its lease.
    pub fn repair(&self, thread: &ThreadId, how: Repair) -> Result<Repaired> {
        self.repair_from(thread, how, None)
    }

    /// The same; what a snapshot still has of lost versions is restored.
    pub fn repair_from(&self, thread: &ThreadId, how: Repair, from: Option<&Provisional>) -> Result<Repaired> {
        let core = &self.core;
        core.writer()?;
        let known = core.read(|connection| match rows::find(connection, thread)? {
            Some(row) => Ok(Some(row)),
            None if fs::symlink_metadata(core.layout.transcript(thread)).is_ok() => Ok(None),
            None => Err(rows::missing(connection, thread)),
        })?;
        let mut mended = Vec::new();
        if known.is_none() {
            mended.push(self.index_unknown(thread, how)?);
            if how.dry_run {
                return Ok(Repaired { thread: thread.clone(), version: 0, mended });
            }
        }
        let row = core.read(|connection| rows::existing(connection, thread))?;
        check_signer(core, thread, &row)?;
        mended.extend(self.plan(thread, how)?);
        if let Some(from) = from.filter(|from| is_lost(from.log_version, &mended, &row)) {
            mended.extend(core.missing_of(thread, from)?);
        }
        if how.dry_run || mended.is_empty() {
            return Ok(Repaired { thread: thread.clone(), version: row.head.version, mended });
        }
        let lease = core.acquire(thread, Acquire::default())?;
        let done = core.mend(thread, &lease, &mut mended, from);
        core.release_lease(&lease)?;
        Ok(Repaired { thread: thread.clone(), version: done?, mended })
    }

    /// Indexes a log that has no rows in the database.
    fn index_unknown(&self, thread: &ThreadId, how: Repair) -> Result<RepairStep> {
        let core = &self.core;
        let read = read_log(&*core.disk, &core.layout, thread, &core.trust, None, |_| {});
        let examined = read.map_err(io_error("read", &core.layout.transcript(thread)))?;
        let have = examined.head().map(|head| head.version);
        if let Some((by, version)) = self.remembered_elsewhere(thread)?.filter(|(_, version)| Some(*version) > have)
            && !how.accept_loss
        {
            return Err(Error::Log { thread: thread.clone(), finding: Finding::Truncated { have, version, by } });
        }
        if !how.dry_run {
            let required = if how.accept_loss { Requirement::UpToCheckpoint } else { Requirement::Complete };
            core.index_folder(thread, required)?;
        }
        Ok(RepairStep::NotIndexed { version: have.unwrap_or_default() })
    }

    /// What is to be done; an error if it may not be repaired.
    fn plan(&self, thread: &ThreadId, how: Repair) -> Result<Vec<RepairStep>> {
        let core = &self.core;
        let Verification { judgement, remembered, head, .. } = self.verify(thread, &mut |_| {})?;
        let mut plan = Vec::new();
        let refused = |finding| -> Result<Vec<RepairStep>> { Err(Error::Log { thread: thread.clone(), finding }) };
        let elsewhere = if how.accept_loss { self.remembered_elsewhere(thread)? } else { None };
        let have = head.map(|head| head.version);
        let finding = match (judgement.finding, &elsewhere) {
            (Finding::Sound | Finding::Foreign { .. }, Some((by, version))) if Some(*version) > have => {
                Finding::Truncated { have, version: *version, by: by.clone() }
            }
            (finding, _) => finding,
        };
        let mut bad_blob = None;
        match finding {
            Finding::Sound | Finding::Contradicted { .. } => {}
            // A blob can't be restored here; that does not stop other repairs.
            Finding::Blob { .. } => bad_blob = Some(finding),
            Finding::Foreign { bytes } => plan.push(RepairStep::ForeignBytes { bytes }),
            Finding::DatabaseBehind { database, file } => plan.push(RepairStep::DatabaseBehind { database, file }),
            Finding::Truncated { have: Some(have), version, by } if how.accept_loss => {
                let mut memories = remembered;
                memories.push((by, version));
                memories.extend(elsewhere);
                // The last of equals: the one that the verdict named.
                let (by, to_version) = memories.into_iter().max_by_key(|(_, version)| *version).unwrap_or_default();
                plan.push(RepairStep::Loss { from_version: have + 1, to_version, by });
                // Its manifest records the lost versions, and is worth keeping.
                plan.push(RepairStep::Manifest { why: "it shows a version that is lost".to_owned(), aside: None });
                return Ok(plan);
            }
            Finding::Truncated { have: Some(have), version, by } if self.is_recorded(thread, version)? => {
                // A loss that was accepted and not signed yet: this repair signs it.
                plan.push(RepairStep::Loss { from_version: have + 1, to_version: version, by });
                return Ok(plan);
            }
            finding => return refused(finding),
        }
        // A loss that was accepted and not signed yet: this repair signs it.
        plan.extend(self.recorded_loss(thread)?);
        plan.extend(core.bad_manifest(thread)?.map(|why| RepairStep::Manifest { why, aside: None }));
        plan.extend(core.bad_capabilities(thread)?.map(|why| RepairStep::Capabilities { why, aside: None }));
        plan.extend(core.bad_snapshot(thread)?.map(|why| RepairStep::Snapshot { why, aside: None }));
        match bad_blob {
            Some(finding) if plan.is_empty() => refused(finding),
            _ => Ok(plan),
        }
    }

    /// Whether the next changeset leads with the loss of this version.
    fn is_recorded(&self, thread: &ThreadId, version: u64) -> Result<bool> {
        let covers = |loss: RepairStep| matches!(loss, RepairStep::Loss { to_version, .. } if to_version >= version);
        Ok(self.recorded_loss(thread)?.is_some_and(covers))
    }

    /// The loss that the next changeset leads with.
    fn recorded_loss(&self, thread: &ThreadId) -> Result<Option<RepairStep>> {
        let leads =
            self.core.read(|connection| leading_events::read(connection, &rows::existing(connection, thread)?))?;
        let loss = |event: Event| match event {
            Event::Recovery(found) if found.is_loss() => Some(RepairStep::Loss {
                from_version: found.from_version?,
                to_version: found.to_version?,
                by: found.by.unwrap_or_default(),
            }),
            _ => None,
        };
        Ok(leads.events.into_iter().find_map(loss))
    }

    /// The newest version of this thread that logs of other threads record.
    fn remembered_elsewhere(&self, thread: &ThreadId) -> Result<Option<(String, u64)>> {
        let core = &self.core;
        let others =
            core.read(|connection| rows::select(connection, "t.thread_id <> ? ORDER BY t.id", [thread.as_str()]))?;
        let mut most: Option<(String, u64)> = None;
        for other in others {
            let other = other.manifest.thread_id;
            let path = core.layout.transcript(&other);
            let read = read_log(&*core.disk, &core.layout, &other, &core.trust, None, |entry| {
                let with = entry.checkpoint().map(|checkpoint| checkpoint.with.as_slice()).unwrap_or_default();
                for (_, version) in with.iter().filter(|(other, _)| other == thread) {
                    if most.as_ref().is_none_or(|(_, known)| version > known) {
                        most = Some((format!("`{other}`"), *version));
                    }
                }
            });
            read.map_err(io_error("read", &path))?;
        }
        Ok(most)
    }
}

/// Refuses, before anything is changed, a repair that could not be signed afterwards.
fn check_signer(core: &Core, thread: &ThreadId, row: &Row) -> Result<()> {
    let theirs = row.head.signer;
    let signer = &core.signing()?.signer;
    if theirs != signer.fingerprint() && !signer.succeeds(&theirs) {
        return Err(Error::OtherSigner { thread: thread.clone(), theirs, ours: signer.fingerprint() });
    }
    Ok(())
}

/// Whether a version is lost: by what is to be recorded now, or by what the log records already.
fn is_lost(version: u64, mended: &[RepairStep], row: &Row) -> bool {
    let now = mended.iter().any(
        |one| matches!(one, RepairStep::Loss { from_version, to_version, .. } if (*from_version..=*to_version).contains(&version)),
    );
    now || row.manifest.lost.iter().any(|lost| lost.contains(version))
}

/// The account versions that a log had posted before it was cut, and does not have any more. Other logs may have some of them.
fn lost_postings(before: &Row, now: &Row) -> Vec<DeletedPostings> {
    let lost = before.posted.iter().map(|(account, to)| {
        let kept = now.posted.get(account).copied().unwrap_or(0);
        DeletedPostings { account: account.clone(), from: kept + 1, to: *to }
    });
    lost.filter(|lost| lost.from <= lost.to).collect()
}

impl Core {
    /// Carries out a plan and commits it; returns the version of the commit.
    fn mend(
        &self,
        thread: &ThreadId,
        lease: &Lease,
        mended: &mut [RepairStep],
        from: Option<&Provisional>,
    ) -> Result<u64> {
        let mut changeset = Changeset::empty(Reason::Lifecycle);
        for one in mended.iter_mut() {
            match one {
                RepairStep::NotIndexed { .. } => {
                    self.lead(thread, lease, Recovery { found: "not_indexed".to_owned(), ..Recovery::default() })?
                }
                RepairStep::ForeignBytes { .. } => _ = self.repair_file(thread)?,
                RepairStep::DatabaseBehind { .. } => self.follow(thread, lease)?,
                RepairStep::Loss { from_version, to_version, by } => {
                    self.give_up(thread, lease, *from_version, *to_version, by)?
                }
                RepairStep::Provisional { .. } => {
                    if let Some(from) = from {
                        changeset = self.bring_back(thread, from)?;
                    }
                }
                RepairStep::Manifest { why, aside } => {
                    let path = self.layout.manifest(thread);
                    *aside = self.set_aside(thread, lease, &path, format!("manifest: {why}"))?;
                }
                RepairStep::Capabilities { why, aside } => {
                    let path = self.layout.capabilities(thread);
                    *aside = self.set_aside(thread, lease, &path, format!("capabilities: {why}"))?;
                }
                RepairStep::Snapshot { why, aside } => {
                    let path = self.layout.thread(thread).join(NEWEST);
                    *aside = self.set_aside(thread, lease, &path, format!("snapshot: {why}"))?;
                }
            }
        }
        self.forget(thread);
        self.forget_logged();
        // The log may have been written under a later epoch than the database has.
        let epoch = self.read(|connection| rows::existing(connection, thread))?.epoch;
        let part = Part::new(thread.clone(), Expect::Any, changeset).under(epoch);
        let committed = self.commit(&Batch::of(part))?;
        if mended.iter().any(|one| matches!(one, RepairStep::Manifest { .. })) {
            self.write_manifest(thread)?;
        }
        Ok(committed.version_of(thread).unwrap_or_default())
    }

    /// Releases our lease, even if requests wait: their senders acquire the lease themselves.
    fn release_lease(&self, lease: &Lease) -> Result<()> {
        let release = || {
            self.write(Durability::Lazy, |connection| {
                if let Some(row) = rows::find(connection, &lease.thread)?
                    && row.owner.as_ref() == Some(&lease.owner)
                {
                    index::set_lease(connection, &row, None, row.epoch)?;
                }
                Ok(())
            })
        };
        // After a temporary failure the thread must not stay leased.
        release().or_else(|_| release())?;
        self.forget(&lease.thread);
        self.lease_queue.end_turn(lease);
        Ok(())
    }

    /// Updates the database from a log that continues, signed, after its head.
    fn follow(&self, thread: &ThreadId, lease: &Lease) -> Result<()> {
        let path = self.layout.transcript(thread);
        self.write(Durability::Synced, |connection| {
            let row = held(connection, thread, lease)?;
            let newest = FeedEnd::newest(connection)?;
            let mut replay = Replay::new(connection, thread, ReplayTarget::Existing(row.id, Some(row.head.version)));
            let watched = Some(row.head.version);
            let read = read_log(&*self.disk, &self.layout, thread, &self.trust, watched, |entry| replay.entry(entry));
            let examined = read.map_err(io_error("read", &path))?;
            let Some(tail) = &examined.tail else { return Err(bad_row("the log changed while it was repaired")) };
            let seal = &self.signing()?.seal;
            let Replayed { id, gathered, .. } = replay.finish(tail, Some(seal), row.epoch)?;
            write_gathered(connection, newest, id, gathered)?;
            let Some(head) = &tail.head else { return Err(bad_row("the log changed while it was repaired")) };
            let bytes = head.bytes.saturating_sub(row.head.bytes);
            let found = Recovery { found: "database_behind".to_owned(), bytes, ..Recovery::default() };
            let now = leading_events::rebind(connection, &row, &rows::existing(connection, thread)?)?;
            leading_events::put(connection, &now, &Event::Recovery(found)).map(|_| ())
        })
    }

    /// Returns to the last proven version and records that those up to `to_version` are lost. Their rows are removed, except what others
    /// rely on: answers to commit keys and what was spent.
    fn give_up(&self, thread: &ThreadId, lease: &Lease, from_version: u64, to_version: u64, by: &str) -> Result<()> {
        let path = self.layout.transcript(thread);
        let row = self.read(|connection| rows::existing(connection, thread))?;
        if self
            .read(|connection| leading_events::read(connection, &row))?
            .events
            .iter()
            .any(|event| matches!(event, Event::Recovery(found) if found.is_loss()))
        {
            return Ok(());
        }
        self.set_redo_aside(thread, &row)?;
        let status = self.stopped(thread, &row, from_version)?;
        self.write(Durability::Synced, |connection| {
            let row = held(connection, thread, lease)?;
            for table in ["messages", "states", "runs", "redo"] {
                rows::execute(connection, &format!("DELETE FROM {table} WHERE thread = ?"), [row.id])?;
            }
            feed::withdraw(connection, row.id, from_version)?;
            let mut newest = FeedEnd::newest(connection)?;
            let mut replay = Replay::new(connection, thread, ReplayTarget::Existing(row.id, None));
            let read = read_log(&*self.disk, &self.layout, thread, &self.trust, None, |entry| replay.entry(entry));
            let examined = read.map_err(io_error("read", &path))?;
            let proven = examined.tail.as_ref().and_then(|tail| tail.head.as_ref().map(|head| (tail, head)));
            let Some((tail, head)) = proven.filter(|(_, head): &(_, &Head)| head.version + 1 == from_version) else {
                return Err(bad_row("the log changed while it was repaired"));
            };
            let seal = &self.signing()?.seal;
            let lost = row.head.bytes.saturating_sub(head.bytes);
            let Replayed { id, gathered, .. } = replay.finish(tail, Some(seal), row.epoch)?;
            // A database that was older than the log as well has not announced all proven versions.
            for replayed in gathered.versions.iter().filter(|replayed| replayed.version > row.head.version) {
                newest.announce_moved(connection, id, replayed.version, &replayed.lines)?;
            }
            let found = Recovery {
                found: Recovery::LOSS.to_owned(),
                bytes: lost,
                from_version: Some(from_version),
                to_version: Some(to_version),
                by: Some(by.to_owned()),
                status,
                postings: lost_postings(&row, &rows::existing(connection, thread)?),
                ..Recovery::default()
            };
            let now = leading_events::rebind(connection, &row, &rows::existing(connection, thread)?)?;
            leading_events::put(connection, &now, &Event::Recovery(found)).map(|_| ())
        })
    }

    /// Whether a person stopped the thread in a version that is lost, according to its sealed row or its signed manifest.
    fn stopped(&self, thread: &ThreadId, row: &Row, from_version: u64) -> Result<Option<Status>> {
        let shown = match manifest::read(&self.layout, &*self.disk, &self.trust, thread) {
            Ok(shown) => shown.filter(|shown| shown.memory.version >= from_version).and_then(|shown| shown.manifest),
            Err(Error::Integrity { .. } | Error::UntrustedKey { .. }) => None,
            Err(error) => return Err(error),
        };
        let known = Some(row.manifest.status).filter(|_| row.head.version >= from_version);
        let mut ended = known.into_iter().chain(shown.map(|shown| shown.status));
        Ok(ended.find(|status| matches!(status, Status::Killed | Status::Cancelled)))
    }

    /// Saves committed bytes that do not belong in the log any more, because bytes before them are lost.
    fn set_redo_aside(&self, thread: &ThreadId, row: &Row) -> Result<()> {
        let redo = self.read(|connection| Redo::read(connection, row.id, row.head.bytes))?;
        let Some(redo) = redo else { return Ok(()) };
        let aside = free_name(&self.layout.thread(thread).join(format!("transcript.redo-{}", row.head.version)));
        let file = self.disk.open(&aside, OpenMode::CreateNew).map_err(io_error("create", &aside))?;
        file.write_at(&redo.bytes, 0).and_then(|()| file.sync()).map_err(io_error("write", &aside))?;
        let folder = self.layout.thread(thread);
        self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))
    }

    /// What is wrong with a manifest, if anything.
    fn bad_manifest(&self, thread: &ThreadId) -> Result<Option<String>> {
        let row = self.read(|connection| rows::existing(connection, thread))?;
        let shown = match manifest::read(&self.layout, &*self.disk, &self.trust, thread) {
            Ok(shown) => shown,
            Err(Error::Integrity { why, .. }) => return Ok(Some(why)),
            Err(Error::UntrustedKey { key, .. }) => return Ok(Some(format!("key {} is not trusted", key.short()))),
            // A link, a folder, or anything but a plain file.
            Err(Error::Io { source, .. }) => return Ok(Some(source.to_string())),
            Err(error) => return Err(error),
        };
        let Some(shown) = shown else { return Ok(Some("it is missing".to_owned())) };
        let mut agrees = shown.memory.hash.is_none();
        let path = self.layout.transcript(thread);
        let read = read_log(&*self.disk, &self.layout, thread, &self.trust, None, |entry| {
            agrees |= entry.head.version == shown.memory.version && Some(entry.head.hash) == shown.memory.hash;
        });
        read.map_err(io_error("read", &path))?;
        Ok(match shown.manifest {
            _ if !agrees => Some(format!("it shows another log at version {}", shown.memory.version)),
            Some(shown) if row.manifest.shows_change_since(&shown) => Some("it is outdated".to_owned()),
            Some(_) => None,
            None => Some("it can't be parsed".to_owned()),
        })
    }

    /// Moves a file out of the way of a new one; returns its new name, if there was one.
    fn set_aside(&self, thread: &ThreadId, lease: &Lease, path: &Path, found: String) -> Result<Option<String>> {
        let version = self.read(|connection| rows::existing(connection, thread))?.head.version;
        let mut found = Recovery { found, ..Recovery::default() };
        if let Ok(there) = fs::symlink_metadata(path) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let aside = free_name(&path.with_file_name(format!("{name}.aside-{version}")));
            found.quarantine = aside.file_name().map(|name| name.to_string_lossy().into_owned());
            if there.is_file() {
                found.bytes = there.len();
                found.hash = Some(hash_file(&*self.disk, path).map_err(io_error("read", path))?);
            }
            self.disk.rename(path, &aside).map_err(io_error("move aside", path))?;
            let folder = self.layout.thread(thread);
            self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
        }
        let name = found.quarantine.clone();
        self.lead(thread, lease, found)?;
        Ok(name)
    }

    /// Records an event that the next changeset must lead with, and marks `thread.json` as stale.
    fn lead(&self, thread: &ThreadId, lease: &Lease, found: Recovery) -> Result<()> {
        self.write(Durability::Synced, |connection| {
            let row = held(connection, thread, lease)?;
            rows::execute(connection, "UPDATE threads SET manifest_stale = 1 WHERE id = ?", [row.id])?;
            leading_events::put(connection, &row, &Event::Recovery(found)).map(|_| ())
        })
    }
}

/// The row of a thread, if we still hold its lease.
fn held(connection: &Db, thread: &ThreadId, lease: &Lease) -> Result<Row> {
    let row = rows::existing(connection, thread)?;
    if row.owner.as_ref() != Some(&lease.owner) || row.epoch < lease.epoch {
        return Err(Error::StaleEpoch { thread: thread.clone(), held: lease.epoch, current: row.epoch });
    }
    Ok(row)
}
