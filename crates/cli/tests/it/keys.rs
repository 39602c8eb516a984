//! `selvedge keys`: rotating under load, trusting, revoking, losing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use crate::support::{HELLO, Sandbox, copy};

fn current(sandbox: &Sandbox) -> String {
    sandbox.run(&["keys", "list", "--json"]).json()["current"].as_str().unwrap().to_owned()
}

fn signers(verdict: &Value) -> Vec<&str> {
    verdict["signers"].as_array().unwrap().iter().map(|signer| signer["fingerprint"].as_str().unwrap()).collect()
}

#[test]
fn a_rotated_key_continues_threads_and_idle_ones_stay_valid() {
    let (sandbox, busy) = Sandbox::with_thread();
    let idle = sandbox.new_thread("scribe");
    let first = current(&sandbox);
    let rotated = sandbox.run(&["keys", "rotate", "--json"]).json();
    assert_eq!((rotated["from"].as_str(), &rotated["resumed"]), (Some(&*first), &false.into()));
    let second = current(&sandbox);
    assert_eq!(rotated["to"].as_str(), Some(&*second));
    let retired = rotated["retired"].as_str().unwrap();
    assert_eq!(fs::metadata(retired).unwrap().permissions().mode() & 0o777, 0o600);

    sandbox.append(&busy, "0", HELLO);
    let verdicts = sandbox.run(&["verify", "--all", "--json"]).records();
    assert!(verdicts.iter().all(|verdict| verdict["sound"] == true), "{verdicts:?}");
    let of = |thread: &str| verdicts.iter().find(|verdict| verdict["thread_id"] == thread).unwrap();
    assert_eq!((signers(of(&busy)), signers(of(&idle))), (vec![&*first, &*second], vec![&*first]));
    assert!(sandbox.run(&["log", &busy]).stdout.contains(" replaces "));
    let listed = sandbox.run(&["keys", "list", "--json"]).json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 2);
    assert_eq!((&listed["keys"][0]["predecessor"], &listed["keys"][1]["successor"]), (&first.into(), &second.into()));
}

/// Four loops of real processes append to one shared thread and one of their own each; the key is rotated again and again
/// meanwhile.
#[test]
fn nothing_is_lost_when_the_key_is_rotated_while_four_processes_append() {
    const WRITERS: u64 = 4;
    const ROTATIONS: u64 = 5;
    const ENOUGH: u64 = 6;
    let (sandbox, shared) = Sandbox::with_thread();
    let own: Vec<String> = (0..WRITERS).map(|_| sandbox.new_thread("scribe")).collect();
    let first = current(&sandbox);
    sandbox.append(&shared, "0", HELLO);
    let old_copy = fs::read(sandbox.transcript(&shared)).unwrap();
    let done = AtomicBool::new(false);
    let write = |writer: usize| {
        let mut acknowledged = Vec::new();
        // Each writes on for a while behind the last rotation, so that every thread meets the newest key.
        let mut behind = 0;
        while behind < ENOUGH {
            if done.load(Ordering::Relaxed) {
                behind += 1;
            }
            let number = acknowledged.len();
            let id = format!("{writer}-{number}");
            let changeset =
                format!(r#"{{"reason":"UserMessage","messages":[{{"id":"{id}","role":"user","content":"{id}"}}]}}"#);
            let thread = if number % 2 == 0 { &shared } else { &own[writer] };
            let ran = sandbox
                .run_with(&["append", thread, "--expect", "any", "--wait", "60", "--json"], changeset.as_bytes());
            assert_eq!(ran.code, Some(0), "{ran:?}");
            acknowledged.push((thread.clone(), id));
        }
        acknowledged
    };
    let acknowledged: Vec<(String, String)> = thread::scope(|scope| {
        let write = &write;
        let writers: Vec<_> = (0..WRITERS as usize).map(|writer| scope.spawn(move || write(writer))).collect();
        for _ in 0..ROTATIONS {
            thread::sleep(std::time::Duration::from_millis(150));
            sandbox.run(&["keys", "rotate", "--json"]).json();
        }
        done.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });

    let last = current(&sandbox);
    let verdicts = sandbox.run(&["verify", "--all", "--json"]).records();
    assert_eq!(verdicts.len() as u64, WRITERS + 1);
    for verdict in &verdicts {
        assert_eq!(verdict["sound"], true, "{verdict}");
        let signers = signers(verdict);
        assert!(signers[0] == first && signers.last() == Some(&&*last), "{signers:?}");
        let mut once = signers.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), signers.len(), "no key signs again after another: {signers:?}");
    }
    for thread in own.iter().chain([&shared]) {
        let messages = sandbox.run(&["state", thread, "--json"]).json()["messages"].clone();
        let stored: Vec<&str> =
            messages.as_array().unwrap().iter().filter_map(|message| message["id"].as_str()).collect();
        for (_, id) in acknowledged.iter().filter(|(to, _)| to == thread) {
            assert_eq!(stored.iter().filter(|stored| *stored == id).count(), 1, "{id}");
        }
    }
    assert!(
        fs::read(sandbox.transcript(&shared)).unwrap().starts_with(&old_copy),
        "what was signed stands as it stood"
    );
    the_copy_still_verifies(&sandbox, &shared, &old_copy, &first);
}

