//! MCP servers through the program: nothing starts without its user's approval, and nothing is left when the program is killed.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::Sandbox;

const SERVER: &str = r#"echo $$ >> started
while read -r line; do
  printf '%s\n' "$line" >> heard
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case $line in
    *server/discover*) result='{"supportedVersions":["2026-07-28"]}' ;;
    *tools/list*) result="{\"tools\":[{\"name\":\"pay\",\"description\":\"$(cat description)\",\"inputSchema\":{\"type\":\"object\"}}]}" ;;
    *tools/call*) if [ -e hang ]; then sleep 1000; fi; result='{"content":[{"type":"text","text":"paid"}]}' ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;
const SCRIPT: &str = "turns:\n  - calls: [{ tool: bank.pay }]\n  - say: Done.\n";
const DIRECTIVE: &str = "---\nname: payday\npermissions: [tool.mcp.bank.pay]\n---\nPay.\n";

fn declared() -> Sandbox {
    let sandbox = Sandbox::new();
    let project = sandbox.project();
    for (path, text) in [
        ("server.sh", SERVER),
        ("script.yaml", SCRIPT),
        (".ai/directives/payday.md", DIRECTIVE),
        ("description", "Pays."),
    ] {
        fs::create_dir_all(project.join(path).parent().unwrap()).unwrap();
        fs::write(project.join(path), text).unwrap();
    }
    let added = sandbox.run(&["mcp", "add", "bank", "--env", "PATH", "--json", "--", "sh", "server.sh"]);
    assert_eq!((added.code, &added.json()["server"]), (Some(0), &"bank".into()), "{}", added.stderr);
    sandbox
}

fn standing(sandbox: &Sandbox) -> String {
    sandbox.run(&["mcp", "list", "--json"]).json()["approval"].as_str().unwrap().to_owned()
}

fn pay(sandbox: &Sandbox) -> crate::support::Ran {
    sandbox.run(&["run", "payday", "--model", "scripted:script.yaml"])
}

#[test]
fn a_server_of_a_project_never_starts_before_its_user_approved_it() {
    let sandbox = declared();
    let started = sandbox.project().join("started");
    assert_eq!(standing(&sandbox), "not approved");
    sandbox.run(&["mcp", "check", "bank", "--json"]).error(4, "mcp_not_approved");
    sandbox.run(&["mcp", "check", "bonk", "--json"]).error(3, "mcp_not_found");
    let ran = pay(&sandbox);
    assert!(ran.stderr.contains("MCP server `bank` is not approved"), "{}", ran.stderr);
    sandbox.run(&["tool", "list", "--why"]);
    sandbox.run(&["mcp", "approve", "bank", "--dry-run"]);
    assert!(!started.exists(), "nothing started it");

    let approved = sandbox.run(&["mcp", "approve", "bank", "--json"]).json();
    assert_eq!((&approved["protocol"], &approved["tools"][0]["class"]), (&"2026-07-28".into(), &"at_most_once".into()));
    let ran = pay(&sandbox);
    assert!(ran.stdout.contains("paid") || ran.stderr.contains("paid"), "{} {}", ran.stdout, ran.stderr);
    let why = sandbox.run(&["tool", "list", "--why"]).stdout;
    assert!(why.contains("bank.pay\n  from project: an approved MCP server\n  needs `tool.mcp.bank.pay`"), "{why}");

    // Another declaration is another program.
    let file = sandbox.project().join(".ai/config/agent/mcp.yaml");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("server.sh", "other.sh")).unwrap();
    assert_eq!(standing(&sandbox), "changed");
    sandbox.run(&["mcp", "check", "bank", "--json"]).error(4, "mcp_not_approved");
}

#[test]
fn an_approval_that_was_edited_or_lies_elsewhere_counts_for_nothing() {
    let sandbox = declared();
    sandbox.run(&["mcp", "approve", "bank"]);
    assert_eq!(standing(&sandbox), "approved");
    let folder = sandbox.home().join("mcp");
    let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("Pays.", "Pays twice.")).unwrap();
    assert_eq!(standing(&sandbox), "invalid");
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(sandbox.project().join(".ai/mcp")).unwrap();
    fs::write(sandbox.project().join(".ai/mcp").join(file.file_name().unwrap()), &text).unwrap();
    assert_eq!(standing(&sandbox), "not approved", "a project can't vouch for itself");
}

#[test]
fn a_changed_description_stops_the_tool_and_the_log_says_so() {
    let sandbox = declared();
    sandbox.run(&["mcp", "approve", "bank"]);
    fs::write(sandbox.project().join("description"), "Pays me.").unwrap();
    let ran = pay(&sandbox);
    assert!(!ran.stdout.contains("paid"), "{}", ran.stdout);
    assert!(!fs::read_to_string(sandbox.project().join("heard")).unwrap().contains("tools/call"), "it was not sent");
    let log = sandbox.run(&["log", "@", "--json"]).stdout;
    assert!(log.contains("describes it otherwise than when it was approved"), "{log}");
    let checked = sandbox.run(&["mcp", "check", "bank", "--json"]).json();
    assert_eq!(checked["changes"][0], "the description of `pay` changed");
    sandbox.run(&["mcp", "approve", "bank"]);
    assert!(pay(&sandbox).stdout.contains("paid"));
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_program_that_is_killed_leaves_no_server_and_an_unknown_outcome() {
    let sandbox = declared();
    sandbox.run(&["mcp", "approve", "bank"]);
    fs::write(sandbox.project().join("hang"), "").unwrap();
    let mut command = sandbox.command(&["run", "payday", "--model", "scripted:script.yaml"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let heard = sandbox.project().join("heard");
    eventually("it is called", || fs::read_to_string(&heard).is_ok_and(|text| text.contains("tools/call")));
    child.kill().unwrap();
    child.wait().unwrap();
    let started = fs::read_to_string(sandbox.project().join("started")).unwrap();
    let pid = started.lines().last().unwrap().to_owned();
    eventually("the server is gone", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
    });
    fs::remove_file(sandbox.project().join("hang")).unwrap();
    let ran = sandbox.run(&["resume", "@"]);
    assert_eq!(ran.code, Some(7), "{} {}", ran.stdout, ran.stderr);
    let log = sandbox.run(&["log", "@", "--json"]).stdout;
    assert!(log.contains("\"outcome_unknown\""), "{log}");
    let calls = fs::read_to_string(&heard).unwrap().matches("tools/call").count();
    assert_eq!(calls, 1, "it is not called again");
}
