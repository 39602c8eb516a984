//! The hooks of all sources in one order.
//!
//! ```text
//! built-in     what a run does with errors and limits if no hook decides
//! user         config/agent/hooks.yaml of the user
//! project      config/agent/hooks.yaml of the project
//! directive    the directive's own, with what it inherits
//! observers    of any of these, after all others
//! ```
//!
//! - A hook with the id of one in a lower layer replaces it where that one stands, and gets its layer.
//! - `suppress` removes a hook of the same or a lower layer by its exact id.
//! - An observer of the user is neither replaced nor removed by a project or a directive: what watches a run can't be switched off by what
//!   it watches.

use std::sync::LazyLock;

use serde::Serialize;
use serde_json::json;

use super::{Hook, HookFile};

/// Where a hook comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Built in.
    BuiltIn,
    /// The user's file.
    User,
    /// The project's file.
    Project,
    /// The directive.
    Directive,
}

impl Source {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BuiltIn => "built_in",
            Self::User => "user",
            Self::Project => "project",
            Self::Directive => "directive",
        }
    }
}

/// A hook at its place in the order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placed {
    /// The hook.
    #[serde(flatten)]
    pub hook: Hook,
    /// Where it comes from.
    pub source: Source,
    /// The layer whose place it has: that of the hook that it replaces, or its own.
    pub layer: Source,
}

/// The reactions of a run to errors and limits, if no other hook decides.
///
/// The engine decides as these say without recording a hook of its own: the suspension, the failure or the next attempt is the record. They
/// are listed, replaced and suppressed like every other hook.
pub static BUILT_IN: LazyLock<Vec<Hook>> = LazyLock::new(|| {
    let control = |word: &str| {
        json!({"primary": "execute", "item_type": "tool", "item_id": "selvedge/agent/threads/internal/control",
               "params": {"action": word}})
    };
    let hook = |id: &str, event: &str, path: &str, value: serde_json::Value, word: &str, description: &str| {
        let condition = if path.is_empty() { json!({}) } else { json!({"path": path, "op": "eq", "value": value}) };
        let written = json!({"id": id, "event": event, "condition": condition, "action": control(word),
                             "description": description});
        // The tests read each of them.
        serde_json::from_value::<Hook>(written).ok()
    };
    let all = [
        hook(
            "retry_transient",
            "error",
            "classification.retryable",
            json!(true),
            "retry",
            "A failure that may pass is retried, up to `errors.attempts_max` attempts; then the thread is suspended.",
        ),
        hook(
            "fail_permanent",
            "error",
            "classification.category",
            json!("permanent"),
            "fail",
            "A failure that no retry helps ends the run.",
        ),
        hook(
            "abort_cancelled",
            "error",
            "classification.category",
            json!("cancelled"),
            "abort",
            "A run that was stopped is cancelled.",
        ),
        hook("escalate_limit", "limit", "", json!(null), "escalate", "A thread that reached a limit is suspended."),
    ];
    all.into_iter().flatten().collect()
});

/// All hooks of a run, in the order in which they fire: those of the user's file, of the project's file, and of the directive with its
/// `suppress`.
pub fn resolve(
    user: Option<&HookFile>,
    project: Option<&HookFile>,
    directive: Option<(&[Hook], &[String])>,
) -> Vec<Placed> {
    let mut placed: Vec<Placed> = Vec::new();
    add(&mut placed, Source::BuiltIn, &BUILT_IN, &[]);
    for (source, file) in [(Source::User, user), (Source::Project, project)] {
        if let Some(file) = file {
            add(&mut placed, source, &file.hooks, &file.suppress);
        }
    }
    if let Some((hooks, suppress)) = directive {
        add(&mut placed, Source::Directive, hooks, suppress);
    }
    // Stable: within observers, and within the others, the order stays.
    placed.sort_by_key(|placed| (placed.hook.observer, placed.layer));
    placed
}

fn add(placed: &mut Vec<Placed>, source: Source, hooks: &[Hook], suppress: &[String]) {
    let is_fixed = |placed: &Placed| placed.hook.observer && placed.source == Source::User && source > Source::User;
    for hook in hooks {
        match placed.iter_mut().find(|placed| placed.hook.id == hook.id) {
            Some(other) if is_fixed(other) => {}
            Some(other) => *other = Placed { hook: hook.clone(), source, layer: other.layer },
            None => placed.push(Placed { hook: hook.clone(), source, layer: source }),
        }
    }
    placed.retain(|placed| is_fixed(placed) || !suppress.contains(&placed.hook.id));
}
