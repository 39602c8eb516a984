//! `selvedge doctor`: its findings and its exit code.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::support::{HELLO, Ran, Sandbox, contents};

fn codes(ran: &Ran) -> Vec<String> {
    let [report] = &ran.records()[..] else { panic!("{ran:?}") };
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|found| found["code"].as_str().unwrap().to_owned()).filter(|code| code != "disk_nearly_full").collect()
}

#[test]
fn a_sound_store_has_no_findings() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let logs = |files: Vec<(std::path::PathBuf, Vec<u8>)>| -> Vec<_> {
        files.into_iter().filter(|(path, _)| !path.to_str().unwrap().contains("registry.db")).collect()
    };
    let before = logs(contents(&sandbox.project()));
    let report = sandbox.run(&["doctor", "--json"]).json();
    assert_eq!(
        (&report["threads"], &report["store_format"], &report["live_processes"]),
        (&1.into(), &8.into(), &0.into())
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
    ran.error_beside_data(1, "doctor_warnings");
    assert_eq!(codes(&ran), ["manifest_missing"]);
    let path = sandbox.transcript(&thread);
    let log = fs::read(&path).unwrap();
    fs::write(&path, &log[..log.len() - 1]).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(6, "doctor_damage");
    assert_eq!(codes(&ran), ["truncated", "manifest_missing"], "the worst first");
    assert_eq!(ran.records()[0]["worst"], "damage");
    let text = sandbox.run(&["doctor"]).stdout;
    assert!(text.contains("damage:") && text.contains("help: "), "{text}");
}

#[test]
fn keys_and_trust_are_checked() {
    let (sandbox, _) = Sandbox::with_thread();
    let signing = sandbox.home().join("keys/signing");
    let trusted = sandbox.home().join("keys/trusted");
    let chmod = |path: &std::path::Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let look = || sandbox.run(&["doctor", "--json"]);
    chmod(&signing, 0o755);
    assert_eq!(codes(&look()), ["key_unsafe"]);
    chmod(&signing, 0o700);
    fs::rename(&signing, sandbox.home().join("away")).unwrap();
    let ran = look();
    ran.error_beside_data(1, "doctor_warnings");
    assert_eq!(codes(&ran), ["signing_key_missing"], "a lost key leaves everything readable");
    fs::rename(sandbox.home().join("away"), &signing).unwrap();
    let file = fs::read_dir(&trusted).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"trusted\"", "\"revoked\"")).unwrap();
    let found = codes(&look());
    assert!(found.contains(&"own_key_revoked".to_owned()) && found.contains(&"key_revoked".to_owned()), "{found:?}");
    fs::write(&file, "{").unwrap();
    let found: Value = look().records()[0].clone();
    let codes: Vec<_> = found["findings"].as_array().unwrap().iter().map(|found| found["code"].clone()).collect();
    assert!(codes.contains(&"trust_file_invalid".into()), "{codes:?}");
}

#[test]
fn a_missing_database_is_reported_with_a_remedy() {
    let (sandbox, _) = Sandbox::with_thread();
    fs::remove_file(sandbox.threads().join("registry.db")).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(6, "doctor_damage");
    assert!(ran.stdout.contains("selvedge reindex"), "{ran:?}");
}

/// Every thread was called damaged, one line each, when it was only not known whom to trust.
#[test]
fn unusable_trusted_keys_are_reported_once_for_any_number_of_threads() {
    let sandbox = Sandbox::new();
    (0..3).for_each(|_| drop(sandbox.new_thread("scribe")));
    let trusted = sandbox.home().join("keys/trusted");
    fs::set_permissions(&trusted, Permissions::from_mode(0o777)).unwrap();
    for args in [&["doctor", "--json"][..], &["doctor", "--deep", "--json"]] {
        let found = codes(&sandbox.run(args));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.contains(&"signatures_not_checked".to_owned()), "{found:?}");
    }
    fs::set_permissions(&trusted, Permissions::from_mode(0o700)).unwrap();
    assert_eq!(sandbox.run(&["doctor"]).code, Some(0));
}

