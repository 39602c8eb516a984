//! Taking in a thread whose log exists already: one that arrives from elsewhere, or one that the database does not know.
//!
//! The folder is put in place first, then one transaction indexes it. Killed in between, there is a folder that the database does
//! not know: it is not written over, and `reindex`, or arriving again, takes it in.

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
use crate::feed::Place;
use crate::layout::check_folder;
use crate::replay::{Gathered, Into, Replay, Replayed, read_log};
use crate::{ledger, manifest, rows};
use selvedge_store::archive::Accounts;

/// What is asked of a log before it is taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Least {
    /// It is all that `thread.json` remembers, and nothing is behind its last checkpoint.
    Whole,
    /// It holds up to its last checkpoint; what it lacks is somebody else's business.
    Proven,
}

impl Core {
    /// Takes in a thread that was put together in the folder `staged`, which is on the same disk and synced.
    /// Gives the accounts that it posted to.
    pub(crate) fn adopt(&self, thread: &ThreadId, head: &Head, staged: &Path) -> Result<Accounts> {
        let _turn = self.turns.enter(thread, None);
        self.read(|connection| refuse_known(connection, thread))?;
        let folder = self.layout.thread(thread);
        if check_folder(&folder)? {
            // Of an arrival that was cut short, if it is the same log.
            let path = self.layout.transcript(thread);
            return match hash_file(&*self.disk, &path).map_err(io_error("read", &path))? == head.hash {
                true => self.index_folder(thread, Least::Whole),
                false => Err(crate::view::unindexed(thread)),
            };
        }
        self.disk.rename(staged, &folder).map_err(io_error("put in place", &folder))?;
        let taken = self
            .disk
            .sync_folder(self.layout.root())
            .map_err(io_error("sync", self.layout.root()))
            .and_then(|()| self.index_folder(thread, Least::Whole));
        if taken.is_err() {
            // Back to where whoever staged it tidies up, unless it is known: another process may have found it here and taken it in, or it
            // is not certain that we did not. Nobody can come between, and if it fails it lies where it is not written over.
            _ = lock(self.gate()?).alone(&self.layout, |_| {
                self.read(|connection| refuse_known(connection, thread))?;
                self.disk.rename(&folder, staged).map_err(io_error("put back", &folder))
            });
        }
        taken
    }

    /// Whether a thread arrived in an archive, from elsewhere.
    pub(crate) fn has_arrived(&self, thread: &ThreadId) -> bool {
        check_folder(&self.layout.thread(thread).join("keys")).unwrap_or(false)
    }

    /// Reads the log of a thread that has a folder and no rows into the database, in one transaction. Gives the accounts that it posted
    /// to.
    pub(crate) fn index_folder(&self, thread: &ThreadId, least: Least) -> Result<Accounts> {
        let path = self.layout.transcript(thread);
        let settled = self.write(Durability::Synced, |connection| {
            refuse_known(connection, thread)?;
            let shown = match manifest::read(&self.layout, &*self.disk, &self.trust, thread) {
                Err(Error::Unbelieved { .. }) => None,
                Err(Error::Integrity { .. }) if least == Least::Proven => None,
                other => other?,
            };
            let newest = Place::newest(connection)?;
            let mut replay = Replay::new(connection, thread, Into::Fresh);
            let read = read_log(&*self.disk, &self.layout, thread, &self.trust, None, |entry| replay.entry(entry));
            let examined = read.map_err(io_error("read", &path))?;
            let remembered: Vec<_> = shown.iter().map(|shown| shown.memory.clone()).collect();
            let finding =
                judge(&examined, Evidence { remembered: &remembered, ..Evidence::default() }, Mode::Strict).finding;
            let is_enough = matches!(
                (&finding, least),
                (Finding::Sound, _) | (Finding::Foreign { .. } | Finding::Truncated { .. }, Least::Proven)
            );
            let Some(tail) = examined.tail.as_ref().filter(|_| is_enough) else {
                return Err(Error::Log { thread: thread.clone(), finding });
            };
            let seal = self.signing.as_ref().map(|signing| &signing.seal);
            let Replayed { id, manifest, gathered } = replay.finish(tail, seal, 0)?;
            let mut accounts: BTreeSet<_> =
                gathered.postings.iter().map(|(_, record)| record.account.clone()).collect();
            take_in(connection, newest, id, gathered)?;
            // Those that it completes by being here, whether it posted to them or not.
            accounts.extend(accounts_of_family(connection, &manifest)?);
            let settled = self.settle_accounts(connection, &accounts)?;
            let has_manifest = fs::symlink_metadata(self.layout.manifest(thread)).is_ok();
            let sql = "UPDATE threads SET manifest_stale = ? WHERE id = ?";
            rows::execute(connection, sql, params![!has_manifest, id])?;
            Ok(settled)
        })?;
        self.forget(thread);
        self.tell();
        Ok(settled)
    }

    /// Works accounts out again from all logs that posted to them, so that it does not matter in which order the logs of a family arrive.
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

fn refuse_known(connection: &Db, thread: &ThreadId) -> Result<()> {
    match (rows::find(connection, thread)?, rows::tombstone(connection, thread)?) {
        (Some(_), _) => Err(Error::Exists(thread.clone())),
        (_, Some(_)) => Err(Error::Deleted(thread.clone())),
        _ => Ok(()),
    }
}

/// Takes in what a log says that belongs to no thread alone. Postings that other logs tell of too are known already; where
/// some are missing, `reindex` has the exact account once all its logs are there. `newest` is the newest place in the feed before the head
/// of the thread was moved.
pub(crate) fn take_in(connection: &Db, mut newest: Place, id: i64, mut gathered: Gathered) -> Result<()> {
    for arrival in &gathered.arrivals {
        newest.announce_moved(connection, id, arrival.version, &arrival.lines)?;
    }
    gathered
        .postings
        .sort_by(|(_, one), (_, two)| (&one.account, one.account_version).cmp(&(&two.account, two.account_version)));
    for (event_type, record) in &gathered.postings {
        ledger::take(connection, event_type, record)?;
    }
    Ok(())
}
