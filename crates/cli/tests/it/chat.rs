//! `selvedge chat`: a conversation on one durable thread, piped in.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;

use serde_json::{Value, json};

use crate::running::{put, status};
use crate::support::{Ran, Sandbox};

const SCRIPT: &str = "\
turns:
  - when: { result: { contains: paid } }
    say: \"It is done: {result}\"
    repeat: forever
  - when: { result: { contains: denied } }
    say: \"As you like: {result}\"
    repeat: forever
  - when: { user: { contains: pay } }
    say: I will pay.
    calls: [{ tool: pay, arguments: { to: anna, amount: 20 } }]
    repeat: forever
  - when: { user: { contains: loop } }
    calls: [{ tool: file_list, arguments: { path: . } }]
    repeat: forever
  - when: { user: { contains: slow } }
    say: ['Slowly, I ', { text: 'go on.', delay_ms: 60000 }]
    repeat: forever
  - say: \"You said: {user}\"
    repeat: forever
";

fn project() -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/agents/clerk.yaml", "capabilities: [tool.pay, tool.file.list]\nmodel: scripted:script.yaml\n");
    put(
        &sandbox,
        ".ai/tools/pay.yaml",
        "name: pay\ndescription: Pays.\ninput_schema: { type: object, properties: { to: { type: string }, amount: { type: integer } } }\n\
         command: [sh, -c, \"echo paid | tee -a paid.txt\"]\nenvironment: [PATH]\n",
    );
    put(&sandbox, ".ai/config/agent/approvals.yaml", "rules: [{ id: money, tool: pay, action: ask }]\n");
    put(&sandbox, "script.yaml", SCRIPT);
    sandbox
}

fn threads(sandbox: &Sandbox) -> Vec<String> {
    let listed = sandbox.run(&["thread", "list", "--json"]).json();
    listed["threads"].as_array().unwrap().iter().map(|one| one["thread_id"].as_str().unwrap().to_owned()).collect()
}

fn chat(sandbox: &Sandbox, args: &[&str], lines: &str) -> Ran {
    sandbox.run_with(&[&["chat"], args].concat(), lines.as_bytes())
}

