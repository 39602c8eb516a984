//! `selvedge sign` and `selvedge verify --document`: documents in both formats, moved, changed and used as another kind.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Sandbox, copy};

fn write(sandbox: &Sandbox, path: &str, text: &str) -> PathBuf {
    let file = sandbox.project().join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, text).unwrap();
    file
}

fn sign(sandbox: &Sandbox, path: &str) -> Value {
    sandbox.run(&["sign", path, "--json"]).json()
}

fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../legacy/tests/golden").join(name).display().to_string()
}

#[test]
fn every_format_is_signed_and_verified_and_a_change_is_detected() {
    let sandbox = Sandbox::new();
    for (path, text, kind) in [
        (".ai/directives/a/b.md", "# B\n\nBe good.\n", "directive"),
        (".ai/knowledge/k.md", "known\n", "knowledge"),
        (".ai/tools/t.py", "#!/usr/bin/env python3\nprint('ü')\n", "tool"),
        (".ai/tools/t.js", "let x = 1\n", "tool"),
        (".ai/agents/scribe.yaml", "name: scribe\n", "agent"),
        (".ai/graphs/g.yaml", "steps: []\n", "graph"),
        (".ai/config/agent/limits.yaml", "turns: 3\n", "config"),
        ("notes/n.json", "{\"b\": 1, \"a\": [1.5, null]}", "document"),
    ] {
        let file = write(&sandbox, path, text);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let signed = sign(&sandbox, path);
        assert_eq!((signed["kind"].as_str(), signed["id"].as_str()), (Some(kind), Some(path)));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755, "its mode stays");
        let verdict = sandbox.run(&["verify", "--document", path, "--json"]).json();
        assert_eq!(
            (&verdict["kind"], &verdict["signer"], &verdict["owner"]),
            (&signed["kind"], &signed["signer"], &"self".into())
        );
        assert_eq!((verdict["form"].as_str(), &verdict["time_covered"]), (Some("selvedge"), &true.into()));

        let before = fs::read_to_string(&file).unwrap();
        assert_eq!(sign(&sandbox, path)["replaced"], true);
        let again = fs::read_to_string(&file).unwrap();
        assert_eq!(again.lines().count(), before.lines().count(), "signing again replaces the line");
        let changed = if path.ends_with("json") { again.replace("1.5", "1.6") } else { format!("{again}\n") };
        fs::write(&file, changed).unwrap();
        sandbox.run(&["verify", "--document", path, "--json"]).error(6, "document_changed");
    }
    let script = fs::read_to_string(sandbox.project().join(".ai/tools/t.py")).unwrap();
    assert!(script.starts_with("#!/usr/bin/env python3\n# selvedge:signed:1:tool:"), "{script}");
}

#[test]
fn a_document_is_refused_as_another_kind_and_in_another_place() {
    let sandbox = Sandbox::new();
    write(&sandbox, ".ai/directives/a.md", "Be good.\n");
    sign(&sandbox, ".ai/directives/a.md");
    let text = fs::read_to_string(sandbox.project().join(".ai/directives/a.md")).unwrap();
    write(&sandbox, ".ai/knowledge/a.md", &text);
    write(&sandbox, ".ai/directives/b.md", &text);
    let error = sandbox.run(&["verify", "--document", ".ai/knowledge/a.md", "--json"]).error(6, "document_wrong_kind");
    assert!(error["hint"].as_str().unwrap().contains("--kind directive"), "{error}");
    sandbox.run(&["verify", "--document", ".ai/directives/b.md", "--json"]).error(6, "document_invalid_signature");
    let named = ["verify", "--document", ".ai/knowledge/a.md", "--kind", "directive", "--id", ".ai/directives/a.md"];
    assert_eq!(sandbox.run(&named).code, Some(0));
    sandbox
        .run(&["verify", "--document", ".ai/directives/a.md", "--kind", "tool", "--json"])
        .error(6, "document_wrong_kind");
    sandbox.run(&["verify", "--document", ".ai/directives/a.md", "--kind", "song", "--json"]).error(2, "usage");
}

#[test]
fn manifests_and_tombstones_of_the_store_verify_too_and_are_not_signed_by_hand() {
    let (sandbox, thread) = Sandbox::with_thread();
    let manifest = format!(".ai/agent/threads/{thread}/thread.json");
    let verdict = sandbox.run(&["verify", "--document", &manifest, "--json"]).json();
    assert_eq!((verdict["kind"].as_str(), verdict["id"].as_str()), (Some("thread"), Some(&*thread)));
    sandbox.run(&["sign", &manifest, "--json"]).error(4, "document_of_store");
    sandbox.run(&["sign", &manifest, "--kind", "document", "--json"]).error(4, "document_of_store");
    sandbox.run(&["thread", "delete", &thread, "--yes"]);
    let tombstone = format!(".ai/agent/threads/tombstones/{thread}.json");
    assert_eq!(sandbox.run(&["verify", "--document", &tombstone, "--json"]).json()["kind"], "tombstone");
}

