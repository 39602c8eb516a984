//! A query as an expression of a full-text index in the syntax of FTS5, for an index of words and for one of trigrams.
//!
//! Every text of the user is a quoted string in it, so nothing that was typed is syntax of the index.

use super::query::Expr;
use super::segment::{has_words, segmented};

/// What is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// Words of the segmented text.
    Words,
    /// Every three consecutive characters.
    Trigrams,
}

/// What became of a part of a query.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// Its expression.
    Is(String),
    /// No index can search for it, so it is left out.
    LeftOut,
    /// This index can't search for it, and the other one can.
    Elsewhere,
}

/// The expression of a query; nothing if this index can't answer it.
pub fn expression(expr: &Expr, terms: Terms) -> Option<String> {
    match part(expr, terms) {
        Part::Is(text) => Some(text),
        Part::LeftOut | Part::Elsewhere => None,
    }
}

/// The parts of a query that no index can search for: less than three characters, and none of them a letter, a digit or an emoji.
pub fn left_out(expr: &Expr) -> Vec<&str> {
    expr.wanted()
        .into_iter()
        .filter(|text| !is_searchable(text, Terms::Words) && !is_searchable(text, Terms::Trigrams))
        .collect()
}

/// Whether a query has punctuation within words, as code does: then trigrams find it more exactly than words.
pub fn is_like_code(expr: &Expr) -> bool {
    let is_mark = |c: char| !c.is_alphanumeric() && !c.is_whitespace();
    expr.wanted().iter().any(|text| text.chars().any(is_mark))
}

fn is_searchable(text: &str, terms: Terms) -> bool {
    match terms {
        Terms::Words => has_words(&segmented(text)),
        Terms::Trigrams => text.trim().chars().nth(2).is_some(),
    }
}

fn part(expr: &Expr, terms: Terms) -> Part {
    match expr {
        Expr::Word(text) | Expr::Phrase(text) => leaf(text, terms, ""),
        Expr::Prefix(text) => leaf(text, terms, if terms == Terms::Words { " *" } else { "" }),
        Expr::Not(_) => Part::LeftOut,
        Expr::Or(all) => {
            let mut found = Vec::new();
            for one in all {
                match part(one, terms) {
                    Part::Is(text) => found.push(text),
                    Part::LeftOut => {}
                    Part::Elsewhere => return Part::Elsewhere,
                }
            }
            joined(found, " OR ")
        }
        Expr::And(all) => all_of(all, terms),
    }
}

fn all_of(all: &[Expr], terms: Terms) -> Part {
    let mut wanted = Vec::new();
    let mut unwanted = String::new();
    for one in all {
        let inner = if let Expr::Not(inner) = one { inner } else { one };
        match (part(inner, terms), inner == one) {
            (Part::Is(text), true) => wanted.push(text),
            (Part::Is(text), false) => unwanted.push_str(&format!(" NOT {text}")),
            (Part::LeftOut, _) => {}
            (Part::Elsewhere, _) => return Part::Elsewhere,
        }
    }
    match joined(wanted, " AND ") {
        Part::Is(wanted) if !unwanted.is_empty() => Part::Is(format!("({wanted}{unwanted})")),
        wanted => wanted,
    }
}

fn joined(found: Vec<String>, by: &str) -> Part {
    match found.len() {
        0 => Part::LeftOut,
        1 => Part::Is(found.concat()),
        _ => Part::Is(format!("({})", found.join(by))),
    }
}

fn leaf(text: &str, terms: Terms, after: &str) -> Part {
    let other = if terms == Terms::Words { Terms::Trigrams } else { Terms::Words };
    if !is_searchable(text, terms) {
        return if is_searchable(text, other) { Part::Elsewhere } else { Part::LeftOut };
    }
    let text = if terms == Terms::Words { segmented(text) } else { text.trim().to_owned() };
    // A string of the index ends at a NUL.
    Part::Is(format!("\"{}\"{after}", text.replace('\0', " ").replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::query::Query;

    fn both(text: &str) -> (Option<String>, Option<String>) {
        let query = Query::parse(text, &|_| None).unwrap();
        (expression(&query.expr, Terms::Words), expression(&query.expr, Terms::Trigrams))
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_query_becomes_an_expression_of_each_index() {
        assert_eq!(
            both("rain* NEAR \"a cat\""),
            (some("(\"rain\" * AND \"NEAR\" AND \"a cat\")"), some("(\"rain\" AND \"NEAR\" AND \"a cat\")"),)
        );
        assert_eq!(both("rain NOT (snow OR hail)").0, some("(\"rain\" NOT (\"snow\" OR \"hail\"))"));
        assert_eq!(both("x\"y\"z*").0, some("\"x\"\"y\"\"z\" *"));
        // Two characters are no trigram, and punctuation is no word.
        assert_eq!(both("go rain"), (some("(\"go\" AND \"rain\")"), None));
        assert_eq!(both("::<> rain"), (None, some("(\"::<>\" AND \"rain\")")));
        assert_eq!(both("\" rain"), (some("\"rain\""), some("\"rain\"")));
        assert_eq!(both("\""), (None, None));
        assert_eq!(both("漢字"), (some("\" 漢  字 \""), None));
    }

    #[test]
    fn what_no_index_finds_is_named() {
        let query = Query::parse("\" rain ++ 🎉 +++", &|_| None).unwrap();
        assert_eq!(left_out(&query.expr), ["\"", "++"]);
        assert!(is_like_code(&query.expr) && !is_like_code(&Query::parse("rain bow", &|_| None).unwrap().expr));
    }
}
