//! What the tests of both formats build conversations from.

use std::sync::Arc;

use selvedge_model::event::EffectClass;
use selvedge_model::message::{Block, Message, Role};
use selvedge_model::tool::Risk;
use selvedge_model::{CallId, Digest, ToolSpec};
use serde_json::json;

pub(in crate::wire) fn call(id: &str) -> CallId {
    CallId::new(id).unwrap()
}

pub(in crate::wire) fn tool(name: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: format!("does {name}"),
        input_schema: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
        class: EffectClass::Pure,
        capability: String::new(),
        risk: Risk::Safe,
        hash: Digest([0; 32]),
    }
}

pub(in crate::wire) fn message(role: Role, content: Vec<Block>) -> Arc<Message> {
    Arc::new(Message { content, ..Message::text(role, "") })
}

pub(in crate::wire) fn said(role: Role, text: &str) -> Arc<Message> {
    Arc::new(Message::text(role, text))
}
