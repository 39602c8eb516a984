//! The messages of errors.

use selvedge_model::ModelError;

/// The most characters of a host's message that an error shows.
const CHARACTERS_MAX: usize = 2000;

/// The same error with another message.
pub(super) fn reword(mut error: ModelError, change: impl FnOnce(&str) -> String) -> ModelError {
    use ModelError::{
        ContextTooLong, Cut, Permanent, RateLimited, SessionRefused, Status, Stopped, Transient, Unreached,
    };
    match &mut error {
        Transient { why }
        | Unreached { why }
        | Status { why, .. }
        | RateLimited { why, .. }
        | Cut { why, .. }
        | SessionRefused { why }
        | ContextTooLong { why }
        | Permanent { why } => *why = change(why),
        Stopped { .. } => {}
    }
    error
}

/// A host's message, shortened, on one line.
pub(super) fn brief(text: &str) -> String {
    let mut words = String::new();
    for word in text.split_whitespace() {
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(word);
        if words.len() > CHARACTERS_MAX {
            return words.chars().take(CHARACTERS_MAX).chain(['…']).collect();
        }
    }
    if words.is_empty() { "(no message)".to_owned() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_short_line() {
        assert_eq!(brief(" a\n\t b \r\n"), "a b");
        assert_eq!(brief(" \n"), "(no message)");
        assert_eq!(brief(&"ä".repeat(100_000)).chars().count(), CHARACTERS_MAX + 1);
        assert_eq!(brief(&"word ".repeat(100_000)).chars().count(), CHARACTERS_MAX + 1);
    }
}
