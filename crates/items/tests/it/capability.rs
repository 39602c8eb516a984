//! Capabilities, and what a child may inherit.

use proptest::prelude::*;
use selvedge_items::capability::{Acknowledgement, short};
use selvedge_items::{Capabilities, Capability};
use selvedge_model::tool::Risk;

fn one(text: &str) -> Capability {
    text.parse().unwrap()
}

fn all(texts: &[&str]) -> Capabilities {
    Capabilities::parse(texts.iter().copied()).unwrap()
}

#[test]
fn a_wildcard_ends_at_a_segment() {
    let files = all(&["tool.files.*"]);
    assert!(files.allows(&one("tool.files.write")));
    assert!(files.allows(&one("tool.files.deep.write")));
    assert!(!files.allows(&one("tool.files")));
    assert!(!files.allows(&one("tool.files_of_others.write")));
    assert!(!files.allows(&one("directive.files.write")));
    let inside = all(&["tool.*.read"]);
    assert!(inside.allows(&one("tool.files.read")));
    assert!(!inside.allows(&one("tool.files.deep.read")));
    for bad in [
        "tool.files*",
        "tool.*files",
        "tool.f*s.read",
        "**",
        "tool..read",
        "",
        ".",
        "tool.",
        "files.read",
        "tool.a b",
        "tool.a\0",
        "tool.ä",
        &"a".repeat(301),
    ] {
        assert!(bad.parse::<Capability>().is_err(), "{bad:?}");
    }
}

#[test]
fn older_and_short_forms_are_normalised() {
    for (text, canonical) in [
        ("*", "selvedge.*"),
        ("rye.*", "selvedge.*"),
        ("rye.execute.tool.scraping.gmaps.scrape_gmaps", "selvedge.execute.tool.scraping.gmaps.scrape_gmaps"),
        ("tool.files.write", "selvedge.execute.tool.files.write"),
        ("rye.search.*", "selvedge.fetch.*"),
        ("rye.load.knowledge.a", "selvedge.fetch.knowledge.a"),
    ] {
        assert_eq!(one(text).to_string(), canonical);
        assert_eq!(one(canonical), one(text));
    }
}

#[test]
fn an_empty_set_allows_nothing_and_a_needed_capability_must_be_exact() {
    assert!(!Capabilities::default().allows(&one("tool.a")));
    assert!(!all(&["*"]).allows(&one("tool.*")));
    assert!(all(&["*"]).allows(&one("tool.a")));
}

#[test]
fn no_verb_implies_another() {
    assert!(!all(&["selvedge.execute.*"]).allows(&one("selvedge.fetch.tool.a")));
}

#[test]
fn a_child_gets_only_what_both_allow() {
    for (child, parent, both) in [
        (vec!["tool.files.*"], vec!["tool.files.write"], vec!["tool.files.write"]),
        (vec!["tool.files.write"], vec!["tool.*"], vec!["tool.files.write"]),
        (vec!["tool.*.read"], vec!["tool.files.*"], vec!["tool.files.read"]),
        (vec!["tool.*"], vec!["tool.files.*", "tool.mail.send"], vec!["tool.files.*", "tool.mail.send"]),
        (vec!["tool.files.*"], vec!["tool.mail.*"], vec![]),
        (vec!["tool.a"], vec!["tool.a.*"], vec![]),
        (vec!["*"], vec![], vec![]),
        (vec![], vec!["*"], vec![]),
    ] {
        assert_eq!(all(&child).meet(&all(&parent)), all(&both), "{child:?} under {parent:?}");
        assert_eq!(all(&parent).meet(&all(&child)), all(&both));
    }
}

#[test]
fn a_source_without_capabilities_does_not_restrict_and_no_source_grants_nothing() {
    let wide = all(&["tool.*"]);
    let narrow = all(&["tool.files.*"]);
    assert_eq!(Capabilities::granted([Some(&wide), None, Some(&narrow)]), narrow);
    assert_eq!(Capabilities::granted([None, Some(&wide)]), wide);
    assert!(Capabilities::granted([None, None]).is_empty());
    assert!(Capabilities::granted([Some(&wide), Some(&Capabilities::default())]).is_empty());
}

#[test]
fn an_acknowledgement_needs_a_known_risk_and_a_reason() {
    assert_eq!(Acknowledgement::new("unrestricted", "It must.").unwrap().risk, Risk::Dangerous);
    assert!(Acknowledgement::new("external", " ").is_err());
    assert!(Acknowledgement::new("huge", "why").is_err());
}

fn token() -> impl Strategy<Value = String> {
    let segment = prop_oneof![Just("a"), Just("b"), Just("*")];
    proptest::collection::vec(segment, 1..5).prop_map(|segments| format!("tool.{}", segments.join(".")))
}

fn exact() -> impl Strategy<Value = String> {
    let segment = prop_oneof![Just("a"), Just("b")];
    proptest::collection::vec(segment, 1..5).prop_map(|segments| format!("tool.{}", segments.join(".")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn an_intersection_allows_exactly_what_both_allow(
        child in proptest::collection::vec(token(), 0..4),
        parent in proptest::collection::vec(token(), 0..4),
        needed in exact(),
    ) {
        let child = Capabilities::parse(child.iter().map(String::as_str)).unwrap();
        let parent = Capabilities::parse(parent.iter().map(String::as_str)).unwrap();
        let needed = one(&needed);
        prop_assert_eq!(child.meet(&parent).allows(&needed), child.allows(&needed) && parent.allows(&needed));
    }

    #[test]
    fn a_token_survives_a_round_trip(text in token()) {
        let token = one(&text);
        prop_assert_eq!(one(&token.to_string()), token);
    }
}

#[test]
fn the_short_form_of_a_token_is_parsed_as_the_same_token() {
    for (long, expected) in [
        ("selvedge.execute.tool.file.read", "tool.file.read"),
        ("selvedge.execute.tool.*", "tool.*"),
        ("selvedge.execute.toolbox.*", "selvedge.execute.toolbox.*"),
        ("selvedge.fetch.tool.file.read", "selvedge.fetch.tool.file.read"),
        ("selvedge.*", "selvedge.*"),
    ] {
        assert_eq!(short(long), expected);
        assert_eq!(short(long).parse::<Capability>().unwrap(), long.parse::<Capability>().unwrap());
    }
}
