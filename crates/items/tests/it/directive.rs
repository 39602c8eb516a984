//! Both forms of a directive, and inheritance.

use selvedge_items::Directive;
use selvedge_items::hook::Position;
use selvedge_items::input::Type;
use serde_json::json;

pub(crate) const XML: &str = r#"<!-- selvedge:signed:1:directive:2026-01-01T00:00:00Z:0:0:0 -->
# Weekly report

Some words for people.

````markdown
```xml
<directive name="an_example" version="9.9.9"></directive>
```
````

```xml
<directive name="weekly_report" version="1.2.0" extends="reports/base">
  <metadata>
    <description>Writes the report of a week.</description>
    <category>reports</category>
    <author>Ada</author>
    <license>MIT</license>
    <model tier="general" provider="any" fallback="small" parallel="false"/>
    <limits turns="5" tokens="20000" spend="0.50" spend_currency="USD" spawns="1" depth="2" duration_seconds="60"/>
    <permissions>
      <execute>
        <tool>rye.file-system.*</tool>
        <tool>reports/send</tool>
      </execute>
      <fetch>*</fetch>
      <acknowledge risk="unrestricted">It must send mail.</acknowledge>
    </permissions>
    <hooks>
      <!-- Summarize when thread completes or is handed off -->
      <hook id="summarize_on_complete" event="after_complete">
        <condition path="cost.turns" op="gte" value="1" />
        <action primary="execute" item_type="tool" item_id="rye/agent/threads/thread_summary">
          <param name="thread_id">${thread_id}</param>
        </action>
      </hook>
      <hook id="reinject_summary" event="thread_continued" position="after" wrap="false">
        <action primary="execute" item_type="knowledge" item_id="agent/threads/${inputs.previous_summary_id}" />
        <description>Summary of what was built before the handoff</description>
      </hook>
    </hooks>
    <context>
      <system>house/rules</system>
      <before>house/style</before>
      <suppress>house/old</suppress>
    </context>
    <continuation_directive>reports/go_on</continuation_directive>
  </metadata>
  <inputs>
    <input name="city" type="string" required="true">Which city.</input>
    <input name="weeks" type="integer" default="1"/>
    <input name="tone" type="enum" values="dry, warm" default="dry"/>
  </inputs>
  <outputs>
    <output name="path" type="string" required="true">Where it lies.</output>
    <success>ignored</success>
  </outputs>
  <example>if a < b && c > d { "```"; }</example>
</directive>
```

Report on {input:city}.

```sh
echo ${HOME}
```
"#;

const YAML: &str = r#"---
name: weekly_report
version: 1.2.0
description: Writes the report of a week.
category: reports
author: Ada
extra: { license: MIT, example: 'if a < b && c > d { "```"; }' }
model: { tier: general, provider: any, fallback: small }
limits: { turns: 5, tokens: 20000, spend: 0.50, spawns: 1, depth: 2, duration_seconds: 60 }
permissions:
  allow: [rye.execute.tool.rye.file-system.*, tool.reports.send, selvedge.fetch.*]
  acknowledge: [{ risk: dangerous, why: It must send mail. }]
hooks:
  - id: summarize_on_complete
    event: after_complete
    condition: { path: cost.turns, op: gte, value: 1 }
    action:
      primary: execute
      item_type: tool
      item_id: rye/agent/threads/thread_summary
      params: { thread_id: "${thread_id}" }
  - id: reinject_summary
    event: thread_continued
    position: after
    wrap: false
    description: Summary of what was built before the handoff
    actions: [{ primary: execute, item_type: knowledge, item_id: "agent/threads/${inputs.previous_summary_id}" }]
context: { system: [house/rules], before: [house/style], suppress: [house/old] }
extends: reports/base
continuation_directive: reports/go_on
inputs:
  - { name: city, type: string, required: true, description: Which city. }
  - { name: weeks, type: integer, default: 1 }
  - { name: tone, type: enum, values: [dry, warm], default: dry }
outputs:
  - { name: path, type: string, required: true, description: Where it lies. }
---

Report on {input:city}.

```sh
echo ${HOME}
```
"#;

fn why(text: &str) -> String {
    let flaw = Directive::parse(text).unwrap_err();
    format!("{flaw}{}", flaw.hint.as_ref().map_or(String::new(), |hint| format!(" | {hint}")))
}

fn xml(inside: &str) -> String {
    format!("# T\n\n```xml\n<directive name=\"a\" version=\"1.0.0\">\n{inside}\n</directive>\n```\nBody.\n")
}

fn yaml(keys: &str) -> String {
    format!("---\nname: a\n{keys}\n---\nBody.\n")
}

