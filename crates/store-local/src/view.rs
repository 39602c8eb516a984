//! What a commit is prepared from: the cache first, the database if the cache has no entry or was outdated, and the length of the file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::sync::Arc;

use selvedge_log::hash::{Binding, RunningHash};
use selvedge_log::recovery::Finding;
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_log::{Tail, line, lines};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::fold::{FoldError, apply_to_state, empty_state};
use selvedge_model::id::ReservationId;
use selvedge_model::{Digest, Event, MessageId, Right, Run, RunId, ThreadId};
use selvedge_store::prepare::{CurrentThread, View};
use selvedge_store::{Error, Result};
use serde_json::Value;

use crate::core::{CachedThread, Core, io_error};
use crate::disk::OpenMode;
use crate::layout::{check_folder, is_reserved, is_there};
use crate::leading_events;
use crate::overlay::Overlay;
use crate::redo;
use crate::rows::{self, Row};
use selvedge_store::saved_state;

/// What an attempt to prepare a batch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSource {
    /// The cache first. It may be outdated, so no error is final and no file is changed because of it.
    Cache,
    /// The database; a file that does not match its head is repaired.
    Database,
    /// The database, while holding `commit.lock`: no other process can commit, and no file is repaired, because that takes the same lock.
    Locked,
}

/// The maximum length of a log that is hashed again when it is loaded from the database, which takes a few microseconds: an edit is then
/// found before the next append, not by a later verification.
const HASHED_MAX: u64 = 64 << 10;

/// The data that one attempt to prepare a batch reads.
pub(crate) struct LocalView<'a> {
    core: &'a Core,
    basis: ReadSource,
    seen: RefCell<HashMap<ThreadId, Arc<CachedThread>>>,
}

impl<'a> LocalView<'a> {
    pub(crate) fn new(core: &'a Core, basis: ReadSource) -> Self {
        Self { core, basis, seen: RefCell::default() }
    }

    /// The threads that were read, as they were.
    pub(crate) fn into_seen(self) -> HashMap<ThreadId, Arc<CachedThread>> {
        self.seen.into_inner()
    }

    fn look(&self, thread: &ThreadId) -> Result<Option<Arc<CachedThread>>> {
        if let Some(seen) = self.seen.borrow().get(thread) {
            return Ok(Some(seen.clone()));
        }
        let remembered = if self.basis == ReadSource::Cache { self.core.remembered(thread) } else { None };
        let found = match remembered {
            Some(remembered) => Some(remembered),
            None => self.core.load_thread(thread)?.map(Arc::new),
        };
        if let Some(found) = &found {
            self.seen.borrow_mut().insert(thread.clone(), found.clone());
        }
        Ok(found)
    }

    /// The thread, with its file repaired; only for a caller that may write to it.
    fn with_repaired_file(&self, thread: &ThreadId, seen: Arc<CachedThread>) -> Result<Arc<CachedThread>> {
        if self.core.file_is_as_expected(thread, &seen.row)? {
            return Ok(seen);
        }
        if self.basis != ReadSource::Database {
            // The database decides whether the caller may write, before a file is changed.
            return Err(Error::Database {
                why: "the cached length of the log is outdated".to_owned(),
                retryable: true,
            });
        }
        let settled = Arc::new(self.core.repair_file(thread)?);
        if (settled.row.epoch, &settled.row.owner) != (seen.row.epoch, &seen.row.owner) {
            return Err(Error::StaleEpoch { thread: thread.clone(), held: seen.row.epoch, current: settled.row.epoch });
        }
        self.seen.borrow_mut().insert(thread.clone(), settled.clone());
        Ok(settled)
    }
}

