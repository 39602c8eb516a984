//! Judging a log without writing.
//!
//! Head and redo are read in one transaction, and the file is judged as that prefix: what a crash left in the redo is
//! healed, not damage, and what other processes commit meanwhile is not foreign. Every blob that the log names and nobody erased is
//! hashed too, and what the database has of the thread is held against what the log says.
//!
//! A log that the database does not know is judged by itself.

use std::collections::BTreeMap;
use std::io::BufReader;

use selvedge_log::Head;
use selvedge_log::recovery::{Evidence, Finding, Judgement, Mode, Plan, judge};
use selvedge_log::scan::{Entry, Scanner, Signatures, examine};
use selvedge_model::{Digest, NamedBlobs, ThreadId};
use selvedge_store::snapshot::NEWEST;
use selvedge_store::{Error, Result};

use crate::blobs::{BadBlob, bad_blobs};
use crate::core::{Core, io_error};
use crate::disk::How;
use crate::folded::Folded;
use crate::open::LocalStore;
use crate::overlay::{Overlay, Shot};
use crate::rows;
use crate::schema::database;
use crate::snapshots::shows_another;

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
            // Who signed the projection says nothing about the log.
            Err(Error::Unbelieved { .. }) => (None, None),
            Err(error) => return Err(error),
        };
        let snapshot = self.core.snapshot_memory(thread)?;
        let Look { head, overlay, file_bytes, healed_bytes } = self.core.look_at(thread)?;
        let last = head.as_ref().map(|head| head.version);
        let mut signers: Vec<(Digest, u64)> = Vec::new();
        let mut mates = BTreeMap::<ThreadId, u64>::new();
        let scanner = Scanner::new(thread, &self.core.trust, Signatures::Every).watching(last);
        let reader = BufReader::with_capacity(1 << 16, overlay);
        let path = self.core.layout.transcript(thread);
        let (mut lines, mut bytes) = (0, 0);
        let (mut shown_hash, mut folded_hash) = (None, None);
        let (mut named, mut folded) = (NamedBlobs::default(), Folded::new(thread));
        let examined = examine(reader, scanner, |entry| {
            let Some(checkpoint) = entry.checkpoint() else { return };
            for (mate, version) in &checkpoint.with {
                let known = mates.entry(mate.clone()).or_default();
                *known = (*known).max(*version);
            }
            if last.is_some_and(|last| entry.head.version > last) {
                return;
            }
            folded.take(&entry);
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
        .map_err(io_error("read", &path))?;
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
        let problem = problem.map(|why| ("thread.json", why));
        let problem = match problem {
            None => self.core.bad_capabilities(thread)?.map(|why| ("capabilities.md", why)).or(contradicted),
            problem => problem,
        };
        if let Some((by, why)) = problem.filter(|_| judgement.finding == Finding::Sound) {
            judgement.finding = Finding::Contradicted { by: by.to_owned(), why };
            judgement.plan = Plan::Refuse;
        }
        // Bytes behind the end of a log that nobody knows are moved aside once somebody knows it.
        let holds = match &judgement.finding {
            Finding::Sound => true,
            Finding::Foreign { .. } => head.is_none(),
            _ => false,
        };
        if let Some(why) = if holds { self.core.differs(thread, head.as_ref(), &folded)? } else { None } {
            judgement.finding = Finding::Database { why };
            judgement.plan = Plan::Refuse;
        }
        let bad_blobs = bad_blobs(&self.core.layout, &*self.core.disk, thread, &named);
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
        })
    }
}

/// What is judged of a thread.
struct Look {
    /// Where the database says it ends; nothing if it does not know it.
    head: Option<Head>,
    overlay: Overlay,
    file_bytes: u64,
    healed_bytes: u64,
}

impl Core {
    fn look_at(&self, thread: &ThreadId) -> Result<Look> {
        match self.shot(thread) {
            Ok(Shot { row, overlay, file_bytes, healed_bytes }) => {
                Ok(Look { head: Some(row.head), overlay, file_bytes, healed_bytes })
            }
            Err(Error::NoThread(_)) if self.is_stray(thread)? => {
                let path = self.layout.transcript(thread);
                let file = self.disk.open(&path, How::Read).map_err(io_error("open", &path))?;
                let file_bytes = file.length().map_err(io_error("look at", &path))?;
                let overlay = Overlay::of_file(Some(file)).map_err(io_error("read", &path))?;
                Ok(Look { head: None, overlay, file_bytes, healed_bytes: 0 })
            }
            Err(error) => Err(error),
        }
    }

    /// What the database has of a thread that its log does not say, unless somebody has committed since.
    pub(crate) fn differs(
        &self,
        thread: &ThreadId,
        head: Option<&Head>,
        folded: &Folded<'_>,
    ) -> Result<Option<String>> {
        self.read(|connection| {
            let transaction = connection.unchecked_transaction().map_err(database)?;
            match (rows::find(&transaction, thread)?, head) {
                (Some(row), Some(head)) if row.head == *head => folded.contradiction(&transaction, &row),
                (None, None) => Ok(Some("does not know it".to_owned())),
                _ => Ok(None),
            }
        })
    }
}
