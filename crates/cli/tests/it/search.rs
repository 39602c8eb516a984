//! `selvedge search`, the tool `search_threads`, and searches that look into blobs.

use std::fs;

use serde_json::{Value, json};

use crate::children::{calling, family};
use crate::running::{put, thread_of};
use crate::support::{Ran, Sandbox};

/// A message of a user, as a changeset.
fn says(text: &str) -> String {
    json!({"reason": "UserMessage", "messages": [{"role": "user", "content": text}]}).to_string()
}

/// A thread of an agent with these messages; its id.
fn thread(sandbox: &Sandbox, agent: &str, messages: &[&str]) -> String {
    let thread = sandbox.new_thread(agent);
    for (version, text) in messages.iter().enumerate() {
        sandbox.append(&thread, &version.to_string(), &says(text));
    }
    thread
}

fn results(ran: &Ran) -> Vec<Value> {
    ran.json()["results"].as_array().unwrap().clone()
}

fn found(sandbox: &Sandbox, args: &[&str]) -> Vec<String> {
    let all = results(&sandbox.run(&[&["search", "--json"], args].concat()));
    all.iter().map(|found| found["thread_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_search_shows_the_passage_its_place_and_the_command_that_opens_it() {
    let sandbox = Sandbox::new();
    let rain = thread(&sandbox, "scribe", &["Good morning.", "The invoice for the rain coat was not paid.", "Thanks."]);
    let other = thread(&sandbox, "clerk", &["The invoice is a draft.", "a NEAR b, foo:bar and 🎉 \"quoted"]);
    let ran = sandbox.run(&["search", "invoice \"not paid\"", "--json"]);
    let [hit] = results(&ran).try_into().unwrap();
    assert_eq!((hit["thread_id"].as_str(), hit["kind"].as_str()), (Some(rain.as_str()), Some("message")));
    assert_eq!(hit["passage"], "The invoice for the rain coat was not paid.");
    assert_eq!((&hit["before"], &hit["after"]), (&json!("Good morning."), &json!("Thanks.")));
    assert_eq!(hit.get("unverified"), None);
    // The command shows the line with the passage.
    let command = hit["command"].as_str().unwrap().to_owned();
    let words: Vec<&str> = command.split(' ').skip(1).chain(["--json"]).collect();
    let line = sandbox.run(&words).json();
    assert_eq!((&line["seq"], &line["payload"]["content"]), (&hit["line_no"], &hit["passage"]), "{command}");
    // Filters and operators; what only looks like syntax is text.
    for (query, wanted) in [
        (&["invoice NOT draft"][..], vec![&rain]),
        (&["draft OR coat", "--agent", "clerk"], vec![&other]),
        (&["agent:scribe invoice"], vec![&rain]),
        (&["invoice", "--status", "created", "--since", "1h", "--directive", "none"], vec![]),
        (&["invoice", "--since", "2020-01-01", "--agent", "scribe"], vec![&rain]),
        (&["a NEAR b"], vec![&other]),
        (&["foo:bar"], vec![&other]),
        (&["🎉"], vec![&other]),
        (&["\"quoted"], vec![&other]),
        (&["inv*", "coat"], vec![&rain]),
        (&["absent"], vec![]),
    ] {
        assert_eq!(found(&sandbox, query).iter().collect::<Vec<_>>(), wanted, "{query:?}");
    }
    assert_eq!(sandbox.run(&["search", "\"", "NOT", "--json"]).code, Some(0), "an operator alone is text");
    sandbox.run(&["search", " ", "--json"]).error(2, "invalid_query");
    sandbox.run(&["search", "x", "--since", "yesterday", "--json"]).error(2, "usage");
    let shown = sandbox.run(&["search", "coat"]);
    assert!(shown.stdout.contains("was not paid") && shown.stdout.contains("before Good morning."), "{shown:?}");
    // A deleted thread is gone.
    assert_eq!(sandbox.run(&["thread", "delete", &rain, "--yes"]).code, Some(0));
    assert_eq!(found(&sandbox, &["invoice"]), [other]);
}

#[test]
fn a_damaged_or_unsigned_source_is_marked() {
    let sandbox = Sandbox::new();
    let damaged = thread(&sandbox, "scribe", &["The heron was here.", "Later words."]);
    let sound = thread(&sandbox, "scribe", &["The heron was there."]);
    assert_eq!(found(&sandbox, &["heron"]).len(), 2);
    let path = sandbox.transcript(&damaged);
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("Later words.", "Later w0rds.")).unwrap();
    let all = results(&sandbox.run(&["search", "heron", "--json"]));
    let of = |thread: &str| all.iter().find(|found| found["thread_id"] == thread).unwrap();
    assert_eq!(of(&sound).get("unverified"), None);
    assert!(of(&damaged)["unverified"]["code"].is_string(), "{all:?}");
    assert_eq!(of(&damaged)["passage"], "The heron was here.", "shown, with the mark");
    assert!(sandbox.run(&["search", "heron"]).stdout.contains("not verified: "));
    // A reader that does not trust the signer gets every result marked.
    let trusted = sandbox.home().join("keys/trusted");
    fs::rename(&trusted, sandbox.root().join("elsewhere")).unwrap();
    fs::rename(sandbox.home().join("keys/signing"), sandbox.root().join("signing")).unwrap();
    let all = results(&sandbox.run(&["search", "heron", "--json"]));
    assert!(!all.is_empty() && all.iter().all(|found| found["unverified"]["code"].is_string()), "{all:?}");
}

#[test]
fn without_a_key_what_the_index_lacks_is_said() {
    let sandbox = Sandbox::new();
    let early = thread(&sandbox, "scribe", &["early heron"]);
    assert_eq!(found(&sandbox, &["heron"]), [early]);
    thread(&sandbox, "scribe", &["late heron"]);
    fs::rename(sandbox.home().join("keys/signing"), sandbox.root().join("signing")).unwrap();
    let ran = sandbox.run(&["search", "heron", "--json"]);
    assert_eq!(ran.json()["commits_not_searched"], 2);
    assert_eq!(results(&ran).len(), 1);
    let said = sandbox.run(&["search", "heron"]).stderr;
    assert!(said.contains("2 commits not searched"), "{said}");
}

/// A result of more than 32 KiB becomes a blob: the number in its middle is on no line of the log.
#[test]
fn every_search_looks_into_blobs_and_says_what_it_could_not() {
    const LONG: &str =
        "name: long\ndescription: Much.\ncommand: [seq, '10001', '19000']\nenvironment: [PATH]\nclass: pure\n";
    const ASK: &str = "---\nname: ask\nmodel: scripted:script.yaml\npermissions: [tool.long]\n---\nGo.\n";
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/tools/long.yaml", LONG);
    put(&sandbox, ".ai/directives/ask.md", ASK);
    put(&sandbox, "script.yaml", "turns:\n  - calls: [{ tool: long }]\n  - { say: Done., repeat: forever }\n");
    let thread = thread_of(&sandbox.run(&["run", "ask", "--json"]));
    assert!(!fs::read_to_string(sandbox.transcript(&thread)).unwrap().contains("15555"));
    let [hit] = results(&sandbox.run(&["search", "15555", "--json"])).try_into().unwrap();
    assert_eq!((hit["kind"].as_str(), hit["thread_id"].as_str()), (Some("blob"), Some(thread.as_str())));
    let command = hit["command"].as_str().unwrap().to_owned();
    let words: Vec<&str> = command.split(' ').skip(1).chain(["--json"]).collect();
    let shown = sandbox.run(&words).json();
    let text = shown["text"].as_str().unwrap();
    let offset = usize::try_from(hit["offset"].as_u64().unwrap()).unwrap();
    assert!(text[offset..].starts_with(hit["passage"].as_str().unwrap()), "the passage is where it says");
    // A chain is searched without an index.
    let chain = sandbox.run(&["chain", "search", &thread, "15555", "--json"]).json();
    assert_eq!(chain["results"][0]["blob"], hit["blob"], "{chain}");
    assert_eq!(chain["not_searched"]["blobs_unreadable"], 0);
    // What can't be read is counted, not skipped in silence.
    let name = hit["blob"].as_str().unwrap();
    fs::remove_file(sandbox.threads().join(&thread).join("blobs").join(name)).unwrap();
    let chain = sandbox.run(&["chain", "search", &thread, "15555", "--json"]).json();
    assert_eq!((&chain["results"], &chain["not_searched"]["blobs_unreadable"]), (&json!([]), &json!(1)));
    let said = sandbox.run(&["chain", "search", &thread, "15555"]).stderr;
    assert!(said.contains("1 blob that is missing or damaged"), "{said}");
}

#[test]
fn an_agent_finds_its_own_threads_and_no_others() {
    let own = |query: &str| calling(&format!("{{ tool: search_threads, arguments: {{ query: \"{query}\" }} }}"));
    let sandbox = family(&own("heron"), "turns: [{say: ok}]\n");
    let mine = thread(&sandbox, "agent", &["my heron"]);
    thread(&sandbox, "clerk", &["a heron of the clerk"]);
    let hear = |query: &str| {
        put(&sandbox, "script.yaml", &own(query));
        let ran = sandbox.run(&["run", "parent", "--json"]);
        let said = ran.records().pop().unwrap()["result"].as_str().unwrap_or_default().to_owned();
        let answer: Value = serde_json::from_str(said.strip_prefix("Heard: ").unwrap_or_default()).unwrap_or_default();
        answer["results"].as_array().cloned().unwrap_or_else(|| panic!("{ran:?}"))
    };
    let all = hear("heron");
    assert!(all.iter().any(|found| found["thread_id"] == mine.as_str()), "{all:?}");
    assert!(all.iter().all(|found| found["agent_id"] == "agent"), "{all:?}");
    assert_eq!(hear("agent:clerk heron"), [] as [Value; 0]);
    assert_eq!(hear("clerk NOT agent:agent"), [] as [Value; 0]);
    // Neither the database nor the index decides whose thread it is.
    let index = sandbox.threads().join("search.db");
    let planted = rusqlite::Connection::open(index).unwrap();
    planted.execute("UPDATE threads SET agent_id = 'agent'", []).unwrap();
    drop(planted);
    let all = hear("heron");
    assert!(all.iter().all(|found| found["agent_id"] == "agent"), "{all:?}");
    assert!(!all.iter().any(|found| found["passage"] == "a heron of the clerk"), "{all:?}");
}
