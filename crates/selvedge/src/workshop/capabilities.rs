//! The page that says what a thread may call: `capabilities.md`, made of its record and of the tools it is offered.

use std::fmt::Write;

use selvedge_engine::{Assignment, Redactor};
use selvedge_model::tool::Risk;
use selvedge_model::{Manifest, ToolSpec};
use serde_json::{Value, json};

/// What a thread may call, as Markdown: every tool with its definition, then the capabilities that its record gives it and the risks
/// that somebody acknowledged. What must never reach a log does not stand in it either.
pub fn page(thread: &Manifest, work: &Assignment, redactor: &Redactor) -> String {
    let mut tools: Value = work.offered().map(definition).collect();
    redactor.value(&mut tools);
    // A string in JSON has no line of its own, so nothing a tool says can end the fence.
    let tools = serde_json::to_string_pretty(&tools).unwrap_or_default();
    let mut text = format!("# Capabilities of `{}`\n\n", thread.thread_id);
    _ = writeln!(text, "## Tool Definitions\n\n```json\n{tools}\n```\n\n## Capabilities\n");
    match thread.capabilities.as_deref() {
        None | Some([]) => text.push_str("None: nothing may be called.\n"),
        Some(granted) => granted.iter().for_each(|token| _ = writeln!(text, "- `{token}`")),
    }
    if !thread.acknowledged.is_empty() {
        text.push_str("\n## Acknowledged risks\n\n");
        let word = |risk: &Risk| json!(risk).as_str().map(str::to_owned).unwrap_or_default();
        thread.acknowledged.iter().for_each(|risk| _ = writeln!(text, "- {}", word(risk)));
    }
    text
}

fn definition(spec: &ToolSpec) -> Value {
    let ToolSpec { name, description, input_schema, class, capability, risk, hash } = spec;
    json!({
        "name": name, "description": description, "schema": input_schema, "class": class, "capability": capability,
        "risk": risk, "hash": hash, "_item_id": name, "_primary": "execute",
    })
}
