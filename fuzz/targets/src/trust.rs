//! The file of one trusted key.
//!
//! Either no key is trusted because of it, or exactly the one that its name says.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use selvedge_log::Trust;
use tempfile::TempDir;

use crate::golden::{HEIR, SIGNER, at};

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Reads a store of one file.
pub fn run(bytes: &[u8]) {
    let path = folder();
    let fingerprint = SIGNER.fingerprint();
    let file = path.join(format!("{fingerprint}.json"));
    fs::write(&file, bytes).expect("the folder can be written");
    let Ok(trust) = Trust::load(&path) else { return };
    let found: Vec<_> = trust.iter().collect();
    assert_eq!(found.len(), 1);
    assert_eq!(*found[0].0, fingerprint, "another key is trusted than its name says");
    assert_eq!(found[0].1.public, SIGNER.public());
    assert!(trust.key(&HEIR.fingerprint()).is_none());
}

/// A private folder that lives as long as this OS thread.
fn folder() -> PathBuf {
    FOLDER.with(|folder| {
        let mut folder = folder.borrow_mut();
        let made = folder.get_or_insert_with(|| {
            let made = tempfile::tempdir().expect("there is a temporary folder");
            Trust::add(&made.path().join("trusted"), &SIGNER.public(), "Ada", at()).expect("a key can be added");
            made
        });
        made.path().join("trusted")
    })
}

/// A key that is trusted, and one that was revoked.
pub fn seeds() -> Vec<Vec<u8>> {
    let made = tempfile::tempdir().expect("there is a temporary folder");
    let path = made.path().join("trusted");
    let mut seeds = Vec::new();
    for signer in [&*SIGNER, &*HEIR] {
        let file = path.join(format!("{}.json", signer.fingerprint()));
        Trust::add(&path, &signer.public(), "Ada", at()).expect("a key can be added");
        seeds.push(fs::read(&file).expect("it was written"));
        Trust::revoke(&path, &signer.fingerprint(), at()).expect("it can be revoked");
        seeds.push(fs::read(&file).expect("it was written"));
    }
    seeds
}
