//! Deleting a thread, and erasing the content of a blob. A deletion is one transaction: the rows go and a signed tombstone stays.

use selvedge_model::event::BlobErased;
use selvedge_model::{Batch, Changeset, Digest, Event, Expect, NamedBlobs, Part, Status, ThreadId, Timestamp};
use selvedge_store::effects::Effects as _;
use selvedge_store::tombstone::postings_of;
use selvedge_store::{Error, Result, Tombstone, Verify as _, blob};

use crate::core::Core;
use crate::logs::LogReader;
use crate::open::PostgresStore;
use crate::pulse::Told;
use crate::rows::{self, Row};

/// The longest blob that one row holds.
const BLOB_MAX: usize = 512 << 20;

impl Core {
    pub(crate) fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        let signing = self.signing()?;
        let _turn = self.queues.enter(thread, None);
        loop {
            let row = self.existing(thread)?;
            if row.manifest.status == Status::Running {
                return Err(Error::Running(thread.clone()));
            }
            if let Some(holder) = row.owner.clone().filter(|_| row.is_alive) {
                return Err(Error::LeaseHeld { thread: thread.clone(), holder });
            }
            let account = self.accounts("a.account = $1", row.chain().as_str())?.pop();
            if let Some(account) = account.map(|stored| stored.account).filter(|account| account.is_in_use()) {
                return Err(Error::AccountInUse { thread: thread.clone(), account: account.id });
            }
            let log = LogReader::new(self.pool.clone(), row.root.clone(), thread.clone(), 0, row.head.bytes);
            let tombstone = Tombstone {
                manifest: row.manifest.clone(),
                head: row.head.clone(),
                deleted_at: self.clock.now(),
                postings: postings_of(log).ok(),
            };
            let signed = tombstone.sign(&signing.signer)?;
            let values = (row.root.as_str(), thread.as_str());
            let sql = "SELECT bury($1, $2, $3, $4)";
            let mut connection = self.pool.get()?;
            let buried = connection.first(sql, &[&values.0, &values.1, &row.mark, &signed])?;
            drop(connection);
            if buried.is_some_and(|row| row.get(0)) {
                self.memory().forget(thread);
                self.pulse.tell(Told { commits: true, leases: true, ..Told::default() });
                self.watch.ring();
                return Ok(tombstone);
            }
            // Another process appended meanwhile; the tombstone must include that too.
        }
    }

    /// The signed tombstone of a deleted thread; one that fails verification is refused.
    pub(crate) fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        let sql = "SELECT document FROM tombstones WHERE thread = $1";
        let found = self.read(|connection| Ok(connection.first(sql, &[&thread.as_str()])?))?;
        found.map(|row| self.verified_tombstone(thread, row.get(0))).transpose()
    }

    pub(crate) fn verified_tombstone(&self, thread: &ThreadId, text: String) -> Result<Tombstone> {
        Tombstone::verify(thread, text.as_bytes(), &self.trust).map_err(|error| {
            let help = || "restore a backup of the database".to_owned();
            error.into_error(format!("the tombstone of `{thread}`"), help)
        })
    }

    pub(crate) fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        self.signing()?;
        if bytes.len() > BLOB_MAX {
            return Err(Error::Unusable {
                what: "a blob".to_owned(),
                why: format!("it has {} bytes, and a row of the database holds at most {BLOB_MAX}", bytes.len()),
                hint: None,
            });
        }
        let (name, stored) = blob::seal(bytes, &*self.ids);
        let root = match self.find(thread)? {
            Some(row) => row.root.as_str().to_owned(),
            None => match self.missing(thread)? {
                Error::NoThread(_) => String::new(),
                deleted => return Err(deleted),
            },
        };
        self.insert_blob(&root, thread, &name, &stored)?;
        Ok(name)
    }

    pub(crate) fn insert_blob(&self, root: &str, thread: &ThreadId, name: &Digest, stored: &[u8]) -> Result<()> {
        let sql = "INSERT INTO blobs (root, thread, name, bytes) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
        // Repeated after a lost connection, it is the same row.
        self.read(|connection| {
            Ok(connection.execute(sql, &[&root, &thread.as_str(), &name.0.as_slice(), &stored]).map(drop)?)
        })
    }

    pub(crate) fn blob(&self, thread: &ThreadId, name: &Digest) -> Result<Vec<u8>> {
        let row = self.existing(thread)?;
        if let Some((reason, at)) = self.erasure(&row, name)? {
            return Err(Error::Erased { thread: thread.clone(), blob: *name, reason, at });
        }
        let stored = self.stored_bytes(&row, name)?;
        let content = stored.and_then(|stored| blob::open(name, &stored));
        content.ok_or_else(|| Error::NoBlob { thread: thread.clone(), blob: *name })
    }

    pub(crate) fn stored_bytes(&self, row: &Row, name: &Digest) -> Result<Option<Vec<u8>>> {
        let sql = "SELECT bytes FROM blobs WHERE root = $1 AND thread = $2 AND name = $3";
        let values = (row.root.as_str(), row.thread().as_str());
        let found = self.read(|connection| Ok(connection.first(sql, &[&values.0, &values.1, &name.0.as_slice()])?))?;
        Ok(found.map(|row| row.get(0)))
    }

    /// Why and when a blob was erased, if it was.
    pub(crate) fn erasure(&self, row: &Row, name: &Digest) -> Result<Option<(String, Timestamp)>> {
        let sql = "SELECT reason, erased_at, mark FROM erasures WHERE root = $1 AND thread = $2 AND blob = $3";
        let values = (row.root.as_str(), row.thread().as_str());
        let found = self.read(|connection| Ok(connection.first(sql, &[&values.0, &values.1, &name.0.as_slice()])?))?;
        let Some(found) = found else { return Ok(None) };
        let (reason, at): (String, i64) = (found.get(0), found.get(1));
        let fields = [row.head.log_id.as_str().as_bytes(), &name.0[..], reason.as_bytes(), &at.to_be_bytes()];
        rows::check(self.seals(), "erasures", &fields, found.get(2), || {
            format!("an erased blob of thread `{}`", row.thread())
        })?;
        Ok(Some((rows::json(&reason)?, Timestamp::from_micros(at))))
    }
}

