//! Knowledge as it is written, and what of it a model is told.

use selvedge_items::Knowledge;

#[test]
fn metadata_and_signature_stay_out_of_prompts() {
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
    assert_eq!(Knowledge::parse(block).unwrap().body, block, "a block that does not begin it belongs to it");
}

#[test]
fn an_entry_that_says_nothing_or_does_not_end_its_metadata_is_not_valid() {
    for empty in ["", "\n\n", "---\ntitle: x\n---\n"] {
        assert!(Knowledge::parse(empty).unwrap_err().why.contains("says nothing"), "{empty:?}");
    }
    for (open, close) in [("---\ntitle: x\nWater.\n", "---"), ("```yaml\ntitle: x\nWater.\n", "```")] {
        let flaw = Knowledge::parse(open).unwrap_err();
        assert_eq!(flaw.line, Some(1));
        assert!(flaw.hint.unwrap().contains(close));
    }
}
