//! YAML that means what it looks like.

use selvedge_items::yaml::parse_yaml;
use serde_json::{Value, json};

fn read(text: &str) -> Result<Value, String> {
    parse_yaml(text, 1).map_err(|flaw| flaw.to_string())
}

#[test]
fn only_true_and_false_are_booleans() {
    assert_eq!(
        read("a: true\nb: yes\nc: 'on'\nd: 5\ne: null").unwrap(),
        json!({"a": true, "b": "yes", "c": "on", "d": 5, "e": null})
    );
}

#[test]
fn anchors_aliases_merges_tags_and_second_documents_are_refused() {
    for text in [
        "a: &x 1",
        "a: &x 1\nb: *x",
        "a: &x {c: 1}\nb: {<<: *x}",
        "a: {<<: {b: 1}}",
        "a: !ruby/object x",
        "a: 1\n---\nb: 1",
        "a: 1\na: 2",
    ] {
        assert!(read(text).is_err(), "{text}: {:?}", read(text));
    }
}

#[test]
fn size_nesting_and_number_of_nodes_are_bounded() {
    let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
    let block_deep: String = (0..100).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    let wide = format!("a: [{}]", "1,".repeat(20_000));
    let huge = format!("a: {}", "x".repeat(300 * 1024));
    for text in [deep, block_deep, wide, huge] {
        assert!(read(&text).is_err(), "{}", &text[..40]);
    }
}

#[test]
fn infinite_and_undefined_numbers_are_refused() {
    for text in ["a: .nan", "a: .inf", "a: 1e999"] {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn line_numbers_are_those_of_the_file() {
    let flaw = parse_yaml::<Value>("a: 1\nb: [\n", 11).unwrap_err();
    assert!(flaw.line >= Some(12), "{flaw:?}");
}
