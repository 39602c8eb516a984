//! The chain of a user's keys: which key took over from which. It is in the user's folder, never in a project.
//!
//! A rotation is a statement by both keys, one JSON document `chain/<new fingerprint>.json`:
//!
//! ```text
//! {"from":"<64 hex>","to":"<64 hex>","public_key":"<base64url of the new key>","rotated_at":"…Z",
//!  "countersignature":"<the new key's>","_signature":"selvedge:signed:1:key_rotation:…:<the old key's fingerprint>"}
//! ```
//!
//! The old key signs the document (kind `key_rotation`, id: the new fingerprint). The new key countersigns
//!
//! ```text
//! "selvedge/key-rotation/1" ‖ 0x00 ‖ from ‖ 0x0a ‖ to ‖ 0x0a ‖ public_key ‖ 0x0a ‖ rotated_at
//! ```
//!
//! so that no key is handed over to an owner who did not agree, and none is taken over that was not handed over.
//!
//! Invariants:
//!
//! - A file that is invalid in any way makes the whole load fail and is named. So do two keys that took over from the same
//!   one, and a cycle: with either, two histories of one thread could both look valid.
//! - A step counts only while both its keys are trusted. A revoked key hands nothing over, and no log that it signed
//!   is continued.
//!
//! [`mod@rotate`] makes a new key and puts it in place; a [`RotationStatement`] is the part of the chain that is passed to other users.

pub mod rotate;
mod rotation_statement;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::error::{Classify, Kind};
use selvedge_model::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

use crate::document::{self, DocumentKind};
use crate::keys::secure_folder::{Folder, FolderError, OTHER_WRITE, Problem};
use crate::keys::{Fingerprint, KeyError, Signer};
use crate::trust::{Trust, TrustError};
pub use rotate::{Rotated, rotate};
pub use rotation_statement::RotationStatement;

/// The document kind of a step.
pub const KIND: DocumentKind = DocumentKind::new("key_rotation");

/// The domain of the new key's countersignature.
const DOMAIN: &str = "selvedge/key-rotation/1";

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The folders of a user's keys.
#[derive(Clone, Debug)]
pub struct Folders(PathBuf);

impl Folders {
    /// The folders in the user's `keys` folder.
    pub fn below(keys: impl Into<PathBuf>) -> Self {
        Self(keys.into())
    }

    /// The key that signs.
    pub fn signing(&self) -> PathBuf {
        self.0.join("signing")
    }

    /// The trusted keys.
    pub fn trusted(&self) -> PathBuf {
        self.0.join("trusted")
    }

    /// Which key took over from which.
    pub fn chain(&self) -> PathBuf {
        self.0.join("chain")
    }

    /// The private halves of retired keys.
    pub fn retired(&self) -> PathBuf {
        self.0.join("retired")
    }

    /// The key that is about to take over; exists only during a rotation, or after an interrupted one.
    pub fn next(&self) -> PathBuf {
        self.0.join(NEXT)
    }
}

const NEXT: &str = "next";

/// Why the chain can't be loaded or extended.
#[derive(Debug, thiserror::Error)]
pub enum KeyChainError {
    /// An invalid file.
    #[error("the key rotation `{}` is refused: {why}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another user could have written it.
    #[error("`{}` can't be relied on: {why}", .path.display())]
    Unsafe {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another rotation is under way.
    #[error("another process is changing the keys in `{}`", .path.display())]
    Busy {
        /// The folder of the keys.
        path: PathBuf,
    },
    /// The signing key can't be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The trust store can't be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The operating system reported an error.
    #[error("can't use the keys at `{}`", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl Classify for KeyChainError {
    fn kind(&self) -> Kind {
        match self {
            Self::Refused { .. } => Kind::Integrity,
            Self::Unsafe { .. } => Kind::Denied,
            Self::Busy { .. } => Kind::Conflict,
            Self::Key(error) => error.kind(),
            Self::Trust(error) => error.kind(),
            Self::Io { .. } => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "key_rotation_invalid",
            Self::Unsafe { .. } => "key_chain_unsafe",
            Self::Busy { .. } => "key_chain_busy",
            Self::Key(error) => error.code(),
            Self::Trust(error) => error.code(),
            Self::Io { .. } => "key_chain_io",
        }
    }

    fn retryable(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { path, .. } => {
                Some(format!("restore `{}` from a backup, or move it away if it is not yours", path.display()))
            }
            Self::Unsafe { path, .. } => Some(format!(
                "make `{}` a real file or folder of your own and remove the access of other users with `chmod go-w {0}`",
                path.display()
            )),
            Self::Busy { .. } => Some("wait for it to finish, then try again".to_owned()),
            Self::Key(error) => error.hint(),
            Self::Trust(error) => error.hint(),
            Self::Io { path, .. } => {
                Some(format!("check that `{}` is on a working disk with free space", path.display()))
            }
        }
    }
}

