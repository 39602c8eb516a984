//! What is told while a run goes on, without secrets: to the closure that the run was started with, and to the subscribers of the engine.
//!
//! What was committed is clean already. Drafts are not committed, and come in pieces that may cut a secret in two: text is held
//! back until a blank shows that a word is whole, and longer if a secret has blanks in it. The arguments of each call are a text of their
//! own, since the pieces of calls that a model drafts side by side may come mixed.

use selvedge_model::{CallId, Draft};

use crate::events::RunPublisher;
use crate::redact::Redactor;
use crate::told::Told;

/// Tells on what it is told, without secrets.
pub(crate) struct Mask<'a> {
    redactor: &'a Redactor,
    out: Out<'a>,
    /// The text or thought that is being drafted.
    said: HeldBack,
    is_thinking: bool,
    /// The arguments that are being drafted, by call.
    arguments: Vec<(Option<CallId>, HeldBack)>,
}

/// Where it goes.
struct Out<'a> {
    tell: &'a mut dyn FnMut(Told<'_>),
    publisher: RunPublisher<'a>,
}

impl Out<'_> {
    fn tell(&mut self, told: Told<'_>) {
        self.publisher.publish(&told);
        (self.tell)(told);
    }

    fn draft(&mut self, draft: &Draft) {
        self.tell(Told::Draft(draft));
    }
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

impl<'a> Mask<'a> {
    pub(crate) fn new(redactor: &'a Redactor, publisher: RunPublisher<'a>, tell: &'a mut dyn FnMut(Told<'_>)) -> Self {
        let out = Out { tell, publisher };
        Self { redactor, out, said: HeldBack::default(), is_thinking: false, arguments: Vec::new() }
    }

    pub(crate) fn tell(&mut self, told: &Told<'_>) {
        if self.redactor.is_empty() {
            return self.out.tell(told.clone());
        }
        match told {
            Told::Draft(Draft::Text { text }) => self.say(text, false),
            Told::Draft(Draft::Thinking { text }) => self.say(text, true),
            Told::Draft(Draft::ToolCall { name, id }) => self.begin_call(name, id.as_ref()),
            Told::Draft(Draft::Arguments { id, text }) => self.argue(id.as_ref(), text),
            other => {
                self.finish_said();
                self.finish_arguments(|_| true);
                self.tell_masked(other);
            }
        }
    }

    fn say(&mut self, text: &str, is_thinking: bool) {
        if self.is_thinking != is_thinking {
            self.finish_said();
            self.is_thinking = is_thinking;
        }
        let clean = self.said.take(text, self.redactor);
        self.tell_said(clean);
    }

    fn begin_call(&mut self, name: &str, id: Option<&CallId>) {
        self.finish_said();
        // Arguments without a call's name are those of the call that began last.
        self.finish_arguments(|call| call.is_none());
        let name = self.redactor.text(name).unwrap_or_else(|| name.to_owned());
        self.out.draft(&Draft::ToolCall { name, id: self.clean_id(id) });
    }

    fn argue(&mut self, id: Option<&CallId>, text: &str) {
        self.finish_said();
        let id = self.clean_id(id);
        let known = self.arguments.iter().position(|(call, _)| *call == id);
        let at = known.unwrap_or_else(|| {
            self.arguments.push((id.clone(), HeldBack::default()));
            self.arguments.len() - 1
        });
        if let Some(text) = self.arguments[at].1.take(text, self.redactor) {
            self.out.draft(&Draft::Arguments { id, text });
        }
    }

    /// The name of a call, unless it has a secret in it.
    fn clean_id(&self, id: Option<&CallId>) -> Option<CallId> {
        id.filter(|id| self.redactor.text(id.as_str()).is_none()).cloned()
    }

    fn finish_said(&mut self) {
        let rest = self.said.finish(self.redactor);
        self.tell_said(rest);
    }

    fn tell_said(&mut self, clean: Option<String>) {
        let Some(text) = clean else { return };
        self.out.draft(&if self.is_thinking { Draft::Thinking { text } } else { Draft::Text { text } });
    }

    fn finish_arguments(&mut self, is_over: fn(&Option<CallId>) -> bool) {
        for (id, mut held) in self.arguments.extract_if(.., |(call, _)| is_over(call)) {
            if let Some(text) = held.finish(self.redactor) {
                self.out.draft(&Draft::Arguments { id, text });
            }
        }
    }

    fn tell_masked(&mut self, told: &Told<'_>) {
        match told {
            Told::Calling { call, tool, arguments } => {
                let mut arguments = (*arguments).clone();
                self.redactor.value(&mut arguments);
                self.out.tell(Told::Calling { call, tool, arguments: &arguments });
            }
            Told::Retrying { why } => {
                let why = self.redactor.text(why).unwrap_or_else(|| (*why).to_owned());
                self.out.tell(Told::Retrying { why: &why });
            }
            Told::StateError { why } => {
                let why = self.redactor.text(why).unwrap_or_else(|| (*why).to_owned());
                self.out.tell(Told::StateError { why: &why });
            }
            other => self.out.tell(other.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use selvedge_model::ThreadId;

    use super::*;
    use crate::events::Bus;

    fn drafts(secrets: &[&str], pieces: &[Draft]) -> Vec<Draft> {
        let redactor = Redactor::new(secrets.iter().map(|secret| (*secret).to_owned()), Vec::new());
        let mut heard = Vec::new();
        let mut tell = |told: Told<'_>| {
            if let Told::Draft(draft) = told {
                heard.push(draft.clone());
            }
        };
        let (bus, thread) = (Bus::default(), ThreadId::generate("mask", "0123456789ab"));
        let mut mask = Mask::new(&redactor, RunPublisher::new(&bus, thread.clone(), thread), &mut tell);
        pieces.iter().for_each(|piece| mask.tell(&Told::Draft(piece)));
        mask.tell(&Told::Retrying { why: "the end" });
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