#[test]
fn a_file_that_can_not_be_signed_is_not_changed() {
    let sandbox = Sandbox::new();
    let real = write(&sandbox, "real.md", "body\n");
    symlink(&real, sandbox.project().join("link.md")).unwrap();
    write(&sandbox, "picture.png", "x");
    write(&sandbox, "twice.json", r#"{"a": 1, "a": 2}"#);
    write(&sandbox, "large.json", r#"{"a": 9007199254740993}"#);
    write(&sandbox, "list.json", "[1]");
    fs::write(sandbox.project().join("binary.md"), [0xff, 0xfe]).unwrap();
    for (file, exit, code) in [
        ("link.md", 4, "symbolic_link"),
        ("picture.png", 2, "document_format_unknown"),
        ("twice.json", 2, "json_duplicate_key"),
        ("large.json", 2, "json_inexact_number"),
        ("list.json", 2, "document_malformed"),
        ("binary.md", 2, "document_not_utf8"),
        ("none.md", 3, "file_not_found"),
        (".", 2, "usage"),
    ] {
        let before = fs::read(sandbox.project().join(file)).ok();
        sandbox.run(&["sign", file, "--json"]).error(exit, code);
        assert!(fs::read(sandbox.project().join(file)).ok() == before, "{file}");
    }
    sandbox.run(&["verify", "--document", "real.md", "--json"]).error(6, "document_unsigned");
}

/// A link in the place of a directive was followed, and what it pointed to passed for the directive.
#[test]
fn a_symbolic_link_is_not_verified() {
    let sandbox = Sandbox::new();
    write(&sandbox, "real.md", "Be kind.\n");
    sign(&sandbox, "real.md");
    std::os::unix::fs::symlink("real.md", sandbox.project().join("link.md")).unwrap();
    let error = sandbox.run(&["verify", "--document", "link.md", "--json"]).error(4, "symbolic_link");
    assert!(error["message"].as_str().unwrap().contains("link.md"));
    assert_eq!(sandbox.run(&["verify", "--document", "real.md"]).code, Some(0));
}

#[test]
fn the_golden_vector_of_ryes_format_verifies_and_lists_what_is_not_covered() {
    let sandbox = Sandbox::empty();
    let document = golden("rye-document.md");
    let key = golden("rye-public-key.pem");
    sandbox.run(&["verify", "--document", &document, "--json"]).error(6, "document_untrusted_key");
    let verdict = sandbox.run(&["verify", "--document", &document, "--public-key", &key, "--json"]).json();
    assert_eq!(
        (verdict["form"].as_str(), &verdict["time_covered"], &verdict["kind"]),
        (Some("rye"), &false.into(), &Value::Null)
    );
    assert_eq!(verdict["key_id"], "6ea18199041a1ea8");
    let text = sandbox.run(&["verify", "--document", &document, "--public-key", &key]).stdout;
    let signer = &verdict["signer"].as_str().unwrap()[..16];
    assert!(text.contains("Rye key id 6ea18199041a1ea8") && text.contains(signer), "both names of the key: {text}");
    assert!(
        text.contains("the signature does not cover it") && text.contains("the time, which anyone can change"),
        "{text}"
    );
    // Trusting the key does the same.
    sandbox.run(&["keys", "trust", &key, "--owner", "Leo"]);
    assert_eq!(sandbox.run(&["verify", "--document", &document, "--json"]).json()["owner"], "Leo");

    let changed = sandbox.root().join("changed.md");
    let bytes = fs::read_to_string(&document).unwrap();
    fs::write(&changed, bytes.replacen("Persistence", "persistence", 1)).unwrap();
    sandbox.run(&["verify", "--document", changed.to_str().unwrap(), "--json"]).error(6, "document_changed");
}

#[test]
fn a_project_that_ships_trust_and_keys_of_its_own_changes_nothing() {
    let stranger = Sandbox::new();
    write(&stranger, ".ai/directives/a.md", "Be evil.\n");
    sign(&stranger, ".ai/directives/a.md");
    let thread = stranger.new_thread("scribe");

    let sandbox = Sandbox::new();
    let mine = sandbox.run(&["keys", "list", "--json"]).json();
    let text = fs::read_to_string(stranger.project().join(".ai/directives/a.md")).unwrap();
    write(&sandbox, ".ai/directives/a.md", &text);
    let log = sandbox.transcript(&thread);
    copy(log_folder(&stranger, &thread).as_path(), log.parent().unwrap());
    for place in [
        ".ai/config/keys",
        ".ai/keys",
        "keys",
        ".ai/agent/threads/keys",
        ".selvedge/keys",
        "selvedge/keys",
        ".ai/config/selvedge/keys",
    ] {
        copy(&stranger.home().join("keys"), &sandbox.project().join(place));
    }
    sandbox.run(&["verify", "--document", ".ai/directives/a.md", "--json"]).error(6, "document_untrusted_key");
    assert_eq!(sandbox.run(&["keys", "list", "--json"]).json(), mine);
    let made = sandbox.new_thread("scribe");
    let signer = sandbox.run(&["verify", &made, "--json"]).json()["signers"][0]["fingerprint"].clone();
    assert_eq!(signer, mine["current"]);
}

fn log_folder(sandbox: &Sandbox, thread: &str) -> PathBuf {
    sandbox.transcript(thread).parent().unwrap().to_owned()
}
