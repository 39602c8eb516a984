//! What is told while a run goes on, without secrets.
//!
//! What was committed is clean already. Drafts are not committed, and come in pieces that may cut a secret in two: text is held
//! back until a blank shows that a word is whole, and longer if a secret has blanks in it.

use selvedge_model::Draft;

use crate::redact::Redactor;
use crate::told::Told;

/// Tells on what it is told, without secrets.
pub(crate) struct Mask<'a> {
    redactor: &'a Redactor,
    tell: &'a mut dyn FnMut(Told<'_>),
    /// Whole words without secrets; the end of them may be the beginning of a secret that has blanks.
    words: String,
    /// The word that is not whole yet.
    word: String,
    is_thinking: bool,
}

impl<'a> Mask<'a> {
    pub(crate) fn new(redactor: &'a Redactor, tell: &'a mut dyn FnMut(Told<'_>)) -> Self {
        Self { redactor, tell, words: String::new(), word: String::new(), is_thinking: false }
    }

    pub(crate) fn tell(&mut self, told: &Told<'_>) {
        if self.redactor.is_empty() {
            return (self.tell)(told.clone());
        }
        match told {
            Told::Draft(Draft::Text { text }) => self.draft(text, false),
            Told::Draft(Draft::Thinking { text }) => self.draft(text, true),
            other => {
                self.let_all_go();
                self.tell_masked(other);
            }
        }
    }

    fn draft(&mut self, text: &str, is_thinking: bool) {
        if self.is_thinking != is_thinking {
            self.let_all_go();
            self.is_thinking = is_thinking;
        }
        self.word.push_str(text);
        let blank = self.word.char_indices().rev().find(|(_, letter)| letter.is_whitespace());
        self.take_words(blank.map_or(0, |(at, letter)| at + letter.len_utf8()));
        let mut most = self.words.len().saturating_sub(self.redactor.blank_bytes_max());
        while !self.words.is_char_boundary(most) {
            most -= 1;
        }
        self.let_go(most);
    }

    /// Takes the first bytes of the word that is not whole for whole words.
    fn take_words(&mut self, bytes: usize) {
        let whole: String = self.word.drain(..bytes).collect();
        self.words.push_str(&whole);
        if let Some(clean) = self.redactor.text(&self.words) {
            self.words = clean;
        }
    }

    fn let_all_go(&mut self) {
        self.take_words(self.word.len());
        self.let_go(self.words.len());
    }

    /// Tells the first bytes of what is clean.
    fn let_go(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let text: String = self.words.drain(..bytes).collect();
        let draft = if self.is_thinking { Draft::Thinking { text } } else { Draft::Text { text } };
        (self.tell)(Told::Draft(&draft));
    }

    fn tell_masked(&mut self, told: &Told<'_>) {
        match told {
            Told::Calling { call, tool, arguments } => {
                let mut arguments = (*arguments).clone();
                self.redactor.value(&mut arguments);
                (self.tell)(Told::Calling { call, tool, arguments: &arguments });
            }
            Told::Retrying { why } => {
                let why = self.redactor.text(why).unwrap_or_else(|| (*why).to_owned());
                (self.tell)(Told::Retrying { why: &why });
            }
            Told::StateError { why } => {
                let why = self.redactor.text(why).unwrap_or_else(|| (*why).to_owned());
                (self.tell)(Told::StateError { why: &why });
            }
            other => (self.tell)(other.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(secrets: &[&str], pieces: &[&str]) -> String {
        let redactor = Redactor::new(secrets.iter().map(|secret| (*secret).to_owned()), Vec::new());
        let mut heard = String::new();
        let mut tell = |told: Told<'_>| {
            if let Told::Draft(Draft::Text { text }) = told {
                heard.push_str(text);
            }
        };
        let mut mask = Mask::new(&redactor, &mut tell);
        for piece in pieces {
            mask.tell(&Told::Draft(&Draft::Text { text: (*piece).to_owned() }));
        }
        mask.tell(&Told::Retrying { why: "the end" });
        heard
    }

    #[test]
    fn a_secret_that_is_cut_in_two_is_not_told() {
        assert_eq!(told(&["canary-1234"], &["the token is can", "ary-12", "34, yes"]), "the token is [redacted], yes");
        assert_eq!(told(&["open sesame now"], &["say open ses", "ame no", "w and go in"]), "say [redacted] and go in");
        assert_eq!(told(&["canary-1234"], &["größe ", "und mehr"]), "größe und mehr");
    }
}
