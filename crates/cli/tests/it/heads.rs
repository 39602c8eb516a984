//! `selvedge heads`: a list that is kept elsewhere detects that a whole store was rolled back.

use std::fs;

use crate::support::{HELLO, Ran, Sandbox, copy};

/// A store with two threads, what it was a moment before, and a list of it in the user's folder.
fn noted() -> (Sandbox, [String; 2]) {
    let sandbox = Sandbox::new();
    let threads = [sandbox.new_thread("scribe"), sandbox.new_thread("tailor")];
    copy(&sandbox.threads(), &sandbox.root().join("before"));
    sandbox.append(&threads[0], "0", HELLO);
    (sandbox, threads)
}

fn roll_back(sandbox: &Sandbox) {
    fs::remove_dir_all(sandbox.threads()).unwrap();
    copy(&sandbox.root().join("before"), &sandbox.threads());
}

fn finding(ran: &Ran, code: &str) -> Option<serde_json::Value> {
    let findings = ran.records()[0]["findings"].as_array().unwrap().clone();
    findings.into_iter().find(|finding| finding["code"] == code)
}

#[test]
fn a_rolled_back_store_is_detected_by_heads_verify_and_by_verify_with_heads() {
    let (sandbox, [one, two]) = noted();
    let made = sandbox.run(&["heads", "export", "../list.json", "--json"]).json();
    assert_eq!((&made["threads"], &made["tombstones"], &made["accounts"]), (&2.into(), &0.into(), &0.into()));
    let same = sandbox.run(&["heads", "verify", "../list.json", "--json"]).json();
    assert_eq!((&same["same_store"], &same["threads"]), (&true.into(), &2.into()), "{same}");
    let text = sandbox.run(&["heads", "verify", "../list.json"]).stdout;
    assert!(text.contains("2 threads, 0 accounts: no rollback since"), "{text}");

    roll_back(&sandbox);
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0), "nothing inside the store can show it");
    for words in [&["heads", "verify", "../list.json", "--json"][..], &["verify", "--heads", "../list.json", "--json"]]
    {
        let ran = sandbox.run(words);
        let error = ran.error_beside_data(6, "rolled_back");
        assert!(error["message"].as_str().unwrap().contains("was at version 1, and ends at 0"), "{error}");
        assert!(error["hint"].as_str().unwrap().contains("selvedge restore"), "{error}");
        let differs = &ran.records()[0]["differs"];
        assert_eq!((&differs[0]["thread_id"], &differs[0]["how"]), (&one.as_str().into(), &"shorter".into()));
        assert_eq!(differs.as_array().unwrap().len(), 1);
    }
    let some = sandbox.run(&["heads", "verify", "../list.json", "--thread", &two, "--json"]).json();
    assert_eq!(some["threads"], 1);
    assert_eq!(sandbox.run(&["verify", "--heads", "../list.json", &two]).code, Some(0));
    sandbox.run(&["heads", "verify", "../list.json", "--thread", "missing", "--json"]).error(3, "thread_not_found");
}

#[test]
fn doctor_finds_a_rolled_back_store_by_the_list_in_the_users_folder() {
    let (sandbox, _) = noted();
    let made = sandbox.run(&["heads", "export", "--json"]).json();
    let list = sandbox.home().join("heads").join(format!("{}.json", made["store_id"].as_str().unwrap()));
    assert_eq!(made["file"], list.to_str().unwrap());
    assert_eq!(sandbox.run(&["doctor"]).code, Some(0));
    assert_eq!(sandbox.run(&["heads", "verify"]).code, Some(0));

    roll_back(&sandbox);
    for words in [&["doctor", "--json"][..], &["doctor", "--deep", "--json"]] {
        let ran = sandbox.run(words);
        assert_eq!(ran.code, Some(6), "{ran:?}");
        let found = finding(&ran, "rolled_back").unwrap();
        assert!(found["what"].as_str().unwrap().contains("was at version 1, and ends at 0"), "{found}");
    }
    // The list is all that remembers: it is not replaced by one of the older state.
    let before = fs::read(&list).unwrap();
    sandbox.run(&["heads", "export", "--json"]).error(6, "rolled_back");
    assert_eq!(fs::read(&list).unwrap(), before);
    assert_eq!(sandbox.run(&["heads", "export", "--force"]).code, Some(0));
    assert_eq!(sandbox.run(&["doctor"]).code, Some(0));
}

/// An attacker with write access can replace `store.json` too; the logs still identify the list.
#[test]
fn doctor_reports_a_newer_list_of_another_store_id() {
    let (sandbox, _) = noted();
    sandbox.run(&["heads", "export"]);
    roll_back(&sandbox);
    let file = sandbox.threads().join("store.json");
    let mut kind: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    kind["id"] = "0123456789abcdef".into();
    fs::write(&file, kind.to_string()).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    let found = finding(&ran, "rolled_back").unwrap();
    assert!(found["what"].as_str().unwrap().contains("was at version 1, and ends at 0"), "{found}");
    assert_eq!((ran.code, &found["severity"]), (Some(6), &"damage".into()), "{found}");
}

