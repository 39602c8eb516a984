//! Snapshots beside a thread's log: signed documents that spare whoever loads a long thread most of its log.
//!
//! Owns the contract and what every backend shares: what they are called, what is signed, and what can be seen of one at a glance. What
//! a snapshot says, when one is made and how long it stays belongs to the engine.
//!
//! - A snapshot is a projection. Whatever is wrong with one, the log says the same.
//! - The newest is `state.json`. The one before it moves to `checkpoints/` under a name that says its version, its time and the
//!   version of the one it builds on: `000000000042-20261115T093000Z.json`, `000000000057-20261115T094500Z-on-000000000042.json`.
//! - Nothing is believed for its name: names decide what is tidied away, and where to look first.

use std::io::BufRead;

use selvedge_log::document::{DocumentError, DocumentKind, SIGNATURE_MEMBER, sign_exact, verify_exact};
use selvedge_log::hash::{Binding, RunningHash, SealKey};
use selvedge_log::recovery::Remembered;
use selvedge_log::{Head, Signer, Trust};
use selvedge_model::digest::hex;
use selvedge_model::{Digest, ThreadId, Timestamp};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::error::{Error, Result};

/// What a snapshot is signed as.
pub const KIND: DocumentKind = DocumentKind::new("state");
/// What the newest snapshot is called.
pub const NEWEST: &str = "state.json";
/// How many bytes at the beginning of a snapshot show what it is.
pub const GLANCE_BYTES: usize = 64 << 10;

/// Where a snapshot lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// It is the newest.
    Newest,
    /// It is an older one.
    Older,
    /// It was put away when its thread was completed.
    Archived,
}

impl Place {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Older => "older",
            Self::Archived => "archived",
        }
    }
}

/// A snapshot, as its name or its first bytes tell; nothing of it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it lies.
    pub place: Place,
    /// What it is called there.
    pub name: String,
    /// The version of the log that it folds; 0, which no log has, if it can't be told.
    pub version: u64,
    /// When it was saved; the beginning of time if it can't be told.
    pub saved_at: Timestamp,
    /// The version of the snapshot that it builds on.
    pub base: Option<u64>,
    /// How long it is.
    pub bytes: u64,
}

impl Kept {
    /// Something that stands in the place of the newest, and does not look like a snapshot.
    pub fn unlike(bytes: u64) -> Self {
        let saved_at = Timestamp::from_micros(0);
        Self { place: Place::Newest, name: NEWEST.to_owned(), version: 0, saved_at, base: None, bytes }
    }

    /// Whether it looks like a snapshot.
    pub fn is_told(&self) -> bool {
        self.version > 0
    }
}

/// A snapshot that was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// What is signed; a snapshot that builds on it names it by this.
    pub hash: Digest,
    /// How long it is.
    pub bytes: u64,
    /// What it took the place of; nothing if nothing stood there.
    pub before: Option<Before>,
}

/// What stood in the place of the newest snapshot when another one was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// One that is rightly signed, of this version of the log; it is among the older ones now.
    Kept(u64),
    /// Something that is worth nothing, because of this.
    Bad(String),
}

/// A snapshot whose signature was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// Its text, the signature in it.
    pub text: Vec<u8>,
    /// What was signed.
    pub hash: Digest,
}

impl Read {
    /// What it says, without its signature.
    pub fn body(&self) -> serde_json::Result<Value> {
        let mut body: Value = serde_json::from_slice(&self.text)?;
        body.as_object_mut().and_then(|members| members.remove(SIGNATURE_MEMBER));
        Ok(body)
    }
}

/// What becomes of snapshots that are not needed where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away<'a> {
    /// They are deleted.
    Delete,
    /// They are moved to this folder of their thread.
    Archive(&'a str),
}

/// The rest of a log, behind a place that the store vouches for.
pub struct Behind {
    /// The hash of everything before it.
    pub hash: RunningHash,
    /// Where the log ends.
    pub head: Head,
    /// Its exact bytes.
    pub bytes: Box<dyn BufRead + Send>,
}

/// Keeping snapshots. An ability of its own: a thread is as safe without it.
pub trait Snapshots: Send + Sync {
    /// The store's own word on the running hash of the log up to `at`, for the `seal` of a snapshot; nothing if the log has gone on.
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>>;

