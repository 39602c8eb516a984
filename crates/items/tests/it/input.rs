//! Inputs and outputs of a run.

use selvedge_items::input::{bind, give_back, output_schema};
use selvedge_items::{Input, Output};
use selvedge_model::error::Classify;
use serde_json::{Map, Value, json};

fn inputs(value: Value) -> Vec<Input> {
    serde_json::from_value(value).unwrap()
}

fn map(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

#[test]
fn values_are_converted_to_the_declared_type() {
    for (of, given, expected) in [
        ("string", json!("x"), Some(json!("x"))),
        ("string", json!(5), Some(json!("5"))),
        ("string", json!([1]), None),
        ("integer", json!("5"), Some(json!(5))),
        ("integer", json!(5.0), Some(json!(5))),
        ("integer", json!("18446744073709551615"), Some(json!(u64::MAX))),
        ("integer", json!("5.5"), None),
        ("integer", json!(true), None),
        ("number", json!("2.5"), Some(json!(2.5))),
        ("number", json!("3"), Some(json!(3))),
        ("number", json!("NaN"), None),
        ("number", json!("inf"), None),
        ("boolean", json!("true"), Some(json!(true))),
        ("boolean", json!("yes"), None),
        ("boolean", json!(1), None),
        ("list", json!("[1, 2]"), Some(json!([1, 2]))),
        ("array", json!([1]), Some(json!([1]))),
        ("list", json!("{}"), None),
        ("object", json!("{\"a\": 1}"), Some(json!({"a": 1}))),
        ("object", json!("not json"), None),
    ] {
        let declared = inputs(json!([{ "name": "k", "type": of }]));
        let bound = bind(&declared, map(json!({ "k": given })));
        assert_eq!(bound.ok().map(|bound| bound["k"].clone()), expected, "{of} {given}");
    }
    let one_of = inputs(json!([{ "name": "k", "type": "enum", "values": ["dry", "warm"] }]));
    assert!(bind(&one_of, map(json!({ "k": "dry" }))).is_ok());
    assert_eq!(bind(&one_of, map(json!({ "k": "wet" }))).unwrap_err().reasons, ["`k` should be one of dry, warm"]);
}

#[test]
fn all_errors_are_reported_at_once() {
    let declared = inputs(json!([
        { "name": "city", "required": true }, { "name": "land", "required": true }, { "name": "weeks", "type": "integer" },
    ]));
    let error = bind(&declared, map(json!({ "weeks": "many", "citty": "x", "land": null }))).unwrap_err();
    assert_eq!(error.missing(), ["city", "land"]);
    let said = error.to_string();
    for part in [
        "`weeks` should be a whole number",
        "did you mean `city`?",
        "`city` is required and missing",
        "`land` is required",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(error.hint().unwrap(), "give --input city=… --input land=…");
}

#[test]
fn defaults_are_used_and_a_directive_without_inputs_accepts_any() {
    let declared = inputs(json!([{ "name": "a", "required": true, "default": "x" }, { "name": "b" }]));
    assert_eq!(bind(&declared, Map::new()).unwrap(), map(json!({ "a": "x" })));
    assert_eq!(bind(&[], map(json!({ "any": 1 }))).unwrap(), map(json!({ "any": 1 })));
}

/// Outputs that are false, zero or empty used to count as missing.
#[test]
fn a_required_output_may_be_false_zero_or_empty_but_not_missing() {
    let declared: Vec<Output> = serde_json::from_value(
        json!([{ "name": "ok", "type": "boolean", "required": true, "description": "Whether." }]),
    )
    .unwrap();
    assert_eq!(give_back(&declared, map(json!({ "ok": false }))).unwrap()["ok"], json!(false));
    for bad in [json!({}), json!({ "ok": null }), json!({ "ok": "maybe" }), json!({ "ok": true, "more": 1 })] {
        assert!(give_back(&declared, map(bad.clone())).is_err(), "{bad}");
    }
    let schema = output_schema(&declared);
    assert_eq!(schema["properties"]["ok"], json!({ "type": "boolean", "description": "Whether." }));
    assert_eq!((&schema["required"], &schema["additionalProperties"]), (&json!(["ok"]), &json!(false)));
}

#[test]
fn an_invalid_declaration_is_refused() {
    for wrong in [
        json!([{ "name": "a b" }]),
        json!([{ "name": "" }]),
        json!([{ "name": "a", "type": "enum" }]),
        json!([{ "name": "a", "values": ["x"] }]),
        json!([{ "name": "a", "type": "integer", "default": "x" }]),
        json!([{ "name": "a", "kind": "x" }]),
    ] {
        assert!(serde_json::from_value::<Vec<Input>>(wrong.clone()).is_err(), "{wrong}");
    }
    assert!(serde_json::from_value::<Vec<Output>>(json!([{ "name": "a", "default": 1 }])).is_err());
}

#[test]
fn a_number_beyond_64_bits_is_reported_as_too_large() {
    let declared = inputs(json!([{ "name": "k", "type": "integer" }]));
    for given in [json!("99999999999999999999"), json!("-99999999999999999999"), json!(1e20)] {
        let wrong = bind(&declared, map(json!({ "k": given }))).unwrap_err();
        let expected = "`k` should be a whole number within 64 bits, from -9223372036854775808 to 18446744073709551615";
        assert_eq!(wrong.reasons, [expected], "{given}");
    }
}
