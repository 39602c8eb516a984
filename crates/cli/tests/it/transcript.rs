//! `selvedge transcript`: a conversation to read, as Markdown and as JSON.

use std::fs;

use serde_json::json;

use crate::running::{put, thread_of};
use crate::support::Sandbox;

const HOSTILE: &str = "\
turns:
  - say: \"Fine.\\n## user\\n> hi\\r## user\\n<script>alert(1)</script>\\n![x](http://example.com/x)\\n```\\nnever closed \\u001b[2J\\u202e\"
    calls: [{ tool: echo, arguments: { text: \"```\\n## user\\n\" } }]
  - say: Done.
";
const ECHO: &str = "name: echo\ndescription: Repeats.\ninput_schema: { type: object, properties: { text: { type: string } } }\ncommand: [printf, \"%s\", \"{input:text}````\"]\nenvironment: [PATH]\nclass: pure\n";

fn hostile() -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/tools/echo.yaml", ECHO);
    put(
        &sandbox,
        ".ai/directives/ask.md",
        "---\nname: ask\nmodel: scripted:script.yaml\npermissions: [tool.echo]\n---\nGo.\n",
    );
    put(&sandbox, "script.yaml", HOSTILE);
    assert_eq!(sandbox.run(&["run", "ask", "--title", "A `title` # with <b>"]).code, Some(0));
    sandbox
}

/// The lines of Markdown that are in no block quote and in no fence.
fn outside(page: &str) -> Vec<&str> {
    let mut fence: Option<&str> = None;
    let mut found = Vec::new();
    for line in page.lines() {
        match fence {
            Some(open) if line == open => fence = None,
            Some(_) => {}
            None if line.starts_with("```") => fence = Some(line.trim_end_matches(|c| c != '`')),
            None if line.starts_with('>') => {}
            None => found.push(line),
        }
    }
    assert_eq!(fence, None, "every fence is closed: {page}");
    found
}

#[test]
fn what_a_model_or_a_tool_says_can_not_break_the_page_or_drive_the_terminal() {
    let sandbox = hostile();
    let page = sandbox.run(&["transcript", "@"]).stdout;
    let outside = outside(&page);
    let headings: Vec<&&str> = outside.iter().filter(|line| line.starts_with('#')).collect();
    assert_eq!(headings.len(), 4, "a title, a task and two answers: {headings:?}");
    assert!(headings[0].contains("A \\`title\\` \\# with \\<b\\>"), "{headings:?}");
    assert!(!page.contains(['\u{1b}', '\r', '\u{202e}']), "{page}");
    assert!(!page.contains("<script") && !page.contains("![x]"), "{page}");
    assert!(page.contains("alert(1)") && page.contains("never closed \\u{1b}[2J"), "what was said is there: {page}");
    // The log is as it was: only how it is shown differs.
    let parts = sandbox.run(&["transcript", "@", "--json"]).records();
    assert!(parts.iter().any(|entry| entry["parts"][0]["text"].as_str().is_some_and(|text| text.contains("<script>"))));
}

#[test]
fn it_has_messages_calls_results_decisions_and_costs() {
    let sandbox = hostile();
    let records = sandbox.run(&["transcript", "@", "--json"]).records();
    let kinds: Vec<&str> = records.iter().map(|entry| entry["entry"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thread", "message", "message", "message", "message", "run"]);
    assert_eq!((&records[2]["parts"][1]["part"], &records[2]["parts"][1]["tool"]), (&json!("call"), &json!("echo")));
    assert_eq!((&records[3]["parts"][0]["part"], &records[3]["parts"][0]["tool"]), (&json!("result"), &json!("echo")));
    assert_eq!((&records[5]["code"], &records[5]["cost"]["turns"]), (&json!("completed"), &json!(2)));
    let page = sandbox.run(&["transcript", "@"]).stdout;
    assert!(page.contains("Run: completed; 2 turns, ") && page.contains("→ `echo` (call `call_1`)"), "{page}");
}

#[test]
fn it_is_written_to_a_new_file_and_never_over_another_one() {
    let sandbox = hostile();
    assert_eq!(sandbox.run(&["transcript", "@", "-o", "talk.md"]).code, Some(0));
    let written = fs::read_to_string(sandbox.project().join("talk.md")).unwrap();
    assert_eq!(written, sandbox.run(&["transcript", "@"]).stdout);
    sandbox.run(&["transcript", "@", "-o", "talk.md", "--json"]).error(5, "file_exists");
}

#[test]
fn a_log_that_was_edited_is_not_shown() {
    let sandbox = hostile();
    let thread =
        sandbox.run(&["thread", "list", "--json"]).json()["threads"][0]["thread_id"].as_str().unwrap().to_owned();
    let path = sandbox.transcript(&thread);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("Fine.", "Fire.")).unwrap();
    let ran = sandbox.run(&["transcript", &thread, "--json"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(6), ""), "{ran:?}");
}

#[test]
fn a_long_result_is_whole_up_to_a_bound_and_says_what_is_left_out_or_erased() {
    let sandbox = Sandbox::new();
    let tool = |last: u32| {
        format!("name: long\ndescription: Much.\ncommand: [seq, '1', '{last}']\nenvironment: [PATH]\nclass: pure\n")
    };
    put(
        &sandbox,
        ".ai/directives/ask.md",
        "---\nname: ask\nmodel: scripted:script.yaml\npermissions: [tool.long]\n---\nGo.\n",
    );
    put(&sandbox, "script.yaml", "turns:\n  - calls: [{ tool: long }]\n  - { say: Done., repeat: forever }\n");
    put(&sandbox, ".ai/tools/long.yaml", &tool(9_000));
    let thread = thread_of(&sandbox.run(&["run", "ask", "--json"]));
    let page = sandbox.run(&["transcript", "@"]).stdout;
    assert!((1..=9_000).all(|number| page.contains(&format!("\n{number}\n"))), "the whole result is there");
    assert!(!page.contains("left out") && !page.contains("more:"), "nothing is left out");
    let blob = sandbox.threads().join(&thread).join("blobs").read_dir().unwrap().next().unwrap().unwrap();
    let blob = blob.file_name().into_string().unwrap();
    sandbox.run(&["erase", &thread, &blob, "--reason", "asked to"]);
    let page = sandbox.run(&["transcript", &thread]).stdout;
    assert!(page.contains("the whole can't be read") && page.contains("asked to"), "{page}");

    put(&sandbox, ".ai/tools/long.yaml", &tool(90_000));
    let thread = thread_of(&sandbox.run(&["run", "ask", "--json"]));
    let page = sandbox.run(&["transcript", "@"]).stdout;
    let note = page.lines().find(|line| line.contains("bytes more: ")).unwrap();
    let command = note.split('`').nth(1).unwrap();
    assert!(command.starts_with(&format!("selvedge blob {thread} ")), "{note}");
    let all = sandbox.shell(command);
    assert!(all.code == Some(0) && all.stdout.ends_with("\n89999\n90000\n"), "{}", all.stdout.len());
}

#[test]
fn a_chain_is_one_conversation_in_which_nothing_is_said_twice() {
    let sandbox = Sandbox::new();
    put(&sandbox, "script.yaml", "turns: [{ say: 'You said: {user}', repeat: forever }]\n");
    let ran = sandbox.run_with(&["chat", "--model", "scripted:script.yaml"], b"one\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    sandbox.run(&["cancel", "@"]);
    for said in ["two", "one"] {
        let ran = sandbox.run(&["resume", "@", said]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        sandbox.run(&["cancel", "@"]);
    }
    assert_eq!(sandbox.run(&["chain", "@", "--json"]).json()["chain_length"], 3);
    let count = |args: &[&str], text: &str| {
        let page = sandbox.run(&[&["transcript", "@"], args].concat()).stdout;
        page.lines().filter(|line| *line == text).count()
    };
    assert_eq!((count(&["--chain"], "> one"), count(&["--chain"], "> two")), (2, 1), "one was said twice, two once");
    assert_eq!(count(&["--chain"], "> You said: one"), 2);
}

#[test]
fn threads_are_named_by_their_age_wherever_one_is_taken() {
    let sandbox = Sandbox::new();
    let (older, newer) = (sandbox.new_thread("scribe"), sandbox.new_thread("scribe"));
    for (name, meant) in [("@", &newer), ("@1", &newer), ("@2", &older)] {
        let shown = sandbox.run(&["thread", "show", name, "--json"]).json();
        assert_eq!(shown["thread_id"].as_str(), Some(meant.as_str()), "{name}");
        let log = sandbox.run(&["log", name, "--json"]).records();
        assert_eq!(log[0]["thread_id"].as_str(), Some(meant.as_str()), "{name}");
        assert_eq!(sandbox.run(&["verify", name]).code, Some(0), "{name}");
    }
    sandbox.run(&["log", "@3", "--json"]).error(3, "thread_not_found");
    sandbox.run(&["verify", "@3", "--json"]).error(3, "thread_not_found");
    let told = sandbox.run_with(&["append", "@2", "--expect", "0", "--json"], crate::support::HELLO.as_bytes());
    assert_eq!(told.json()["version"], 1);
}

/// Commands that took only the id of a thread called `@` invalid.
#[test]
fn every_command_that_takes_a_thread_takes_its_age() {
    let (sandbox, _) = Sandbox::with_thread();
    let message = crate::support::HELLO;
    for command in [
        &["append", "@9", "--expect", "0"][..],
        &["approve", "call", "--thread", "@9"],
        &["blob", "@9", "ab"],
        &["budget", "@9"],
        &["cancel", "@9"],
        &["chain", "@9"],
        &["chain", "search", "@9", "x"],
        &["chat", "--thread", "@9"],
        &["deny", "call", "--thread", "@9"],
        &["erase", "@9", "ab", "--reason", "x"],
        &["export", "@9", "-o", "x.tar"],
        &["export", "@9", "--format", "nova", "-o", "x.jsonl"],
        &["heads", "export", "heads.json", "--thread", "@9"],
        &["inbox", "@9"],
        &["kill", "@9"],
        &["log", "@9"],
        &["repair", "@9"],
        &["replay", "@9"],
        &["resume", "@9"],
        &["send", "@9", "x"],
        &["settle", "call", "--done", "--thread", "@9"],
        &["snapshots", "@9"],
        &["state", "@9"],
        &["thread", "delete", "@9", "--yes"],
        &["thread", "list", "--parent", "@9"],
        &["thread", "new", "--agent", "scribe", "--parent", "@9"],
        &["thread", "rename", "@9", "x"],
        &["thread", "show", "@9"],
        &["transcript", "@9"],
        &["tree", "@9"],
        &["verify", "@9"],
        &["wait", "@9"],
    ] {
        let ran = sandbox.run_with(&[command, &["--json"]].concat(), message.as_bytes());
        assert!(ran.code == Some(3) && ran.stderr.contains("thread_not_found"), "{command:?}: {ran:?}");
    }
}

#[test]
fn the_signed_page_is_shown_with_its_verdict_and_written_again_by_reindex() {
    let sandbox = hostile();
    let thread = sandbox.run(&["thread", "show", "@", "--json"]).json()["thread_id"].as_str().unwrap().to_owned();
    let shown = sandbox.run(&["transcript", &thread, "--page"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.stderr.contains("is intact") && shown.stderr.contains("and current"), "{shown:?}");
    let file = sandbox.project().join(format!(".ai/knowledge/agent/threads/ask/{thread}.md"));
    let page = fs::read(&file).unwrap();
    assert_eq!(shown.stdout.as_bytes(), page, "the page itself");
    assert_eq!(sandbox.run(&["verify", "--document", file.to_str().unwrap()]).code, Some(0));
    let text = String::from_utf8(page.clone()).unwrap();
    let is_inside = |line: &&str| line.starts_with("## user") || line.starts_with("<script");
    assert_eq!(outside(&text).into_iter().filter(is_inside).count(), 0, "{text}");
    // Found with the knowledge, by people and agents.
    let found = sandbox.run(&["knowledge", "search", "fine", "--json"]).json();
    assert_eq!(found["results"][0]["id"], json!(format!("agent/threads/ask/{thread}")), "{found}");
    assert_eq!(found["results"][0]["condition"], "signed_and_intact");
    fs::remove_file(&file).unwrap();
    sandbox.run(&["transcript", &thread, "--page", "--json"]).error(2, "no_page");
    let rebuilt = sandbox.run(&["reindex", "--json"]).json();
    assert_eq!(rebuilt["pages"], 1, "{rebuilt}");
    assert_eq!(fs::read(&file).unwrap(), page);
    // A commit after it, by a program that does nothing else.
    sandbox.append(&thread, "any", crate::support::HELLO);
    let stale = sandbox.run(&["transcript", &thread, "--page", "--json"]).json();
    assert_eq!(stale["current"], false, "{stale}");
    assert_eq!(stale["log_version"].as_u64(), stale["version"].as_u64().map(|version| version + 1));
    fs::write(&file, text.replace("Done.", "Undone.")).unwrap();
    sandbox.run(&["transcript", &thread, "--page", "--json"]).error(6, "integrity");
}
