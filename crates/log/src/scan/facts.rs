//! What a verifier needs of a line: its position, and a few members of four kinds of events.
//!
//! Everything else in a payload is covered by the signature and not interpreted. A line whose payload this program does not understand,
//! because a newer version wrote it, is as signed as any other: it can be verified, but not folded.

use selvedge_model::event::LineOrder;
use selvedge_model::{Digest, Event, LogId, ThreadId};
use serde_json::{Map, Value};

use super::Flaw;
use crate::line::{Decoded, Line, Outline};

/// The greatest number that the verified members of a log may have.
pub(super) const NUMBER_MAX: u64 = crate::writer::VERSION_MAX;

/// A line as a verifier sees it.
pub(super) struct LineFacts {
    pub(super) seq: u64,
    pub(super) thread_id: ThreadId,
    pub(super) place: LineOrder,
    pub(super) kind: Kind,
}

/// The kind of an event, as far as it matters to a verifier.
pub(super) enum Kind {
    Birth { format: u64, segment: u64, log_id: LogId },
    Rotated { from: Digest, to: Digest },
    Loss { from: Option<u64>, to: Option<u64> },
    Checkpoint(CheckpointClaims),
    Other,
}

/// The verified members of a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct CheckpointClaims {
    pub(super) version: u64,
    pub(super) epoch: u64,
    pub(super) log_id: LogId,
    pub(super) segment: u64,
    pub(super) byte_offset: u64,
    pub(super) hash: Digest,
    pub(super) signer: Digest,
}

impl LineFacts {
    pub(super) fn of(decoded: &Decoded) -> Result<Self, Flaw> {
        match decoded {
            Decoded::Line(line) => of_line(line),
            Decoded::Outline(outline) => of_outline(outline),
        }
    }
}

fn of_line(line: &Line) -> Result<LineFacts, Flaw> {
    let kind = match &line.event {
        Event::ThreadCreated(created) => Kind::Birth {
            format: u64::from(created.format),
            segment: u64::from(created.segment),
            log_id: created.log_id,
        },
        Event::KeyRotated(rotated) => Kind::Rotated { from: rotated.from, to: rotated.to },
        Event::Recovery(found) if found.is_loss() => Kind::Loss { from: found.from_version, to: found.to_version },
        Event::Checkpoint(claims) => Kind::Checkpoint(CheckpointClaims {
            version: within(claims.version)?,
            epoch: within(claims.epoch)?,
            log_id: claims.log_id,
            segment: u64::from(claims.segment),
            byte_offset: within(claims.byte_offset)?,
            hash: claims.hash,
            signer: claims.signer,
        }),
        _ => Kind::Other,
    };
    Ok(LineFacts { seq: line.seq, thread_id: line.thread_id.clone(), place: line.event.place(), kind })
}

fn of_outline(outline: &Outline) -> Result<LineFacts, Flaw> {
    let payload = &outline.payload;
    let place = outline.place;
    let kind = match outline.event_type.as_str() {
        "thread_created" => Kind::Birth {
            format: number(payload, "format")?,
            segment: number(payload, "segment")?,
            log_id: parsed(payload, "log_id")?,
        },
        "key_rotated" => match (parsed(payload, "from"), parsed(payload, "to")) {
            (Ok(from), Ok(to)) => Kind::Rotated { from, to },
            _ => Kind::Other,
        },
        "recovery" if payload.get("found").and_then(Value::as_str) == Some("loss") => {
            Kind::Loss { from: number(payload, "from_version").ok(), to: number(payload, "to_version").ok() }
        }
        "checkpoint" => Kind::Checkpoint(CheckpointClaims {
            version: number(payload, "version")?,
            epoch: number(payload, "epoch")?,
            log_id: parsed(payload, "log_id")?,
            segment: number(payload, "segment")?,
            byte_offset: number(payload, "byte_offset")?,
            hash: parsed(payload, "hash")?,
            signer: parsed(payload, "signer")?,
        }),
        _ => Kind::Other,
    };
    Ok(LineFacts { seq: outline.seq, thread_id: outline.thread_id.clone(), place, kind })
}

fn within(number: u64) -> Result<u64, Flaw> {
    if number > NUMBER_MAX {
        return Err(Flaw::Unreadable(format!("the number {number} is greater than 2^63-1")));
    }
    Ok(number)
}

fn number(payload: &Map<String, Value>, name: &str) -> Result<u64, Flaw> {
    let found = payload.get(name).and_then(Value::as_u64);
    within(found.ok_or_else(|| Flaw::Unreadable(format!("its `{name}` is not a whole number")))?)
}

fn parsed<T: serde::de::DeserializeOwned>(payload: &Map<String, Value>, name: &str) -> Result<T, Flaw> {
    let found = payload.get(name).cloned().unwrap_or_default();
    serde_json::from_value(found).map_err(|error| Flaw::Unreadable(format!("its `{name}`: {error}")))
}
