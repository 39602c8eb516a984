//! Answers that are larger than a line of the log may be.

use selvedge_engine::blobs::blobs_named;
use selvedge_engine::{Input, RunConfig};
use selvedge_model::message::Block;
use selvedge_model::{AgentId, Role, Status};
use selvedge_providers::scripted::{Script, Scripted};
use selvedge_store::Logs;
use serde_json::json;
use std::sync::Arc;

use crate::support::Harness;

fn work(script: &serde_json::Value) -> RunConfig {
    let model = Arc::new(Scripted::new(Script::parse(&script.to_string()).unwrap()));
    RunConfig::new(AgentId::new("scribe").unwrap(), model, "scripted")
}

/// The run could not end: its answer was in every changeset that was tried. The thread was never usable again.
#[test]
fn an_answer_that_is_too_large_for_a_line_goes_to_a_blob_and_the_thread_continues() {
    let harness = Harness::new();
    let thread = harness.thread();
    let large = "0123456789abcdef".repeat((10 << 20) / 16);
    let work = work(&json!({"turns": [{"say": large}, {"say": "Small again."}]}));
    let ended = harness.send(&thread, Input::text("much"), &work).0.unwrap();
    assert_eq!(ended.status.status(), Some(Status::Completed), "{:?}", ended.why);
    let loaded = harness.loaded(&thread);
    let answer = loaded.messages.iter().find(|message| message.role == Role::Assistant).unwrap();
    let [Block::Text { text, blob: Some(blob) }] = &answer.content[..] else { panic!("{answer:?}") };
    assert!(text.len() < 10_000 && text.contains("the whole is in blob"), "{} bytes", text.len());
    assert_eq!(harness.store.blob(&thread, blob).unwrap(), large.as_bytes());
    let named = blobs_named(&*harness.store, harness.engine.trust(), &thread, "").unwrap();
    assert_eq!(named.into_iter().collect::<Vec<_>>(), [*blob], "the log names it");
    let ended = harness.send(&thread, Input::text("more"), &work).0.unwrap();
    assert_eq!(ended.result.as_deref(), Some("Small again."));
}
