//! Snapshots beside a thread's log: signed documents that let a reader load a long thread without reading most of its log.
//!
//! This module has the contract and what every backend shares: file names, what is signed, and what the first bytes of one show. The engine
//! decides what a snapshot contains, when one is made and how long it is kept.
//!
//! - A snapshot is derived from the log. If one is unusable, the log has the same content.
//! - The newest is `state.json`. The one before it moves to `checkpoints/` under a name with its version, its time and the version of its
//!   base: `000000000042-20261115T093000Z.json`, `000000000057-20261115T094500Z-on-000000000042.json`.
//! - Names are not trusted: they decide which snapshots are removed, and which is read first.

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

/// The document kind of a snapshot's signature.
pub const KIND: DocumentKind = DocumentKind::new("state");
/// The file name of the newest snapshot.
pub const NEWEST: &str = "state.json";
/// How many bytes at the beginning of a snapshot show its version.
pub const PEEK_BYTES: usize = 64 << 10;

/// Where a snapshot is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapshotFolder {
    /// It is the newest.
    Newest,
    /// It is an older one.
    Older,
    /// It was archived when its thread was completed.
    Archived,
}

impl SnapshotFolder {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Older => "older",
            Self::Archived => "archived",
        }
    }
}

/// A snapshot, by its name or its first bytes; unverified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Where it is stored.
    pub place: SnapshotFolder,
    /// Its file name.
    pub name: String,
    /// The version of the log that it folds; 0, which no log has, if it is unknown.
    pub version: u64,
    /// When it was saved; the epoch if it is unknown.
    pub saved_at: Timestamp,
    /// The version of the snapshot that it is based on.
    pub base: Option<u64>,
    /// Its length.
    pub bytes: u64,
}

impl SnapshotInfo {
    /// A file in place of the newest snapshot that is not one.
    pub fn not_a_snapshot(bytes: u64) -> Self {
        let saved_at = Timestamp::from_micros(0);
        Self { place: SnapshotFolder::Newest, name: NEWEST.to_owned(), version: 0, saved_at, base: None, bytes }
    }

    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.version > 0
    }
}

/// A snapshot that was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSnapshot {
    /// The hash of the signed content; a snapshot that is based on it names it by this.
    pub hash: Digest,
    /// Its length.
    pub bytes: u64,
    /// What it replaced; none if there was nothing.
    pub before: Option<Replaced>,
}

/// What a new snapshot replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// A valid one, of this version of the log; it is among the older ones now.
    Kept(u64),
    /// A file that was not a valid snapshot, and why.
    Bad(String),
}

/// A verified snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedSnapshot {
    /// Its text, including the signature.
    pub text: Vec<u8>,
    /// The hash of the signed content.
    pub hash: Digest,
}

impl VerifiedSnapshot {
    /// Its content, without the signature.
    pub fn body(&self) -> serde_json::Result<Value> {
        let mut body: Value = serde_json::from_slice(&self.text)?;
        body.as_object_mut().and_then(|members| members.remove(SIGNATURE_MEMBER));
        Ok(body)
    }
}

/// What to do with snapshots that are not needed where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposal<'a> {
    /// Delete them.
    Delete,
    /// Move them to this folder of their thread.
    Archive(&'a str),
}

/// The rest of a log, after a sealed position.
pub struct LogRest {
    /// The hash of everything before it.
    pub hash: RunningHash,
    /// The head of the log.
    pub head: Head,
    /// Its exact bytes.
    pub bytes: Box<dyn BufRead + Send>,
}

/// Storing snapshots. Optional: a thread is as safe without them.
pub trait Snapshots: Send + Sync {
    /// The running hash of the log up to `at`, sealed by this store, for the `seal` of a snapshot; none if the log has more commits.
    fn seal(&self, thread: &ThreadId, at: &Head) -> Result<Option<String>>;

    /// Signs a snapshot and makes it the newest; the previous one becomes an older one. On return it is complete and durable; after a crash
    /// or an error there is the previous one, or this one, complete.
    fn save(&self, thread: &ThreadId, body: &Value) -> Result<SavedSnapshot>;

    /// Why snapshots of a thread can't be stored or read: something other than a folder is in place of the folder of older ones, or of the
    /// archive.
    fn blocked_folders(&self, _: &ThreadId, _archive: &str) -> Vec<Error> {
        Vec::new()
    }

    /// All snapshots of a thread, the newest version first; `archive` is the folder of archived ones. A file in place of the newest that is
    /// not a snapshot comes first.
    fn list_snapshots(&self, thread: &ThreadId, archive: &str) -> Result<Vec<SnapshotInfo>>;

    /// Reads and verifies one of them.
    fn read_snapshot(&self, thread: &ThreadId, kept: &SnapshotInfo, archive: &str) -> Result<VerifiedSnapshot>;

    /// Deletes or archives some. Not synced: after a power failure one may be back where it was.
    fn dispose(&self, thread: &ThreadId, kept: &[SnapshotInfo], archive: &str, away: Disposal<'_>) -> Result<()>;

    /// The log after `at`, if `seal` is this store's own seal on the bytes before it.
    fn log_after(&self, thread: &ThreadId, at: &Head, seal: &str) -> Result<Option<LogRest>>;
}

/// The sealed running hash of a log up to `at`, as stored in a snapshot.
pub fn seal(key: &SealKey, at: &Head, hash: &RunningHash) -> String {
    hex(&key.seal(&binding(at), hash))
}

/// The running hash that was sealed with this key for this position; none if the seal is invalid.
pub fn unseal(key: &SealKey, at: &Head, seal: &str) -> Option<RunningHash> {
    let (pairs, rest) = seal.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let sealed: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty())?;
    key.open(&binding(at), &sealed).filter(|hash| hash.digest() == at.hash)
}

