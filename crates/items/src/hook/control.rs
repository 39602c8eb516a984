//! What a hook decides about a run.
//!
//! A result decides if it is an object whose `action` is one of these words; the outputs of a directive count, too. Every other result
//! decides nothing.

use selvedge_model::event::SuspendReason;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The words of the decisions.
pub const CONTROLS: [&str; 7] = ["retry", "fail", "abort", "continue", "skip", "suspend", "escalate"];

/// What a hook decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Control {
    /// Ask the model again, after the usual wait.
    Retry,
    /// End the run as failed.
    Fail {
        /// Why.
        #[serde(default)]
        error: String,
    },
    /// End the run as cancelled.
    Abort,
    /// Go on.
    Continue,
    /// Go on without what the event is about.
    Skip,
    /// Suspend the thread.
    Suspend {
        /// Why.
        #[serde(default = "error")]
        suspend_reason: SuspendReason,
    },
    /// Suspend the thread at a limit.
    Escalate {
        /// The limit.
        #[serde(default)]
        limit_type: Option<String>,
        /// Its current value.
        #[serde(default)]
        current_value: Option<Value>,
    },
}

fn error() -> SuspendReason {
    SuspendReason::Error
}

impl Control {
    /// The decision in a result, if there is one. The error says what is wrong with one that names a decision.
    pub fn of(result: &Value) -> Option<Result<Self, String>> {
        let text;
        let mut result = result;
        // The output of a command is text.
        if let Some(written) = result.as_str().filter(|written| written.trim_start().starts_with('{')) {
            text = serde_json::from_str::<Value>(written).ok()?;
            result = &text;
        }
        let result = [Some(result), result.get("outputs")].into_iter().flatten().find(|one| is_named(one))?;
        Some(serde_json::from_value(result.clone()).map_err(|error| error.to_string()))
    }

    /// Its word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Fail { .. } => "fail",
            Self::Abort => "abort",
            Self::Continue => "continue",
            Self::Skip => "skip",
            Self::Suspend { .. } => "suspend",
            Self::Escalate { .. } => "escalate",
        }
    }

    /// Its form in a log.
    pub fn to_json(&self) -> Value {
        json!(self)
    }
}

/// Whether an object names a decision.
fn is_named(result: &Value) -> bool {
    result.get("action").and_then(Value::as_str).is_some_and(|word| CONTROLS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_that_names_a_decision_decides() {
        for nothing in [json!(null), json!({"success": true}), json!("retry"), json!({"action": "restart"}), json!([1])]
        {
            assert_eq!(Control::of(&nothing), None, "{nothing}");
        }
        assert_eq!(Control::of(&json!({"action": "retry", "by": "x"})), Some(Ok(Control::Retry)));
        assert_eq!(Control::of(&json!("{\"action\": \"abort\"}\n")), Some(Ok(Control::Abort)));
        let fail = Control::Fail { error: "too dear".to_owned() };
        assert_eq!(
            Control::of(&json!({"success": true, "outputs": {"action": "fail", "error": "too dear"}})),
            Some(Ok(fail))
        );
        let suspend = Control::Suspend { suspend_reason: SuspendReason::Budget };
        assert_eq!(Control::of(&json!({"action": "suspend", "suspend_reason": "budget"})), Some(Ok(suspend)));
        assert!(matches!(Control::of(&json!({"action": "suspend", "suspend_reason": "tired"})), Some(Err(_))));
        for word in CONTROLS {
            let control = Control::of(&json!({"action": word})).unwrap().unwrap();
            assert_eq!(control.as_str(), word);
            assert_eq!(Control::of(&control.to_json()), Some(Ok(control)));
        }
    }
}
