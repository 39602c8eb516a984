//! Which calls are made, denied, or need an approval: `agent/approvals.yaml`.
//!
//! There are two policies: the built-in one together with the user's, and the project's. Each decides by its first matching rule, or
//! else by its default; the project may have none. The stricter decision counts, so a project can be stricter than its user and never
//! more lenient.

pub use selvedge_model::event::ResumeMode;
use selvedge_model::tool::{Risk, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::section::InvalidCombination;
use super::shape::{Check, Key, ProjectRule, Shape};
use crate::capability::Capability;

/// Which calls are made, denied, or need an approval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Approvals {
    /// When approved calls are made.
    pub wait: Wait,
    /// The policy of the program and the user.
    pub user: ApprovalPolicy,
    /// The policy of the project.
    pub project: ApprovalPolicy,
}

/// One policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ApprovalPolicy {
    /// The action for calls that no rule matches.
    #[serde(default)]
    pub default: Option<Action>,
    /// Its rules; the first match counts.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// What happens with a call, from the most lenient to the strictest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is made.
    #[default]
    Allow,
    /// It needs an approval.
    Ask,
    /// It is denied, and the model gets an error.
    Deny,
}

/// When approved calls are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Once all pending calls are decided.
    #[default]
    All,
    /// Each as soon as it is approved.
    Each,
}

/// A rule for some calls. All its conditions must match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its id.
    pub id: String,
    /// What happens with the calls.
    pub action: Action,
    /// The tool, by the name that the model uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// A capability that must contain the tool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<Capability>,
    /// The minimum risk of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// The reason, shown to the approver, or to the model if the call is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// After how many seconds an approval request expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after_seconds: Option<u64>,
    /// What happens with a call once it is approved.
    #[serde(default)]
    pub resume_mode: ResumeMode,
}

/// What happens with a call, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// What happens with it.
    pub action: Action,
    /// The rule that matched; `None` for a default.
    pub rule: Option<String>,
    /// The reason.
    pub reason: Option<String>,
    /// After how many seconds the approval request expires.
    pub expires_after_seconds: Option<u64>,
    /// What happens with the call once it is approved.
    pub resume_mode: ResumeMode,
}

impl Approvals {
    /// The decision for calls of a tool.
    pub fn decide(&self, tool: &ToolSpec) -> Decision {
        let user = self.user.decide(tool).unwrap_or_default();
        match self.project.decide(tool) {
            Some(project) if project.action > user.action => project,
            _ => user,
        }
    }

    /// Reads the policies of the user and the project.
    pub(super) fn read(merged: &Value, user: Value, project: Value) -> Result<Self, InvalidCombination> {
        let wait = serde_json::from_value(merged["wait"].clone()).map_err(InvalidCombination::of)?;
        let read = |value: Value| -> Result<ApprovalPolicy, InvalidCombination> {
            let policy: ApprovalPolicy = serde_json::from_value(value).map_err(InvalidCombination::of)?;
            match policy.rules.iter().find(|rule| rule.names_nothing()) {
                Some(rule) => Err(InvalidCombination::at(
                    format!("rules.{}", rule.id),
                    "it names neither `tool` nor `capability` nor `risk`; `default` is for every call",
                )),
                None => Ok(policy),
            }
        };
        Ok(Self { wait, user: read(user)?, project: read(project)? })
    }
}

impl ApprovalPolicy {
    fn decide(&self, tool: &ToolSpec) -> Option<Decision> {
        match self.rules.iter().find(|rule| rule.fits(tool)) {
            Some(rule) => Some(Decision {
                action: rule.action,
                rule: Some(rule.id.clone()),
                reason: rule.reason.clone(),
                expires_after_seconds: rule.expires_after_seconds,
                resume_mode: rule.resume_mode,
            }),
            None => self.default.map(|action| Decision { action, ..Decision::default() }),
        }
    }
}

impl Rule {
    fn names_nothing(&self) -> bool {
        self.tool.is_none() && self.capability.is_none() && self.risk.is_none()
    }

    fn fits(&self, tool: &ToolSpec) -> bool {
        let by_name = self.tool.as_ref().is_none_or(|name| *name == tool.name);
        let by_capability = self.capability.as_ref().is_none_or(|wide| {
            // An unreadable capability could be anything.
            tool.capability.parse::<Capability>().map_or(self.action != Action::Allow, |needed| wide.contains(&needed))
        });
        let by_risk = self.risk.is_none_or(|risk| tool.risk >= risk);
        by_name && by_capability && by_risk
    }
}

const ACTION: Shape = Shape::Word(&["allow", "ask", "deny"]);

const CAPABILITY: Shape = Shape::Text(Check {
    what: "a capability such as `tool.file.*`",
    check: |text| text.parse::<Capability>().map(drop).map_err(|error| error.why.to_owned()),
});

const RULE: &[Key] = &[
    Key::new(
        "action",
        ACTION,
        "What happens with the call: it is made, it needs an approval, or it is denied and the model gets an error.",
    )
    .required(),
    Key::new("tool", Shape::NAME, "The tool, by the name that the model uses."),
    Key::new("capability", CAPABILITY, "A capability that must contain the tool's, such as `tool.file.*`."),
    Key::new(
        "risk",
        Shape::Word(&["safe", "write", "external", "dangerous"]),
        "The minimum risk of the tool: `write` also matches `external` and `dangerous`.",
    ),
    Key::new("reason", Shape::NAME, "The reason, shown to the approver, or to the model if the call is denied."),
    Key::new(
        "expires_after_seconds",
        Shape::Whole { min: 1, max: u64::MAX },
        "After how many seconds an approval request expires and the call is not made; never by default.",
    ),
    Key::new(
        "resume_mode",
        Shape::Word(&["replay_tool_call", "use_decision_as_tool_result", "pass_decision_to_tool"]),
        "What happens with an approved call: it is made as the model requested it (the default), it is not made and the decision is its \
         result, or it is made with the decision as its arguments.",
    ),
];

pub(super) const KEYS: &[Key] = &[
    Key::new("default", ACTION, "What happens with calls that no rule matches.").project_rule(ProjectRule::Stricter),
    Key::new(
        "wait",
        Shape::Word(&["all", "each"]),
        "When approved calls are made: once all pending calls are decided, or each as soon as it is approved.",
    ),
    Key::new(
        "rules",
        Shape::Entries(RULE),
        "Rules for some calls. All conditions of a rule must match, and the first matching rule counts. The user's rules and the project's \
         are evaluated separately, and the stricter result counts: a project never turns `ask` or `deny` into `allow`.",
    )
    .project_rule(ProjectRule::AddOnly),
];
