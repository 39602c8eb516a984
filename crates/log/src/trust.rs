//! Which keys count: a folder of the user, one file `<fingerprint>.json` per key.
//!
//! ```text
//! {"fingerprint":"<64 hex>","public_key":"<base64url>","owner":"…","added_at":"…Z","status":"trusted"}
//! {…,"status":"revoked","revoked_at":"…Z"}
//! ```
//!
//! The folder lies with the user and never in a project: a project can't vouch for itself.
//!
//! Invariants:
//!
//! - File name, declared fingerprint and the fingerprint of the key agree; one file that is wrong in any way makes the
//!   whole load fail and is named, so that nobody believes less, or more, than is written.
//! - Folder and files are real, belong to the effective user and can't be written by others.
//! - A [`Trust`] is a value: what is believed does not change in the middle of a verification.
//! - A revoked key stays in the folder, marked, and adding it again is an error: it counts again only if somebody says so by
//!   its name. After a crash meanwhile the file says one or the other, whole.
//! - A trust may carry the statements with which its keys took over from each other, to hand them on; they add nothing to it.
//!
//! Names that start with a dot or don't end in `.json` are not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::error::{Classify, Kind};
use selvedge_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::keychain::Voucher;
use crate::keys::guarded::{Failure, Folder, OTHER_WRITE, Trouble};
use crate::keys::{Fingerprint, PublicKey};
use crate::strict;

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 64 * 1024;
const MAX_OWNER_BYTES: usize = 200;

/// Whether a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// What it signed is believed.
    Trusted,
    /// What it signed is believed no more.
    Revoked,
}

/// A key somebody decided about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedKey {
    /// The key.
    pub public: PublicKey,
    /// Whose it is, in the user's own words.
    pub owner: String,
    /// When it was added.
    pub added_at: Timestamp,
    /// Whether it counts.
    pub status: Status,
    /// When it was revoked, if it was and the file says so.
    pub revoked_at: Option<Timestamp>,
}

/// Why the trust store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file that is not what it should be.
    #[error("the trusted key `{}` is refused: {why}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody else could have written it.
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
    /// Nothing is known of the key.
    #[error("the trust store does not know the key {fingerprint}")]
    Unknown {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// An owner's name that can't be shown or is empty.
    #[error("an owner is named in 1 to 200 bytes without control characters")]
    Owner,
    /// The operating system failed.
    #[error("can't use the trust store at `{}`", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
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
            Self::Refused { .. } => "trust_refused",
            Self::Unsafe { .. } => "trust_unsafe",
            Self::Revoked { .. } => "trust_revoked",
            Self::Unknown { .. } => "trust_unknown",
            Self::Owner => "trust_owner",
            Self::Io { .. } => "trust_io",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { path, .. } => {
                Some(format!("look at `{}`, and remove it if it is not yours", path.display()))
            }
            Self::Unsafe { path, .. } => Some(format!(
                "make `{}` a real file or folder of your own and take other people's rights away with `chmod go-w {0}`",
                path.display()
            )),
            Self::Revoked { fingerprint } => Some(format!(
                "if it should count again, say so by its name: `selvedge keys trust --again {}`",
                fingerprint.short()
            )),
            Self::Unknown { .. } => Some("`selvedge keys list` shows the keys it knows".to_owned()),
            Self::Owner => None,
            Self::Io { path, .. } => Some(format!("check that `{}` can be read", path.display())),
        }
    }
}

impl From<Failure> for TrustError {
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

/// The keys that were decided about, as they were when loaded.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    keys: BTreeMap<Fingerprint, TrustedKey>,
    vouchers: Vec<Voucher>,
}

