//! Whether a call may be made: by the thread's capabilities, the acknowledged risks, and the approval rules of the configuration.

use std::sync::Arc;
use std::time::Duration;

use selvedge_engine::Permission;
use selvedge_engine::run_config::{Gate, NeededApproval};
use selvedge_items::capability::{Capabilities, Capability, short};
use selvedge_items::config::{Action, Approvals};
use selvedge_model::ToolSpec;
use selvedge_model::tool::Risk;
use serde_json::Value;

use crate::orchestrator::older_names::Older;

/// Checks in this order; the first denial counts.
///
/// A tool under an older name is judged as the one that it stands for. It is offered only if it is one of `older`.
pub(super) fn gate(capabilities: Capabilities, risk_max: Risk, approvals: Approvals, older: Vec<String>) -> Gate {
    Arc::new(move |spec, arguments| {
        let spec = match Older::named(&spec.name) {
            None => spec,
            Some(found) if arguments.is_null() => {
                let is_useful = found.specs().any(|spec| may_call(&capabilities, spec, arguments).is_ok());
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
        match may_call(&capabilities, spec, arguments) {
            Ok(()) if spec.risk <= risk_max => by_rules(&approvals, &needed(spec, arguments).of(spec)),
            Ok(()) => Permission::Denied(format!("the risk of `{}` is not acknowledged", spec.name)),
            Err(why) => Permission::Denied(why),
        }
    })
}

/// The capability that a call needs.
struct Needed {
    token: String,
    /// Whether any capability below it is enough.
    is_any_below: bool,
}

impl Needed {
    /// The tool, with the capability that this call needs.
    fn of(self, spec: &ToolSpec) -> ToolSpec {
        ToolSpec { capability: self.token, ..spec.clone() }
    }
}

/// The capability that a call of a tool needs. A name in braces at its end stands for that argument, with `.` for each `/`; without the
/// argument, as when the tool is offered, any capability is enough that one such call would need.
fn needed(spec: &ToolSpec, arguments: &Value) -> Needed {
    let Some((before, name)) = spec.capability.strip_suffix('}').and_then(|token| token.split_once('{')) else {
        return Needed { token: spec.capability.clone(), is_any_below: false };
    };
    match arguments.get(name).and_then(Value::as_str) {
        Some(argument) => Needed { token: format!("{before}{}", argument.replace('/', ".")), is_any_below: false },
        None => Needed { token: format!("{before}*"), is_any_below: true },
    }
}

/// Whether a thread has the capability that a call needs; if not, why.
pub(super) fn may_call(capabilities: &Capabilities, spec: &ToolSpec, arguments: &Value) -> Result<(), String> {
    let Needed { token, is_any_below } = needed(spec, arguments);
    let needed = token.parse::<Capability>().map_err(|error| error.to_string())?;
    let is_allowed = if is_any_below {
        capabilities.iter().any(|capability| capability.meet(&needed).is_some())
    } else {
        capabilities.allows(&needed)
    };
    if is_allowed { Ok(()) } else { Err(format!("the thread has no capability `{}`", short(&needed.to_string()))) }
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

#[cfg(test)]
mod tests {
    use selvedge_model::event::EffectClass;
    use selvedge_tools::built_in;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_capability_with_an_argument_in_it_is_judged_for_each_call() {
        let granted = |token: &str| Capabilities::parse([token]).unwrap();
        let spec = built_in("look_up", "Looks it up.", json!({}), EffectClass::Pure, Risk::Safe);
        let spec = ToolSpec { capability: "selvedge.fetch.knowledge.{id}".to_owned(), ..spec };
        let may = |token: &str, arguments: Value| may_call(&granted(token), &spec, &arguments).is_ok();
        let docs = "selvedge.fetch.knowledge.docs.*";
        assert!(may(docs, Value::Null) && may(docs, json!({"id": "docs/api"})));
        for id in ["secret/key", "docs", "", "docs/../secret/key", "*"] {
            assert!(!may(docs, json!({"id": id})), "{id}");
        }
        for other in ["selvedge.sign.knowledge.docs.*", "tool.look_up"] {
            assert!(!may(other, Value::Null) && !may(other, json!({"id": "docs/api"})), "{other}");
        }
        let of_call = needed(&spec, &json!({"id": "docs/api"})).of(&spec);
        assert_eq!(of_call.capability, "selvedge.fetch.knowledge.docs.api", "rules see what the call needs");
    }
}