fn binding(at: &Head) -> Binding<'_> {
    Binding { log_id: at.log_id.as_str(), segment: at.segment, version: at.version, offset: at.bytes }
}

/// Signs a snapshot.
pub fn sign(thread: &ThreadId, body: &Value, signer: &Signer, at: Timestamp) -> Result<(Vec<u8>, Digest)> {
    sign_exact(KIND, thread.as_str(), body, signer, at).map_err(|error| refused(thread, NEWEST, &error))
}

/// Verifies a snapshot.
pub fn verify(thread: &ThreadId, name: &str, text: Vec<u8>, trust: &Trust) -> Result<VerifiedSnapshot> {
    match verify_exact(KIND, thread.as_str(), &text, trust) {
        Ok(verified) => Ok(VerifiedSnapshot { hash: verified.value, text }),
        Err(error) => Err(refused(thread, name, &error)),
    }
}

/// The version and hash that the newest snapshot records; one that fails verification is refused.
pub fn memory(thread: &ThreadId, text: Vec<u8>, trust: &Trust) -> Result<Remembered> {
    let read = verify(thread, NEWEST, text, trust)?;
    let found: LogPosition = serde_json::from_slice(&read.text)
        .map_err(|_| damaged(thread, "it does not record a version of the log".to_owned()))?;
    let hash = found.log_hash.as_str().and_then(|hash| hash.parse::<Digest>().ok());
    Ok(Remembered { by: NEWEST.to_owned(), version: found.log_version, hash })
}

/// The part of a snapshot that records its version.
#[derive(Deserialize)]
struct LogPosition {
    log_version: u64,
    #[serde(default)]
    log_hash: Value,
}

/// An error for a newest snapshot that can't be used.
pub fn damaged(thread: &ThreadId, why: String) -> Error {
    Error::Integrity { what: format!("`{NEWEST}` of `{thread}`"), why, hint: None }
}

/// The reason when a signed file belongs to other bytes of a log.
pub fn shows_another(version: u64) -> String {
    format!("it shows another log at version {version}")
}

fn refused(thread: &ThreadId, name: &str, error: &DocumentError) -> Error {
    Error::of_document(format!("the snapshot `{name}` of `{thread}`"), error, || {
        "it is derived from the log: delete it, and the log is read instead".to_owned()
    })
}

/// The file name of an older snapshot.
pub fn name_of(version: u64, saved_at: Timestamp, base: Option<u64>) -> String {
    let time: String = saved_at.whole_seconds().to_string().chars().filter(|c| c.is_ascii_digit()).take(14).collect();
    let (day, hour) = time.split_at_checked(8).unwrap_or_default();
    let on = base.map(|base| format!("-on-{base:012}")).unwrap_or_default();
    format!("{version:012}-{day}T{hour}Z{on}.json")
}

/// The suffix of a snapshot that is stored compressed (zlib).
pub const PACKED: &str = ".z";

/// The snapshot with this file name, if it is the name of one.
pub fn parse_name(place: SnapshotFolder, name: &str, bytes: u64) -> Option<SnapshotInfo> {
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
    // The name must be canonical, so that nothing else is taken for a snapshot.
    (name_of(version, saved_at, base) == plain).then(|| SnapshotInfo {
        place,
        name: name.to_owned(),
        version,
        saved_at,
        base,
        bytes,
    })
}

/// What the first bytes of the newest snapshot show, if they can be parsed.
pub fn peek(beginning: &[u8], bytes: u64) -> Option<SnapshotInfo> {
    let mut seen = SnapshotHeader::default();
    // It ends with an error where it has read enough, or where the bytes end.
    _ = Members(&mut seen).deserialize(&mut serde_json::Deserializer::from_slice(beginning));
    // `selvedge:signed:1:state:TIME:…`
    let time = seen.stamp.as_deref()?.splitn(5, ':').nth(4)?.get(.."YYYY-MM-DDTHH:MM:SSZ".len())?;
    Some(SnapshotInfo {
        place: SnapshotFolder::Newest,
        name: NEWEST.to_owned(),
        version: seen.version?,
        saved_at: time.parse().ok()?,
        base: seen.base,
        bytes,
    })
}

#[derive(Default)]
struct SnapshotHeader {
    stamp: Option<String>,
    base: Option<u64>,
    version: Option<u64>,
}

struct Members<'a>(&'a mut SnapshotHeader);

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
            // Members are in order, and `base` comes before this one.
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
    fn only_canonical_names_are_snapshots() {
        let at: Timestamp = "2026-11-15T09:30:00.5Z".parse().unwrap();
        for (version, base) in [(42, None), (57, Some(42)), (1_000_000_000_000, Some(0))] {
            let name = name_of(version, at, base);
            for name in [name.clone(), name + PACKED] {
                let kept = parse_name(SnapshotFolder::Older, &name, 7).unwrap();
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
            assert_eq!(parse_name(SnapshotFolder::Older, name, 7), None, "{name}");
        }
    }

    #[test]
    fn the_first_bytes_are_enough_to_peek() {
        let text = br#"{"_signature":"selvedge:signed:1:state:2026-11-15T09:30:00Z:x","base":{"hash":"x","log_version":3},"log_hash":"y","log_version":9,"messages":[{"tex"#;
        let kept = peek(text, 99).unwrap();
        assert_eq!((kept.version, kept.base, kept.bytes), (9, Some(3), 99));
        assert_eq!(peek(&text[..120], 99), None);
        assert_eq!(peek(b"[]", 99), None);
    }
}
