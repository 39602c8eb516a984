//! Reading a log forwards, with every check there is.
//!
//! A [`Scanner`] is handed one line after the other and gives back each changeset when its checkpoint has been checked:
//! sequence, thread, order of events, version, epoch, byte offset, hash, log, signer, signature. What it gave back is
//! unchanged since it was signed; the first thing that does not hold stops it, named by line, byte and version.

mod examine;

use selvedge_model::error::{Classify, Kind};
use selvedge_model::event::{Checkpoint, Place};
use selvedge_model::{Digest, Event, LogId, ThreadId};

use crate::checkpoint;
use crate::hash::RunningHash;
use crate::head::{Head, Tail};
use crate::line::Line;
use crate::trust::{Status, Trust};
use crate::writer::FORMAT;

pub use examine::{Examined, examine};

/// Which signatures are checked; the hashes of all checkpoints are checked always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signatures {
    /// Every one.
    Every,
    /// The last one, which covers every byte before it.
    Last,
    /// None: only that every byte is what the checkpoints say, whoever signed them. For looking at what is not to be relied on.
    Nobodys,
}

/// The first thing that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("version {version}, line {line} (byte {byte}): {flaw}")]
pub struct Damage {
    /// The number of the line, from 1, as an editor counts.
    pub line: u64,
    /// The first line of the changeset it belongs to, from 1.
    pub first_line: u64,
    /// Where the line begins.
    pub byte: u64,
    /// The version that the changeset would have had.
    pub version: u64,
    /// What does not hold.
    pub flaw: Flaw,
}

/// What does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The line can't be read.
    #[error("the line can't be read: {0}")]
    Unreadable(String),
    /// The last line has no end.
    #[error("the line is cut off")]
    Torn,
    /// The line's number is not the next one.
    #[error("the line's number is {found} where {expected} must stand")]
    Sequence {
        /// The next number.
        expected: u64,
        /// The line's number.
        found: u64,
    },
    /// The line belongs to another thread.
    #[error("the line belongs to thread `{0}`")]
    Thread(ThreadId),
    /// The log does not begin with a birth, or has a second one.
    #[error("`thread_created` must be the first event of a log and stand nowhere else")]
    Birth,
    /// The log is of a format this reader does not know.
    #[error("the log has format {found}; this program reads format {FORMAT}")]
    Format {
        /// The log's format.
        found: u32,
    },
    /// The events of a changeset are out of order.
    #[error("the event stands behind one that must follow it")]
    Order,
    /// The checkpoint's version is not the next one.
    #[error("the checkpoint says version {found}")]
    Version {
        /// What it says.
        found: u64,
    },
    /// The changeset records a loss of other versions than those that are missing.
    #[error("the changeset records a loss that does not begin behind the version before it")]
    Gap,
    /// The checkpoint's epoch is lower than one before.
    #[error("the checkpoint's epoch {found} is lower than {least}, which stands before it")]
    Epoch {
        /// The greatest epoch so far.
        least: u64,
        /// What it says.
        found: u64,
    },
    /// The checkpoint belongs to another log or segment.
    #[error("the checkpoint belongs to another log")]
    Log,
    /// The checkpoint stands elsewhere than it says.
    #[error("the checkpoint was signed at byte {found}")]
    Offset {
        /// What it says.
        found: u64,
    },
    /// The bytes before the checkpoint are not those that were signed.
    #[error("the bytes before this checkpoint are not the ones that were signed")]
    Hash,
    /// The key is not trusted.
    #[error("the checkpoint is signed by key {}, which is not trusted", .0.short())]
    Untrusted(Digest),
    /// The key was trusted once and is no more.
    #[error("the checkpoint is signed by key {}, which was revoked", .0.short())]
    Revoked(Digest),
    /// The signer changed without a rotation, or back.
    #[error("the checkpoint is signed by key {}, which did not take over from the one before", .0.short())]
    Signer(Digest),
    /// The signature does not hold.
    #[error("the signature does not hold")]
    Signature,
}

impl Classify for Damage {
    fn kind(&self) -> Kind {
        Kind::Integrity
    }

    fn code(&self) -> &'static str {
        match self.flaw {
            Flaw::Untrusted(_) => "untrusted_key",
            Flaw::Revoked(_) => "revoked_key",
            Flaw::Format { .. } => "newer_format",
            _ => "damaged",
        }
    }
}

