//! What is verified and archived: the bytes of a thread as the database has them, none of them trusted.

use std::io::{self, BufRead, Cursor, Read};
use std::path::PathBuf;

use selvedge_log::{Head, Trust};
use selvedge_model::account::{Account, AccountId};
use selvedge_model::{Digest, ThreadId};
use selvedge_store::folded::Folded;
use selvedge_store::heads::{
    AccountHead, Comparison, CurrentHeads, Depth, Heads, LogHead, StoreContent, VERSION, compare,
};
use selvedge_store::snapshot::NEWEST;
use selvedge_store::verify::{Document, StoredLog};
use selvedge_store::{Error, ReadHeads, Result, StoredThread, Verify, capabilities};

use crate::documents::BESIDE;
use crate::error::bad_row;
use crate::logs::LogReader;
use crate::open::PostgresStore;
use crate::rows::{self, COLUMNS, Row};

/// The folders of the keys of an imported thread.
pub(crate) const KEYS: &str = "keys";
pub(crate) const CHAIN: &str = "chain";

impl StoredThread for PostgresStore {
    fn trust(&self) -> &Trust {
        &self.core.trust
    }

    fn location(&self, thread: &ThreadId) -> PathBuf {
        PathBuf::from(&self.core.shown).join(thread.folder())
    }

    fn open_log(&self, thread: &ThreadId) -> Result<StoredLog> {
        let row = self.core.existing(thread)?;
        // The log may have grown since the row was read: what follows the head then is no foreign byte.
        let end = row.head.bytes;
        let sql = "SELECT COALESCE(max(first_byte + length(bytes)), 0)::bigint FROM log WHERE root = $1 AND thread = $2 \
                   AND (SELECT mark = $3 FROM threads WHERE root = $1 AND thread = $2)";
        let values = (row.root.as_str(), thread.as_str());
        let length = self.core.read(|connection| Ok(connection.first(sql, &[&values.0, &values.1, &row.mark])?))?;
        let length = length.map_or(0, |row| rows::unsigned(row.get(0))).max(end);
        let log = LogReader::new(self.core.pool.clone(), row.root, thread.clone(), 0, length);
        Ok(StoredLog { head: Some(row.head), file_bytes: length, log: Box::new(log), healed_bytes: 0 })
    }

    fn document(&self, thread: &ThreadId, document: Document) -> Result<Option<Vec<u8>>> {
        let row = self.core.existing(thread)?;
        match document {
            Document::Manifest => Ok(None),
            Document::Capabilities => self.core.document(&row, BESIDE, capabilities::NAME),
            Document::Snapshot => self.core.document(&row, BESIDE, NEWEST),
        }
    }

    fn blobs(&self, thread: &ThreadId) -> Result<Vec<Digest>> {
        let row = self.core.existing(thread)?;
        let sql = "SELECT name FROM blobs WHERE root = $1 AND thread = $2 ORDER BY name";
        let values = (row.root.as_str(), thread.as_str());
        let found = self.core.read(|connection| Ok(connection.query(sql, &[&values.0, &values.1])?))?;
        found.iter().map(|row| rows::digest(row.get(0))).collect()
    }

    fn stored_blob(&self, thread: &ThreadId, blob: &Digest) -> io::Result<(u64, Box<dyn Read + Send>)> {
        let stored = self.core.existing(thread).and_then(|row| self.core.stored_bytes(&row, blob));
        let stored = stored.map_err(io::Error::other)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok((stored.len() as u64, Box::new(Cursor::new(stored))))
    }

    fn imported_keys(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)> {
        self.named_documents(thread, KEYS, ".pem")
    }

    fn imported_statements(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)> {
        self.named_documents(thread, CHAIN, ".json")
    }

    fn differs(&self, thread: &ThreadId, head: Option<&Head>, folded: &Folded<'_>) -> Result<Option<String>> {
        let row = self.core.existing(thread)?;
        if Some(&row.head) != head {
            return Ok(None);
        }
        let Some(manifest) = folded.manifest() else { return Ok(None) };
        let mut same_time = manifest.clone();
        same_time.updated_at = row.manifest.updated_at;
        Ok((same_time != row.manifest).then(|| "has a different manifest".to_owned()))
    }
}

impl PostgresStore {
    fn named_documents(&self, thread: &ThreadId, folder: &str, end: &str) -> Vec<(Digest, Vec<u8>)> {
        let found = self.core.existing(thread).and_then(|row| self.core.documents(&row, folder)).unwrap_or_default();
        let named = found.into_iter().filter_map(|(name, bytes)| Some((name.strip_suffix(end)?.parse().ok()?, bytes)));
        named.collect()
    }
}

impl Verify for PostgresStore {
    fn is_imported(&self, thread: &ThreadId) -> bool {
        self.core.find(thread).ok().flatten().is_some_and(|row| row.is_imported)
    }
}

impl ReadHeads for PostgresStore {
    fn store_id(&self) -> Result<String> {
        Ok(self.core.store_id.clone())
    }

    fn heads(&self) -> Result<CurrentHeads> {
        let core = &self.core;
        let mut left_out = Vec::new();
        // One statement for each kind: threads first, so that no account is older than a log that posted to it.
        let sql = format!("SELECT {COLUMNS} FROM threads AS t ORDER BY t.thread COLLATE \"C\"");
        let found = core.read(|connection| Ok(connection.query(&sql, &[])?))?;
        let mut threads = Vec::new();
        for row in found {
            match Row::read(&row, core.seals()) {
                Ok(row) => threads.push(LogHead::new(row.thread().clone(), &row.head)),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        let sql = "SELECT thread, document FROM tombstones ORDER BY thread COLLATE \"C\"";
        let found = core.read(|connection| Ok(connection.query(sql, &[])?))?;
        let mut tombstones = Vec::new();
        for row in found {
            let thread = rows::id(row.get(0))?;
            match core.verified_tombstone(&thread, row.get(1)) {
                Ok(tombstone) => tombstones.push(LogHead::new(thread, &tombstone.head)),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        let accounts = core.accounts("$1 = ''", "")?;
        let accounts = accounts.iter().map(|stored| AccountHead::from(&stored.account)).collect();
        let store_id = core.store_id.clone();
        let made_at = core.clock.now();
        Ok(CurrentHeads {
            heads: Heads { version: VERSION, store_id, made_at, threads, tombstones, accounts },
            left_out,
        })
    }

    fn sign_heads(&self, heads: &Heads) -> Result<String> {
        heads.sign(&self.core.signing()?.signer).map_err(bad_row)
    }

    fn compare_heads(&self, heads: &Heads, depth: Depth) -> Comparison {
        compare(heads, self, depth)
    }
}

impl StoreContent for PostgresStore {
    fn log(&self, thread: &ThreadId) -> Result<Option<(Head, Box<dyn BufRead + Send>)>> {
        let Some(row) = self.core.find(thread)? else { return Ok(None) };
        let log = LogReader::new(self.core.pool.clone(), row.root, thread.clone(), 0, row.head.bytes);
        Ok(Some((row.head, Box::new(log))))
    }

    fn buried(&self, thread: &ThreadId) -> Result<Option<Head>> {
        Ok(self.core.tombstone(thread)?.map(|tombstone| tombstone.head))
    }

    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        Ok(self.core.accounts("a.account = $1", id.as_str())?.pop().map(|stored| stored.account))
    }
}

/// An error of a reader that the store made.
pub(crate) fn unread(error: &io::Error) -> Error {
    Error::Database { why: error.to_string(), retryable: true }
}
