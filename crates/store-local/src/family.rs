//! The threads that may have posted to an account: those of its chain, its parent's chain and its children's chains.
//!
//! An account row that was replaced by an older one has a valid seal, and so may the head of the thread that posted since. But that thread's
//! log continues after its head, and a log without a row still has a folder. So before a process first relies on an account, it compares
//! the log of each of these threads with its head.
//!
//! The family is walked by what is signed or sealed: a chain by the continuations in sealed manifests, the parent by the manifest of the
//! chain's root, children by the records in the logs of the chain, whose bytes are hashed and compared with their heads. An index only
//! adds threads, because another program could have emptied it. The cost depends on the family, not on the store.

use std::collections::BTreeSet;

use selvedge_log::line;
use selvedge_model::account::{Account, AccountId};
use selvedge_model::fold::Spawned;
use selvedge_model::{Event, Manifest, Status, ThreadId};
use selvedge_store::account_records::Children;
use selvedge_store::{Error, Result};
use serde_json::Value;

use crate::anchor::Bucket;
use crate::core::Core;
use crate::db::Db;
use crate::rows::{self, Row};
use crate::schema::database;
use crate::view::unindexed;

/// The threads that may have posted to an account.
#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Every thread of it that was looked for.
    threads: BTreeSet<ThreadId>,
    /// The accounts of the chains.
    accounts: BTreeSet<AccountId>,
    /// Threads that have a log and no row.
    unindexed: Vec<ThreadId>,
    /// Threads that should be here, and have neither a row, nor a log, nor a tombstone.
    missing: Vec<ThreadId>,
    /// The newest version of the account that a deleted thread posted to.
    posted_by_deleted: u64,
}

impl Family {
    /// The rows of its threads; refused if one fails its seal.
    pub(crate) fn rows(&self, db: &Db) -> Result<Vec<Row>> {
        self.threads.iter().filter_map(|thread| rows::find(db, thread).transpose()).collect()
    }

    /// The parts of the anchor that its accounts belong to.
    pub(crate) fn parts(&self) -> BTreeSet<Bucket> {
        self.accounts.iter().map(Bucket::of_account).collect()
    }

    /// The newest version of the account that a deleted thread posted to.
    pub(crate) fn posted_by_deleted(&self) -> u64 {
        self.posted_by_deleted
    }
}

/// Whether a thread must be in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// An account that is not known to be incomplete has all of its postings.
    Required,
    /// It may be in another store, and may never have posted.
    Optional,
}

/// The children in the log of a thread.
#[derive(Default)]
struct LoggedChildren {
    spawned: BTreeSet<ThreadId>,
    /// Those that money was reserved for, and not released unused.
    funded: Children,
}

/// A walk over the family of one account.
struct Walk<'a> {
    core: &'a Core,
    account: &'a AccountId,
    family: Family,
}

impl Walk<'_> {
    /// Adds the threads of a chain, from its root on; returns the manifests of those that are here or were deleted.
    fn add_chain(&mut self, root: &ThreadId, presence: Presence) -> Result<Vec<Manifest>> {
        self.family.accounts.insert(root.clone());
        let mut found = Vec::new();
        let mut next = Some((root.clone(), presence));
        let mut indexed = self.core.indexed("chain_root_id", root)?.into_iter();
        while let Some((thread, presence)) = next.take().or_else(|| Some((indexed.next()?, Presence::Optional))) {
            if !self.family.threads.insert(thread.clone()) {
                continue;
            }
            let Some(manifest) = self.find(&thread, presence)? else { continue };
            let continuation = manifest.continuation_thread_id.clone().filter(|_| manifest.status == Status::Continued);
            next = continuation.map(|continuation| (continuation, presence));
            found.push(manifest);
        }
        Ok(found)
    }

    /// The manifest of a thread that is here or was deleted; notes one that is neither.
    fn find(&mut self, thread: &ThreadId, presence: Presence) -> Result<Option<Manifest>> {
        if let Some(row) = self.core.read(|db| rows::find(db, thread))? {
            return Ok(Some(row.manifest));
        }
        // A tombstone that fails verification is reported where it is read.
        if let Some(tombstone) = self.core.tombstone(thread).ok().flatten() {
            let postings = tombstone.postings.into_iter().flatten();
            let newest = postings.filter(|posted| posted.account == *self.account).map(|posted| posted.to).max();
            self.family.posted_by_deleted = self.family.posted_by_deleted.max(newest.unwrap_or(0));
            return Ok(Some(tombstone.manifest));
        }
        if self.core.is_unindexed(thread)? {
            self.family.unindexed.push(thread.clone());
        } else if presence == Presence::Required {
            self.family.missing.push(thread.clone());
        }
        Ok(None)
    }

    /// Adds the chain that a thread belongs to.
    fn add_chain_of(&mut self, thread: &ThreadId, presence: Presence) -> Result<()> {
        let row = self.core.read(|db| rows::find(db, thread))?;
        let root = row.map_or_else(|| thread.clone(), |row| row.manifest.chain_root_id);
        self.add_chain(&root, presence).map(drop)
    }
}