    /// Signs a snapshot and makes it the newest; the one before it becomes an older one. On return it is whole and durable; after a
    /// crash or an error there is the one before it, or this one, and never a part of either.
    fn save(&self, thread: &ThreadId, body: &Value) -> Result<Saved>;

    /// Why snapshots of a thread can't be put where they belong, and none is looked for there: something else stands in the place of the
    /// folder of older ones, or of those that were put away.
    fn no_snapshot_folders(&self, _: &ThreadId, _archive: &str) -> Vec<Error> {
        Vec::new()
    }

    /// All snapshots of a thread, the newest version first; `archive` is the folder of those that were put away. What stands in the place
    /// of the newest and does not look like one comes before them all.
    fn kept(&self, thread: &ThreadId, archive: &str) -> Result<Vec<Kept>>;

    /// One of them, its signature checked.
    fn read_snapshot(&self, thread: &ThreadId, kept: &Kept, archive: &str) -> Result<Read>;

    /// Takes some away. Not synced: after a power cut one may be back where it was.
    fn put_away(&self, thread: &ThreadId, kept: &[Kept], archive: &str, away: Away<'_>) -> Result<()>;

    /// The log behind `at`, if `seal` is this store's own word that what stands before it is what was signed.
    fn behind(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<Behind>>;
}

/// The store's own word on the running hash of a log up to `at`, as it stands in a snapshot.
pub fn seal(key: &SealKey, at: &Head, hash: &RunningHash) -> String {
    hex(&key.seal(&binding(at), hash))
}

/// The running hash that was sealed with this key for this place; nothing if anything about it is wrong.
pub fn unseal(key: &SealKey, at: &Head, seal: &str) -> Option<RunningHash> {
    let (pairs, rest) = seal.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let sealed: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty())?;
    key.open(&binding(at), &sealed).filter(|hash| hash.digest() == at.hash)
}

fn binding(at: &Head) -> Binding<'_> {
    Binding { log_id: at.log_id.as_str(), segment: at.segment, version: at.version, offset: at.bytes }
}

/// Signs a snapshot as every backend does.
pub fn sign(thread: &ThreadId, body: &Value, signer: &Signer, at: Timestamp) -> Result<(Vec<u8>, Digest)> {
    sign_exact(KIND, thread.as_str(), body, signer, at).map_err(|error| refused(thread, NEWEST, &error))
}

/// Checks the bytes of a snapshot.
pub fn verify(thread: &ThreadId, name: &str, text: Vec<u8>, trust: &Trust) -> Result<Read> {
    match verify_exact(KIND, thread.as_str(), &text, trust) {
        Ok(verified) => Ok(Read { hash: verified.value, text }),
        Err(error) => Err(refused(thread, name, &error)),
    }
}

/// What the newest snapshot remembers of its log; one that is not rightly signed is refused.
pub fn memory(thread: &ThreadId, text: Vec<u8>, trust: &Trust) -> Result<Remembered> {
    let read = verify(thread, NEWEST, text, trust)?;
    let found: Remembers = serde_json::from_slice(&read.text)
        .map_err(|_| damaged(thread, "it does not say which version of the log it folds".to_owned()))?;
    let hash = found.log_hash.as_str().and_then(|hash| hash.parse::<Digest>().ok());
    Ok(Remembered { by: NEWEST.to_owned(), version: found.log_version, hash })
}

/// What a snapshot remembers of its log.
#[derive(Deserialize)]
struct Remembers {
    log_version: u64,
    #[serde(default)]
    log_hash: Value,
}

/// The error of a newest snapshot that can't be used, because of this.
pub fn damaged(thread: &ThreadId, why: String) -> Error {
    Error::Integrity { what: format!("`{NEWEST}` of `{thread}`"), why, hint: None }
}

/// What is said of a projection that is rightly signed, for other bytes.
pub fn shows_another(version: u64) -> String {
    format!("it shows another log at version {version}")
}

fn refused(thread: &ThreadId, name: &str, error: &DocumentError) -> Error {
    Error::of_document(format!("the snapshot `{name}` of `{thread}`"), error, || {
        "it is a projection of the log: delete it, and the log says the same".to_owned()
    })
}

/// The name under which an older snapshot is kept.
pub fn name_of(version: u64, saved_at: Timestamp, base: Option<u64>) -> String {
    let time: String = saved_at.whole_seconds().to_string().chars().filter(|c| c.is_ascii_digit()).take(14).collect();
    let (day, hour) = time.split_at_checked(8).unwrap_or_default();
    let on = base.map(|base| format!("-on-{base:012}")).unwrap_or_default();
    format!("{version:012}-{day}T{hour}Z{on}.json")
}

