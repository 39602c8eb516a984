//! Quoting of words in commands that people paste into a shell.
//!
//! The commands in errors and listings contain names that a model, a file or another program chose. Each name must be one word of its
//! command: no part of it may be run, expanded or split, or change how the line is displayed.

use std::fmt::Write;

/// Quotes a text as one word of a POSIX shell.
pub fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    let mut word = String::from("'");
    for c in text.chars() {
        match c {
            '\'' => word.push_str(r"'\''"),
            c if drives_the_screen(c) => word.push_str(&spelled(c)),
            c => word.push(c),
        }
    }
    word.push('\'');
    word
}

/// Whether a character moves the cursor, ends a line or reorders it.
pub fn drives_the_screen(c: char) -> bool {
    let reorders =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reorders || c.is_control()
}

/// A character as its escaped bytes, between two quoted parts of a word. A newline is kept as it is, because a shell drops newlines at the
/// end of a command's output.
fn spelled(c: char) -> String {
    if c == '\n' {
        return c.to_string();
    }
    let mut spelled = String::from("'\"$(printf '");
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        // Writing to a `String` can't fail.
        _ = write!(spelled, "\\{byte:03o}");
    }
    spelled.push_str("')\"'");
    spelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_are_unchanged_and_all_other_words_are_quoted() {
        assert_eq!(word("/tmp/a-b_1.c"), "/tmp/a-b_1.c");
        assert_eq!(word("it's here"), r"'it'\''s here'");
        for text in ["", "~x", "a=~root", "=ls", "döner", "a;b", "$x", "`x`", "a b", "a#", "!1", "*", "{a,b}"] {
            assert_eq!(word(text), format!("'{text}'"));
        }
    }

    #[test]
    fn control_and_reordering_characters_are_escaped() {
        assert_eq!(word("a\u{202e}b"), "'a'\"$(printf '\\342\\200\\256')\"'b'");
        assert_eq!(word("a\u{1b}[2J"), "'a'\"$(printf '\\033')\"'[2J'");
    }
}
