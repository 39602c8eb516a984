//! Ids. Each kind is a type of its own, so that two strings never stand side by side in a signature. Each is validated where it enters,
//! so that no unchecked text ever becomes part of a path.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that is not a valid id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a valid {what}: {why}", .text.escape_debug())]
pub struct InvalidId {
    /// The kind of id.
    pub what: &'static str,
    /// The beginning of the text.
    pub text: String,
    /// The rule it breaks.
    pub why: &'static str,
}

const MAX_BYTES: usize = 200;

/// The rule for ids that become part of a path: segments of `[a-z0-9_.-]` joined by `/`, none empty or starting with a dot.
fn check_path_like(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.len() > MAX_BYTES {
        return Err("it is longer than 200 bytes");
    }
    for segment in text.split('/') {
        if segment.is_empty() {
            return Err("it has an empty segment");
        }
        if segment.starts_with(['.', '-']) {
            return Err("a segment starts with a dot or a dash");
        }
        if !segment.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-')) {
            return Err("only a-z, 0-9, `_`, `.`, `-` and `/` between segments are allowed");
        }
    }
    Ok(())
}

/// The rule for ids that only occur inside documents.
fn check_opaque(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.len() > MAX_BYTES {
        return Err("it is longer than 200 bytes");
    }
    if text.chars().any(char::is_control) {
        return Err("it has a control character");
    }
    Ok(())
}

/// The random id of a log. It keeps a line from being moved to another log, even one of the same thread id. Every checkpoint contains it,
/// so it is `Copy`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogId([u8; 32]);

impl LogId {
    /// Checks that `text` is a valid log id.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
        let text = text.as_ref();
        match <[u8; 32]>::try_from(text.as_bytes()) {
            Ok(bytes) if bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) => Ok(Self(bytes)),
            _ => Err(InvalidId {
                what: "log id",
                text: text.chars().take(80).collect(),
                why: "it is not 32 lower-case hex characters",
            }),
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        // Only hex characters are accepted.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogId").field(&self.as_str()).finish()
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for LogId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Self::new(text)
    }
}

impl Serialize for LogId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for LogId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::from_text::parsed(deserializer)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            #[doc = concat!("Checks that `text` is a valid ", $what, ".")]
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                match $check(&text) {
                    Ok(()) => Ok(Self(text)),
                    Err(why) => Err(InvalidId { what: $what, text: text.chars().take(80).collect(), why }),
                }
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

name!(
    /// A thread, which has one log. Also the name of its folder, with `/` written as `~`.
    ThreadId, "thread id", check_path_like
);
name!(
    /// An agent, which owns threads.
    AgentId, "agent id", check_path_like
);
name!(
    /// A directive: the task of an agent.
    DirectiveId, "directive id", check_path_like
);
name!(
    /// A run: one activation of a thread.
    RunId, "run id", check_opaque
);
name!(
    /// A message, unique within its thread.
    MessageId, "message id", check_opaque
);
name!(
    /// A tool call.
    CallId, "call id", check_opaque
);
name!(
    /// An external task that a thread is bound to.
    TaskId, "task id", check_opaque
);
name!(
    /// The idempotency key of a commit: the same key and request return the first result again.
    CommitKey, "commit key", check_opaque
);
name!(
    /// A process that holds leases.
    OwnerId, "owner id", check_path_like
);
name!(
    /// A request, named by its sender so that it is handled once.
    RequestId, "request id", check_opaque
);
name!(
    /// A reservation on an account.
    ReservationId, "reservation id", check_opaque
);

impl OwnerId {
    /// Makes the id of a lease holder: its process id, for people, and 32 random hex characters, because process ids are reused.
    pub fn of_process(pid: u32, hex32: &str) -> Result<Self, InvalidId> {
        Self::new(format!("process-{pid}-{hex32}"))
    }

    /// The process id in it, if it has one. It does not identify a process by itself: the store decides whether an owner is alive.
    pub fn pid(&self) -> Option<u32> {
        self.0.strip_prefix("process-")?.split_once('-')?.0.parse().ok()
    }

    /// The owner as text for people.
    pub fn in_words(&self) -> String {
        self.pid().map_or_else(|| self.0.clone(), |pid| format!("process {pid}"))
    }
}

impl ThreadId {
    /// Makes the id of a new thread: a slug of `name`'s last segment and 12 random hex characters.
    pub fn generate(name: &str, hex12: &str) -> Self {
        let last = name.rsplit('/').next().unwrap_or_default();
        let mut slug = String::new();
        for c in last.chars() {
            match c.to_ascii_lowercase() {
                c @ ('a'..='z' | '0'..='9' | '_') => slug.push(c),
                _ if !slug.ends_with('-') => slug.push('-'),
                _ => {}
            }
        }
        let slug: String = slug.trim_matches('-').chars().take(60).collect();
        let slug = if slug.is_empty() { "thread" } else { slug.as_str() };
        Self(format!("{slug}-{hex12}"))
    }

    /// The name of the thread's folder.
    pub fn folder(&self) -> String {
        self.0.replace('/', "~")
    }

    /// The id that belongs to a folder name.
    pub fn from_folder(folder: &str) -> Result<Self, InvalidId> {
        Self::new(folder.replace('~', "/"))
    }

    /// The random end of the id, if it has one; people may type a prefix of it.
    pub fn hex(&self) -> Option<&str> {
        let (_, hex) = self.0.rsplit_once('-')?;
        let is_hex = hex.len() == 12 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then_some(hex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_id_contains_its_process_id() {
        let owner = OwnerId::of_process(4711, &"ab".repeat(16)).unwrap();
        assert_eq!((owner.pid(), owner.in_words().as_str()), (Some(4711), "process 4711"));
        let older = OwnerId::new("ab".repeat(16)).unwrap();
        assert_eq!((older.pid(), older.in_words()), (None, "ab".repeat(16)));
    }

    #[test]
    fn ids_that_would_escape_the_store_are_refused() {
        for bad in [
            "", "/", "..", "../../x", "a//b", "/a", "a/", ".hidden", "a/.b", "a/../b", "A", "ü", "a b", "a\0b", "a~b",
            "a\\b", "a\n", "thread:1",
        ] {
            assert!(ThreadId::new(bad).is_err(), "{bad:?}");
        }
        assert!(ThreadId::new("x".repeat(201)).is_err());
        assert!(ThreadId::new("x".repeat(200)).is_ok());
    }

    #[test]
    fn foreign_ids_are_kept_and_have_a_folder() {
        let id = ThreadId::new("agency-kiwi/discover_leads-1739820456").unwrap();
        assert_eq!(id.folder(), "agency-kiwi~discover_leads-1739820456");
        assert_eq!(ThreadId::from_folder(&id.folder()), Ok(id));
    }

    #[test]
    fn a_generated_id_is_a_slug_and_hex_digits() {
        let id = ThreadId::generate("Agency Kiwi/Discover leads!", "0123456789ab");
        assert_eq!(id.as_str(), "discover-leads-0123456789ab");
        assert_eq!(id.hex(), Some("0123456789ab"));
        assert_eq!(ThreadId::generate("../..", "0123456789ab").as_str(), "thread-0123456789ab");
        assert_eq!(ThreadId::new("scribe-12").unwrap().hex(), None);
    }
}
