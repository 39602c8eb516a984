//! The query grammar.
//!
//! ```text
//! invoice paid              both words, in one passage
//! "was not paid"            these words, in this order
//! invoice OR bill           either; AND binds tighter
//! invoice NOT draft         without the word
//! (invoice OR bill) paid    parentheses
//! invo*                     words that begin with this
//! agent:scribe directive:report status:suspended since:2026-11-01
//! ```
//!
//! Operators are written in capitals. A filter outside of parentheses applies to the whole query; `NOT` before it excludes; of several filters
//! of one kind any one is enough. What looks like syntax but is not is text: `a NEAR b`, a lone `"`, `foo:bar`, `AND` at the beginning or at
//! the end, a parenthesis without its counterpart, `status:` with a value that is no status.

use selvedge_model::error::{Classify, Kind};
use selvedge_model::{AgentId, DirectiveId, Status, Timestamp};

use super::lexer::{Operator, Token, tokens};

/// The most characters of a query.
pub const QUERY_CHARS_MAX: usize = 1000;
/// The most words and phrases of a query.
pub const LEAVES_MAX: usize = 64;

/// What to search for in a passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// A word.
    Word(String),
    /// The beginning of a word.
    Prefix(String),
    /// Words in order.
    Phrase(String),
    /// What must not be there.
    Not(Box<Expr>),
    /// All of these.
    And(Vec<Expr>),
    /// Any of these.
    Or(Vec<Expr>),
}

/// Which threads are searched. Of several values any one is enough; no values are no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Of one of these agents.
    pub agents: Vec<AgentId>,
    /// Of none of these agents.
    pub not_agents: Vec<AgentId>,
    /// Of one of these directives.
    pub directives: Vec<DirectiveId>,
    /// Of none of these directives.
    pub not_directives: Vec<DirectiveId>,
    /// In one of these statuses.
    pub statuses: Vec<Status>,
    /// In none of these statuses.
    pub not_statuses: Vec<Status>,
    /// Only passages written at this time or later.
    pub since: Option<Timestamp>,
    /// Only passages written before this time.
    pub before: Option<Timestamp>,
}

/// A parsed query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// What to search for.
    pub expr: Expr,
    /// Where.
    pub filters: Filters,
}

/// Why a text can't be searched for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// There is no word in it.
    #[error("the query has nothing to search for")]
    Empty,
    /// It is too long.
    #[error("the query is longer than {QUERY_CHARS_MAX} characters or {LEAVES_MAX} words")]
    TooLong,
    /// An alternative, or the whole query, only says what must not be there.
    #[error("`NOT` excludes from what other words find, and there are none beside it")]
    OnlyNot,
}

impl Classify for QueryError {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        "invalid_query"
    }

    fn hint(&self) -> Option<String> {
        Some(
            match self {
                Self::Empty => "give a few words to search for",
                Self::TooLong => "search for the few words that matter most",
                Self::OnlyNot => "add a word that must be there, such as `invoice NOT draft`",
            }
            .to_owned(),
        )
    }
}

impl Query {
    /// Parses a query. `since` reads the value of a `since:` filter; a value that it does not understand is text.
    pub fn parse(text: &str, since: &dyn Fn(&str) -> Option<Timestamp>) -> Result<Self, QueryError> {
        if text.chars().count() > QUERY_CHARS_MAX {
            return Err(QueryError::TooLong);
        }
        let mut filters = Filters::default();
        let tokens = filters.take(tokens(text), since);
        let leaves = tokens.iter().filter(|token| matches!(token, Token::Word(_) | Token::Phrase(_))).count();
        if leaves > LEAVES_MAX {
            return Err(QueryError::TooLong);
        }
        let mut parser = Parser { tokens: &tokens, at: 0 };
        let expr = parser.any_of();
        let query = Self { expr: expr.ok_or(QueryError::Empty)?, filters };
        query.expr.check()?;
        Ok(query)
    }

    /// A query for all words of a text, without syntax.
    pub fn plain(text: &str) -> Result<Self, QueryError> {
        let words: Vec<Expr> =
            text.split_whitespace().take(LEAVES_MAX).map(|word| Expr::Word(word.to_owned())).collect();
        let expr = joined(words, Expr::And).ok_or(QueryError::Empty)?;
        Ok(Self { expr, filters: Filters::default() })
    }
}

