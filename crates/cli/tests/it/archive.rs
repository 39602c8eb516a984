//! `selvedge export` and `selvedge import` in the native form: from one user to another, who has only the public key.

use std::fs;
use std::process::Command;

use selvedge_log::Trust;
use selvedge_log::keys::KeyFolder;
use selvedge_model::Clock;
use selvedge_store_local::system::SystemClock;

use crate::support::{HELLO, Sandbox};

/// A thread of one user as a file, and another user.
fn exported() -> (Sandbox, String, Sandbox, String) {
    let (ours, thread) = Sandbox::with_thread();
    ours.append(&thread, "0", HELLO);
    let theirs = Sandbox::new();
    let file = theirs.root().join("thread.tar").display().to_string();
    let record = ours.run(&["export", &thread, "-o", &file, "--json"]).json();
    assert_eq!((&record["thread_id"], &record["version"]), (&thread.as_str().into(), &1.into()));
    assert_eq!(record["bytes"], fs::metadata(&file).unwrap().len());
    (ours, thread, theirs, file)
}

fn trust(theirs: &Sandbox, ours: &Sandbox) {
    let public = KeyFolder::load(&ours.home().join("keys/signing")).unwrap().public();
    Trust::add(&theirs.home().join("keys/trusted"), &public, "the other one", SystemClock.now()).unwrap();
}

#[test]
fn a_thread_goes_to_somebody_who_has_only_the_public_key() {
    let (ours, thread, theirs, file) = exported();
    let refused = theirs.run(&["import", &file, "--dry-run", "--json"]);
    let error = refused.error_beside_data(6, "untrusted_key");
    let key = KeyFolder::load(&ours.home().join("keys/signing")).unwrap().fingerprint().to_string();
    assert_eq!(error["key"], key.as_str());
    assert!(error["hint"].as_str().unwrap().contains("selvedge keys trust"), "{error}");
    assert_eq!(refused.records()[0]["outcome"], "refused");
    trust(&theirs, &ours);
    let dry = theirs.run(&["import", &file, "--dry-run", "--json"]).json();
    assert_eq!((&dry["outcome"], &dry["writable"]), (&"would_import".into(), &false.into()));
    assert!(!theirs.transcript(&thread).exists());
    let imported = theirs.run(&["import", &file, "--json"]).json();
    assert_eq!((&imported["outcome"], &imported["version"]), (&"imported".into(), &1.into()));
    assert_eq!(fs::read(theirs.transcript(&thread)).unwrap(), fs::read(ours.transcript(&thread)).unwrap());
    assert_eq!(theirs.run(&["verify", &thread]).code, Some(0));
    assert_eq!(theirs.run(&["import", &file, "--json"]).json()["outcome"], "unchanged");
    let refused = theirs.run_with(&["append", &thread, "--expect", "1", "--json"], HELLO.as_bytes());
    refused.error(4, "other_signer");
    // Exported again by them it is the same file.
    let again = theirs.command(&["export", &thread]).output().unwrap();
    assert_eq!(again.stdout, fs::read(&file).unwrap());
}

#[test]
fn nothing_is_overwritten_and_what_is_no_archive_is_refused() {
    let (ours, thread, theirs, file) = exported();
    ours.run(&["export", &thread, "-o", &file, "--json"]).error(5, "file_exists");
    let noise = theirs.root().join("noise");
    fs::write(&noise, "noise").unwrap();
    let noise = noise.display().to_string();
    theirs.run(&["import", &noise, "--json"]).error(2, "usage");
    theirs.run(&["import", &noise, "--format", "selvedge", "--json"]).error_beside_data(6, "integrity");
    theirs.run(&["import", "nowhere", "--json"]).error(3, "file_not_found");
    theirs.run(&["export", "nobody", "--json"]).error(3, "thread_not_found");
}

#[test]
fn the_verifier_in_python_checks_what_tar_unpacks() {
    let (ours, thread, _theirs, file) = exported();
    let folder = ours.root().join("unpacked");
    fs::create_dir(&folder).unwrap();
    let unpacked = Command::new("tar").args(["xf", &file, "-C"]).arg(&folder).status();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python/verify.py");
    let key = KeyFolder::load(&ours.home().join("keys/signing")).unwrap().public().to_text();
    let transcript = folder.join(&thread).join("transcript.jsonl");
    let checked =
        Command::new("python3").arg(script).arg(&transcript).args(["--thread", &thread, "--key", &key]).output();
    let (Ok(unpacked), Ok(checked)) = (unpacked, checked) else {
        // Nothing to show where there is no tar or no Python.
        return;
    };
    assert!(unpacked.success());
    let answer = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && answer.contains("\"unchanged\""), "{answer}");
}
