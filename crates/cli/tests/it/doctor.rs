//! `selvedge doctor`: what it says, and its exit code.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::support::{HELLO, Ran, Sandbox, contents};

fn codes(ran: &Ran) -> Vec<String> {
    let [report] = &ran.records()[..] else { panic!("{ran:?}") };
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|found| found["code"].as_str().unwrap().to_owned()).filter(|code| code != "disk_room").collect()
}

#[test]
fn a_sound_store_has_nothing_to_report() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let logs = |files: Vec<(std::path::PathBuf, Vec<u8>)>| -> Vec<_> {
        files.into_iter().filter(|(path, _)| !path.to_str().unwrap().contains("registry.db")).collect()
    };
    let before = logs(contents(&sandbox.project()));
    let report = sandbox.run(&["doctor", "--json"]).json();
    assert_eq!(
        (&report["threads"], &report["store_format"], &report["live_processes"]),
        (&1.into(), &2.into(), &0.into())
    );
    assert!(report["sqlite"].is_string());
    assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(0));
    assert!(logs(contents(&sandbox.project())) == before, "doctor changes nothing");
    Sandbox::empty().run(&["doctor", "--json"]).error(3, "no_store");
}

#[test]
fn warnings_exit_1_and_damage_6() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    fs::remove_file(sandbox.threads().join(&thread).join("thread.json")).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(1, "warnings");
    assert_eq!(codes(&ran), ["manifest_missing"]);
    let path = sandbox.transcript(&thread);
    let log = fs::read(&path).unwrap();
    fs::write(&path, &log[..log.len() - 1]).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(6, "damage");
    assert_eq!(codes(&ran), ["truncated", "manifest_missing"], "the worst first");
    assert_eq!(ran.records()[0]["worst"], "damage");
    let text = sandbox.run(&["doctor"]).stdout;
    assert!(text.contains("damage:") && text.contains("help: "), "{text}");
}

#[test]
fn keys_and_trust_are_looked_at() {
    let (sandbox, _) = Sandbox::with_thread();
    let (signing, trusted) = (sandbox.home().join("keys/signing"), sandbox.home().join("keys/trusted"));
    let chmod = |path: &std::path::Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let look = || sandbox.run(&["doctor", "--json"]);
    chmod(&signing, 0o755);
    assert_eq!(codes(&look()), ["key_unsafe"]);
    chmod(&signing, 0o700);
    fs::rename(&signing, sandbox.home().join("away")).unwrap();
    let ran = look();
    ran.error_beside_data(1, "warnings");
    assert_eq!(codes(&ran), ["key_absent"], "a lost key leaves everything readable");
    fs::rename(sandbox.home().join("away"), &signing).unwrap();
    let file = fs::read_dir(&trusted).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"trusted\"", "\"revoked\"")).unwrap();
    let found = codes(&look());
    assert!(found.contains(&"own_key_revoked".to_owned()) && found.contains(&"key_revoked".to_owned()), "{found:?}");
    fs::write(&file, "{").unwrap();
    let found: Value = look().records()[0].clone();
    let codes: Vec<_> = found["findings"].as_array().unwrap().iter().map(|found| found["code"].clone()).collect();
    assert!(codes.contains(&"trust_refused".into()), "{codes:?}");
}

#[test]
fn a_missing_database_is_named_with_what_helps() {
    let (sandbox, _) = Sandbox::with_thread();
    fs::remove_file(sandbox.threads().join("registry.db")).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(6, "damage");
    assert!(ran.stdout.contains("selvedge reindex"), "{ran:?}");
}