impl Trust {
    /// Reads the folder. If there is none, nobody is trusted.
    pub fn load(path: &Path) -> Result<Self, TrustError> {
        let folder = match Folder::open(path, OTHER_WRITE) {
            Err(Failure { trouble: Trouble::Absent, .. }) => return Ok(Self::default()),
            folder => folder?,
        };
        let mut keys = BTreeMap::new();
        for name in folder.names()?.iter().filter(|name| name.ends_with(".json")) {
            let key = read(&folder, name)?;
            keys.insert(key.public.fingerprint(), key);
        }
        Ok(Self { keys, vouchers: Vec::new() })
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
        Self { keys, vouchers: Vec::new() }
    }

    /// The same trust, with the statements that are handed on beside what its keys signed.
    #[must_use]
    pub fn with_vouchers(mut self, vouchers: &[Voucher]) -> Self {
        self.vouchers = vouchers.to_vec();
        self
    }

    /// The statements that lead from these keys to others and back, in the order of the keys that took over.
    pub fn vouchers_around(&self, keys: &[Fingerprint]) -> Vec<&Voucher> {
        let mut around: BTreeSet<Fingerprint> = keys.iter().copied().collect();
        loop {
            let known = around.len();
            for one in &self.vouchers {
                if around.contains(&one.from) || around.contains(&one.to) {
                    around.extend([one.from, one.to]);
                }
            }
            if around.len() == known {
                return self.vouchers.iter().filter(|one| around.contains(&one.to)).collect();
            }
        }
    }

    /// Believes one more key, which is the same person's as `by`.
    pub(crate) fn believe(&mut self, public: PublicKey, by: &Fingerprint) {
        if let Some(known) = self.keys.get(by).cloned() {
            self.keys.insert(public.fingerprint(), TrustedKey { public, ..known });
        }
    }

    /// The key of this fingerprint, if it is trusted.
    pub fn key(&self, fingerprint: &Fingerprint) -> Option<&PublicKey> {
        self.keys.get(fingerprint).filter(|key| key.status == Status::Trusted).map(|key| &key.public)
    }

    /// The key of this fingerprint and all that was decided about it, trusted or not.
    pub fn known(&self, fingerprint: &Fingerprint) -> Option<&TrustedKey> {
        self.keys.get(fingerprint)
    }

    /// What was decided about the key of this fingerprint; nothing, if it is unknown.
    pub fn status(&self, fingerprint: &Fingerprint) -> Option<Status> {
        self.keys.get(fingerprint).map(|key| key.status)
    }

    /// Every key that was decided about, in the order of fingerprints.
    pub fn iter(&self) -> impl Iterator<Item = (&Fingerprint, &TrustedKey)> {
        self.keys.iter()
    }

    /// Adds a key to the folder, and makes the folder if need be. It is on the disk when this returns. A key that is
    /// there already stays as it is.
    pub fn add(path: &Path, public: &PublicKey, owner: &str, at: Timestamp) -> Result<(), TrustError> {
        if !is_owner(owner) {
            return Err(TrustError::Owner);
        }
        let folder = Folder::open_or_create(path, OTHER_WRITE)?;
        let fingerprint = public.fingerprint();
        let name = format!("{fingerprint}.json");
        let entry = Entry {
            fingerprint,
            public_key: public.to_text(),
            owner: owner.to_owned(),
            added_at: at,
            status: Status::Trusted,
            revoked_at: None,
        };
        match folder.create(&name, entry.text().as_bytes(), 0o600) {
            Err(Failure { trouble: Trouble::Exists, .. }) => match read(&folder, &name)?.status {
                Status::Trusted => Ok(()),
                Status::Revoked => Err(TrustError::Revoked { fingerprint }),
            },
            created => Ok(created?),
        }
    }

    /// Marks a key of the folder as revoked; it stays there. It is on the disk when this returns. One that is revoked
    /// already stays as it is.
    pub fn revoke(path: &Path, fingerprint: &Fingerprint, at: Timestamp) -> Result<(), TrustError> {
        Self::mark(path, fingerprint, Status::Revoked, Some(at))
    }

