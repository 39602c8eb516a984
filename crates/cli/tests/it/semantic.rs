//! Searches by meaning, offline and by an endpoint; and effects that don't wait for each other.

use std::fs;

use selvedge_providers::fake::{Received, Reply, Server};
use serde_json::{Value, json};

use crate::children::{calling, eventually, family};
use crate::running::put;
use crate::support::{Ran, Sandbox, feed};

const DIRECTIVE: &str = "---\nname: ask\nmodel: scripted:script.yaml\n---\nGo.\n";
const SCRIPT: &str = "turns:\n  - { say: 'He was paying the invoices of the weavers.', repeat: forever }\n";

/// A project with a conversation, and this configuration of its embeddings.
fn project(embeddings: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    put(&sandbox, ".ai/directives/ask.md", DIRECTIVE);
    put(&sandbox, "script.yaml", SCRIPT);
    put(&sandbox, ".ai/config/agent/embeddings.yaml", embeddings);
    sandbox
}

/// The user's own provider with an endpoint for embeddings.
fn host(sandbox: &Sandbox, url: &str) {
    let folder = sandbox.home().join("config/agent");
    fs::create_dir_all(&folder).unwrap();
    let text = format!("providers: [{{id: local, format: openai, base_url: '{url}/v1'}}]\n");
    fs::write(folder.join("models.yaml"), text).unwrap();
}

const ENDPOINT: &str = "model: 'local:embed-1'\ndimensions: 2\n";

