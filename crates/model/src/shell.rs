//! Words of a command that people paste into a shell.
//!
//! Names that a model, a file or another program chose stand in the commands that errors and listings name. Each of them is one word of
//! that command, whatever it holds: nothing in it is run, expanded or split, and nothing in it changes how the line looks.

use std::fmt::Write;

/// A word as a POSIX shell reads it back.
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

/// Whether a character moves the cursor, or ends or reorders a line.
pub fn drives_the_screen(c: char) -> bool {
    let reorders =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reorders || c.is_control()
}

/// A character by its bytes, between two quoted pieces of a word. A shell drops newlines at the end of what a command gives, so that one
/// stands for itself.
fn spelled(c: char) -> String {
    if c == '\n' {
        return c.to_string();
    }
    let mut spelled = String::from("'\"$(printf '");
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        // Writing to a text can't fail.
        _ = write!(spelled, "\\{byte:03o}");
    }
    spelled.push_str("')\"'");
    spelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_stay_as_they_are_and_others_are_quoted() {
        assert_eq!(word("/tmp/a-b_1.c"), "/tmp/a-b_1.c");
        assert_eq!(word("it's here"), r"'it'\''s here'");
        for text in ["", "~x", "a=~root", "=ls", "döner", "a;b", "$x", "`x`", "a b", "a#", "!1", "*", "{a,b}"] {
            assert_eq!(word(text), format!("'{text}'"));
        }
    }

    #[test]
    fn what_would_drive_the_screen_is_spelled() {
        assert_eq!(word("a\u{202e}b"), "'a'\"$(printf '\\342\\200\\256')\"'b'");
        assert_eq!(word("a\u{1b}[2J"), "'a'\"$(printf '\\033')\"'[2J'");
    }
}
