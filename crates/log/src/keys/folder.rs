//! The folder that holds one signing key: `private_key.pem` (0600) and `public_key.pem` (0644) in a folder of mode 0700.
//!
//! The private file is the key. The public one is a copy to pass on: it may be missing, but if it exists it must
//! match. `create` never overwrites a key, and the private file is written first, so that a crash leaves either no key
//! or a complete one. Only a rotation, which has copied the old key elsewhere by then, replaces the pair: it removes the public
//! file, renames the new private file over the old one, and writes the new public file. So there is a complete private key at
//! every moment, and a reader reads again before it reports that two halves don't match.

use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::clock_and_ids::Ids;
use selvedge_model::error::{Classify, Kind};

use super::secure_folder::{ANY_OTHER, Folder, FolderError, OTHER_WRITE, Problem};
use super::{Fingerprint, PublicKey, Signer};

const PRIVATE: &str = "private_key.pem";
const PUBLIC: &str = "public_key.pem";
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// How often a pair that is replaced meanwhile is read again.
const ATTEMPTS: usize = 8;

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no key.
    #[error("there is no signing key at `{}`", .path.display())]
    Absent {
        /// Where it was expected.
        path: PathBuf,
    },
    /// The public half exists and the private one does not.
    #[error("the private key at `{}` is lost; only its public half, {}, is there", .path.display(), .fingerprint.short())]
    Lost {
        /// Where it was expected.
        path: PathBuf,
        /// The key.
        fingerprint: Fingerprint,
    },
    /// There is a key already.
    #[error("`{}` exists already and is never overwritten", .path.display())]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// Another user could read or replace it.
    #[error("`{}` can't be used as a key: {why}", .path.display())]
    Unsafe {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is not a key, or the two files don't match.
    #[error("`{}` is damaged: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system reported an error.
    #[error("can't use the key at `{}`", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl Classify for KeyError {
    fn kind(&self) -> Kind {
        match self {
            Self::Absent { .. } | Self::Lost { .. } => Kind::Absent,
            Self::Exists { .. } => Kind::Conflict,
            Self::Unsafe { .. } => Kind::Denied,
            Self::Damaged { .. } => Kind::Integrity,
            Self::Io { .. } => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Absent { .. } => "signing_key_missing",
            Self::Lost { .. } => "private_key_missing",
            Self::Exists { .. } => "key_exists",
            Self::Unsafe { .. } => "key_unsafe",
            Self::Damaged { .. } => "key_damaged",
            Self::Io { .. } => "key_io",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Absent { .. } => {
                "if you have a key, set SELVEDGE_HOME to the folder that holds it: a new key can't continue the threads of \
                 another; if you never had one, `selvedge init` makes it"
                    .to_owned()
            }
            Self::Lost { path, .. } => format!(
                "everything it signed stays readable and verifiable, but nothing can be added to it: put the private key \
                 back from a copy, or move `{}` away and make a new key with `selvedge init`, for new threads",
                path.with_file_name(PUBLIC).display()
            ),
            Self::Exists { path } => {
                format!("use the existing key, or move `{}` to a safe place first", path.display())
            }
            Self::Unsafe { path, .. } => format!(
                "make `{}` a real file or folder of your own and remove the access of other users with `chmod go= {0}`",
                path.display()
            ),
            Self::Damaged { path, .. } => format!("restore `{}` from a backup", path.display()),
            Self::Io { path, .. } => format!("check that `{}` is on a working disk with free space", path.display()),
        })
    }
}

impl From<FolderError> for KeyError {
    fn from(FolderError { path, problem }: FolderError) -> Self {
        match problem {
            Problem::Absent => Self::Absent { path },
            Problem::Exists => Self::Exists { path },
            Problem::Unsafe(why) => Self::Unsafe { path, why },
            Problem::Damaged(why) => Self::Damaged { path, why },
            Problem::Io(source) => Self::Io { path, source },
        }
    }
}

/// The folder of one signing key.
#[derive(Debug)]
pub struct KeyFolder;

impl KeyFolder {
    /// Makes a new key at `path`, where there is none yet. When this returns, it is durable.
    pub fn create(path: &Path, ids: &dyn Ids) -> Result<Signer, KeyError> {
        let folder = Folder::open_or_create(path, ANY_OTHER)?;
        for name in [PRIVATE, PUBLIC] {
            if folder.has(name)? {
                return Err(KeyError::Exists { path: folder.path_of(name) });
            }
        }
        let signer = Signer::generate(ids);
        folder.create(PRIVATE, signer.to_pem().as_bytes(), 0o600)?;
        folder.create(PUBLIC, signer.public().to_pem().as_bytes(), 0o644)?;
        Ok(signer)
    }

