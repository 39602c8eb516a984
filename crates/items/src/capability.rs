//! Capabilities: what may be called, as tokens of dotted segments, and the pure rules between them.
//!
//! ```text
//! selvedge.execute.tool.file.write     one tool                    tool.file.write        the same, shorter
//! selvedge.execute.tool.file.*         every tool below `files`    selvedge.*, or just *   everything
//! selvedge.execute.tool.*.read          `*` inside is one segment   rye.…                   read as `selvedge.…`
//! rye.agent.threads.*                   `tool.threads.*`; see `older_names`
//! ```
//!
//! Invariants:
//!
//! - A wildcard is a whole segment: `a.b*` is refused, so `a.b` never allows `a.bc` (as shell globs would).
//! - What a child may call is a true intersection: it never gets what one side did not allow.
//! - An empty set allows nothing. No verb implies another.

mod older_names;
mod permissions;

use std::fmt;
use std::str::FromStr;

use selvedge_model::error::{Classify, Kind};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use permissions::{Acknowledgement, Permissions};

const ROOT: &str = "selvedge";
const OLDER_ROOT: &str = "rye";
/// The first segments of a token without root and verb; the verb is then `execute`.
const ITEM_TYPES: [&str; 4] = ["tool", "directive", "knowledge", "graph"];
const BYTES_MAX: usize = 300;
/// More tokens than this are a mistake, and an intersection takes quadratic time.
const TOKENS_MAX: usize = 256;

/// The short form of a token, for people: without the root and the verb that are added when it is parsed.
pub fn short(token: &str) -> &str {
    let short = token.strip_prefix("selvedge.execute.");
    short.filter(|short| ITEM_TYPES.iter().any(|first| short.split('.').next() == Some(*first))).unwrap_or(token)
}

/// A text that is not a capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a capability: {why}", .text.escape_debug())]
pub struct InvalidCapability {
    /// The beginning of the text.
    pub text: String,
    /// The rule it breaks.
    pub why: &'static str,
}

impl Classify for InvalidCapability {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        "capability_invalid"
    }

    fn hint(&self) -> Option<String> {
        Some("write it like `tool.file.write`, or `tool.file.*` for all tools of `files`".to_owned())
    }
}

/// One segment of a token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Segment {
    /// Any one segment.
    Any,
    /// Exactly this one.
    Is(String),
}

impl Segment {
    fn meet(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Any, one) | (one, Self::Any) => Some(one.clone()),
            (one, other) => (one == other).then(|| one.clone()),
        }
    }
}

/// A token: what may be called, or, without wildcards, what a call needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    segments: Vec<Segment>,
    /// Whether one or more further segments must follow.
    is_open: bool,
}

impl Capability {
    /// Whether it matches exactly one thing.
    pub fn is_exact(&self) -> bool {
        !self.is_open && !self.segments.contains(&Segment::Any)
    }

    /// The intersection with `other`; there is always one token for it, or none.
    pub fn meet(&self, other: &Self) -> Option<Self> {
        let (long, short) = if self.segments.len() >= other.segments.len() { (self, other) } else { (other, self) };
        let same_length = long.segments.len() == short.segments.len();
        let fits = match (long.is_open, short.is_open) {
            (_, true) if !same_length => true,
            (long, short) => same_length && long == short,
        };
        if !fits {
            return None;
        }
        let met: Option<Vec<_>> = long.segments.iter().zip(&short.segments).map(|(a, b)| a.meet(b)).collect();
        let mut segments = met?;
        segments.extend_from_slice(&long.segments[short.segments.len()..]);
        Some(Self { segments, is_open: long.is_open })
    }

    /// Whether it matches everything that `other` matches.
    pub fn contains(&self, other: &Self) -> bool {
        self.meet(other).as_ref() == Some(other)
    }
}

impl FromStr for Capability {
    type Err = InvalidCapability;

    fn from_str(text: &str) -> Result<Self, InvalidCapability> {
        parse(text).map_err(|why| InvalidCapability { text: text.chars().take(80).collect(), why })
    }
}

