//! The chain of a user's keys: which key took over from which. Part of the user's folder, never of a project.
//!
//! A rotation is a statement of both keys, one JSON document `chain/<new fingerprint>.json`:
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
//! so that nobody can hand their key to somebody who did not ask for it, nor take over one that was not given.
//!
//! Invariants:
//!
//! - A file that is wrong in any way makes the whole load fail and is named. So do two keys that took over from the same
//!   one, and a circle: with either, two histories of one thread could both look right.
//! - A step counts only while both its keys are trusted. One that was revoked hands nothing over, and nothing is gone on
//!   with that it signed.
//!
//! Making a new key and putting it in place is in [`mod@rotate`]; what others are handed of the chain is a [`Voucher`].

pub mod rotate;
mod voucher;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::error::{Classify, Kind};
use selvedge_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::document::{self, DocumentKind};
use crate::keys::guarded::{Failure, Folder, OTHER_WRITE, Trouble};
use crate::keys::{Fingerprint, KeyError, Signer};
use crate::trust::{Trust, TrustError};
pub use rotate::{Rotated, rotate};
pub use voucher::Voucher;

/// What a step of the chain is signed as.
pub const KIND: DocumentKind = DocumentKind::new("key_rotation");

/// The domain of the new key's countersignature.
const DOMAIN: &str = "selvedge/key-rotation/1";

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Where a user's keys lie.
#[derive(Clone, Debug)]
pub struct Folders(PathBuf);

impl Folders {
    /// The folders below the user's `keys`.
    pub fn below(keys: impl Into<PathBuf>) -> Self {
        Self(keys.into())
    }

    /// The key that signs.
    pub fn signing(&self) -> PathBuf {
        self.0.join("signing")
    }

    /// The keys whose signatures count.
    pub fn trusted(&self) -> PathBuf {
        self.0.join("trusted")
    }

    /// Who took over from whom.
    pub fn chain(&self) -> PathBuf {
        self.0.join("chain")
    }

    /// The private halves of keys that sign no more.
    pub fn retired(&self) -> PathBuf {
        self.0.join("retired")
    }

    /// A key that is about to take over; only there during a rotation, or after one that was cut short.
    pub fn next(&self) -> PathBuf {
        self.0.join(NEXT)
    }
}

const NEXT: &str = "next";

/// Why the chain can't be used or gone on with.
#[derive(Debug, thiserror::Error)]
pub enum KeyChainError {
    /// A file that is not what it should be.
    #[error("the key rotation `{}` is refused: {why}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody else could have written it.
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
    /// The operating system failed.
    #[error("can't use the keys at `{}`", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
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
            Self::Refused { .. } => "key_chain_refused",
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
                Some(format!("put `{}` back from a copy, or move it away if it is not yours", path.display()))
            }
            Self::Unsafe { path, .. } => Some(format!(
                "make `{}` a real file or folder of your own and take other people's rights away with `chmod go-w {0}`",
                path.display()
            )),
            Self::Busy { .. } => Some("let it finish, then try again".to_owned()),
            Self::Key(error) => error.hint(),
            Self::Trust(error) => error.hint(),
            Self::Io { path, .. } => {
                Some(format!("check that `{}` is on a disk that works and has room", path.display()))
            }
        }
    }
}

impl From<Failure> for KeyChainError {
    fn from(Failure { path, trouble }: Failure) -> Self {
        match trouble {
            Trouble::Unsafe(why) => Self::Unsafe { path, why },
            Trouble::Damaged(why) => Self::Refused { path, why },
            Trouble::Absent => Self::Io { path, source: io::ErrorKind::NotFound.into() },
            Trouble::Exists => Self::Io { path, source: io::ErrorKind::AlreadyExists.into() },
            Trouble::Io(source) => Self::Io { path, source },
        }
    }
}

/// One key taking over from another, as both said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The key that signed before.
    pub from: Fingerprint,
    /// The key that signs afterwards.
    pub to: Fingerprint,
    /// When the keys say it happened.
    pub rotated_at: Timestamp,
    /// Whether both keys are trusted, so that the step counts.
    pub counts: bool,
}

