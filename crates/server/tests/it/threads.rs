//! Threads over HTTP.

use selvedge::{ThreadId, Value, json};
use selvedge_server::Scope;

use crate::support::{Ask, World, asking, world};

async fn start(world: &World, token: &str) -> ThreadId {
    let made = world.post("/v1/threads", token, json!({"text": "Hello.", "title": "Greeting"})).await;
    assert_eq!(made.status, 202, "{}", made.json());
    made.json()["thread_id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_is_started_followed_sent_to_and_read() {
    let world = world().await;
    let token = world.token(Scope::Run);
    let mut events = world.events(&token, None).await;
    assert_eq!(events.next().await.unwrap().0, "hello");
    let thread = start(&world, &token).await;
    world.answered(&thread, 2).await;
    let path = format!("/v1/threads/{thread}");
    let sent = world.post(&format!("{path}/send"), &token, json!({"text": "And again."})).await;
    assert_eq!(sent.status, 202);
    world.answered(&thread, 4).await;
    let messages = world.get(&format!("{path}/messages"), &token).await.json();
    let roles: Vec<&str> =
        messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    let shown = world.get(&path, &token).await.json();
    assert_eq!((shown["status"].as_str(), shown["title"].as_str()), (Some("completed"), Some("Greeting")));
    let listed = world.get("/v1/threads?status=completed", &token).await.json();
    assert_eq!(listed["threads"][0]["thread_id"], json!(thread));
    // The stream has each commit once, in order, with the lines that it added.
    let versions = shown["version"].as_u64().unwrap() + 1;
    let mut lines = 0;
    let mut positions = Vec::new();
    while (positions.len() as u64) < versions {
        let (name, id, data) = events.next().await.unwrap();
        if name == "commit" {
            assert_eq!(data["first_line"], json!(lines));
            lines += data["lines"].as_u64().unwrap();
            positions.push(id.unwrap());
        }
    }
    assert!(positions.is_sorted_by(|a, b| a < b));
    assert_eq!(json!(lines), shown["head"]["lines"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_repeated_under_its_key_counts_once() {
    let world = world().await;
    let token = world.token(Scope::Run);
    let ask = |path, body: Value| {
        let headers = &["idempotency-key: one"];
        world.ask(Ask { method: "POST", path, token: Some(&token), headers, body: Some(body) })
    };
    let first = ask("/v1/threads", json!({"text": "Hello."})).await.json();
    assert_eq!(ask("/v1/threads", json!({"text": "Hello."})).await.json(), first);
    let thread: ThreadId = first["thread_id"].as_str().unwrap().parse().unwrap();
    world.answered(&thread, 2).await;
    let send = format!("/v1/threads/{thread}/send");
    for _ in 0..2 {
        assert_eq!(ask(&send, json!({"text": "Again."})).await.status, 202);
        world.answered(&thread, 4).await;
    }
    assert_eq!(world.selvedge.messages(&thread).await.unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_counts_only_for_the_action_that_was_shown() {
    let world = asking().await;
    let (run, decide) = (world.token(Scope::Run), world.token(Scope::Decide));
    let thread = start(&world, &run).await;
    world.answered(&thread, 2).await;
    let needs = world.get("/v1/inbox", &decide).await.json();
    let need = &needs["needs"][0];
    assert_eq!((need["tool"].as_str(), &need["arguments"]), (Some("deploy"), &json!({"to": "production"})));
    let call = need["call_id"].as_str().unwrap();
    let path = format!("/v1/threads/{thread}/calls/{call}/decision");
    let missing = world.post(&path, &decide, json!({"decision": "approve"})).await;
    assert_eq!(missing.code(), "usage");
    let other = world.post(&path, &decide, json!({"decision": "approve", "action_hash": "0".repeat(64)})).await;
    assert_eq!((other.status, other.code().as_str()), (409, "action_changed"));
    let hash = &need["action_hash"];
    let approved = world.post(&path, &decide, json!({"decision": "approve", "action_hash": hash, "who": "ann"})).await;
    assert_eq!((approved.status, &approved.json()["resumed"]), (200, &json!(true)));
    world.answered(&thread, 4).await;
    let outcome = world.selvedge.status(&thread).await.unwrap();
    assert!(outcome.result.unwrap().contains("production"));
    let again = world.post(&path, &decide, json!({"decision": "deny", "action_hash": hash})).await;
    assert_eq!((again.status, again.code().as_str()), (404, "call_not_open"));
    assert_eq!(world.get("/v1/inbox", &decide).await.json()["needs"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reconnects_gets_every_commit_once() {
    let world = world().await;
    let token = world.token(Scope::Run);
    let mut seen = Vec::new();
    let mut last = 0;
    for round in 0..5 {
        let mut events = world.events(&token, Some(last)).await;
        let threads = [start(&world, &token).await, start(&world, &token).await];
        // The connection breaks in the middle.
        for position in events.commits(1 + round % 3).await {
            seen.push(position);
            last = position;
        }
        drop(events);
        for thread in &threads {
            world.answered(thread, 2).await;
        }
    }
    let store = world.selvedge.store();
    let all: Vec<u64> = store.after(0, 10_000).unwrap().iter().map(|entry| entry.position).collect();
    let mut events = world.events(&token, Some(last)).await;
    seen.extend(events.commits(all.len() - seen.len()).await);
    assert_eq!(seen, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_the_server_does_and_runs_continue() {
    let mut world = world().await;
    let token = world.token(Scope::Run);
    let mut events = world.events(&token, None).await;
    assert_eq!(events.next().await.unwrap().0, "hello");
    let thread = start(&world, &token).await;
    world.stop().await;
    while events.next().await.is_some() {}
    world.answered(&thread, 2).await;
    let outcome = world.selvedge.status(&thread).await.unwrap();
    assert_eq!(outcome.result.as_deref(), Some("First."));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exact_bytes_of_a_log_are_served_with_the_keys_to_verify_it() {
    let world = world().await;
    let token = world.token(Scope::Run);
    let thread = start(&world, &token).await;
    world.answered(&thread, 2).await;
    let served = world.get(&format!("/v1/threads/{thread}/transcript.jsonl"), &token).await;
    let mut bytes = Vec::new();
    let (head, mut reader) = world.selvedge.store().transcript(&thread).unwrap();
    std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
    assert_eq!(served.body, bytes);
    assert!(served.head.contains(&format!("selvedge-version: {}", head.version)));
    let verified = world.get(&format!("/v1/threads/{thread}/verify"), &token).await.json();
    assert_eq!((&verified["is_sound"], verified["code"].as_str()), (&json!(true), Some("sound")));
    let keys = world.get("/v1/keys", &token).await.json();
    assert_eq!(keys["keys"][0]["fingerprint"], json!(head.signer));
    assert!(keys["keys"][0]["public_key"].as_str().unwrap().starts_with("-----BEGIN PUBLIC KEY-----"));
    let page = world.get(&format!("/v1/threads/{thread}/log?from=1&limit=2"), &token).await.json();
    assert_eq!((page["lines"].as_array().unwrap().len(), &page["lines"][0]["seq"]), (2, &json!(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_to_all_and_its_files_are_those_it_names() {
    let world = world().await;
    let page = world.ask(Ask { method: "GET", path: "/", token: None, headers: &[], body: None }).await;
    let text = String::from_utf8(page.body).unwrap();
    assert!(page.head.contains("text/html") && !text.contains("<script>") && !text.contains("style="));
    let mut files = vec!["/style.css".to_owned(), "/app.js".to_owned()];
    while let Some(file) = files.pop() {
        let served = world.ask(Ask { method: "GET", path: &file, token: None, headers: &[], body: None }).await;
        assert_eq!(served.status, 200, "{file}");
        let text = String::from_utf8(served.body).unwrap();
        assert!(!text.contains("innerHTML") && !text.contains("eval("), "{file}");
        for import in text.lines().filter_map(|line| line.strip_prefix("import ")?.split_once("from './")) {
            let file = format!("/{}", import.1.trim_end_matches("';"));
            files.push(file);
        }
    }
    let missing = world.ask(Ask { method: "GET", path: "/v1/nothing", token: None, headers: &[], body: None }).await;
    assert_eq!((missing.status, missing.code().as_str()), (404, "no_route"));
}
