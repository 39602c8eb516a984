//! A tree of accounts, by the database and by the signed logs alone.
//!
//! The threads of a tree are found by their links; each log is read with every signature verified, and its records are posted again. If
//! something is missing then, every other log of the store is read as well: a posting is in the log of the thread that made it. Postings may
//! be gone for a reason that the store knows ([`Unavailable`]); that is reported, and not a flaw, but what follows them can't be checked.
//! Finally the result is compared with the database. Nothing is written.
//!
//! Postings may be made to a tree meanwhile. All accounts of a [`AccountTree`] are of one moment, and the logs are read after it, so they have every
//! posting of that moment and perhaps later ones; those are left out, by the versions of their accounts.

mod unavailable;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use selvedge_log::Trust;
use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_model::account::replay::{
    AccountFlaw, DeletedPostings, History, LocatedRecord, Replayed, replay_without, unburied,
};
use selvedge_model::account::{Account, AccountId, Record, Reservation};
use selvedge_model::{Event, ThreadId};
use selvedge_store::{Error, Filter, Result, Store};

use crate::chain;
use crate::ledger::differences::{differences, other_parent};
use crate::thread_state::listed;
pub use unavailable::{Cause, Unavailable, cause};
use unavailable::{deleted, not_in_store};

/// A tree of accounts and the threads that spend from them.
#[derive(Clone, Debug, Default)]
pub struct AccountTree {
    /// The account at its top: that of a chain without a parent.
    pub root: Option<AccountId>,
    /// The accounts, each after its parent.
    pub accounts: Vec<Branch>,
}

/// One account of a tree.
#[derive(Clone, Debug)]
pub struct Branch {
    /// The account.
    pub account: Account,
    /// What it holds.
    pub reservations: Vec<Reservation>,
    /// Whether it was posted to before its reservations could be read, so that they are of a later moment.
    pub has_moved: bool,
    /// Its depth in the tree.
    pub depth: usize,
    /// The threads that spend from it, in the order of their chain.
    pub threads: Vec<ThreadId>,
}

/// What the signed logs say of a tree.
#[derive(Clone, Debug)]
pub struct Audit {
    /// How many logs were read.
    pub logs: usize,
    /// The accounts, by the logs.
    pub accounts: BTreeMap<AccountId, History>,
    /// How many postings were read and could not be posted again, because others before them are gone or wrong.
    pub unposted: u64,
    /// What can't be computed, because it was in logs that were deleted, in lost versions, or in logs that are not here.
    pub gone: Vec<Unavailable>,
    /// The discrepancies.
    pub found: Vec<Found>,
}

impl Audit {
    /// Whether every posting was posted again without a discrepancy.
    pub fn is_complete(&self) -> bool {
        self.found.is_empty() && self.gone.is_empty()
    }
}

/// A discrepancy.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// A log is not valid.
    Log {
        /// The thread.
        thread: ThreadId,
        /// Why not.
        why: String,
    },
    /// The records of an account are not valid.
    Records(AccountFlaw),
    /// A posting exists that was deleted according to a tombstone.
    Tombstone {
        /// The thread.
        thread: ThreadId,
        /// The contradiction.
        why: String,
    },
    /// The database differs from the logs.
    Database {
        /// The account.
        account: AccountId,
        /// What the database has, and what the logs have.
        why: String,
    },
}

impl Found {
    /// Whether something was forged, lost or damaged; that a limit was exceeded may be true.
    pub fn is_of_integrity(&self) -> bool {
        !matches!(self, Self::Records(flaw) if !flaw.is_of_the_records())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It names the log itself.
            Self::Log { why, .. } => f.write_str(why),
            Self::Records(flaw) => flaw.fmt(f),
            Self::Tombstone { thread, why } => write!(f, "the tombstone of `{thread}`: {why}"),
            Self::Database { account, why } => write!(f, "account `{account}`: {why}"),
        }
    }
}

