//! Keeps secrets out of drafts.
//!
//! Commits are redacted elsewhere. Drafts are not committed, and come in pieces that may cut a secret in two: text is held back until a
//! blank shows that a word is complete, and longer if a secret has blanks in it. The arguments of each call are a text of their own, since
//! the pieces of concurrent calls may be interleaved.

use selvedge_model::{CallId, Draft};

use crate::redact::Redactor;

/// Takes drafts as they come and passes them on without secrets.
#[derive(Default)]
pub(crate) struct DraftMask {
    /// The text or thought that is being drafted.
    text: HeldBack,
    is_thinking: bool,
    /// The arguments that are being drafted, by call.
    arguments: Vec<(Option<CallId>, HeldBack)>,
}

/// Text that is held back.
#[derive(Default)]
struct HeldBack {
    /// Complete words without secrets; their end may be the beginning of a secret that has blanks.
    words: String,
    /// The word that is not complete yet.
    word: String,
}

impl HeldBack {
    /// Takes more text; returns what is clean, if anything.
    fn take(&mut self, text: &str, redactor: &Redactor) -> Option<String> {
        // The incomplete word has no blank: only the new text is searched.
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

    /// Returns the rest, which is complete because nothing more comes.
    fn finish(&mut self, redactor: &Redactor) -> Option<String> {
        self.take_words(self.word.len(), redactor);
        self.let_go(self.words.len())
    }

    /// Moves the first bytes of the incomplete word to the complete words.
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

impl DraftMask {
    /// Takes a draft; `out` gets what is clean of it and of earlier ones.
    pub(crate) fn take(&mut self, draft: Draft, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        if redactor.is_empty() {
            return out(draft);
        }
        match draft {
            Draft::Text { text } => self.mask_text(&text, false, redactor, out),
            Draft::Thinking { text } => self.mask_text(&text, true, redactor, out),
            Draft::ToolCall { name, id } => {
                self.finish_text(redactor, out);
                // Arguments without a call id belong to the call that began last.
                self.finish_arguments(Option::is_none, redactor, out);
                let name = redactor.text(&name).unwrap_or(name);
                out(Draft::ToolCall { name, id: clean_id(id, redactor) });
            }
            Draft::Arguments { id, text } => self.mask_arguments(id, &text, redactor, out),
            other => {
                self.finish(redactor, out);
                out(other);
            }
        }
    }

    /// Passes on what was held back: nothing more comes.
    pub(crate) fn finish(&mut self, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        self.finish_text(redactor, out);
        self.finish_arguments(|_| true, redactor, out);
    }

    fn mask_text(&mut self, text: &str, is_thinking: bool, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        if self.is_thinking != is_thinking {
            self.finish_text(redactor, out);
            self.is_thinking = is_thinking;
        }
        let clean = self.text.take(text, redactor);
        self.emit_text(clean, out);
    }

    fn mask_arguments(&mut self, id: Option<CallId>, text: &str, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        self.finish_text(redactor, out);
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

    fn finish_text(&mut self, redactor: &Redactor, out: &mut dyn FnMut(Draft)) {
        let rest = self.text.finish(redactor);
        self.emit_text(rest, out);
    }

    fn emit_text(&self, clean: Option<String>, out: &mut dyn FnMut(Draft)) {
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

/// The id of a call, unless it contains a secret.
fn clean_id(id: Option<CallId>, redactor: &Redactor) -> Option<CallId> {
    id.filter(|id| redactor.text(id.as_str()).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(secrets: &[&str], pieces: &[Draft]) -> Vec<Draft> {
        let redactor = Redactor::new(secrets.iter().map(|secret| (*secret).to_owned()), Vec::new());
        let mut drafts_sent = Vec::new();
        let mut mask = DraftMask::default();
        for piece in pieces {
            mask.take(piece.clone(), &redactor, &mut |draft| drafts_sent.push(draft));
        }
        mask.finish(&redactor, &mut |draft| drafts_sent.push(draft));
        drafts_sent
    }

    fn masked(secrets: &[&str], pieces: &[&str]) -> String {
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
    fn a_secret_that_is_cut_in_two_is_masked() {
        assert_eq!(
            masked(&["canary-1234"], &["the token is can", "ary-12", "34, yes"]),
            "the token is [redacted], yes"
        );
        assert_eq!(
            masked(&["open sesame now"], &["say open ses", "ame no", "w and go in"]),
            "say [redacted] and go in"
        );
        assert_eq!(masked(&["canary-1234"], &["größe ", "und mehr"]), "größe und mehr");
    }

    #[test]
    fn a_secret_in_arguments_is_masked_even_if_the_pieces_of_two_calls_are_interleaved() {
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
        let drafts_sent = drafts(&["canary-1234"], &pieces);
        assert_eq!(drafts_sent[0], Draft::Text { text: "so".to_owned() });
        assert_eq!(arguments(&drafts_sent, "a"), r#"{"key": "[redacted]"}"#);
        assert_eq!(arguments(&drafts_sent, "b"), r#"{"other": "ary-1234", "key": "[redacted] "}"#);
    }

    #[test]
    fn a_call_whose_id_is_a_secret_has_none() {
        let id = CallId::new("canary-1234").ok();
        let drafts_sent = drafts(&["canary-1234"], &[Draft::ToolCall { name: "put".to_owned(), id }]);
        assert_eq!(drafts_sent, [Draft::ToolCall { name: "put".to_owned(), id: None }]);
    }
}
