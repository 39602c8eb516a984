//! Drafts without secrets.
//!
//! What was committed is clean already. Drafts are not committed, and come in pieces that may cut a secret in two: text is held
//! back until a blank shows that a word is whole, and longer if a secret has blanks in it. The arguments of each call are a text of their
//! own, since the pieces of calls that a model drafts side by side may come mixed.

use selvedge_model::{CallId, Draft};

use crate::redact::Redactor;

/// Takes drafts as they come and gives them on without secrets.
#[derive(Default)]
pub(crate) struct Mask {
    /// The text or thought that is being drafted.
    said: HeldBack,
    is_thinking: bool,
    /// The arguments that are being drafted, by call.
    arguments: Vec<(Option<CallId>, HeldBack)>,
}

/// Text that is held back.
#[derive(Default)]
struct HeldBack {
    /// Whole words without secrets; the end of them may be the beginning of a secret that has blanks.
    words: String,
    /// The word that is not whole yet.
    word: String,
}

impl HeldBack {
    /// Takes more text; gives what is clean, if anything.
    fn take(&mut self, text: &str, redactor: &Redactor) -> Option<String> {
        // The word has no blank: only what is new needs looking at.
        let blank = text.char_indices().rev().find(|(_, letter)| letter.is_whitespace());
        let whole = blank.map_or(0, |(at, letter)| self.word.len() + at + letter.len_utf8());
        self.word.push_str(text);
        self.take_words(whole, redactor);
        let mut most = self.words.len().saturating_sub(redactor.blank_bytes_max());
        while !self.words.is_char_boundary(most) {
            most -= 1;
        }
        self.let_go(most)
    }

    /// Gives the rest, which is whole because nothing more comes.
    fn finish(&mut self, redactor: &Redactor) -> Option<String> {
        self.take_words(self.word.len(), redactor);
        self.let_go(self.words.len())
    }

    /// Takes the first bytes of the word that is not whole for whole words.
    fn take_words(&mut self, bytes: usize, redactor: &Redactor) {
        if bytes == 0 {
            return;
        }
        self.words.extend(self.word.drain(..bytes));
        if let Some(clean) = redactor.text(&self.words) {
            self.words = clean;
        }
    }

    fn let_go(&mut self, bytes: usize) -> Option<String> {
        (bytes > 0).then(|| self.words.drain(..bytes).collect())
    }
}

impl Mask {
    /// Takes a draft; `out` gets what is clean of it and of those before.
    pub(crate) fn take(&mut self, draft: Draft, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        if redactor.is_empty() {
            return out(draft);
        }
        match draft {
            Draft::Text { text } => self.say(&text, false, redactor, out),
            Draft::Thinking { text } => self.say(&text, true, redactor, out),
            Draft::ToolCall { name, id } => {
                self.finish_said(redactor, out);
                // Arguments without a call's name are those of the call that began last.
                self.finish_arguments(Option::is_none, redactor, out);
                let name = redactor.text(&name).unwrap_or(name);
                out(Draft::ToolCall { name, id: clean_id(id, redactor) });
            }
            Draft::Arguments { id, text } => self.argue(id, &text, redactor, out),
            other => {
                self.finish(redactor, out);
                out(other);
            }
        }
    }

    /// Gives what was held back: nothing more comes.
    pub(crate) fn finish(&mut self, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        self.finish_said(redactor, out);
        self.finish_arguments(|_| true, redactor, out);
    }

    fn say(&mut self, text: &str, is_thinking: bool, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        if self.is_thinking != is_thinking {
            self.finish_said(redactor, out);
            self.is_thinking = is_thinking;
        }
        let clean = self.said.take(text, redactor);
        self.give_said(clean, out);
    }

    fn argue(&mut self, id: Option<CallId>, text: &str, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        self.finish_said(redactor, out);
        let id = clean_id(id, redactor);
        let known = self.arguments.iter().position(|(call, _)| *call == id);
        let at = known.unwrap_or_else(|| {
            self.arguments.push((id.clone(), HeldBack::default()));
            self.arguments.len() - 1
        });
        if let Some(text) = self.arguments[at].1.take(text, redactor) {
            out(Draft::Arguments { id, text });
        }
    }