impl View for LocalView<'_> {
    fn thread(&self, thread: &ThreadId, right: Right) -> Result<Option<CurrentThread>> {
        let Some(seen) = self.look(thread)? else {
            // Anything in place of the new thread's folder is refused now, not after the commit.
            check_name(thread)?;
            check_folder(&self.core.layout.thread(thread))?;
            if is_there(&self.core.layout.tombstone(thread))? {
                return Err(Error::Deleted(thread.clone()));
            }
            let has_log = is_there(&self.core.layout.transcript(thread))?;
            return self.core.read(|connection| match rows::tombstone(connection, thread)? {
                Some(_) => Err(Error::Deleted(thread.clone())),
                // Unless another process just created it, the database is older than this log, which must not be overwritten.
                None if has_log && rows::find(connection, thread)?.is_none() => Err(unindexed(thread)),
                None => Ok(None),
            });
        };
        let row = &seen.row;
        let epoch = match (right, &row.owner) {
            // A head that was put back gives an epoch away twice: then the owner tells the leases apart.
            (Right::Lease(held), Some(holder)) if held == row.epoch && *holder == self.core.owner => held,
            (Right::Lease(held), _) => {
                return Err(Error::StaleEpoch { thread: thread.clone(), held, current: row.epoch });
            }
            (Right::Brief, None) => row.epoch,
            (Right::Brief, Some(holder)) if self.core.is_alive(holder)? => {
                return Err(Error::LeaseHeld { thread: thread.clone(), holder: holder.clone() });
            }
            (Right::Brief, Some(_)) => row.epoch + 1,
        };
        let seen = self.with_repaired_file(thread, seen.clone())?;
        let tail = seen.tail.clone();
        let manifest = seen.row.manifest.clone();
        let lead = seen.leads.events.clone();
        Ok(Some(CurrentThread { tail, manifest, epoch, lead }))
    }

    fn state(&self, thread: &ThreadId) -> Result<Arc<Value>> {
        let seen = self.look(thread)?.ok_or_else(|| Error::NoThread(thread.to_string()))?;
        match &seen.state {
            Some(state) => Ok(state.clone()),
            None => self.core.fold_state(thread, &seen.row).map(Arc::new),
        }
    }

    fn message(&self, thread: &ThreadId, message: &MessageId) -> Result<Option<Digest>> {
        if self.basis == ReadSource::Cache {
            // A repeated message is rare, and the transaction notices it; then the database is read.
            return Ok(None);
        }
        let Some(seen) = self.look(thread)? else { return Ok(None) };
        let found = self.core.read(|connection| rows::message(connection, &seen.row, message))?;
        if found.is_some() {
            self.core.check_message(thread, &seen.row, message)?;
        }
        Ok(found)
    }

    fn run(&self, thread: &ThreadId, run: &RunId) -> Result<Option<Run>> {
        let Some(seen) = self.look(thread)? else { return Ok(None) };
        self.core.read(|connection| rows::run(connection, &seen.row, run))
    }

    fn account(&self, account: &AccountId) -> Result<Option<Account>> {
        self.core.known_account(account)
    }

    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        self.core.read(|connection| {
            // What a batch is prepared from is of one moment, and sealed.
            rows::accounts(connection, "thread_id = ?", account.as_str())?;
            rows::reservations(connection, account)
        })
    }

    fn reservation(&self, account: &AccountId, reservation: &ReservationId) -> Result<Option<Reservation>> {
        self.core.read(|connection| {
            rows::accounts(connection, "thread_id = ?", account.as_str())?;
            rows::reservation(connection, account, reservation)
        })
    }
}