impl Core {
    /// The threads that may have posted to an account.
    pub(crate) fn family(&self, id: &AccountId) -> Result<Family> {
        let mut walk = Walk { core: self, account: id, family: Family::default() };
        let chain = walk.add_chain(id, Presence::Required)?;
        let mut children = BTreeSet::new();
        let mut funded = BTreeSet::new();
        for thread in chain.iter().map(|manifest| &manifest.thread_id) {
            children.extend(self.indexed("parent_id", thread)?);
            let logged = self.logged_children(thread, id)?;
            children.extend(logged.spawned);
            funded.extend(logged.funded.into_names());
        }
        for child in funded {
            walk.add_chain_of(&child, Presence::Required)?;
        }
        for child in children {
            walk.add_chain_of(&child, Presence::Optional)?;
        }
        if let Some(parent) = chain.iter().find_map(|manifest| manifest.parent_id.as_ref()) {
            walk.add_chain_of(parent, Presence::Optional)?;
        }
        Ok(walk.family)
    }

    /// Refuses an account if the log of a thread that may have posted to it continues after its head, or has no head, or if such a thread
    /// is gone without a tombstone. If the account is known to be incomplete, missing postings count as spent.
    pub(crate) fn check_family(&self, account: Option<&Account>, family: &Family, rows: &[Row]) -> Result<()> {
        for row in rows {
            self.refuse_outdated_row(&row.manifest.thread_id, row)?;
        }
        if account.is_some_and(|account| account.incomplete) {
            return Ok(());
        }
        for thread in &family.unindexed {
            if self.is_unindexed(thread)? {
                return Err(unindexed(thread));
            }
        }
        for missing in family.missing.iter().filter(|_| account.is_some()) {
            if !self.is_known(missing)? {
                return Err(Error::Integrity {
                    what: format!("`{missing}` is missing"),
                    why: "it may have spent money of this tree, and neither its log nor its tombstone is here"
                        .to_owned(),
                    hint: Some(
                        "put its folder back, or continue without it: `selvedge reindex` counts what is unknown as spent"
                            .to_owned(),
                    ),
                });
            }
        }
        Ok(())
    }

    /// Whether a thread has a row, or a tombstone whose signature holds: one that another program planted hides no thread that is gone.
    fn is_known(&self, thread: &ThreadId) -> Result<bool> {
        self.read(|db| Ok(rows::find_any(db, thread)?.is_some() || self.is_deleted(db, thread)))
    }

    /// The threads that an index names under a thread.
    fn indexed(&self, column: &str, thread: &ThreadId) -> Result<Vec<ThreadId>> {
        let found = self.read(|db| {
            let sql = format!("SELECT thread_id FROM threads WHERE {column} = ?");
            let mut statement = db.prepare_cached(&sql).map_err(database)?;
            let found = statement.query_map([thread.as_str()], |row| row.get::<_, String>(0)).map_err(database)?;
            found.collect::<rusqlite::Result<Vec<_>>>().map_err(database)
        })?;
        found.into_iter().map(|name| ThreadId::new(name).map_err(rows::bad_row)).collect()
    }

    /// The children in the log of a thread, if it is here; refused if the log is not the one that was signed.
    fn logged_children(&self, thread: &ThreadId, account: &AccountId) -> Result<LoggedChildren> {
        let mut children = LoggedChildren::default();
        let Some(row) = self.read(|db| rows::find(db, thread))? else { return Ok(children) };
        // In a text of a message these quotes are escaped.
        let names = [r#""event_type":"child_spawned""#, r#""child":"#];
        self.each_line_with(thread, &row, &names, &mut |bytes| children.take(bytes, account))?;
        Ok(children)
    }
}

impl LoggedChildren {
    fn take(&mut self, bytes: &[u8], account: &AccountId) -> Result<()> {
        match line::decode(bytes)?.event {
            Event::ChildSpawned(fields) => {
                let spawned = serde_json::from_value::<Spawned>(Value::Object(fields));
                self.spawned.extend(spawned.ok().map(|spawned| spawned.thread_id));
            }
            event => {
                if let Some((name, record)) = event.posting().filter(|(_, record)| record.account == *account) {
                    self.funded.note(name, record);
                }
            }
        }
        Ok(())
    }
}
