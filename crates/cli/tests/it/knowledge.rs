//! Knowledge from the command line, and the tools with which agents read and write it.

use std::fs;

use serde_json::{Value, json};

use crate::running::{put, thread_of};
use crate::support::Sandbox;

#[test]
fn an_entry_is_created_signed_searched_shown_and_checked() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&["knowledge", "new", "docs/api"]).code, Some(0));
    assert_ne!(sandbox.run(&["knowledge", "new", "docs/api"]).code, Some(0), "an existing file stays");
    put(&sandbox, ".ai/knowledge/docs/notes.md", "Invoices of 2026, see the API.\n");
    let found = |query: &str| sandbox.run(&["knowledge", "search", query, "--json"]).json()["results"].clone();
    assert_eq!(found("api")[0]["condition"], "unsigned");
    assert_eq!(sandbox.run(&["knowledge", "sign", "docs/api"]).code, Some(0));
    let both = found("api");
    let ids: Vec<_> = both.as_array().unwrap().iter().map(|one| (&one["id"], &one["condition"])).collect();
    assert_eq!(ids, [(&json!("docs/api"), &json!("signed_and_intact")), (&json!("docs/notes"), &json!("unsigned"))]);
    assert_eq!(found("invoices NOT api"), json!([]));
    let shown = sandbox.run(&["knowledge", "show", "docs/api", "--json"]).json();
    assert_eq!(
        (&shown["metadata"]["category"], &shown["metadata"]["entry_type"]),
        (&json!("docs"), &json!("reference"))
    );
    assert!(shown["text"].as_str().unwrap().starts_with("Write here"));
    assert_eq!(sandbox.run(&["knowledge", "check"]).code, Some(0));
    // An edit after the signature, metadata that can't be read, and a link.
    let file = sandbox.project().join(".ai/knowledge/docs/api.md");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("Write here", "Write there")).unwrap();
    assert_eq!(found("api")[0]["condition"], "damaged");
    put(&sandbox, ".ai/knowledge/docs/bomb.md", &format!("---\na: {}\n---\nText.\n", "[".repeat(5_000)));
    std::os::unix::fs::symlink("/etc/hostname", sandbox.project().join(".ai/knowledge/docs/link.md")).unwrap();
    let checked = sandbox.run(&["knowledge", "check", "--json"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    let bad: Vec<String> = checked
        .records()
        .into_iter()
        .filter(|entry| entry["ok"] == false)
        .map(|entry| entry["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(bad, ["docs/api", "docs/bomb", "docs/link"]);
    assert!(sandbox.run(&["knowledge", "search", "host", "--json"]).json()["results"].as_array().unwrap().is_empty());
}

#[test]
fn an_entry_of_the_project_shadows_that_of_the_user_and_the_search_says_so() {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/knowledge/rules.md", "Rules of the project.\n");
    let user = sandbox.home().join("knowledge/rules.md");
    fs::create_dir_all(user.parent().unwrap()).unwrap();
    fs::write(user, "Rules of the user.\n").unwrap();
    let found = sandbox.run(&["knowledge", "search", "rules", "--json"]).json();
    let shown: Vec<_> =
        found["results"].as_array().unwrap().iter().map(|one| (&one["layer"], &one["shadowed"])).collect();
    assert_eq!(shown, [(&json!("project"), &json!(false)), (&json!("user"), &json!(true))]);
}

#[test]
fn agents_search_read_and_write_knowledge_where_they_are_allowed_to_and_over_none_of_a_person() {
    let sandbox = Sandbox::new();
    let directive = "---\nname: learn\nmodel: scripted:script.yaml\npermissions: [selvedge.fetch.knowledge.docs.*, selvedge.fetch.knowledge.notes.*, selvedge.sign.knowledge.notes.*]\n---\nLearn.\n";
    put(&sandbox, ".ai/directives/learn.md", directive);
    put(&sandbox, ".ai/knowledge/docs/api.md", "GET /views.\n");
    put(&sandbox, ".ai/knowledge/secret/key.md", "GET nothing.\n");
    put(&sandbox, ".ai/knowledge/notes/mine.md", "Written by a person.\n");
    let call = |tool: &str, arguments: Value| format!("  - calls: [{{ tool: {tool}, arguments: {arguments} }}]\n");
    let note = |id: &str| json!({"id": id, "title": "A note", "text": "Views are paged.", "tags": ["api"]});
    let script = String::from("turns:\n")
        + &call("knowledge_search", json!({"query": "get"}))
        + &call("knowledge_read", json!({"id": "docs/api"}))
        + &call("knowledge_read", json!({"id": "secret/key"}))
        + &call("knowledge_write", note("notes/views"))
        + &call("knowledge_write", note("notes/views"))
        + &call("knowledge_write", note("notes/mine"))
        + &call("knowledge_write", note("docs/api"))
        + "  - say: Done.\n";
    put(&sandbox, "script.yaml", &script);
    let ran = sandbox.run(&["run", "learn", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let thread = thread_of(&ran);
    let log = sandbox.run(&["log", &thread, "--json"]).records();
    let outcomes: Vec<&Value> =
        log.iter().filter(|line| line["event_type"] == "tool_outcome").map(|line| &line["payload"]).collect();
    let found = &outcomes[0]["result"]["results"];
    assert_eq!(found.as_array().unwrap().iter().map(|one| &one["id"]).collect::<Vec<_>>(), ["docs/api"]);
    assert_eq!(outcomes[1]["result"]["text"], "GET /views.");
    for (outcome, says) in [(2, "no capability"), (5, "notes/mine.md"), (6, "no capability")] {
        let error = outcomes[outcome]["error"].as_str().unwrap_or_else(|| panic!("{outcome}: {outcomes:?}"));
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(outcomes[4]["result"]["success"], true, "its own entry is replaced");
    let file = sandbox.project().join(".ai/knowledge/notes/views.md");
    assert_eq!(sandbox.run(&["verify", "--document", file.to_str().unwrap()]).code, Some(0));
    let shown = sandbox.run(&["knowledge", "show", "notes/views", "--json"]).json();
    assert_eq!((&shown["metadata"]["written_by"], &shown["condition"]), (&json!(thread), &json!("signed_and_intact")));
    let person = fs::read_to_string(sandbox.project().join(".ai/knowledge/notes/mine.md")).unwrap();
    assert_eq!(person, "Written by a person.\n");
}
