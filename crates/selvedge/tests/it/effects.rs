//! What is done after runs of an embedding program: usage and embeddings, by an endpoint, offline, and when the endpoint is dead.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use selvedge::providers::fake::{Reply, Server};
use selvedge::{Job, Script, Scripted, Selvedge, Status, json};

const CANARY: &str = "canary-0123456789abcdef";
const SCRIPT: &str = "turns: [{say: 'The heron saw canary-0123456789abcdef.', usage: {input_tokens: 7, output_tokens: 3}, repeat: forever}]";

/// Waits until this holds.
#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn configure(folder: &Path, text: &str) {
    let config = folder.join(".ai/config/agent");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("embeddings.yaml"), text).unwrap();
}

fn open(folder: &Path, url: &str) -> Selvedge {
    let variables = [("OPENAI_API_KEY", CANARY.to_owned()), ("OPENAI_BASE_URL", format!("{url}/v1"))];
    Selvedge::builder()
        .project(folder)
        .environment(variables.map(|(name, value)| (name.to_owned(), value)))
        .secret(CANARY)
        .model("scripted-heron", Scripted::new(Script::parse(SCRIPT).unwrap()))
        .open()
        .unwrap()
}

fn lines(path: &Path) -> Vec<selvedge::Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| selvedge::serde_json::from_str(line).ok()).collect()
}

fn embeddings(folder: &Path) -> Vec<selvedge::Value> {
    lines(&folder.join(".ai/agents/agent/embeddings.jsonl"))
}

/// A server that answers vectors of so many dimensions.
fn serving(server: &Server, dimensions: usize) {
    server.handle(move |request| {
        let count = request.json()["input"].as_array().map_or(0, Vec::len);
        // Out of order, as some hosts answer.
        let data: Vec<_> =
            (0..count).rev().map(|at| json!({"index": at, "embedding": vec![1.0 + at as f64; dimensions]})).collect();
        Reply::whole(200, &[("content-type", "application/json")], json!({"object": "list", "data": data}).to_string())
    });
}

#[test]
fn an_endpoint_makes_vectors_after_the_answer_and_others_after_a_change() {
    let server = Server::start().unwrap();
    serving(&server, 3);
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), "model: 'openai:embed-1'\ndimensions: 3\n");
    let selvedge = open(folder.path(), &server.url());
    let outcome = selvedge.run(Job::say("Where is the heron?")).join().unwrap();
    assert_eq!(outcome.status.status(), Some(Status::Completed));
    eventually("two passages have vectors", || embeddings(folder.path()).len() == 2);
    let request = server.received().remove(0);
    assert_eq!((request.path.as_str(), request.json()["model"].as_str()), ("/v1/embeddings", Some("embed-1")));
    assert_eq!(request.header("authorization"), Some(format!("Bearer {CANARY}").as_str()));
    eventually("the run is recorded", || lines(&folder.path().join(".ai/usage.jsonl")).len() == 1);
    assert!(selvedge.shut_down(Duration::from_secs(10)).join().unwrap());
    drop(selvedge);
    // Another dimension: all vectors are made anew, and the old ones are gone.
    let before = embeddings(folder.path())[0]["vector"].as_str().unwrap().len();
    serving(&server, 5);
    configure(folder.path(), "model: 'openai:embed-1'\ndimensions: 5\n");
    let selvedge = open(folder.path(), &server.url());
    let is_longer = |one: &selvedge::Value| one["vector"].as_str().unwrap().len() > before;
    eventually("all vectors are longer", || {
        let found = embeddings(folder.path());
        found.len() == 2 && found.iter().all(is_longer)
    });
    // A lost index takes over what the files have: the endpoint is not asked again.
    eventually("the vectors are in the index", || selvedge.search("heron", 5).join().is_ok());
    assert!(selvedge.shut_down(Duration::from_secs(10)).join().unwrap());
    drop(selvedge);
    let asked = server.received().len();
    for ending in ["db", "db-wal", "db-shm"] {
        _ = fs::remove_file(folder.path().join(format!(".ai/agent/threads/search.{ending}")));
    }
    let selvedge = open(folder.path(), &server.url());
    assert_eq!(selvedge.search("heron", 5).join().unwrap().results.len(), 1);
    assert_eq!(server.received().len(), asked);
    // Secrets were removed before anything was signed, so they are in none of the files.
    for name in
        ["usage.jsonl", "agents/agent/embeddings.jsonl", "agent/threads/search.db", "agent/threads/search.db-wal"]
    {
        let bytes = fs::read(folder.path().join(".ai").join(name)).unwrap_or_default();
        let has_canary = bytes.windows(CANARY.len()).any(|window| window.eq_ignore_ascii_case(CANARY.as_bytes()));
        assert!(!has_canary, "{name}");
    }
    assert!(
        server
            .received()
            .iter()
            .all(|request| !request.body.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()))
    );
}

/// Every run, and the end of every command, waited for a host that did not answer.
#[test]
fn a_host_that_does_not_answer_is_not_asked_again_after_every_run() {
    let folder = tempfile::tempdir().unwrap();
    let stalling = Server::start().unwrap();
    stalling.handle(|_| Reply::nothing().stall());
    configure(folder.path(), "model: 'openai:embed-1'\ndimensions: 3\n");
    let usage = || lines(&folder.path().join(".ai/usage.jsonl")).len();
    for round in 1..=3 {
        let selvedge = open(folder.path(), &stalling.url());
        let outcome = selvedge.run(Job::say("Where is the heron?")).join().unwrap();
        assert_eq!(outcome.status.status(), Some(Status::Completed));
        eventually("the run is recorded", || usage() == round);
        eventually("the host was asked", || !stalling.received().is_empty());
        assert!(selvedge.shut_down(Duration::from_secs(10)).join().unwrap());
        drop(selvedge);
        let state = folder.path().join(".ai/agent/threads/effects/embeddings.json");
        eventually("the failure is kept", || fs::read_to_string(&state).is_ok_and(|text| text.contains("stopped")));
        assert_eq!(stalling.received().len(), 1, "it rests");
    }
}

#[test]
fn a_dead_endpoint_delays_no_answer_and_is_kept_as_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    // A server that accepts a request and never answers it, and one that is gone.
    let gone = Server::start().unwrap().url();
    let stalling = Server::start().unwrap();
    stalling.handle(|_| Reply::nothing().stall());
    for url in [gone, stalling.url()] {
        configure(folder.path(), "model: 'openai:embed-1'\ndimensions: 3\n");
        let selvedge = open(folder.path(), &url);
        for _ in 0..3 {
            let began = Instant::now();
            let outcome = selvedge.run(Job::say("Where is the heron?")).join().unwrap();
            assert_eq!(outcome.status.status(), Some(Status::Completed));
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        }
        let began = Instant::now();
        assert!(selvedge.shut_down(Duration::from_secs(10)).join().unwrap());
        drop(selvedge);
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(embeddings(folder.path()), [] as [selvedge::Value; 0]);
    let state = folder.path().join(".ai/agent/threads/effects/embeddings.json");
    eventually("the failure is kept", || fs::read_to_string(&state).is_ok_and(|text| text.contains("failure")));
    eventually("usage does not depend on it", || lines(&folder.path().join(".ai/usage.jsonl")).len() >= 3);
}
