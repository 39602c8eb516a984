//! What `web.fetch` may reach: `agent/web.yaml`.

use serde::{Deserialize, Serialize};

use super::shape::{Key, ProjectRule, Shape};

/// What may be fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Web {
    /// Hosts that may be reached whatever their addresses are.
    pub allow: Vec<String>,
}

pub(super) const KEYS: &[Key] = &[Key::new(
    "allow",
    Shape::List(&Shape::NAME),
    "Hosts that `web.fetch` may reach although their addresses are private or their port is unusual, such as `wiki.internal` or \
     `localhost:8080`; with a port, only that one.",
)
.project_rule(ProjectRule::Ignored)];
