//! The outputs of a directive are returned completely, or the model gets an error that names what is missing.

use selvedge_model::event::EffectClass;
use selvedge_model::{Output, Tool};
use selvedge_tools::{DeclaredOutput, DirectiveReturn};
use serde_json::{Value, json};

use crate::support::{text, use_tool};

fn output(name: &str, json_type: Option<&str>, required: bool) -> DeclaredOutput {
    let json_type = json_type.map(str::to_owned);
    DeclaredOutput { name: name.to_owned(), description: String::new(), json_type, required }
}

fn give_back(arguments: Value) -> Output {
    let outputs = vec![
        output("report", Some("string"), true),
        output("count", Some("integer"), true),
        output("notes", Some("array"), false),
        output("extra", None, false),
    ];
    use_tool(&DirectiveReturn::new(outputs).unwrap(), arguments).unwrap()
}

#[test]
fn complete_outputs_are_accepted_and_are_in_the_result() {
    let output = give_back(json!({"report": "r", "count": 2, "notes": null, "extra": {"a": 1}}));
    let content = json!({"outputs": {"report": "r", "count": 2, "extra": {"a": 1}}});
    assert_eq!(output, Output { content, ..Output::default() });
}

#[test]
fn all_flaws_are_named_at_once() {
    let output = give_back(json!({"report": " ", "notes": "one", "other": 1}));
    assert!(output.is_error);
    let expected = "the outputs were not accepted: `report` is empty, `count` is missing, `notes` is not of type array, \
                    `other` is not an output of the directive; call it again with all of them";
    assert_eq!(text(&output), expected);
    for bad in [json!({"report": "r", "count": null}), json!({"report": "r", "count": 1.5}), json!([]), Value::Null] {
        assert!(give_back(bad.clone()).is_error, "{bad}");
    }
}

#[test]
fn its_schema_has_the_declared_outputs() {
    let tool = DirectiveReturn::new(vec![output("a", Some("string"), true), output("b", None, false)]).unwrap();
    let spec = tool.spec();
    assert_eq!((spec.name.as_str(), spec.class), ("directive_return", EffectClass::Idempotent));
    assert_eq!(spec.input_schema["required"], json!(["a"]));
    assert_eq!(spec.input_schema["properties"]["a"]["type"], "string");
    assert!(DirectiveReturn::new(vec![output("a", Some("text"), true)]).is_err());
    assert!(DirectiveReturn::new(vec![output("a", None, true), output("a", None, true)]).is_err());
}
