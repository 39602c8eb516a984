//! Verifies a log without writing: every signature, every blob it names, and the backend's rows of it.
//!
//! Written once, over [`StoredThread`]: a backend provides its data of a thread, byte for byte, and none of it is trusted here. Bytes that a
//! crash left in the redo are applied and not reported as damage, and bytes that other processes commit meanwhile are not foreign. A log
//! without rows in the backend is verified by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use selvedge_log::hash::RunningHash;
use selvedge_log::recovery::{Evidence, Finding, Judgement, Mode, Plan, Remembered, judge};
use selvedge_log::scan::{ScannedChangeset, Scanner, Signatures, examine};
use selvedge_log::{Head, Trust};
use selvedge_model::event::LostVersions;
use selvedge_model::{Digest, Event, NamedBlobs, ThreadId};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::folded::Folded;
use crate::snapshot::{self, NEWEST, shows_another};
use crate::{capabilities, manifest};

/// The result of verifying a log.
#[derive(Debug)]
pub struct Verification {
    /// The thread.
    pub thread: ThreadId,
    /// The finding, and what may be done with the log.
    pub judgement: Judgement,
    /// The head in the database.
    pub head: Option<Head>,
    /// Bytes that a crash left in the redo; not damage.
    pub healed_bytes: u64,
    /// The signers in order, and how many checkpoints each signed.
    pub signers: Vec<(Digest, u64)>,
    /// How many lines are valid.
    pub lines: u64,
    /// How many bytes are valid.
    pub bytes: u64,
    /// How many blobs were erased; the log records which, when and why.
    pub erased: u64,
    /// Their names.
    pub erased_blobs: Vec<Digest>,
    /// Blobs that the log names and that are missing or changed; the finding names the first, if there is nothing worse.
    pub bad_blobs: Vec<BadBlob>,
    /// The versions of other threads that its checkpoints record, including those after the database's head.
    pub committed_with: Vec<(ThreadId, u64)>,
    /// Where versions of this log are recorded, and the versions.
    pub remembered: Vec<(String, u64)>,
    /// The versions that the log itself records as lost, and since when. The versions that exist are valid all the same.
    pub lost: Vec<LostVersions>,
    /// Blobs in the thread's folder that the log does not name: no signature covers them.
    pub unnamed_blobs: Vec<Digest>,
    /// How many bytes follow the end of an archive: they are not part of it.
    pub trailing_bytes: u64,
}

/// The versions that a changeset records as lost.
pub fn lost_in(entry: &ScannedChangeset) -> impl Iterator<Item = LostVersions> {
    entry.lines.iter().filter_map(|line| match &line.event {
        Event::Recovery(found) => found.lost(line.timestamp),
        _ => None,
    })
}

/// A blob that a log names and that is missing or changed, though it was not erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadBlob {
    /// The blob.
    pub blob: Digest,
    /// The version that first names it.
    pub version: u64,
    /// What is wrong with it, as the end of a sentence.
    pub why: String,
}

impl BadBlob {
    /// The finding, for a log that is otherwise valid.
    pub fn into_finding(self) -> Finding {
        Finding::Blob { blob: self.blob, version: self.version, why: self.why }
    }
}

/// A signed document beside a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// [`manifest::NAME`].
    Manifest,
    /// [`capabilities::NAME`].
    Capabilities,
    /// The newest snapshot, [`NEWEST`].
    Snapshot,
}

/// A log to be verified.
pub struct StoredLog {
    /// The head in the backend; none if it has no rows.
    pub head: Option<Head>,
    /// Its bytes, with the redo applied.
    pub log: Box<dyn BufRead + Send>,
    /// The length of the file, without the redo.
    pub file_bytes: u64,
    /// How many bytes the redo adds or changes.
    pub healed_bytes: u64,
}

/// A backend's data of a thread, byte for byte, unverified: what is verified and what is archived.
pub trait StoredThread: Send + Sync {
    /// The trusted keys.
    fn trust(&self) -> &Trust;

    /// Where a thread is stored, as a path for messages and errors.
    fn location(&self, thread: &ThreadId) -> PathBuf;

    /// The log of a thread, head and bytes of one moment. A log without rows has no head.
    fn open_log(&self, thread: &ThreadId) -> Result<StoredLog>;

    /// A signed document beside a log; none if it does not exist. Anything that can't be read as a file is [`Error::Integrity`].
    fn document(&self, thread: &ThreadId, document: Document) -> Result<Option<Vec<u8>>>;

    /// The names of the blobs in a thread's folder, in order.
    fn blobs(&self, thread: &ThreadId) -> Result<Vec<Digest>>;

    /// A blob as it is stored, and its length.
    fn stored_blob(&self, thread: &ThreadId, blob: &Digest) -> io::Result<(u64, Box<dyn Read + Send>)>;