impl From<FolderError> for KeyChainError {
    fn from(FolderError { path, problem }: FolderError) -> Self {
        match problem {
            Problem::Unsafe(why) => Self::Unsafe { path, why },
            Problem::Damaged(why) => Self::Refused { path, why },
            Problem::Absent => Self::Io { path, source: io::ErrorKind::NotFound.into() },
            Problem::Exists => Self::Io { path, source: io::ErrorKind::AlreadyExists.into() },
            Problem::Io(source) => Self::Io { path, source },
        }
    }
}

/// One key taking over from another, as both signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The key that signed before.
    pub from: Fingerprint,
    /// The key that signs afterwards.
    pub to: Fingerprint,
    /// When it happened, as the keys claim.
    pub rotated_at: Timestamp,
    /// Whether both keys are trusted, so that the step counts.
    pub counts: bool,
}

/// Which key took over from which, as loaded.
#[derive(Clone, Debug, Default)]
pub struct KeyChain {
    /// By the key that took over.
    steps: BTreeMap<Fingerprint, Rotation>,
    /// The statements of the steps that count.
    statements: Vec<RotationStatement>,
}

impl KeyChain {
    /// Loads the folder. If there is none, the chain is empty.
    pub fn load(path: &Path, trust: &Trust) -> Result<Self, KeyChainError> {
        let folder = match Folder::open(path, OTHER_WRITE) {
            Err(FolderError { problem: Problem::Absent, .. }) => return Ok(Self::default()),
            folder => folder?,
        };
        let mut chain = Self::default();
        for name in folder.names()?.iter().filter(|name| name.ends_with(".json")) {
            let (step, statement) = read(&folder, name, trust)?;
            chain.statements.extend(Some(statement).filter(|_| step.counts));
            chain.steps.insert(step.to, step);
        }
        match chain.fork_or_cycle() {
            Some((to, why)) => Err(KeyChainError::Refused { path: folder.path_of(&name_of(&to)), why }),
            None => Ok(chain),
        }
    }

    fn of_steps(steps: BTreeMap<Fingerprint, Rotation>) -> Self {
        Self { steps, statements: Vec::new() }
    }

    /// The statements of the steps that count, ordered by the new keys' fingerprints.
    pub fn rotation_statements(&self) -> &[RotationStatement] {
        &self.statements
    }

    /// All keys that `current` took over from, directly or indirectly: it may append to their logs.
    pub fn predecessors(&self, current: &Fingerprint) -> BTreeSet<Fingerprint> {
        let mut found = BTreeSet::new();
        let mut at = *current;
        while let Some(step) = self.steps.get(&at).filter(|step| step.counts) {
            // Loading refuses cycles; this ends even if there is one.
            if step.from == *current || !found.insert(step.from) {
                break;
            }
            at = step.from;
        }
        found
    }

    /// Whether a step on the way to `current` does not count: a log that `current` continued may contain changesets of a key that is no
    /// longer trusted.
    pub fn has_gap_behind(&self, current: &Fingerprint) -> bool {
        let mut at = *current;
        // Bounded by the number of steps, so that it ends even in a cycle of steps that don't count.
        for _ in 0..self.steps.len() {
            match self.steps.get(&at) {
                Some(step) if step.counts => at = step.from,
                Some(_) => return true,
                None => return false,
            }
        }
        false
    }

    /// The step by which this key took over, if there is one.
    pub fn step_to(&self, fingerprint: &Fingerprint) -> Option<&Rotation> {
        self.steps.get(fingerprint)
    }

    /// The step by which another key took over from this one, if there is one.
    pub fn step_from(&self, fingerprint: &Fingerprint) -> Option<&Rotation> {
        self.steps.values().find(|step| step.from == *fingerprint)
    }

