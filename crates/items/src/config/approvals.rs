//! Which calls are made, refused, or put before a person: `agent/approvals.yaml`.
//!
//! Two have a say: what comes with the program together with the user, and the project. Each says what its first rule that fits
//! says, else its default; the project may have none. The more careful of the two counts, so a project can ask for more care
//! than its user and never for less.

pub use selvedge_model::event::ResumeMode;
use selvedge_model::tool::{Risk, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::section::Misfit;
use super::shape::{Check, Key, Say, Shape};
use crate::capability::Capability;

/// Which calls are made, refused, or put before a person.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Approvals {
    /// When calls that were decided about are made.
    pub wait: Wait,
    /// What the program and the user say.
    pub user: ApprovalPolicy,
    /// What the project says.
    pub project: ApprovalPolicy,
}

/// What one side says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ApprovalPolicy {
    /// What it says of calls that none of its rules fits.
    #[serde(default)]
    pub default: Option<Action>,
    /// Its rules; the first that fits counts.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// What becomes of a call. The later is the more careful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is made.
    #[default]
    Allow,
    /// A person is asked.
    Ask,
    /// It is refused, and the model is told.
    Deny,
}

/// When calls that were decided about are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Once all that wait are decided about.
    #[default]
    All,
    /// Each by itself.
    Each,
}

/// What becomes of some calls. What it names must all fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it is called.
    pub id: String,
    /// What becomes of the calls.
    pub action: Action,
    /// The tool, by the name that the model uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What the tool's capability must be in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<Capability>,
    /// The tool's risk, at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// Why; a person who is asked, or a model that is refused, is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// After how many seconds nobody's word counts any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after_seconds: Option<u64>,
    /// What becomes of a call that was approved.
    #[serde(default)]
    pub resume_mode: ResumeMode,
}

/// What becomes of a call, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// What becomes of it.
    pub action: Action,
    /// The rule that says so; none if a default does.
    pub rule: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// After how many seconds nobody's word counts any more.
    pub expires_after_seconds: Option<u64>,
    /// What becomes of it once it is approved.
    pub resume_mode: ResumeMode,
}

impl Approvals {
    /// What becomes of calls of a tool.
    pub fn decide(&self, tool: &ToolSpec) -> Decision {
        let user = self.user.decide(tool).unwrap_or_default();
        match self.project.decide(tool) {
            Some(project) if project.action > user.action => project,
            _ => user,
        }
    }

    /// From what the user and what the project says.
    pub(super) fn read(merged: &Value, user: Value, project: Value) -> Result<Self, Misfit> {
        let wait = serde_json::from_value(merged["wait"].clone()).map_err(Misfit::of)?;
        let read = |value: Value| -> Result<ApprovalPolicy, Misfit> {
            let policy: ApprovalPolicy = serde_json::from_value(value).map_err(Misfit::of)?;
            match policy.rules.iter().find(|rule| rule.names_nothing()) {
                Some(rule) => Err(Misfit::at(
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
            // What can't be read as a capability might be anything.
            tool.capability.parse::<Capability>().map_or(self.action != Action::Allow, |needed| wide.contains(&needed))
        });
        let by_risk = self.risk.is_none_or(|risk| tool.risk >= risk);
        by_name && by_capability && by_risk
    }
}

const ACTION: Shape = Shape::Word(&["allow", "ask", "deny"]);

const CAPABILITY: Shape = Shape::Text(Check {
    what: "a capability such as `tool.files.*`",
    check: |text| text.parse::<Capability>().map(drop).map_err(|error| error.why.to_owned()),
});

const RULE: &[Key] = &[
    Key::new(
        "action",
        ACTION,
        "What becomes of the call: it is made, a person is asked, or it is refused and the model is told.",
    )
    .required(),
    Key::new("tool", Shape::NAME, "The tool, by the name that the model uses."),
    Key::new("capability", CAPABILITY, "What the tool's capability must be in, such as `tool.files.*`."),
    Key::new(
        "risk",
        Shape::Word(&["safe", "write", "external", "dangerous"]),
        "How much harm the tool can do, at least: `write` is also `external` and `dangerous`.",
    ),
    Key::new("reason", Shape::NAME, "Why; whoever is asked, or the model that is refused, is told."),
    Key::new(
        "expires_after_seconds",
        Shape::Whole { min: 1, max: u64::MAX },
        "After how many seconds nobody's word counts any more and the call is not made; never if nothing is said.",
    ),
    Key::new(
        "resume_mode",
        Shape::Word(&["replay_tool_call", "use_decision_as_tool_result", "pass_decision_to_tool"]),
        "What becomes of an approved call: it is made as the model asked for it (the default), it is not made and the decision is its \
         result, or it is made with the decision for its arguments.",
    ),
];

pub(super) const KEYS: &[Key] = &[
    Key::new("default", ACTION, "What becomes of calls that no rule fits.").says(Say::MoreCare),
    Key::new(
        "wait",
        Shape::Word(&["all", "each"]),
        "When approved calls are made: once all that wait are decided about, or each by itself.",
    ),
    Key::new(
        "rules",
        Shape::Entries(RULE),
        "What becomes of some calls; what a rule names must all fit, and the first that fits counts. The user's rules and the project's \
         are asked apart, and the more careful answer counts: a project never turns `ask` or `deny` into `allow`.",
    )
    .says(Say::More),
];
