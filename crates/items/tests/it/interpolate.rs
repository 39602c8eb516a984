//! Interpolation of values into a text.

use std::collections::BTreeMap;

use proptest::prelude::*;
use selvedge_items::interpolate::{InterpolationError, environment_names, fill, render};
use selvedge_items::{Environment, Scope};
use selvedge_model::error::Classify;
use serde_json::{Value, json};

fn text(template: &str, values: &Value) -> String {
    render(template, &Scope { values, environment: Environment::default() }).unwrap().text
}

fn values() -> Value {
    json!({ "inputs": { "k": "v", "n": 5, "list": [1, "a"], "none": null }, "a": { "b": ["x", null] }, "c": "see" })
}

#[test]
fn every_form_is_interpolated() {
    for (template, expected) in [
        ("{input:k}", "v"),
        ("{input:k?}", "v"),
        ("{input:gone?}", ""),
        ("{input:gone:default text: more}", "default text: more"),
        ("{input:gone|old}", "old"),
        ("{input:gone:}", ""),
        ("{input:k:default}", "v"),
        ("{input:n} {input:list}", "5 [1,\"a\"]"),
        ("${inputs.k}", "v"),
        ("${ inputs.k }", "v"),
        ("${a.b.0 || c}", "x"),
        ("${a.b.1 || c}", "see"),
        ("${a.b.9||a.z||c}", "see"),
        ("${unknown || c}", "see"),
        ("${a.b.1}", ""),
        ("<{input:k}{input:k}>", "<vv>"),
        ("ü{input:k}ü", "üvü"),
    ] {
        assert_eq!(text(template, &values()), expected, "{template}");
    }
}

#[test]
fn text_that_only_looks_like_an_expression_is_unchanged() {
    for look_alike in [
        "${HOME}",
        "${}",
        "${a.b",
        "${a.b\n}",
        "${a..b}",
        "${a b}",
        "${a|b}",
        "$(a)",
        "$a",
        "{input:}",
        "{input: k}",
        "{input:k??}",
        "{input:k",
        "{inputs:k}",
        "{ input:k}",
        "{env:}",
        "{{}}",
        "{",
        "$",
        "\\",
        "\\n",
        "${a[0]}",
        "${process.env.SECRET}",
    ] {
        assert_eq!(text(look_alike, &values()), look_alike);
    }
    let long = format!("${{{}}}", "a".repeat(2_000));
    assert_eq!(text(&long, &values()), long);
    let rendered =
        render("${HOME} ${a.b.1}", &Scope { values: &values(), environment: Environment::default() }).unwrap();
    assert_eq!((rendered.unknown, rendered.empty), (vec!["${HOME}".to_owned()], vec!["${a.b.1}".to_owned()]));
}

#[test]
fn a_backslash_makes_an_expression_plain_text() {
    for (template, expected) in [
        (r"\{input:k}", "{input:k}"),
        (r"\${c}", "${c}"),
        (r"a\{input:k}b{input:k}\${c}", "a{input:k}bv${c}"),
        (r"\\{input:k}", r"\{input:k}"),
    ] {
        assert_eq!(text(template, &values()), expected, "{template}");
    }
}

#[test]
fn an_input_without_a_value_is_an_error_with_its_line() {
    let values = values();
    let scope = Scope { values: &values, environment: Environment::default() };
    for name in ["gone", "none"] {
        let error = render(&format!("one\ntwo {{input:{name}}}"), &scope).unwrap_err();
        assert_eq!(error, InterpolationError::NoInput { name: name.to_owned(), line: 2 });
        assert!(error.hint().unwrap().contains(&format!("--input {name}=")));
    }
}

