//! Judges a log, as a pure function: the content of the file and outside evidence in, finding and plan out.
//!
//! The examined bytes are the file with its pending redo applied, so that a file after an ordinary crash is judged as it will be once
//! the redo is drained. The scanner must have watched for the head's version. Nothing here writes; the lease holder executes the plan.

use selvedge_model::Digest;
use serde::Serialize;

use crate::head::Head;
use crate::scan::{Damage, Examined, Flaw};

/// How strict the judgement is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A bad signature or an untrusted key is refused.
    #[default]
    Strict,
    /// Such a log may be read with a warning, but never continued.
    Lenient,
}

/// A witness that knows how far a log had come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The witness: `thread.json`, another thread of a batch, a tombstone.
    pub by: String,
    /// The version that it knows of.
    pub version: u64,
    /// The SHA-256 of the log at that version, if it is known.
    pub hash: Option<Digest>,
}

/// What is known of a log apart from its file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// The head in the database.
    pub head: Option<&'a Head>,
    /// The length of the file itself, without the redo.
    pub file_bytes: u64,
    /// The number of bytes of the file that the redo changed or added.
    pub healed_bytes: u64,
    /// Other witnesses.
    pub remembered: &'a [Remembered],
}

/// The state of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It ends where it should.
    Sound,
    /// After its end there are bytes that are not signed.
    Foreign {
        /// How many bytes.
        bytes: u64,
    },
    /// It continues, signed, beyond the end that the database knows.
    DatabaseBehind {
        /// The version in the database.
        database: u64,
        /// The version in the file.
        file: u64,
    },
    /// Data before its end is invalid.
    Damaged(Damage),
    /// It ends too early.
    Truncated {
        /// The version it ends at, if it has any.
        have: Option<u64>,
        /// The version it had reached.
        version: u64,
        /// The witness of that version.
        by: String,
    },
    /// It is as it was signed, but this program does not understand it from this line on.
    Unread(Box<Damage>),
    /// It has no checkpoint at all.
    Unsigned,
    /// It is sound by itself, but a blob that it names is missing or changed, and was not erased.
    Blob {
        /// The blob.
        blob: Digest,
        /// The version that names it.
        version: u64,
        /// What is wrong with it.
        why: String,
    },
    /// It is sound by itself, but the database does not know it, or contradicts it.
    Database {
        /// What is wrong with the database, as the end of a sentence about it.
        why: String,
    },
    /// It is sound by itself, but a signed file beside it contradicts it or is not validly signed.
    Contradicted {
        /// The file: `thread.json`.
        by: String,
        /// The contradiction.
        why: String,
    },
}

/// What may be done with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Plan {
    /// Append to it.
    GoOn,
    /// Move the bytes after the end to quarantine, then append; the next changeset starts with a record of them.
    Quarantine {
        /// The end of the log.
        from: u64,
    },
    /// Read it with a warning; never append.
    ReadOnly,
    /// Neither read it nor append.
    Refuse,
}

/// Finding and plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The state of the log.
    pub finding: Finding,
    /// What may be done with it.
    pub plan: Plan,
    /// The version up to which it is unchanged since it was signed.
    pub unchanged_up_to: Option<u64>,
}

/// Judges a log.
pub fn judge(examined: &Examined, evidence: Evidence<'_>, mode: Mode) -> Judgement {
    let finding = match (find(examined, evidence), &examined.unread) {
        (Finding::Sound | Finding::Foreign { .. } | Finding::DatabaseBehind { .. }, Some(unread)) => {
            Finding::Unread(Box::new(unread.clone()))
        }
        (finding, _) => finding,
    };
    let plan = match &finding {
        Finding::Sound => Plan::GoOn,
        Finding::Foreign { .. } => Plan::Quarantine { from: evidence.head.map_or(0, |head| head.bytes) },
        Finding::Damaged(Damage {
            flaw: Flaw::Untrusted(_) | Flaw::Revoked(_) | Flaw::Signature | Flaw::Signer(_),
            ..
        }) if mode == Mode::Lenient => Plan::ReadOnly,
        _ => Plan::Refuse,
    };
    let limit = evidence.head.map_or(u64::MAX, |head| head.version);
    Judgement { finding, plan, unchanged_up_to: examined.verified.as_ref().map(|head| head.version.min(limit)) }
}