#[test]
fn both_forms_of_a_directive_are_the_same_directive() {
    let one = Directive::parse(XML).unwrap();
    let other = Directive::parse(YAML).unwrap();
    assert_eq!(Directive { body_line: one.body_line, ..other }, one);
}

#[test]
fn all_parts_of_a_directive_are_read() {
    let read = Directive::parse(XML).unwrap();
    assert_eq!((read.name.as_str(), read.version.as_str()), ("weekly_report", "1.2.0"));
    assert_eq!(read.body, "Report on {input:city}.\n\n```sh\necho ${HOME}\n```");
    assert_eq!(XML.lines().nth(read.body_line as usize - 1), Some("Report on {input:city}."));
    assert_eq!(serde_json::to_value(&read.limits).unwrap()["spend"], json!(0.5));
    let permissions = read.permissions.unwrap();
    assert_eq!(
        permissions.allow.to_strings(),
        ["selvedge.execute.tool.reports.send", "selvedge.execute.tool.rye.file-system.*", "selvedge.fetch.*"]
    );
    assert_eq!(permissions.acknowledge[0].why, "It must send mail.");
    assert_eq!(read.inputs[1].default, Some(json!(1)));
    assert_eq!(read.inputs[2].of, Type::Enum { values: vec!["dry".to_owned(), "warm".to_owned()] });
    assert_eq!(read.hooks[1].position, Position::After);
    assert!(read.hooks[0].condition.holds(&json!({ "cost": { "turns": 1 } })));
    assert!(!read.hooks[0].condition.holds(&json!({ "cost": { "turns": 0 } })));
    assert_eq!(read.extra["license"], "MIT");
    assert_eq!(read.extends.unwrap().as_str(), "reports/base");
}

#[test]
fn limits_written_as_elements_equal_those_written_as_attributes() {
    let attributes = r#"<limits turns="1" tokens="2" spend="0.50" spawns="3" depth="4" duration_seconds="5"/>"#;
    let elements = "<limits spend_currency=\"USD\"><turns>1</turns><tokens> 2 </tokens><spend>0.50</spend><spawns>3</spawns>\n\
                    <depth>4</depth><duration>5</duration></limits>";
    let of = |limits: &str| Directive::parse(&xml(&format!("<metadata>{limits}</metadata>"))).unwrap().limits;
    assert_eq!(of(elements), of(attributes));
    assert_eq!((of(elements).turns, of(elements).duration_seconds), (Some(1), Some(5)));
}

#[test]
fn content_in_an_element_with_attributes_only_is_reported() {
    let model = |inside: &str| why(&xml(&format!("<metadata>\n<model id=\"m\">{inside}</model>\n</metadata>")));
    let errors = model("<temperature>0</temperature>");
    assert!(errors.starts_with("line 6, column 15: `<temperature>` is unknown in `<model>`"), "{errors}");
    assert!(model("the best there is").contains("there is text in `<model>`"));
    let condition =
        r#"<hook id="h" event="after_complete"><condition path="a" value="1"><and path="b"/></condition></hook>"#;
    let errors = why(&xml(&format!("<metadata><hooks>{condition}</hooks></metadata>")));
    assert!(errors.contains("`<and>` is unknown in `<condition>`"), "{errors}");
    assert!(Directive::parse(&xml("<metadata><model id=\"m\"> <!-- the best --> </model></metadata>")).is_ok());
}

/// The hooks of the documents, verbatim.
#[test]
fn the_examples_of_the_documents_are_read() {
    let hooks = r#"<metadata><hooks>
  <!-- 1. Inject dependency context on fresh start -->
  <hook id="inject_api_schema" event="thread_started">
    <action primary="execute" item_type="knowledge" item_id="agent/threads/${inputs.api_thread_id}" />
  </hook>
  <hook id="summarize_on_complete" event="after_complete">
    <condition path="cost.turns" op="gte" value="1" />
    <action primary="execute" item_type="tool" item_id="rye/agent/threads/thread_summary">
      <param name="thread_id">${thread_id}</param>
    </action>
  </hook>
  <hook id="reinject_api_schema" event="thread_continued">
    <action primary="execute" item_type="knowledge" item_id="agent/threads/${inputs.api_thread_id}" />
    <description>API types needed for remaining work</description>
  </hook>
</hooks></metadata>"#;
    let read = Directive::parse(&xml(hooks)).unwrap();
    let events: Vec<_> = read.hooks.iter().map(|hook| hook.event.as_str()).collect();
    assert_eq!(events, ["thread_started", "after_complete", "thread_continued"]);
}

