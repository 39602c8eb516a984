//! The golden vector of the older Rye form: a document that another program signed, byte for byte.

use std::fs;
use std::path::Path;

use selvedge_legacy::rye::{self, Coverage};
use selvedge_log::keys::PublicKey;

/// The position of the time in the first line, which the scheme does not cover.
const TIME: std::ops::Range<usize> = 16..36;

fn golden() -> (Vec<u8>, PublicKey) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let key = fs::read_to_string(folder.join("rye-public-key.pem")).unwrap();
    (fs::read(folder.join("rye-document.md")).unwrap(), PublicKey::from_pem(&key).unwrap())
}

#[test]
fn the_golden_vector_passes_and_its_verdict_includes_its_coverage() {
    let (bytes, key) = golden();
    assert_eq!(rye::key_id(&key), "6ea18199041a1ea8");
    let verified = rye::verify(&bytes, [&key]).unwrap();
    assert_eq!((verified.coverage, verified.time.as_str()), (Coverage::Rest, "2026-04-01T05:06:44Z"));
    assert!(verified.hash.to_string().starts_with("16934a55") && verified.hash.to_string().ends_with("3ee5"));
    assert!(verified.coverage.not_covered().iter().any(|what| what.contains("time")));
    assert_eq!(&bytes[TIME], verified.time.as_bytes());
}

#[test]
fn one_changed_byte_fails_anywhere_that_the_scheme_covers() {
    let (bytes, key) = golden();
    for position in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[position] ^= 1;
        let found = rye::verify(&changed, [&key]);
        if TIME.contains(&position) {
            // The time is not protected; the verdict says so.
            assert!(found.is_err() || found.is_ok_and(|found| found.time.as_bytes() == &changed[TIME]));
        } else {
            assert!(found.is_err(), "byte {position}");
        }
    }
    for cut in [0, 1, 100, bytes.len() - 1] {
        assert!(rye::verify(&bytes[..cut], [&key]).is_err(), "cut at {cut}");
    }
    assert!(rye::verify(&[&bytes[..], b"\n"].concat(), [&key]).is_err());
}