impl PostgresStore {
    pub(crate) fn delete_thread(&self, thread: &ThreadId) -> Result<Tombstone> {
        // Its usage stays, and can't be derived any more when its log is gone. A failure must not keep a thread from being deleted.
        if let Err(error) = self.record_usage(&selvedge_model::Cancel::new()) {
            self.core.note_problem(format!("the usage of `{thread}` could not be recorded: {error}"));
        }
        self.core.delete(thread)
    }

    pub(crate) fn erase_blob(&self, thread: &ThreadId, name: &Digest, reason: &str) -> Result<u64> {
        let core = &self.core;
        core.signing()?;
        let row = core.existing(thread)?;
        if let Some((reason, at)) = core.erasure(&row, name)? {
            return Err(Error::Erased { thread: thread.clone(), blob: *name, reason, at });
        }
        if core.stored_bytes(&row, name)?.is_none() {
            let mut named = NamedBlobs::default();
            self.verify(thread, &mut |entry| {
                for line in &entry.lines {
                    named.take(entry.head.version, &line.event);
                }
            })?;
            if named.must_be_there().all(|(blob, _)| blob != *name) {
                return Err(Error::NoBlob { thread: thread.clone(), blob: *name });
            }
        }
        let event = Event::BlobErased(BlobErased { blob: *name, reason: reason.to_owned() });
        let part = Part::new(thread.clone(), Expect::Any, Changeset::of_event(event));
        Ok(core.commit(&Batch::of(part))?.version_of(thread).unwrap_or_default())
    }
}
