//! An embedder of a host: batches, keys, and answers that can't be used.

use selvedge_model::{Cancel, EmbedError, Embedder, Stop};
use selvedge_providers::fake::{Received, Reply, Server};
use selvedge_providers::{Connections, Format, Host, Key, RemoteEmbedder};
use serde_json::{Value, json};
use tokio::runtime::Builder;

const KEY: &str = "canary-of-an-embedder-19";
const JSON: (&str, &str) = ("content-type", "application/json");

fn embedder(server: &Server) -> RemoteEmbedder {
    let mut host = Host::new("vendor", Format::OpenAiChat, format!("{}/v1", server.url()));
    host.key = Some(Key::Value(KEY.into()));
    RemoteEmbedder::new(&Connections::new(), host, "embed-1", 2)
}

fn embed(embedder: &RemoteEmbedder, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(embedder.embed(&texts, &Cancel::new()))
}

fn inputs(request: &Received) -> Vec<String> {
    let inputs = request.json()["input"].as_array().cloned().unwrap_or_default();
    inputs.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// A vector whose direction is the length of the text.
fn vectors(request: &Received) -> Reply {
    let data = inputs(request).into_iter().enumerate();
    let data: Vec<Value> = data.map(|(at, text)| json!({"index": at, "embedding": [text.len() as f64, 1.0]})).collect();
    Reply::whole(200, &[JSON], json!({ "data": data }).to_string())
}

fn refused(status: u16, why: &str) -> Reply {
    Reply::whole(status, &[JSON], json!({"error": {"message": format!("{why}, says {KEY}")}}).to_string())
}

#[test]
fn texts_are_sent_in_batches_and_their_vectors_have_length_one_in_order() {
    let server = Server::start().unwrap();
    server.handle(vectors);
    let texts: Vec<String> = (1..=70).map(|length| "x".repeat(length)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let found = embed(&embedder(&server), &texts).unwrap();
    assert_eq!((found.len(), server.received().len()), (70, 3));
    for (at, vector) in found.iter().enumerate() {
        let length: f32 = vector.iter().map(|one| one * one).sum();
        assert!((length - 1.0).abs() < 1e-5 && (vector[0] / vector[1] - (at + 1) as f32).abs() < 1e-2, "{at}");
    }
    let first = server.received().remove(0);
    assert_eq!((first.path.as_str(), first.json()["model"].as_str()), ("/v1/embeddings", Some("embed-1")));
    assert_eq!(first.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
}

/// One long passage kept all others from getting a vector, for ever.
#[test]
fn a_text_that_is_too_long_for_the_model_is_shortened_and_keeps_no_other_from_its_vector() {
    for status in [400, 413, 422] {
        let server = Server::start().unwrap();
        server.handle(move |request| {
            if inputs(request).iter().any(|text| text.len() > 600) {
                return refused(status, "input is longer than 512 tokens");
            }
            vectors(request)
        });
        let long = "y".repeat(4000);
        let found = embed(&embedder(&server), &["one", "four", &long, "seventh", "x"]).unwrap();
        let lengths: Vec<f32> = found.iter().map(|vector| (vector[0] / vector[1]).round()).collect();
        assert_eq!(lengths, [3.0, 4.0, 500.0, 7.0, 1.0], "the long one is represented by its beginning");
        assert!(server.received().len() < 12, "{}", server.received().len());
    }
}

#[test]
fn a_host_that_refuses_everything_is_asked_a_few_times_and_no_canary_is_in_its_error() {
    for (status, requests, retryable) in
        [(400, 2, false), (401, 1, false), (404, 1, false), (429, 1, true), (500, 1, true)]
    {
        let server = Server::start().unwrap();
        server.handle(move |_| refused(status, "no"));
        let error = embed(&embedder(&server), &["a", "b"]).unwrap_err();
        assert_eq!(error.retryable(), retryable, "{status}: {error}");
        let told = format!("{error} {error:?}");
        assert!(told.contains(&format!("status {status}")) && !told.contains(KEY), "{told}");
        assert_eq!(server.received().len(), requests, "{status}");
    }
}

#[test]
fn vectors_that_can_not_be_used_are_refused() {
    for body in [
        json!({"data": [{"index": 0, "embedding": [1.0, 2.0, 3.0]}]}),
        json!({"data": [{"index": 0, "embedding": [1e39, 2.0]}]}),
        json!({"data": []}),
        json!({"data": [{"index": 0, "embedding": [1.0, 2.0]}, {"index": 1, "embedding": [1.0, 2.0]}]}),
        json!({"vectors": [[1.0, 2.0]]}),
        json!("not an object"),
    ] {
        let server = Server::start().unwrap();
        let said = body.to_string();
        server.handle(move |_| Reply::whole(200, &[JSON], &said));
        let error = embed(&embedder(&server), &["a"]).unwrap_err();
        assert!(matches!(error, EmbedError::Refused { .. }), "{body}: {error:?}");
    }
    let server = Server::start().unwrap();
    server.push(Reply::nothing());
    assert!(embed(&embedder(&server), &["a"]).unwrap_err().retryable(), "a connection that ends can be tried again");
}

#[test]
fn a_call_that_is_stopped_ends_and_closes_its_connection() {
    let server = Server::start().unwrap();
    server.handle(|_| Reply::nothing().stall());
    let cancel = Cancel::new();
    let embedder = embedder(&server);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(embedder.embed(&["a".to_owned()], &cancel))
        });
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while server.received().is_empty() {
            assert!(std::time::Instant::now() < until, "the request arrives");
            std::thread::yield_now();
        }
        cancel.say(Stop::Cancelled);
        assert!(matches!(asked.join().unwrap(), Err(EmbedError::Stopped)));
    });
    assert!(server.saw_hangups(1, std::time::Duration::from_secs(10)));
}
