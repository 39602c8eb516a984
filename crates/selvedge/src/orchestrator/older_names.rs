//! The thread tools under their names in older documents.
//!
//! ```text
//! rye/agent/threads/thread_directive   directive_id, inputs, async, …      spawn_thread
//! rye/agent/threads/orchestrator       operation: wait_threads, …          wait_threads, and every other operation
//! ```
//!
//! A call by an older name is permitted, asked about and executed as the call of the tool that it stands for. Models are offered an older
//! name only if the directive's text uses it, and then in a form that providers accept: `rye_agent_threads_orchestrator`.

use std::sync::{Arc, LazyLock};

use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started, ToolKind};
use selvedge_model::{Call, Cancel, Tool, ToolError, ToolSpec};
use serde_json::{Value, json};

use super::{SPAWN, thread_tools};

/// An older name of thread tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Older {
    /// Starts a directive as a child.
    ThreadDirective,
    /// Everything else; `operation` says what.
    Orchestrator,
}

/// Where the older tools were.
const FOLDERS: [&str; 2] = ["rye/agent/threads/", "selvedge/agent/threads/"];
/// The argument that names the tool.
const OPERATION: &str = "operation";

static SPECS: LazyLock<Vec<ToolSpec>> = LazyLock::new(thread_tools::specs);

impl Older {
    const ALL: [Self; 2] = [Self::ThreadDirective, Self::Orchestrator];

    fn word(self) -> &'static str {
        match self {
            Self::ThreadDirective => "thread_directive",
            Self::Orchestrator => "orchestrator",
        }
    }

    /// The older tool of this name; none if it is not one.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let is_it = |older: &Self| older.names().any(|known| known == name);
        Self::ALL.into_iter().find(is_it)
    }

    fn names(self) -> impl Iterator<Item = String> {
        let paths = FOLDERS.into_iter().map(move |folder| format!("{folder}{}", self.word()));
        paths.chain([self.offered_name()])
    }

    /// The name under which it is offered to a model.
    pub(crate) fn offered_name(self) -> String {
        format!("{}{}", FOLDERS[0], self.word()).replace('/', "_")
    }

    /// Whether a text names it.
    pub(crate) fn is_in(self, text: &str) -> bool {
        self.names().any(|name| text.contains(&name))
    }

    /// The tools that it stands for.
    pub(crate) fn specs(self) -> impl Iterator<Item = &'static ToolSpec> {
        SPECS.iter().filter(move |spec| (spec.name == SPAWN) == (self == Self::ThreadDirective))
    }

    /// The tool that a call stands for, by its arguments.
    pub(crate) fn spec(self, arguments: &Value) -> Result<&'static ToolSpec, String> {
        let operation = match self {
            Self::ThreadDirective => SPAWN,
            Self::Orchestrator => {
                arguments.get(OPERATION).and_then(Value::as_str).ok_or_else(|| format!("`{OPERATION}` is missing"))?
            }
        };
        self.specs().find(|spec| spec.name == operation).ok_or_else(|| {
            let known: Vec<&str> = self.specs().map(|spec| spec.name.as_str()).collect();
            format!("there is no operation `{}`; there are {}", operation.escape_debug(), known.join(", "))
        })
    }

    fn definition(self, name: &str) -> ToolSpec {
        match self {
            Self::ThreadDirective => {
                let spawn = SPECS.iter().find(|spec| spec.name == SPAWN);
                let schema = json!({
                    "type": "object",
                    "properties": {
                        "directive_id": {"type": "string", "description": "The directive, such as `reports/weekly`."},
                        "inputs": {"type": "object", "description": "The inputs of the directive."},
                        "async": {"type": "boolean", "description": "Whether to return without waiting for the child."},
                        "model": {"type": "string"},
                        "limit_overrides": {"type": "object", "description": "Limits of the child, never above those of this thread."},
                    },
                    "required": ["directive_id"],
                });
                let description = spawn.map_or("", |spec| spec.description.as_str());
                let spec = selvedge_tools::built_in(name, description, schema, EffectClass::AtMostOnce, Risk::Write);
                ToolSpec { capability: "tool.threads.spawn".to_owned(), ..spec }
            }
            Self::Orchestrator => {
                let operations: Vec<&str> = self.specs().map(|spec| spec.name.as_str()).collect();
                let schema = json!({
                    "type": "object",
                    "properties": {
                        "operation": {"type": "string", "enum": operations},
                        "thread_id": {"type": "string"},
                        "thread_ids": {"type": "array", "items": {"type": "string"}},
                        "timeout": {"type": "number", "minimum": 0, "description": "Seconds to wait at most."},
                        "query": {"type": "string"},
                        "search_type": {"type": "string", "enum": ["text", "regex"]},
                        "max_results": {"type": "integer", "minimum": 1},
                        "tail_lines": {"type": "integer", "minimum": 1},
                        "message": {"type": "string"},
                    },
                    "required": ["operation"],
                });
                let description = "Waits for threads, inspects, resumes, cancels and kills them, as `operation` says.";
                let spec = selvedge_tools::built_in(name, description, schema, EffectClass::AtMostOnce, Risk::Write);
                ToolSpec { capability: "tool.threads.orchestrator".to_owned(), ..spec }
            }
        }
    }
}

