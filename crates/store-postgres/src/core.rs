//! What every part of the store works with: connections, keys, and what this process remembers of threads and accounts.
//!
//! Memory only saves reading: a commit compares the seals of what it was prepared from, so outdated memory costs a second attempt.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_log::hash::{Binding, RunningHash, SealKey, Seals};
use selvedge_log::{Head, Signer, Tail, Trust};
use selvedge_model::account::AccountId;
use selvedge_model::{Clock, Digest, Ids, OwnerId, ThreadId};
use selvedge_store::lease::LeaseQueue;
use selvedge_store::queue::Queues;
use selvedge_store::{Error, Result};
use serde_json::Value;

use crate::error::unusable;
use crate::ledger::StoredAccount;
use crate::logs::LogReader;
use crate::open::Problems;
use crate::pool::{Connection, Pool, Problem};
use crate::pulse::Pulse;
use crate::rows::{self, Row};
use crate::watch::Watch;

/// How many threads a process remembers.
const REMEMBERED_MAX: usize = 10_000;

/// What every part of the store works with.
pub(crate) struct Core {
    pub(crate) pool: Arc<Pool>,
    pub(crate) signing: Option<Signing>,
    pub(crate) trust: Trust,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) owner: OwnerId,
    pub(crate) store_id: String,
    /// The address without its password.
    pub(crate) shown: String,
    /// The name of this machine.
    pub(crate) host: String,
    /// Serializes this process's commits to each thread, so that no signature is wasted on a conflict.
    pub(crate) queues: Arc<Queues>,
    pub(crate) lease_queue: LeaseQueue,
    pub(crate) pulse: Pulse,
    pub(crate) watch: Arc<Watch>,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) problems: Problems,
    /// The position below which a reader waited in vain for a transaction to end.
    pub(crate) waited_at: AtomicI64,
    pub(crate) is_closed: AtomicBool,
}

/// The key of this store and what is derived from it. It never reaches the server.
pub(crate) struct Signing {
    pub(crate) signer: Signer,
    pub(crate) seal: SealKey,
    /// Seals and checks the rows of this store.
    pub(crate) rows: Seals,
}

/// What this process remembers.
#[derive(Default)]
pub(crate) struct Memory {
    threads: HashMap<ThreadId, Arc<KnownThread>>,
    accounts: HashMap<AccountId, StoredAccount>,
    /// Accounts that were compared with what the logs of their family posted.
    pub(crate) checked_accounts: HashSet<AccountId>,
}

/// A thread as it was read or written last.
#[derive(Clone)]
pub(crate) struct KnownThread {
    pub(crate) row: Row,
    pub(crate) tail: Tail,
    pub(crate) state: Option<Arc<Value>>,
}

impl Core {
    pub(crate) fn signing(&self) -> Result<&Signing> {
        self.signing.as_ref().ok_or_else(|| unusable("it was opened for reading only", None))
    }

    pub(crate) fn seals(&self) -> Option<&Seals> {
        self.signing.as_ref().map(|signing| &signing.rows)
    }

    /// Reads; a row that fails its seal is named together with our key.
    pub(crate) fn read<T>(&self, work: impl FnMut(&mut Connection) -> Result<T, Problem>) -> Result<T> {
        let ours = self.signing.as_ref().map_or(Digest([0; 32]), |signing| signing.signer.fingerprint());
        self.pool.read(work).map_err(|error| match error {
            Error::Unsealed { what, .. } => Error::Unsealed { what, ours },
            error => error,
        })
    }

    pub(crate) fn find(&self, thread: &ThreadId) -> Result<Option<Row>> {
        self.read(|connection| rows::find(connection, self.seals(), thread))
    }

    /// One thread; one that does not exist is refused as absent or as deleted.
    pub(crate) fn existing(&self, thread: &ThreadId) -> Result<Row> {
        match self.find(thread)? {
            Some(row) => Ok(row),
            None => Err(self.missing(thread)?),
        }
    }

    /// The error for a thread that has no row.
    pub(crate) fn missing(&self, thread: &ThreadId) -> Result<Error> {
        let sql = "SELECT 1 FROM tombstones WHERE thread = $1";
        let is_deleted = self.read(|connection| Ok(connection.first(sql, &[&thread.as_str()])?.is_some()))?;
        Ok(if is_deleted { Error::Deleted(thread.clone()) } else { Error::NoThread(thread.to_string()) })
    }

    /// Loads a thread, with the running hash at its head.
    pub(crate) fn load(&self, thread: &ThreadId) -> Result<Option<KnownThread>> {
        let Some(row) = self.find(thread)? else { return Ok(None) };
        let signing = self.signing()?;
        let (theirs, ours) = (row.head.signer, signing.signer.fingerprint());
        if theirs != ours && !signing.signer.succeeds(&theirs) {
            return Err(Error::OtherSigner { thread: thread.clone(), theirs, ours });
        }
        let opened = signing.seal.open(&binding(&row.head), &row.hash).filter(|hash| hash.digest() == row.head.hash);
        let hash = match opened.filter(|_| !signing.signer.is_wary()) {
            Some(hash) => hash,
            None => self.hash_again(&row)?,
        };
        let tail = Tail::behind(row.head.clone(), hash);
        Ok(Some(KnownThread { row, tail, state: None }))
    }

    /// The running hash at a head, computed from the log itself; refused if the log is not what was signed.
    fn hash_again(&self, row: &Row) -> Result<RunningHash> {
        use selvedge_log::recovery::{Evidence, Finding, judge};
        use selvedge_log::scan::{Scanner, Signatures, examine};
        let thread = row.thread();
        let reader = LogReader::new(self.pool.clone(), row.root.clone(), thread.clone(), 0, row.head.bytes);
        let scanner = Scanner::new(thread, &self.trust, Signatures::Last).watching(Some(row.head.version));
        let examined = examine(reader, scanner, |_| {})
            .map_err(|error| Error::Database { why: error.to_string(), retryable: true })?;
        let judged = judge(&examined, Evidence { head: Some(&row.head), ..Default::default() }, Default::default());
        match (judged.finding, examined.tail) {
            (Finding::Sound, Some(tail)) => Ok(tail.hash),
            (finding, _) => Err(Error::Log { thread: thread.clone(), finding }),
        }
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the user something once a command ends.
    pub(crate) fn note_problem(&self, problem: String) {
        self.problems.add(problem);
    }
}

impl Memory {
    pub(crate) fn thread(&self, thread: &ThreadId) -> Option<Arc<KnownThread>> {
        self.threads.get(thread).cloned()
    }

    pub(crate) fn account(&self, account: &AccountId) -> Option<StoredAccount> {
        self.accounts.get(account).cloned()
    }

    pub(crate) fn remember(&mut self, known: KnownThread) {
        if self.threads.len() >= REMEMBERED_MAX {
            self.threads.clear();
        }
        self.threads.insert(known.row.thread().clone(), Arc::new(known));
    }

    pub(crate) fn remember_account(&mut self, id: &AccountId, account: StoredAccount) {
        if self.accounts.len() >= REMEMBERED_MAX {
            self.accounts.clear();
        }
        self.accounts.insert(id.clone(), account);
    }

    pub(crate) fn forget(&mut self, thread: &ThreadId) {
        self.threads.remove(thread);
    }

    pub(crate) fn forget_accounts(&mut self) {
        self.accounts.clear();
    }
}

/// The position that the running hash at a head is sealed for.
pub(crate) fn binding(head: &Head) -> Binding<'_> {
    Binding { log_id: head.log_id.as_str(), segment: head.segment, version: head.version, offset: head.bytes }
}
