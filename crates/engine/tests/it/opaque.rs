//! Data that only a provider understands, from its answer to its next prompt.

use std::sync::Arc;

use selvedge_engine::{Assignment, Input, Redactor};
use selvedge_model::event::EffectClass;
use selvedge_model::message::Block;
use selvedge_model::scope::Scopes;
use selvedge_model::{AgentId, Message, Role, Status};
use selvedge_providers::scripted::{Script, Scripted};
use serde_json::json;

use crate::support::{Counting, House, Remembering};

const SCRIPT: &str = r#"
turns:
  - think: hm
    provider: {name: acme, data: {sealed: "gAAA-secret", parts: [1, 0.5, null]}}
    calls: [{tool: look}]
  - say: done
"#;

fn work() -> (Assignment, Arc<Remembering>) {
    let model = Arc::new(Scripted::new(Script::parse(SCRIPT).unwrap()));
    let mut work = Assignment::new(AgentId::new("scribe").unwrap(), model, "scripted");
    work.tools = vec![Arc::new(Counting::new("look", EffectClass::Pure))];
    let remembering = Remembering::before(&mut work);
    (work, remembering)
}

fn opaque(message: &Message) -> Vec<&Block> {
    message.content.iter().filter(|block| matches!(block, Block::Opaque { .. })).collect()
}

#[test]
fn what_a_provider_gave_comes_back_to_it_unchanged() {
    let house = House::new();
    let (thread, (work, model)) = (house.thread(), work());
    let ended = house.send(&thread, Input::text("look"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("done")));
    let data = json!({"sealed": "gAAA-secret", "parts": [1, 0.5, null]});
    let given = Block::Opaque { provider: "acme".to_owned(), data };
    let answer = house.loaded(&thread).messages.into_iter().find(|message| message.role == Role::Assistant).unwrap();
    assert_eq!(opaque(&answer), [&given], "it is on record");
    let prompts = model.prompts.lock().unwrap();
    assert_eq!(opaque(&prompts[1][1]), [&given], "the next prompt has it");
    assert_eq!(answer.plain_text(), "");
}

/// A secret never reaches a log, and what is changed in opaque data would be refused.
#[test]
fn opaque_data_with_a_secret_in_it_is_dropped_whole() {
    let house = House::with(Redactor::new(["gAAA-secret".to_owned()], Vec::new()), Scopes::builtin());
    let (thread, (work, model)) = (house.thread(), work());
    house.send(&thread, Input::text("look"), &work).0.unwrap();
    let loaded = house.loaded(&thread);
    assert!(loaded.messages.iter().all(|message| opaque(message).is_empty()));
    let prompts = model.prompts.lock().unwrap();
    assert!(matches!(&prompts[1][1].content[..], [Block::Thinking { .. }, Block::ToolCall { .. }]));
}
