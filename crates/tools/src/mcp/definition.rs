//! What a server says about its tools, and the digest by which a change is noticed.

use selvedge_model::digest::Digest;
use selvedge_model::tool::McpToolDefinition;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::in_process;

const NAME_CHARS_MAX: usize = 128;
const DESCRIPTION_BYTES_MAX: usize = 64 * 1024;
const DEFINITION_BYTES_MAX: usize = 256 * 1024;

/// Reads a page of definitions. One that no tool can be made of is an error of the whole server: a part of what it offers would look like all.
pub(super) fn read(page: &Value, tools: &mut Vec<McpToolDefinition>) -> Result<(), String> {
    let Some(page) = page.as_array() else { return Err("its list of tools is no list".to_owned()) };
    for one in page {
        let name = one["name"].as_str().unwrap_or_default();
        let shown = || name.chars().take(40).collect::<String>().escape_debug().to_string();
        if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || name.chars().any(char::is_control) {
            return Err(format!("`{}` is not the name of a tool", shown()));
        }
        if tools.iter().any(|other| other.name == name) {
            return Err(format!("it has two tools `{}`", shown()));
        }
        let description = one["description"].as_str().or_else(|| one["title"].as_str()).unwrap_or_default();
        if description.len() > DESCRIPTION_BYTES_MAX || one.to_string().len() > DEFINITION_BYTES_MAX {
            return Err(format!("the definition of `{}` is too long", shown()));
        }
        // Terminal escapes and the like mean nothing to a model.
        let is_text = |one: &char| !one.is_control() || matches!(one, '\n' | '\t');
        tools.push(McpToolDefinition {
            name: name.to_owned(),
            description: description.chars().filter(is_text).collect(),
            input_schema: one.get("inputSchema").cloned().unwrap_or_else(|| json!({"type": "object"})),
            annotations: one.get("annotations").cloned().unwrap_or_default(),
        });
    }
    Ok(())
}

/// SHA-256 of a definition: of everything that is sent to a model or decides how a call is made.
pub fn digest(tool: &McpToolDefinition) -> Digest {
    in_process::hash(tool).unwrap_or_else(|| Digest(Sha256::digest(json!(tool).to_string()).into()))
}

/// The name of a tool in this program.
pub fn tool_name(server: &str, tool: &str) -> String {
    format!("{server}.{tool}")
}

/// The capability of a tool. A character that no capability can have is replaced; then a digest keeps it apart from others.
pub(super) fn capability(server: &str, tool: &str) -> String {
    let plain = |one: char| one.is_ascii_alphanumeric() || matches!(one, '_' | '-' | '.');
    let is_plain = tool.chars().all(plain) && tool.split('.').all(|part| !part.is_empty());
    if is_plain {
        return format!("tool.mcp.{server}.{tool}");
    }
    let word: String = tool.chars().map(|one| if plain(one) && one != '.' { one } else { '_' }).collect();
    let digest = selvedge_model::digest::hex(&Sha256::digest(tool));
    format!("tool.mcp.{server}.{word}-{}", &digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tools_never_share_a_capability() {
        assert_eq!(capability("s", "get.user"), "tool.mcp.s.get.user");
        for odd in ["read/", "a b", "ä", "..", "a..b", "*"] {
            let capability = capability("s", odd);
            assert!(capability.starts_with("tool.mcp.s.") && capability.len() > 19, "{capability}");
            assert!(!capability.contains('*') && !capability.contains(".."), "{capability}");
        }
        assert_ne!(capability("s", "read/"), capability("s", "read\\"));
    }

    #[test]
    fn a_bad_definition_refuses_the_list() {
        let mut tools = Vec::new();
        read(&json!([{"name": "a", "description": "x\u{1b}[31m\n", "inputSchema": {"type": "object"}}]), &mut tools)
            .unwrap();
        assert_eq!(tools[0].description, "x[31m\n");
        for bad in [json!(1), json!([{"name": ""}]), json!([{"name": "a"}]), json!([{"name": "b\u{1b}"}])] {
            assert!(read(&bad, &mut tools.clone()).is_err(), "{bad}");
        }
    }
}