fn find(examined: &Examined, evidence: Evidence<'_>) -> Finding {
    let have = examined.verified.as_ref();
    let most = evidence.remembered.iter().max_by_key(|remembered| remembered.version);
    let Some(head) = evidence.head else {
        return find_without_head(examined, most);
    };
    if let Some(other) = have.filter(|have| have.log_id != head.log_id) {
        return another_log(other);
    }
    if have.is_none() && examined.log_id.as_ref().is_some_and(|log_id| *log_id != head.log_id) {
        // The first line is of another log, and nothing is signed: the log was not truncated but replaced.
        return Finding::Damaged(Damage {
            line: 1,
            lines_before: 0,
            byte: 0,
            version: 0,
            flaw: Flaw::Log,
            signed_ahead: None,
        });
    }
    if let Some(damage) = damage_inside(examined) {
        return damage;
    }
    let reached = have.is_some_and(|have| have.version >= head.version);
    if !reached {
        let cut_short = examined.bytes < head.bytes;
        return match &examined.damage {
            Some(damage) if !(cut_short && damage.flaw == Flaw::Torn) => Finding::Damaged(damage.clone()),
            _ => truncated(have, head.version, "the database"),
        };
    }
    let reaches = |version| have.is_some_and(|have| have.version >= version);
    if let Some(forgotten) = most.filter(|most| most.version > head.version && !reaches(most.version)) {
        return truncated(have, forgotten.version, &forgotten.by);
    }
    // The same version with other bytes: the log was replaced by another one.
    if let Some(other) = examined.passed.as_ref().filter(|passed| passed.hash != head.hash) {
        return another_log(other);
    }
    match have {
        Some(have) if have.version > head.version => {
            Finding::DatabaseBehind { database: head.version, file: have.version }
        }
        _ if examined.bytes > head.bytes => Finding::Foreign { bytes: examined.bytes - head.bytes },
        _ => Finding::Sound,
    }
}

/// Damage that is followed by signed checkpoints of the same log. Those were committed, even beyond the end that the database knows, so
/// what follows the damage is never taken for unsigned bytes.
fn damage_inside(examined: &Examined) -> Option<Finding> {
    let inside = examined.damage.as_ref().filter(|damage| damage.signed_ahead.is_some());
    inside.cloned().map(Finding::Damaged)
}

fn find_without_head(examined: &Examined, most: Option<&Remembered>) -> Finding {
    if let Some(damage) = damage_inside(examined) {
        return damage;
    }
    let Some(have) = examined.verified.as_ref() else {
        return match &examined.damage {
            Some(damage) if damage.flaw != Flaw::Torn => Finding::Damaged(damage.clone()),
            _ => Finding::Unsigned,
        };
    };
    match (most, &examined.damage) {
        (Some(most), _) if most.version > have.version => truncated(Some(have), most.version, &most.by),
        (_, Some(damage)) if damage.flaw != Flaw::Torn => Finding::Damaged(damage.clone()),
        _ if examined.bytes > have.bytes => Finding::Foreign { bytes: examined.bytes - have.bytes },
        _ => Finding::Sound,
    }
}

/// Signed bytes other than those that the head describes.
fn another_log(other: &Head) -> Finding {
    Finding::Damaged(Damage {
        line: other.lines,
        lines_before: u32::try_from(other.lines.saturating_sub(1)).unwrap_or(u32::MAX),
        byte: 0,
        version: other.version,
        flaw: Flaw::Hash,
        signed_ahead: None,
    })
}

fn truncated(have: Option<&Head>, version: u64, by: &str) -> Finding {
    Finding::Truncated { have: have.map(|head| head.version), version, by: by.to_owned() }
}