#[test]
fn the_report_says_what_was_not_checked() {
    let (sandbox, thread) = Sandbox::with_thread();
    let ran = sandbox.run(&["doctor"]);
    assert!(
        ran.stdout
            .contains("only the last signature of each was verified; blobs were hashed; `selvedge doctor --deep`"),
        "{ran:?}"
    );
    assert!(sandbox.run(&["doctor", "--deep"]).stdout.contains("Every log was verified whole"));
    let long = HELLO.replace("hello", &"x".repeat(300_000));
    sandbox.append(&thread, "0", &long);
    let report = sandbox.run(&["doctor", "--json"]).json();
    assert_eq!((&report["deep"], &report["not_read_whole"]), (&false.into(), &1.into()));
    assert!(sandbox.run(&["doctor"]).stdout.contains("Only the end was read of 1 of 1 logs"));
}

#[test]
fn a_flipped_byte_inside_a_log_is_found_without_reading_everything() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    sandbox.append(&thread, "1", HELLO);
    let path = sandbox.transcript(&thread);
    let mut log = fs::read(&path).unwrap();
    log[60] ^= 1;
    fs::write(&path, log).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    let error = ran.error_beside_data(6, "doctor_damage");
    assert_eq!(codes(&ran), ["log_damaged"]);
    assert!(error["hint"].as_str().unwrap().contains("from a backup"), "{error}");
}

#[test]
fn a_store_without_its_store_json_is_repaired_by_reindex() {
    let (sandbox, _) = Sandbox::with_thread();
    let path = sandbox.threads().join("store.json");
    for damage in [None, Some("noise")] {
        match damage {
            None => fs::remove_file(&path).unwrap(),
            Some(text) => fs::write(&path, text).unwrap(),
        }
        for args in [&["doctor", "--json"][..], &["thread", "list", "--json"], &["init", "--json"]] {
            let ran = sandbox.run(args);
            assert_eq!(ran.code, Some(6), "{ran:?}");
            assert!(ran.stderr.contains("selvedge reindex"), "{ran:?}");
        }
        assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
        assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(0));
    }
}

#[test]
fn the_blobs_of_an_import_are_named_when_they_are_gone_changed_or_erased() {
    let sandbox = Sandbox::new();
    let file = sandbox.root().join("pear.jsonl");
    let text = concat!(
        r#"{"id":"pear","agentId":"gardener","title":"Pears","createdAt":"c","updatedAt":"u"}"#,
        "\n",
        r#"{"role":"user","text":"one","timestamp":"t"}"#,
        "\n"
    );
    fs::write(&file, text).unwrap();
    assert_eq!(sandbox.run(&["import", file.to_str().unwrap(), "--format", "nova"]).code, Some(0));
    let folder = sandbox.threads().join("pear/blobs");
    let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let [erased, gone] = &names[..] else { panic!("{names:?}") };
    let [erased, gone] = [erased, gone].map(|name| name.to_str().unwrap().to_owned());
    assert_eq!(sandbox.run(&["erase", "pear", &erased, "--reason", "asked to"]).code, Some(0));
    assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(0), "what was erased is no damage");
    fs::remove_file(folder.join(&gone)).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(6, "doctor_damage");
    assert_eq!(codes(&ran), ["blob_missing"]);
    let ran = sandbox.run(&["doctor", "--deep", "--json"]);
    assert_eq!(codes(&ran), ["blob_damaged", "blobs_erased"]);
    let ran = sandbox.run(&["verify", "pear", "--json"]);
    ran.error_beside_data(6, "blob_damaged");
    let verdict = &ran.records()[0];
    assert_eq!(
        (&verdict["erased_blobs"][0], &verdict["bad_blobs"][0]["blob"]),
        (&erased.into(), &gone.as_str().into())
    );
    assert!(sandbox.run(&["verify", "pear"]).stdout.contains(&gone));
}
