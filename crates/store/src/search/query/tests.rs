use proptest::prelude::*;

use super::*;

/// Reads `since:` values of the tests: whole seconds.
fn since(text: &str) -> Option<Timestamp> {
    text.parse::<i64>().ok().map(|seconds| Timestamp::from_micros(seconds * 1_000_000))
}

fn parsed(text: &str) -> Query {
    Query::parse(text, &since).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// An expression, written so that its structure shows.
fn shape(expr: &Expr) -> String {
    let all = |all: &[Expr], by: &str| all.iter().map(shape).collect::<Vec<_>>().join(by);
    match expr {
        Expr::Word(text) => text.clone(),
        Expr::Prefix(text) => format!("{text}…"),
        Expr::Phrase(text) => format!("«{text}»"),
        Expr::Not(inner) => format!("!{}", shape(inner)),
        Expr::And(parts) => format!("[{}]", all(parts, " ")),
        Expr::Or(parts) => format!("<{}>", all(parts, "|")),
    }
}

#[test]
fn words_phrases_operators_parentheses_and_prefixes() {
    for (text, expected) in [
        ("invoice paid", "[invoice paid]"),
        ("invoice AND paid", "[invoice paid]"),
        ("\"was not paid\" bill", "[«was not paid» bill]"),
        ("a b OR c d", "<[a b]|[c d]>"),
        ("(a OR b) c", "[<a|b> c]"),
        ("((a))", "a"),
        ("a NOT b", "[a !b]"),
        ("a AND NOT (b OR c)", "[a !<b|c>]"),
        ("a NOT NOT b", "[a b]"),
        ("invo* f(x)", "[invo… f(x)]"),
        ("(see f(x)) y", "[[see f(x)] y]"),
    ] {
        assert_eq!(shape(&parsed(text).expr), expected, "{text}");
    }
}

#[test]
fn what_only_looks_like_syntax_is_text() {
    for (text, expected) in [
        ("a NEAR b", "[a NEAR b]"),
        ("a \" b", "[a \" b]"),
        ("\"", "\""),
        ("foo:bar", "foo:bar"),
        ("🎉 party", "[🎉 party]"),
        ("AND", "AND"),
        ("AND a", "[AND a]"),
        ("a OR", "[a OR]"),
        ("a AND OR b", "[a OR b]"),
        ("NOT", "NOT"),
        ("a NOT", "[a NOT]"),
        ("and or not", "[and or not]"),
        ("(a", "[( a]"),
        ("a) b", "[a) b]"),
        (":-) *", "[:-) *]"),
        ("a* b**", "[a… b**]"),
        ("agent:", "agent:"),
        ("status:happy since:soon", "[status:happy since:soon]"),
        ("x OR agent:a", "<x|agent:a>"),
        ("{a} + b^2 -c col:{x}", "[{a} + b^2 -c col:{x}]"),
    ] {
        let query = parsed(text);
        assert_eq!(shape(&query.expr), expected, "{text}");
        assert_eq!(query.filters, Filters::default(), "{text}");
    }
}

#[test]
fn filters_apply_to_the_whole_query() {
    for text in [
        "rain agent:ann since:7",
        "agent:ann AND rain since:7",
        "since:7 rain AND agent:ann",
        "agent:ann since:7 since:3 AND rain",
    ] {
        let query = parsed(text);
        assert_eq!(shape(&query.expr), "rain", "{text}");
        assert_eq!(query.filters.agents, ["ann".parse().unwrap()], "{text}");
        assert_eq!(query.filters.since, since("7"), "{text}");
    }
    let query = parsed("a OR b status:error status:suspended NOT directive:x/y NOT since:9");
    assert_eq!(shape(&query.expr), "<a|b>");
    assert_eq!(query.filters.statuses, [Status::Error, Status::Suspended]);
    assert_eq!(query.filters.not_directives, ["x/y".parse().unwrap()]);
    assert_eq!((query.filters.since, query.filters.before), (None, since("9")));
}

#[test]
fn a_query_without_anything_to_find_is_refused() {
    for (text, expected) in [
        ("", QueryError::Empty),
        ("  \"\" () ", QueryError::Empty),
        ("agent:ann", QueryError::Empty),
        ("NOT a", QueryError::OnlyNot),
        ("a OR NOT b", QueryError::OnlyNot),
        ("a (NOT b NOT c)", QueryError::OnlyNot),
    ] {
        assert_eq!(Query::parse(text, &since).err(), Some(expected), "{text}");
    }
    assert_eq!(Query::parse(&"a ".repeat(LEAVES_MAX + 1), &since).err(), Some(QueryError::TooLong));
    assert_eq!(Query::parse(&"a".repeat(QUERY_CHARS_MAX + 1), &since).err(), Some(QueryError::TooLong));
}

/// The texts of all leaves.
fn leaves(expr: &Expr) -> Vec<&str> {
    match expr {
        Expr::Word(text) | Expr::Prefix(text) | Expr::Phrase(text) => vec![text],
        Expr::Not(inner) => leaves(inner),
        Expr::And(all) | Expr::Or(all) => all.iter().flat_map(leaves).collect(),
    }
}

proptest! {
    /// Whatever is typed is parsed, and everything that is searched for stands in what was typed, in that order.
    #[test]
    fn nothing_is_invented(text in "([a-c\"():*🎉漢 ]|AND |OR |NOT |agent:a |status:error |since:1 |NEAR ){0,24}") {
        if let Ok(query) = Query::parse(&text, &since) {
            let mut rest = text.as_str();
            for leaf in leaves(&query.expr) {
                let at = rest.find(leaf);
                prop_assert!(at.is_some(), "`{leaf}` of `{text}`");
                rest = &rest[at.unwrap_or_default() + leaf.len()..];
            }
        }
    }

    /// Every letter that is typed outside of operators and filters is searched for.
    #[test]
    fn nothing_is_dropped(words in prop::collection::vec("[a-z]{1,4}", 1..8), between in prop::collection::vec("[ ()\"]{1,3}", 8)) {
        let mut text = String::new();
        for (word, between) in words.iter().zip(&between) {
            text.push_str(between);
            text.push_str(word);
        }
        let query = Query::parse(&text, &since);
        let query = query.unwrap_or_else(|error| panic!("{text}: {error}"));
        let found: String = leaves(&query.expr).concat().chars().filter(char::is_ascii_lowercase).collect();
        prop_assert_eq!(found, words.concat());
    }
}
