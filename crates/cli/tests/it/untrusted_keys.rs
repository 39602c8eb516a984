//! Untrusted and revoked keys: what they signed is reported as untrusted, and never as damage.

use std::fs;

use selvedge_log::document::{DocumentKind, sign_json};
use selvedge_log::keys::KeyFolder;
use selvedge_model::Clock;
use selvedge_store_local::system::SystemClock;
use serde_json::Value;

use crate::support::{HELLO, Ran, Sandbox};

fn current(sandbox: &Sandbox) -> String {
    sandbox.run(&["keys", "list", "--json"]).json()["current"].as_str().unwrap().to_owned()
}

fn append(sandbox: &Sandbox, thread: &str) -> Ran {
    sandbox.run_with(&["append", thread, "--expect", "any", "--json"], HELLO.as_bytes())
}

fn rotate(sandbox: &Sandbox) -> String {
    sandbox.run(&["keys", "rotate", "--json"]).json();
    current(sandbox)
}

/// The findings of `selvedge doctor` that want something done, and its exit code.
fn doctor(sandbox: &Sandbox, flags: &[&str]) -> (Option<i32>, Vec<Value>) {
    let ran = sandbox.run(&[&["doctor", "--json"], flags].concat());
    let said: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let wanted = |finding: &&Value| finding["severity"] != "note";
    (ran.code, said["findings"].as_array().unwrap().iter().filter(wanted).cloned().collect())
}

/// A thread whose middle key is revoked: `verify` refused it, and appending to it went on.
#[test]
fn nothing_is_appended_to_a_log_that_a_revoked_key_signed_in_its_middle() {
    let (sandbox, thread) = Sandbox::with_thread();
    let middle = rotate(&sandbox);
    append(&sandbox, &thread).json();
    rotate(&sandbox);
    append(&sandbox, &thread).json();
    let other = sandbox.new_thread("scribe");
    assert_eq!(sandbox.run(&["keys", "revoke", &middle[..12], "--yes"]).code, Some(0));

    sandbox.run(&["verify", &thread, "--json"]).error_beside_data(6, "log_revoked_key");
    let error = append(&sandbox, &thread).error(6, "log_revoked_key");
    let way_back = format!("selvedge keys trust --again {}", &middle[..16]);
    assert!(error["hint"].as_str().unwrap().contains(&way_back), "{error}");
    sandbox.run(&["thread", "rename", &thread, "x", "--json"]).error(6, "log_revoked_key");
    sandbox.run(&["repair", &thread, "--json"]).error(6, "log_revoked_key");
    for flags in [&[][..], &["--deep"]] {
        let (code, found) = doctor(&sandbox, flags);
        let [only] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(
            (code, &only["code"], &only["subject"]),
            (Some(1), &"log_revoked_key".into(), &thread.as_str().into())
        );
        assert!(only["help"].as_str().unwrap().contains(&way_back), "{only}");
    }
    // What the key never signed is not touched by that, and the way back is one.
    append(&sandbox, &other).json();
    assert_eq!(sandbox.run(&["keys", "trust", "--again", &middle[..12]]).code, Some(0));
    append(&sandbox, &thread).json();
    assert_eq!(sandbox.run(&["doctor"]).code, Some(0));
}

/// The same if the key's file is gone from the trusted ones.
#[test]
fn nothing_is_appended_to_a_log_of_a_revoked_key() {
    let (sandbox, thread) = Sandbox::with_thread();
    let first = current(&sandbox);
    rotate(&sandbox);
    append(&sandbox, &thread).json();
    fs::remove_file(sandbox.home().join(format!("keys/trusted/{first}.json"))).unwrap();
    let error = append(&sandbox, &thread).error(6, "untrusted_key");
    assert!(error["hint"].as_str().unwrap().contains("selvedge keys trust FILE"), "{error}");
    let (code, found) = doctor(&sandbox, &[]);
    assert_eq!((code, found.len(), &found[0]["code"]), (Some(1), 1, &"untrusted_key".into()), "{found:?}");
}

/// Signs a file of the store with an unknown key.
fn sign_as_stranger(sandbox: &Sandbox, path: &std::path::Path, kind: &'static str, thread: &str) {
    let stranger = Sandbox::new();
    let signer = KeyFolder::load(&stranger.home().join("keys/signing")).unwrap();
    let value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let text = sign_json(DocumentKind::known(kind).unwrap(), thread, value, &signer, SystemClock.now()).unwrap();
    fs::write(path, text).unwrap();
    assert!(sandbox.project().exists());
}

/// It was called damage that `repair` mends, and every append was refused.
#[test]
fn a_manifest_of_an_untrusted_key_is_written_again() {
    let (sandbox, thread) = Sandbox::with_thread();
    let path = sandbox.threads().join(&thread).join("thread.json");
    for mend in ["append", "repair"] {
        sign_as_stranger(&sandbox, &path, "thread", &thread);
        assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0), "the log holds by itself");
        let (code, found) = doctor(&sandbox, &[]);
        assert_eq!((code, found.len(), &found[0]["code"]), (Some(1), 1, &"manifest_untrusted".into()), "{found:?}");
        assert!(found[0]["what"].as_str().unwrap().contains("which is not trusted"), "{found:?}");
        match mend {
            "append" => append(&sandbox, &thread).json(),
            _ => sandbox.run(&["repair", &thread, "--json"]).json(),
        };
        assert_eq!(doctor(&sandbox, &[]), (Some(0), vec![]), "{mend}");
    }
}

/// Its file was said to be missing in the database, with the advice to rebuild that, which left it out again.
#[test]
fn a_tombstone_of_an_untrusted_key_is_reported_as_such() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.run(&["thread", "delete", &thread, "--yes"]);
    let path = sandbox.threads().join("tombstones").join(format!("{thread}.json"));
    sign_as_stranger(&sandbox, &path, "tombstone", &thread);
    for rebuild in [false, true] {
        if rebuild {
            fs::remove_file(sandbox.threads().join("registry.db")).unwrap();
            assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
        }
        let (code, found) = doctor(&sandbox, &[]);
        assert_eq!((code, found.len(), &found[0]["code"]), (Some(1), 1, &"untrusted_key".into()), "{found:?}");
        assert!(found[0]["help"].as_str().unwrap().contains("selvedge keys trust FILE"), "{found:?}");
    }
}

#[test]
fn a_backup_of_an_untrusted_key_names_the_command_that_trusts_it() {
    let (sandbox, _) = Sandbox::with_thread();
    let backup = sandbox.root().join("copy");
    assert_eq!(sandbox.run(&["backup", backup.to_str().unwrap()]).code, Some(0));
    let elsewhere = Sandbox::empty();
    assert_eq!(elsewhere.run(&["-C", "..", "init"]).code, Some(0));
    let error = elsewhere.run(&["restore", backup.to_str().unwrap(), "--json"]).error(6, "untrusted_key");
    assert!(error["message"].as_str().unwrap().contains("which is not trusted"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("selvedge keys trust FILE"), "{error}");
}
