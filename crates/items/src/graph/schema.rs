//! The JSON Schema of a graph, for editors.

use serde_json::{Value, json};

/// The schema of a file in `.ai/graphs`.
pub fn schema() -> Value {
    let text = || json!({"type": "string"});
    let whole = |least: u64| json!({"type": "integer", "minimum": least});
    let condition = json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "path": {"type": ["string", "array"], "description": "Such as `state.count` or `result.failed`."},
            "op": {"enum": ["eq", "ne", "gt", "gte", "lt", "lte", "in", "contains", "regex", "exists"]},
            "value": {},
            "all": {"type": "array", "items": {"$ref": "#/$defs/condition"}},
            "any": {"type": "array", "items": {"$ref": "#/$defs/condition"}},
            "not": {"$ref": "#/$defs/condition"},
        },
    });
    let action = json!({
        "type": "object", "additionalProperties": false, "required": ["item_type", "item_id"],
        "properties": {
            "primary": {"enum": ["execute", "fetch", "load"]},
            "item_type": {"enum": ["tool", "knowledge", "directive", "graph"]},
            "item_id": text(),
            "params": {"type": "object", "description": "Texts are interpolated."},
        },
    });
    let edge = json!({
        "type": "object", "additionalProperties": false, "required": ["to"],
        "properties": {"to": text(), "when": {"$ref": "#/$defs/condition"}},
    });
    let node = json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "type": {"enum": ["action", "gate", "foreach", "approval", "wait", "return"], "default": "action"},
            "description": text(),
            "action": {"$ref": "#/$defs/action"},
            "assign": {"type": "object", "description": "Paths in the state, and what they are set to."},
            "next": {"anyOf": [text(), {"type": "array", "items": {"$ref": "#/$defs/edge"}}]},
            "on_error": {"type": "string", "description": "The node that a failure leads to."},
            "retry": {
                "type": "object", "additionalProperties": false, "required": ["attempts"],
                "properties": {
                    "attempts": {"type": "integer", "minimum": 1, "maximum": 20},
                    "wait_seconds": whole(0), "wait_max_seconds": {"type": "integer", "minimum": 0, "maximum": 86400},
                },
            },
            "over": {"description": "The list of a foreach, such as `${state.items}`."},
            "as": {"type": "string", "default": "item"},
            "collect": {"type": "string", "description": "Where in the state the results go."},
            "parallel": {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": super::PARALLEL_MAX}]},
            "message": {"type": "string", "description": "What a person approves."},
            "expires_after_seconds": whole(1),
            "until": {}, "seconds": {}, "threads": {}, "timeout": {},
            "output": {"description": "What the run returns."},
            "env_requires": {"type": "array", "items": text()},
            "cache_result": {"type": "boolean"},
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": ".ai/graphs",
        "type": "object", "additionalProperties": false, "required": ["start", "nodes"],
        "properties": {
            "name": text(), "version": text(), "description": text(), "category": text(), "author": text(),
            "inputs": {"description": "A list of inputs as in a directive, or a JSON Schema of an object."},
            "permissions": {"description": "What the nodes may call, such as `[tool.NAME]`."},
            "limits": {"type": "object"},
            "env_requires": {"type": "array", "items": text()},
            "start": {"type": "string", "description": "The first node."},
            "max_steps": {"type": "integer", "minimum": 1, "default": super::STEPS_MAX},
            "segment_steps": {"type": "integer", "minimum": 1, "default": super::SEGMENT_STEPS},
            "on_error": {"enum": ["fail", "continue"], "default": "fail"},
            "state": {"type": "object", "description": "The state at the beginning."},
            "hooks": {"type": "array", "items": {"type": "object"}},
            "nodes": {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}},
        },
        "$defs": {"node": node, "edge": edge, "action": action, "condition": condition},
    })
}
