//! A conversation on a terminal. Nothing foreign in it can move the cursor, change colours or reorder a line.

use super::page::{Piece, Style};
use crate::output::{BOLD, DIM, GOOD, WARN, paint};
use crate::text::{clean, one_line};

/// The text so far.
#[derive(Debug, Default)]
pub(super) struct Terminal {
    text: String,
}

impl Terminal {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn lines(&mut self, indent: &str, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\t', "    ");
        for line in clean(text.trim_end_matches('\n')).split('\n') {
            self.line(format!("{indent}{line}").trim_end());
        }
    }
}

impl Style for Terminal {
    fn title(&mut self, text: &str) {
        self.line(&paint(BOLD, one_line(text, usize::MAX)));
    }

    fn speaker(&mut self, who: &str, at: &str) {
        let style = if who.starts_with("user") { WARN } else { GOOD };
        let who = paint(style.bold(), one_line(who, usize::MAX));
        self.line(&format!("\n{who} {}", paint(DIM, at)));
    }

    fn prose(&mut self, text: &str) {
        self.lines("", text);
    }

    fn machine(&mut self, _: &str, text: &str) {
        self.lines("  ", text);
    }

    fn note(&mut self, pieces: &[Piece<'_>]) {
        let piece = |piece: &Piece<'_>| match piece {
            Piece::Words(text) => paint(DIM, clean(&text.replace(['\n', '\r', '\t'], " "))),
            Piece::Name(text) => paint(BOLD, one_line(text, usize::MAX)),
        };
        let line: String = pieces.iter().map(piece).collect();
        self.line(&line);
    }

    fn text(self) -> String {
        self.text
    }
}