#[test]
fn errors_have_a_line_a_reason_and_a_hint() {
    for (text, says) in [
        ("Just words.\n".to_owned(), "line 1: it has no metadata | begin with `---`"),
        ("---\nname: a\n".to_owned(), "line 1: the metadata is not closed | end it with a line that is `---`"),
        ("# T\n```xml\n<directive name=\"a\">\n".to_owned(), "line 2: a block is opened and never closed"),
        (xml("<metdata/>"), "line 5, column 1: `<metdata>` is unknown here | did you mean `metadata`?"),
        (
            xml("<metadata>\n<limits turn=\"5\"/></metadata>"),
            "line 6, column 1: `turn` is not an attribute of `<limits>` | did you mean `turns`?",
        ),
        (xml("<metadata><limits turns=\"many\"/></metadata>"), "`turns`: `many` is not a whole number"),
        (
            xml("<metadata><limits turns=\"99999999999999999999\"/></metadata>"),
            "`99999999999999999999` is too large: at most 18446744073709551615",
        ),
        (xml("<metadata><limits turns=\"0\"/></metadata>"), "with a limit `turns` of 0 nothing could run"),
        (xml("<metadata><limits spend=\"-1\"/></metadata>"), "only digits"),
        (
            xml("<metadata><limits>\n<turns>many</turns></limits></metadata>"),
            "line 6, column 1: `turns`: `many` is not a whole number",
        ),
        (
            xml("<metadata><limits>\n<turn>5</turn></limits></metadata>"),
            "line 6, column 1: `<turn>` is unknown here | did you mean `turns`?",
        ),
        (xml("<metadata><limits>five turns</limits></metadata>"), "there is text between the elements of `<limits>`"),
        (xml("<metadata><limits turns=\"1\"><turns>2</turns></limits></metadata>"), "`turns` occurs twice"),
        (xml("<metadata><limits><spend_currency>EUR</spend_currency></limits></metadata>"), "`spend` is in dollars"),
        (xml("<metadata><descriptoin>x</descriptoin></metadata>"), "did you mean `description`?"),
        (xml("<metadata><permissions><run/></permissions></metadata>"), "`<run>` is unknown here"),
        (
            xml("<metadata><permissions><execute><tool>a.b*</tool></execute></permissions></metadata>"),
            "a `*` must be a whole segment",
        ),
        (
            xml("<metadata><hooks><hook id=\"a\" event=\"thread_start\"><action/></hook></hooks></metadata>"),
            "did you mean `thread_started`?",
        ),
        (xml("<inputs><input type=\"string\"/></inputs>"), "`<input>` has no `name`"),
        (xml("<inputs><input name=\"a\" type=\"strnig\"/></inputs>"), "`strnig` is not a type: did you mean `string`?"),
        (
            xml("<inputs><input name=\"a\" type=\"integer\" default=\"x\"/></inputs>"),
            "the default of `a` should be a whole number",
        ),
        (xml("<inputs><input name=\"a\"/><input name=\"a\"/></inputs>"), "the input `a` occurs twice"),
        (xml("<metadata>"), "line 6, column"),
        (xml("").replace("1.0.0", "one"), "`one` is not a version"),
        (xml("").replace("\"a\"", "\"A b\""), "can't be the name"),
        (yaml("limit: {}"), "line 3, column 1: `limit` is not a known key | did you mean `limits`?"),
        (yaml("limits:\n  turn: 5"), "line 4, column 3: `turn` is not a known key | did you mean `turns`?"),
        (yaml("name: b"), "line 3, column 1: `name` occurs twice"),
        (yaml("version: 1.0"), "line 3, column 10: text that looks like a number"),
        (yaml("inputs: [{name: a, required: yes}]"), "line 3, column 30"),
        (yaml("model: {provider: x}"), "a model needs an `id` or a `tier`"),
        (yaml("permissions: [files.*]"), "`files.*` is not a capability: it must begin with"),
        (yaml("extends: ../up"), "`../up` is not a valid directive id"),
        (yaml("hooks: [{id: a, event: limit, action: {primary: execute}}]"), "an action of `a` needs `primary`"),
        (
            yaml(
                "hooks: [{id: a, event: limit, condition: {path: a, op: equals}, action: {primary: execute, item_type: tool, item_id: x}}]",
            ),
            "`equals` is not an operator",
        ),
        (yaml("hooks: [{id: a, event: resolve_extends, directive: x}]"), "`resolve_extends` is not supported"),
        (
            yaml("hooks: [{id: a, event: limit, action: {set_extends: x}}]"),
            "`set_extends` of `a` is not supported: name the parent with `extends`",
        ),
        (
            yaml("hooks: [{id: a, event: limit, action: {primary: sign, item_type: tool, item_id: x}}]"),
            "`sign` can't be done with a tool",
        ),
        (yaml("hooks: [{id: a, event: limit, layer: user, directive: x}]"), "only `observer` can be set"),
        (yaml("hooks: [{event: limit, inputs: {a: 1}}]"), "need a `directive`"),
        ("---\ndescription: x\n---\n".to_owned(), "`name` is missing"),
        (format!("<!-- rye:signed:x -->\n{}", yaml("limit: {}")), "line 4, column 1: `limit` is not a known key"),
        (format!("<!-- rye:signed:x -->\n{}", xml("<metdata/>")), "line 6, column 1: `<metdata>` is unknown here"),
    ] {
        let said = why(&text);
        assert!(said.contains(says), "{text}\nsays: {said}\nshould: {says}");
    }
}

