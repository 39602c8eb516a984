//! `selvedge export` and `selvedge import` in the native format: from one user to another, who has only the public key.

use std::fs;
use std::process::Command;

use selvedge_log::Trust;
use selvedge_log::keys::KeyFolder;
use selvedge_model::Clock;
use selvedge_store_local::system::SystemClock;

use crate::children;
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
fn an_exported_thread_is_verified_with_the_public_key_alone() {
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
    refused.error(4, "wrong_signer");
    // Exported again by them it is the same file.
    let again = theirs.command(&["export", &thread]).output().unwrap();
    assert_eq!(again.stdout, fs::read(&file).unwrap());
}

#[test]
fn nothing_is_overwritten_and_other_files_are_refused() {
    let (ours, thread, theirs, file) = exported();
    ours.run(&["export", &thread, "-o", &file, "--json"]).error(5, "file_exists");
    let noise = theirs.root().join("noise");
    fs::write(&noise, "noise").unwrap();
    let noise = noise.display().to_string();
    theirs.run(&["import", &noise, "--json"]).error(2, "usage");
    theirs.run(&["import", &noise, "--format", "selvedge", "--json"]).error_beside_data(6, "integrity");
    theirs.run(&["import", "nowhere", "--json"]).error(3, "file_not_found");
    theirs.run(&["export", "missing", "--json"]).error(3, "thread_not_found");
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

/// A thread that three keys signed, with a blob, as a file; and the three public keys.
fn signed_by_three(ours: &Sandbox) -> (String, String, Vec<String>) {
    let thread = ours.new_thread("scribe");
    let mut pems = Vec::new();
    for number in 0..3 {
        let pem = ours.root().join(format!("{number}.pem"));
        fs::write(&pem, ours.run(&["keys", "export"]).stdout).unwrap();
        pems.push(pem.display().to_string());
        ours.append(&thread, "any", HELLO);
        // One key in the middle signs nothing here, and one comes after the last.
        let rotations = if number == 0 { 2 } else { 1 };
        (0..rotations).for_each(|_| assert_eq!(ours.run(&["keys", "rotate"]).code, Some(0)));
    }
    let newest = ours.root().join("newest.pem");
    fs::write(&newest, ours.run(&["keys", "export"]).stdout).unwrap();
    pems.push(newest.display().to_string());
    let file = ours.root().join("three.tar").display().to_string();
    assert_eq!(ours.run(&["export", &thread, "-o", &file]).code, Some(0));
    (thread, file, pems)
}

/// Runs the command as a user without home, keys and store.
fn stranger(args: &[&str]) -> crate::support::Ran {
    let nowhere = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
    command.args(args).current_dir(nowhere.path()).env_clear();
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let ran = crate::support::Ran::of(command.spawn().unwrap());
    assert_eq!(fs::read_dir(nowhere.path()).unwrap().count(), 0, "nothing is written");
    ran
}

#[test]
fn any_one_key_of_the_chain_verifies_an_archive_without_a_store() {
    let ours = Sandbox::new();
    let (thread, file, keys) = signed_by_three(&ours);
    let expected = ours.run(&["verify", &thread, "--json"]).json();
    for key in &keys {
        let verdict = stranger(&["verify", &file, "--public-key", key, "--json"]).json();
        assert_eq!(verdict["sound"], true, "{verdict}");
        for field in ["thread_id", "code", "message", "unchanged_up_to", "lines", "bytes", "proves"] {
            let without_owner = |value: &serde_json::Value| value.to_string().replace(" (self)", "");
            assert_eq!(verdict[field].to_string(), without_owner(&expected[field]), "{field}");
        }
        assert_eq!(verdict["signers"].as_array().unwrap().len(), 3);
        assert_eq!(verdict["archive"], file.as_str());
    }
    let text = stranger(&["verify", &file, "--public-key", &keys[0], "--explain"]);
    assert!(text.code == Some(0) && text.stdout.contains("unchanged up to version 3 since it was signed by keys"));
    assert!(text.stdout.contains("VERSION  REASON") && text.stdout.contains("Not proven"), "{text:?}");
    let explained = stranger(&["verify", &file, "--public-key", &keys[0], "--explain", "--json"]).json();
    assert_eq!(explained["statements"].as_array().unwrap().len(), 4);
    // Another user's key does not verify it, and damage is not reported.
    let other = Sandbox::new();
    let foreign = other.root().join("foreign.pem");
    fs::write(&foreign, other.run(&["keys", "export"]).stdout).unwrap();
    let refused = stranger(&["verify", &file, "--public-key", foreign.to_str().unwrap(), "--json"]);
    let error = refused.error_beside_data(6, "untrusted_key");
    assert!(error["message"].as_str().unwrap().contains("signed by a key that is not trusted"), "{error}");
    // Without --public-key the keys that the user trusts decide, and nothing else is asked for either.
    assert_eq!(ours.run(&["verify", &file]).code, Some(0));
    other.run(&["verify", &file, "--json"]).error_beside_data(6, "untrusted_key");
    stranger(&["verify", "nowhere.tar", "--public-key", &keys[0], "--json"]).error_beside_data(3, "file_not_found");
}

#[test]
fn an_archive_without_rotations_is_only_trusted_with_its_own_key() {
    let ours = Sandbox::new();
    let (thread, file, keys) = signed_by_three(&ours);
    let folder = ours.root().join("unpacked");
    fs::create_dir(&folder).unwrap();
    let tar =
        |args: &[&str]| Command::new("tar").args(args).current_dir(&folder).status().is_ok_and(|ran| ran.success());
    if !tar(&["xf", &file]) {
        return;
    }
    // Packed again by any tar, in any order, it is as good.
    let chain = format!("{thread}/chain");
    let rest = [format!("{thread}/transcript.jsonl"), format!("{thread}/thread.json"), format!("{thread}/keys")];
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    assert!(tar(&[&["--format=ustar", "-cf", "again.tar", &chain][..], &rest].concat()));
    let again = folder.join("again.tar").display().to_string();
    assert_eq!(stranger(&["verify", &again, "--public-key", &keys[0]]).code, Some(0));
    // Without rotations, as an older program wrote it, all keys are needed; a user who trusts them can import it.
    assert!(tar(&[&["--format=ustar", "-cf", "older.tar"][..], &rest].concat()));
    let older = folder.join("older.tar").display().to_string();
    let ran = stranger(&["verify", &older, "--public-key", &keys[0], "--json"]);
    let verdict = ran.records().remove(0);
    assert_eq!((&verdict["unchanged_up_to"], &verdict["damage"]), (&1.into(), &serde_json::Value::Null));
    ran.error_beside_data(6, "untrusted_key");
    let theirs = Sandbox::new();
    let error = theirs.run(&["import", &older, "--json"]).error_beside_data(6, "untrusted_key");
    let needed = error["keys"].as_array().unwrap();
    assert_eq!(needed.len(), 3, "every key that is needed is named at once, and no other: {error}");
    let hint = error["hint"].as_str().unwrap();
    assert!(needed.iter().all(|key| hint.contains(&format!("keys/{}.pem", key.as_str().unwrap()))), "{hint}");
    // For a user who trusts the oldest key, the hint says that it has signed for the others.
    let friend = Sandbox::new();
    friend.run(&["keys", "trust", &keys[0], "--owner", "Ada"]);
    let error = friend.run(&["import", &file, "--json"]).error_beside_data(6, "untrusted_key");
    assert_eq!(error["keys"].as_array().unwrap().len(), 2, "{error}");
    assert!(error["hint"].as_str().unwrap().contains("a key that you trust has signed for them"), "{error}");
    // The hint helps.
    let files: Vec<String> =
        needed.iter().map(|key| format!("{}/{thread}/keys/{}.pem", folder.display(), key.as_str().unwrap())).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let trusted = theirs.run(&[&["keys", "trust", "--owner", "Ada"][..], &files].concat());
    assert_eq!(trusted.code, Some(0), "{trusted:?}");
    assert_eq!(theirs.run(&["import", &older, "--json"]).json()["outcome"], "imported");
    assert_eq!(theirs.run(&["import", &file, "--json"]).json()["outcome"], "unchanged");
    // What arrived with its statements goes on with them: the same file, and any one key still does.
    let other = Sandbox::new();
    other.run(&[&["keys", "trust", "--owner", "Ada"][..], &files].concat());
    assert_eq!(other.run(&["import", &file, "--json"]).json()["outcome"], "imported");
    let there = other.command(&["export", &thread]).output().unwrap();
    assert!(there.stdout == fs::read(&file).unwrap(), "exported elsewhere it is the same file");
    assert_eq!(other.run(&["doctor"]).code, Some(0));
    // A planted rotation in the folder is not exported.
    let planted = other.threads().join(&thread).join("chain");
    let one = fs::read_dir(&planted).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&one).unwrap();
    fs::write(&one, text.replacen("rotated_at\": \"2", "rotated_at\": \"3", 1)).unwrap();
    let without = other.command(&["export", &thread]).output().unwrap();
    assert!(without.status.success() && without.stdout.len() < there.stdout.len());
}