/// One changeset as it stands in the log, its checkpoint last.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its lines.
    pub lines: Vec<Line>,
    /// The end of the log behind it.
    pub head: Head,
}

impl Entry {
    /// The checkpoint that closes it.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match self.lines.last().map(|line| &line.event) {
            Some(Event::Checkpoint(checkpoint)) => Some(checkpoint),
            _ => None,
        }
    }
}

/// Checks one line after the other.
#[derive(Debug)]
pub struct Scanner<'a> {
    thread: &'a ThreadId,
    trust: &'a Trust,
    signatures: Signatures,
    hash: RunningHash,
    byte: u64,
    log_id: Option<LogId>,
    head: Option<Head>,
    former_signers: Vec<Digest>,
    open: Vec<Line>,
    last_checkpoint: Option<(Vec<u8>, Damage)>,
    watched: Option<u64>,
    passed: Option<Head>,
}

impl<'a> Scanner<'a> {
    /// A scanner for the log of `thread`, at its first byte.
    pub fn new(thread: &'a ThreadId, trust: &'a Trust, signatures: Signatures) -> Self {
        Self {
            thread,
            trust,
            signatures,
            hash: RunningHash::new(),
            byte: 0,
            log_id: None,
            head: None,
            former_signers: Vec::new(),
            open: Vec::new(),
            last_checkpoint: None,
            watched: None,
            passed: None,
        }
    }

    /// A scanner that goes on behind `head`, whose bytes hashed to `hash`: what stands before is vouched for by whoever says so. A tail in
    /// which the signer changes is to be read from the beginning: which keys were left before is not known here.
    pub fn resuming(thread: &'a ThreadId, trust: &'a Trust, head: Head, hash: RunningHash) -> Self {
        Self {
            hash,
            byte: head.bytes,
            log_id: Some(head.log_id),
            former_signers: Vec::new(),
            head: Some(head),
            ..Self::new(thread, trust, Signatures::Last)
        }
    }

    /// The same scanner, remembering the head it passes at `version`.
    #[must_use]
    pub fn watching(mut self, version: Option<u64>) -> Self {
        self.watched = version;
        self
    }

    /// The end of the log behind the last checkpoint that held.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Takes one line, as its bytes with their `\n`, what was read in them and the hash of everything up to its end, and gives a changeset
    /// back when it closes one.
    fn line(&mut self, bytes: &[u8], line: Line, hash: &RunningHash) -> Result<Option<Entry>, Damage> {
        self.check_place(&line)?;
        let entry = match &line.event {
            Event::Checkpoint(said) => Some(self.check_checkpoint(said, &bytes[..bytes.len() - 1])?),
            _ => None,
        };
        self.hash.clone_from(hash);
        self.byte += bytes.len() as u64;
        self.open.push(line);
        Ok(entry.map(|mut head| {
            head.bytes = self.byte;
            head.hash = self.hash.digest();
            if self.watched == Some(head.version) {
                self.passed = Some(head.clone());
            }
            self.head = Some(head.clone());
            // One changeset is often as long as the one before.
            let next = Vec::with_capacity(self.open.len());
            Entry { lines: std::mem::replace(&mut self.open, next), head }
        }))
    }

    /// Checks the last signature, if only that one is to be checked, and gives the end of the log.
    pub fn finish(mut self) -> Result<Option<Tail>, Damage> {
        self.check_last_signature()?;
        Ok(self.head.map(|head| Tail::behind(head, self.hash)))
    }

    /// Checks the last signature, if only that one is to be checked.
    pub fn check_last_signature(&mut self) -> Result<(), Damage> {
        match (self.last_checkpoint.take(), &self.head) {
            (Some((line, damage)), Some(head)) => {
                let key = self.trust.key(&head.signer);
                let holds = key.is_some_and(|key| checkpoint::verify(&line, key).is_ok());
                if holds { Ok(()) } else { Err(damage) }
            }
            _ => Ok(()),
        }
    }