/// A copy of a log from before a rotation, judged with the old public key and nothing else.
fn the_copy_still_verifies(sandbox: &Sandbox, thread: &str, copy: &[u8], signer: &str) {
    use selvedge_log::scan::{Scanner, Signatures, examine};
    let pem = sandbox.run(&["keys", "export", &signer[..12]]).stdout;
    let key = selvedge_log::keys::PublicKey::from_pem(&pem).unwrap();
    let thread = selvedge_model::ThreadId::new(thread).unwrap();
    let trust = selvedge_log::Trust::of(&[key]);
    let examined = examine(copy, Scanner::new(&thread, &trust, Signatures::Every), |_| {}).unwrap();
    assert!(examined.damage.is_none() && examined.head().unwrap().version == 1, "{:?}", examined.damage);
}

#[test]
fn an_interrupted_rotation_is_finished_by_the_next_one() {
    let (sandbox, thread) = Sandbox::with_thread();
    let keys = sandbox.home().join("keys");
    let first = current(&sandbox);
    // As a crash leaves it right before the new key is put in place: made in `next`, and nothing else done.
    fs::create_dir(keys.join("next")).unwrap();
    fs::set_permissions(keys.join("next"), fs::Permissions::from_mode(0o700)).unwrap();
    let other = Sandbox::new();
    fs::copy(other.home().join("keys/signing/private_key.pem"), keys.join("next/private_key.pem")).unwrap();
    sandbox.append(&thread, "0", HELLO);
    let rotated = sandbox.run(&["keys", "rotate", "--json"]).json();
    assert_eq!((rotated["from"].as_str(), rotated["to"].as_str()), (Some(&*first), Some(&*current(&other))));
    assert_eq!((&rotated["resumed"], keys.join("next").exists()), (&true.into(), false));
    sandbox.append(&thread, "1", HELLO);
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}

#[test]
fn a_tampered_key_chain_is_refused_and_reading_still_works() {
    let (sandbox, thread) = Sandbox::with_thread();
    let to = sandbox.run(&["keys", "rotate", "--json"]).json()["to"].as_str().unwrap().to_owned();
    let file = sandbox.home().join(format!("keys/chain/{to}.json"));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("rotated_at\": \"2", "rotated_at\": \"3")).unwrap();
    let append = || sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], HELLO.as_bytes());
    let error = append().error(6, "key_rotation_invalid");
    assert!(error["message"].as_str().unwrap().contains(&to), "{error}");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    fs::remove_file(&file).unwrap();
    append().error(6, "row_unsealed");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(append().json()["version"], 1);
}

