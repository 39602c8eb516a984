//! Signed documents beside a log: snapshots, capabilities, and the keys of an imported thread. A database needs no `thread.json`.

use std::cmp::Reverse;

use selvedge_log::Head;
use selvedge_log::document::{Comment, DocumentKind, sign_text, verify_text};
use selvedge_log::hash::sha256;
use selvedge_model::{Digest, DirectiveId, Manifest, ThreadId};
use selvedge_store::manifest::grants_same;
use selvedge_store::snapshot::{
    self, Disposal, LogRest, NEWEST, Replaced, SavedSnapshot, SnapshotFolder, SnapshotInfo, VerifiedSnapshot,
};
use selvedge_store::{Error, Result, SignedFiles, Snapshots, capabilities};
use serde_json::Value;

use crate::core::Core;
use crate::logs::LogReader;
use crate::open::PostgresStore;
use crate::rows::Row;

/// The folder of a document that stands beside the log itself.
pub(crate) const BESIDE: &str = "";
/// The folder of older snapshots.
const CHECKPOINTS: &str = "checkpoints";
/// The document kind of entries of knowledge, as in the local store.
const KNOWLEDGE: DocumentKind = DocumentKind::new("knowledge");

/// The folder and name of a snapshot.
fn place<'a>(kept: &'a SnapshotInfo, archive: &'a str) -> (&'a str, &'a str) {
    match kept.place {
        SnapshotFolder::Newest => (BESIDE, NEWEST),
        SnapshotFolder::Older => (CHECKPOINTS, &kept.name),
        SnapshotFolder::Archived => (archive, &kept.name),
    }
}

impl Core {
    pub(crate) fn document(&self, row: &Row, folder: &str, name: &str) -> Result<Option<Vec<u8>>> {
        let sql = "SELECT bytes FROM documents WHERE root = $1 AND thread = $2 AND folder = $3 AND name = $4";
        let values = (row.root.as_str(), row.thread().as_str());
        let found = self.read(|connection| Ok(connection.first(sql, &[&values.0, &values.1, &folder, &name])?))?;
        Ok(found.map(|row| row.get(0)))
    }