    /// Marks a key of the folder that was revoked as trusted again. It is on the disk when this returns. One that is trusted
    /// stays as it is.
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
            Err(Failure { trouble: Trouble::Absent, .. }) => return Err(unknown()),
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
        let (fingerprint, public_key) = (*fingerprint, public.to_text());
        let entry = Entry { fingerprint, public_key, owner, added_at, status, revoked_at };
        Ok(folder.replace(&name, entry.text().as_bytes(), 0o600)?)
    }
}

/// The file of one key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    fingerprint: Fingerprint,
    public_key: String,
    owner: String,
    added_at: Timestamp,
    status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Timestamp>,
}

impl Entry {
    fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("an entry has text for keys") + "\n"
    }
}

fn read(folder: &Folder, name: &str) -> Result<TrustedKey, TrustError> {
    let refused = |why: String| TrustError::Refused { path: folder.path_of(name), why };
    let bytes = folder.read(name, OTHER_WRITE, MAX_FILE_BYTES)?;
    let entry: Entry = strict::parse_as(&bytes).map_err(|e| refused(e.to_string()))?;
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
    let Entry { owner, added_at, status, revoked_at, .. } = entry;
    Ok(TrustedKey { public, owner, added_at, status, revoked_at })
}

/// Owners are shown in terminals.
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
    fn an_absent_folder_trusts_nobody() {
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
        assert_eq!(fs::read(&file).unwrap(), revoked, "the first time counts");
        let unknown = Trust::revoke(&path, &signer(2).fingerprint(), at()).unwrap_err();
        assert_eq!(unknown.code(), "trust_unknown");
        assert_eq!(Trust::revoke(&path.join("none"), &fingerprint, at()).unwrap_err().code(), "trust_unknown");
    }

    #[test]
    fn a_revoked_key_counts_again_when_that_is_said_by_its_name() {
        let (_root, path, file) = made();
        let before = fs::read(&file).unwrap();
        let fingerprint = signer(1).fingerprint();
        Trust::revoke(&path, &fingerprint, at()).unwrap();
        Trust::trust_again(&path, &fingerprint).unwrap();
        assert!(Trust::load(&path).unwrap().key(&fingerprint).is_some());
        Trust::trust_again(&path, &fingerprint).unwrap();
        assert_eq!(fs::read(&file).unwrap(), before);
        assert_eq!(Trust::trust_again(&path, &signer(2).fingerprint()).unwrap_err().code(), "trust_unknown");
    }

    #[test]
    fn a_file_whose_name_fingerprint_and_key_disagree_is_refused_by_name() {
        let (_root, path, file) = made();
        let text = fs::read_to_string(&file).unwrap();
        let (mine, other) = (signer(1), signer(2));
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
            assert_eq!(error.code(), "trust_refused", "{wrong}");
            assert!(error.to_string().contains(&mine.fingerprint().to_string()), "{error}");
        }
        fs::write(&file, &text).unwrap();
        fs::copy(&file, path.join(format!("{}.json", other.fingerprint()))).unwrap();
        assert_eq!(loading(&path), "trust_refused");
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
        assert_eq!(loading(&path), "trust_refused");
    }

    #[test]
    fn other_names_are_not_looked_at_and_odd_owners_are_not_written() {
        let (_root, path, _file) = made();
        fs::write(path.join("README"), "mine").unwrap();
        fs::write(path.join(".half.json.tmp"), "{").unwrap();
        assert_eq!(loading(&path), "ok");
        for owner in ["", "a\nb", &"x".repeat(201)] {
            assert_eq!(Trust::add(&path, &signer(2).public(), owner, at()).unwrap_err().code(), "trust_owner");
        }
    }

    #[test]
    fn trust_in_given_keys_needs_no_folder() {
        let trust = Trust::of(&[signer(1).public()]);
        assert!(trust.key(&signer(1).fingerprint()).is_some());
        assert!(trust.key(&signer(2).fingerprint()).is_none());
    }
}
