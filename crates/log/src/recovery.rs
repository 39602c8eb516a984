//! What to make of a log, as a pure function: what was found in the file and what others remember in, verdict and plan out.
//!
//! The examined bytes are the file with its pending redo laid over it, so that a file that an ordinary crash left behind
//! is judged as it will be once drained. The scanner must have watched for the head's version. Nothing here writes; whoever holds the lease carries the plan out.

use selvedge_model::Digest;
use serde::Serialize;

use crate::head::Head;
use crate::scan::{Damage, Examined, Flaw};

/// How much is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A bad signature or an untrusted key is refused.
    #[default]
    Strict,
    /// It may be read, loudly, and never be gone on with.
    Lenient,
}

/// Somebody who remembers how far a log had come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Who: `thread.json`, a batch mate, a tombstone.
    pub by: String,
    /// The version it had come to.
    pub version: u64,
    /// The SHA-256 of the log at that version, if it is known.
    pub hash: Option<Digest>,
}

/// What is known of a log from outside its file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// The head in the database.
    pub head: Option<&'a Head>,
    /// Where the file itself ends, without the redo that was laid over it.
    pub file_bytes: u64,
    /// How many bytes of the file the redo changed or added.
    pub healed_bytes: u64,
    /// Others who remember.
    pub remembered: &'a [Remembered],
}

/// What a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It ends where it should.
    Sound,
    /// There are bytes behind its end that nobody signed.
    Foreign {
        /// How many.
        bytes: u64,
    },
    /// It goes on, signed, behind where the database says it ends.
    DatabaseBehind {
        /// The version in the database.
        database: u64,
        /// The version in the file.
        file: u64,
    },
    /// Something before its end does not hold.
    Damaged(Damage),
    /// It ends before where it should.
    Truncated {
        /// The version it ends at, if any.
        have: Option<u64>,
        /// The version it had come to.
        version: u64,
        /// Who remembers.
        by: String,
    },
    /// It has no checkpoint at all.
    Unsigned,
    /// It holds by itself, but a blob that it names is gone or changed, and nobody erased it.
    Blob {
        /// The blob.
        blob: Digest,
        /// The version that names it.
        version: u64,
        /// What is wrong with it.
        why: String,
    },
    /// It holds by itself, but the database does not know it, or tells something else of it.
    Database {
        /// What of the database is wrong, as the end of a sentence about it.
        why: String,
    },
    /// It holds by itself, but something signed beside it does not agree, or is not rightly signed.
    Contradicted {
        /// What: `thread.json`.
        by: String,
        /// How.
        why: String,
    },
}

/// What may be done with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Plan {
    /// Go on.
    GoOn,
    /// Move the bytes behind the end aside, then go on; the next changeset leads with what was found.
    Quarantine {
        /// Where the log ends.
        from: u64,
    },
    /// Read, loudly; never go on.
    ReadOnly,
    /// Refuse.
    Refuse,
}

/// Verdict and plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What the log is.
    pub finding: Finding,
    /// What may be done with it.
    pub plan: Plan,
    /// The version up to which it is unchanged since it was signed.
    pub unchanged_up_to: Option<u64>,
}

/// Judges a log.
pub fn judge(examined: &Examined, evidence: Evidence<'_>, mode: Mode) -> Judgement {
    let finding = find(examined, evidence);
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
    Judgement { finding, plan, unchanged_up_to: examined.head().map(|head| head.version.min(limit)) }
}

fn find(examined: &Examined, evidence: Evidence<'_>) -> Finding {
    let have = examined.head();
    let most = evidence.remembered.iter().max_by_key(|remembered| remembered.version);
    let Some(head) = evidence.head else {
        return find_without_head(examined, most);
    };
    if let Some(other) = have.filter(|have| have.log_id != head.log_id) {
        return another_log(other);
    }
    if have.is_none() && examined.log_id.as_ref().is_some_and(|log_id| *log_id != head.log_id) {
        // The first line of another log, and nothing of it is signed: this one was not cut off, it was put away.
        return Finding::Damaged(Damage { line: 1, first_line: 1, byte: 0, version: 0, flaw: Flaw::Log });
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
    // The same version with other bytes: a whole log was put in this one's place.
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

fn find_without_head(examined: &Examined, most: Option<&Remembered>) -> Finding {
    let Some(have) = examined.head() else {
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

/// Bytes that are signed and are not the ones the head tells of.
fn another_log(other: &Head) -> Finding {
    Finding::Damaged(Damage { line: other.lines, first_line: 1, byte: 0, version: other.version, flaw: Flaw::Hash })
}

fn truncated(have: Option<&Head>, version: u64, by: &str) -> Finding {
    Finding::Truncated { have: have.map(|head| head.version), version, by: by.to_owned() }
}
