//! A conversation as Markdown. Foreign text can't leave its block, see [`selvedge::markdown`].

use selvedge::markdown::{fenced, name, quoted, words};

use super::page::{Piece, Style};

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
        self.block(&quoted(text));
    }

    fn machine(&mut self, language: &str, text: &str) {
        self.block(&fenced(language, text));
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