/// The tree that a thread's account belongs to, by the database.
pub fn tree(store: &dyn Store, thread: &ThreadId) -> Result<AccountTree> {
    let own = store.get(thread)?.manifest.chain_root_id;
    let Some(mut root) = store.account(&own)? else { return Ok(AccountTree::default()) };
    let mut passed = BTreeSet::from([own]);
    while let Some(parent) = root.parent.clone().filter(|parent| passed.insert(parent.clone())) {
        match store.account(&parent)? {
            Some(above) => root = above,
            None => break,
        }
    }
    let mut tree = tree_once(store, &root)?;
    for _ in 1..TRIES {
        if tree.accounts.iter().all(|branch| !branch.has_moved) {
            break;
        }
        tree = tree_once(store, &root)?;
    }
    Ok(tree)
}

/// How often a tree is read again if it is posted to meanwhile.
const TRIES: u32 = 4;

fn tree_once(store: &dyn Store, root: &Account) -> Result<AccountTree> {
    let found = store.tree(&root.id)?;
    let mut below: BTreeMap<Option<AccountId>, Vec<Account>> = BTreeMap::new();
    for account in found {
        let parent = if account.id == root.id { None } else { account.parent.clone() };
        below.entry(parent).or_default().push(account);
    }
    let mut accounts = Vec::new();
    let mut waiting: Vec<(usize, Account)> =
        below.remove(&None).unwrap_or_default().into_iter().map(|one| (0, one)).collect();
    while let Some((depth, account)) = waiting.pop() {
        let children = below.remove(&Some(account.id.clone())).unwrap_or_default();
        waiting.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
        let reservations = store.reservations(&account.id)?;
        let has_moved = store.account(&account.id)?.is_some_and(|now| now.version != account.version);
        let threads = chain_of(store, &account.id)?;
        accounts.push(Branch { account, reservations, has_moved, depth, threads });
    }
    Ok(AccountTree { root: Some(root.id.clone()), accounts })
}

/// Computes a tree from the signed logs alone, and compares the database with it. Nothing is written.
pub fn audit(store: &dyn Store, trust: &Trust, tree: &AccountTree) -> Result<Audit> {
    let read = BTreeSet::new();
    let mut reader = Reader { store, trust, seen: Vec::new(), lost: Vec::new(), read, found: Vec::new() };
    let roots: Vec<_> = tree.accounts.iter().map(|branch| branch.account.id.clone()).collect();
    let deleted = deleted(store, &roots)?;
    for thread in below(store, roots)? {
        reader.read(&thread)?;
    }
    let mut books = reader.books(tree, &deleted)?;
    if books.replayed.flaws.iter().any(|flaw| matches!(flaw, AccountFlaw::Missing { .. }))
        || books.is_partly_elsewhere()
        || reader.lacks_postings(tree, &books.buried)
    {
        for thread in every_thread(store)? {
            reader.read(&thread)?;
        }
        books = reader.books(tree, &deleted)?;
    }
    let Books { gone, buried, replayed: Replayed { accounts, flaws, unposted } } = books;
    let mut found = std::mem::take(&mut reader.found);
    found.extend(flaws.into_iter().map(Found::Records));
    found.extend(gone.iter().filter_map(|gone| reader.contradicts(gone)));
    for branch in &tree.accounts {
        found.extend(reader.differs(branch, accounts.get(&branch.account.id), &buried)?);
    }
    let is_of_tree = |id: &AccountId| tree.accounts.iter().any(|branch| branch.account.id == *id);
    for (id, history) in accounts.iter().filter(|(id, _)| !is_of_tree(id)) {
        let why = match store.account(id)? {
            None => format!("the logs have {} postings of it, and the database has no such account", history.postings),
            Some(known) => match other_parent(&known, &history.account) {
                Some(why) => why,
                None => continue,
            },
        };
        found.push(Found::Database { account: id.clone(), why });
    }
    Ok(Audit { logs: reader.read.len(), accounts, unposted, gone, found })
}

/// The accounts to check, each with the last of its postings that counts.
type Extent = BTreeMap<AccountId, u64>;

/// What the records that were read make of a tree.
struct Books {
    gone: Vec<Unavailable>,
    buried: Vec<DeletedPostings>,
    replayed: Replayed,
}

impl Books {
    /// Whether relatives are not here: another log of the store may have what is missing.
    fn is_partly_elsewhere(&self) -> bool {
        self.gone.iter().any(|gone| matches!(gone, Unavailable::NotInStore { .. }))
    }
}