#[test]
fn a_directive_inherits_what_it_does_not_set_from_the_nearest_ancestor() {
    let root = Directive::parse(
        "---\nname: root\nmodel: big\nlimits: {turns: 9, tokens: 100}\npermissions: ['*']\ninputs: [{name: a}, {name: b}]\ncontext: {system: [x, y]}\nhooks: [{id: h, event: limit, action: {primary: execute, item_type: tool, item_id: q}}]\n---\nRoot body.\n",
    )
    .unwrap();
    let middle =
        Directive::parse("---\nname: middle\npermissions: [tool.files.*]\ncontinuation_directive: go\n---\n").unwrap();
    let leaf = Directive::parse(
        "---\nname: leaf\nlimits: {turns: 3}\ninputs: [{name: b, required: true}]\ncontext: {system: [z, x], suppress: [y, h]}\n---\n",
    )
    .unwrap();
    let middle = middle.inherit(&root);
    let leaf = leaf.inherit(&middle);
    assert_eq!(leaf.name, "leaf");
    assert_eq!(leaf.model.unwrap().id.as_deref(), Some("big"));
    assert_eq!((leaf.limits.turns, leaf.limits.tokens), (Some(3), Some(100)));
    assert_eq!(leaf.permissions.unwrap().allow.to_strings(), ["selvedge.execute.tool.files.*"]);
    assert_eq!(leaf.continuation_directive.unwrap().as_str(), "go");
    let inputs: Vec<_> = leaf.inputs.iter().map(|input| (input.name.as_str(), input.required)).collect();
    assert_eq!(inputs, [("a", false), ("b", true)]);
    assert_eq!(leaf.context.system, ["x", "z"]);
    assert!(leaf.hooks.is_empty() && middle.hooks.len() == 1);
    assert_eq!(leaf.body, "Root body.");
}

#[test]
fn empty_permissions_differ_from_absent_ones() {
    assert_eq!(Directive::parse(&yaml("")).unwrap().permissions, None);
    assert!(Directive::parse(&yaml("permissions: []")).unwrap().permissions.unwrap().allow.is_empty());
    let empty = Directive::parse(&xml("<metadata><permissions></permissions></metadata>")).unwrap();
    assert!(empty.permissions.unwrap().allow.is_empty());
    let all = Directive::parse(&xml("<metadata><permissions>*</permissions></metadata>")).unwrap();
    assert_eq!(all.permissions.unwrap().allow.to_strings(), ["selvedge.*"]);
}

#[test]
fn a_body_keeps_its_own_blocks_and_line_endings() {
    let crlf = Directive::parse("---\r\nname: a\r\n---\r\n\r\n  one\r\n```xml\r\n<directive/>\r\n```\r\n").unwrap();
    assert_eq!(crlf.body, "  one\r\n```xml\r\n<directive/>\r\n```");
    assert_eq!(crlf.body_line, 5);
}

#[test]
fn undeclared_inputs_cause_a_warning() {
    let doubtful = "---\nname: a\ninputs: [{name: city}]\n---\n{input:town} ${inputs.land} {input:city}\n";
    let warnings = Directive::parse(doubtful).unwrap().warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(Directive::parse(XML).unwrap().warnings().is_empty());
}

#[test]
fn a_byte_order_mark_does_not_hide_the_metadata() {
    let plain = "---\nname: hello\n---\nBody.\n";
    let signed = "<!-- selvedge:signed:1:directive:2026-01-01T00:00:00Z:0:0:0 -->\n";
    for text in [format!("\u{feff}{plain}"), format!("\u{feff}{signed}{plain}"), format!("{signed}\u{feff}{plain}")] {
        let directive = Directive::parse(&text).unwrap();
        assert_eq!((directive.name.as_str(), directive.body.as_str()), ("hello", "Body."), "{text:?}");
    }
    let fenced = "\u{feff}```xml\n<directive name=\"hello\" version=\"1.0.0\"/>\n```\nBody.\n";
    assert_eq!(Directive::parse(fenced).unwrap().name, "hello");
}