    fn finish_said(&mut self, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        let rest = self.said.finish(redactor);
        self.give_said(rest, out);
    }

    fn give_said(&self, clean: Option<String>, out: &mut dyn FnMut(Draft)) {
        let Some(text) = clean else { return };
        out(if self.is_thinking { Draft::Thinking { text } } else { Draft::Text { text } });
    }

    fn finish_arguments(
        &mut self,
        is_over: fn(&Option<CallId>) -> bool,
        redactor: &Redactor,
        out: &mut dyn FnMut(Draft),
    ) {
        for (id, mut held) in self.arguments.extract_if(.., |(call, _)| is_over(call)) {
            if let Some(text) = held.finish(redactor) {
                out(Draft::Arguments { id, text });
            }
        }
    }
}

/// The name of a call, unless it has a secret in it.
fn clean_id(id: Option<CallId>, redactor: &Redactor) -> Option<CallId> {
    id.filter(|id| redactor.text(id.as_str()).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(secrets: &[&str], pieces: &[Draft]) -> Vec<Draft> {
        let redactor = Redactor::new(secrets.iter().map(|secret| (*secret).to_owned()), Vec::new());
        let (mut heard, mut mask) = (Vec::new(), Mask::default());
        pieces.iter().for_each(|piece| mask.take(piece.clone(), &redactor, &mut |draft| heard.push(draft)));
        mask.finish(&redactor, &mut |draft| heard.push(draft));
        heard
    }

    fn told(secrets: &[&str], pieces: &[&str]) -> String {
        let pieces: Vec<Draft> = pieces.iter().map(|text| Draft::Text { text: (*text).to_owned() }).collect();
        let text = |draft| match draft {
            Draft::Text { text } => text,
            _ => String::new(),
        };
        drafts(secrets, &pieces).into_iter().map(text).collect()
    }

    fn arguments(drafts: &[Draft], call: &str) -> String {
        let text = |draft: &Draft| match draft {
            Draft::Arguments { id: Some(id), text } if id.as_str() == call => text.clone(),
            _ => String::new(),
        };
        drafts.iter().map(text).collect()
    }

    #[test]
    fn a_secret_that_is_cut_in_two_is_not_told() {
        assert_eq!(told(&["canary-1234"], &["the token is can", "ary-12", "34, yes"]), "the token is [redacted], yes");
        assert_eq!(told(&["open sesame now"], &["say open ses", "ame no", "w and go in"]), "say [redacted] and go in");
        assert_eq!(told(&["canary-1234"], &["größe ", "und mehr"]), "größe und mehr");
    }

    #[test]
    fn a_secret_in_arguments_is_not_told_though_the_pieces_of_two_calls_come_mixed() {
        let call = |id: &str| CallId::new(id).ok();
        let begin = |id: &str| Draft::ToolCall { name: "put".to_owned(), id: call(id) };
        let piece = |id: &str, text: &str| Draft::Arguments { id: call(id), text: text.to_owned() };
        let pieces = [
            Draft::Text { text: "so".to_owned() },
            begin("a"),
            piece("a", r#"{"key": "can"#),
            begin("b"),
            piece("b", r#"{"other": "ary-1234", "key": "canary"#),
            piece("a", r#"ary-1234"}"#),
            piece("b", r#"-1234 "}"#),
        ];
        let heard = drafts(&["canary-1234"], &pieces);
        assert_eq!(heard[0], Draft::Text { text: "so".to_owned() });
        assert_eq!(arguments(&heard, "a"), r#"{"key": "[redacted]"}"#);
        assert_eq!(arguments(&heard, "b"), r#"{"other": "ary-1234", "key": "[redacted] "}"#);
    }

    #[test]
    fn a_call_whose_id_is_a_secret_has_none() {
        let id = CallId::new("canary-1234").ok();
        let heard = drafts(&["canary-1234"], &[Draft::ToolCall { name: "put".to_owned(), id }]);
        assert_eq!(heard, [Draft::ToolCall { name: "put".to_owned(), id: None }]);
    }
}
