//! Models on the network in an embedding program: named, with a key from the variables that it passes.

use std::fs;
use std::path::Path;

use selvedge::providers::fake::{AnthropicDialogue, Dialogue, FakeAnswer, Reply, Server};
use selvedge::{Job, Selvedge, Status};

const CANARY: &str = "canary-0123456789abcdef";

fn files(folder: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(fs::read(path).unwrap()) }
    }
    found
}

#[test]
fn a_program_names_a_model_and_passes_its_environment() {
    let server = Server::start().unwrap();
    let said = FakeAnswer::text(&["The key is ", CANARY, "."]);
    server.handle(move |_| Reply::events(AnthropicDialogue.answer(&said)));
    let folder = tempfile::tempdir().unwrap();
    let variables = [("ANTHROPIC_API_KEY", CANARY.to_owned()), ("ANTHROPIC_BASE_URL", server.url())];
    let open = |model: &str, variables: &[(&str, String)]| {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Selvedge::builder().project(folder.path()).environment(variables).default_model(model).open().unwrap()
    };
    for model in ["anthropic:claude-sonnet-5-5", "general"] {
        let selvedge = open(model, &variables);
        let outcome = selvedge.run(Job::say("hi")).join().unwrap();
        assert_eq!(outcome.status.status(), Some(Status::Completed), "{outcome:?}");
        assert_eq!(outcome.result.as_deref(), Some("The key is [redacted]."));
    }
    let received = server.received();
    assert!(received.iter().all(|request| request.header("x-api-key") == Some(CANARY)));
    assert_eq!(received[1].json()["model"], "claude-sonnet-5-5", "the tier's");
    let has_canary = |bytes: &Vec<u8>| bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
    assert!(!files(folder.path()).iter().any(has_canary));

    let error = open("anthropic:claude-sonnet-5-5", &[]).run(Job::say("hi")).join().unwrap_err();
    assert_eq!(error.code(), "model_key_missing", "{error}");
    assert_eq!(server.received().len(), 2);
}
