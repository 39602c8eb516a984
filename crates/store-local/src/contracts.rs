//! The store traits; each method delegates to the file that implements it.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use selvedge_log::{Head, Line, line, lines};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::{
    Batch, Cancel, CommitKey, Digest, DirectiveId, Manifest, OwnerId, Posted, RequestId, Run, ThreadId, Timestamp,
};
use selvedge_store::effects::Effects as _;
use selvedge_store::heads::{Comparison, CurrentHeads, Depth, Heads};
use selvedge_store::newest::by_age;
use selvedge_store::{
    Acquire, Commit, Committed, Cursor, Delivery, Erase, Feed, FeedEntry, Filter, Handle, Inbox, Lease, Leases, Ledger,
    Logs, Page, Position, PostedNotice, QueuedRequest, ReadHeads, Registry, Result, SignedFiles, Summary, Tombstone,
};

use crate::anchor::Bucket;
use crate::core::io_error;
use crate::feed;
use crate::inbox;
use crate::lease::PendingRequests;
use crate::open::LocalStore;
use crate::rows;

impl Commit for LocalStore {
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
        // Its usage stays, and can't be derived any more when its log is gone. A failure must not keep a thread from being deleted.
        if let Err(error) = self.record_usage(&Cancel::new()) {
            self.core.note_problem(format!("the usage of `{thread}` could not be recorded: {error}"));
        }
        self.core.delete(thread)
    }
}

impl Logs for LocalStore {
    fn head(&self, thread: &ThreadId) -> Result<Head> {
        self.core.read(|connection| Ok(rows::existing(connection, thread)?.head))
    }

    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>> {
        let path = self.core.layout.transcript(thread);
        let (head, overlay) = self.core.open_current_log(thread)?.committed();
        let mut found = Vec::new();
        if from >= head.lines || limit == 0 {
            return Ok(found);
        }
        // Read from the nearer end.
        if head.lines - from > from {
            let mut reader = BufReader::with_capacity(1 << 16, overlay);
            let mut buffer = Vec::new();
            let mut seq = 0;
            while found.len() < limit && lines::next_line(&mut reader, &mut buffer).map_err(io_error("read", &path))? {
                if seq >= from {
                    found.push(line::decode(buffer.strip_suffix(b"\n").unwrap_or(&buffer))?);
                }
                seq += 1;
            }
        } else {
            let end = overlay.end();
            let mut reader = lines::ReverseLines::new(overlay, end).map_err(io_error("read", &path))?;
            let mut seq = head.lines;
            while seq > from
                && let Some((_, bytes)) = reader.next_back().map_err(io_error("read", &path))?
            {
                seq -= 1;
                if seq < from.saturating_add(limit as u64) {
                    found.push(line::decode(bytes)?);
                }
            }
            found.reverse();
        }
        Ok(found)
    }

    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)> {
        let (head, overlay) = self.core.open_current_log(thread)?.committed();
        Ok((head, Box::new(BufReader::with_capacity(1 << 16, overlay))))
    }

    fn blob(&self, thread: &ThreadId, blob: &Digest) -> Result<Vec<u8>> {
        self.core.blob(thread, blob)
    }
}

impl Leases for LocalStore {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.core.acquire(thread, how)
    }

    fn renew(&self, lease: &Lease) -> Result<()> {
        self.core.renew(lease)
    }

    fn owner(&self) -> &OwnerId {
        &self.core.owner
    }

    fn beat(&self, at: Timestamp) -> Result<()> {
        match &self.owner_file {
            Some(file) => self.core.beat(&**file, at),
            // Opened for reading only.
            None => self.core.writer().map(|_| ()),
        }
    }

    fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>> {
        self.core.last_beat(owner)
    }

    fn release(&self, lease: &Lease) -> Result<()> {
        self.core.release(lease, PendingRequests::Refuse)
    }

    fn abandon(&self, lease: &Lease) -> Result<()> {
        self.core.release(lease, PendingRequests::Ignore)
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        self.core.live_holder(thread)
    }

    fn expired(&self) -> Result<Vec<Lease>> {
        self.core.dead_leases()
    }
}

