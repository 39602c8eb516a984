//! `directive_return`: an agent returns the outputs of its directive.
//!
//! - Accepted outputs have every required output, none that was not declared, and each of its declared type.
//! - Accepted outputs are in the result as `{"outputs": {…}}`; the engine records them and ends the run.
//! - Otherwise the result is an error that names all flaws, so that the model can correct them at once.

use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Reconciled, Risk, Started, ToolKind};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::{Map, Value, json};

use crate::error::InvalidTool;
use crate::in_process::{self, InProcessCall};

/// The name that models call it by.
pub const NAME: &str = "directive_return";

/// One output of a directive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredOutput {
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// Its JSON type, such as `string`; absent means any.
    pub json_type: Option<String>,
    /// Whether the directive is incomplete without it.
    pub required: bool,
}

/// The tool.
#[derive(Debug)]
pub struct DirectiveReturn {
    spec: ToolSpec,
    outputs: Vec<DeclaredOutput>,
}

const JSON_TYPES: [&str; 6] = ["string", "number", "integer", "boolean", "object", "array"];

impl DirectiveReturn {
    /// The tool for a directive with these outputs.
    pub fn new(outputs: Vec<DeclaredOutput>) -> Result<Self, InvalidTool> {
        let mut properties = Map::new();
        for output in &outputs {
            let mut property = json!({"description": output.description});
            if let Some(json_type) = &output.json_type {
                if !JSON_TYPES.contains(&json_type.as_str()) {
                    let why = format!(
                        "output `{}` has the type `{json_type}`; there is {}",
                        output.name,
                        JSON_TYPES.join(", ")
                    );
                    return Err(InvalidTool::new(NAME, why));
                }
                property["type"] = json!(json_type);
            }
            if properties.insert(output.name.clone(), property).is_some() {
                return Err(InvalidTool::new(NAME, format!("output `{}` is declared twice", output.name)));
            }
        }
        let required: Vec<_> = outputs.iter().filter(|output| output.required).map(|output| &output.name).collect();
        let schema =
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        let description = "Returns the outputs that the directive asks for. Call it once, when everything is done.";
        let spec = in_process::spec(NAME, description, schema, EffectClass::Idempotent, Risk::Safe);
        Ok(Self { spec, outputs })
    }

    /// The flaws of the arguments.
    fn flaws(&self, arguments: &Map<String, Value>) -> Vec<String> {
        let mut flaws = Vec::new();
        for output in &self.outputs {
            match arguments.get(&output.name) {
                None | Some(Value::Null) if output.required => flaws.push(format!("`{}` is missing", output.name)),
                Some(Value::String(text)) if output.required && text.trim().is_empty() => {
                    flaws.push(format!("`{}` is empty", output.name));
                }
                None | Some(Value::Null) => {}
                Some(value) => {
                    if let Some(json_type) = output.json_type.as_deref().filter(|json_type| !is_a(value, json_type)) {
                        flaws.push(format!("`{}` is not of type {json_type}", output.name));
                    }
                }
            }
        }
        let is_declared = |name: &String| self.outputs.iter().any(|output| output.name == *name);
        let unknown = arguments.keys().filter(|name| !is_declared(name));
        flaws.extend(unknown.map(|name| format!("`{name}` is not an output of the directive")));
        flaws
    }

    fn answer(&self, arguments: &Value) -> Output {
        let Some(arguments) = arguments.as_object() else {
            return Output::error("the outputs were not accepted: they must be an object");
        };
        let flaws = self.flaws(arguments);
        if !flaws.is_empty() {
            return Output::error(format!(
                "the outputs were not accepted: {}; call it again with all of them",
                flaws.join(", ")
            ));
        }
        let given = arguments.iter().filter(|(_, value)| !value.is_null());
        let outputs: Map<String, Value> = given.map(|(name, value)| (name.clone(), value.clone())).collect();
        Output { content: json!({"outputs": outputs}), ..Output::default() }
    }
}

fn is_a(value: &Value, json_type: &str) -> bool {
    match json_type {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        _ => true,
    }
}

impl Tool for DirectiveReturn {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn kind(&self) -> ToolKind {
        ToolKind::Return
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        let answer = self.answer(&call.arguments);
        Ok(InProcessCall::boxed(NAME, move || answer))
    }

    /// It has no effect, so it can be made again.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::NotDone
    }
}