/// What the name of a snapshot ends with whose signed bytes are stored compressed (zlib).
pub const PACKED: &str = ".z";

/// What a name says, if it is the name of a snapshot.
pub fn kept_as(place: Place, name: &str, bytes: u64) -> Option<Kept> {
    let plain = name.strip_suffix(PACKED).unwrap_or(name);
    let stem = plain.strip_suffix(".json")?;
    let (version, rest) = stem.split_once('-')?;
    let (time, base) = match rest.split_once("-on-") {
        Some((time, base)) => (time, Some(base.parse().ok()?)),
        None => (rest, None),
    };
    let part = |range: std::ops::Range<usize>| time.get(range);
    let text = format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0..4)?,
        part(4..6)?,
        part(6..8)?,
        part(9..11)?,
        part(11..13)?,
        part(13..15)?
    );
    let version = version.parse().ok()?;
    let saved_at = text.parse().ok()?;
    // One name only, so that nothing else is taken for a snapshot.
    (name_of(version, saved_at, base) == plain).then(|| Kept {
        place,
        name: name.to_owned(),
        version,
        saved_at,
        base,
        bytes,
    })
}

/// What the first bytes of the newest snapshot tell, if they can be read.
pub fn glance(beginning: &[u8], bytes: u64) -> Option<Kept> {
    let mut seen = Seen::default();
    // It ends with an error where it has seen enough, or where the bytes end.
    _ = Members(&mut seen).deserialize(&mut serde_json::Deserializer::from_slice(beginning));
    // `selvedge:signed:1:state:TIME:…`
    let time = seen.stamp.as_deref()?.splitn(5, ':').nth(4)?.get(.."YYYY-MM-DDTHH:MM:SSZ".len())?;
    Some(Kept {
        place: Place::Newest,
        name: NEWEST.to_owned(),
        version: seen.version?,
        saved_at: time.parse().ok()?,
        base: seen.base,
        bytes,
    })
}

#[derive(Default)]
struct Seen {
    stamp: Option<String>,
    base: Option<u64>,
    version: Option<u64>,
}

struct Members<'a>(&'a mut Seen);

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a snapshot")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "_signature" => self.0.stamp = Some(map.next_value()?),
                "base" => self.0.base = map.next_value::<Value>()?.get("log_version").and_then(Value::as_u64),
                "log_version" => self.0.version = Some(map.next_value()?),
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
            // Members stand in order, and `base` comes before this one.
            if self.0.version.is_some() && self.0.stamp.is_some() {
                return Err(A::Error::custom("enough was seen"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_it_is_and_nothing_else_is_taken_for_one() {
        let at: Timestamp = "2026-11-15T09:30:00.5Z".parse().unwrap();
        for (version, base) in [(42, None), (57, Some(42)), (1_000_000_000_000, Some(0))] {
            let name = name_of(version, at, base);
            for name in [name.clone(), name + PACKED] {
                let kept = kept_as(Place::Older, &name, 7).unwrap();
                assert_eq!((kept.version, kept.base, kept.saved_at), (version, base, at.whole_seconds()));
                assert_eq!(kept.name, name);
            }
        }
        assert_eq!(name_of(57, at, Some(42)), "000000000057-20261115T093000Z-on-000000000042.json");
        for name in [
            "state.json",
            "57-20261115T093000Z.json",
            "000000000057-20261115T093000Z.json.tmp",
            "000000000057-20261115T093000Z.json.z.z",
            "",
            "é-é.json",
        ] {
            assert_eq!(kept_as(Place::Older, name, 7), None, "{name}");
        }
    }

    #[test]
    fn a_glance_needs_the_beginning_only() {
        let text = br#"{"_signature":"selvedge:signed:1:state:2026-11-15T09:30:00Z:x","base":{"hash":"x","log_version":3},"log_hash":"y","log_version":9,"messages":[{"tex"#;
        let kept = glance(text, 99).unwrap();
        assert_eq!((kept.version, kept.base, kept.bytes), (9, Some(3), 99));
        assert_eq!(glance(&text[..120], 99), None);
        assert_eq!(glance(b"[]", 99), None);
    }
}