impl Filters {
    /// Takes the filters outside of parentheses out of the tokens, with the `NOT` before and the `AND` beside them. One beside an `OR` stays,
    /// as text.
    fn take(&mut self, tokens: Vec<Token>, since: &dyn Fn(&str) -> Option<Timestamp>) -> Vec<Token> {
        let mut left: Vec<Token> = Vec::new();
        let mut depth = 0usize;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match &token {
                Token::Open => depth += 1,
                Token::Close => depth = depth.saturating_sub(1),
                Token::Word(word) if depth == 0 => {
                    let is_not = left.last() == Some(&Token::Operator(Operator::Not));
                    let before = left.get(left.len().wrapping_sub(1 + usize::from(is_not)));
                    let is_alternative = before == Some(&Token::Operator(Operator::Or))
                        || tokens.peek() == Some(&Token::Operator(Operator::Or));
                    if !is_alternative && self.add(word, is_not, since) {
                        if is_not {
                            left.pop();
                        }
                        if left.last() == Some(&Token::Operator(Operator::And)) {
                            left.pop();
                        } else if left.is_empty() {
                            tokens.next_if_eq(&Token::Operator(Operator::And));
                        }
                        continue;
                    }
                }
                _ => {}
            }
            left.push(token);
        }
        left
    }

    /// Adds a filter; false if the word is none.
    fn add(&mut self, word: &str, is_not: bool, since: &dyn Fn(&str) -> Option<Timestamp>) -> bool {
        let Some((name, value)) = word.split_once(':') else { return false };
        match name {
            "agent" => put(value.parse().ok(), if is_not { &mut self.not_agents } else { &mut self.agents }),
            "directive" => {
                put(value.parse().ok(), if is_not { &mut self.not_directives } else { &mut self.directives })
            }
            "status" => put(value.parse().ok(), if is_not { &mut self.not_statuses } else { &mut self.statuses }),
            "since" => match since(value) {
                Some(time) if is_not => {
                    self.before = Some(self.before.map_or(time, |known| known.min(time)));
                    true
                }
                Some(time) => {
                    self.since = Some(self.since.map_or(time, |known| known.max(time)));
                    true
                }
                None => false,
            },
            _ => false,
        }
    }
}

fn put<T>(value: Option<T>, list: &mut Vec<T>) -> bool {
    let is_valid = value.is_some();
    list.extend(value);
    is_valid
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    /// Whether an operator here has something after it that it applies to.
    fn is_followed(&self) -> bool {
        self.tokens.get(self.at + 1).is_some_and(|next| *next != Token::Close)
    }

    fn any_of(&mut self) -> Option<Expr> {
        let mut found = Vec::new();
        loop {
            found.extend(self.all_of());
            if self.peek() == Some(&Token::Operator(Operator::Or)) {
                self.at += 1;
            } else {
                return joined(found, Expr::Or);
            }
        }
    }

    fn all_of(&mut self) -> Option<Expr> {
        let mut found: Vec<Expr> = Vec::new();
        while let Some(token) = self.peek() {
            match token {
                Token::Close => break,
                Token::Operator(Operator::Or) if !found.is_empty() && self.is_followed() => break,
                Token::Operator(Operator::And) if !found.is_empty() && self.is_followed() => {
                    self.at += 1;
                    found.extend(self.operand());
                }
                _ => found.extend(self.operand()),
            }
        }
        joined(found, Expr::And)
    }

    /// One operand; an operator in its place is text.
    fn operand(&mut self) -> Option<Expr> {
        let token = self.peek()?.clone();
        if token == Token::Operator(Operator::Not) && self.is_followed() {
            self.at += 1;
            return Some(match self.operand()? {
                Expr::Not(inner) => *inner,
                inner => Expr::Not(Box::new(inner)),
            });
        }
        self.at += 1;
        match token {
            Token::Operator(operator) => Some(Expr::Word(operator.name().to_owned())),
            Token::Phrase(phrase) => Some(Expr::Phrase(phrase)),
            Token::Word(word) => Some(match word.strip_suffix('*') {
                Some(begin) if begin.chars().next_back().is_some_and(char::is_alphanumeric) => {
                    Expr::Prefix(begin.to_owned())
                }
                _ => Expr::Word(word),
            }),
            Token::Open => {
                let inner = self.any_of();
                // Every opening parenthesis has its closing one.
                self.at += 1;
                inner
            }
            Token::Close => None,
        }
    }
}

/// Several expressions as one; nothing for none of them.
fn joined(mut found: Vec<Expr>, join: fn(Vec<Expr>) -> Expr) -> Option<Expr> {
    if found.len() > 1 { Some(join(found)) } else { found.pop() }
}

impl Expr {
    /// Refuses an expression that only excludes.
    fn check(&self) -> Result<(), QueryError> {
        match self {
            Self::Word(_) | Self::Prefix(_) | Self::Phrase(_) => Ok(()),
            Self::Not(_) => Err(QueryError::OnlyNot),
            Self::Or(all) => all.iter().try_for_each(Self::check),
            Self::And(all) => {
                if all.iter().all(|one| matches!(one, Self::Not(_))) {
                    return Err(QueryError::OnlyNot);
                }
                all.iter().try_for_each(|one| match one {
                    Self::Not(inner) => inner.check(),
                    one => one.check(),
                })
            }
        }
    }

    /// Passes every word and phrase that must not be absent to `each`.
    pub fn each_wanted<'a>(&'a self, each: &mut dyn FnMut(&'a str)) {
        match self {
            Self::Word(text) | Self::Prefix(text) | Self::Phrase(text) => each(text),
            Self::Not(_) => {}
            Self::And(all) | Self::Or(all) => all.iter().for_each(|one| one.each_wanted(each)),
        }
    }

    /// Its words and phrases that must not be absent, in order.
    pub fn wanted(&self) -> Vec<&str> {
        let mut found = Vec::new();
        self.each_wanted(&mut |text| found.push(text));
        found
    }
}

#[cfg(test)]
mod tests;