/// Rolled back and without its database, a store got a new id from `reindex`; then doctor only warned and advised to remove the list,
/// `heads verify` found nothing, and `backup` did not look.
#[test]
fn a_rolled_back_store_that_got_a_new_id_is_found_by_every_command_that_compares() {
    let (sandbox, _) = noted();
    assert_eq!(sandbox.run(&["heads", "export"]).code, Some(0));
    assert_eq!(sandbox.run(&["backup", "../before-it"]).code, Some(0));
    roll_back(&sandbox);
    assert_eq!(sandbox.run(&["backup", "../rolled-back", "--json"]).error_beside_data(6, "rolled_back")["differs"], 1);
    for file in ["registry.db", "registry.db-wal", "registry.db-shm", "store.json"] {
        _ = fs::remove_file(sandbox.threads().join(file));
    }
    let rebuilt = sandbox.run(&["reindex", "--json"]).error_beside_data(6, "rolled_back");
    assert!(rebuilt["message"].as_str().unwrap().contains("was at version 1, and ends at 0"), "{rebuilt}");
    assert!(!rebuilt["hint"].as_str().unwrap().contains("remove"), "{rebuilt}");
    sandbox.run(&["backup", "../new-id", "--json"]).error_beside_data(6, "rolled_back");
    sandbox.run(&["heads", "verify", "--json"]).error_beside_data(6, "rolled_back");
    sandbox.run(&["heads", "export", "--json"]).error(6, "rolled_back");
    let doctor = sandbox.run(&["doctor", "--json"]);
    assert_eq!((doctor.code, &finding(&doctor, "rolled_back").unwrap()["severity"]), (Some(6), &"damage".into()));
    // Accepted as it is, by a newer list.
    assert_eq!(sandbox.run(&["heads", "export", "--force"]).code, Some(0));
    for words in [&["heads", "verify"][..], &["backup", "../accepted"], &["reindex"], &["doctor"]] {
        let ran = sandbox.run(words);
        assert_eq!(ran.code, Some(0), "{words:?}: {ran:?}");
    }
    assert_eq!(finding(&sandbox.run(&["doctor", "--json"]), "rollback_accepted").unwrap()["severity"], "note");
}

#[test]
fn a_list_is_checked_without_a_signing_key_and_only_if_its_signer_is_trusted() {
    let (sandbox, _) = noted();
    sandbox.run(&["heads", "export", "../list.json"]);
    let keys = sandbox.home().join("keys");
    fs::rename(keys.join("signing"), keys.join("elsewhere")).unwrap();
    assert_eq!(sandbox.run(&["heads", "verify", "../list.json"]).code, Some(0));
    sandbox.run(&["heads", "export", "../other.json", "--json"]).error(3, "signing_key_missing");
    let list = sandbox.root().join("list.json");
    let text = fs::read_to_string(&list).unwrap();
    fs::write(&list, text.replace("\"version\": 1", "\"version\": 7")).unwrap();
    sandbox.run(&["heads", "verify", "../list.json", "--json"]).error(6, "document_changed");
    fs::rename(keys.join("elsewhere"), keys.join("signing")).unwrap();
    sandbox.run(&["heads", "export", "../list.json", "--json"]).error(6, "document_changed");
    fs::create_dir_all(sandbox.home().join("heads")).unwrap();
    fs::rename(&list, sandbox.home().join("heads/old.json")).unwrap();
    let found = finding(&sandbox.run(&["doctor", "--json"]), "heads_refused").unwrap();
    assert_eq!(found["severity"], "warning");
}

#[test]
fn a_restored_store_is_compared_with_the_list_in_its_backup() {
    let (sandbox, [one, _]) = noted();
    assert_eq!(sandbox.run(&["thread", "delete", &one, "--yes"]).code, Some(0));
    assert_eq!(sandbox.run(&["backup", "../copy"]).code, Some(0));
    assert_eq!(sandbox.run(&["heads", "verify", "../copy/heads.json"]).code, Some(0));
    let threads = sandbox.root().join("copy/threads");
    fs::remove_file(threads.join("tombstones").join(format!("{one}.json"))).unwrap();
    let database = rusqlite::Connection::open(threads.join("registry.db")).unwrap();
    database.execute("DELETE FROM tombstones", []).unwrap();
    drop(database);
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    let ran = sandbox.run(&["-C", "../elsewhere", "restore", "../copy", "--json"]);
    ran.error_beside_data(6, "rolled_back");
    let differs = &ran.records()[0]["differs"];
    assert_eq!((&differs[0]["thread_id"], &differs[0]["how"]), (&one.as_str().into(), &"undeleted".into()));
}
