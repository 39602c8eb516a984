//! The trust store: a folder of the user with one file `<fingerprint>.json` per key.
//!
//! ```text
//! {"fingerprint":"<64 hex>","public_key":"<base64url>","owner":"…","added_at":"…Z","status":"trusted"}
//! {…,"status":"revoked","revoked_at":"…Z"}
//! ```
//!
//! The folder belongs to the user and is never in a project, which could otherwise decide what is trusted.
//!
//! Invariants:
//!
//! - File name, declared fingerprint and the fingerprint of the key agree. One invalid file makes the
//!   whole load fail and is named, so that the trusted keys are exactly those in the folder.
//! - Folder and files are real, belong to the effective user and can't be written by other users.
//! - A [`Trust`] is a value: it does not change in the middle of a verification.
//! - A revoked key stays in the folder, marked, and adding it again is an error: it is trusted again only on an explicit request with
//!   its fingerprint. After a crash the file is either the old one or the new one, complete.
//! - A trust may carry the rotation statements of its keys, to pass them on; they add no trust.
//!
//! Names that start with a dot or don't end in `.json` are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::error::{Classify, Kind};
use selvedge_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::keychain::RotationStatement;
use crate::keys::secure_folder::{Folder, FolderError, OTHER_WRITE, Problem};
use crate::keys::{Fingerprint, PublicKey};
use crate::strict;

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 64 * 1024;
const MAX_OWNER_BYTES: usize = 200;

/// Whether a key is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its signatures are accepted.
    Trusted,
    /// Its signatures are no longer accepted.
    Revoked,
}

/// A key in the trust store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedKey {
    /// The key.
    pub public: PublicKey,
    /// Its owner, as the user named it.
    pub owner: String,
    /// When it was added.
    pub added_at: Timestamp,
    /// Whether it is trusted.
    pub status: Status,
    /// When it was revoked, if it was and the file records that.
    pub revoked_at: Option<Timestamp>,
}

