//! Reads a log forwards and verifies everything.
//!
//! A [`Scanner`] receives one line after the other and returns each changeset once its checkpoint has been verified:
//! sequence, thread, order of events, version, epoch, byte offset, hash, log, signer, signature. What it returned is
//! unchanged since it was signed. It stops at the first damage, which it reports by line, byte and version.

mod examine;
mod facts;

use std::num::NonZeroU32;

use selvedge_model::error::Classify;
use selvedge_model::event::{Checkpoint, LineOrder};
use selvedge_model::{Digest, Event, LogId, ThreadId};

use crate::checkpoint;
use crate::hash::RunningHash;
use crate::head::{Head, Tail};
use crate::line::{Decoded, Line};
use crate::trust::{Status, Trust};
use crate::writer::FORMAT;

pub use examine::{Examined, examine};
use facts::{CheckpointClaims, Kind, LineFacts, NUMBER_MAX};

/// Which signatures are verified; the hashes of all checkpoints are always verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signatures {
    /// All signatures.
    Every,
    /// The last one, which covers every byte before it.
    Last,
    /// None: only the hashes are verified, whichever key signed them. For inspecting logs that are not to be relied on.
    Unchecked,
}

/// The first damage of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("version {version}, line {line} (byte {byte}): {}", self.what())]
pub struct Damage {
    /// The line number, from 1, as in an editor.
    pub line: u64,
    /// The number of lines of its changeset before it.
    pub lines_before: u32,
    /// If validly signed checkpoints of this log follow the damage: how many versions the highest of them is ahead of `version`, plus one.
    /// What follows the damage was committed then, and is not foreign bytes.
    pub signed_ahead: Option<NonZeroU32>,
    /// The position of the line's first byte.
    pub byte: u64,
    /// The version that the changeset would have.
    pub version: u64,
    /// What is wrong.
    pub flaw: Flaw,
}

impl Damage {
    /// The highest version of a validly signed checkpoint of this log after the damage.
    pub fn signed_after(&self) -> Option<u64> {
        self.signed_ahead.map(|ahead| self.version.saturating_add(u64::from(ahead.get() - 1)))
    }

    /// The first line of its changeset, from 1.
    pub fn first_line(&self) -> u64 {
        self.line.saturating_sub(u64::from(self.lines_before))
    }

    /// What is wrong, and which signed versions follow.
    pub fn what(&self) -> String {
        let is_unread =
            matches!(self.flaw, Flaw::Unreadable(_) | Flaw::Sequence { .. } | Flaw::Thread(_) | Flaw::Order);
        match self.signed_after() {
            // The damaged checkpoint itself may be validly signed; then nothing further follows.
            Some(version) if version > self.version || is_unread => {
                format!("{}; signed checkpoints follow it, up to version {version}", self.flaw)
            }
            _ => self.flaw.to_string(),
        }
    }
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The line can't be read.
    #[error("the line can't be read: {0}")]
    Unreadable(String),
    /// The last line is incomplete.
    #[error("the line is incomplete")]
    Torn,
    /// The line's number is not the next one.
    #[error("the line has number {found} instead of {expected}")]
    Sequence {
        /// The expected number.
        expected: u64,
        /// The line's number.
        found: u64,
    },
    /// The line belongs to another thread.
    #[error("the line belongs to thread `{0}`")]
    Thread(ThreadId),
    /// The log does not start with the creation of the thread, or has a second one.
    #[error("`thread_created` must be the first event of a log, and only there")]
    Birth,
    /// The format of the log is unknown.
    #[error("the log has format {found}; this program reads format {FORMAT}")]
    Format {
        /// The log's format.
        found: u32,
    },
    /// The events of a changeset are out of order.
    #[error("the event comes after one that must follow it")]
    Order,
    /// The checkpoint's version is not the next one.
    #[error("the checkpoint has version {found}")]
    Version {
        /// The checkpoint's version.
        found: u64,
    },
    /// The changeset records a loss of other versions than the missing ones.
    #[error("the changeset records a loss that does not start right after the previous version")]
    Gap,
    /// The checkpoint's epoch is lower than an earlier one.
    #[error("the checkpoint's epoch {found} is lower than the earlier epoch {least}")]
    Epoch {
        /// The highest epoch so far.
        least: u64,
        /// The checkpoint's epoch.
        found: u64,
    },
    /// The checkpoint belongs to another log or segment.
    #[error("the checkpoint belongs to another log")]
    Log,
    /// The checkpoint is at another position than it says.
    #[error("the checkpoint was signed at byte {found}")]
    Offset {
        /// The position that it says.
        found: u64,
    },
    /// The bytes before the checkpoint are not the signed ones.
    #[error("the bytes before this checkpoint are not the ones that were signed")]
    Hash,
    /// The key is not trusted.
    #[error("the checkpoint is signed by key {}, which is not trusted", .0.short())]
    Untrusted(Digest),
    /// The key was trusted and has been revoked.
    #[error("the checkpoint is signed by key {}, which was revoked", .0.short())]
    Revoked(Digest),
    /// The signer changed without a rotation, or back.
    #[error("the checkpoint is signed by key {}, which did not take over from the one before", .0.short())]
    Signer(Digest),
    /// The signature is invalid.
    #[error("the signature is invalid")]
    Signature,
}

