//! `selvedge upgrade`, on a store that an earlier version wrote.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{HELLO, Sandbox, copy};

/// A sandbox with the kept store of format 5 and its key.
fn kept() -> Sandbox {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store-local/tests/fixtures/store-5");
    let sandbox = Sandbox::empty();
    copy(&fixture.join("threads"), &sandbox.threads());
    // Version control keeps no empty folder.
    _ = fs::remove_dir(sandbox.threads().join("owners"));
    let signing = sandbox.home().join("keys/signing");
    fs::create_dir_all(&signing).unwrap();
    for name in ["private_key.pem", "public_key.pem"] {
        fs::copy(fixture.join(name), signing.join(name)).unwrap();
        fs::set_permissions(signing.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    for folder in [sandbox.home(), sandbox.home().join("keys"), signing] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    }
    // Trusts the key; the store is there already.
    assert_eq!(sandbox.run(&["init"]).code, Some(0));
    sandbox
}

#[test]
fn an_older_store_is_read_refused_to_writers_and_moved() {
    let sandbox = kept();
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
    assert_eq!(sandbox.run(&["thread", "list", "--json"]).json()["threads"].as_array().unwrap().len(), 2);
    assert_eq!(sandbox.run(&["log", "ann"]).code, Some(0));
    assert_eq!(sandbox.run(&["backup", "../copy"]).code, Some(0), "a copy can be made before it is moved");
    let args = ["append", "bob", "--expect", "any", "--json"];
    let refused = sandbox.run_with(&args, HELLO.as_bytes()).error(4, "store_outdated");
    assert!(refused["hint"].as_str().unwrap().contains("selvedge upgrade"), "{refused}");
    sandbox.run(&["thread", "delete", "bob", "--yes", "--json"]).error(4, "store_outdated");
    assert_eq!(sandbox.run(&["doctor"]).code, Some(1));
    let moved = sandbox.run(&["upgrade", "--json"]).json();
    assert_eq!(moved, serde_json::json!({ "from": 5, "to": 6, "changed": true }));
    assert_eq!(sandbox.run(&["upgrade", "--json"]).json()["changed"], false);
    assert_eq!(sandbox.append("bob", "any", HELLO), 3);
    assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(0));
}