/// Why the trust store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// An invalid file.
    #[error("the trusted key `{}` is refused: {why}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another user could have written it.
    #[error("`{}` can't be trusted: {why}", .path.display())]
    Unsafe {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The key was revoked and can't be added again.
    #[error("the key {fingerprint} was revoked")]
    Revoked {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// The key is not in the store.
    #[error("the trust store does not know the key {fingerprint}")]
    Unknown {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// An owner's name that is empty, too long or not printable.
    #[error("an owner's name has 1 to 200 bytes and no control characters")]
    Owner,
    /// The operating system reported an error.
    #[error("can't use the trust store at `{}`", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl Classify for TrustError {
    fn kind(&self) -> Kind {
        match self {
            Self::Refused { .. } => Kind::Integrity,
            Self::Unsafe { .. } => Kind::Denied,
            Self::Revoked { .. } => Kind::Conflict,
            Self::Unknown { .. } => Kind::Absent,
            Self::Owner => Kind::Invalid,
            Self::Io { .. } => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "trust_file_invalid",
            Self::Unsafe { .. } => "trust_unsafe",
            Self::Revoked { .. } => "trust_revoked",
            Self::Unknown { .. } => "trusted_key_not_found",
            Self::Owner => "trust_owner_invalid",
            Self::Io { .. } => "trust_io",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { path, .. } => Some(format!("check `{}`, and remove it if it is not yours", path.display())),
            Self::Unsafe { path, .. } => Some(format!(
                "make `{}` a real file or folder of your own and remove the access of other users with `chmod go-w {0}`",
                path.display()
            )),
            Self::Revoked { fingerprint } => Some(format!(
                "to trust it again, name it explicitly: `selvedge keys trust --again {}`",
                fingerprint.short()
            )),
            Self::Unknown { .. } => Some("`selvedge keys list` shows the keys it knows".to_owned()),
            Self::Owner => None,
            Self::Io { path, .. } => Some(format!("check that `{}` can be read", path.display())),
        }
    }
}

impl From<FolderError> for TrustError {
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

/// The keys of a trust store, as loaded.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    keys: BTreeMap<Fingerprint, TrustedKey>,
    statements: Vec<RotationStatement>,
}

impl Trust {
    /// Loads the folder. If there is none, no key is trusted.
    pub fn load(path: &Path) -> Result<Self, TrustError> {
        let folder = match Folder::open(path, OTHER_WRITE) {
            Err(FolderError { problem: Problem::Absent, .. }) => return Ok(Self::default()),
            folder => folder?,
        };
        let mut keys = BTreeMap::new();
        for name in folder.names()?.iter().filter(|name| name.ends_with(".json")) {
            let key = read(&folder, name)?;
            keys.insert(key.public.fingerprint(), key);
        }
        Ok(Self { keys, statements: Vec::new() })
    }

    /// Trusts exactly these keys, without a folder.
    pub fn of(keys: &[PublicKey]) -> Self {
        let trusted = |public: &PublicKey| TrustedKey {
            public: *public,
            owner: "self".to_owned(),
            added_at: Timestamp::from_micros(0),
            status: Status::Trusted,
            revoked_at: None,
        };
        let keys = keys.iter().map(|public| (public.fingerprint(), trusted(public))).collect();
        Self { keys, statements: Vec::new() }
    }

    /// The same trust, with the keys that `other` revoked marked as revoked: no trust passes through them. A key that is listed here stays
    /// trusted.
    #[must_use]
    pub fn without_revoked(mut self, other: &Self) -> Self {
        for (fingerprint, known) in other.keys.iter().filter(|(_, known)| known.status == Status::Revoked) {
            self.keys.entry(*fingerprint).or_insert_with(|| known.clone());
        }
        self
    }

    /// The same trust, with rotation statements to pass on beside what its keys signed.
    #[must_use]
    pub fn with_rotation_statements(mut self, statements: &[RotationStatement]) -> Self {
        self.statements = statements.to_vec();
        self
    }

    /// The rotation statements that connect these keys to other keys, ordered by the new keys' fingerprints.
    pub fn statements_around(&self, keys: &[Fingerprint]) -> Vec<&RotationStatement> {
        let mut around: BTreeSet<Fingerprint> = keys.iter().copied().collect();
        loop {
            let known = around.len();
            for one in &self.statements {
                if around.contains(&one.from) || around.contains(&one.to) {
                    around.extend([one.from, one.to]);
                }
            }
            if around.len() == known {
                return self.statements.iter().filter(|one| around.contains(&one.to)).collect();
            }
        }
    }

    /// Trusts one more key, which has the same owner as `by`.
    pub(crate) fn believe(&mut self, public: PublicKey, by: &Fingerprint) {
        if let Some(known) = self.keys.get(by).cloned() {
            self.keys.insert(public.fingerprint(), TrustedKey { public, ..known });
        }
    }

    /// The key with this fingerprint, if it is trusted.
    pub fn key(&self, fingerprint: &Fingerprint) -> Option<&PublicKey> {
        self.keys.get(fingerprint).filter(|key| key.status == Status::Trusted).map(|key| &key.public)
    }

    /// The entry of the key with this fingerprint, trusted or revoked.
    pub fn known(&self, fingerprint: &Fingerprint) -> Option<&TrustedKey> {
        self.keys.get(fingerprint)
    }

    /// The status of the key with this fingerprint; `None` if it is unknown.
    pub fn status(&self, fingerprint: &Fingerprint) -> Option<Status> {
        self.keys.get(fingerprint).map(|key| key.status)
    }

    /// All keys in the store, ordered by fingerprint.
    pub fn iter(&self) -> impl Iterator<Item = (&Fingerprint, &TrustedKey)> {
        self.keys.iter()
    }

    /// Adds a key to the folder, which is created if it is missing. When this returns, the key is durable. An existing entry
    /// stays unchanged.
    pub fn add(path: &Path, public: &PublicKey, owner: &str, at: Timestamp) -> Result<(), TrustError> {
        if !is_owner(owner) {
            return Err(TrustError::Owner);
        }
        let folder = Folder::open_or_create(path, OTHER_WRITE)?;
        let fingerprint = public.fingerprint();
        let name = format!("{fingerprint}.json");
        let entry = TrustFile {
            fingerprint,
            public_key: public.to_text(),
            owner: owner.to_owned(),
            added_at: at,
            status: Status::Trusted,
            revoked_at: None,
        };
        match folder.create(&name, entry.text().as_bytes(), 0o600) {
            Err(FolderError { problem: Problem::Exists, .. }) => match read(&folder, &name)?.status {
                Status::Trusted => Ok(()),
                Status::Revoked => Err(TrustError::Revoked { fingerprint }),
            },
            created => Ok(created?),
        }
    }

    /// Marks a key of the folder as revoked; it stays there. When this returns, that is durable. An entry that is revoked
    /// already stays unchanged.
    pub fn revoke(path: &Path, fingerprint: &Fingerprint, at: Timestamp) -> Result<(), TrustError> {
        Self::mark(path, fingerprint, Status::Revoked, Some(at))
    }

    /// Marks a revoked key of the folder as trusted again. When this returns, that is durable. An entry that is trusted
    /// stays unchanged.
    pub fn trust_again(path: &Path, fingerprint: &Fingerprint) -> Result<(), TrustError> {
        Self::mark(path, fingerprint, Status::Trusted, None)
    }

    fn mark(
        path: &Path,
        fingerprint: &Fingerprint,
        status: Status,
        revoked_at: Option<Timestamp>,
    ) -> Result<(), TrustError> {
        let unknown = || TrustError::Unknown { fingerprint: *fingerprint };
        let folder = match Folder::open(path, OTHER_WRITE) {
            Err(FolderError { problem: Problem::Absent, .. }) => return Err(unknown()),
            folder => folder?,
        };
        let name = format!("{fingerprint}.json");
        if !folder.has(&name)? {
            return Err(unknown());
        }
        let key = read(&folder, &name)?;
        if key.status == status {
            return Ok(());
        }
        let TrustedKey { public, owner, added_at, .. } = key;
        let public_key = public.to_text();
        let entry = TrustFile { fingerprint: *fingerprint, public_key, owner, added_at, status, revoked_at };
        Ok(folder.replace(&name, entry.text().as_bytes(), 0o600)?)
    }
}

/// The file of one key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustFile {
    fingerprint: Fingerprint,
    public_key: String,
    owner: String,
    added_at: Timestamp,
    status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Timestamp>,
}

impl TrustFile {
    fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("an entry has text for keys") + "\n"
    }
}