impl Classify for Damage {
    fn kind(&self) -> selvedge_model::Kind {
        selvedge_model::Kind::Integrity
    }

    fn code(&self) -> &'static str {
        match self.flaw {
            Flaw::Untrusted(_) => "untrusted_key",
            Flaw::Revoked(_) => "log_revoked_key",
            Flaw::Format { .. } => "newer_format",
            _ => "log_damaged",
        }
    }
}

/// One changeset of the log, its checkpoint last.
#[derive(Clone, Debug)]
pub struct ScannedChangeset {
    /// Its lines.
    pub lines: Vec<Line>,
    /// The end of the log after it.
    pub head: Head,
}

impl ScannedChangeset {
    /// The checkpoint that closes it.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match self.lines.last().map(|line| &line.event) {
            Some(Event::Checkpoint(checkpoint)) => Some(checkpoint),
            _ => None,
        }
    }
}

/// Verifies one line after the other.
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
    /// The lines of the open changeset, unless an earlier line was not understood.
    open: Vec<Line>,
    /// The number of lines of the open changeset.
    count: u64,
    last_place: LineOrder,
    rotations: Vec<(Digest, Digest)>,
    losses: Vec<(Option<u64>, Option<u64>)>,
    /// The first line whose payload was not understood.
    unread: Option<Damage>,
    /// The versions and signers of the checkpoints from there on.
    unread_signers: Vec<(u64, Digest)>,
    last_checkpoint: Option<(Vec<u8>, Damage)>,
    watched: Option<u64>,
    passed: Option<Head>,
}

