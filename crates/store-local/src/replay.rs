//! Reading a log into the database: each valid changeset becomes the rows that its commit wrote ([`selvedge_store::derived`]).
//!
//! What the log records that concerns more than its thread is handed to the caller, who writes it.

use std::io::{self, BufReader};

use selvedge_log::hash::SealKey;
use selvedge_log::scan::{Examined, ScannedChangeset, Scanner, Signatures, examine};
use selvedge_log::{Tail, Trust};
use selvedge_model::fold::FoldError;
use selvedge_model::{Manifest, ThreadId};
use selvedge_store::derived::{Derivation, Derived, DerivedChangeset, LogRecords};
use selvedge_store::seal::{ConsumedRequests, PostedVersions};
use selvedge_store::{Error, Result, saved_state};

use crate::anchor;
use crate::db::Db;
use crate::disk::{Disk, OpenMode};
use crate::inbox;
use crate::index::{self, AddedRows, RowUpdate};
use crate::layout::Layout;
use crate::overlay::Overlay;
use crate::rows::{self, Row, bad_row};
use crate::sealed::Mark;

/// The rows that a log is read into.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplayTarget {
    /// There are none yet.
    New,
    /// The rows of this thread, which have everything up to this version, if any.
    Existing(i64, Option<u64>),
}

/// A log that is being read into the database.
pub(crate) struct Replay<'a> {
    connection: &'a Db,
    thread: &'a ThreadId,
    id: Option<i64>,
    consumed: ConsumedRequests,
    derivation: Derivation,
    failed: Option<Error>,
}

/// A thread whose log is in the database.
pub(crate) struct Replayed {
    pub(crate) id: i64,
    pub(crate) manifest: Manifest,
    pub(crate) gathered: LogRecords,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(connection: &'a Db, thread: &'a ThreadId, into: ReplayTarget) -> Self {
        let (id, known) = match into {
            ReplayTarget::New => (None, None),
            ReplayTarget::Existing(id, known) => (Some(id), known),
        };
        let derivation = Derivation::new(thread, known);
        Self { connection, thread, id, consumed: ConsumedRequests::default(), derivation, failed: None }
    }

    /// The same, for a thread that has consumed these requests.
    pub(crate) fn having_consumed(self, consumed: ConsumedRequests) -> Self {
        Self { consumed, ..self }
    }

    /// Adds one changeset; an error is returned by [`Replay::finish`].
    pub(crate) fn entry(&mut self, entry: &ScannedChangeset) {
        if self.failed.is_none() {
            self.failed = self.take(entry).err();
        }
    }

    fn take(&mut self, entry: &ScannedChangeset) -> Result<()> {
        let Some(made) = self.derivation.take(entry)? else { return Ok(()) };
        let Some(manifest) = self.derivation.manifest() else { return Ok(()) };
        let id = match self.id {
            Some(id) => id,
            None => self.insert(manifest, &made)?,
        };
        let added = AddedRows {
            log: &made.head.log_id,
            messages: &made.messages,
            runs: &made.runs,
            erased: &made.erased,
            touched_run: made.touched_run.as_ref(),
            at: made.at,
        };
        // An imported log may have a message twice.
        index::add(self.connection, id, &added)?;
        let chain = (self.thread, &manifest.chain_root_id);
        inbox::remember(self.connection, id, chain, &made.answered, made.head.version)?;
        if let Some((key, request, answer)) = &made.key {
            // The other logs of this batch have the same key; the first one inserts it.
            rows::put_key(self.connection, key, request, answer)?;
        }
        self.id = Some(id);
        Ok(())
    }

    /// Inserts the thread, at its first version.
    fn insert(&self, manifest: &Manifest, made: &DerivedChangeset) -> Result<i64> {
        let (text, digest) = index::stored(manifest)?;
        let row = Row {
            id: 0,
            manifest: manifest.clone(),
            stored: digest,
            head: made.head.clone(),
            sealed: Vec::new(),
            epoch: made.head.epoch,
            owner: None,
            posted: PostedVersions::new(),
            consumed: self.consumed.clone(),
            leads: 0,
            anchor: anchor::epoch(self.connection)?,
            mark: Mark::NONE,
        };
        let now = RowUpdate { row: &row, manifest: Some(&text), manifest_shown: true, counts: None, redo: None };
        let exists = || Error::Exists(self.thread.clone());
        Ok(index::insert_thread(self.connection, &now, self.connection.seals())?.ok_or_else(exists)?.id)
    }

    /// Moves the head of the thread to the end of its log. `epoch` is the lowest epoch that the lease may have.
    pub(crate) fn finish(self, tail: &Tail, key: Option<&SealKey>, epoch: u64) -> Result<Replayed> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let Derived { manifest, state, posted, gathered } = self.derivation.finish()?;
        let (Some(id), Some(head)) = (self.id, &tail.head) else {
            return Err(Error::Fold { thread: self.thread.clone(), source: FoldError::NotBorn });
        };
        let seen = rows::existing(self.connection, self.thread)?;
        let sealed = key.map(|key| index::seal(key, head, &tail.hash)).unwrap_or_default();
        let (text, digest) = index::stored(&manifest)?;
        let is_changed = index::changed(&manifest, &seen.manifest);
        let row = Row {
            id,
            manifest: manifest.clone(),
            stored: if is_changed { digest } else { seen.stored },
            head: head.clone(),
            sealed,
            epoch: epoch.max(head.epoch),
            owner: seen.owner.clone(),
            posted,
            consumed: seen.consumed.clone(),
            leads: seen.leads,
            anchor: anchor::epoch(self.connection)?.max(seen.anchor),
            mark: Mark::NONE,
        }
        .sealed(self.connection.seals());
        let text = is_changed.then_some(text.as_str());
        let now = RowUpdate { row: &row, manifest: text, manifest_shown: true, counts: None, redo: None };
        if !index::move_head(self.connection, &now, &seen)? {
            return Err(bad_row("a head changed during the transaction"));
        }
        // Without a key it would not be valid.
        if let (Some(key), Some(state)) = (key, &state) {
            let text = saved_state::seal(key, head, tail, state)?;
            rows::save_state(self.connection, id, head, &text)?;
        }
        Ok(Replayed { id, manifest, gathered })
    }
}

/// Reads a transcript, every hash and every signature of it, and passes each valid changeset to `each`. A missing file is treated as empty.
pub(crate) fn read_log(
    disk: &dyn Disk,
    layout: &Layout,
    thread: &ThreadId,
    trust: &Trust,
    watched: Option<u64>,
    mut each: impl FnMut(&ScannedChangeset),
) -> io::Result<Examined> {
    let file = match disk.open(&layout.transcript(thread), OpenMode::Read) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let reader = BufReader::with_capacity(1 << 16, Overlay::of_file(file)?);
    let scanner = Scanner::new(thread, trust, Signatures::Every).watching(watched);
    examine(reader, scanner, |entry| each(&entry))
}
