//! `selvedge keys`: rotating under load, trusting, revoking, losing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use crate::support::{HELLO, Sandbox};

fn current(sandbox: &Sandbox) -> String {
    sandbox.run(&["keys", "list", "--json"]).json()["current"].as_str().unwrap().to_owned()
}

fn signers(verdict: &Value) -> Vec<&str> {
    verdict["signers"].as_array().unwrap().iter().map(|signer| signer["fingerprint"].as_str().unwrap()).collect()
}

#[test]
fn a_rotated_key_goes_on_and_idle_threads_stay_valid() {
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
    assert!(sandbox.run(&["log", &busy]).stdout.contains("takes over from"));
    let listed = sandbox.run(&["keys", "list", "--json"]).json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&listed["keys"][0]["took_over_from"], &listed["keys"][1]["taken_over_by"]),
        (&first.into(), &second.into())
    );
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
    let (thread, trust) = (selvedge_model::ThreadId::new(thread).unwrap(), selvedge_log::Trust::of(&[key]));
    let examined = examine(copy, Scanner::new(&thread, &trust, Signatures::Every), |_| {}).unwrap();
    assert!(examined.damage.is_none() && examined.head().unwrap().version == 1, "{:?}", examined.damage);
}

#[test]
fn a_rotation_that_was_cut_short_is_finished_by_the_next_one() {
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
fn a_tampered_chain_is_refused_by_name_and_reading_goes_on() {
    let (sandbox, thread) = Sandbox::with_thread();
    let to = sandbox.run(&["keys", "rotate", "--json"]).json()["to"].as_str().unwrap().to_owned();
    let file = sandbox.home().join(format!("keys/chain/{to}.json"));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("rotated_at\": \"2", "rotated_at\": \"3")).unwrap();
    let append = || sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], HELLO.as_bytes());
    let error = append().error(6, "key_chain_refused");
    assert!(error["message"].as_str().unwrap().contains(&to), "{error}");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    fs::remove_file(&file).unwrap();
    append().error(4, "other_signer");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(append().json()["version"], 1);
}

#[test]
fn a_key_is_trusted_exported_and_revoked_by_any_unique_beginning() {
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

    // Their project, seen with my trust.
    let verify = || {
        let mut command = other.command(&["verify", &thread, "--json"]);
        command.env("SELVEDGE_HOME", sandbox.home()).output().unwrap()
    };
    assert_eq!(verify().status.code(), Some(0));
    let revoked = sandbox.run(&["keys", "revoke", &theirs[..8], "--json"]).json();
    assert!(revoked["revoked_at"].is_string());
    let verdict = verify();
    assert_eq!(verdict.status.code(), Some(6));
    let stdout = String::from_utf8(verdict.stdout).unwrap();
    assert!(stdout.contains("which was revoked") && stdout.contains("revoked_key"), "{stdout}");
    sandbox.run(&["keys", "trust", file, "--owner", "Ada", "--json"]).error(5, "trust_revoked");
    assert_eq!(fs::read_dir(sandbox.home().join("keys/trusted")).unwrap().count(), 2, "marked, not deleted");
    sandbox.run(&["keys", "revoke", "zz", "--json"]).error(3, "key_not_found");
    sandbox.run(&["keys", "revoke", "", "--json"]).error(3, "key_not_found");
    let private = sandbox.home().join("keys/signing/private_key.pem");
    sandbox.run(&["keys", "trust", private.to_str().unwrap(), "--owner", "x", "--json"]).error(2, "invalid_key");
}

#[test]
fn the_own_key_is_revoked_only_on_purpose_and_then_signs_no_more() {
    let (sandbox, thread) = Sandbox::with_thread();
    let own = current(&sandbox);
    let error = sandbox.run(&["keys", "revoke", &own, "--json"]).error(2, "own_key");
    assert!(error["hint"].as_str().unwrap().contains("--yes"));
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
    assert_eq!(sandbox.run(&["keys", "revoke", &own, "--yes"]).code, Some(0));
    sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], HELLO.as_bytes()).error(4, "key_revoked");
    sandbox.run(&["verify", &thread, "--json"]).error_beside_data(6, "revoked_key");
    assert_eq!(sandbox.run(&["state", &thread]).code, Some(6), "what is not believed is not shown as if it were");
    // A new key makes new threads, and does not go on with those of a revoked one.
    assert_eq!(sandbox.run(&["keys", "rotate"]).code, Some(0));
    sandbox.run_with(&["append", &thread, "--expect", "0", "--json"], HELLO.as_bytes()).error(4, "other_signer");
    let new = sandbox.new_thread("scribe");
    sandbox.append(&new, "0", HELLO);
}

#[test]
fn a_lost_private_key_is_said_plainly_and_everything_stays_readable() {
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
        let error = ran.error(3, "key_lost");
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
    let hint = append().error(3, "key_absent")["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains(&own[..16]) && hint.contains("readable and verifiable"), "{hint}");
    sandbox.run(&["init"]);
    append().error(4, "other_signer");
    assert_eq!(sandbox.run(&["verify", &thread]).code, Some(0));
}