fn parse(text: &str) -> Result<Capability, &'static str> {
    if text.len() > BYTES_MAX {
        return Err("it is longer than 300 bytes");
    }
    let mut words: Vec<&str> = text.split('.').collect();
    for word in &words {
        let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-');
        match *word {
            "" => return Err("it has an empty segment"),
            "*" => {}
            word if word.contains('*') => return Err("a `*` must be a whole segment, as in `tool.file.*`"),
            word if !word.bytes().all(plain) => return Err("only letters, digits, `_`, `-` and `.` are allowed"),
            _ => {}
        }
    }
    match words[0] {
        OLDER_ROOT => words[0] = ROOT,
        ROOT => {}
        "*" => words.insert(0, ROOT),
        first if ITEM_TYPES.contains(&first) => drop(words.splice(0..0, [ROOT, "execute"])),
        _ => return Err("it must begin with `selvedge.`, `tool.`, `directive.`, `knowledge.` or `graph.`"),
    }
    let older_fetch = words.len() > 1 && matches!(words[1], "search" | "load");
    if older_fetch {
        words[1] = "fetch";
    }
    let words = older_names::translated(words);
    let is_open = words.last() == Some(&"*");
    let fixed = if is_open { &words[..words.len() - 1] } else { &words[..] };
    let segment = |word: &&str| if *word == "*" { Segment::Any } else { Segment::Is((*word).to_owned()) };
    Ok(Capability { segments: fixed.iter().map(segment).collect(), is_open })
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.segments.iter().enumerate() {
            let dot = if index > 0 { "." } else { "" };
            match segment {
                Segment::Any => write!(f, "{dot}*")?,
                Segment::Is(word) => write!(f, "{dot}{word}")?,
            }
        }
        if self.is_open { f.write_str(".*") } else { Ok(()) }
    }
}

impl Serialize for Capability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Capability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A set of tokens; an empty one allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Capabilities(Vec<Capability>);

impl Capabilities {
    /// A sorted set of tokens, without those that another token contains.
    pub fn new(tokens: impl IntoIterator<Item = Capability>) -> Self {
        let mut kept: Vec<Capability> = Vec::new();
        for token in tokens.into_iter().flat_map(older_names::expanded) {
            if !kept.iter().any(|other| other.contains(&token)) {
                kept.retain(|other| !token.contains(other));
                kept.push(token);
            }
        }
        kept.sort();
        Self(kept)
    }

    /// Parses tokens, for instance those in a thread's record.
    pub fn parse<'a>(tokens: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidCapability> {
        let tokens: Result<Vec<Capability>, _> = tokens.into_iter().map(str::parse).collect();
        Ok(Self::new(tokens?))
    }

    /// The tokens as they are recorded.
    pub fn to_strings(&self) -> Vec<String> {
        self.0.iter().map(Capability::to_string).collect()
    }

    /// The tokens.
    pub fn iter(&self) -> impl Iterator<Item = &Capability> {
        self.0.iter()
    }

    /// Whether nothing may be called.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a call that needs `needed` may be made. The needed capability must be exact; one with a wildcard is never
    /// allowed.
    pub fn allows(&self, needed: &Capability) -> bool {
        needed.is_exact() && self.0.iter().any(|token| token.contains(needed))
    }

    /// The intersection: what a child gets that asks for this set under a parent that has `other`.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self::new(self.0.iter().flat_map(|one| other.0.iter().filter_map(|two| one.meet(two))))
    }

    /// What is granted by several sources: the intersection of their sets. A source with `None` does not restrict; if all are `None`,
    /// nothing is granted.
    pub fn granted<'a>(sources: impl IntoIterator<Item = Option<&'a Self>>) -> Self {
        let mut granted: Option<Self> = None;
        for set in sources.into_iter().flatten() {
            granted = Some(granted.map_or_else(|| set.clone(), |granted| granted.meet(set)));
        }
        granted.unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Capabilities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tokens = Vec::<Capability>::deserialize(deserializer)?;
        if tokens.len() > TOKENS_MAX {
            return Err(D::Error::custom("there are more than 256 capabilities"));
        }
        Ok(Self::new(tokens))
    }
}