fn read(folder: &Folder, name: &str) -> Result<TrustedKey, TrustError> {
    let refused = |why: String| TrustError::Refused { path: folder.path_of(name), why };
    let bytes = folder.read(name, OTHER_WRITE, MAX_FILE_BYTES)?;
    let entry: TrustFile = strict::parse_as(&bytes).map_err(|e| refused(e.to_string()))?;
    let public = PublicKey::from_text(&entry.public_key).map_err(|e| refused(format!("its public key: {e}")))?;
    if entry.fingerprint != public.fingerprint() {
        return Err(refused("its fingerprint is not that of its public key".to_owned()));
    }
    if name != format!("{}.json", entry.fingerprint) {
        return Err(refused("its name is not its fingerprint".to_owned()));
    }
    if !is_owner(&entry.owner) {
        return Err(refused(TrustError::Owner.to_string()));
    }
    let TrustFile { owner, added_at, status, revoked_at, .. } = entry;
    Ok(TrustedKey { public, owner, added_at, status, revoked_at })
}

/// Owners' names are shown in terminals.
fn is_owner(text: &str) -> bool {
    (1..=MAX_OWNER_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::signer;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn at() -> Timestamp {
        "2026-11-15T03:28:58Z".parse().unwrap()
    }

    /// A store that trusts key 1, and the file of that key.
    fn made() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("trusted");
        let public = signer(1).public();
        Trust::add(&path, &public, "Ada", at()).unwrap();
        let file = path.join(format!("{}.json", public.fingerprint()));
        (root, path, file)
    }

    fn loading(path: &Path) -> &'static str {
        Trust::load(path).map_or_else(|e| e.code(), |_| "ok")
    }

    #[test]
    fn without_a_folder_no_key_is_trusted() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Trust::load(&root.path().join("none")).unwrap().iter().count(), 0);
    }

    #[test]
    fn an_added_key_is_trusted_and_adding_it_again_changes_nothing() {
        let (_root, path, file) = made();
        let before = fs::read(&file).unwrap();
        Trust::add(&path, &signer(1).public(), "Eve", at()).unwrap();
        assert_eq!(fs::read(&file).unwrap(), before);
        Trust::add(&path, &signer(2).public(), "Bob", at()).unwrap();
        let trust = Trust::load(&path).unwrap();
        assert_eq!(trust.key(&signer(1).fingerprint()), Some(&signer(1).public()));
        assert_eq!(trust.key(&signer(3).fingerprint()), None);
        assert_eq!(trust.status(&signer(3).fingerprint()), None);
        let mut owners: Vec<_> = trust.iter().map(|(_, key)| (key.owner.as_str(), key.added_at)).collect();
        owners.sort();
        assert_eq!(owners, [("Ada", at()), ("Bob", at())]);
    }

    #[test]
    fn a_revoked_key_is_known_but_not_trusted_and_can_not_be_added_again() {
        let (_root, path, file) = made();
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("\"trusted\"", "\"revoked\"")).unwrap();
        let trust = Trust::load(&path).unwrap();
        let fingerprint = signer(1).fingerprint();
        assert_eq!((trust.key(&fingerprint), trust.status(&fingerprint)), (None, Some(Status::Revoked)));
        let error = Trust::add(&path, &signer(1).public(), "Ada", at()).unwrap_err();
        assert_eq!(error.code(), "trust_revoked");
    }

    #[test]
    fn revoking_marks_a_key_once_and_keeps_it() {
        let (_root, path, file) = made();
        let fingerprint = signer(1).fingerprint();
        Trust::revoke(&path, &fingerprint, at()).unwrap();
        let revoked = fs::read(&file).unwrap();
        let trust = Trust::load(&path).unwrap();
        let key = trust.known(&fingerprint).unwrap();
        assert_eq!((key.status, key.revoked_at, key.owner.as_str()), (Status::Revoked, Some(at()), "Ada"));
        assert_eq!(trust.key(&fingerprint), None);
        Trust::revoke(&path, &fingerprint, "2027-01-01T00:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(fs::read(&file).unwrap(), revoked, "the first revocation counts");
        let unknown = Trust::revoke(&path, &signer(2).fingerprint(), at()).unwrap_err();
        assert_eq!(unknown.code(), "trusted_key_not_found");
        assert_eq!(Trust::revoke(&path.join("none"), &fingerprint, at()).unwrap_err().code(), "trusted_key_not_found");
    }

    #[test]
    fn a_revoked_key_is_trusted_again_on_an_explicit_request() {
        let (_root, path, file) = made();
        let before = fs::read(&file).unwrap();
        let fingerprint = signer(1).fingerprint();
        Trust::revoke(&path, &fingerprint, at()).unwrap();
        Trust::trust_again(&path, &fingerprint).unwrap();
        assert!(Trust::load(&path).unwrap().key(&fingerprint).is_some());
        Trust::trust_again(&path, &fingerprint).unwrap();
        assert_eq!(fs::read(&file).unwrap(), before);
        assert_eq!(Trust::trust_again(&path, &signer(2).fingerprint()).unwrap_err().code(), "trusted_key_not_found");
    }

    #[test]
    fn a_file_whose_name_fingerprint_and_key_disagree_is_refused_by_name() {
        let (_root, path, file) = made();
        let text = fs::read_to_string(&file).unwrap();
        let mine = signer(1);
        let other = signer(2);
        for wrong in [
            text.replace(&mine.public().to_text(), &other.public().to_text()),
            text.replace(&mine.fingerprint().to_string(), &other.fingerprint().to_string()),
            text.replace("\"trusted\"", "\"maybe\""),
            text.replace("\"owner\"", "\"status\""),
            text.replace("Ada", "\\u001b[2J"),
            text.replace("{", "{\"more\": 1,"),
            text.replace(&mine.public().to_text(), &"A".repeat(43)),
            text[..text.len() / 2].to_owned(),
            String::new(),
        ] {
            assert_ne!(wrong, text);
            fs::write(&file, &wrong).unwrap();
            let error = Trust::load(&path).unwrap_err();
            assert_eq!(error.code(), "trust_file_invalid", "{wrong}");
            assert!(error.to_string().contains(&mine.fingerprint().to_string()), "{error}");
        }
        fs::write(&file, &text).unwrap();
        fs::copy(&file, path.join(format!("{}.json", other.fingerprint()))).unwrap();
        assert_eq!(loading(&path), "trust_file_invalid");
    }

    #[test]
    fn links_loose_modes_and_large_files_are_refused() {
        let (root, path, file) = made();
        let chmod = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (what, loose, tight) in [(&path, 0o770, 0o755), (&file, 0o620, 0o644), (&file, 0o602, 0o600)] {
            chmod(what, loose);
            assert_eq!(loading(&path), "trust_unsafe", "{loose:o}");
            chmod(what, tight);
            assert_eq!(loading(&path), "ok", "{tight:o}");
        }
        let link = root.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(loading(&link), "trust_unsafe");
        let moved = root.path().join("moved.json");
        fs::rename(&file, &moved).unwrap();
        symlink(&moved, &file).unwrap();
        assert_eq!(loading(&path), "trust_unsafe");
        fs::remove_file(&file).unwrap();
        fs::write(&file, " ".repeat(64 * 1024 + 1)).unwrap();
        assert_eq!(loading(&path), "trust_file_invalid");
    }

    #[test]
    fn other_names_are_ignored_and_invalid_owners_are_refused() {
        let (_root, path, _file) = made();
        fs::write(path.join("README"), "mine").unwrap();
        fs::write(path.join(".half.json.tmp"), "{").unwrap();
        assert_eq!(loading(&path), "ok");
        for owner in ["", "a\nb", &"x".repeat(201)] {
            assert_eq!(Trust::add(&path, &signer(2).public(), owner, at()).unwrap_err().code(), "trust_owner_invalid");
        }
    }

    #[test]
    fn a_trust_of_given_keys_needs_no_folder() {
        let trust = Trust::of(&[signer(1).public()]);
        assert!(trust.key(&signer(1).fingerprint()).is_some());
        assert!(trust.key(&signer(2).fingerprint()).is_none());
    }
}
