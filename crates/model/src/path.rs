//! A path to a value in a thread's state.
//!
//! Defines the path and how it is written; [`crate::op`] defines the operations at a path.
//!
//! - A path is a list of keys and indexes, written as a JSON array of strings and non-negative integers. It is
//!   never a dotted text, so a key may contain any character and stays one key.
//! - A path that was deserialised has at most [`SEGMENTS_MAX`] segments. One built in memory may be longer; every op refuses it.
//! - The text of `Display` is for people and is never parsed.

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The greatest number of segments that a path may have.
pub const SEGMENTS_MAX: usize = 64;

/// How many characters of a key an error message shows.
const SHOWN_MAX: usize = 80;

/// One step into a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Segment {
    /// Into the entry of an object.
    Key(String),
    /// Into the element of an array.
    Index(usize),
}

/// The steps from the root of a state to a value in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path(Vec<Segment>);

impl Path {
    /// The path to the whole state.
    pub fn root() -> Self {
        Self::default()
    }

    /// A path of keys only.
    pub fn keys<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Self {
        keys.into_iter().map(|key| Segment::Key(key.into())).collect()
    }

    /// This path and one more key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.0.push(Segment::Key(key.into()));
        self
    }

    /// This path and one more index.
    #[must_use]
    pub fn index(mut self, index: usize) -> Self {
        self.0.push(Segment::Index(index));
        self
    }

    /// This path followed by `rest`.
    #[must_use]
    pub fn join(mut self, rest: &Self) -> Self {
        self.0.extend_from_slice(&rest.0);
        self
    }

    /// The steps, outermost first.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether this is the path to the whole state.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `prefix` is this path or an ancestor of it.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.0.starts_with(&prefix.0)
    }

    /// The path of the parent, and the last step; `None` for the root.
    pub fn split_last(&self) -> Option<(Self, &Segment)> {
        let (last, parents) = self.0.split_last()?;
        Some((Self(parents.to_vec()), last))
    }

    /// The first `count` steps.
    pub(crate) fn first(&self, count: usize) -> Self {
        self.0.iter().take(count).cloned().collect()
    }

    /// The value at this path.
    pub fn get<'a>(&self, state: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(state, |here, segment| match (here, segment) {
            (Value::Object(entries), Segment::Key(key)) => entries.get(key),
            (Value::Array(items), Segment::Index(index)) => items.get(*index),
            _ => None,
        })
    }

    /// The value at this path, to be changed.
    pub fn get_mut<'a>(&self, state: &'a mut Value) -> Option<&'a mut Value> {
        self.0.iter().try_fold(state, |here, segment| match (here, segment) {
            (Value::Object(entries), Segment::Key(key)) => entries.get_mut(key),
            (Value::Array(items), Segment::Index(index)) => items.get_mut(*index),
            _ => None,
        })
    }
}

impl FromIterator<Segment> for Path {
    fn from_iter<I: IntoIterator<Item = Segment>>(segments: I) -> Self {
        Self(segments.into_iter().collect())
    }
}

/// Written as `/a/0/b`, escaped like a JSON pointer, with long keys truncated; the root is `/`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str("/");
        }
        self.0.iter().try_for_each(|segment| match segment {
            Segment::Index(index) => write!(f, "/{index}"),
            Segment::Key(key) => {
                f.write_str("/")?;
                key.chars().take(SHOWN_MAX).try_for_each(|character| match character {
                    '~' => f.write_str("~0"),
                    '/' => f.write_str("~1"),
                    other => write!(f, "{}", other.escape_debug()),
                })?;
                f.write_str(if key.chars().nth(SHOWN_MAX).is_some() { "…" } else { "" })
            }
        })
    }
}

impl Serialize for Segment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Key(key) => serializer.serialize_str(key),
            Self::Index(index) => index.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Segment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SegmentVisitor;

        impl Visitor<'_> for SegmentVisitor {
            type Value = Segment;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key or a non-negative index")
            }

            fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<Segment, E> {
                Ok(Segment::Key(key.to_owned()))
            }

            fn visit_string<E: serde::de::Error>(self, key: String) -> Result<Segment, E> {
                Ok(Segment::Key(key))
            }

            fn visit_u64<E: serde::de::Error>(self, index: u64) -> Result<Segment, E> {
                let index = usize::try_from(index).map_err(|_| E::custom("the index is too large"))?;
                Ok(Segment::Index(index))
            }
        }

        deserializer.deserialize_any(SegmentVisitor)
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathVisitor;

        impl<'de> Visitor<'de> for PathVisitor {
            type Value = Path;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, which is an array of keys and indexes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Path, A::Error> {
                let mut segments = Vec::new();
                while let Some(segment) = sequence.next_element()? {
                    if segments.len() == SEGMENTS_MAX {
                        return Err(A::Error::custom(format_args!("a path has at most {SEGMENTS_MAX} segments")));
                    }
                    segments.push(segment);
                }
                Ok(Path(segments))
            }
        }

        deserializer.deserialize_seq(PathVisitor)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_an_array_of_strings_and_indexes() {
        let path = Path::keys(["a.b"]).index(0).key("c/d");
        assert_eq!(serde_json::to_value(&path).unwrap(), json!(["a.b", 0, "c/d"]));
        assert_eq!(serde_json::from_value::<Path>(json!(["a.b", 0, "c/d"])).unwrap(), path);
        assert_eq!(serde_json::from_str::<Path>("[]").unwrap(), Path::root());
        assert_eq!(serde_json::from_str::<Path>(r#"["\u0061"]"#).unwrap(), Path::keys(["a"]));
    }

    #[test]
    fn other_json_values_are_not_paths() {
        for bad in [r#""a.b""#, "null", "3", "{}", "[-1]", "[1.0]", "[1.5]", "[null]", "[true]", r#"[["a"]]"#, "[1e30]"]
        {
            assert!(serde_json::from_str::<Path>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_of_more_than_sixty_four_segments_is_refused() {
        let path = |count| serde_json::to_value(vec!["a"; count]).unwrap();
        assert!(serde_json::from_value::<Path>(path(64)).is_ok());
        let error = serde_json::from_value::<Path>(path(65)).unwrap_err();
        assert!(error.to_string().contains("at most 64 segments"), "{error}");
    }

    #[test]
    fn a_path_is_shown_on_one_unambiguous_line() {
        assert_eq!(Path::root().to_string(), "/");
        assert_eq!(Path::keys(["a"]).index(0).key("b").to_string(), "/a/0/b");
        assert_eq!(Path::keys(["a/b~c\n\u{1b}"]).to_string(), "/a~1b~0c\\n\\u{1b}");
        assert_eq!(Path::keys(["x".repeat(81)]).to_string(), format!("/{}…", "x".repeat(80)));
    }

    #[test]
    fn a_prefix_ends_between_segments() {
        let path = Path::keys(["ab", "c"]);
        assert!(path.starts_with(&Path::root()) && path.starts_with(&Path::keys(["ab"])) && path.starts_with(&path));
        assert!(!path.starts_with(&Path::keys(["a"])) && !Path::keys(["ab"]).starts_with(&path));
    }

    #[test]
    fn a_key_is_never_used_as_an_index() {
        let state = json!({"a": [10, {"0": 20}]});
        assert_eq!(Path::keys(["a"]).index(1).key("0").get(&state), Some(&json!(20)));
        assert_eq!(Path::root().get(&state), Some(&state));
        for absent in [Path::keys(["a", "0"]), Path::root().index(0), Path::keys(["a"]).index(2), Path::keys(["b"])] {
            assert_eq!(absent.get(&state), None, "{absent}");
        }
    }
}
