//! Importing a log that exists already: one that arrives in an archive, or one that the database has no rows of.
//!
//! The folder is moved into place first, then one transaction indexes it. A crash in between leaves a folder without rows: it is never
//! overwritten, and `reindex`, or importing the same archive again, indexes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rusqlite::params;
use selvedge_log::Head;
use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_model::account::{AccountId, Record};
use selvedge_model::{Manifest, ThreadId};
use selvedge_store::{Error, Result};

use crate::blobs::hash_file;
use crate::core::{Core, Durability, io_error, lock};
use crate::db::Db;
use crate::feed::FeedEnd;
use crate::layout::check_folder;
use crate::replay::{Replay, ReplayTarget, Replayed, read_log};
use crate::{ledger, manifest, rows};
use selvedge_store::archive::Accounts;
use selvedge_store::derived::LogRecords;

/// What a log must satisfy to be indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// It reaches the head that `thread.json` records, and has no bytes after its last checkpoint.
    Complete,
    /// It verifies up to its last checkpoint; the caller handles what is missing after it.
    UpToCheckpoint,
}

impl Core {
    /// Indexes a thread that was assembled in the folder `staged`, which is on the same disk and synced. Returns the accounts that it
    /// posted to.
    pub(crate) fn adopt(&self, thread: &ThreadId, head: &Head, staged: &Path) -> Result<Accounts> {
        let _turn = self.queues.enter(thread, None);
        self.read(|connection| refuse_existing_thread(connection, thread))?;
        let folder = self.layout.thread(thread);
        if check_folder(&folder)? {
            // Left by an interrupted import, if it is the same log.
            let path = self.layout.transcript(thread);
            return if hash_file(&*self.disk, &path).map_err(io_error("read", &path))? == head.hash {
                self.index_folder(thread, Requirement::Complete)
            } else {
                Err(crate::view::unindexed(thread))
            };
        }
        self.disk.rename(staged, &folder).map_err(io_error("put in place", &folder))?;
        let taken = self
            .disk
            .sync_folder(self.layout.root())
            .map_err(io_error("sync", self.layout.root()))
            .and_then(|()| self.index_folder(thread, Requirement::Complete));
        if taken.is_err() {
            // Moved back to where the import removes it, unless the thread is indexed: another process may have found it here and indexed
            // it, or our own transaction may have committed. The lock keeps other writers out, and if this fails the folder stays where it
            // is never overwritten.
            _ = lock(self.writer()?).exclusive(&self.layout, |_| {
                self.read(|connection| refuse_existing_thread(connection, thread))?;
                self.disk.rename(&folder, staged).map_err(io_error("put back", &folder))
            });
        }
        taken
    }

    /// Whether a thread was imported from an archive.
    pub(crate) fn is_imported(&self, thread: &ThreadId) -> bool {
        check_folder(&self.layout.thread(thread).join("keys")).unwrap_or(false)
    }

    /// Indexes the log of a thread that has a folder and no rows, in one transaction. Returns the accounts that it posted to.
    pub(crate) fn index_folder(&self, thread: &ThreadId, required: Requirement) -> Result<Accounts> {
        let path = self.layout.transcript(thread);
        let settled = self.write(Durability::Synced, |connection| {
            refuse_existing_thread(connection, thread)?;
            let shown = match manifest::read(&self.layout, &*self.disk, &self.trust, thread) {
                Err(Error::UntrustedKey { .. }) => None,
                Err(Error::Integrity { .. }) if required == Requirement::UpToCheckpoint => None,
                other => other?,
            };
            let newest = FeedEnd::newest(connection)?;
            let mut replay = Replay::new(connection, thread, ReplayTarget::New);
            let read = read_log(&*self.disk, &self.layout, thread, &self.trust, None, |entry| replay.entry(entry));
            let examined = read.map_err(io_error("read", &path))?;
            let remembered: Vec<_> = shown.iter().map(|shown| shown.memory.clone()).collect();
            let finding =
                judge(&examined, Evidence { remembered: &remembered, ..Evidence::default() }, Mode::Strict).finding;
            let is_enough = matches!(
                (&finding, required),
                (Finding::Sound, _)
                    | (Finding::Foreign { .. } | Finding::Truncated { .. }, Requirement::UpToCheckpoint)
            );
            let Some(tail) = examined.tail.as_ref().filter(|_| is_enough) else {
                return Err(Error::Log { thread: thread.clone(), finding });
            };
            let seal = self.signing.as_ref().map(|signing| &signing.seal);
            let Replayed { id, manifest, gathered } = replay.finish(tail, seal, 0)?;
            let mut accounts: BTreeSet<_> =
                gathered.postings.iter().map(|(_, record)| record.account.clone()).collect();
            write_gathered(connection, newest, id, gathered)?;
            // And those that are completed by the presence of this log, whether it posted to them or not.
            accounts.extend(accounts_of_family(connection, &manifest)?);
            let settled = self.settle_accounts(connection, &accounts)?;
            let has_manifest = fs::symlink_metadata(self.layout.manifest(thread)).is_ok();
            let sql = "UPDATE threads SET manifest_stale = ? WHERE id = ?";
            rows::execute(connection, sql, params![!has_manifest, id])?;
            Ok(settled)
        })?;
        self.forget(thread);
        self.notify_waiters();
        Ok(settled)
    }