    fn version(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.version + 1)
    }

    /// The version that the checkpoint of the open changeset must have. It is the next one, unless the changeset records
    /// that exactly the versions in between are lost.
    fn version_due(&self) -> Result<u64, Damage> {
        let next = self.version();
        let mut losses = self.open.iter().filter_map(|line| match &line.event {
            Event::Recovery(found) if found.is_loss() => Some((found.from_version, found.to_version)),
            _ => None,
        });
        match (losses.next(), losses.next()) {
            (None, _) => Ok(next),
            (Some((Some(from), Some(to))), None) if from == next && to >= from && to < u64::MAX => Ok(to + 1),
            _ => Err(self.damage(Flaw::Gap)),
        }
    }

    fn seq(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.lines) + self.open.len() as u64
    }

    fn damage(&self, flaw: Flaw) -> Damage {
        let seq = self.seq();
        Damage {
            line: seq + 1,
            first_line: seq - self.open.len() as u64 + 1,
            byte: self.byte,
            version: self.version(),
            flaw,
        }
    }

    fn check_place(&mut self, line: &Line) -> Result<(), Damage> {
        let expected = self.seq();
        if line.seq != expected {
            return Err(self.damage(Flaw::Sequence { expected, found: line.seq }));
        }
        if line.thread_id != *self.thread {
            return Err(self.damage(Flaw::Thread(line.thread_id.clone())));
        }
        match &line.event {
            Event::ThreadCreated(created) if expected == 0 => {
                if created.format != FORMAT {
                    return Err(self.damage(Flaw::Format { found: created.format }));
                }
                if created.segment != 0 {
                    return Err(self.damage(Flaw::Log));
                }
                self.log_id = Some(created.log_id);
            }
            Event::ThreadCreated(_) => return Err(self.damage(Flaw::Birth)),
            _ if expected == 0 => return Err(self.damage(Flaw::Birth)),
            _ => {}
        }
        let last = self.open.last().map_or(Place::Lead, |line| line.event.place());
        if line.event.place() < last { Err(self.damage(Flaw::Order)) } else { Ok(()) }
    }

    fn check_checkpoint(&mut self, said: &Checkpoint, text: &[u8]) -> Result<Head, Damage> {
        let version = self.version_due()?;
        if said.version != version {
            return Err(self.damage(Flaw::Version { found: said.version }));
        }
        if self.log_id.as_ref() != Some(&said.log_id) || said.segment != 0 {
            return Err(self.damage(Flaw::Log));
        }
        if said.byte_offset != self.byte {
            return Err(self.damage(Flaw::Offset { found: said.byte_offset }));
        }
        if said.hash != self.hash.digest() {
            return Err(self.damage(Flaw::Hash));
        }
        let least = self.head.as_ref().map_or(0, |head| head.epoch);
        if said.epoch < least {
            return Err(self.damage(Flaw::Epoch { least, found: said.epoch }));
        }
        self.check_signer(said.signer)?;
        match self.signatures {
            Signatures::Every => {
                let key = self.trust.key(&said.signer).ok_or_else(|| self.damage(Flaw::Untrusted(said.signer)))?;
                checkpoint::verify(text, key).map_err(|_| self.damage(Flaw::Signature))?;
            }
            Signatures::Nobodys => {}
            Signatures::Last => {
                let damage = self.damage(Flaw::Signature);
                let mut line = self.last_checkpoint.take().map_or_else(Vec::new, |(line, _)| line);
                line.clear();
                line.extend_from_slice(text);
                self.last_checkpoint = Some((line, damage));
            }
        }
        Ok(Head {
            log_id: said.log_id,
            segment: said.segment,
            version,
            lines: self.seq() + 1,
            bytes: self.byte,
            hash: said.hash,
            epoch: said.epoch,
            signer: said.signer,
        })
    }

    fn check_signer(&mut self, signer: Digest) -> Result<(), Damage> {
        match self.trust.status(&signer) {
            _ if self.signatures == Signatures::Nobodys => return Ok(()),
            Some(Status::Trusted) => {}
            Some(Status::Revoked) => return Err(self.damage(Flaw::Revoked(signer))),
            None => return Err(self.damage(Flaw::Untrusted(signer))),
        }
        let Some(before) = self.head.as_ref().map(|head| head.signer).filter(|before| *before != signer) else {
            return Ok(());
        };
        let rotated = self.open.iter().any(
            |line| matches!(&line.event, Event::KeyRotated(rotated) if rotated.from == before && rotated.to == signer),
        );
        if !rotated || self.former_signers.contains(&signer) {
            return Err(self.damage(Flaw::Signer(signer)));
        }
        self.former_signers.push(before);
        Ok(())
    }
}