/// A vector for each text, if all of them are admitted; the same one for texts about money.
fn serving(server: &Server, admits: impl Fn(&str) -> bool + Send + Sync + 'static) {
    server.handle(move |request: &Received| {
        let body = request.json();
        let texts = body["input"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let texts: Vec<&str> = texts.collect();
        if !texts.iter().all(|text| admits(text)) {
            return Reply::whole(503, &[], "busy");
        }
        let vector = |text: &&str| if text.contains("invoice") || text.contains("money") { [1, 0] } else { [0, 1] };
        let data = texts.iter().map(vector).enumerate();
        let data: Vec<Value> = data.map(|(at, vector)| json!({"index": at, "embedding": vector})).collect();
        Reply::whole(200, &[("content-type", "application/json")], json!({ "data": data }).to_string())
    });
}

fn passages(found: &Value) -> Vec<String> {
    let results = found["results"].as_array().unwrap();
    results.iter().map(|found| found["passage"].as_str().unwrap().to_owned()).collect()
}

fn vectors(sandbox: &Sandbox) -> usize {
    let path = sandbox.project().join(".ai/agents/agent/embeddings.jsonl");
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn offline_forms_of_the_same_words_are_found() {
    let sandbox = project("model: hashing\n");
    assert_eq!(sandbox.run(&["run", "ask"]).code, Some(0));
    assert_eq!(vectors(&sandbox), 2, "made after the run");
    let words = sandbox.run(&["search", "payments by invoice", "--json"]).json();
    assert_eq!(passages(&words), [""; 0], "no passage has these words");
    let found = sandbox.run(&["search", "--semantic", "payments by invoice", "--json"]).json();
    assert_eq!(passages(&found), ["He was paying the invoices of the weavers."]);
    assert_eq!((&found["passages_without_vectors"], found.get("words_alone")), (&json!(0), None), "{found}");
    // Filters hold for vectors, too.
    let other = sandbox.run(&["search", "--semantic", "payments by invoice agent:other", "--json"]).json();
    assert_eq!(passages(&other), [""; 0]);
    // A lost index takes its vectors from the file.
    for ending in ["db", "db-wal", "db-shm"] {
        _ = fs::remove_file(sandbox.threads().join(format!("search.{ending}")));
    }
    assert_eq!(sandbox.run(&["search", "--semantic", "payments by invoice", "--json"]).json(), found);
    assert_eq!(vectors(&sandbox), 2);
}

#[test]
fn without_an_embedder_it_is_said_how_to_get_one() {
    let sandbox = Sandbox::new();
    let error = sandbox.run(&["search", "--semantic", "x", "--json"]).error(2, "embedder_missing");
    assert!(error["hint"].as_str().unwrap().contains("hashing"), "{error}");
}

/// A large backlog used up the time of the query: the search was one by words alone, however often it was repeated.
#[test]
fn passages_without_vectors_are_said_and_those_with_vectors_found() {
    let sandbox = project(ENDPOINT);
    let server = Server::start().unwrap();
    host(&sandbox, &server.url());
    serving(&server, |_| true);
    assert_eq!(sandbox.run(&["run", "ask"]).code, Some(0));
    assert_eq!(vectors(&sandbox), 2);
    // From now on the endpoint is busy, except for a query.
    serving(&server, |text| text.len() < 10);
    put(&sandbox, "script.yaml", &SCRIPT.replace("paying the invoices", "quite late, and so were all"));
    assert_eq!(sandbox.run(&["run", "ask"]).code, Some(0), "the run does not depend on it");
    let found = sandbox.run(&["search", "--semantic", "money", "--json"]).json();
    assert_eq!(passages(&found), ["He was paying the invoices of the weavers."]);
    assert_eq!((&found["passages_without_vectors"], found.get("words_alone")), (&json!(2), None), "{found}");
    let shown = sandbox.run(&["search", "--semantic", "money"]);
    assert!(shown.stderr.contains("2 passages searched by words alone"), "{shown:?}");
}

#[test]
fn a_dead_endpoint_delays_no_answer_and_no_search_and_shows_in_doctor() {
    let sandbox = project(ENDPOINT);
    let gone = Server::start().unwrap().url();
    host(&sandbox, &gone);
    let ran = sandbox.run(&["run", "ask"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("paying the invoices"), "{ran:?}");
    assert_eq!(vectors(&sandbox), 0);
    let doctor = sandbox.run(&["doctor", "--json"]);
    let failed: Vec<Value> =
        doctor.records().into_iter().filter(|found| found.to_string().contains("effect_failed")).collect();
    assert!(failed.len() == 1 && failed[0].to_string().contains("embeddings"), "{doctor:?}");
    let found = sandbox.run(&["search", "--semantic", "invoices", "--json"]).json();
    assert_eq!(passages(&found).len(), 1, "by its words");
    assert!(found["words_alone"].as_str().unwrap().contains("could not be reached"), "{found}");
    assert!(sandbox.run(&["search", "--semantic", "invoices"]).stderr.contains("searched by words alone: "));
    // It is there again: what was missed is made up for, and the failure is forgotten.
    let server = Server::start().unwrap();
    serving(&server, |_| true);
    host(&sandbox, &server.url());
    let found = sandbox.run(&["search", "--semantic", "money", "--json"]).json();
    assert_eq!((passages(&found).len(), vectors(&sandbox)), (1, 2), "{found}");
    assert!(!sandbox.run(&["doctor", "--json"]).stdout.contains("effect_failed"));
}

#[test]
fn an_agent_searches_by_meaning_and_by_words_if_the_endpoint_is_dead() {
    let own = "{ tool: search_threads, arguments: { query: 'payments by invoice to a heron', semantic: true } }";
    let sandbox = family(&calling(own), "turns: [{say: ok}]\n");
    let heard = |sandbox: &Sandbox| -> Value {
        let ran = sandbox.run(&["run", "parent", "--json"]);
        let said = ran.records().pop().unwrap()["result"].as_str().unwrap_or_default().to_owned();
        serde_json::from_str(said.strip_prefix("Heard: ").unwrap_or_default()).unwrap_or_else(|_| panic!("{ran:?}"))
    };
    put(&sandbox, ".ai/config/agent/embeddings.yaml", "model: hashing\n");
    let thread = sandbox.new_thread("agent");
    let says =
        |text: &str| json!({"reason": "UserMessage", "messages": [{"role": "user", "content": text}]}).to_string();
    sandbox.append(&thread, "0", &says("He was paying the invoices of herons."));
    let other = sandbox.new_thread("clerk");
    sandbox.append(&other, "0", &says("The clerk was paying the invoices of herons."));
    // Vectors are made after a run.
    heard(&sandbox);
    let found = heard(&sandbox);
    let results = found["results"].as_array().unwrap();
    assert!(results.iter().any(|one| one["thread_id"] == thread.as_str()), "{found}");
    assert!(results.iter().all(|one| one["agent_id"] == "agent"), "{found}");
    put(&sandbox, ".ai/config/agent/embeddings.yaml", ENDPOINT);
    host(&sandbox, &Server::start().unwrap().url());
    let found = heard(&sandbox);
    assert!(found["words_alone"].is_string() && found["success"] == true, "{found}");
}

/// The effects were done one after the other: while a model for titles did not answer, nothing got a vector.
#[test]
fn a_model_for_titles_that_does_not_answer_keeps_no_vector_waiting() {
    let sandbox = project("model: hashing\n");
    let server = Server::start().unwrap();
    server.handle(|_| Reply::nothing().stall());
    host(&sandbox, &server.url());
    let config = sandbox.home().join("config/agent/models.yaml");
    let text = fs::read_to_string(&config).unwrap();
    let more = "tiers: {fast: 'local:tiny'}\nknown: [{id: 'local:tiny', input: 0, output: 0}]\n";
    fs::write(&config, text + more).unwrap();
    assert_eq!(sandbox.run(&["run", "ask"]).code, Some(0));
    assert_eq!((vectors(&sandbox), server.received().len()), (2, 0), "one message gets no title");
    let mut sending = sandbox.command(&["send", "@", "And then?"]).spawn().unwrap();
    eventually("the title is asked for", || !server.received().is_empty());
    eventually("the later passages have vectors", || vectors(&sandbox) == 4);
    assert_eq!(sending.try_wait().unwrap(), None, "it still waits for the title");
    // What is left is done by the next process.
    sending.kill().unwrap();
    assert!(Ran::of(feed(sending, b"")).stdout.contains("paying the invoices"), "the answer was there before");
}
