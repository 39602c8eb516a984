//! A whole log, from an attacker who has the key: every line that still looks like a checkpoint gets the right position, hash and
//! signature, so that damage reaches the rules after those.
//!
//! There is no log to compare with; what is accepted must be accepted again, and its changesets are folded or refused, without a panic.

use selvedge_log::hash::RunningHash;
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_model::fold::Thread;

use crate::golden::{self, SIGNER, THREAD, TRUST};

const DOMAIN: &str = "selvedge/checkpoint/1";
const CHECKPOINT: &[u8] = b"\"event_type\":\"checkpoint\"";
const SIGNATURE: &[u8] = b",\"sig\":\"";
const OFFSET: &[u8] = b"\"byte_offset\":";
const HASH: &[u8] = b"\"hash\":\"";

/// Seals a log again and scans it.
pub fn run(bytes: &[u8]) {
    let sealed = seal(bytes);
    crate::log::consistent(&sealed);
    let mut thread: Option<Thread> = None;
    let mut refused = false;
    let mut lines = 0;
    let scanner = Scanner::new(&THREAD, &TRUST, Signatures::Every);
    let read = examine(sealed.as_slice(), scanner, |entry| {
        for line in entry.lines {
            assert_eq!(line.seq, lines, "a line was left out");
            lines += 1;
            if refused {
                continue;
            }
            let folded = match &mut thread {
                None => Thread::begin(&THREAD, &line.event, line.timestamp).map(|begun| thread = Some(begun)),
                Some(thread) => thread.apply(&line.event, line.timestamp),
            };
            refused = folded.is_err();
        }
        assert_eq!(entry.head.lines, lines);
        if let Some(thread) = thread.as_ref().filter(|_| !refused) {
            assert_eq!(thread.version, Some(entry.head.version), "the fold is at another version than the log");
        }
    });
    read.expect("memory can be read");
}

/// Gives each checkpoint the right position, hash and signature.
pub fn seal(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut hash = RunningHash::new();
    for whole in bytes.split_inclusive(|byte| *byte == b'\n') {
        let resealed = reseal(whole, out.len(), &hash).unwrap_or_else(|| whole.to_vec());
        hash.update(&resealed);
        out.extend_from_slice(&resealed);
    }
    out
}

/// A checkpoint's line with the right position, hash and signature; none if it is not one.
fn reseal(line: &[u8], at: usize, hash: &RunningHash) -> Option<Vec<u8>> {
    find(line, CHECKPOINT)?;
    let mut signed = line[..find(line, SIGNATURE)?].to_vec();
    let start = find(&signed, OFFSET)? + OFFSET.len();
    let digits = signed[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    signed.splice(start..start + digits, at.to_string().into_bytes());
    let start = find(&signed, HASH)? + HASH.len();
    let end = start + signed[start..].iter().position(|byte| *byte == b'"')?;
    signed.splice(start..end, hash.digest().to_string().into_bytes());
    let signature = SIGNER.sign(DOMAIN, &signed);
    signed.extend_from_slice(SIGNATURE);
    signed.extend_from_slice(signature.as_bytes());
    signed.extend_from_slice(b"\"}}\n");
    Some(signed)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

/// The worked example, and logs with every kind of event, sealed.
pub fn seeds() -> Vec<Vec<u8>> {
    let lines: Vec<&[u8]> = golden::TRANSCRIPT.split_inclusive(|byte| *byte == b'\n').collect();
    let mut seeds = vec![golden::TRANSCRIPT.to_vec(), lines[..2].concat()];
    // Other events as version 1: renumbered, with the checkpoint of the worked example after them.
    let checkpoint = String::from_utf8_lossy(lines[3]).into_owned();
    for event in crate::line::seeds().iter().skip(lines.len()) {
        let event = String::from_utf8_lossy(event).replace("\"seq\":3,", "\"seq\":2,");
        seeds.push([&lines[..2].concat(), event.as_bytes(), b"\n", checkpoint.as_bytes()].concat());
    }
    seeds.iter().map(|seed| seal(seed)).collect()
}