#[test]
fn environment_variables_must_be_named_and_allowed() {
    let variables: BTreeMap<String, String> = [("CITY", "Ulm"), ("SECRET", "canary"), ("OTHER", "${inputs.k}")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let allowed = ["CITY".to_owned(), "GONE".to_owned(), "OTHER".to_owned()];
    let values = values();
    let scope = Scope { values: &values, environment: Environment { allowed: &allowed, variables: Some(&variables) } };
    let rendered = |template: &str| render(template, &scope).map(|rendered| rendered.text);
    assert_eq!(rendered("{env:CITY} {env:GONE:none}").unwrap(), "Ulm none");
    assert_eq!(rendered("{env:OTHER}").unwrap(), "${inputs.k}", "inserted text is not expanded");
    assert_eq!(rendered("{env:SECRET}").unwrap_err().code(), "interpolation_not_allowed");
    assert_eq!(rendered("{env:SECRET:x}").unwrap_err().code(), "interpolation_not_allowed");
    assert_eq!(rendered("{env:GONE}").unwrap_err().code(), "interpolation_variable_missing");
    for sneaky in ["${env.SECRET}", "${SECRET}", "${environment.SECRET || SECRET}", "{input:SECRET?}"] {
        assert!(!rendered(sneaky).unwrap().contains("canary"), "{sneaky}");
    }
    assert_eq!(environment_names("{env:B} {env:A:x} \\{env:C} {env:B}"), ["A", "B"]);
}

#[test]
fn inserted_text_is_never_expanded() {
    for hostile in ["{input:secret}", "${inputs.secret}", "{env:HOME}", "\\{input:secret}", "${", "}", "{input:"] {
        let values = json!({ "inputs": { "k": hostile, "secret": "canary", "list": [hostile] } });
        assert_eq!(text("{input:k}", &values), hostile);
        assert_eq!(text("${inputs.k}", &values), hostile);
        assert_eq!(text("${inputs.k", &values), "${inputs.k");
        // Parts of two values don't form an expression either.
        assert!(!text("{input:k}{input:k}{input:k?}secret}", &values).contains("canary"));
        assert!(!text("{input:list}", &values).contains("canary"));
        let filled = fill(
            &json!({ "a": "{input:k}", "b": ["x ${inputs.k}"] }),
            &Scope { values: &values, environment: Environment::default() },
        );
        assert_eq!(filled.unwrap(), json!({ "a": hostile, "b": [format!("x {hostile}")] }));
    }
}

#[test]
fn a_single_expression_keeps_its_type() {
    let values = values();
    let scope = Scope { values: &values, environment: Environment::default() };
    let template = json!({ "n": "${inputs.n}", "list": "{input:list}", "none": "${a.b.1}", "t": "n=${inputs.n}", "5": 5, "${c}": "${HOME}" });
    let filled = fill(&template, &scope).unwrap();
    assert_eq!(filled, json!({ "n": 5, "list": [1, "a"], "none": null, "t": "n=5", "5": 5, "${c}": "${HOME}" }));
}

/// Texts made of parts of expressions.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{input:k}".to_owned()),
        Just("{input:s}".to_owned()),
        Just("{input:gone?}".to_owned()),
        Just("${inputs.k}".to_owned()),
        Just("${inputs.s || c}".to_owned()),
        Just("{env:HOME}".to_owned()),
        "[{}$\\\\:|?.kins \n-]{0,6}",
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// The same text with every value replaced by a mark that can't be an expression, then the marks by the values.
fn twice_by_hand(template: &str, k: &str, s: &str) -> Option<String> {
    let marks = json!({ "inputs": { "k": "\u{1}", "s": "\u{2}" }, "c": "\u{3}" });
    let rendered = render(template, &Scope { values: &marks, environment: Environment::default() }).ok()?;
    let put = |mark| match mark {
        '\u{1}' => k.to_owned(),
        '\u{2}' => s.to_owned(),
        '\u{3}' => "see".to_owned(),
        other => other.to_string(),
    };
    Some(rendered.text.chars().map(put).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn interpolation_never_expands_twice(template in soup(), k in soup(), s in soup()) {
        let values = json!({ "inputs": { "k": k, "s": s }, "c": "see" });
        let once = render(&template, &Scope { values: &values, environment: Environment::default() });
        prop_assert_eq!(once.ok().map(|rendered| rendered.text), twice_by_hand(&template, &k, &s));
    }

    #[test]
    fn a_text_without_marks_is_unchanged(template in "[^{$]{0,64}") {
        prop_assert_eq!(text(&template, &json!({})), template);
    }
}