/// Who took over from whom, as it was when loaded.
#[derive(Clone, Debug, Default)]
pub struct KeyChain {
    /// By the key that took over.
    steps: BTreeMap<Fingerprint, Step>,
    /// The statements of the steps that count.
    vouchers: Vec<Voucher>,
}

impl KeyChain {
    /// Reads the folder. If there is none, nobody took over from anybody.
    pub fn load(path: &Path, trust: &Trust) -> Result<Self, KeyChainError> {
        let folder = match Folder::open(path, OTHER_WRITE) {
            Err(Failure { trouble: Trouble::Absent, .. }) => return Ok(Self::default()),
            folder => folder?,
        };
        let mut chain = Self::default();
        for name in folder.names()?.iter().filter(|name| name.ends_with(".json")) {
            let (step, voucher) = read(&folder, name, trust)?;
            chain.vouchers.extend(Some(voucher).filter(|_| step.counts));
            chain.steps.insert(step.to, step);
        }
        match chain.crooked() {
            Some((to, why)) => Err(KeyChainError::Refused { path: folder.path_of(&name_of(&to)), why }),
            None => Ok(chain),
        }
    }

    fn of_steps(steps: BTreeMap<Fingerprint, Step>) -> Self {
        Self { steps, vouchers: Vec::new() }
    }

    /// The statements of the steps that count, in the order of the keys that took over.
    pub fn vouchers(&self) -> &[Voucher] {
        &self.vouchers
    }

    /// Every key that the chain leads from to `current`: whose threads it may go on with.
    pub fn predecessors(&self, current: &Fingerprint) -> BTreeSet<Fingerprint> {
        let mut found = BTreeSet::new();
        let mut at = *current;
        while let Some(step) = self.steps.get(&at).filter(|step| step.counts) {
            // Loading refuses circles; this ends even if one should slip through.
            if step.from == *current || !found.insert(step.from) {
                break;
            }
            at = step.from;
        }
        found
    }

    /// Whether some step on the way to `current` does not count: a log that `current` went on with may hold what a key signed that is
    /// not believed any more.
    pub fn has_gap_behind(&self, current: &Fingerprint) -> bool {
        let mut at = *current;
        // At most as many steps as there are: this ends even in a circle of steps that don't count.
        for _ in 0..self.steps.len() {
            match self.steps.get(&at) {
                Some(step) if step.counts => at = step.from,
                Some(_) => return true,
                None => return false,
            }
        }
        false
    }

    /// How this key took over, if it did.
    pub fn step_to(&self, fingerprint: &Fingerprint) -> Option<&Step> {
        self.steps.get(fingerprint)
    }

    /// How this key was taken over from, if it was.
    pub fn step_from(&self, fingerprint: &Fingerprint) -> Option<&Step> {
        self.steps.values().find(|step| step.from == *fingerprint)
    }

    /// The step, if there is one, with which the chain forks or closes a circle.
    fn crooked(&self) -> Option<(Fingerprint, String)> {
        let mut heirs = BTreeMap::new();
        for step in self.steps.values().filter(|step| step.counts) {
            if let Some(other) = heirs.insert(step.from, step.to) {
                let why = format!(
                    "two keys, {} and {}, took over from {}",
                    other.short(),
                    step.to.short(),
                    step.from.short()
                );
                return Some((step.to, why));
            }
        }
        // Every key has at most one heir now, so whoever walks longer than there are steps goes in a circle.
        self.steps.values().find_map(|step| {
            let mut at = step.to;
            for _ in 0..=self.steps.len() {
                match heirs.get(&at) {
                    Some(heir) => at = *heir,
                    None => return None,
                }
            }
            Some((step.to, "the chain of keys goes in a circle".to_owned()))
        })
    }
}

/// What both keys say.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    from: Fingerprint,
    to: Fingerprint,
    public_key: String,
    rotated_at: Timestamp,
    countersignature: String,
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

