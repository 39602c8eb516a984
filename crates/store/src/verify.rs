//! Judging a log without writing: every signature, every blob it names, and what a backend has of it besides.
//!
//! Written once, over [`Stored`]: a backend answers what it keeps of a thread, byte for byte, and nothing of it is believed here. What a crash
//! left to be written is healed, not damage, and what other processes commit meanwhile is not foreign. A log that the backend does not know
//! is judged by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use selvedge_log::hash::RunningHash;
use selvedge_log::recovery::{Evidence, Finding, Judgement, Mode, Plan, Remembered, judge};
use selvedge_log::scan::{Entry, Scanner, Signatures, examine};
use selvedge_log::{Head, Trust};
use selvedge_model::event::LostVersions;
use selvedge_model::{Digest, Event, NamedBlobs, ThreadId};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::folded::Folded;
use crate::snapshot::{self, NEWEST, shows_another};
use crate::{capabilities, manifest};

/// What was found out about a log.
#[derive(Debug)]
pub struct Verdict {
    /// The thread.
    pub thread: ThreadId,
    /// What its log is, and what may be done with it.
    pub judgement: Judgement,
    /// Where the database says it ends.
    pub head: Option<Head>,
    /// Bytes that a crash left in the redo; not damage.
    pub healed_bytes: u64,
    /// Who signed how many checkpoints, in the order they took over.
    pub signers: Vec<(Digest, u64)>,
    /// How many lines held.
    pub lines: u64,
    /// How many bytes held.
    pub bytes: u64,
    /// How many blobs were erased; the log says which, when and why.
    pub erased: u64,
    /// Their names.
    pub erased_blobs: Vec<Digest>,
    /// Blobs that the log names and that are missing or changed; the finding names the first, if there is nothing worse.
    pub bad_blobs: Vec<BadBlob>,
    /// The versions of other threads that its checkpoints remember, those behind the database's head included.
    pub mates: Vec<(ThreadId, u64)>,
    /// Who remembers how far the log had come, and the version they remember.
    pub remembered: Vec<(String, u64)>,
    /// The versions that the log itself says are lost, and since when. What is there is as it was signed all the same.
    pub lost: Vec<LostVersions>,
    /// Blobs that lie beside the log and that it does not name: nothing vouches for them.
    pub unnamed_blobs: Vec<Digest>,
    /// How many bytes follow the end of an archive: they are no part of it.
    pub trailing_bytes: u64,
}

/// The versions that a changeset says are lost.
pub fn lost_in(entry: &Entry) -> impl Iterator<Item = LostVersions> {
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
    /// The finding of a log that is otherwise sound.
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

/// A log as it is judged.
pub struct Look {
    /// Where the backend says it ends; nothing if it does not know it.
    pub head: Option<Head>,
    /// Its bytes, with what a crash left to be written.
    pub log: Box<dyn BufRead + Send>,
    /// How many bytes it has, what a crash left aside.
    pub file_bytes: u64,
    /// How many bytes a crash left to be written.
    pub healed_bytes: u64,
}

/// What a backend keeps of a thread, byte for byte, unchecked: what is judged and what goes into an archive.
pub trait Stored: Send + Sync {
    /// The keys whose signatures count.
    fn trust(&self) -> &Trust;

    /// Where a thread is kept, as a path to be shown to a person and in errors. What is there is the backend's affair.
    fn place(&self, thread: &ThreadId) -> PathBuf;

    /// The log of a thread as it is to be judged, head and bytes of one moment. One that the backend does not know, and has, comes without
    /// a head.
    fn look(&self, thread: &ThreadId) -> Result<Look>;

    /// A signed document beside a log; nothing if there is none. What stands in its place and can't be read as one is
    /// [`Error::Integrity`].
    fn document(&self, thread: &ThreadId, document: Document) -> Result<Option<Vec<u8>>>;

    /// The names of the blobs beside a thread's log, in order.
    fn blobs(&self, thread: &ThreadId) -> Result<Vec<Digest>>;

    /// A blob as it is stored, and how long it is.
    fn stored_blob(&self, thread: &ThreadId, blob: &Digest) -> io::Result<(u64, Box<dyn Read + Send>)>;

    /// The public keys that arrived with a thread, by their fingerprints. What can't be read is passed over.
    fn arrived_keys(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)>;

    /// The statements of rotations that arrived with a thread, by the fingerprints of the newer keys. What can't be read is passed over.
    fn arrived_statements(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)>;

    /// What the backend has of a thread that its log, folded up to `head`, does not say, as the end of a sentence about the database;
    /// nothing if another process has committed since.
    fn differs(&self, thread: &ThreadId, head: Option<&Head>, folded: &Folded<'_>) -> Result<Option<String>>;
}

/// Judging threads.
pub trait Verify: Stored {
    /// Judges a log, every signature of it and every blob it names, and hands each changeset that held to `each`. Writes nothing.
    fn verify(&self, thread: &ThreadId, each: &mut dyn FnMut(&Entry)) -> Result<Verdict> {
        verify(self, thread, each)
    }

    /// The threads that have a log here and that the backend's tables do not know, in the order of their ids.
    fn strays(&self) -> Result<Vec<ThreadId>> {
        Ok(Vec::new())
    }

    /// Whether a thread has a log here that the backend's tables do not know.
    fn is_stray(&self, _: &ThreadId) -> Result<bool> {
        Ok(false)
    }

    /// Whether a thread arrived here in an archive. The others of its family may never have been here.
    fn has_arrived(&self, thread: &ThreadId) -> bool;
}

/// Judges a log; see [`Verify::verify`].
pub fn verify<S: Stored + ?Sized>(of: &S, thread: &ThreadId, each: &mut dyn FnMut(&Entry)) -> Result<Verdict> {
    let (memory, mut problem) = match manifest_memory(of, thread) {
        Ok(memory) => (memory, None),
        Err(Error::Integrity { why, .. }) => (None, Some(why)),
        // Who signed the projection says nothing about the log.
        Err(Error::Unbelieved { .. }) => (None, None),
        Err(error) => return Err(error),
    };
    let snapshot = snapshot_memory(of, thread)?;
    let Look { head, log, file_bytes, healed_bytes } = of.look(thread)?;
    let last = head.as_ref().map(|head| head.version);
    let mut signers: Vec<(Digest, u64)> = Vec::new();
    let mut mates = BTreeMap::<ThreadId, u64>::new();
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
        for (mate, version) in &checkpoint.with {
            let known = mates.entry(mate.clone()).or_default();
            *known = (*known).max(*version);
        }
        if last.is_some_and(|last| entry.head.version > last) {
            return;
        }
        folded.take(&entry);
        lost.extend(lost_in(&entry));
        (lines, bytes) = (entry.head.lines, entry.head.bytes);
        if memory.as_ref().is_some_and(|memory| memory.version == entry.head.version) {
            shown_hash = Some(entry.head.hash);
        }
        if snapshot.as_ref().is_some_and(|snapshot| snapshot.version == entry.head.version) {
            folded_hash = Some(entry.head.hash);
        }
        entry.lines.iter().for_each(|line| named.take(entry.head.version, &line.event));
        match signers.last_mut() {
            Some((signer, count)) if *signer == checkpoint.signer => *count += 1,
            _ => signers.push((checkpoint.signer, 1)),
        }
        each(&entry);
    })
    .map_err(|source| Error::Io { what: "read", path: of.place(thread).join("transcript.jsonl"), source })?;
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
    // Bytes behind the end of a log that the backend does not know are moved aside once it knows the log.
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
    Ok(Verdict {
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
        mates: mates.into_iter().collect(),
        remembered,
        lost,
        unnamed_blobs: unnamed_blobs(of, thread, &named),
        trailing_bytes: 0,
    })
}

