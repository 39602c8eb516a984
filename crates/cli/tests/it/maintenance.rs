//! Maintenance commands on damaged stores: nothing is lost without a report, and the remedies work.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use selvedge_model::message::Block;
use selvedge_model::{Batch, Changeset, Digest, Expect, Message, Part, Reason, Role, ThreadId};
use selvedge_store::Commit;
use serde_json::Value;

use crate::support::{HELLO, Ran, Sandbox, copy};

/// A store with one thread at version 1.
fn sandbox() -> (Sandbox, String) {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    (sandbox, thread)
}

/// The same, whose thread also names a blob of this content.
fn with_blob(content: &[u8]) -> (Sandbox, String, Digest) {
    let (sandbox, thread) = sandbox();
    let store = sandbox.open();
    let id = ThreadId::new(thread.as_str()).unwrap();
    let blob = store.put_blob(&id, content).unwrap();
    let image = Block::Image { blob, media_type: "text/plain".to_owned() };
    let message = Message { content: vec![image], ..Message::text(Role::User, "") };
    let shown = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    store.commit(Batch::of(Part::new(id, Expect::Any, shown))).unwrap();
    store.close().unwrap();
    (sandbox, thread, blob)
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn lose_database(sandbox: &Sandbox) {
    for name in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        _ = fs::remove_file(sandbox.threads().join(name));
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// What doctor finds under a code; fails if there is nothing.
#[track_caller]
fn finding(ran: &Ran, code: &str) -> Value {
    let found = ran.records()[0]["findings"].as_array().unwrap().iter().find(|one| one["code"] == code).cloned();
    found.unwrap_or_else(|| panic!("no {code}: {ran:?}"))
}

#[track_caller]
fn clean(sandbox: &Sandbox, args: &[&str]) {
    let ran = sandbox.run(args);
    assert!(ran.code == Some(0) && !ran.stdout.contains("note:"), "{ran:?}");
}

#[test]
fn a_log_that_reindex_left_out_is_reported_by_every_command() {
    let (sandbox, thread) = sandbox();
    flip(&sandbox.transcript(&thread));
    lose_database(&sandbox);
    sandbox.run(&["reindex", "--json"]).error_beside_data(6, "threads_skipped");
    for args in [["verify", "--all", "--json"], ["verify", &thread, "--json"]] {
        let ran = sandbox.run(&args);
        assert_eq!(ran.error_beside_data(6, "log_damaged")["thread_id"], thread.as_str());
    }
    let ran = sandbox.run(&["backup", "../copy", "--json"]);
    ran.error_beside_data(6, "threads_skipped");
    let made = &ran.records()[0];
    assert_eq!((&made["threads"], &made["failed_checks"][0]["copied"]), (&0.into(), &true.into()));
    let kept = sandbox.root().join("copy/threads").join(&thread).join("transcript.jsonl");
    assert_eq!(fs::read(kept).unwrap(), fs::read(sandbox.transcript(&thread)).unwrap());
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(6, "doctor_damage");
    let found = finding(&ran, "thread_not_indexed");
    assert!(found["why"].as_str().unwrap().contains("is damaged"), "{found}");
    assert!(found["help"].as_str().unwrap().starts_with("restore the folder from a backup"), "{found}");
    // What was left out is not forgotten in a store that is made from the backup.
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    sandbox.run(&["-C", "../elsewhere", "restore", "../copy", "--json"]).error_beside_data(6, "threads_skipped");
    let ran = sandbox.run(&["-C", "../elsewhere", "doctor", "--json"]);
    assert_eq!(finding(&ran, "threads_skipped")["subject"], thread.as_str());
}

#[test]
fn a_sound_log_that_is_not_in_the_database_is_reported_and_indexed() {
    let (sandbox, thread) = sandbox();
    let away = sandbox.root().join("away");
    fs::rename(sandbox.threads().join(&thread), &away).unwrap();
    lose_database(&sandbox);
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    fs::rename(&away, sandbox.threads().join(&thread)).unwrap();
    sandbox.run(&["verify", "--all", "--json"]).error_beside_data(6, "database_differs");
    let found = finding(&sandbox.run(&["doctor", "--json"]), "thread_not_indexed");
    assert_eq!(found["help"], "`selvedge reindex` indexes it");
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    clean(&sandbox, &["doctor", "--deep"]);
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

#[test]
fn a_cut_log_that_is_not_in_the_database_continues_when_the_loss_is_accepted() {
    let (sandbox, thread) = sandbox();
    sandbox.run(&["thread", "rename", &thread, "a title"]);
    let log = fs::read_to_string(sandbox.transcript(&thread)).unwrap();
    let first: String = log.split_inclusive('\n').take(2).collect();
    fs::write(sandbox.transcript(&thread), first).unwrap();
    lose_database(&sandbox);
    sandbox.run(&["reindex", "--json"]).error_beside_data(6, "threads_skipped");
    let found = finding(&sandbox.run(&["doctor", "--json"]), "thread_not_indexed");
    let help = format!("selvedge repair {thread} --accept-loss");
    assert!(found["help"].as_str().unwrap().contains(&help), "{found}");
    assert_eq!(sandbox.run(&["repair", &thread, "--accept-loss"]).code, Some(0));
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}

#[test]
fn a_copied_folder_is_reported_as_a_copy() {
    let (sandbox, thread) = sandbox();
    copy(&sandbox.threads().join(&thread), &sandbox.threads().join("t9"));
    let found = finding(&sandbox.run(&["doctor", "--json"]), "thread_not_indexed");
    assert_eq!(found["subject"], "t9");
    assert!(found["why"].as_str().unwrap().contains(&format!("a copy of the log of thread `{thread}`")), "{found}");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(6));
}

#[test]
fn a_thread_behind_a_link_is_reported_left_out_and_not_deleted() {
    let (sandbox, thread) = sandbox();
    let good = sandbox.new_thread("scribe");
    let folder = sandbox.threads().join(&thread);
    let away = sandbox.root().join("away");
    fs::rename(&folder, &away).unwrap();
    symlink(&away, &folder).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(6, "doctor_damage");
    assert!(finding(&ran, "store_unusable")["what"].as_str().unwrap().contains("symbolic link"));
    let ran = sandbox.run(&["reindex", "--json"]);
    assert_eq!(ran.error_beside_data(6, "threads_skipped")["thread_id"], thread.as_str());
    assert_eq!(ran.records()[0]["threads"], 1, "{good} is indexed");
    sandbox.run(&["thread", "delete", &thread, "--yes", "--json"]).error(4, "store_unusable");
    assert!(away.join("transcript.jsonl").exists());
    assert_eq!(sandbox.run(&["thread", "show", &thread]).code, Some(0), "nothing was deleted");
    // The same with a database that does not know it.
    lose_database(&sandbox);
    let ran = sandbox.run(&["reindex", "--json"]);
    assert_eq!(ran.error_beside_data(6, "threads_skipped")["thread_id"], thread.as_str());
    let ran = sandbox.run(&["doctor", "--json"]);
    assert_eq!(finding(&ran, "folder_link")["subject"], thread.as_str());
    let ran = sandbox.run(&["backup", "../copy", "--json"]);
    ran.error_beside_data(6, "threads_skipped");
    assert_eq!(ran.records()[0]["failed_checks"][0]["copied"], false);
}

#[test]
fn blobs_behind_a_link_are_refused_and_the_log_is_still_backed_up() {
    let (sandbox, thread, _) = with_blob(b"a picture");
    let folder = sandbox.threads().join(&thread).join("blobs");
    let away = sandbox.root().join("away");
    fs::rename(&folder, &away).unwrap();
    for (number, is_link) in [(1, true), (2, false)] {
        if is_link {
            symlink(&away, &folder).unwrap()
        } else {
            fs::write(&folder, "").unwrap()
        }
        sandbox.run(&["verify", &thread, "--json"]).error_beside_data(6, "blob_damaged");
        for args in [&["doctor", "--json"][..], &["doctor", "--deep", "--json"]] {
            let ran = sandbox.run(args);
            ran.error_beside_data(6, "doctor_damage");
            finding(&ran, "blobs_refused");
        }
        let ran = sandbox.run(&["backup", &format!("../copy-{number}"), "--json"]);
        ran.error_beside_data(6, "threads_skipped");
        assert_eq!(ran.records()[0]["threads"], 1, "{ran:?}");
        let kept = sandbox.root().join(format!("copy-{number}/threads")).join(&thread).join("transcript.jsonl");
        assert_eq!(fs::read(kept).unwrap(), fs::read(sandbox.transcript(&thread)).unwrap());
        fs::remove_file(&folder).unwrap();
    }
}

#[test]
fn manifests_and_tombstones_are_verified_by_backup_and_restore() {
    let (sandbox, thread) = sandbox();
    let gone = sandbox.new_thread("scribe");
    assert_eq!(sandbox.run(&["thread", "delete", &gone, "--yes"]).code, Some(0));
    assert_eq!(sandbox.run(&["backup", "../good"]).code, Some(0));
    let manifest = sandbox.threads().join(&thread).join("thread.json");
    let tombstone = sandbox.threads().join("tombstones").join(format!("{gone}.json"));
    let edit = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        let edited = text.replacen("scribe", "knight", 1);
        assert_ne!(text, edited);
        fs::write(path, edited).unwrap();
    };
    edit(&manifest);
    edit(&tombstone);
    let ran = sandbox.run(&["backup", "../bad", "--json"]);
    ran.error_beside_data(6, "threads_skipped");
    let files = |ran: &Ran| {
        let bad = ran.records()[0]["failed_checks"].as_array().unwrap().clone();
        bad.iter().map(|one| one["file"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(files(&ran), ["thread.json", "tombstone"]);
    // What goes bad in the backup is left out, and so is what does not belong there.
    let copied = sandbox.root().join("good/threads");
    edit(&copied.join(&thread).join("thread.json"));
    edit(&copied.join("tombstones").join(format!("{gone}.json")));
    fs::write(copied.join(&thread).join("stray.sh"), "boo").unwrap();
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    let ran = sandbox.run(&["-C", "../elsewhere", "restore", "../good", "--json"]);
    ran.error_beside_data(6, "threads_skipped");
    assert_eq!(files(&ran), ["thread.json", "tombstone"]);
    let restored = sandbox.root().join("elsewhere/.ai/agent/threads");
    assert!(!restored.join(&thread).join("stray.sh").exists());
    assert!(!restored.join(&thread).join("thread.json").exists());
    // The database that is restored still has the tombstone as it was signed, and writes it anew.
    let tombstone = restored.join("tombstones").join(format!("{gone}.json"));
    assert!(fs::read_to_string(&tombstone).unwrap().contains("_signature"));
    assert_eq!(sandbox.run(&["-C", "../elsewhere", "reindex"]).code, Some(0));
    assert!(tombstone.exists() && restored.join(&thread).join("thread.json").exists());
    assert_eq!(sandbox.run(&["-C", "../elsewhere", "doctor", "--deep"]).code, Some(0));
}

#[test]
fn a_backup_without_its_store_json_is_refused_with_a_hint() {
    let (sandbox, _) = sandbox();
    assert_eq!(sandbox.run(&["backup", "../copy"]).code, Some(0));
    let path = sandbox.root().join("copy/threads/store.json");
    fs::remove_file(&path).unwrap();
    fs::create_dir(sandbox.root().join("elsewhere")).unwrap();
    let error = sandbox.run(&["-C", "../elsewhere", "restore", "../copy", "--json"]).error(6, "integrity");
    let hint = error["hint"].as_str().unwrap();
    let text = hint.split('`').nth(1).unwrap();
    fs::write(&path, text).unwrap();
    assert_eq!(sandbox.run(&["-C", "../elsewhere", "restore", "../copy"]).code, Some(0), "{hint}");
}

#[test]
fn a_deletion_makes_the_folder_it_needs_and_survives_the_loss_of_the_database() {
    let (sandbox, thread) = sandbox();
    for folder in ["tombstones", "owners"] {
        fs::remove_dir(sandbox.threads().join(folder)).unwrap();
    }
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(1, "doctor_warnings");
    let missing = ran.records()[0]["findings"].as_array().unwrap().clone();
    assert_eq!(missing.iter().filter(|one| one["code"] == "folder_missing").count(), 2, "{ran:?}");
    assert_eq!(sandbox.run(&["thread", "delete", &thread, "--yes"]).code, Some(0));
    assert!(!sandbox.threads().join(&thread).exists());
    assert!(sandbox.threads().join("tombstones").join(format!("{thread}.json")).exists());
    lose_database(&sandbox);
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    sandbox.run(&["thread", "show", &thread, "--json"]).error(3, "thread_deleted");
    // A tombstone that is lost is written anew from the database.
    fs::remove_dir_all(sandbox.threads().join("tombstones")).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    ran.error_beside_data(6, "doctor_damage");
    assert!(finding(&ran, "tombstone_missing")["help"].as_str().unwrap().contains("selvedge reindex"));
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    clean(&sandbox, &["doctor"]);
}

#[test]
fn keys_with_loose_modes_and_interrupted_rotations_are_reported() {
    let (sandbox, _) = sandbox();
    let keys = sandbox.home().join("keys");
    let old = sandbox.root().join("old");
    copy(&keys.join("signing"), &old);
    assert_eq!(sandbox.run(&["keys", "rotate"]).code, Some(0));
    clean(&sandbox, &["doctor"]);
    for path in [sandbox.home(), keys.clone(), keys.join("retired")] {
        let before = fs::metadata(&path).unwrap().permissions();
        mode(&path, 0o777);
        let ran = sandbox.run(&["doctor", "--json"]);
        // A retired key that others may have read seals nothing any more.
        assert_eq!(ran.code, Some(if path.ends_with("retired") { 6 } else { 1 }), "{ran:?}");
        let what = finding(&ran, "keys_unsafe")["what"].as_str().unwrap().to_owned();
        assert!(what.contains(&format!("`{}`", path.display())), "{what}");
        fs::set_permissions(&path, before).unwrap();
    }
    let chain = fs::read_dir(keys.join("chain")).unwrap().next().unwrap().unwrap().path();
    let step = fs::read(&chain).unwrap();
    fs::remove_file(&chain).unwrap();
    finding(&sandbox.run(&["doctor", "--json"]), "key_chain_broken");
    fs::write(&chain, step).unwrap();
    mode(&chain, 0o600);
    // An old copy of the key is put back.
    let new = sandbox.root().join("new");
    fs::rename(keys.join("signing"), &new).unwrap();
    fs::rename(&old, keys.join("signing")).unwrap();
    mode(&keys.join("signing"), 0o700);
    finding(&sandbox.run(&["doctor", "--json"]), "own_key_retired");
    // As a rotation leaves it that was cut before the new key was in place.
    fs::rename(&new, keys.join("next")).unwrap();
    let found = finding(&sandbox.run(&["doctor", "--json"]), "rotation_unfinished");
    assert!(found["help"].as_str().unwrap().contains("selvedge keys rotate"), "{found}");
    assert_eq!(sandbox.run(&["keys", "rotate"]).code, Some(0));
    clean(&sandbox, &["doctor"]);
    fs::rename(&keys, sandbox.root().join("keys")).unwrap();
    symlink(sandbox.root().join("keys"), &keys).unwrap();
    finding(&sandbox.run(&["doctor", "--json"]), "keys_unsafe");
}

#[test]
fn a_store_with_wrong_access_rights_is_reported() {
    let (sandbox, thread) = sandbox();
    for path in [sandbox.threads(), sandbox.threads().join("commit.lock"), sandbox.transcript(&thread)] {
        let before = fs::metadata(&path).unwrap().permissions();
        mode(&path, 0o777);
        let ran = sandbox.run(&["doctor", "--json"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(finding(&ran, "loose_mode")["what"].as_str().unwrap().contains(path.to_str().unwrap()));
        fs::set_permissions(&path, before).unwrap();
    }
    fs::write(sandbox.threads().join("registry.db.unreadable"), "x").unwrap();
    fs::create_dir(sandbox.threads().join("owners").join("0".repeat(32))).unwrap();
    let ran = sandbox.run(&["doctor", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for code in ["database_set_aside", "wrong_owner"] {
        assert_eq!(finding(&ran, code)["severity"], "note");
    }
    let ignored = fs::read_to_string(sandbox.project().join(".ai/.gitignore")).unwrap();
    assert!(ignored.contains("agent/threads/*.db.*"), "{ignored}");
}

#[test]
fn a_small_changed_blob_is_found_at_once_and_a_large_one_is_reported_as_not_hashed() {
    for (length, is_small) in [(100, true), (2 << 20, false)] {
        let (sandbox, thread, blob) = with_blob(&vec![7; length]);
        clean(&sandbox, &["doctor"]);
        flip(&sandbox.threads().join(&thread).join("blobs").join(blob.to_string()));
        let ran = sandbox.run(&["doctor", "--json"]);
        if is_small {
            ran.error_beside_data(6, "doctor_damage");
            finding(&ran, "blob_changed");
        } else {
            assert_eq!((ran.code, &ran.records()[0]["blobs_not_hashed"]), (Some(0), &1.into()));
            let said = sandbox.run(&["doctor"]).stdout;
            assert!(said.contains("1 blob was not hashed; `selvedge doctor --deep`"), "{said}");
        }
        assert_eq!(sandbox.run(&["doctor", "--deep"]).code, Some(6));
        let error = sandbox.run(&["backup", "../copy", "--json"]).error_beside_data(6, "threads_skipped");
        assert!(error["hint"].as_str().unwrap().contains("selvedge doctor --deep"), "{error}");
    }
}

#[test]
fn a_refused_command_leaves_nothing_that_looks_like_a_crash() {
    let (sandbox, thread, blob) = with_blob(b"a picture");
    let refused: [(&[&str], i32); 5] = [
        (&["append", &thread, "--expect", "0"], 5),
        (&["erase", &thread, &"0".repeat(64), "--reason", "r"], 3),
        (&["thread", "delete", "missing", "--yes"], 3),
        (&["thread", "new", "--agent", "scribe", "--id", &thread], 5),
        (&["repair", "missing"], 3),
    ];
    for (args, code) in refused {
        let ran = sandbox.run_with(args, HELLO.as_bytes());
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert_eq!(fs::read_dir(sandbox.threads().join("owners")).unwrap().count(), 0, "{args:?}");
    }
    fs::remove_file(sandbox.threads().join(&thread).join("blobs").join(blob.to_string())).unwrap();
    assert_eq!(sandbox.run(&["repair", &thread]).code, Some(6));
    assert_eq!(fs::read_dir(sandbox.threads().join("owners")).unwrap().count(), 0);
    // What is lost for good can be said to be, by any beginning of its name.
    assert_eq!(sandbox.run(&["erase", &thread, &blob.to_string()[..8], "--reason", "its disk died"]).code, Some(0));
    assert_eq!(sandbox.run(&["verify", "--all"]).code, Some(0));
}