    /// Loads the key at `path`, if no other user can have read or replaced it.
    pub fn load(path: &Path) -> Result<Signer, KeyError> {
        let folder = Folder::open(path, ANY_OTHER)?;
        let mut signer = private(&folder)?;
        for _ in 0..ATTEMPTS {
            match public(&folder)? {
                Some(public) if public != signer.public() => {}
                _ => return Ok(signer),
            }
            let before = signer.fingerprint();
            signer = private(&folder)?;
            if signer.fingerprint() == before {
                break;
            }
        }
        let why = "it is not the public half of the private key beside it".to_owned();
        Err(KeyError::Damaged { path: folder.path_of(PUBLIC), why })
    }

    /// The public half at `path`, which may exist even if the private one is lost.
    pub fn public(path: &Path) -> Result<PublicKey, KeyError> {
        let folder = Folder::open(path, ANY_OTHER)?;
        public(&folder)?.ok_or_else(|| KeyError::Absent { path: folder.path_of(PUBLIC) })
    }
}

/// The steps of replacing a key pair; a crash after each leaves a complete private key.
pub(crate) mod replacing {
    use super::{ANY_OTHER, Folder, KeyError, PRIVATE, PUBLIC, Path, Signer};

    /// First: no public half is better than one of another key.
    pub(crate) fn remove_public(path: &Path) -> Result<(), KeyError> {
        Ok(Folder::open(path, ANY_OTHER)?.remove(PUBLIC)?)
    }

    /// Second: from here on the new key signs.
    pub(crate) fn replace_private(path: &Path, signer: &Signer) -> Result<(), KeyError> {
        Ok(Folder::open(path, ANY_OTHER)?.replace(PRIVATE, signer.to_pem().as_bytes(), 0o600)?)
    }

    /// Third: the public half, to pass on.
    pub(crate) fn write_public(path: &Path, signer: &Signer) -> Result<(), KeyError> {
        Ok(Folder::open(path, ANY_OTHER)?.replace(PUBLIC, signer.public().to_pem().as_bytes(), 0o644)?)
    }

    /// Removes both halves of a key that was copied elsewhere, and temporary files of a killed writer; they need not exist.
    pub(crate) fn remove_pair(path: &Path) -> Result<(), KeyError> {
        let folder = match Folder::open(path, ANY_OTHER).map_err(KeyError::from) {
            Err(KeyError::Absent { .. }) => return Ok(()),
            folder => folder?,
        };
        folder.remove(PUBLIC)?;
        folder.remove(PRIVATE)?;
        Ok(folder.sweep()?)
    }
}

fn private(folder: &Folder) -> Result<Signer, KeyError> {
    let bytes = match folder.read(PRIVATE, ANY_OTHER, MAX_FILE_BYTES) {
        Err(FolderError { problem: Problem::Absent, path }) => {
            return Err(match public(folder)? {
                Some(public) => KeyError::Lost { path, fingerprint: public.fingerprint() },
                None => KeyError::Absent { path },
            });
        }
        bytes => bytes?,
    };
    let damaged = |why: String| KeyError::Damaged { path: folder.path_of(PRIVATE), why };
    let pem = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text".to_owned()))?;
    Signer::from_pem(pem).map_err(|e| damaged(e.to_string()))
}