    /// A step at which the chain forks or closes a cycle, if there is one.
    fn fork_or_cycle(&self) -> Option<(Fingerprint, String)> {
        let mut successors = BTreeMap::new();
        for step in self.steps.values().filter(|step| step.counts) {
            if let Some(other) = successors.insert(step.from, step.to) {
                let why = format!(
                    "two keys, {} and {}, took over from {}",
                    other.short(),
                    step.to.short(),
                    step.from.short()
                );
                return Some((step.to, why));
            }
        }
        // Every key has at most one successor now, so a walk longer than the number of steps is in a cycle.
        self.steps.values().find_map(|step| {
            let mut at = step.to;
            for _ in 0..=self.steps.len() {
                match successors.get(&at) {
                    Some(successor) => at = *successor,
                    None => return None,
                }
            }
            Some((step.to, "the chain of keys has a cycle".to_owned()))
        })
    }
}

/// The statement of both keys.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    from: Fingerprint,
    to: Fingerprint,
    public_key: String,
    #[serde(deserialize_with = "exact_time")]
    rotated_at: Timestamp,
    countersignature: String,
}

/// A time in the form that is countersigned.
fn exact_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time: Timestamp = text.parse().map_err(serde::de::Error::custom)?;
    if time.to_string() != text {
        return Err(serde::de::Error::custom("`rotated_at` is not in the canonical form"));
    }
    Ok(time)
}

impl Statement {
    /// The document with which `old` hands over to `new`.
    fn sign(old: &Signer, new: &Signer, at: Timestamp) -> Result<String, document::DocumentError> {
        let mut statement = Self {
            from: old.fingerprint(),
            to: new.fingerprint(),
            public_key: new.public().to_text(),
            rotated_at: at,
            countersignature: String::new(),
        };
        statement.countersignature = new.sign(DOMAIN, &statement.message());
        let value = serde_json::to_value(&statement).expect("a statement has text for keys");
        document::sign_json(KIND, &new.fingerprint().to_string(), value, old, at)
    }

    /// What the new key countersigns.
    fn message(&self) -> Vec<u8> {
        let Self { from, to, public_key, rotated_at, .. } = self;
        format!("{from}\n{to}\n{public_key}\n{rotated_at}").into_bytes()
    }
}

fn name_of(to: &Fingerprint) -> String {
    format!("{to}.json")
}

