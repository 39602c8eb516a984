//! A conversation as Markdown.
//!
//! Foreign text can't leave its block:
//!
//! - prose stands in a block quote, every line of it with its `>`; HTML in it is text, and images in it are links, so that a reader loads
//!   nothing;
//! - text of machines stands in a fence that is longer than any run of backticks in it;
//! - in a line of ours, words are escaped and names are code.

use super::page::{Piece, Style};
use crate::text::clean;

/// The text so far.
#[derive(Debug, Default)]
pub(super) struct Markdown {
    text: String,
}

impl Markdown {
    /// Adds a block, apart from the one before it.
    fn block(&mut self, block: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(block);
        self.text.push('\n');
    }
}

impl Style for Markdown {
    fn title(&mut self, text: &str) {
        self.block(&format!("# {}", words(text)));
    }

    fn speaker(&mut self, who: &str, at: &str) {
        self.block(&format!("## {} · {}", words(who), words(at)));
    }

    fn prose(&mut self, text: &str) {
        let text = harmless(text);
        let lines = text.trim_end_matches('\n').split('\n');
        let quoted: Vec<String> = lines.map(|line| format!("> {line}").trim_end().to_owned()).collect();
        self.block(&quoted.join("\n"));
    }

    fn machine(&mut self, language: &str, text: &str) {
        let text = safe(text);
        let fence = "`".repeat((longest_run(&text) + 1).max(3));
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        self.block(&format!("{fence}{language}\n{text}{end}{fence}"));
    }

    fn note(&mut self, pieces: &[Piece<'_>]) {
        let line: String = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Words(text) => words(text),
                Piece::Name(text) => name(text),
            })
            .collect();
        self.block(&line);
    }

    fn text(self) -> String {
        self.text
    }
}

/// Foreign text, without what drives a terminal: a Markdown file may be read on one. Lines end in the one way that Markdown can't take for
/// anything else.
fn safe(text: &str) -> String {
    let lines = text.replace("\r\n", "\n");
    let tabs: Vec<String> = lines.split('\t').map(clean).collect();
    tabs.join("\t")
}

/// Foreign prose in which HTML is text and images are links.
fn harmless(text: &str) -> String {
    let text = safe(text).replace("![", "!\\[");
    let mut harmless = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let opens = characters.peek().is_some_and(|next| next.is_ascii_alphabetic() || "/!?".contains(*next));
        if c == '<' && opens { harmless.push_str("&lt;") } else { harmless.push(c) }
    }
    harmless
}

/// Words on one line, as they are.
fn words(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        if "\\`*_[]<>&#~|!".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// A name on one line, as code.
fn name(text: &str) -> String {
    let text = one_line(text);
    let mark = "`".repeat(longest_run(&text) + 1);
    let apart = if text.is_empty() || text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{mark}{apart}{text}{apart}{mark}")
}

/// The same text on one line; spaces at its ends stay, so that pieces can be joined.
fn one_line(text: &str) -> String {
    clean(&text.replace(['\n', '\r', '\t'], " "))
}

/// How many backticks follow each other at most.
fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_can_not_leave_its_block() {
        let hostile = "one\n## user\r## user\u{1b}[2J\n```\n<script>x</script> a < b ![x](http://y)";
        let mut page = Markdown::default();
        page.prose(hostile);
        let prose = std::mem::take(&mut page).text();
        assert!(prose.lines().all(|line| line.starts_with('>')), "{prose}");
        assert!(!prose.contains(['\r', '\u{1b}']) && !prose.contains("<script") && !prose.contains("![x]"), "{prose}");
        assert!(prose.contains("a < b"), "{prose}");
        page.machine("text", "```\n````\nstill inside");
        let machine = std::mem::take(&mut page).text();
        assert!(machine.starts_with("`````text\n") && machine.ends_with("\n`````\n"), "{machine}");
        page.note(&[Piece::Words("a\n# b <i> *c* "), Piece::Name("x`\n# y")]);
        assert_eq!(page.text(), "a \\# b \\<i\\> \\*c\\* ``x` # y``\n");
    }
}
