//! Knowledge, and the part of it that reaches a model.

use selvedge_items::Knowledge;

#[test]
fn metadata_and_signature_are_not_part_of_prompts() {
    let signed = "<!-- selvedge:signed:1:knowledge:2026-01-01T00:00:00Z:0:0:0 -->\n";
    for text in [
        "Water is wet.\n",
        "---\ntitle: Facts\n---\n\nWater is wet.\n",
        "```yaml\nname: facts\ntitle: Facts\n```\nWater is wet.\n",
        &format!("{signed}---\ntitle: Facts\n---\nWater is wet.\n"),
    ] {
        assert_eq!(Knowledge::parse(text).unwrap().body, "Water is wet.", "{text}");
    }
    let block = "Like this:\n```yaml\na: 1\n```\n--- and so on";
    assert_eq!(Knowledge::parse(block).unwrap().body, block, "a later block is part of the text");
}

#[test]
fn an_entry_without_text_or_with_unclosed_metadata_is_invalid() {
    for empty in ["", "\n\n", "---\ntitle: x\n---\n"] {
        assert!(Knowledge::parse(empty).unwrap_err().why.contains("has no text"), "{empty:?}");
    }
    for (open, close) in [("---\ntitle: x\nWater.\n", "---"), ("```yaml\ntitle: x\nWater.\n", "```")] {
        let flaw = Knowledge::parse(open).unwrap_err();
        assert_eq!(flaw.line, Some(1));
        assert!(flaw.hint.unwrap().contains(close));
    }
}