impl Inbox for LocalStore {
    fn post(&self, posted: Posted) -> Result<Delivery> {
        self.core.post(posted)
    }

    fn pending(&self, thread: &ThreadId) -> Result<Vec<QueuedRequest>> {
        self.core.pending(thread)
    }

    fn answered(&self, thread: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>> {
        self.core.read(|connection| {
            let root = rows::existing(connection, thread)?.manifest.chain_root_id;
            inbox::answered(connection, &root, id)
        })
    }

    fn newest(&self) -> Result<u64> {
        self.core.read(inbox::newest)
    }

    fn arrivals(&self, after: u64, limit: usize) -> Result<Vec<PostedNotice>> {
        self.core.read(|connection| inbox::arrivals(connection, after, limit))
    }
}

impl Registry for LocalStore {
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
        self.core.read(|connection| {
            let row = rows::existing(connection, thread)?;
            rows::runs(connection, &row)
        })
    }

    fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        by_age(self, prefix).unwrap_or_else(|| self.core.resolve(prefix))
    }

    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        self.core.tombstone(thread)
    }
}

impl Feed for LocalStore {
    fn position(&self) -> Result<u64> {
        self.core.read(|connection| feed::position(connection))
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
        self.core.watch.wait(self.core.layout.root(), timeout, is_there)
    }
}

impl Ledger for LocalStore {
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        self.core.read(|connection| rows::reservations(connection, account))
    }

    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        self.core.read(|connection| {
            let account = rows::accounts(connection, "thread_id = ?", id.as_str())?.pop();
            self.core.check_anchor(connection, Bucket::of_account(id), 0)?;
            Ok(account)
        })
    }

    fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        self.core.read(|connection| {
            let mut found = rows::accounts(connection, "thread_id = ?", id.as_str())?;
            let mut next = 0;
            while let Some(parent) = found.get(next).map(|account| account.id.clone()) {
                let mut children = rows::accounts(connection, "parent_id = ?", parent.as_str())?;
                children.retain(|child| found.iter().all(|known| known.id != child.id));
                found.extend(children);
                next += 1;
            }
            Ok(found)
        })
    }
}

impl ReadHeads for LocalStore {
    fn store_id(&self) -> Result<String> {
        self.store_id()
    }

    fn heads(&self) -> Result<CurrentHeads> {
        self.heads()
    }

    fn sign_heads(&self, heads: &Heads) -> Result<String> {
        self.sign_heads(heads)
    }

    fn compare_heads(&self, heads: &Heads, depth: Depth) -> Comparison {
        self.compare_heads(heads, depth)
    }
}

impl Erase for LocalStore {
    fn erase(&self, thread: &ThreadId, blob: &Digest, reason: &str) -> Result<u64> {
        self.erase(thread, blob, reason)
    }
}

impl SignedFiles for LocalStore {
    fn write_capabilities(&self, thread: &ThreadId, body: &dyn Fn() -> String) -> Result<bool> {
        self.write_capabilities(thread, body)
    }

    fn write_knowledge(&self, id: &DirectiveId, body: &str, is_replaceable: &dyn Fn(&str) -> bool) -> Result<Digest> {
        self.write_knowledge(id, body, is_replaceable)
    }

    fn check_manifest(&self, recorded: &Manifest) -> Result<()> {
        self.check_manifest(recorded)
    }

    fn missing_manifest(&self, thread: &ThreadId) -> Option<String> {
        self.missing_manifest(thread)
    }
}

impl Handle for LocalStore {
    /// A short write-ahead log is left to the next process that opens the store; see [`LocalStore::close_briefly`].
    fn shut_down(&mut self) -> Result<()> {
        self.end_briefly()
    }
}