impl<'a> Scanner<'a> {
    /// A scanner for the log of `thread`, from its first byte.
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
            count: 0,
            last_place: LineOrder::Lead,
            rotations: Vec::new(),
            losses: Vec::new(),
            unread: None,
            unread_signers: Vec::new(),
            last_checkpoint: None,
            watched: None,
            passed: None,
        }
    }

    /// A scanner that continues after `head`, whose bytes have the hash `hash`: the caller guarantees everything before it. If the signer
    /// changes after `head`, the log must be scanned from its start: the earlier signers are not known here.
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

    /// The same scanner, which also remembers the head at `version`.
    #[must_use]
    pub fn watching(mut self, version: Option<u64>) -> Self {
        self.watched = version;
        self
    }

    /// The end of the log after the last valid checkpoint.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Verifies one line, given as its bytes with their `\n`, its decoded form and the hash of everything up to its end. Returns a changeset
    /// if the line closes one. After a line whose payload was not understood, changesets are verified but no longer returned.
    fn line(&mut self, bytes: &[u8], decoded: Decoded, hash: &RunningHash) -> Result<Option<ScannedChangeset>, Damage> {
        let facts = LineFacts::of(&decoded).map_err(|flaw| self.damage(flaw))?;
        self.check_place(&facts)?;
        let closed = match &facts.kind {
            Kind::Checkpoint(claims) => Some(self.check_checkpoint(claims, &bytes[..bytes.len() - 1])?),
            Kind::Rotated { from, to } => {
                self.rotations.push((*from, *to));
                None
            }
            Kind::Loss { from, to } => {
                self.losses.push((*from, *to));
                None
            }
            Kind::Birth { .. } | Kind::Other => None,
        };
        match decoded {
            Decoded::Line(line) if self.unread.is_none() => self.open.push(line),
            Decoded::Line(_) => {}
            Decoded::Outline(outline) if self.unread.is_none() => {
                self.unread = Some(self.damage(Flaw::Unreadable(format!("its payload: {}", outline.why))));
                self.open.clear();
            }
            Decoded::Outline(_) => {}
        }
        self.hash.clone_from(hash);
        self.byte += bytes.len() as u64;
        self.count += 1;
        self.last_place = facts.place;
        let Some(mut head) = closed else { return Ok(None) };
        head.bytes = self.byte;
        head.hash = self.hash.digest();
        if self.watched == Some(head.version) {
            self.passed = Some(head.clone());
        }
        self.head = Some(head.clone());
        self.count = 0;
        self.last_place = LineOrder::Lead;
        self.rotations.clear();
        self.losses.clear();
        if self.unread.is_some() {
            self.unread_signers.push((head.version, head.signer));
            return Ok(None);
        }
        // Successive changesets often have the same number of lines.
        let next = Vec::with_capacity(self.open.len());
        Ok(Some(ScannedChangeset { lines: std::mem::replace(&mut self.open, next), head }))
    }

    /// Verifies the last signature, if only that one is to be verified, and returns the end of the log.
    pub fn finish(mut self) -> Result<Option<Tail>, Damage> {
        self.check_last_signature()?;
        Ok(self.head.map(|head| Tail::behind(head, self.hash)))
    }

    /// Verifies the last signature, if only that one is to be verified.
    pub fn check_last_signature(&mut self) -> Result<(), Damage> {
        match (self.last_checkpoint.take(), &self.head) {
            (Some((line, damage)), Some(head)) => {
                let key = self.trust.key(&head.signer);
                let is_valid = key.is_some_and(|key| checkpoint::verify(&line, key).is_ok());
                if is_valid { Ok(()) } else { Err(damage) }
            }
            _ => Ok(()),
        }
    }

    /// The version of the checkpoint at the end of a line, if it belongs to this log, is validly signed by a trusted key and comes after the
    /// verified ones. Its position is not checked: this only distinguishes committed data from unsigned bytes.
    fn signed_version(&self, text: &[u8]) -> Option<u64> {
        if self.signatures == Signatures::Unchecked || checkpoint::split(text).is_none() {
            return None;
        }
        let begin = memchr::memmem::rfind(text, b"{\"seq\":").unwrap_or_default();
        [0, begin].into_iter().find_map(|begin| {
            let line = crate::line::decode_as_far(&text[begin..]).ok()?;
            let line = LineFacts::of(&line).ok()?;
            let Kind::Checkpoint(claims) = line.kind else { return None };
            let is_ours =
                line.thread_id == *self.thread && self.log_id.as_ref().is_none_or(|ours| *ours == claims.log_id);
            let is_later = self.head.as_ref().is_none_or(|head| claims.version > head.version);
            let is_trusted = self.trust.status(&claims.signer) == Some(Status::Trusted);
            let key = self.trust.key(&claims.signer).filter(|_| is_ours && is_later && is_trusted)?;
            checkpoint::verify(&text[begin..], key).is_ok().then_some(claims.version)
        })
    }

    fn version(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.version + 1)
    }

    /// The version that the checkpoint of the open changeset must have: the next one, unless the changeset records
    /// that exactly the versions in between are lost.
    fn version_due(&self) -> Result<u64, Damage> {
        let next = self.version();
        match self.losses.as_slice() {
            [] => Ok(next),
            [(Some(from), Some(to))] if *from == next && to >= from && *to < NUMBER_MAX => Ok(to + 1),
            _ => Err(self.damage(Flaw::Gap)),
        }
    }

    fn seq(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.lines) + self.count
    }

    fn damage(&self, flaw: Flaw) -> Damage {
        let seq = self.seq();
        Damage {
            line: seq + 1,
            lines_before: u32::try_from(self.count).unwrap_or(u32::MAX),
            byte: self.byte,
            version: self.version(),
            flaw,
            signed_ahead: None,
        }
    }

    fn check_place(&mut self, line: &LineFacts) -> Result<(), Damage> {
        let expected = self.seq();
        if line.seq != expected {
            return Err(self.damage(Flaw::Sequence { expected, found: line.seq }));
        }
        if line.thread_id != *self.thread {
            return Err(self.damage(Flaw::Thread(line.thread_id.clone())));
        }
        match &line.kind {
            Kind::Birth { format, segment, log_id } if expected == 0 => {
                if *format != u64::from(FORMAT) {
                    let found = u32::try_from(*format).unwrap_or(u32::MAX);
                    return Err(self.damage(Flaw::Format { found }));
                }
                if *segment != 0 {
                    return Err(self.damage(Flaw::Log));
                }
                self.log_id = Some(*log_id);
            }
            Kind::Birth { .. } => return Err(self.damage(Flaw::Birth)),
            _ if expected == 0 => return Err(self.damage(Flaw::Birth)),
            _ => {}
        }
        if line.place < self.last_place { Err(self.damage(Flaw::Order)) } else { Ok(()) }
    }

    fn check_checkpoint(&mut self, claims: &CheckpointClaims, text: &[u8]) -> Result<Head, Damage> {
        let version = self.version_due()?;
        if claims.version != version {
            return Err(self.damage(Flaw::Version { found: claims.version }));
        }
        if self.log_id.as_ref() != Some(&claims.log_id) || claims.segment != 0 {
            return Err(self.damage(Flaw::Log));
        }
        if claims.byte_offset != self.byte {
            return Err(self.damage(Flaw::Offset { found: claims.byte_offset }));
        }
        if claims.hash != self.hash.digest() {
            return Err(self.damage(Flaw::Hash));
        }
        let least = self.head.as_ref().map_or(0, |head| head.epoch);
        if claims.epoch < least {
            return Err(self.damage(Flaw::Epoch { least, found: claims.epoch }));
        }
        self.check_signer(claims.signer)?;
        match self.signatures {
            Signatures::Every => {
                let key = self.trust.key(&claims.signer).ok_or_else(|| self.damage(Flaw::Untrusted(claims.signer)))?;
                checkpoint::verify(text, key).map_err(|_| self.damage(Flaw::Signature))?;
            }
            Signatures::Unchecked => {}
            Signatures::Last => {
                let damage = self.damage(Flaw::Signature);
                let mut line = self.last_checkpoint.take().map_or_else(Vec::new, |(line, _)| line);
                line.clear();
                line.extend_from_slice(text);
                self.last_checkpoint = Some((line, damage));
            }
        }
        Ok(Head {
            log_id: claims.log_id,
            segment: 0,
            version,
            lines: self.seq() + 1,
            bytes: self.byte,
            hash: claims.hash,
            epoch: claims.epoch,
            signer: claims.signer,
        })
    }

    fn check_signer(&mut self, signer: Digest) -> Result<(), Damage> {
        match self.trust.status(&signer) {
            _ if self.signatures == Signatures::Unchecked => return Ok(()),
            Some(Status::Trusted) => {}
            Some(Status::Revoked) => return Err(self.damage(Flaw::Revoked(signer))),
            None => return Err(self.damage(Flaw::Untrusted(signer))),
        }
        let Some(before) = self.head.as_ref().map(|head| head.signer).filter(|before| *before != signer) else {
            return Ok(());
        };
        let rotated = self.rotations.contains(&(before, signer));
        if !rotated || self.former_signers.contains(&signer) {
            return Err(self.damage(Flaw::Signer(signer)));
        }
        self.former_signers.push(before);
        Ok(())
    }
}