fn manifest_memory<S: Stored + ?Sized>(of: &S, thread: &ThreadId) -> Result<Option<Remembered>> {
    let Some(bytes) = of.document(thread, Document::Manifest)? else { return Ok(None) };
    manifest::parse(&bytes, of.trust(), thread).map(|shown| Some(shown.memory))
}

/// What the newest snapshot remembers of the log; one that is not rightly signed remembers nothing.
fn snapshot_memory<S: Stored + ?Sized>(of: &S, thread: &ThreadId) -> Result<Option<Remembered>> {
    let text = of.document(thread, Document::Snapshot);
    match text.and_then(|text| text.map(|text| snapshot::memory(thread, text, of.trust())).transpose()) {
        Err(Error::Integrity { .. } | Error::Unbelieved { .. }) => Ok(None),
        memory => memory,
    }
}

fn bad_capabilities<S: Stored + ?Sized>(of: &S, thread: &ThreadId) -> Result<Option<String>> {
    let page = of.document(thread, Document::Capabilities);
    let check = |bytes: Vec<u8>| capabilities::check_kept(thread, &bytes, of.trust());
    capabilities::bad(page.and_then(|page| page.map_or(Ok(()), check)))
}

/// The blobs beside a log that it does not name, and never did. One that a commit is about to name is among them.
fn unnamed_blobs<S: Stored + ?Sized>(of: &S, thread: &ThreadId, named: &NamedBlobs) -> Vec<Digest> {
    let known: BTreeSet<Digest> = named.must_be_there().map(|(blob, _)| blob).collect();
    let is_named = |blob: &Digest| known.contains(blob) || named.erased().contains(blob);
    // A folder that can't be read is said of the blobs that must be there.
    of.blobs(thread).unwrap_or_default().into_iter().filter(|blob| !is_named(blob)).collect()
}

/// Hashes every blob that must be there; gives those that are missing, changed or can't be read.
pub fn bad_blobs(named: &NamedBlobs, open: impl Fn(&Digest) -> io::Result<Box<dyn Read + Send>>) -> Vec<BadBlob> {
    let look = |(blob, version): (Digest, u64)| {
        let why = match open(&blob).and_then(|mut content| hash_of(&mut *content)) {
            Ok(found) if found == blob => return None,
            Ok(_) => "is not what its name says".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "is missing".to_owned(),
            Err(error) => format!("can't be read: {error}"),
        };
        Some(BadBlob { blob, version, why })
    };
    named.must_be_there().filter_map(look).collect()
}

/// The SHA-256 of all that a reader gives, read in pieces.
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
