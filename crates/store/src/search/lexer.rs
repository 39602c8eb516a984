//! The tokens of a query.

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A word, with everything up to the next space.
    Word(String),
    /// What is between two quotes.
    Phrase(String),
    /// `AND`, `OR` or `NOT`, in capitals.
    Operator(Operator),
    /// An opening parenthesis that has a closing one.
    Open,
    /// A closing parenthesis that has an opening one.
    Close,
}

/// An operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    And,
    Or,
    Not,
}

impl Operator {
    fn named(word: &str) -> Option<Self> {
        match word {
            "AND" => Some(Self::And),
            "OR" => Some(Self::Or),
            "NOT" => Some(Self::Not),
            _ => None,
        }
    }

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::And => "AND",
            Self::Or => "OR",
            Self::Not => "NOT",
        }
    }
}

/// How deep parentheses are nested at most; deeper ones are text.
const DEPTH_MAX: usize = 16;

/// The tokens of a text. A quote without a second one and a parenthesis without its counterpart are text.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    // Where the parentheses were opened that are not closed yet.
    let mut open: Vec<usize> = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { break };
        if first == '"'
            && let Some((phrase, after)) = rest[1..].split_once('"')
        {
            if !phrase.trim().is_empty() {
                found.push(Token::Phrase(phrase.to_owned()));
            }
            rest = after;
            continue;
        }
        if first == '(' && open.len() < DEPTH_MAX {
            open.push(found.len());
            found.push(Token::Open);
            rest = &rest[1..];
            continue;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let word = unclosed(&rest[..end], open.len());
        let closes = end - word.len();
        rest = &rest[end..];
        match Operator::named(word) {
            Some(operator) => found.push(Token::Operator(operator)),
            None if !word.is_empty() => found.push(Token::Word(word.to_owned())),
            None => {}
        }
        for _ in 0..closes {
            open.pop();
            found.push(Token::Close);
        }
    }
    for unclosed in open {
        found[unclosed] = Token::Word("(".to_owned());
    }
    found
}

/// A word without the closing parentheses at its end that belong to open ones outside of it: `f(x)` is whole, and of `(f(x))` the last one
/// is not part of the word.
fn unclosed(word: &str, open: usize) -> &str {
    let mut word = word;
    for _ in 0..open {
        let opened = word.matches('(').count();
        match word.strip_suffix(')') {
            Some(shorter) if word.matches(')').count() > opened => word = shorter,
            _ => break,
        }
    }
    word
}