fn read(folder: &Folder, name: &str, trust: &Trust) -> Result<(Step, Voucher), KeyChainError> {
    let refused = |why: String| KeyChainError::Refused { path: folder.path_of(name), why };
    let bytes = folder.read(name, OTHER_WRITE, MAX_FILE_BYTES)?;
    let said = Voucher::parse(&bytes).map_err(refused)?;
    if name != name_of(&said.to) {
        return Err(refused("its name is not the key that took over".to_owned()));
    }
    // A key that was revoked still says what it said; a key that nobody knows says nothing that could be checked.
    if let Some(old) = trust.known(&said.from) {
        said.check(&old.public).map_err(refused)?;
    }
    let counts = trust.key(&said.from).is_some() && trust.key(&said.to).is_some();
    Ok((Step { from: said.from, to: said.to, rotated_at: said.rotated_at, counts }, said))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::signer;
    use std::fs;

    fn at() -> Timestamp {
        "2026-11-15T03:28:58Z".parse().unwrap()
    }

    /// A folder with these steps, and the trust in keys 1 to 4.
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
    fn a_key_goes_on_with_what_every_key_before_it_signed() {
        let (root, trust) = chain(&[(1, 2), (2, 3)]);
        let chain = KeyChain::load(root.path(), &trust).unwrap();
        for (current, before) in [(1, &[][..]), (2, &[1]), (3, &[1, 2]), (4, &[])] {
            assert_eq!(chain.predecessors(&signer(current).fingerprint()), keys(before), "{current}");
        }
        let none = KeyChain::load(&root.path().join("none"), &trust).unwrap();
        assert!(none.predecessors(&signer(3).fingerprint()).is_empty());
    }

    #[test]
    fn a_step_of_a_key_that_is_not_trusted_does_not_count() {
        let (root, _) = chain(&[(1, 2), (2, 3)]);
        for (trusted, expected) in [(&[2, 3][..], &[2][..]), (&[1, 3], &[]), (&[1, 2], &[])] {
            let publics: Vec<_> = trusted.iter().map(|byte| signer(*byte).public()).collect();
            let chain = KeyChain::load(root.path(), &Trust::of(&publics)).unwrap();
            assert_eq!(chain.predecessors(&signer(3).fingerprint()), keys(expected), "{trusted:?}");
            // Somewhere behind key 3 there is always one of them, behind key 1 never.
            assert!(chain.has_gap_behind(&signer(3).fingerprint()), "{trusted:?}");
            assert!(!chain.has_gap_behind(&signer(1).fingerprint()), "{trusted:?}");
        }
        let (_, trust) = self::chain(&[]);
        let whole = KeyChain::load(root.path(), &trust).unwrap();
        assert!(!whole.has_gap_behind(&signer(3).fingerprint()));
    }

    #[test]
    fn forks_and_circles_are_refused_by_name() {
        let refused = |steps: &[(u8, u8)]| {
            let (root, trust) = chain(steps);
            KeyChain::load(root.path(), &trust).unwrap_err().to_string()
        };
        assert!(refused(&[(1, 2), (1, 3)]).contains("took over from"));
        assert!(refused(&[(1, 2), (2, 3), (3, 1)]).contains("circle"));
        assert!(refused(&[(1, 2), (2, 1)]).contains(".json"));
        // Whoever revokes one of two heirs has decided for the other.
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
                // White space is not covered, and nothing else may pass.
                Ok(_) => assert!(bytes[position].is_ascii_whitespace(), "byte {position}"),
            }
        }
    }

    #[test]
    fn neither_key_can_rotate_without_the_other() {
        let (root, trust) = chain(&[]);
        let folder = Folder::open(root.path(), OTHER_WRITE).unwrap();
        let (old, new, thief) = (signer(1), signer(2), signer(3));
        // The thief hands the old key over to the new one; and the old key takes a key over that never agreed.
        let stolen = Statement::sign(&thief, &new, at()).unwrap();
        let stolen = stolen.replace(&thief.fingerprint().to_string(), &old.fingerprint().to_string());
        let forced = Statement::sign(&old, &thief, at()).unwrap();
        let forced = forced
            .replace(&thief.fingerprint().to_string(), &new.fingerprint().to_string())
            .replace(&thief.public().to_text(), &new.public().to_text());
        for text in [stolen, forced] {
            let name = name_of(&new.fingerprint());
            folder.replace(&name, text.as_bytes(), 0o600).unwrap();
            assert_eq!(KeyChain::load(root.path(), &trust).unwrap_err().code(), "key_chain_refused");
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