#[test]
fn a_key_is_trusted_exported_and_revoked_by_any_unique_prefix() {
    let (sandbox, _) = Sandbox::with_thread();
    let (other, thread) = Sandbox::with_thread();
    let theirs = current(&other);
    let pem = sandbox.root().join("theirs.pem");
    fs::write(&pem, other.run(&["keys", "export"]).stdout).unwrap();
    let file = pem.to_str().unwrap();
    let trusted = sandbox.run(&["keys", "trust", file, "--owner", "Ada", "--json"]).json();
    assert_eq!((trusted["fingerprint"].as_str(), &trusted["added"]), (Some(&*theirs), &true.into()));
    let again = sandbox.run(&["keys", "trust", file, "--owner", "Eve", "--json"]).json();
    assert_eq!((again["owner"].as_str(), &again["added"]), (Some("Ada"), &false.into()));
    let exported = sandbox.run(&["keys", "export", &theirs[..8], "--json"]).json();
    assert_eq!(
        (exported["pem"].as_str(), exported["owner"].as_str()),
        (fs::read_to_string(&pem).ok().as_deref(), Some("Ada"))
    );

    // Their project, seen with my trust and without my key, which has sealed nothing there.
    let verify = || {
        let looks = tempfile::tempdir().unwrap();
        copy(&sandbox.home().join("keys/trusted"), &looks.path().join("keys/trusted"));
        for folder in ["", "keys", "keys/trusted"] {
            fs::set_permissions(looks.path().join(folder), fs::Permissions::from_mode(0o700)).unwrap();
        }
        let mut command = other.command(&["verify", &thread, "--json"]);
        command.env("SELVEDGE_HOME", looks.path()).output().unwrap()
    };
    assert_eq!(verify().status.code(), Some(0));
    let revoked = sandbox.run(&["keys", "revoke", &theirs[..8], "--json"]).json();
    assert!(revoked["revoked_at"].is_string());
    let verdict = verify();
    assert_eq!(verdict.status.code(), Some(6));
    let stdout = String::from_utf8(verdict.stdout).unwrap();
    assert!(stdout.contains("which was revoked") && stdout.contains("log_revoked_key"), "{stdout}");
    assert!(!stdout.contains("damaged"), "what is not believed is not damaged: {stdout}");
    let error = sandbox.run(&["keys", "trust", file, "--owner", "Ada", "--json"]).error(5, "trust_revoked");
    let way_back = format!("selvedge keys trust --again {}", &theirs[..16]);
    assert!(error["hint"].as_str().unwrap().contains(&way_back), "{error}");
    let error: Value = serde_json::from_slice(&verdict.stderr).unwrap();
    assert!(error["error"]["hint"].as_str().unwrap().contains(&way_back), "{error}");
    sandbox.run(&["keys", "trust", "--again", &theirs[..16], "--json"]).json();
    assert_eq!(verify().status.code(), Some(0), "the way back");
    sandbox.run(&["keys", "revoke", &theirs[..8], "--json"]).json();
    assert_eq!(fs::read_dir(sandbox.home().join("keys/trusted")).unwrap().count(), 2, "marked, not deleted");
    sandbox.run(&["keys", "revoke", "zz", "--json"]).error(3, "key_not_found");
    sandbox.run(&["keys", "revoke", "", "--json"]).error(3, "key_not_found");
    let private = sandbox.home().join("keys/signing/private_key.pem");
    sandbox.run(&["keys", "trust", private.to_str().unwrap(), "--owner", "x", "--json"]).error(2, "invalid_key");
}

