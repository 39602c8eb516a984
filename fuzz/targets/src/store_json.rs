//! The `store.json` of a store, which any program may have written: a checkout, a sync service, an attacker.
//!
//! A store is opened only if it names our kind, the current format, and an id; and whatever the id is, the logs stay valid.

use std::fs;
use std::sync::LazyLock;

use selvedge_log::recovery::Finding;
use selvedge_store_local::{Access, LocalStore};
use serde_json::Value;
use tempfile::TempDir;

use crate::golden::THREAD;
use crate::restore::{options, temporary_folder, with_thread};

struct Sample {
    folder: TempDir,
    /// The valid content.
    good: Vec<u8>,
}

static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let folder = temporary_folder();
    with_thread(&folder).close().expect("a store can be closed");
    let good = fs::read(folder.path().join(".ai/agent/threads/store.json")).expect("there is one");
    Sample { folder, good }
});

/// Opens a store with this `store.json`.
pub fn run(bytes: &[u8]) {
    let sample = &*SAMPLE;
    fs::write(sample.folder.path().join(".ai/agent/threads/store.json"), bytes).expect("it can be written");
    let Ok(store) = LocalStore::open(options(sample.folder.path(), Access::ReadOnly, 5)) else { return };
    let [said, good]: [Value; 2] = [bytes, &sample.good]
        .map(|text| serde_json::from_slice(text).expect("the file of an open store can be parsed"));
    assert_eq!((&said["kind"], &said["format"]), (&good["kind"], &good["format"]));
    assert!(said["id"].as_str().is_some_and(|id| !id.is_empty()), "a store without an id was opened");
    let verdict = store.verify(&THREAD, &mut |_| {});
    // Rows that were sealed for another store are invalid; the log is valid all the same.
    let proven = verdict.map(|verdict| verdict.judgement);
    if said["id"] == good["id"] {
        assert_eq!(proven.as_ref().map(|judged| &judged.finding).ok(), Some(&Finding::Sound));
    }
    assert_eq!(proven.ok().and_then(|judged| judged.unchanged_up_to), Some(1));
}

/// A valid one, and those of another kind, format and id.
pub fn seeds() -> Vec<Vec<u8>> {
    let good = String::from_utf8_lossy(&SAMPLE.good).into_owned();
    let other = |from: &str, to: &str| good.replacen(from, to, 1).into_bytes();
    vec![
        good.clone().into_bytes(),
        other("selvedge-local", "selvedge-other"),
        other("\"id\":\"", "\"id\":\"0"),
        b"{}".to_vec(),
    ]
}
