//! A store whose commits are facts as soon as they return, whoever makes them.
//!
//! A run goes on in threads of its own, and a caller hears of a commit some time after it: a cut in between would find the commit there
//! and nobody who was told. So the store itself tells.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_engine::RunEvent;
use selvedge_model::{Batch, CommitKey, Digest, ThreadId};
use selvedge_store::{Commit, Committed, Result, Tombstone};
use selvedge_store_local::LocalStore;

use crate::Tried;
use crate::fact::{Fact, Teller};

/// A store that tells what it committed.
pub(super) struct Witnessed {
    inner: Arc<LocalStore>,
    lent: Mutex<Lent>,
}

struct Lent {
    teller: Teller,
    /// What went wrong first when something was told.
    told: Tried,
}

/// Does something with a store that tells what it commits.
pub(super) fn witnessed(
    store: &Arc<LocalStore>,
    teller: &mut Teller,
    work: impl FnOnce(&Arc<Witnessed>) -> Tried,
) -> Tried {
    let lent = Mutex::new(Lent { teller: std::mem::take(teller), told: Ok(()) });
    let witnessed = Arc::new(Witnessed { inner: store.clone(), lent });
    let done = work(&witnessed);
    let mut lent = witnessed.lock();
    *teller = std::mem::take(&mut lent.teller);
    let told = std::mem::replace(&mut lent.told, Ok(()));
    done.and(told)
}

impl Witnessed {
    /// Hears what a caller of the engine is told: that something is committed holds for it as well.
    pub(super) fn hear(&self, event: RunEvent) {
        if let RunEvent::Committed { thread, version, .. } = event {
            self.reached(thread, version);
        }
    }

    fn reached(&self, thread: ThreadId, version: u64) {
        let (mut lent, fact) = (self.lock(), Fact::Reached { thread, version });
        if lent.told.is_ok() && !lent.teller.told().contains(&fact) {
            lent.told = lent.teller.tell(fact);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Commit for Witnessed {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        let committed = self.inner.commit(batch)?;
        committed.versions.iter().for_each(|(thread, version)| self.reached(thread.clone(), *version));
        Ok(committed)
    }
    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>> {
        self.inner.outcome(key)
    }
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        self.inner.put_blob(thread, bytes)
    }
    fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        self.inner.delete(thread)
    }
}

selvedge_store::forward!([] Witnessed, inner: Logs, Leases, Inbox, Registry, Feed, Ledger);
