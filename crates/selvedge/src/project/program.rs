//! The tools and instructions of an embedding program.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use selvedge_engine::Permission;
use selvedge_engine::run_config::{Gate, NeededApproval};
use selvedge_model::Tool;

/// The tools and instructions of an embedding program; none by default.
#[derive(Clone, Default)]
pub struct Program {
    /// Its tools. One of them replaces a tool of the same name that the project declares.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The tools whose calls need approval, each with the reason shown to the approver.
    pub approvals: BTreeMap<String, String>,
    /// The system prompt of threads without a directive, after what the agent's file says.
    pub instructions: String,
}

impl fmt::Debug for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools = self.tools.iter().map(|tool| tool.spec().name.as_str());
        formatter.debug_set().entries(tools).finish()
    }
}

impl Program {
    /// The same gate, which also requires the program's approvals. A call that is denied stays denied.
    pub(super) fn gate(&self, gate: Gate) -> Gate {
        if self.approvals.is_empty() {
            return gate;
        }
        let approvals = self.approvals.clone();
        Arc::new(move |spec, arguments| match (gate(spec, arguments), approvals.get(&spec.name)) {
            (Permission::Allowed, Some(why)) => {
                Permission::Ask(NeededApproval { why: Some(why.clone()), ..NeededApproval::default() })
            }
            (permission, _) => permission,
        })
    }
}