#[test]
fn the_signing_key_is_revoked_only_with_confirmation_and_then_signs_no_more() {
    let (sandbox, thread) = Sandbox::with_thread();
    let own = current(&sandbox);
    let error = sandbox.run(&["keys", "revoke", &own, "--json"]).error(2, "own_key_not_confirmed");
    assert!(error["hint"].as_str().unwrap().contains("--yes"));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["keys", "revoke", &own, "--yes"]).code, Some(0));
    sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], HELLO.as_bytes()).error(4, "key_revoked");
    sandbox.run(&["verify", &thread, "--json"]).error_beside_data(6, "log_revoked_key");
    assert_eq!(sandbox.run(&["state", &thread]).code, Some(6), "what is not believed is not shown as if it were");
    // A new key makes new threads, and does not go on with those of a revoked one.
    assert_eq!(sandbox.run(&["keys", "rotate"]).code, Some(0));
    sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], HELLO.as_bytes()).error(6, "row_unsealed");
    let new = sandbox.new_thread("scribe");
    sandbox.append(&new, "0", HELLO);
}

/// Revoking an old key of one's own ended every thread it had ever signed, without a question and for good.
#[test]
fn an_earlier_own_key_is_revoked_only_with_confirmation_and_can_be_trusted_again() {
    let (sandbox, thread) = Sandbox::with_thread();
    let old = current(&sandbox);
    sandbox.run(&["keys", "rotate"]);
    sandbox.append(&thread, "0", HELLO);
    let error = sandbox.run(&["keys", "revoke", &old[..12], "--json"]).error(2, "own_key_not_confirmed");
    assert!(error["hint"].as_str().unwrap().contains("--yes"));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    let revoked = sandbox.run(&["keys", "revoke", &old[..12], "--yes"]);
    assert!(revoked.stderr.contains(&format!("selvedge keys trust --again {}", &old[..16])), "{revoked:?}");
    let verdict = sandbox.run(&["verify", &thread]);
    assert_eq!(verdict.code, Some(6));
    let wording = "signed by a key that is not trusted any more";
    assert!(verdict.stdout.contains(wording) && verdict.stderr.contains(wording), "{verdict:?}");
    assert!(!verdict.stdout.contains("damaged"), "{verdict:?}");
    let record = sandbox.run(&["verify", &thread, "--json"]).records().remove(0);
    assert_eq!((&record["damage"], record["untrusted_key"].as_str()), (&Value::Null, Some(&*old)));
    assert_eq!(sandbox.run(&["keys", "trust", "--again", &old[..16]]).code, Some(0));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    sandbox.append(&thread, "1", HELLO);
}

/// Two processes wait for a thread while the key is rotated and the thread meets the new one. Both run once more by themselves.
#[test]
fn commands_are_run_again_when_the_key_is_rotated_during_them() {
    use selvedge_log::{KeyChain, Trust};
    use selvedge_store::{Acquire, Leases};
    use std::time::Duration;

    let sandbox = Sandbox::new();
    let file = sandbox.root().join("pear.jsonl");
    let line = r#"{"role":"user","text":"a pear","timestamp":"t"}"#;
    fs::write(&file, format!("{{\"id\":\"pear\",\"agentId\":\"gardener\"}}\n{line}\n")).unwrap();
    let import = ["import", file.to_str().unwrap(), "--format", "nova", "--json"];
    sandbox.run(&import).json();
    let held = sandbox.open();
    let thread = "pear".parse().unwrap();
    held.acquire(&thread, Acquire::default()).unwrap();
    fs::write(&file, format!("{}{line}\n", fs::read_to_string(&file).unwrap())).unwrap();
    let owners = || fs::read_dir(sandbox.threads().join("owners")).unwrap().count();
    let before = owners();
    let waiting = [&["thread", "rename", "pear", "Pears", "--wait", "60", "--json"][..], &import]
        .map(|args| crate::support::feed(sandbox.command(args).spawn().unwrap(), b""));
    for _ in 0..1000 {
        if owners() >= before + 2 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(300));

    sandbox.run(&["keys", "rotate", "--json"]).json();
    let keys = sandbox.home().join("keys");
    let trust = Trust::load(&keys.join("trusted")).unwrap();
    let signer = selvedge_log::keys::KeyFolder::load(&keys.join("signing")).unwrap();
    let before = KeyChain::load(&keys.join("chain"), &trust).unwrap().predecessors(&signer.fingerprint());
    let former = before
        .iter()
        .filter_map(|key| {
            selvedge_log::keychain::rotate::retired(&selvedge_log::keychain::Folders::below(keys.clone()), key).unwrap()
        })
        .map(|key| key.seal_key());
    let former = former.collect();
    let rotated = sandbox.open_with(signer.succeeding(before).opening(former), trust);
    let lease = rotated.acquire(&thread, Acquire { take_over: true, ..Acquire::default() }).unwrap();
    use selvedge_model::{Batch, Changeset, Expect, Part, Reason};
    let part = Part::new(thread.clone(), Expect::Any, Changeset::empty(Reason::Lifecycle)).under(lease.epoch);
    selvedge_store::Commit::commit(&rotated, Batch::of(part)).unwrap();
    rotated.release(&lease).unwrap();
    rotated.close().unwrap();

    let [renamed, imported] = waiting.map(crate::support::Ran::of);
    assert!(renamed.json()["version"].is_u64(), "{renamed:?}");
    assert_eq!(imported.json()["outcome"], "extended", "{imported:?}");
    assert_eq!(sandbox.run(&["thread", "show", "pear", "--json"]).json()["title"], "Pears");
    assert_eq!(sandbox.run(&["verify", "pear"]).code, Some(0));
    drop(held);
}