/// The threads of a chain that exist, in order.
fn chain_of(store: &dyn Store, root: &AccountId) -> Result<Vec<ThreadId>> {
    let found = chain::walk(store, root)?;
    Ok(found.into_iter().filter(|(_, is_deleted)| !is_deleted).map(|(link, _)| link.manifest.thread_id).collect())
}

/// The threads of these chains and of everything below them.
fn below(store: &dyn Store, roots: Vec<AccountId>) -> Result<BTreeSet<ThreadId>> {
    let mut found = BTreeSet::new();
    let mut waiting = roots;
    while let Some(root) = waiting.pop() {
        for thread in chain_of(store, &root)? {
            if found.insert(thread.clone()) {
                let children = store.children(&thread)?;
                waiting.extend(children.into_iter().map(|child| child.manifest.chain_root_id));
            }
        }
    }
    Ok(found)
}

fn every_thread(store: &dyn Store) -> Result<Vec<ThreadId>> {
    listed(store, &Filter::default(), |found| Some(found.manifest.thread_id))
}

/// Collects the records of logs.
struct Reader<'s> {
    store: &'s dyn Store,
    trust: &'s Trust,
    seen: Vec<LocatedRecord>,
    /// Postings that were lost, according to the logs themselves.
    lost: Vec<Unavailable>,
    read: BTreeSet<ThreadId>,
    found: Vec<Found>,
}

