//! Judging a log without writing.
//!
//! Head and redo are read in one transaction, and the file is judged as that prefix: what a crash left in the redo is
//! healed, not damage, and what other processes commit meanwhile is not foreign. Every blob that the log names and nobody erased is
//! hashed too.

use std::collections::BTreeMap;
use std::io::BufReader;

use selvedge_log::Head;
use selvedge_log::recovery::{Evidence, Finding, Judgement, Mode, Plan, judge};
use selvedge_log::scan::{Entry, Scanner, Signatures, examine};
use selvedge_model::{Digest, NamedBlobs, ThreadId};
use selvedge_store::{Error, Result};

use crate::blobs::{BadBlob, bad_blobs};
use crate::core::io_error;
use crate::open::LocalStore;

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
}

impl LocalStore {
    /// Judges a log, every signature of it and every blob it names, and hands each changeset that held to `each`. Writes nothing.
    pub fn verify(&self, thread: &ThreadId, each: &mut dyn FnMut(&Entry)) -> Result<Verdict> {
        let (memory, mut problem) = match self.core.manifest_memory(thread) {
            Ok(memory) => (memory, None),
            Err(Error::Integrity { why, .. }) => (None, Some(why)),
            Err(error) => return Err(error),
        };
        let shot = self.core.shot(thread)?;
        let (head, file_bytes, healed_bytes) = (shot.row.head, shot.file_bytes, shot.healed_bytes);
        let mut signers: Vec<(Digest, u64)> = Vec::new();
        let mut mates = BTreeMap::<ThreadId, u64>::new();
        let scanner = Scanner::new(thread, &self.core.trust, Signatures::Every).watching(Some(head.version));
        let reader = BufReader::with_capacity(1 << 16, shot.overlay);
        let path = self.core.layout.transcript(thread);
        let (mut lines, mut bytes) = (0, 0);
        let mut shown_hash = None;
        let mut named = NamedBlobs::default();
        let examined = examine(reader, scanner, |entry| {
            let Some(checkpoint) = entry.checkpoint() else { return };
            for (mate, version) in &checkpoint.with {
                let known = mates.entry(mate.clone()).or_default();
                *known = (*known).max(*version);
            }
            if entry.head.version > head.version {
                return;
            }
            (lines, bytes) = (entry.head.lines, entry.head.bytes);
            if memory.as_ref().is_some_and(|memory| memory.version == entry.head.version) {
                shown_hash = Some(entry.head.hash);
            }
            entry.lines.iter().for_each(|line| named.take(entry.head.version, &line.event));
            match signers.last_mut() {
                Some((signer, count)) if *signer == checkpoint.signer => *count += 1,
                _ => signers.push((checkpoint.signer, 1)),
            }
            each(&entry);
        })
        .map_err(io_error("read", &path))?;
        if let (Some(memory), Some(hash)) = (&memory, shown_hash)
            && memory.hash.is_some_and(|remembered| remembered != hash)
        {
            problem = Some(format!("it shows another log at version {}", memory.version));
        }
        let mut remembered = vec![("the database".to_owned(), head.version)];
        remembered.extend(memory.iter().map(|memory| (memory.by.clone(), memory.version)));
        let memories: Vec<_> = memory.into_iter().collect();
        let evidence = Evidence { head: Some(&head), file_bytes, healed_bytes, remembered: &memories };
        let mut judgement = judge(&examined, evidence, Mode::Strict);
        if let Some(why) = problem.filter(|_| judgement.finding == Finding::Sound) {
            judgement.finding = Finding::Contradicted { by: "thread.json".to_owned(), why };
            judgement.plan = Plan::Refuse;
        }
        let bad_blobs = bad_blobs(&self.core.layout, &*self.core.disk, thread, &named);
        if let (Finding::Sound, Some(first)) = (&judgement.finding, bad_blobs.first()) {
            judgement.finding = first.clone().into_finding();
        }
        Ok(Verdict {
            thread: thread.clone(),
            judgement,
            head: Some(head),
            healed_bytes,
            signers,
            lines,
            bytes,
            erased: named.erased().len() as u64,
            erased_blobs: named.erased().iter().copied().collect(),
            bad_blobs,
            mates: mates.into_iter().collect(),
            remembered,
        })
    }
}
