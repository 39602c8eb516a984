//! Declarations of command tools.

use selvedge_items::tool::parse;
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Risk, Stdin};
use serde_json::json;

const FULL: &str = r#"
name: pay
description: Pays an amount once.
input_schema:
  type: object
  properties: { amount: { type: integer }, to: { type: string } }
  required: [amount]
command: [./pay.sh, "--amount={input:amount}", "{input:to?}"]
stdin: json
timeout_seconds: 5
output_bytes_max: 1000
environment: [PATH, PAY_URL]
working_folder: work/pay
class: idempotent
reconcile: [./paid.sh, "{input:amount}"]
capability: tool.money.pay
risk: dangerous
"#;

#[test]
fn all_parts_of_a_tool_are_read() {
    let tool = parse("money/pay", FULL).unwrap();
    assert_eq!(tool.command, ["./pay.sh", "--amount={input:amount}", "{input:to?}"]);
    assert_eq!((tool.stdin, tool.timeout_seconds, tool.output_bytes_max), (Stdin::Json, 5, 1000));
    assert_eq!((tool.class, tool.risk), (EffectClass::Idempotent, Risk::Dangerous));
    assert_eq!(tool.capability, "selvedge.execute.tool.money.pay");
    assert_eq!(tool.reconcile.unwrap().len(), 2);
}

#[test]
fn the_defaults_of_a_tool_are_cautious() {
    let tool = parse("files/list", "name: list\ndescription: Lists.\ncommand: [ls]\n").unwrap();
    assert_eq!((tool.class, tool.risk, tool.stdin), (EffectClass::AtMostOnce, Risk::Write, Stdin::None));
    assert_eq!((tool.timeout_seconds, tool.output_bytes_max), (60, 1 << 20));
    assert_eq!(tool.capability, "selvedge.execute.tool.files.list");
    assert_eq!(tool.input_schema, json!({ "type": "object", "properties": {}, "additionalProperties": false }));
    assert!(tool.environment.is_empty() && tool.working_folder.is_none() && tool.reconcile.is_none());
}

#[test]
fn an_invalid_declaration_is_refused_with_its_reason() {
    for (from, to, says) in [
        ("name: pay", "name: payed", "but its file `pay`"),
        ("[./pay.sh,", "[\"{input:to}\",", "would be chosen by the model"),
        ("[./pay.sh,", "[\"${inputs.to}\",", "would be chosen by the model"),
        ("[./pay.sh, \"--amount={input:amount}\", \"{input:to?}\"]", "[]", "`command` is empty"),
        ("[./pay.sh, \"--amount={input:amount}\", \"{input:to?}\"]", "./pay.sh 5", "expected a list"),
        ("{input:to?}", "{input:too?}", "`input_schema` does not have"),
        ("{input:to?}", "{input:to:me}", "`{input:to:me}` is not supported in the arguments"),
        ("{input:to?}", "${inputs.to}", "`${inputs.to}` is not supported in the arguments"),
        ("{input:to?}", "{env:HOME}", "`{env:HOME}` is not supported in the arguments"),
        ("type: object", "type: array", "does not describe an object"),
        ("work/pay", "../out", "is outside of the project"),
        ("work/pay", "/tmp", "is outside of the project"),
        ("PAY_URL", "1X", "not the name of a variable"),
        ("PAY_URL", "A=B", "not the name of a variable"),
        ("timeout_seconds: 5", "timeout_seconds: 0", "between 1 and a week"),
        ("output_bytes_max: 1000", "output_bytes_max: 99999999999", "between 1 and 64 MiB"),
        ("class: idempotent", "class: idempotnt", "`idempotnt` is unknown here"),
        ("tool.money.pay", "tool.money.*", "can't contain `*`"),
        ("timeout_seconds", "timeout", "`timeout` is not a known key"),
    ] {
        assert!(FULL.contains(from), "{from}");
        let flaw = parse("money/pay", &FULL.replacen(from, to, 1)).unwrap_err();
        assert!(flaw.to_string().contains(says), "{to}: {flaw}");
    }
}
