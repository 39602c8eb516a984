//! Opaque provider data, from an answer to the next prompt.

use std::sync::Arc;

use selvedge_engine::{Input, Redactor, RunConfig};
use selvedge_model::event::EffectClass;
use selvedge_model::message::Block;
use selvedge_model::scope::Scopes;
use selvedge_model::{AgentId, Message, Role, Status};
use selvedge_providers::scripted::{Script, Scripted};
use serde_json::json;

use crate::support::{CountingTool, Harness, RecordingModel};

const SCRIPT: &str = r#"
turns:
  - think: hm
    provider: {name: acme, data: {sealed: "gAAA-secret", parts: [1, 0.5, null]}}
    calls: [{tool: look}]
  - say: done
"#;

fn work() -> (RunConfig, Arc<RecordingModel>) {
    let model = Arc::new(Scripted::new(Script::parse(SCRIPT).unwrap()));
    let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), model, "scripted");
    work.tools = vec![Arc::new(CountingTool::new("look", EffectClass::Pure))];
    let remembering = RecordingModel::before(&mut work);
    (work, remembering)
}

fn opaque(message: &Message) -> Vec<&Block> {
    message.content.iter().filter(|block| matches!(block, Block::Opaque { .. })).collect()
}

#[test]
fn opaque_data_comes_back_to_its_provider_unchanged() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, model) = work();
    let ended = harness.send(&thread, Input::text("look"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("done")));
    let data = json!({"sealed": "gAAA-secret", "parts": [1, 0.5, null]});
    let given = Block::Opaque { provider: "acme".to_owned(), data };
    let answer = harness.loaded(&thread).messages.into_iter().find(|message| message.role == Role::Assistant).unwrap();
    assert_eq!(opaque(&answer), [&given], "it is on record");
    let prompts = model.prompts.lock().unwrap();
    assert_eq!(opaque(&prompts[1][1]), [&given], "the next prompt has it");
    assert_eq!(answer.plain_text(), "");
}

/// A secret never reaches a log, and a provider would refuse changed opaque data.
#[test]
fn opaque_data_that_contains_a_secret_is_dropped_whole() {
    let harness = Harness::with(Redactor::new(["gAAA-secret".to_owned()], Vec::new()), Scopes::builtin());
    let thread = harness.thread();
    let (work, model) = work();
    harness.send(&thread, Input::text("look"), &work).0.unwrap();
    let loaded = harness.loaded(&thread);
    assert!(loaded.messages.iter().all(|message| opaque(message).is_empty()));
    let prompts = model.prompts.lock().unwrap();
    assert!(matches!(&prompts[1][1].content[..], [Block::Thinking { .. }, Block::ToolCall { .. }]));
}
