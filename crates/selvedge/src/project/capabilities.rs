//! `capabilities.md`: the tools that a thread gets, and its recorded capabilities.

use std::fmt::Write;

use selvedge_engine::{Redactor, RunConfig};
use selvedge_model::tool::Risk;
use selvedge_model::{Manifest, ToolSpec};
use serde_json::{Value, json};

use super::capability_tree::tree;

/// The page of a thread, as Markdown: the definitions of its tools, its recorded capabilities as a tree and as a list, and the acknowledged
/// risks. Secrets are
/// redacted, as in a log.
pub fn page(thread: &Manifest, work: &RunConfig, redactor: &Redactor) -> String {
    let mut tools: Value = work.offered().map(definition).collect();
    redactor.value(&mut tools);
    // A JSON string has no line breaks, so no description can end the code fence.
    let tools = serde_json::to_string_pretty(&tools).unwrap_or_default();
    let mut text = format!("# Capabilities of `{}`\n\n", thread.thread_id);
    _ = writeln!(text, "## Tool Definitions\n\n```json\n{tools}\n```\n");
    if let Some(tree) = tree(thread.capabilities.as_deref().unwrap_or_default(), work.offered()) {
        _ = writeln!(text, "## Capabilities Tree\n\n```\n{tree}```\n");
    }
    text.push_str("## Capabilities\n\n");
    match thread.capabilities.as_deref() {
        None | Some([]) => text.push_str("None: no tool may be called.\n"),
        Some(granted) => granted.iter().for_each(|token| _ = writeln!(text, "- `{token}`")),
    }
    if !thread.acknowledged.is_empty() {
        text.push_str("\n## Acknowledged risks\n\n");
        let word = |risk: &Risk| json!(risk).as_str().map(str::to_owned).unwrap_or_default();
        for risk in &thread.acknowledged {
            _ = writeln!(text, "- {}", word(risk));
        }
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
