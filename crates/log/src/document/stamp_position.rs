//! The position of a stamp in a file, by file type.

use std::borrow::Cow;

use super::stamp::MARK;

/// What the signatures of an earlier system start with; the crate `selvedge-legacy` verifies them.
const OLDER_MARK: &str = "rye:signed:";

/// The comment syntax of a text document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comment {
    /// `<!-- … -->`, for Markdown.
    Html,
    /// `# …`, for YAML and many scripts.
    Hash,
    /// `// …`, for JavaScript and its like.
    Slash,
}

impl Comment {
    pub(super) fn ends(self) -> (&'static str, &'static str) {
        match self {
            Self::Html => ("<!-- ", " -->"),
            Self::Hash => ("# ", ""),
            Self::Slash => ("// ", ""),
        }
    }

    /// The shebang line, including its end, if there is one; the stamp follows it.
    pub(super) fn shebang(self, bytes: &[u8]) -> &[u8] {
        if self == Self::Html || !bytes.starts_with(b"#!") {
            return &[];
        }
        bytes.iter().position(|byte| *byte == b'\n').map_or(&[], |end| &bytes[..=end])
    }

    /// The text without its signature line, in this project's form or the older one; unchanged if it has none.
    pub fn unsigned(self, text: &str) -> Cow<'_, str> {
        let (before, after) = self.ends();
        let (shebang, after_shebang) = text.split_at(self.shebang(text.as_bytes()).len());
        let (line, rest) = after_shebang.split_once('\n').unwrap_or((after_shebang, ""));
        let stamp = line.strip_prefix(before).and_then(|line| line.strip_suffix(after));
        if !stamp.is_some_and(|stamp| stamp.starts_with(MARK) || stamp.starts_with(OLDER_MARK)) {
            Cow::Borrowed(text)
        } else if shebang.is_empty() {
            Cow::Borrowed(rest)
        } else {
            Cow::Owned(format!("{shebang}{rest}"))
        }
    }
}

/// The form in which a file is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In a member of the object.
    Json,
    /// In a comment on its own line.
    Text(Comment),
}

impl Form {
    /// The form of a file, by its file extension, or by a shebang line if it has no known one.
    pub fn of(name: &str, bytes: &[u8]) -> Option<Self> {
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
        Some(match ending.as_str() {
            "json" => Self::Json,
            "md" | "markdown" | "html" | "htm" | "xml" | "svg" => Self::Text(Comment::Html),
            "yaml" | "yml" | "toml" | "py" | "sh" | "bash" | "rb" | "pl" | "conf" => Self::Text(Comment::Hash),
            "js" | "mjs" | "cjs" | "ts" | "mts" | "cts" | "rs" | "go" => Self::Text(Comment::Slash),
            _ if bytes.starts_with(b"#!") => Self::Text(Comment::Hash),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_from_the_extension_or_else_from_a_shebang_line() {
        for (name, form) in [
            ("a.md", Some(Form::Text(Comment::Html))),
            ("a.YAML", Some(Form::Text(Comment::Hash))),
            ("a.b.ts", Some(Form::Text(Comment::Slash))),
            ("thread.json", Some(Form::Json)),
            ("picture.png", None),
            ("README", None),
        ] {
            assert_eq!(Form::of(name, b"text"), form, "{name}");
        }
        assert_eq!(Form::of("tool", b"#!/bin/sh\n"), Some(Form::Text(Comment::Hash)));
    }

    #[test]
    fn only_one_signature_line_is_removed() {
        let off = |comment: Comment, text: &str| comment.unsigned(text).into_owned();
        assert_eq!(off(Comment::Html, "<!-- selvedge:signed:1:x -->\nbody"), "body");
        assert_eq!(off(Comment::Html, "<!-- rye:signed:x -->\n<!-- rye:signed:y -->\n"), "<!-- rye:signed:y -->\n");
        assert_eq!(off(Comment::Hash, "#!/bin/sh\n# selvedge:signed:1:x\nbody"), "#!/bin/sh\nbody");
        for kept in
            ["", "body", "# title\n", "\n# selvedge:signed:1:x\n", "<!-- selvedge:signed:1:x -->\n", "#!/bin/sh"]
        {
            assert_eq!(off(Comment::Hash, kept), kept);
        }
    }
}