    /// The documents of a folder, by their names.
    pub(crate) fn documents(&self, row: &Row, folder: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let sql = "SELECT name, bytes FROM documents WHERE root = $1 AND thread = $2 AND folder = $3 ORDER BY name";
        let values = (row.root.as_str(), row.thread().as_str());
        let found = self.read(|connection| Ok(connection.query(sql, &[&values.0, &values.1, &folder])?))?;
        Ok(found.into_iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Replaces a document, or keeps it if it is there and `replaces` is not set; returns whether it was written.
    pub(crate) fn put_document(
        &self,
        row: &Row,
        folder: &str,
        name: &str,
        bytes: &[u8],
        replaces: bool,
    ) -> Result<bool> {
        let sql = if replaces {
            "INSERT INTO documents (root, thread, folder, name, bytes) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (root, thread, folder, name) DO UPDATE SET bytes = excluded.bytes"
        } else {
            "INSERT INTO documents (root, thread, folder, name, bytes) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
        };
        let values = (row.root.as_str(), row.thread().as_str());
        let written =
            self.read(|connection| Ok(connection.execute(sql, &[&values.0, &values.1, &folder, &name, &bytes])?))?;
        Ok(written == 1)
    }

    pub(crate) fn remove_document(&self, row: &Row, folder: &str, name: &str) -> Result<()> {
        let sql = "DELETE FROM documents WHERE root = $1 AND thread = $2 AND folder = $3 AND name = $4";
        let values = (row.root.as_str(), row.thread().as_str());
        self.read(|connection| Ok(connection.execute(sql, &[&values.0, &values.1, &folder, &name]).map(drop)?))
    }
}

impl Snapshots for PostgresStore {
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>> {
        let core = &self.core;
        let known = core.memory().thread(thread).filter(|known| known.row.head == *at);
        let known = match known {
            Some(known) => Some(known),
            None => core.load(thread)?.filter(|known| known.row.head == *at).map(std::sync::Arc::new),
        };
        let Some(known) = known else { return Ok(None) };
        Ok(Some(snapshot::seal(&core.signing()?.seal, at, &known.tail.hash)))
    }

    fn save(&self, thread: &ThreadId, body: &Value) -> Result<SavedSnapshot> {
        let core = &self.core;
        let row = core.existing(thread)?;
        let (text, hash) = snapshot::sign(thread, body, &core.signing()?.signer, core.clock.now())?;
        let before = match core.document(&row, BESIDE, NEWEST)? {
            None => None,
            Some(bytes) => Some(self.keep_newest(&row, bytes)?),
        };
        core.put_document(&row, BESIDE, NEWEST, &text, true)?;
        Ok(SavedSnapshot { hash, bytes: text.len() as u64, before })
    }

    fn list_snapshots(&self, thread: &ThreadId, archive: &str) -> Result<Vec<SnapshotInfo>> {
        let row = self.core.existing(thread)?;
        let newest = self.core.document(&row, BESIDE, NEWEST)?;
        let mut kept: Vec<SnapshotInfo> = newest
            .map(|bytes| {
                let length = bytes.len() as u64;
                snapshot::peek(&bytes, length).unwrap_or_else(|| SnapshotInfo::not_a_snapshot(length))
            })
            .into_iter()
            .collect();
        for (folder, place) in [(CHECKPOINTS, SnapshotFolder::Older), (archive, SnapshotFolder::Archived)] {
            let found = self.core.documents(&row, folder)?;
            kept.extend(found.iter().filter_map(|(name, bytes)| snapshot::parse_name(place, name, bytes.len() as u64)));
        }
        kept.sort_by_key(|kept| (kept.is_snapshot(), Reverse(kept.version), kept.place));
        Ok(kept)
    }

    fn read_snapshot(&self, thread: &ThreadId, kept: &SnapshotInfo, archive: &str) -> Result<VerifiedSnapshot> {
        let row = self.core.existing(thread)?;
        let (folder, name) = place(kept, archive);
        let missing = || Error::Unusable {
            what: format!("the snapshot `{}` of `{thread}`", kept.name),
            why: "it does not exist".to_owned(),
            hint: None,
        };
        let found = self.core.document(&row, folder, name)?.ok_or_else(missing)?;
        snapshot::verify(thread, &kept.name, found, &self.core.trust)
    }

    fn dispose(&self, thread: &ThreadId, kept: &[SnapshotInfo], archive: &str, away: Disposal<'_>) -> Result<()> {
        let core = &self.core;
        let row = core.existing(thread)?;
        for kept in kept {
            let (folder, name) = place(kept, archive);
            if let Disposal::Archive(target) = away
                && let Some(bytes) = core.document(&row, folder, name)?
            {
                let name = snapshot::name_of(kept.version, kept.saved_at, kept.base);
                core.put_document(&row, target, &name, &bytes, true)?;
            }
            core.remove_document(&row, folder, name)?;
        }
        Ok(())
    }

    fn log_after(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<LogRest>> {
        let core = &self.core;
        // A store that is opened only for reading may have no key, and no seal can be checked without one.
        let Ok(signing) = core.signing() else { return Ok(None) };
        let Some(hash) = snapshot::unseal(&signing.seal, at, seal) else { return Ok(None) };
        let row = core.existing(thread)?;
        let is_lost = row.manifest.lost.iter().any(|lost| lost.contains(at.version));
        let head = row.head;
        if is_lost || head.log_id != at.log_id || head.segment != at.segment || head.bytes < at.bytes {
            return Ok(None);
        }
        let bytes = LogReader::new(core.pool.clone(), row.root, thread.clone(), at.bytes, head.bytes);
        Ok(Some(LogRest { hash, head, bytes: Box::new(bytes) }))
    }
}

impl PostgresStore {
    /// Copies the newest snapshot to the older ones, if it is valid; anything else is discarded.
    fn keep_newest(&self, row: &Row, bytes: Vec<u8>) -> Result<Replaced> {
        let thread = row.thread();
        let Some(kept) = snapshot::peek(&bytes, bytes.len() as u64) else {
            return Ok(Replaced::Bad("it is not a snapshot".to_owned()));
        };
        match snapshot::verify(thread, &kept.name, bytes, &self.core.trust) {
            Ok(verified) => {
                let name = snapshot::name_of(kept.version, kept.saved_at, kept.base);
                self.core.put_document(row, CHECKPOINTS, &name, &verified.text, true)?;
                Ok(Replaced::Kept(kept.version))
            }
            Err(error) => Ok(Replaced::Bad(error.to_string())),
        }
    }
}

impl SignedFiles for PostgresStore {
    fn write_capabilities(&self, thread: &ThreadId, body: &dyn Fn() -> String) -> Result<bool> {
        let core = &self.core;
        let signing = core.signing()?;
        let row = core.existing(thread)?;
        if let Some(page) = core.document(&row, BESIDE, capabilities::NAME)? {
            return capabilities::check_kept(thread, &page, &core.trust).map(|()| false);
        }
        let text = capabilities::sign(thread, &body(), &signing.signer, core.clock.now());
        core.put_document(&row, BESIDE, capabilities::NAME, text.as_bytes(), false)
    }

    fn write_knowledge(&self, id: &DirectiveId, body: &str, is_replaceable: &dyn Fn(&str) -> bool) -> Result<Digest> {
        let core = &self.core;
        let signing = core.signing()?;
        let place = format!(".ai/knowledge/{id}.md");
        let sql = "SELECT document FROM knowledge WHERE id = $1";
        let known: Option<String> =
            core.read(|connection| Ok(connection.first(sql, &[&id.as_str()])?.map(|row| row.get(0))))?;
        if let Some(known) = &known {
            let why = match verify_text(KNOWLEDGE, &place, Comment::Html, known.as_bytes(), &core.trust) {
                Ok(verified) if is_replaceable(&verified.value) => None,
                Ok(_) => Some("a person wrote it".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = why {
                let hint = "it is not replaced; let the agent write under another name".to_owned();
                return Err(Error::Unusable { what: format!("`{place}`"), why, hint: Some(hint) });
            }
        }
        let text = sign_text(KNOWLEDGE, &place, Comment::Html, body, &signing.signer, core.clock.now());
        let sql = "INSERT INTO knowledge (id, document) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET document = excluded.document \
                   WHERE knowledge.document IS NOT DISTINCT FROM $3";
        let written = core.read(|connection| Ok(connection.execute(sql, &[&id.as_str(), &text, &known])?))?;
        if written == 0 {
            let why = format!("`{place}` was written by another process at the same time");
            return Err(Error::Database { why, retryable: true });
        }
        Ok(sha256(text.as_bytes()))
    }

    fn check_manifest(&self, recorded: &Manifest) -> Result<()> {
        let row = self.core.existing(&recorded.thread_id)?;
        if !grants_same(&row.manifest, recorded) {
            return Err(Error::Integrity {
                what: format!("the manifest of `{}` in the database", recorded.thread_id),
                why: "it grants the thread other capabilities than its log".to_owned(),
                hint: None,
            });
        }
        Ok(())
    }

    fn missing_manifest(&self, _: &ThreadId) -> Option<String> {
        None
    }
}