impl Reader<'_> {
    /// Reads the records of one log, every hash and every signature verified, unless it was read before.
    fn read(&mut self, thread: &ThreadId) -> Result<()> {
        if !self.read.insert(thread.clone()) {
            return Ok(());
        }
        let (head, bytes) = self.store.transcript(thread)?;
        let scanner = Scanner::new(thread, self.trust, Signatures::Every).watching(Some(head.version));
        let seen = &mut self.seen;
        let lost = &mut self.lost;
        let examined = examine(bytes, scanner, |entry| {
            for line in &entry.lines {
                if let Event::Recovery(found) = &line.event {
                    let of_log = |postings: &DeletedPostings| Unavailable::Lost {
                        thread: thread.clone(),
                        postings: postings.clone(),
                    };
                    lost.extend(found.postings.iter().map(of_log));
                }
            }
            seen.extend(entry.lines.iter().filter_map(|line| {
                let (event_type, record) = line.event.posting()?;
                Some(LocatedRecord { thread: thread.clone(), line: line.seq, event_type, record: record.clone() })
            }));
        });
        let examined =
            examined.map_err(|source| Error::Io { what: "read the log of", path: thread.as_str().into(), source })?;
        let evidence = Evidence { head: Some(&head), file_bytes: examined.bytes, ..Evidence::default() };
        match judge(&examined, evidence, Mode::Strict).finding {
            Finding::Sound => {}
            finding => {
                let why = Error::Log { thread: thread.clone(), finding }.to_string();
                self.found.push(Found::Log { thread: thread.clone(), why });
            }
        }
        Ok(())
    }

    /// What is known by now: what is gone, and the rest posted again.
    fn books(&self, tree: &AccountTree, deleted: &[Unavailable]) -> Result<Books> {
        let extent = self.extent(tree)?;
        let is_of_tree = |lost: &&Unavailable| matches!(lost, Unavailable::Lost { postings, .. } if extent.contains_key(&postings.account));
        let mut gone: Vec<Unavailable> = deleted.iter().chain(self.lost.iter().filter(is_of_tree)).cloned().collect();
        let buried = |gone: &[Unavailable]| gone.iter().flat_map(|one| one.buried(extent.keys())).collect::<Vec<_>>();
        let elsewhere = buried(&gone);
        for branch in &tree.accounts {
            gone.extend(not_in_store(self.store, branch, &self.seen, &elsewhere)?);
        }
        let buried = buried(&gone);
        let replayed = self.replay(&extent, &buried);
        Ok(Books { gone, buried, replayed })
    }

    /// The last posting of an account that a log has, or had.
    fn last(&self, account: &AccountId, buried: &[DeletedPostings]) -> u64 {
        let read = self.seen.iter().filter(|one| one.record.account == *account).map(|one| one.record.account_version);
        let gone = buried.iter().filter(|one| one.account == *account).map(|one| one.to);
        read.chain(gone).max().unwrap_or(0)
    }

    /// Whether the database has postings that were not found.
    fn lacks_postings(&self, tree: &AccountTree, buried: &[DeletedPostings]) -> bool {
        tree.accounts.iter().any(|branch| self.last(&branch.account.id, buried) < branch.account.version)
    }

    /// A posting that exists although it was in a log that was deleted.
    fn contradicts(&self, gone: &Unavailable) -> Option<Found> {
        let Unavailable::Deleted { thread, postings: Some(DeletedPostings { account, from, to }) } = gone else {
            return None;
        };
        let is_it = |one: &&LocatedRecord| {
            one.record.account == *account && (*from..=*to).contains(&one.record.account_version)
        };
        let one = self.seen.iter().find(is_it)?;
        let why = format!(
            "it says that posting {} of account `{account}` was deleted, but it is in `{}` line {}",
            one.record.account_version, one.thread, one.line
        );
        Some(Found::Tombstone { thread: thread.clone(), why })
    }

    /// How the database differs from the logs about an account.
    fn differs(&self, branch: &Branch, logged: Option<&History>, buried: &[DeletedPostings]) -> Result<Option<Found>> {
        let Branch { account, reservations, has_moved, .. } = branch;
        let differs = |why: String| Ok(Some(Found::Database { account: account.id.clone(), why }));
        let counted =
            |ours: u64, last: u64| differs(format!("the database has {ours} postings of it, and the logs have {last}"));
        let last = self.last(&account.id, buried);
        if last < account.version {
            return counted(account.version, last);
        }
        // What was posted since the database was read is in the database by now.
        let read = self.last(&account.id, &[]);
        let now = self.store.account(&account.id)?;
        match now.map_or(0, |now| now.version) {
            now if now < read => return counted(now, read),
            _ => {}
        }
        let Some(logged) = logged else {
            let Some((missing, _)) = unburied(&account.id, 1, account.version, buried) else { return Ok(None) };
            return differs(format!(
                "the database has {} postings of it, and no log has posting {missing}",
                account.version
            ));
        };
        // If an account is not completely known, that was reported already, or is gone.
        if !logged.is_whole {
            return Ok(None);
        }
        if logged.account.version != account.version {
            return counted(account.version, logged.account.version);
        }
        let reservations = (!has_moved).then_some(reservations.as_slice());
        match differences(account, reservations, logged) {
            found if found.is_empty() => Ok(None),
            found => differs(found.join("; ")),
        }
    }

    /// The accounts of a tree, up to the postings that the database had; and those whose money comes from one of them according to the logs,
    /// but not according to the database.
    fn extent(&self, tree: &AccountTree) -> Result<Extent> {
        let of_tree: Extent =
            tree.accounts.iter().map(|branch| (branch.account.id.clone(), branch.account.version)).collect();
        let mut extent = of_tree.clone();
        let mut newer = BTreeSet::new();
        loop {
            let before = extent.len();
            for Record { account, parent, .. } in self.seen.iter().map(|one| &one.record) {
                let Some(parent) = parent.as_ref().filter(|parent| extent.contains_key(*parent)) else { continue };
                if extent.contains_key(account) || newer.contains(account) {
                    continue;
                }
                let known = self.store.account(account)?;
                // If it had been opened before, the tree would have it.
                let is_newer = known.is_some_and(|known| known.parent.as_ref() == Some(parent));
                if is_newer && of_tree.contains_key(parent) {
                    newer.insert(account.clone());
                } else {
                    extent.insert(account.clone(), u64::MAX);
                }
            }
            if extent.len() == before {
                return Ok(extent);
            }
        }
    }

    /// Posts the records of these accounts again.
    fn replay(&self, extent: &Extent, buried: &[DeletedPostings]) -> Replayed {
        let counts = |one: &&LocatedRecord| {
            extent.get(&one.record.account).is_some_and(|last| one.record.account_version <= *last)
        };
        replay_without(self.seen.iter().filter(counts).cloned(), buried)
    }
}