#[test]
fn every_changed_part_of_an_archive_is_named_without_a_store() {
    let (ours, thread, _theirs, file) = exported();
    let key = ours.root().join("key.pem");
    fs::write(&key, ours.run(&["keys", "export"]).stdout).unwrap();
    let key = key.display().to_string();
    let whole = fs::read(&file).unwrap();
    let changed = ours.root().join("changed.tar");
    let check = |bytes: &[u8]| {
        fs::write(&changed, bytes).unwrap();
        stranger(&["verify", changed.to_str().unwrap(), "--public-key", &key, "--json"])
    };
    assert_eq!(check(&whole).code, Some(0));
    let at = whole.windows(5).position(|bytes| bytes == b"hello").unwrap();
    let mut edited = whole.clone();
    edited[at] = b'j';
    let ran = check(&edited);
    let error = ran.error_beside_data(6, "log_damaged");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains("changed.tar --public-key ") && hint.contains("key.pem --explain"), "{error}");
    let verdict = ran.records().remove(0);
    assert_eq!((&verdict["thread_id"], &verdict["unchanged_up_to"]), (&thread.as_str().into(), &0.into()));
    assert!(verdict["damage"]["file"].as_str().unwrap().ends_with("changed.tar"));
    check(&whole[..1000]).error_beside_data(6, "integrity");
    check(b"noise").error_beside_data(6, "integrity");
    assert_eq!(ours.run(&["export", &thread, "-o", "-"]).code, Some(0));
    assert!(!ours.project().join("-").exists(), "`-` is stdout");
}

