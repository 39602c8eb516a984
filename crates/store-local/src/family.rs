//! The threads that may have posted to an account: those of its chain, its parent's chain and its children's chains.
//!
//! An account row that was replaced by an older one has a valid seal, and so may the head of the thread that posted since. But that thread's
//! log continues after its head, and a log without a row still has a folder. So before a process first relies on an account, it compares
//! the log of each of these threads with its head. The threads are collected from sealed manifests, once per process; an index is not
//! used, because another program could have emptied it.

use std::collections::{BTreeSet, HashMap};

use selvedge_log::{line, lines};
use selvedge_model::account::{Account, AccountId};
use selvedge_model::{Event, Manifest, ThreadId, Timestamp};
use selvedge_store::Result;

use crate::anchor::Bucket;
use crate::core::{Core, lock};
use crate::db::Db;
use crate::disk::OpenMode;
use crate::layout::{is_reserved, listed};
use crate::overlay::Overlay;
use crate::rows::{self, Row};
use crate::schema::database;
use crate::view::unindexed;

/// The threads of a store, by chain and parent.
#[derive(Debug, Default)]
pub(crate) struct Kin {
    /// The highest number of a thread that was taken in.
    newest: i64,
    /// The root of the chain of each thread.
    roots: HashMap<ThreadId, ThreadId>,
    /// The threads of each chain.
    chains: HashMap<ThreadId, Vec<ThreadId>>,
    /// The threads that each thread started.
    children: HashMap<ThreadId, Vec<ThreadId>>,
    /// The thread that started a chain, by the root of the chain.
    parents: HashMap<ThreadId, ThreadId>,
    /// Threads that have a log and no row.
    strays: BTreeSet<ThreadId>,
}

/// The threads that may have posted to an account.
#[derive(Debug, Default)]
pub(crate) struct Family {
    threads: BTreeSet<ThreadId>,
    /// The accounts of the chains.
    accounts: BTreeSet<AccountId>,
    /// Those of the threads that have a log and no row.
    strays: Vec<ThreadId>,
}

impl Kin {
    fn take_in(&mut self, thread: ThreadId, root: ThreadId, parent: Option<ThreadId>) {
        if let Some(parent) = parent {
            self.children.entry(parent.clone()).or_default().push(thread.clone());
            self.parents.insert(root.clone(), parent);
        }
        self.chains.entry(root.clone()).or_default().push(thread.clone());
        self.roots.insert(thread, root);
    }

    /// Takes in the threads that were added since. A row that fails its seal could name another family: its log is read instead.
    fn read(&mut self, db: &Db) -> Result<()> {
        let sql = format!("SELECT {} FROM {} WHERE t.id > ? ORDER BY t.id", rows::COLUMNS, rows::TABLES);
        let mut statement = db.prepare_cached(&sql).map_err(database)?;
        let mut found = statement.query([self.newest]).map_err(database)?;
        while let Some(raw) = found.next().map_err(database)? {
            let row = rows::row(rows::raw(raw).map_err(database)?)?;
            self.newest = row.id;
            if row.check(db).is_ok() {
                let Manifest { thread_id, chain_root_id, parent_id, .. } = row.manifest;
                self.take_in(thread_id, chain_root_id, parent_id);
            }
        }
        Ok(())
    }

    fn of(&self, id: &AccountId) -> Family {
        let chain = |root: &ThreadId| self.chains.get(root).into_iter().flatten();
        let root_of = |thread: &ThreadId| self.roots.get(thread).unwrap_or(thread).clone();
        let children = chain(id).flat_map(|thread| self.children.get(thread).into_iter().flatten());
        let accounts: BTreeSet<_> = children.chain(self.parents.get(id)).map(root_of).chain([id.clone()]).collect();
        let threads: BTreeSet<_> = accounts.iter().flat_map(chain).cloned().collect();
        let strays = threads.intersection(&self.strays).cloned().collect();
        Family { threads, accounts, strays }
    }
}

impl Family {
    /// The rows of its threads, each what was sealed.
    pub(crate) fn rows(&self, db: &Db) -> Result<Vec<Row>> {
        self.threads.iter().filter_map(|thread| rows::find(db, thread).transpose()).collect()
    }

    /// The parts of the anchor that its accounts belong to.
    pub(crate) fn parts(&self) -> BTreeSet<Bucket> {
        self.accounts.iter().map(Bucket::of_account).collect()
    }
}

impl Core {
    /// The threads that may have posted to an account.
    pub(crate) fn family(&self, id: &AccountId) -> Result<Family> {
        let mut kin = lock(&self.kin);
        let folders = if kin.newest == 0 { self.folders()? } else { Vec::new() };
        self.read(|db| kin.read(db))?;
        // Folders were listed first: one that has no row by now had none then.
        for thread in folders {
            if !kin.roots.contains_key(&thread)
                && let Some((root, parent)) = self.birth(&thread)
            {
                // A row that fails its seal is refused where the family needs it.
                if self.is_stray(&thread).unwrap_or(false) {
                    kin.strays.insert(thread.clone());
                }
                kin.take_in(thread, root, parent);
            }
        }
        Ok(kin.of(id))
    }

    /// Refuses an account if the log of a thread that may have posted to it continues after its head, or has no head. If the account is
    /// known to be incomplete, missing postings count as spent.
    pub(crate) fn check_family(&self, account: Option<&Account>, family: &Family, rows: &[Row]) -> Result<()> {
        for row in rows {
            self.refuse_outdated_row(&row.manifest.thread_id, row)?;
        }
        let is_incomplete = account.is_some_and(|account| account.incomplete);
        match family.strays.iter().find(|_| !is_incomplete) {
            Some(stray) if self.is_stray(stray)? => Err(unindexed(stray)),
            _ => Ok(()),
        }
    }

    /// The threads that have a folder.
    fn folders(&self) -> Result<Vec<ThreadId>> {
        let named = |name: &str| ThreadId::from_folder(name).ok().filter(|_| !is_reserved(name));
        let entries = listed(self.layout.root())?;
        Ok(entries.iter().filter_map(|entry| named(&entry.file_name().to_string_lossy())).collect())
    }

    /// The chain and the parent that the first line of a log names.
    fn birth(&self, thread: &ThreadId) -> Option<(ThreadId, Option<ThreadId>)> {
        let file = self.disk.open(&self.layout.transcript(thread), OpenMode::Read).ok()?;
        let mut buffer = Vec::new();
        let mut reader = std::io::BufReader::new(Overlay::of_file(Some(file)).ok()?);
        lines::next_line(&mut reader, &mut buffer).ok()?;
        match line::decode(buffer.strip_suffix(b"\n")?).ok()?.event {
            Event::ThreadCreated(created) => {
                let born = Manifest::born(thread, &created, Timestamp::from_micros(0));
                Some((born.chain_root_id, born.parent_id))
            }
            _ => None,
        }
    }
}