impl Core {
    /// Loads a thread from the database, with the running hash at its head.
    ///
    /// The version in `thread.json` is read first: the file is written after its commit, so a version newer than the row that is read
    /// afterwards shows that the log was cut.
    pub(crate) fn load_thread(&self, thread: &ThreadId) -> Result<Option<CachedThread>> {
        let memory = self.manifest_memory(thread);
        let is_shown = matches!(memory, Ok(Some(_)));
        // An unreadable snapshot records nothing, and does not prevent writing.
        let snapshot = self.newest_snapshot(thread).ok().flatten();
        let found = self.read(|connection| {
            let Some(row) = rows::find(connection, thread)? else { return Ok(None) };
            let leads = leading_events::read(connection, &row)?;
            let saved_state = rows::saved_state_size(connection, row.id)?;
            let redo = redo::newest(connection, row.id)?;
            Ok(Some((row, leads, saved_state, redo)))
        })?;
        let Some((row, leads, saved_state, redo)) = found else { return Ok(None) };
        self.check_signer(thread, &row)?;
        if leads.unsealed > 0 {
            self.note_problem(format!(
                "{} event(s) that waited to be recorded in the log of `{thread}` were not sealed with your key: they were left out",
                leads.unsealed
            ));
        }
        if leads.missing > 0 {
            self.note_problem(format!(
                "{} event(s) that waited to be recorded in the log of `{thread}` were removed from the database",
                leads.missing
            ));
        }
        // A loss that was accepted, and that the next changeset will sign, explains a newer version.
        let is_lost = |version| {
            let covers = |event: &Event| matches!(event, Event::Recovery(found) if found.is_loss() && found.to_version >= Some(version));
            leads.events.iter().any(covers)
        };
        let memory = match memory {
            // A manifest that is not trusted is ignored; it is written again with the next commit.
            Err(Error::UntrustedKey { .. }) => None,
            memory => memory?,
        };
        let snapshot = self.snapshot_beyond(thread, snapshot.as_ref(), row.head.version)?;
        let mut memories = memory.into_iter().chain(snapshot);
        let newer = memories.find(|memory| memory.version > row.head.version && !is_lost(memory.version));
        if let Some(memory) = newer {
            // If the log continues up to the recorded version it was not cut: the database is older.
            self.refuse_outdated_row(thread, &row)?;
            let have = Some(row.head.version);
            let version = memory.version;
            let by = memory.by;
            return Err(Error::Log { thread: thread.clone(), finding: Finding::Truncated { have, version, by } });
        }
        let is_wary = self.signing()?.signer.is_wary();
        let hash = match self.unseal(&row)?.filter(|_| !is_wary) {
            Some(hash) if row.head.bytes > HASHED_MAX || self.is_unchanged(thread, &row)? => hash,
            _ => self.hash_again(thread, &row)?,
        };
        let tail = Tail::behind(row.head.clone(), hash);
        Ok(Some(CachedThread { row, tail, leads, state: None, saved_state, redo, is_shown }))
    }

    /// Whether the bytes of a log match the hash of its head. The file is read first, and its redo only if that does not suffice.
    fn is_unchanged(&self, thread: &ThreadId, row: &Row) -> Result<bool> {
        let path = self.layout.transcript(thread);
        let is_signed = |log: Overlay| -> Result<bool> {
            let mut bytes = Vec::new();
            log.take(row.head.bytes).read_to_end(&mut bytes).map_err(io_error("read", &path))?;
            let mut hash = RunningHash::new();
            hash.update(&bytes);
            Ok(hash.digest() == row.head.hash)
        };
        check_folder(&self.layout.thread(thread))?;
        let file = Overlay::of_file(self.open_transcript(&path)?).map_err(io_error("get the length of", &path))?;
        if is_signed(file)? {
            return Ok(true);
        }
        is_signed(self.open_log(thread)?.committed().1)
    }

    /// The saved running hash, if it was sealed with our key for exactly this head.
    fn unseal(&self, row: &Row) -> Result<Option<RunningHash>> {
        let head = &row.head;
        let binding =
            Binding { log_id: head.log_id.as_str(), segment: head.segment, version: head.version, offset: head.bytes };
        Ok(self.signing()?.seal.open(&binding, &row.sealed).filter(|hash| hash.digest() == head.hash))
    }

    /// Refuses a log whose signer is neither our key nor one of its predecessors, before the log is read: a caller with an outdated key
    /// gets this error, and not one about an unknown key.
    fn check_signer(&self, thread: &ThreadId, row: &Row) -> Result<()> {
        let theirs = row.head.signer;
        let signer = &self.signing()?.signer;
        if theirs == signer.fingerprint() || signer.succeeds(&theirs) {
            return Ok(());
        }
        Err(Error::OtherSigner { thread: thread.clone(), theirs, ours: signer.fingerprint() })
    }