/// An archive of a log that is signed by hand: a thread of this id, with one message of this role.
fn hand_signed(sandbox: &Sandbox, thread: &str, role: &str) -> String {
    let signer = KeyFolder::load(&sandbox.home().join("keys/signing")).unwrap();
    let log_id = "00112233445566778899aabbccddeeff";
    let mut log = String::new();
    let mut add = |seq: u64, kind: &str, payload: &str| {
        let at = "2026-11-15T00:00:00.000000Z";
        log.push_str(&format!(
            r#"{{"seq":{seq},"timestamp":"{at}","thread_id":"{thread}","event_type":"{kind}","payload":{payload}"#
        ));
        if kind == "checkpoint" {
            let start = log.rfind('\n').map_or(0, |end| end + 1);
            let sig = signer.sign(selvedge_log::keys::DOMAIN_CHECKPOINT, &log.as_bytes()[start..]);
            log.push_str(&format!(r#","sig":"{sig}"}}"#));
        }
        log.push_str("}\n");
        (log.len(), selvedge_log::hash::sha256(log.as_bytes()))
    };
    let checkpoint = |version: u64, (bytes, hash): (usize, selvedge_model::Digest)| {
        let signer = signer.fingerprint();
        format!(
            r#"{{"version":{version},"reason":"Lifecycle","epoch":0,"log_id":"{log_id}","segment":0,"byte_offset":{bytes},"hash":"{hash}","signer":"{signer}""#
        )
    };
    let birth = format!(r#"{{"format":1,"log_id":"{log_id}","segment":0,"kind":"agent","agent_id":"scribe"}}"#);
    let end = add(0, "thread_created", &birth);
    add(1, "checkpoint", &checkpoint(0, end));
    let end = add(2, "message", &format!(r#"{{"role":"{role}","content":"hello"}}"#));
    add(3, "checkpoint", &checkpoint(1, end));
    let folder = sandbox.root().join("by-hand").join(thread);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("transcript.jsonl"), log).unwrap();
    let file = sandbox.root().join(format!("{thread}.tar")).display().to_string();
    let mut tar = Command::new("tar");
    tar.args(["--format=ustar", "-cf", &file, "-C"]).arg(sandbox.root().join("by-hand")).arg(thread);
    assert!(tar.status().unwrap().success());
    file
}

/// It was sent back to its sender, although it is as it was signed, and one signature was left out of the count.
#[test]
fn a_log_that_is_only_not_understood_is_not_asked_for_again() {
    let sandbox = Sandbox::new();
    let file = hand_signed(&sandbox, "scribe-0123456789ab", "oracle");
    let ran = sandbox.run(&["verify", &file, "--json"]);
    let error = ran.error_beside_data(6, "unknown_payload");
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains("newer Selvedge") && !hint.contains("again"), "{error}");
    assert!(sandbox.run(&["verify", &file]).stdout.contains("checked 2 signatures, 4 lines"), "{ran:?}");
    let error = sandbox.run(&["import", &file, "--json"]).error_beside_data(6, "unknown_payload");
    assert!(!error["hint"].as_str().unwrap().contains("again"), "{error}");
    // The same log with a role that is known is sound.
    let file = hand_signed(&sandbox, "scribe-ab0123456789", "user");
    assert_eq!(sandbox.run(&["verify", &file]).code, Some(0));
}

/// The hint was to choose another id, which an import can't.
#[test]
fn a_thread_of_a_reserved_name_is_not_offered_another_id() {
    let sandbox = Sandbox::new();
    let file = hand_signed(&sandbox, "registry.db-journal", "user");
    let ran = sandbox.run(&["import", &file]);
    assert!(ran.code != Some(0) && ran.stderr.contains("the store itself has a file of that name"), "{ran:?}");
    assert!(ran.stderr.contains("can't be imported") && !ran.stderr.contains("another id"), "{ran:?}");
}

/// A parent that started a child and paid for it, of one user.
fn family() -> (Sandbox, String, String) {
    let price = "price: {input_per_million_tokens: 1, output_per_million_tokens: 2}\n";
    let ours = children::family(
        &(price.to_owned() + &children::calling(children::SPAWN)),
        &(price.to_owned() + children::PAYS),
    );
    let ran = ours.run(&["run", "parent", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let parent = crate::running::thread_of(&ran);
    let tree = ours.run(&["tree", &parent, "--json"]).json();
    let child = tree["children"][0]["thread_id"].as_str().unwrap().to_owned();
    (ours, parent, child)
}

/// Whether every view of a thread's money says that a log of its family is not here.
fn is_incomplete(sandbox: &Sandbox, thread: &str, expected: bool) {
    for args in [&["budget", thread][..], &["tree", thread], &["thread", "show", thread]] {
        let shown = sandbox.run(args);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        assert_eq!(shown.stdout.contains("incomplete"), expected, "{args:?}: {shown:?}");
        let told = sandbox.run(&[args, &["--json"]].concat()).json();
        let said = if args[0] == "budget" { &told["accounts"][0]["incomplete"] } else { &told["incomplete"] };
        assert_eq!(said.as_bool().unwrap_or(false), expected, "{args:?}: {told}");
    }
}

/// The parent came alone and had posted nothing after its child: no posting was known to be missing, and its account passed for whole.
#[test]
fn an_account_without_a_childs_log_is_incomplete_in_every_view() {
    let (ours, parent, child) = family();
    let theirs = Sandbox::new();
    trust(&theirs, &ours);
    let folder = theirs.root().join("family");
    assert_eq!(ours.run(&["export", &parent, "--tree", "-o", folder.to_str().unwrap()]).code, Some(0));
    let file = |thread: &str| folder.join(format!("{thread}.tar")).display().to_string();
    let part = theirs.run(&["import", &file(&parent), "--json"]);
    assert!(part.stderr.contains("incomplete"), "{part:?}");
    is_incomplete(&theirs, &parent, true);
    let alone = theirs.run(&["budget", &parent, "--verify", "--json"]).json();
    assert_eq!(alone["verified"]["verdict"], "incomplete", "{alone}");
    // A rebuilt database says it too.
    let rebuilt = theirs.run(&["reindex", "--json"]);
    assert_ne!(rebuilt.json()["incomplete_accounts"], serde_json::json!([]), "{rebuilt:?}");
    is_incomplete(&theirs, &parent, true);
    let rest = theirs.run(&["import", &file(&child), "--json"]);
    assert_eq!(rest.json()["incomplete_accounts"], serde_json::json!([]), "{rest:?}");
    is_incomplete(&theirs, &parent, false);
    assert_eq!(theirs.run(&["reindex", "--json"]).json()["incomplete_accounts"], serde_json::json!([]));
    is_incomplete(&theirs, &parent, false);
    is_incomplete(&ours, &parent, false);
}

/// A member of a family that came alone was reported as damage of the others, doctor warned of what the archive left out, and its
/// account depended on the order of the files.
#[test]
fn a_family_can_be_exported_whole_or_in_part() {
    let (ours, parent, child) = family();
    let theirs = Sandbox::new();
    trust(&theirs, &ours);
    let folder = theirs.root().join("family");
    let exported = ours.run(&["export", &parent, "--tree", "-o", folder.to_str().unwrap(), "--json"]);
    assert_eq!(exported.records().len(), 2, "{exported:?}");
    let file = |thread: &str| folder.join(format!("{thread}.tar")).display().to_string();
    // A part: the others are missing, and that is not damage.
    let part = theirs.run(&["import", &file(&child), "--json"]);
    assert!(part.stderr.contains("incomplete"), "{part:?}");
    assert_eq!(part.json()["incomplete_accounts"].as_array().unwrap().len(), 2, "{part:?}");
    is_incomplete(&theirs, &child, true);
    let all = theirs.run(&["verify", "--all", "--json"]);
    assert_eq!(all.code, Some(0), "{all:?}");
    assert_eq!(all.json()["missing"][0]["thread_id"], parent.as_str());
    assert!(theirs.run(&["verify", "--all"]).stdout.contains("missing: "));
    assert_eq!(theirs.run(&["doctor", "--deep"]).code, Some(0));
    // Its account can't be checked, which is no damage either, and its figures are not made up.
    let alone = theirs.run(&["budget", &child, "--verify", "--json"]).json();
    let verified = &alone["verified"];
    assert_eq!(
        (&verified["verdict"], &verified["differences"]),
        (&"incomplete".into(), &serde_json::json!([])),
        "{alone}"
    );
    assert!(
        verified["unavailable"][0].as_str().unwrap().contains(&format!("the log of `{parent}` is not in this store"))
    );
    assert_eq!(alone["accounts"][0]["incomplete_cause"], "not_in_store");
    // What its own log says of its account is the same as in the store it came from.
    let there = ours.run(&["budget", &child, "--json"]).json();
    let of_child = there["accounts"].as_array().unwrap().iter().find(|account| account["account"] == child.as_str());
    for figure in ["max_nanos", "own_nanos", "reserved_nanos", "remaining_nanos", "status", "version"] {
        assert_eq!(alone["accounts"][0][figure], of_child.unwrap()[figure], "{figure}: {alone}\n{there}");
    }
    let shown = theirs.run(&["budget", &child, "--verify"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.stdout.contains("what is left of its limit is unknown"), "{shown:?}");
    assert!(!shown.stdout.contains('✓') && !shown.stderr.contains("repair"), "{shown:?}");
    // The rest: everything is as it was.
    let rest = theirs.run(&["import", &file(&parent), "--json"]);
    assert_eq!((rest.json()["incomplete_accounts"].as_array().unwrap().len(), rest.stderr.as_str()), (0, ""));
    is_incomplete(&theirs, &child, false);
    is_incomplete(&theirs, &parent, false);
    assert_eq!(theirs.run(&["verify", "--all", "--json"]).records()[0]["missing"], serde_json::json!([]));
    let doctor = theirs.run(&["doctor", "--deep"]);
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
    let budget = |sandbox: &Sandbox| {
        let told = sandbox.run(&["budget", &parent, "--verify", "--json"]).json();
        assert_eq!(told["verified"]["holds"], true, "{told}");
        told["accounts"].clone()
    };
    assert_eq!(budget(&theirs), budget(&ours));
    // In the other order it is the same.
    let others = Sandbox::new();
    trust(&others, &ours);
    assert_eq!(others.run(&["import", &file(&parent), &file(&child)]).code, Some(0));
    assert_eq!(budget(&others), budget(&ours));
    let chain = others.root().join("chain");
    let exported = ours.run(&["export", &child, "--chain", "-o", chain.to_str().unwrap(), "--json"]);
    assert_eq!(exported.json()["thread_id"], child.as_str());
    ours.run(&["export", &child, "--tree", "-o", chain.to_str().unwrap(), "--json"]).error(5, "file_exists");
}
