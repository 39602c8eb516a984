//! `selvedge init`, and where commands look for projects and keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::running::put;
use crate::support::{HELLO, Sandbox, contents, copy};

#[test]
fn init_creates_key_trust_and_store() {
    let sandbox = Sandbox::empty();
    let made = sandbox.run(&["init", "--json"]).json();
    assert_eq!(
        (&made["store_created"], &made["key_created"], &made["gitignore_created"]),
        (&true.into(), &true.into(), &true.into())
    );
    assert_eq!(made["project"].as_str(), sandbox.project().to_str());
    let key = made["key"].as_str().unwrap();
    assert!(sandbox.home().join(format!("keys/trusted/{key}.json")).is_file());
    let private = sandbox.home().join("keys/signing/private_key.pem");
    assert_eq!(fs::metadata(private).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(sandbox.threads().join("store.json").is_file());
}

#[test]
fn init_again_changes_nothing() {
    let (sandbox, _) = Sandbox::with_thread();
    fs::write(sandbox.project().join(".ai/.gitignore"), "mine\n").unwrap();
    let before = (contents(&sandbox.home()), contents(&sandbox.project()));
    let made = sandbox.run(&["init", "--bare", "--json"]).json();
    assert_eq!(
        (&made["store_created"], &made["key_created"], &made["gitignore_created"]),
        (&false.into(), &false.into(), &false.into())
    );
    assert!((contents(&sandbox.home()), contents(&sandbox.project())) == before);
}

#[test]
fn init_adds_what_is_missing_and_overwrites_nothing() {
    let (sandbox, _) = Sandbox::with_thread();
    put(&sandbox, ".ai/tools/greet.yaml", "mine\n");
    let made = sandbox.run(&["init", "--json"]).json();
    let expected = [".ai/agents/guide.yaml", ".ai/directives/hello.md", ".ai/directives/hello.yaml"];
    assert_eq!(made["files_created"], serde_json::json!(expected));
    assert_eq!(fs::read_to_string(sandbox.project().join(".ai/tools/greet.yaml")).unwrap(), "mine\n");
    let before = (contents(&sandbox.home()), contents(&sandbox.project()));
    assert_eq!(sandbox.run(&["init", "--json"]).json()["files_created"], serde_json::json!([]));
    assert!((contents(&sandbox.home()), contents(&sandbox.project())) == before, "again, nothing is missing");
    fs::remove_file(sandbox.project().join(".ai/tools/greet.yaml")).unwrap();
    let ran = sandbox.run(&["init"]);
    assert!(ran.stdout.contains("file   .ai/tools/greet.yaml (created)"), "{ran:?}");
}

#[test]
fn a_new_project_has_an_agent_a_directive_and_a_tool_that_work_offline() {
    let sandbox = Sandbox::empty();
    assert_eq!(sandbox.run(&["init"]).code, Some(0));
    let ran = sandbox.run(&["run", "hello"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("✓ Hello, world!"), "{ran:?}");
    let checked = sandbox.run(&["directive", "check", "--json"]);
    assert!(checked.code == Some(0) && checked.records().iter().all(|one| one["ok"] == true), "{checked:?}");
    let agents = sandbox.run(&["agent", "list", "--json"]).records();
    assert!(agents.iter().any(|agent| agent["id"] == "guide" && agent["error"].is_null()), "{agents:?}");
    let bare = Sandbox::new();
    assert!(!bare.project().join(".ai/agents").exists() && !bare.project().join(".ai/tools").exists());
}

#[test]
fn files_of_this_machine_are_kept_out_of_version_control() {
    let sandbox = Sandbox::new();
    let ignored = fs::read_to_string(sandbox.project().join(".ai/.gitignore")).unwrap();
    for name in ["agent/threads/*.db\n", "agent/threads/*.db-*\n", "agent/threads/*.lock\n", "agent/threads/owners/\n"]
    {
        assert!(ignored.contains(name), "{name}");
    }
}

#[test]
fn the_project_is_found_from_below_by_flag_and_by_variable() {
    let (sandbox, thread) = Sandbox::with_thread();
    let below = sandbox.project().join("a/b");
    fs::create_dir_all(&below).unwrap();
    let shows = |command: &mut std::process::Command| command.output().unwrap().status.code();
    assert_eq!(shows(sandbox.command(&["thread", "show", &thread]).current_dir(&below)), Some(0));
    assert_eq!(
        shows(sandbox.command(&["thread", "show", &thread]).current_dir("/").env("SELVEDGE_DIR", &below)),
        Some(0)
    );
    let project = sandbox.project();
    let flagged = ["-C", project.to_str().unwrap(), "thread", "show", &thread];
    assert_eq!(shows(sandbox.command(&flagged).current_dir("/").env("SELVEDGE_DIR", "/nowhere")), Some(0));
    sandbox.run(&["-C", "nowhere", "thread", "list", "--json"]).error(3, "file_not_found");
}

#[test]
fn without_a_store_the_hint_names_init() {
    let sandbox = Sandbox::empty();
    for command in [
        &["thread", "list"][..],
        &["log", "x"],
        &["state", "x"],
        &["verify", "--all"],
        &["append", "x", "--expect", "0"],
    ] {
        let error = sandbox.run(&[command, &["--json"]].concat()).error(3, "no_store");
        assert!(error["hint"].as_str().unwrap().contains("selvedge init"), "{error}");
    }
}

#[test]
fn without_a_key_nothing_is_written_and_the_hint_names_init() {
    let (sandbox, thread) = Sandbox::with_thread();
    fs::remove_dir_all(sandbox.home()).unwrap();
    let error = sandbox
        .run_with(&["append", &thread, "--expect", "0", "--json"], HELLO.as_bytes())
        .error(3, "signing_key_missing");
    assert!(error["hint"].as_str().unwrap().contains("selvedge init"));
    assert_eq!(sandbox.run(&["thread", "show", &thread, "--json"]).json()["version"], 0);
}

#[test]
fn a_project_can_not_vouch_for_itself() {
    let (sandbox, thread) = Sandbox::with_thread();
    let inside = sandbox.project().join(".ai/user");
    copy(&sandbox.home(), &inside);
    let ran = sandbox.command(&["verify", &thread, "--json"]).env("SELVEDGE_HOME", &inside).output().unwrap();
    assert_eq!(ran.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("keys_in_project"));
    // A user who never trusted the key does not trust it because the project has a copy.
    let ran = sandbox
        .command(&["verify", &thread, "--json"])
        .env("SELVEDGE_HOME", sandbox.root().join("other"))
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("not trusted"));
}

#[test]
fn selvedge_without_arguments_shows_the_status_and_next_steps() {
    let sandbox = Sandbox::empty();
    let here = sandbox.run(&["--json"]).json();
    assert_eq!((&here["project"], &here["key"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    assert_eq!(here["next"][0], "selvedge init");
    sandbox.run(&["init"]);
    let thread = sandbox.new_thread("scribe");
    let here = sandbox.run(&["--json"]).json();
    assert_eq!(here["newest"][0]["thread_id"], thread);
    assert!(here["next"][0].as_str().unwrap().contains(&thread));
}

#[test]
fn keys_are_in_the_folder_of_the_environment() {
    let sandbox = Sandbox::empty();
    let home = sandbox.root().join("h");
    let config = sandbox.root().join("config");
    let init = |config: &str| {
        let mut command = sandbox.command(&["init", "--json"]);
        let output =
            command.env_remove("SELVEDGE_HOME").env("HOME", &home).env("XDG_CONFIG_HOME", config).output().unwrap();
        let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        made["user"].as_str().unwrap().to_owned()
    };
    assert_eq!(Some(init(config.to_str().unwrap()).as_str()), config.join("selvedge").to_str());
    for ignored in ["", "relative"] {
        assert_eq!(Some(init(ignored).as_str()), home.join(".config/selvedge").to_str());
    }
}

#[test]
fn quiet_prints_only_data() {
    let sandbox = Sandbox::empty();
    assert_eq!(sandbox.run(&["init", "-q"]).stderr, "");
    let ran = sandbox.run(&["thread", "new", "--agent", "scribe", "-q"]);
    assert!(ran.stdout.starts_with("scribe-") && ran.stderr.is_empty(), "{ran:?}");
}

#[test]
fn colours_are_for_terminals_and_can_be_disabled() {
    let (sandbox, thread) = Sandbox::with_thread();
    let shown = |args: &[&str], name: &str, value: &str| {
        let output = sandbox.command(&[&["thread", "show", &thread], args].concat()).env(name, value).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!shown(&[], "ANY", "1").contains('\u{1b}'));
    assert!(shown(&[], "CLICOLOR_FORCE", "1").contains('\u{1b}'));
    assert!(!shown(&["--no-color"], "CLICOLOR_FORCE", "1").contains('\u{1b}'));
}

#[test]
fn json_can_be_asked_for_by_variable() {
    let sandbox = Sandbox::new();
    let run = |value: &str, args: &[&str]| sandbox.command(args).env("SELVEDGE_JSON", value).output().unwrap();
    assert!(run("1", &["thread", "list"]).stdout.starts_with(b"{\"threads\":"));
    assert!(run("1", &["sing"]).stderr.starts_with(b"{\"error\":"));
    assert!(run("0", &["thread", "list"]).stdout.is_empty());
}