fn public(folder: &Folder) -> Result<Option<PublicKey>, KeyError> {
    let bytes = match folder.read(PUBLIC, OTHER_WRITE, MAX_FILE_BYTES) {
        Err(FolderError { problem: Problem::Absent, .. }) => return Ok(None),
        bytes => bytes?,
    };
    let damaged = |why: String| KeyError::Damaged { path: folder.path_of(PUBLIC), why };
    let pem = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text".to_owned()))?;
    PublicKey::from_pem(pem).map(Some).map_err(|e| damaged(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    struct Fill(u8);

    impl Ids for Fill {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(self.0);
        }
    }

    /// A folder with a key, in a temporary folder.
    fn made() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("keys/signing");
        KeyFolder::create(&path, &Fill(1)).unwrap();
        (root, path)
    }

    fn mode(path: impl AsRef<Path>) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn loading(path: &Path) -> &'static str {
        KeyFolder::load(path).map_or_else(|e| e.code(), |_| "ok")
    }

    #[test]
    fn a_created_key_can_be_loaded_and_only_its_owner_has_access() {
        let (_root, path) = made();
        let signer = KeyFolder::load(&path).unwrap();
        assert_eq!(signer.fingerprint(), Signer::generate(&Fill(1)).fingerprint());
        assert_eq!((mode(&path), mode(path.join(PRIVATE)), mode(path.join(PUBLIC))), (0o700, 0o600, 0o644));
    }

    #[test]
    fn a_key_is_never_overwritten() {
        let (_root, path) = made();
        let before = fs::read(path.join(PRIVATE)).unwrap();
        let error = KeyFolder::create(&path, &Fill(2)).unwrap_err();
        assert_eq!((error.code(), error.kind()), ("key_exists", Kind::Conflict));
        fs::remove_file(path.join(PRIVATE)).unwrap();
        assert_eq!(KeyFolder::create(&path, &Fill(2)).unwrap_err().code(), "key_exists", "its public half exists");
        fs::write(path.join(PRIVATE), before).unwrap();
        symlink("elsewhere", path.join("dangling")).unwrap();
        assert_eq!(KeyFolder::create(&path.join("dangling"), &Fill(2)).unwrap_err().code(), "key_unsafe");
    }

    #[test]
    fn an_absent_key_has_a_hint() {
        let root = tempfile::tempdir().unwrap();
        let error = KeyFolder::load(&root.path().join("none")).unwrap_err();
        assert_eq!(error.code(), "signing_key_missing");
        assert!(error.hint().unwrap().contains("SELVEDGE_HOME"), "the key may be elsewhere");
    }

    #[test]
    fn a_lost_private_half_is_reported() {
        let (_root, path) = made();
        let public = KeyFolder::public(&path).unwrap();
        fs::remove_file(path.join(PRIVATE)).unwrap();
        let error = KeyFolder::load(&path).unwrap_err();
        assert_eq!((error.code(), error.kind()), ("private_key_missing", Kind::Absent));
        assert!(error.to_string().contains(&public.fingerprint().short()), "{error}");
        let hint = error.hint().unwrap();
        for word in ["readable and verifiable", "nothing can be added", "from a copy", "selvedge init"] {
            assert!(hint.contains(word), "{hint}");
        }
        assert_eq!(KeyFolder::public(&path).unwrap(), public);
    }

    #[test]
    fn a_pair_that_is_replaced_while_it_is_read_is_not_reported_as_damaged() {
        let (_root, path) = made();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut count = 0_u32;
                        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                            KeyFolder::load(&path).unwrap();
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            for round in 2..100 {
                let key = &Signer::generate(&Fill(round));
                replacing::remove_public(&path).unwrap();
                replacing::replace_private(&path, key).unwrap();
                replacing::write_public(&path, key).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
        });
    }

    #[test]
    fn a_key_that_other_users_can_access_is_refused() {
        let (_root, path) = made();
        let chmod = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (file, loose, tight) in [(path.clone(), 0o750, 0o700), (path.clone(), 0o701, 0o700)] {
            chmod(&file, loose);
            assert_eq!(loading(&path), "key_unsafe", "{loose:o}");
            assert_eq!(KeyFolder::create(&path, &Fill(2)).unwrap_err().code(), "key_unsafe");
            chmod(&file, tight);
        }
        for (name, loose, tight) in [(PRIVATE, 0o640, 0o600), (PRIVATE, 0o604, 0o600), (PUBLIC, 0o664, 0o644)] {
            chmod(&path.join(name), loose);
            assert_eq!(loading(&path), "key_unsafe", "{name} {loose:o}");
            chmod(&path.join(name), tight);
        }
        assert_eq!(loading(&path), "ok");
    }

    #[test]
    fn symbolic_links_are_refused() {
        let (root, path) = made();
        let link = root.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(loading(&link), "key_unsafe");
        for name in [PUBLIC, PRIVATE] {
            let moved = root.path().join(name);
            fs::rename(path.join(name), &moved).unwrap();
            symlink(&moved, path.join(name)).unwrap();
            assert_eq!(loading(&path), "key_unsafe", "{name}");
            fs::remove_file(path.join(name)).unwrap();
            fs::rename(&moved, path.join(name)).unwrap();
        }
        assert_eq!(loading(&path), "ok");
    }

    #[test]
    fn damage_is_reported_and_a_missing_public_half_is_not_damage() {
        let (_root, path) = made();
        let public = fs::read(path.join(PUBLIC)).unwrap();
        fs::write(path.join(PUBLIC), Signer::generate(&Fill(2)).public().to_pem()).unwrap();
        assert_eq!(loading(&path), "key_damaged");
        fs::write(path.join(PUBLIC), [0xff]).unwrap();
        assert_eq!(loading(&path), "key_damaged");
        fs::write(path.join(PUBLIC), public).unwrap();
        assert_eq!(loading(&path), "ok");
        fs::remove_file(path.join(PUBLIC)).unwrap();
        assert_eq!(loading(&path), "ok");
        let private = fs::read(path.join(PRIVATE)).unwrap();
        fs::write(path.join(PRIVATE), &private[..private.len() / 2]).unwrap();
        assert_eq!(loading(&path), "key_damaged");
        fs::write(path.join(PRIVATE), "").unwrap();
        assert_eq!(loading(&path), "key_damaged");
    }
}
