//! Patterns of file names: `*` and `?` within a folder, `**` over folders, `{a,b}`, `[abc]`.

use regex::{Regex, RegexBuilder};

use super::path::Refused;

const PATTERN_BYTES_MAX: usize = 1000;
/// The most memory of a compiled pattern.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Compiles a pattern of paths. One without `/` matches the name in any folder.
pub(super) fn paths(pattern: &str) -> Result<Regex, Refused> {
    let refused = |why: &str| format!("`{}` is not a pattern: {why}", pattern.escape_debug());
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(refused("it is too long"));
    }
    let anywhere = if pattern.contains('/') { "" } else { "(?:.*/)?" };
    let expression = format!("^{anywhere}{}$", translated(pattern).ok_or_else(|| refused("a bracket is not closed"))?);
    expression_of(&expression, false).map_err(|why| refused(&why))
}

/// Compiles a regular expression.
pub(super) fn expression_of(expression: &str, ignore_case: bool) -> Result<Regex, Refused> {
    let compiled = RegexBuilder::new(expression)
        .case_insensitive(ignore_case)
        .size_limit(COMPILED_BYTES_MAX)
        .dfa_size_limit(COMPILED_BYTES_MAX)
        .build();
    compiled.map_err(|error| error.to_string())
}

fn translated(pattern: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = pattern.trim_start_matches("./");
    let mut depth = 0_usize;
    while let Some(first) = rest.chars().next() {
        let (part, length) = match first {
            '*' if rest.starts_with("**/") => ("(?:.*/)?".to_owned(), 3),
            '*' if rest.starts_with("**") => (".*".to_owned(), 2),
            '*' => ("[^/]*".to_owned(), 1),
            '?' => ("[^/]".to_owned(), 1),
            '{' => {
                depth += 1;
                ("(?:".to_owned(), 1)
            }
            '}' if depth > 0 => {
                depth -= 1;
                (")".to_owned(), 1)
            }
            ',' if depth > 0 => ("|".to_owned(), 1),
            '[' => {
                let end = rest[1..].find(']')?;
                let inner = &rest[1..=end];
                let (not, inner) = match inner.strip_prefix(['!', '^']) {
                    Some(inner) => ("^/", inner),
                    None => ("", inner),
                };
                (format!("[{not}{}]", inner.replace('\\', "\\\\").replace('[', "\\[").replace('&', "\\&")), end + 2)
            }
            other => (regex::escape(other.encode_utf8(&mut [0; 4])), other.len_utf8()),
        };
        out.push_str(&part);
        rest = &rest[length..];
    }
    (depth == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, yes, no) in [
            ("*.rs", vec!["a.rs", "src/a.rs"], vec!["a.rsx", "a.r"]),
            ("src/*.rs", vec!["src/a.rs"], vec!["src/b/a.rs", "a.rs"]),
            ("src/**/*.rs", vec!["src/a.rs", "src/b/c/a.rs"], vec!["b/src/a.rs"]),
            ("**", vec!["a", "a/b"], vec![]),
            ("a?[0-9].{md,txt}", vec!["ab1.md", "x/ac2.txt"], vec!["ab.md", "abx.md", "a/1.md"]),
            ("[!a]b", vec!["cb"], vec!["ab", "/b"]),
            ("a+(b)", vec!["a+(b)"], vec!["aab"]),
        ] {
            let compiled = paths(pattern).unwrap();
            assert!(yes.iter().all(|path| compiled.is_match(path)), "{pattern} matches all of {yes:?}");
            assert!(!no.iter().any(|path| compiled.is_match(path)), "{pattern} matches none of {no:?}");
        }
        for bad in ["{a", "[a", &"x".repeat(2000)] {
            assert!(paths(bad).is_err(), "{bad}");
        }
    }
}