    /// Recomputes accounts from all logs that posted to them, so that the logs of a family can be imported in any order.
    fn settle_accounts(&self, connection: &Db, accounts: &BTreeSet<AccountId>) -> Result<Accounts> {
        if accounts.is_empty() {
            return Ok(Accounts::new());
        }
        let mut records: BTreeMap<&AccountId, BTreeMap<u64, (&'static str, Record)>> = BTreeMap::new();
        for row in rows::select(connection, "1 ORDER BY t.id", [])? {
            if !row.posted.keys().any(|account| accounts.contains(account)) {
                continue;
            }
            let thread = &row.manifest.thread_id;
            let read = read_log(&*self.disk, &self.layout, thread, &self.trust, None, |entry| {
                for (name, record) in entry.lines.iter().filter_map(|line| line.event.posting()) {
                    if let Some(account) = accounts.get(&record.account) {
                        let of_account = records.entry(account).or_default();
                        of_account.insert(record.account_version, (name, record.clone()));
                    }
                }
            });
            read.map_err(io_error("read", &self.layout.transcript(thread)))?;
        }
        let settle = |(account, records): (&&AccountId, _)| {
            Ok(((*account).clone(), ledger::settle(connection, account, records)?))
        };
        records.iter().map(settle).collect()
    }
}

/// The account of a thread's chain, that of its parent's chain, and those of the children of its chain.
fn accounts_of_family(connection: &Db, manifest: &Manifest) -> Result<Vec<AccountId>> {
    let root = manifest.chain_root_id.as_str();
    let above = manifest.parent_id.as_ref().map(|parent| rows::find(connection, parent)).transpose()?.flatten();
    let mut found = rows::accounts(connection, "parent_id = ?", root)?;
    found.extend(rows::accounts(connection, "thread_id = ?", root)?);
    if let Some(above) = above {
        found.extend(rows::accounts(connection, "thread_id = ?", above.manifest.chain_root_id.as_str())?);
    }
    let parents = found.iter().filter_map(|account| account.parent.clone()).collect::<Vec<_>>();
    Ok(found.into_iter().map(|account| account.id).chain(parents).collect())
}

fn refuse_existing_thread(connection: &Db, thread: &ThreadId) -> Result<()> {
    match (rows::find(connection, thread)?, rows::tombstone(connection, thread)?) {
        (Some(_), _) => Err(Error::Exists(thread.clone())),
        (_, Some(_)) => Err(Error::Deleted(thread.clone())),
        _ => Ok(()),
    }
}

/// Writes what a log contains that concerns more than its own thread: feed entries and postings. Postings that other logs confirm are known
/// already; where some are missing, `reindex` computes the exact account once all its logs are present. `newest` is the newest feed
/// position before the head of the thread was moved.
pub(crate) fn write_gathered(connection: &Db, mut newest: FeedEnd, id: i64, mut gathered: LogRecords) -> Result<()> {
    for replayed in &gathered.versions {
        newest.announce_moved(connection, id, replayed.version, &replayed.lines)?;
    }
    gathered
        .postings
        .sort_by(|(_, one), (_, two)| (&one.account, one.account_version).cmp(&(&two.account, two.account_version)));
    for (event_type, record) in &gathered.postings {
        ledger::take(connection, event_type, record)?;
    }
    Ok(())
}