    /// The public keys that were imported with a thread, by their fingerprints. Unreadable ones are skipped.
    fn imported_keys(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)>;

    /// The statements of rotations that were imported with a thread, by the fingerprints of the newer keys. Unreadable ones are skipped.
    fn imported_statements(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)>;

    /// How the backend's rows of a thread differ from its log, folded up to `head`, as the end of a sentence about the database; none if
    /// another process has committed since.
    fn differs(&self, thread: &ThreadId, head: Option<&Head>, folded: &Folded<'_>) -> Result<Option<String>>;
}

/// Verifying threads.
pub trait Verify: StoredThread {
    /// Verifies a log, every signature of it and every blob it names, and passes each valid changeset to `each`. Writes nothing.
    fn verify(&self, thread: &ThreadId, each: &mut dyn FnMut(&ScannedChangeset)) -> Result<Verification> {
        verify(self, thread, each)
    }

    /// The threads that have a log but no rows, in the order of their ids.
    fn unindexed(&self) -> Result<Vec<ThreadId>> {
        Ok(Vec::new())
    }

    /// Whether a thread has a log but no rows.
    fn is_unindexed(&self, _: &ThreadId) -> Result<bool> {
        Ok(false)
    }

    /// Whether a thread was imported from an archive. The other threads of its family may never have been in this store.
    fn is_imported(&self, thread: &ThreadId) -> bool;
}

/// Verifies a log; see [`Verify::verify`].
pub fn verify<S: StoredThread + ?Sized>(
    of: &S,
    thread: &ThreadId,
    each: &mut dyn FnMut(&ScannedChangeset),
) -> Result<Verification> {
    let (memory, mut problem) = match manifest_memory(of, thread) {
        Ok(memory) => (memory, None),
        Err(Error::Integrity { why, .. }) => (None, Some(why)),
        // An untrusted signer of this file says nothing about the log.
        Err(Error::UntrustedKey { .. }) => (None, None),
        Err(error) => return Err(error),
    };
    let snapshot = snapshot_memory(of, thread)?;
    let StoredLog { head, log, file_bytes, healed_bytes } = of.open_log(thread)?;
    let last = head.as_ref().map(|head| head.version);
    let mut signers: Vec<(Digest, u64)> = Vec::new();
    let mut committed_with = BTreeMap::<ThreadId, u64>::new();
    let scanner = Scanner::new(thread, of.trust(), Signatures::Every).watching(last);
    let mut lines = 0;
    let mut bytes = 0;
    let mut shown_hash = None;
    let mut folded_hash = None;
    let mut named = NamedBlobs::default();
    let mut folded = Folded::new(thread);
    let mut lost = Vec::new();
    let examined = examine(log, scanner, |entry| {
        let Some(checkpoint) = entry.checkpoint() else { return };
        for (other, version) in &checkpoint.with {
            let known = committed_with.entry(other.clone()).or_default();
            *known = (*known).max(*version);
        }
        if last.is_some_and(|last| entry.head.version > last) {
            return;
        }
        folded.take(&entry);
        lost.extend(lost_in(&entry));
        lines = entry.head.lines;
        bytes = entry.head.bytes;
        if memory.as_ref().is_some_and(|memory| memory.version == entry.head.version) {
            shown_hash = Some(entry.head.hash);
        }
        if snapshot.as_ref().is_some_and(|snapshot| snapshot.version == entry.head.version) {
            folded_hash = Some(entry.head.hash);
        }
        for line in &entry.lines {
            named.take(entry.head.version, &line.event);
        }
        count_signer(&mut signers, checkpoint.signer);
        each(&entry);
    })
    .map_err(|source| Error::Io { what: "read", path: of.location(thread).join("transcript.jsonl"), source })?;
    // What is not understood is signed like everything else.
    let is_known = |version: u64| last.is_none_or(|last| version <= last);
    for (_, signer) in examined.unread_signers.iter().filter(|(version, _)| is_known(*version)) {
        count_signer(&mut signers, *signer);
    }
    if let Some(head) = examined.verified.as_ref().filter(|head| examined.unread.is_some() && is_known(head.version)) {
        (lines, bytes) = (head.lines, head.bytes);
    }
    if let (Some(memory), Some(hash)) = (&memory, shown_hash)
        && memory.hash.is_some_and(|remembered| remembered != hash)
    {
        problem = Some(format!("it shows another log at version {}", memory.version));
    }
    let mut remembered: Vec<_> = last.iter().map(|last| ("the database".to_owned(), *last)).collect();
    let contradicted =
        snapshot.as_ref().filter(|it| it.hash.is_some() && folded_hash.is_some() && it.hash != folded_hash);
    let contradicted = contradicted.map(|it| (NEWEST, shows_another(it.version)));
    let memories: Vec<_> = memory.into_iter().chain(snapshot).collect();
    remembered.extend(memories.iter().map(|memory| (memory.by.clone(), memory.version)));
    let evidence = Evidence { head: head.as_ref(), file_bytes, healed_bytes, remembered: &memories };
    let mut judgement = judge(&examined, evidence, Mode::Strict);
    let problem = problem.map(|why| (manifest::NAME, why));
    let problem = match problem {
        None => bad_capabilities(of, thread)?.map(|why| (capabilities::NAME, why)).or(contradicted),
        problem => problem,
    };
    if let Some((by, why)) = problem.filter(|_| judgement.finding == Finding::Sound) {
        judgement.finding = Finding::Contradicted { by: by.to_owned(), why };
        judgement.plan = Plan::Refuse;
    }
    // Bytes after the end of a log without rows are moved aside once it is indexed.
    let holds = match &judgement.finding {
        Finding::Sound => true,
        Finding::Foreign { .. } => head.is_none(),
        _ => false,
    };
    if let Some(why) = if holds { of.differs(thread, head.as_ref(), &folded)? } else { None } {
        judgement.finding = Finding::Database { why };
        judgement.plan = Plan::Refuse;
    }
    let bad_blobs = bad_blobs(&named, |blob| Ok(of.stored_blob(thread, blob)?.1));
    if let (Finding::Sound, Some(first)) = (&judgement.finding, bad_blobs.first()) {
        judgement.finding = first.clone().into_finding();
    }
    Ok(Verification {
        thread: thread.clone(),
        judgement,
        head,
        healed_bytes,
        signers,
        lines,
        bytes,
        erased: named.erased().len() as u64,
        erased_blobs: named.erased().iter().copied().collect(),
        bad_blobs,
        committed_with: committed_with.into_iter().collect(),
        remembered,
        lost,
        unnamed_blobs: unnamed_blobs(of, thread, &named),
        trailing_bytes: 0,
    })
}

/// Counts one more checkpoint of a signer.
pub(crate) fn count_signer(signers: &mut Vec<(Digest, u64)>, signer: Digest) {
    match signers.last_mut() {
        Some((last, count)) if *last == signer => *count += 1,
        _ => signers.push((signer, 1)),
    }
}

fn manifest_memory<S: StoredThread + ?Sized>(of: &S, thread: &ThreadId) -> Result<Option<Remembered>> {
    let Some(bytes) = of.document(thread, Document::Manifest)? else { return Ok(None) };
    manifest::parse(&bytes, of.trust(), thread).map(|shown| Some(shown.memory))
}

/// The version and hash that the newest snapshot records; none if it fails verification.
fn snapshot_memory<S: StoredThread + ?Sized>(of: &S, thread: &ThreadId) -> Result<Option<Remembered>> {
    let text = of.document(thread, Document::Snapshot);
    match text.and_then(|text| text.map(|text| snapshot::memory(thread, text, of.trust())).transpose()) {
        Err(Error::Integrity { .. } | Error::UntrustedKey { .. }) => Ok(None),
        memory => memory,
    }
}

fn bad_capabilities<S: StoredThread + ?Sized>(of: &S, thread: &ThreadId) -> Result<Option<String>> {
    let page = of.document(thread, Document::Capabilities);
    let check = |bytes: Vec<u8>| capabilities::check_kept(thread, &bytes, of.trust());
    capabilities::bad(page.and_then(|page| page.map_or(Ok(()), check)))
}

/// The blobs in a thread's folder that its log does not name, and never did. One that a commit is about to name is among them.
fn unnamed_blobs<S: StoredThread + ?Sized>(of: &S, thread: &ThreadId, named: &NamedBlobs) -> Vec<Digest> {
    let known: BTreeSet<Digest> = named.must_be_there().map(|(blob, _)| blob).collect();
    let is_named = |blob: &Digest| known.contains(blob) || named.erased().contains(blob);
    // If the folder can't be read, that is reported for the blobs that must exist.
    of.blobs(thread).unwrap_or_default().into_iter().filter(|blob| !is_named(blob)).collect()
}

/// Hashes every blob that must exist; returns those that are missing, changed or unreadable.
pub fn bad_blobs(named: &NamedBlobs, open: impl Fn(&Digest) -> io::Result<Box<dyn Read + Send>>) -> Vec<BadBlob> {
    let look = |(blob, version): (Digest, u64)| {
        let why = match open(&blob).and_then(|mut content| hash_of(&mut *content)) {
            Ok(found) if found == blob => return None,
            Ok(_) => "does not match its name".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "is missing".to_owned(),
            Err(error) => format!("can't be read: {error}"),
        };
        Some(BadBlob { blob, version, why })
    };
    named.must_be_there().filter_map(look).collect()
}

/// The SHA-256 of all bytes of a reader.
pub(crate) fn hash_of(content: &mut dyn Read) -> io::Result<Digest> {
    let mut hash = RunningHash::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(hash.digest()),
            Ok(read) => hash.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