/// The operation of a call, if it is one by an older name.
pub(super) fn operation<'a>(tool: &'a str, arguments: &Value) -> &'a str {
    Older::named(tool).and_then(|older| older.spec(arguments).ok()).map_or(tool, |spec| &spec.name)
}

/// The tools under all their older names.
pub(super) fn tools(doors: &[Arc<dyn Tool>]) -> Vec<Arc<dyn Tool>> {
    let tool = |older: Older, name: String| {
        Arc::new(OlderTool { older, spec: older.definition(&name), doors: doors.to_vec() }) as Arc<dyn Tool>
    };
    Older::ALL.into_iter().flat_map(|older| older.names().map(move |name| tool(older, name))).collect()
}

struct OlderTool {
    older: Older,
    spec: ToolSpec,
    doors: Vec<Arc<dyn Tool>>,
}

impl OlderTool {
    /// The tool that a call stands for, and the call as that tool knows it.
    fn translated(&self, call: &Call) -> Result<(&Arc<dyn Tool>, Call), String> {
        let spec = self.older.spec(&call.arguments)?;
        let door = self.doors.iter().find(|door| door.spec().name == spec.name);
        let door = door.ok_or_else(|| format!("there is no tool `{}`", spec.name))?;
        if door.kind() == ToolKind::Handoff {
            return Err(format!("call the tool `{}` itself: it hands over this thread", spec.name));
        }
        let mut arguments = call.arguments.clone();
        if let Value::Object(fields) = &mut arguments {
            fields.remove(OPERATION);
        }
        Ok((door, Call { name: spec.name.clone(), arguments, ..call.clone() }))
    }
}

impl Tool for OlderTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn kind(&self) -> ToolKind {
        match self.older {
            Older::ThreadDirective => ToolKind::Child,
            Older::Orchestrator => ToolKind::Work,
        }
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        match self.translated(call) {
            Ok((door, call)) => door.start(&call),
            Err(why) => Err(ToolError::NotStarted { tool: self.spec.name.clone(), why }),
        }
    }

    fn reconcile(&self, call: &Call, cancel: &Cancel) -> Reconciled {
        match self.translated(call) {
            // It may be repeated.
            Ok((door, _)) if door.spec().class != EffectClass::AtMostOnce => Reconciled::NotDone,
            Ok((door, call)) => door.reconcile(&call, cancel),
            Err(_) => Reconciled::NotDone,
        }
    }
}

#[cfg(test)]
mod tests {
    use selvedge_items::capability::{Capabilities, Capability};

    use super::*;

    /// A new thread tool must be an operation of the older one, or the permission for that does not contain it.
    #[test]
    fn the_permissions_of_older_documents_contain_exactly_the_thread_tools_they_name() {
        let allowed = |token: &str| {
            let granted = Capabilities::parse([token]).unwrap();
            let needs = |spec: &ToolSpec| spec.capability.parse::<Capability>().unwrap();
            let allowed = SPECS.iter().filter(|spec| granted.allows(&needs(spec)));
            allowed.map(|spec| spec.name.as_str()).collect::<Vec<_>>()
        };
        let is_thread_tool = |spec: &&ToolSpec| spec.capability.starts_with("tool.threads.");
        let all: Vec<&str> = SPECS.iter().filter(is_thread_tool).map(|spec| spec.name.as_str()).collect();
        for token in
            ["rye.agent.threads.*", "rye.agent.*", "rye.execute.tool.rye.agent.threads.*", "tool.rye.agent.threads.*"]
        {
            assert_eq!(allowed(token), all, "{token}");
        }
        assert_eq!(allowed("rye.execute.tool.rye.agent.threads.thread_directive"), [SPAWN]);
        let operations: Vec<&str> = all.iter().copied().filter(|name| *name != SPAWN).collect();
        assert_eq!(allowed("rye.execute.tool.rye.agent.threads.orchestrator"), operations);
        assert_eq!(allowed("rye.agent.threads.orchestrator"), operations);
        assert!(allowed("rye.execute.tool.rye.file-system.*").is_empty());
    }

    #[test]
    fn an_older_name_is_found_in_every_form_and_stands_for_the_tool_of_its_operation() {
        for name in
            ["rye/agent/threads/orchestrator", "selvedge/agent/threads/orchestrator", "rye_agent_threads_orchestrator"]
        {
            assert_eq!(operation(name, &json!({"operation": "get_status"})), "get_status");
            assert_eq!(operation(name, &json!({"operation": SPAWN})), name, "that is the other one's");
        }
        assert_eq!(operation("rye/agent/threads/thread_directive", &json!({})), SPAWN);
        assert_eq!(Older::named("orchestrator"), None);
        assert!(
            Older::Orchestrator.is_in("Call rye/agent/threads/orchestrator.")
                && !Older::ThreadDirective.is_in("orchestrator")
        );
    }
}