/// Rows that the key before had sealed were called damage.
#[test]
fn doctor_accepts_rows_that_were_sealed_before_a_rotation() {
    let (sandbox, thread) = Sandbox::with_thread();
    let message = r#"{"reason":"UserMessage","messages":[{"id":"m1","role":"user","content":"hello"}]}"#;
    let ran = sandbox.run_with(&["append", &thread, "--expect", "0", "--key", "k1", "--json"], message.as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    sandbox.run(&["keys", "rotate", "--json"]).json();
    let ran = sandbox.run(&["doctor", "--deep", "--json"]);
    assert!(!ran.stdout.contains("database_differs"), "{ran:?}");
}

#[test]
fn a_lost_private_key_is_reported_and_everything_stays_readable() {
    let (sandbox, thread) = Sandbox::with_thread();
    sandbox.append(&thread, "0", HELLO);
    let own = current(&sandbox);
    let private = sandbox.home().join("keys/signing/private_key.pem");
    let kept = fs::read(&private).unwrap();
    fs::remove_file(&private).unwrap();
    for command in [
        &["verify", &thread][..],
        &["log", &thread],
        &["state", &thread],
        &["thread", "list"],
        &[],
        &["keys", "export"],
    ] {
        assert_eq!(sandbox.run(command).code, Some(0), "{command:?}");
    }
    assert_eq!(sandbox.run(&["keys", "list", "--json"]).json()["lost"].as_str(), Some(&*own));
    let append = || sandbox.run_with(&["append", &thread, "--expect", "1", "--json"], HELLO.as_bytes());
    for ran in [append(), sandbox.run(&["keys", "rotate", "--json"]), sandbox.run(&["init", "--json"])] {
        let error = ran.error(3, "private_key_missing");
        let hint = error["hint"].as_str().unwrap();
        for word in ["readable and verifiable", "nothing can be added", "from a copy", "selvedge init"] {
            assert!(hint.contains(word), "{hint}");
        }
    }
    fs::write(&private, &kept).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(append().json()["version"], 2, "a copy of the key mends it");
    // Without a copy: the whole folder gone, a new key, and what the old one signed still verifies.
    fs::remove_dir_all(sandbox.home().join("keys/signing")).unwrap();
    let hint = append().error(3, "signing_key_missing")["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains(&own[..16]) && hint.contains("readable and verifiable"), "{hint}");
    sandbox.run(&["init"]);
    append().error(6, "row_unsealed");
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    append().error(4, "wrong_signer");
    for command in [&["verify", &thread][..], &["log", &thread], &["state", &thread]] {
        assert_eq!(sandbox.run(command).code, Some(0), "{command:?}");
    }
}