fn said(sandbox: &Sandbox, thread: &str) -> Vec<String> {
    let entries = sandbox.run(&["transcript", thread, "--json"]).records();
    let messages = entries.iter().filter(|entry| entry["entry"] == "message");
    messages.map(|message| message["parts"][0]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

fn has_paid(sandbox: &Sandbox) -> bool {
    sandbox.project().join("paid.txt").exists()
}

#[test]
fn every_line_is_a_message_on_one_thread_and_the_next_chat_continues_it() {
    let sandbox = project();
    let ran = chat(&sandbox, &[], "one\n\ntwo \\\nand more\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "You said: one\nYou said: two \nand more\n"), "{ran:?}");
    let ran = chat(&sandbox, &["clerk"], "three");
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "You said: three\n"),
        "without a newline at the end: {ran:?}"
    );
    let [thread] = &threads(&sandbox)[..] else { panic!("there is one thread") };
    let expected = ["one", "You said: one", "two \nand more", "You said: two \nand more", "three", "You said: three"];
    assert_eq!(said(&sandbox, thread), expected);
    assert_eq!(sandbox.run(&["verify", thread]).code, Some(0));
}

#[test]
fn an_empty_chat_leaves_no_thread_behind() {
    let sandbox = project();
    for lines in ["", "\n", "/quit\nhello\n", "/help\n"] {
        let ran = chat(&sandbox, &[], lines);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    }
    assert!(threads(&sandbox).is_empty());
}

#[test]
fn the_active_thread_is_remembered_for_each_agent_and_found_again_if_that_is_lost() {
    let sandbox = project();
    put(&sandbox, ".ai/agents/other.yaml", "description: Another.\n");
    chat(&sandbox, &["clerk"], "first\n");
    chat(&sandbox, &["clerk", "--new"], "second\n");
    chat(&sandbox, &["other"], "elsewhere\n");
    let threads = threads(&sandbox);
    let [other, second, first] = &threads[..] else { panic!("{threads:?}") };
    chat(&sandbox, &["clerk"], "again\n");
    assert_eq!(said(&sandbox, second)[2], "again");
    // The older one is active once it was chosen.
    chat(&sandbox, &["--thread", "@3"], "back\n");
    chat(&sandbox, &["clerk"], "still here\n");
    assert_eq!(
        (&said(&sandbox, first)[2..3], &said(&sandbox, first)[4..5]),
        (&["back".to_owned()][..], &["still here".to_owned()][..])
    );
    // A run of a directive and a bare thread are no conversations.
    put(&sandbox, ".ai/directives/go.md", "---\nname: go\n---\nGo.\n");
    assert_eq!(sandbox.run(&["run", "go", "--agent", "clerk"]).code, Some(0));
    sandbox.new_thread("clerk");
    for lost in [true, false] {
        let folder = sandbox.home().join("chats");
        if lost {
            std::fs::remove_dir_all(&folder).unwrap();
        } else {
            // What it names was deleted.
            let ran = sandbox.run(&["thread", "delete", second, "--yes"]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
        chat(&sandbox, &["clerk"], "found\n");
        let expected = if lost { second } else { first };
        assert_eq!(said(&sandbox, expected).iter().filter(|text| *text == "found").count(), 1, "{lost}");
    }
    assert_eq!(said(&sandbox, other).len(), 2);
    let error = chat(&sandbox, &["clerk", "--thread", other, "--json"], "x\n").error(2, "usage");
    assert!(error["message"].as_str().unwrap().contains("other"), "{error}");
}

/// It went to an agent that the project does not have.
#[test]
fn of_several_agents_one_must_be_named_and_the_last_one_is_remembered() {
    let sandbox = project();
    put(&sandbox, ".ai/agents/other.yaml", "description: Another.\n");
    let error = chat(&sandbox, &["--json"], "hello\n").error(2, "usage");
    assert!(error["message"].as_str().unwrap().contains("`clerk`, `other`"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("`selvedge chat clerk`"), "{error}");
    assert!(threads(&sandbox).is_empty());
    assert_eq!(chat(&sandbox, &["clerk"], "one\n").stdout, "You said: one\n");
    assert_eq!(chat(&sandbox, &[], "two\n").stdout, "You said: two\n");
    chat(&sandbox, &["other"], "elsewhere\n");
    chat(&sandbox, &[], "here\n");
    let [other, clerk] = &threads(&sandbox)[..] else { panic!("there are two threads") };
    assert_eq!((said(&sandbox, other).len(), said(&sandbox, clerk).len()), (4, 4));
    std::fs::remove_file(sandbox.project().join(".ai/agents/other.yaml")).unwrap();
    assert_eq!(chat(&sandbox, &[], "three\n").stdout, "You said: three\n", "the only one that is left");
}

#[test]
fn a_conversation_that_waits_for_nothing_has_nothing_to_resume() {
    let sandbox = project();
    for (line, said) in
        [("/resume\n", "your next message continues"), ("/raise turns=50\n", "the conversation has reached no limit")]
    {
        let ran = chat(&sandbox, &["--json"], &format!("hello\n{line}"));
        let error = ran.error_beside_data(2, "usage");
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
}

#[test]
fn an_approval_is_asked_in_place_and_answered_by_the_next_line() {
    let sandbox = project();
    let ran = chat(&sandbox, &[], "pay her\nn, too much\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("? pay {\"amount\":20,\"to\":\"anna\"} needs approval"), "{ran:?}");
    assert!(ran.stdout.contains("As you like: denied") && ran.stdout.contains("too much"), "{ran:?}");
    assert!(!has_paid(&sandbox));
    let ran = chat(&sandbox, &[], "pay her\ny\nthanks\n");
    assert!(ran.code == Some(0) && ran.stdout.ends_with("It is done: paid\n\nYou said: thanks\n"), "{ran:?}");
    assert!(has_paid(&sandbox));
}

/// A message that followed by chance was taken for an answer.
#[test]
fn what_is_no_answer_approves_nothing() {
    let sandbox = project();
    for lines in ["pay her\nyes please do it\n", "pay her\nhello\ny\n", "pay her\n"] {
        let ran = chat(&sandbox, &["--new", "--json"], lines);
        ran.error_beside_data(7, "needs_decision");
        assert!(!has_paid(&sandbox), "{lines}");
    }
    // A message in place of an answer: the call is not made, and the conversation goes on.
    let ran = chat(&sandbox, &[], "never mind\n");
    assert!(ran.code == Some(0) && ran.stdout.contains("You said: never mind"), "{ran:?}");
    assert!(!has_paid(&sandbox));
}

#[test]
fn with_json_everything_is_one_object_per_line() {
    let sandbox = project();
    let ran = chat(&sandbox, &["--json"], "pay her\ny\nthanks\n");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let records = ran.records();
    let told: Vec<&str> = records.iter().filter_map(|record| record["type"].as_str()).collect();
    assert_eq!(told.iter().filter(|word| **word == "ended").count(), 3, "{told:?}");
    let asking = records.iter().find(|record| record["type"] == "asking").unwrap();
    assert_eq!((&asking["tool"], &asking["arguments"]), (&json!("pay"), &json!({"to": "anna", "amount": 20})));
    let decided = records.iter().find(|record| record["decision"] == "approve").unwrap();
    assert_eq!(decided["call_id"], asking["call_id"]);
    assert!(told.contains(&"draft") && told.contains(&"calling"), "{told:?}");
}

#[test]
fn a_limit_ends_the_turn_and_raise_goes_on() {
    let sandbox = project();
    put(&sandbox, ".ai/config/agent/limits.yaml", "turns: 2\n");
    let ran = chat(&sandbox, &["--json"], "loop\n");
    ran.error_beside_data(8, "limit_reached");
    let calls = |ran: &Ran| ran.records().iter().filter(|record| record["type"] == "calling").count();
    assert_eq!(calls(&ran), 2, "{ran:?}");
    let ran = chat(&sandbox, &["--json"], "/raise turns=5\n");
    ran.error_beside_data(8, "limit_reached");
    assert_eq!(calls(&ran), 3, "{ran:?}");
    chat(&sandbox, &["--json"], "/raise turns\n").error(2, "usage");
    // A message starts the count again.
    let ran = chat(&sandbox, &[], "hello\n");
    assert!(ran.code == Some(0) && ran.stdout.contains("You said: hello"), "{ran:?}");
}

#[test]
fn the_failure_of_an_earlier_line_is_told_and_the_last_one_counts() {
    let sandbox = project();
    put(&sandbox, ".ai/config/agent/limits.yaml", "turns: 2\n");
    let ran = chat(&sandbox, &[], "loop\nhello\n");
    assert!(ran.code == Some(0) && ran.stdout.contains("You said: hello"), "{ran:?}");
    assert!(ran.stderr.contains("has reached a limit"), "{ran:?}");
}

#[test]
fn another_model_continues_the_same_thread() {
    let sandbox = project();
    put(&sandbox, "polite.yaml", "turns: [{ say: 'Gladly.', repeat: forever }]\n");
    chat(&sandbox, &[], "one\n");
    assert_eq!(chat(&sandbox, &["--model", "scripted:polite.yaml"], "two\n").stdout, "Gladly.\n");
    assert_eq!(chat(&sandbox, &[], "three\n").stdout, "You said: three\n", "the thread keeps its own");
    assert_eq!(threads(&sandbox).len(), 1);
}

#[test]
fn an_unknown_agent_or_model_is_refused_before_anything_is_read() {
    let sandbox = project();
    chat(&sandbox, &["clrk", "--json"], "hello\n").error(3, "item_not_found");
    chat(&sandbox, &["--model", "scripted:nothing.yaml", "--json"], "hello\n").error(3, "script_not_found");
    assert!(threads(&sandbox).is_empty());
    // Without any agent there is still one to talk with.
    let bare = Sandbox::new();
    let ran = chat(&bare, &[], "hello\n");
    assert!(ran.code == Some(0) && ran.stdout.contains("You told me: hello"), "{ran:?}");
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_thread() {
    let sandbox = project();
    let mut child = sandbox.command(&["chat", "--quiet"]).spawn().unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut stdout = BufReader::new(stdout);
    stdin.write_all(b"be slow\n").unwrap();
    let mut begun = [0; 6];
    stdout.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"Slowly");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    stdin.write_all(b"hello\n").unwrap();
    drop(stdin);
    let lines: Vec<String> = stdout.lines().map(Result::unwrap).collect();
    let ran = Ran::of_rest(child);
    assert!(ran.code == Some(0) && lines.contains(&"You said: hello".to_owned()), "{ran:?} {lines:?}");
    let [thread] = &threads(&sandbox)[..] else { panic!("there is one thread") };
    assert_eq!(status(&sandbox, thread), "completed");
    let entries = sandbox.run(&["transcript", thread, "--json"]).records();
    let partial: Vec<&Value> = entries.iter().filter(|entry| entry["entry"] == "partial").collect();
    assert_eq!(partial.len(), 1, "{entries:?}");
    assert_eq!(partial[0]["text"], "Slowly, I ");
}
