//! Whether a call may be made: by the thread's capabilities, the acknowledged risks, and the approval rules of the configuration.

use std::sync::Arc;
use std::time::Duration;

use selvedge_engine::Permission;
use selvedge_engine::run_config::{Gate, NeededApproval};
use selvedge_items::capability::{Capabilities, Capability, short};
use selvedge_items::config::{Action, Approvals};
use selvedge_model::ToolSpec;
use selvedge_model::tool::Risk;

use crate::orchestrator::knowledge;
use crate::orchestrator::older_names::Older;

/// Checks in this order; the first denial counts.
///
/// A tool under an older name is judged as the one that it stands for. It is offered only if it is one of `older`.
pub(super) fn gate(capabilities: Capabilities, risk_max: Risk, approvals: Approvals, older: Vec<String>) -> Gate {
    Arc::new(move |spec, arguments| {
        let spec = match Older::named(&spec.name) {
            None => spec,
            Some(found) if arguments.is_null() => {
                let is_useful = found.specs().any(|spec| may_call(&capabilities, spec).is_ok());
                if is_useful && older.contains(&spec.name) {
                    return Permission::Allowed;
                }
                return Permission::Denied(format!(
                    "`{}` is the older name of a tool that the thread may not call",
                    spec.name
                ));
            }
            Some(found) => match found.spec(arguments) {
                Ok(spec) => spec,
                Err(why) => return Permission::Denied(why),
            },
        };
        let of_knowledge = knowledge::permission(&capabilities, spec, arguments);
        match of_knowledge.unwrap_or_else(|| may_call(&capabilities, spec)) {
            Ok(()) if spec.risk <= risk_max => by_rules(&approvals, spec),
            Ok(()) => Permission::Denied(format!("the risk of `{}` is not acknowledged", spec.name)),
            Err(why) => Permission::Denied(why),
        }
    })
}

/// Whether a thread has the capability that a tool needs; if not, why.
pub(super) fn may_call(capabilities: &Capabilities, spec: &ToolSpec) -> Result<(), String> {
    match spec.capability.parse::<Capability>() {
        Ok(needed) if capabilities.allows(&needed) => Ok(()),
        Ok(needed) => Err(format!("the thread has no capability `{}`", short(&needed.to_string()))),
        Err(error) => Err(error.to_string()),
    }
}

fn by_rules(approvals: &Approvals, spec: &ToolSpec) -> Permission {
    let decision = approvals.decide(spec);
    let rule = decision
        .rule
        .as_deref()
        .map_or_else(|| "`approvals.default`".to_owned(), |id| format!("`approvals.rules.{id}`"));
    match decision.action {
        Action::Allow => Permission::Allowed,
        Action::Deny => {
            let why = decision.reason.unwrap_or_else(|| format!("calls of `{}` are denied", spec.name));
            Permission::Denied(format!("{why} ({rule})"))
        }
        Action::Ask => Permission::Ask(NeededApproval {
            why: Some(decision.reason.map_or(rule.clone(), |why| format!("{why} ({rule})"))),
            mode: decision.resume_mode,
            expires_after: decision.expires_after_seconds.map(Duration::from_secs),
        }),
    }
}
