//! A whole log, from an attacker who can't sign.
//!
//! Only one log was ever signed by the trusted key, so whatever is accepted is a prefix of it. The size of the input buffers makes no
//! difference, and a scan that verifies only the last signature accepts nothing more.

use std::io::{BufReader, Cursor};

use selvedge_log::hash::sha256;
use selvedge_log::lines::ReverseLines;
use selvedge_log::recovery::{Evidence, Mode, judge};
use selvedge_log::scan::{Examined, Scanner, Signatures, examine};

use crate::golden::{self, THREAD, TRUST};

/// Scans a log.
pub fn run(bytes: &[u8]) {
    let examined = consistent(bytes);
    if let Some(head) = &examined.verified {
        let accepted = &bytes[..head.bytes as usize];
        assert!(golden::TRANSCRIPT.starts_with(accepted), "unsigned bytes were accepted");
    }
    let last = scan(bytes, Signatures::Last);
    if let Some(head) = &last.verified {
        let accepted = &bytes[..head.bytes as usize];
        assert!(golden::TRANSCRIPT.starts_with(accepted), "unsigned bytes were accepted by the last signature");
    }
    backwards(bytes);
}

/// Scans a log in several ways that must agree, and returns the result.
pub(crate) fn consistent(bytes: &[u8]) -> Examined {
    let examined = scan(bytes, Signatures::Every);
    assert_eq!(examined.bytes, bytes.len() as u64);
    let scanner = Scanner::new(&THREAD, &TRUST, Signatures::Every);
    let in_small_reads = examine(BufReader::with_capacity(7, bytes), scanner, |_| {}).expect("memory can be read");
    assert_eq!(examined.head(), in_small_reads.head(), "the size of the input buffers makes a difference");
    assert_eq!(examined.damage.is_some(), in_small_reads.damage.is_some());
    if let Some(head) = examined.head() {
        let accepted = &bytes[..head.bytes as usize];
        assert_eq!(sha256(accepted), head.hash, "the head has another hash than its bytes");
        let again = scan(accepted, Signatures::Every);
        assert!(again.damage.is_none(), "accepted bytes are refused: {:?}", again.damage);
        assert_eq!(again.head(), Some(head));
    }
    for mode in [Mode::Strict, Mode::Lenient] {
        let head = examined.head();
        judge(&examined, Evidence { head, ..Evidence::default() }, mode);
        judge(&examined, Evidence::default(), mode);
    }
    examined
}

pub(crate) fn scan(bytes: &[u8], signatures: Signatures) -> Examined {
    examine(bytes, Scanner::new(&THREAD, &TRUST, signatures), |_| {}).expect("memory can be read")
}

/// Read backwards, there are the same lines.
fn backwards(bytes: &[u8]) {
    let mut reader = ReverseLines::new(Cursor::new(bytes), bytes.len() as u64).expect("memory can be read");
    let mut found = Vec::new();
    while let Ok(Some((at, line))) = reader.next_back() {
        assert_eq!(&bytes[at as usize..at as usize + line.len()], line, "a line is not at its position");
        found.push(line.len());
    }
    assert!(found.iter().sum::<usize>() <= bytes.len());
}

/// The worked example, whole and cut.
pub fn seeds() -> Vec<Vec<u8>> {
    let whole = golden::TRANSCRIPT;
    let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.map(|end| whole[..end].to_vec()).collect()
}
