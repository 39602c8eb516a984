//! Checks the content of a snapshot: against the JSON Schema that is shipped, or against that of a project.

use std::fmt::Write as _;

use jsonschema::Validator;
use selvedge_items::config::state_persistence::State;
use selvedge_log::hash::sha256;
use selvedge_model::Digest;
use selvedge_model::error::{Classify, Kind};
use serde_json::{Value, json};

/// A compiled schema.
pub struct Schema {
    validator: Validator,
    digest: Digest,
}

/// Why a schema can't be used, or what it refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// It is not a JSON Schema.
    #[error("the schema of snapshots is not a valid JSON Schema: {why}")]
    Invalid {
        /// What is wrong with it.
        why: String,
    },
    /// The snapshot does not match it.
    #[error("the snapshot does not match its schema: {why}")]
    Refused {
        /// Where, and why.
        why: String,
    },
}

impl Classify for SchemaError {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "state_schema_invalid",
            Self::Refused { .. } => "state_invalid",
        }
    }

    fn hint(&self) -> Option<String> {
        Some("`selvedge config explain state_persistence` shows the schema and which file it comes from".to_owned())
    }
}

/// The most mismatches that are named.
const NAMED_MAX: usize = 3;

impl Schema {
    /// The schema of a configuration, with the additional fields that it requires.
    pub fn new(state: &State) -> Result<Self, SchemaError> {
        let schema = json!({"allOf": [state.schema, {"required": state.required}]});
        let built = jsonschema::options().should_validate_formats(true).build(&schema);
        let validator = built.map_err(|error| SchemaError::Invalid { why: short(&error) })?;
        Ok(Self { validator, digest: sha256(schema.to_string().as_bytes()) })
    }

    /// The digest of the schema. A snapshot that was checked against it records that under its signature, and is not checked again.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Checks a snapshot.
    pub fn check(&self, body: &Value) -> Result<(), SchemaError> {
        if self.validator.is_valid(body) {
            return Ok(());
        }
        let mut why = String::new();
        for error in self.validator.iter_errors(body).take(NAMED_MAX) {
            let separator = if why.is_empty() { "" } else { "; " };
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "/".to_owned() } else { place };
            // Writing to a string never fails.
            _ = write!(why, "{separator}`{place}`: {}", short(&error));
        }
        Err(SchemaError::Refused { why })
    }
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Schema(..)")
    }
}

/// The message of an error, without long values.
fn short(error: &jsonschema::ValidationError<'_>) -> String {
    let text = error.masked().to_string();
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_items::config::state_persistence::StatePersistence;

    fn shipped() -> Schema {
        Schema::new(&StatePersistence::builtin().state).unwrap()
    }

    /// A snapshot in the published form, from before there was a log.
    fn published() -> Value {
        json!({
            "thread_id": "planner-1739012630", "directive": "apps/task-manager/build_crud_app", "version": "1.0.0",
            "saved_at": "2026-02-12T15:30:00Z", "parent_thread_id": null, "turn_number": 3,
            "inputs": {"app_name": "Task Manager", "features": ["crud", "auth"]},
            "cost": {
                "turns": 3, "tokens": {"input_tokens": 4500, "output_tokens": 3200}, "spend": 0.045, "duration_seconds": 45.5,
            },
            "limits": {"spend": 1.0, "turns": 10, "tokens": 100_000, "spawns": 5},
            "status": "suspended", "suspend_reason": "limit",
            "suspend_metadata": {"limit_code": "spend_exceeded", "current_value": 1.05, "current_max": 1.0},
            "hooks": [{"event": "limit", "directive": "my_app/custom_limit_handler", "inputs": {}}],
            "required_caps": ["rye.execute.tool.*"],
            "messages": [
                {"role": "system", "content": "You are building an app."}, {"role": "assistant", "content": "I will."},
            ],
            "partial_cognition": {"text": "Let me see", "is_partial": true, "completion_percentage": 35},
        })
    }

    #[test]
    fn the_published_form_is_valid() {
        assert_eq!(shipped().check(&published()), Ok(()));
    }

    #[test]
    fn a_mismatch_is_refused_and_named() {
        for (place, wrong) in [
            ("/saved_at", json!("yesterday")),
            ("/turn_number", json!("three")),
            ("/status", json!("asleep")),
            ("/suspend_reason", json!("boredom")),
            ("/cost/tokens/input_tokens", json!(1.5)),
            ("/messages/0/role", json!("narrator")),
            ("/suspend_metadata/limit_code", json!("patience_exceeded")),
        ] {
            let mut body = published();
            *body.pointer_mut(place).unwrap() = wrong;
            let refused = shipped().check(&body).unwrap_err();
            assert!(refused.to_string().contains(place), "{refused}");
        }
        let mut body = published();
        body.as_object_mut().unwrap().remove("directive");
        assert!(shipped().check(&body).unwrap_err().to_string().contains("directive"));
    }

    #[test]
    fn a_custom_schema_is_honoured_and_an_invalid_one_is_refused() {
        let mut state = StatePersistence::builtin().state;
        state.required.push("approved_by".to_owned());
        let refused = Schema::new(&state).unwrap().check(&published()).unwrap_err();
        assert!(refused.to_string().contains("approved_by"), "{refused}");
        state.schema = json!({"type": "no type"});
        assert!(matches!(Schema::new(&state), Err(SchemaError::Invalid { .. })));
    }
}
