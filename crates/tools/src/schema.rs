//! Checks arguments against the tool's JSON Schema before anything is started.

use selvedge_model::ToolError;
use serde_json::Value;

use crate::error::InvalidTool;

const ERRORS_MAX: usize = 5;
const ERROR_CHARS_MAX: usize = 300;

/// A compiled schema. References to other documents are never followed.
#[derive(Debug)]
pub struct Schema(jsonschema::Validator);

impl Schema {
    /// Compiles the schema of a tool's arguments; refused if it is no JSON Schema.
    pub fn compile(tool: &str, schema: &Value) -> Result<Self, InvalidTool> {
        if !schema.is_object() {
            return Err(InvalidTool::new(tool, "`input_schema` is not an object"));
        }
        jsonschema::validator_for(schema).map(Self).map_err(|error| {
            InvalidTool::new(tool, format!("`input_schema` is not a valid JSON Schema: {}", short(&error)))
        })
    }

    /// Checks the arguments; the error is written for the model.
    pub fn check(&self, tool: &str, arguments: &Value) -> Result<(), ToolError> {
        let errors = self.0.iter_errors(arguments).take(ERRORS_MAX).map(|error| {
            let place = error.instance_path().to_string();
            if place.is_empty() { short(&error) } else { format!("{place}: {}", short(&error)) }
        });
        let errors: Vec<_> = errors.collect();
        if errors.is_empty() {
            return Ok(());
        }
        let why = format!("the arguments do not match its schema: {}", errors.join("; "));
        Err(ToolError::NotStarted { tool: tool.to_owned(), why })
    }
}

fn short(error: &jsonschema::ValidationError<'_>) -> String {
    error.to_string().chars().take(ERROR_CHARS_MAX).collect()
}
