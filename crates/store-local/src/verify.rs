//! Judging a log without writing.
//!
//! Head and redo are read in one transaction, and the file is judged as that prefix: what a crash left in the redo is
//! healed, not damage, and what other processes commit meanwhile is not foreign.

use std::collections::BTreeMap;
use std::io::BufReader;

use selvedge_log::Head;
use selvedge_log::recovery::{Evidence, Judgement, Mode, judge};
use selvedge_log::scan::{Entry, Scanner, Signatures, examine};
use selvedge_model::{Digest, ThreadId};
use selvedge_store::Result;

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
    /// Who signed how many checkpoints.
    pub signers: Vec<(Digest, u64)>,
    /// How many lines held.
    pub lines: u64,
    /// How many bytes held.
    pub bytes: u64,
    /// The versions of other threads that its checkpoints remember.
    pub mates: Vec<(ThreadId, u64)>,
    /// Who remembers how far the log had come, and the version they remember.
    pub remembered: Vec<(String, u64)>,
}

impl LocalStore {
    /// Judges a log, every signature of it, and hands each changeset that held to `each`. Writes nothing.
    pub fn verify(&self, thread: &ThreadId, each: &mut dyn FnMut(&Entry)) -> Result<Verdict> {
        let memory = self.core.manifest_memory(thread)?;
        let shot = self.core.shot(thread)?;
        let (head, file_bytes, healed_bytes) = (shot.row.head, shot.file_bytes, shot.healed_bytes);
        let mut signers = BTreeMap::<Digest, u64>::new();
        let mut mates = BTreeMap::<ThreadId, u64>::new();
        let scanner = Scanner::new(thread, &self.core.trust, Signatures::Every).watching(Some(head.version));
        let reader = BufReader::with_capacity(1 << 16, shot.overlay);
        let path = self.core.layout.transcript(thread);
        let (mut lines, mut bytes) = (0, 0);
        let mut shown_hash = None;
        let examined = examine(reader, scanner, |entry| {
            if entry.head.version > head.version {
                return;
            }
            (lines, bytes) = (entry.head.lines, entry.head.bytes);
            if memory.as_ref().is_some_and(|memory| memory.version == entry.head.version) {
                shown_hash = Some(entry.head.hash);
            }
            if let Some(checkpoint) = entry.checkpoint() {
                *signers.entry(checkpoint.signer).or_default() += 1;
                for (mate, version) in &checkpoint.with {
                    let known = mates.entry(mate.clone()).or_default();
                    *known = (*known).max(*version);
                }
            }
            each(&entry);
        })
        .map_err(io_error("read", &path))?;
        if let (Some(memory), Some(hash)) = (&memory, shown_hash)
            && memory.hash.is_some_and(|remembered| remembered != hash)
        {
            return Err(selvedge_store::Error::Integrity {
                what: format!("`thread.json` of `{thread}`"),
                why: format!("it shows another log at version {}", memory.version),
                hint: Some("one of the two was put there from elsewhere; compare both with a copy".to_owned()),
            });
        }
        let mut remembered = vec![("the database".to_owned(), head.version)];
        remembered.extend(memory.iter().map(|memory| (memory.by.clone(), memory.version)));
        let memories: Vec<_> = memory.into_iter().collect();
        let evidence = Evidence { head: Some(&head), file_bytes, healed_bytes, remembered: &memories };
        let judgement = judge(&examined, evidence, Mode::Strict);
        Ok(Verdict {
            thread: thread.clone(),
            judgement,
            head: Some(head),
            healed_bytes,
            signers: signers.into_iter().collect(),
            lines,
            bytes,
            mates: mates.into_iter().collect(),
            remembered,
        })
    }
}