fn read(folder: &Folder, name: &str, trust: &Trust) -> Result<(Rotation, RotationStatement), KeyChainError> {
    let refused = |why: String| KeyChainError::Refused { path: folder.path_of(name), why };
    let bytes = folder.read(name, OTHER_WRITE, MAX_FILE_BYTES)?;
    let statement = RotationStatement::parse(&bytes).map_err(refused)?;
    if name != name_of(&statement.to) {
        return Err(refused("its name is not that of the key that took over".to_owned()));
    }
    // The statement of a revoked key can still be verified; that of an unknown key can't.
    if let Some(old) = trust.known(&statement.from) {
        statement.check(&old.public).map_err(refused)?;
    }
    let counts = trust.key(&statement.from).is_some() && trust.key(&statement.to).is_some();
    Ok((Rotation { from: statement.from, to: statement.to, rotated_at: statement.rotated_at, counts }, statement))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::signer;
    use std::fs;

    fn at() -> Timestamp {
        "2026-11-15T03:28:58Z".parse().unwrap()
    }

    /// A folder with these steps, and trust in keys 1 to 4.
    fn chain(steps: &[(u8, u8)]) -> (tempfile::TempDir, Trust) {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), OTHER_WRITE).unwrap();
        for (from, to) in steps {
            let text = Statement::sign(&signer(*from), &signer(*to), at()).unwrap();
            folder.create(&name_of(&signer(*to).fingerprint()), text.as_bytes(), 0o600).unwrap();
        }
        (root, Trust::of(&[1, 2, 3, 4].map(|byte| signer(byte).public())))
    }

    fn keys(bytes: &[u8]) -> BTreeSet<Fingerprint> {
        bytes.iter().map(|byte| signer(*byte).fingerprint()).collect()
    }

    #[test]
    fn a_key_succeeds_every_key_before_it() {
        let (root, trust) = chain(&[(1, 2), (2, 3)]);
        let chain = KeyChain::load(root.path(), &trust).unwrap();
        for (current, before) in [(1, &[][..]), (2, &[1]), (3, &[1, 2]), (4, &[])] {
            assert_eq!(chain.predecessors(&signer(current).fingerprint()), keys(before), "{current}");
        }
        let none = KeyChain::load(&root.path().join("none"), &trust).unwrap();
        assert!(none.predecessors(&signer(3).fingerprint()).is_empty());
    }

    #[test]
    fn a_step_of_an_untrusted_key_does_not_count() {
        let (root, _) = chain(&[(1, 2), (2, 3)]);
        for (trusted, expected) in [(&[2, 3][..], &[2][..]), (&[1, 3], &[]), (&[1, 2], &[])] {
            let publics: Vec<_> = trusted.iter().map(|byte| signer(*byte).public()).collect();
            let chain = KeyChain::load(root.path(), &Trust::of(&publics)).unwrap();
            assert_eq!(chain.predecessors(&signer(3).fingerprint()), keys(expected), "{trusted:?}");
            // One of the steps to key 3 never counts; key 1 has none.
            assert!(chain.has_gap_behind(&signer(3).fingerprint()), "{trusted:?}");
            assert!(!chain.has_gap_behind(&signer(1).fingerprint()), "{trusted:?}");
        }
        let (_, trust) = self::chain(&[]);
        let whole = KeyChain::load(root.path(), &trust).unwrap();
        assert!(!whole.has_gap_behind(&signer(3).fingerprint()));
    }

    #[test]
    fn forks_and_cycles_are_refused_by_name() {
        let refused = |steps: &[(u8, u8)]| {
            let (root, trust) = chain(steps);
            KeyChain::load(root.path(), &trust).unwrap_err().to_string()
        };
        assert!(refused(&[(1, 2), (1, 3)]).contains("took over from"));
        assert!(refused(&[(1, 2), (2, 3), (3, 1)]).contains("cycle"));
        assert!(refused(&[(1, 2), (2, 1)]).contains(".json"));
        // Revoking one of two successors decides for the other.
        let (root, _) = chain(&[(1, 2), (1, 3)]);
        let decided = KeyChain::load(root.path(), &Trust::of(&[signer(1).public(), signer(3).public()])).unwrap();
        assert_eq!(decided.predecessors(&signer(3).fingerprint()), keys(&[1]));
        assert!(decided.predecessors(&signer(2).fingerprint()).is_empty());
    }

    #[test]
    fn one_flipped_bit_anywhere_is_refused_by_name() {
        let (root, trust) = chain(&[(1, 2)]);
        let file = root.path().join(name_of(&signer(2).fingerprint()));
        let bytes = fs::read(&file).unwrap();
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1 << (position % 8);
            fs::write(&file, &changed).unwrap();
            match KeyChain::load(root.path(), &trust) {
                Err(error) => assert!(error.to_string().contains(&name_of(&signer(2).fingerprint())), "{error}"),
                // White space is not covered; every other byte is.
                Ok(_) => assert!(bytes[position].is_ascii_whitespace(), "byte {position}"),
            }
        }
    }

    #[test]
    fn neither_key_can_rotate_without_the_other() {
        let (root, trust) = chain(&[]);
        let folder = Folder::open(root.path(), OTHER_WRITE).unwrap();
        let old = signer(1);
        let new = signer(2);
        let thief = signer(3);
        // First the thief signs in the old key's place; then the new key has not countersigned.
        let stolen = Statement::sign(&thief, &new, at()).unwrap();
        let stolen = stolen.replace(&thief.fingerprint().to_string(), &old.fingerprint().to_string());
        let forced = Statement::sign(&old, &thief, at()).unwrap();
        let forced = forced
            .replace(&thief.fingerprint().to_string(), &new.fingerprint().to_string())
            .replace(&thief.public().to_text(), &new.public().to_text());
        for text in [stolen, forced] {
            let name = name_of(&new.fingerprint());
            folder.replace(&name, text.as_bytes(), 0o600).unwrap();
            assert_eq!(KeyChain::load(root.path(), &trust).unwrap_err().code(), "key_rotation_invalid");
        }
    }

    #[test]
    fn loose_modes_and_links_are_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let (root, trust) = chain(&[(1, 2)]);
        let file = root.path().join(name_of(&signer(2).fingerprint()));
        let code = || KeyChain::load(root.path(), &trust).map_or_else(|e| e.code(), |_| "ok");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(code(), "key_chain_unsafe");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(code(), "ok");
        let moved = root.path().join("moved");
        fs::rename(&file, &moved).unwrap();
        symlink(&moved, &file).unwrap();
        assert_eq!(code(), "key_chain_unsafe");
    }
}