    /// The running hash at a head, computed from the log itself; refused if the log is not what was signed.
    pub(crate) fn hash_again(&self, thread: &ThreadId, row: &Row) -> Result<RunningHash> {
        let path = self.layout.transcript(thread);
        let (head, overlay) = self.open_log(thread)?.committed();
        let mut reader = BufReader::with_capacity(1 << 16, overlay).take(row.head.bytes);
        let scanner = Scanner::new(thread, &self.trust, Signatures::Last).watching(Some(row.head.version));
        let examined = examine(&mut reader, scanner, |_| {}).map_err(io_error("read", &path))?;
        let evidence = selvedge_log::recovery::Evidence { head: Some(&row.head), ..Default::default() };
        let judged = selvedge_log::recovery::judge(&examined, evidence, Default::default());
        match (judged.finding, examined.tail) {
            (Finding::Sound, Some(tail)) if head.version >= row.head.version => Ok(tail.hash),
            (finding, _) => Err(Error::Log { thread: thread.clone(), finding }),
        }
    }

    /// Whether a transcript has exactly the length of its head. It is opened for writing, as the commit will do: a file that can't be
    /// written is refused before anything is committed.
    fn file_is_as_expected(&self, thread: &ThreadId, row: &Row) -> Result<bool> {
        if let Some((_, length)) = self.handles.get(thread) {
            return Ok(length == row.head.bytes);
        }
        let path = self.layout.transcript(thread);
        check_folder(&self.layout.thread(thread))?;
        match self.disk.open(&path, OpenMode::Write) {
            Ok(file) => {
                let length = file.length().map_err(io_error("get the length of", &path))?;
                self.handles.keep(thread, &path, file);
                Ok(length == row.head.bytes)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error("open", &path)(error)),
        }
    }

    /// The folded state of a thread: the saved one, if our key marked it, plus what was committed since. The folded bytes must match the
    /// hash of the head.
    fn fold_state(&self, thread: &ThreadId, row: &Row) -> Result<Value> {
        let saved = self.read(|connection| rows::saved_state(connection, row.id))?;
        let saved = saved.filter(|saved| saved.version <= row.head.version && saved.bytes <= row.head.bytes);
        let seal = &self.signing()?.seal;
        let opened = saved.and_then(|saved| saved_state::open(seal, &row.head, &saved));
        let (mut state, mut hash, from) = opened.unwrap_or_else(|| (empty_state(), RunningHash::new(), 0));
        let path = self.layout.transcript(thread);
        let (_, mut overlay) = self.open_log(thread)?.committed();
        std::io::Seek::seek(&mut overlay, std::io::SeekFrom::Start(from)).map_err(io_error("read", &path))?;
        let mut reader = BufReader::with_capacity(1 << 16, overlay).take(row.head.bytes - from);
        let mut buffer = Vec::new();
        while lines::next_line(&mut reader, &mut buffer).map_err(io_error("read", &path))? {
            hash.update(&buffer);
            let line = line::decode(buffer.strip_suffix(b"\n").unwrap_or(&buffer))?;
            apply_to_state(&mut state, &line.event)
                .map_err(|error| Error::Fold { thread: thread.clone(), source: FoldError::Patch(error) })?;
        }
        if hash.digest() != row.head.hash {
            self.hash_again(thread, row)?;
            return Err(rows::bad_row("a saved state does not belong to its log"));
        }
        Ok(state)
    }
}

/// Refuses ids whose folder would be one of the store's own files.
pub(crate) fn check_name(thread: &ThreadId) -> Result<()> {
    if is_reserved(&thread.folder()) {
        return Err(Error::Unusable {
            what: format!("`{thread}`"),
            why: "the store itself has a file of that name".to_owned(),
            hint: Some("choose another id".to_owned()),
        });
    }
    Ok(())
}

pub(crate) fn unindexed(thread: &ThreadId) -> Error {
    Error::Integrity {
        what: format!("there is a log of `{thread}`"),
        why: "it has no rows in the database".to_owned(),
        hint: Some(
            "`selvedge reindex` rebuilds the database from the logs, and reports why one is left out".to_owned(),
        ),
    }
}
