//! The store traits; each method delegates to the file that implements it.

use std::io::BufRead;
use std::sync::atomic::Ordering;
use std::time::Duration;

use selvedge_log::{Head, Line};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::{Batch, CommitKey, Digest, OwnerId, Posted, RequestId, Run, ThreadId, Timestamp};
use selvedge_store::newest::by_age;
use selvedge_store::seal::SealedRow;
use selvedge_store::{
    Acquire, Commit, Committed, Cursor, Delivery, Erase, Feed, FeedEntry, Filter, Handle, Inbox, Lease, Leases, Ledger,
    Logs, Page, Position, PostedNotice, QueuedRequest, Registry, Result, Summary, Tombstone,
};

use crate::lease::PendingRequests;
use crate::logs::LogReader;
use crate::open::PostgresStore;
use crate::rows;

impl Commit for PostgresStore {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        self.core.commit(&batch)
    }

    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>> {
        Ok(self.core.outcome(key)?.map(|(_, committed)| committed))
    }

    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        self.core.put_blob(thread, bytes)
    }

    fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        self.delete_thread(thread)
    }
}

impl Logs for PostgresStore {
    fn head(&self, thread: &ThreadId) -> Result<Head> {
        Ok(self.core.existing(thread)?.head)
    }

    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>> {
        self.core.lines(thread, from, limit)
    }

    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)> {
        let row = self.core.existing(thread)?;
        let log = LogReader::new(self.core.pool.clone(), row.root, thread.clone(), 0, row.head.bytes);
        Ok((row.head, Box::new(log)))
    }

    fn blob(&self, thread: &ThreadId, blob: &Digest) -> Result<Vec<u8>> {
        self.core.blob(thread, blob)
    }
}

impl Leases for PostgresStore {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.core.signing()?;
        self.core.lease_queue.acquire(thread, how, &self.core.owner, &*self.core)
    }

    fn renew(&self, lease: &Lease) -> Result<()> {
        self.core.renew(lease)
    }

    fn owner(&self) -> &OwnerId {
        &self.core.owner
    }

    fn beat(&self, at: Timestamp) -> Result<()> {
        let signing = self.core.signing()?;
        self.core.pulse.register(&self.core)?;
        let sql = "UPDATE owners SET beat = $2, mark = $3 WHERE owner = $1";
        let time = at.to_string();
        let mark = SealedRow::Beat { owner: &self.core.owner, time: &time }.mark(&signing.rows);
        let (owner, mark) = (self.core.owner.as_str(), mark.0.to_vec());
        self.core.read(|connection| Ok(connection.execute(sql, &[&owner, &time, &mark]).map(drop)?))
    }

    fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>> {
        let sql = "SELECT beat, mark FROM owners WHERE owner = $1 AND beat IS NOT NULL AND mark IS NOT NULL";
        let found = self.core.read(|connection| Ok(connection.first(sql, &[&owner.as_str()])?))?;
        let Some(found) = found else { return Ok(None) };
        let (time, mark): (String, Vec<u8>) = (found.get(0), found.get(1));
        // One that another program wrote is as good as none.
        let is_ours = self.core.seals().is_none_or(|seals| {
            rows::digest(&mark).is_ok_and(|mark| SealedRow::Beat { owner, time: &time }.is_marked(seals, &mark))
        });
        Ok(if is_ours { time.parse().ok() } else { None })
    }

    fn release(&self, lease: &Lease) -> Result<()> {
        self.core.release(lease, PendingRequests::Refuse)
    }

    fn abandon(&self, lease: &Lease) -> Result<()> {
        self.core.release(lease, PendingRequests::Ignore)
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        let row = self.core.existing(thread)?;
        Ok(row.owner.filter(|_| row.is_alive))
    }

    fn expired(&self) -> Result<Vec<Lease>> {
        self.core.dead_leases()
    }
}

impl Inbox for PostgresStore {
    fn post(&self, posted: Posted) -> Result<Delivery> {
        self.core.post(&posted)
    }

    fn pending(&self, thread: &ThreadId) -> Result<Vec<QueuedRequest>> {
        self.core.pending(thread)
    }

    fn answered(&self, thread: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>> {
        self.core.answered_in(&self.core.existing(thread)?, id)
    }

    fn newest(&self) -> Result<u64> {
        self.core.newest_request()
    }

    fn arrivals(&self, after: u64, limit: usize) -> Result<Vec<PostedNotice>> {
        self.core.arrivals(after, limit)
    }
}

impl Registry for PostgresStore {
    fn get(&self, thread: &ThreadId) -> Result<Summary> {
        self.core.summary(thread)
    }

    fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        self.core.list(filter, after, limit)
    }

    fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.core.chain(thread)
    }

    fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        self.core.children(thread)
    }

    fn runs(&self, thread: &ThreadId) -> Result<Vec<Run>> {
        self.core.stored_runs(&self.core.existing(thread)?, None)
    }

    fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        by_age(self, prefix).unwrap_or_else(|| self.core.resolve(prefix))
    }

    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        self.core.tombstone(thread)
    }
}

impl Feed for PostgresStore {
    fn position(&self) -> Result<u64> {
        self.core.position()
    }

    fn after(&self, position: u64, limit: usize) -> Result<Vec<FeedEntry>> {
        self.core.after(position, limit)
    }

    fn leases_freed(&self) -> u64 {
        self.core.watch.leases_freed()
    }

    fn watch(&self, seen: Position, timeout: Duration) -> Result<()> {
        let is_there = || {
            if self.leases_freed() > seen.leases {
                return Ok(true);
            }
            // What is excluded costs no query.
            if seen.requests != u64::MAX && self.newest()? > seen.requests {
                return Ok(true);
            }
            Ok(seen.commits != u64::MAX && !self.after(seen.commits, 1)?.is_empty())
        };
        self.core.watch.wait(&self.core.pool, timeout, is_there)
    }
}

impl Ledger for PostgresStore {
    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        Ok(self.core.stored_account(id)?.map(|stored| stored.account))
    }

    fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        self.core.tree(id)
    }

    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        let stored = self.core.stored_account(account)?;
        Ok(stored.map(|stored| stored.reservations.into_values().collect()).unwrap_or_default())
    }
}

impl Erase for PostgresStore {
    fn erase(&self, thread: &ThreadId, blob: &Digest, reason: &str) -> Result<u64> {
        self.erase_blob(thread, blob, reason)
    }
}

impl Handle for PostgresStore {
    fn shut_down(&mut self) -> Result<()> {
        if self.core.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let released = if self.core.signing.is_some() { self.core.release_all() } else { Ok(()) };
        self.core.pulse.end();
        released
    }
}

impl Drop for PostgresStore {
    /// Its owner is dead from here on, and its leases can be taken over.
    fn drop(&mut self) {
        if !self.core.is_closed.swap(true, Ordering::SeqCst) {
            self.core.pulse.end();
        }
    }
}
