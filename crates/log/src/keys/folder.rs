//! The folder that holds one signing key: `private_key.pem` (0600) and `public_key.pem` (0644) in a folder of mode 0700.
//!
//! The private file is the key. The public one is a copy for handing out: it may be missing, but if it is there it must
//! agree. Nothing here writes over a key; the private file is written first, so that a crash leaves either no key or a
//! whole one.

use std::io;
use std::path::{Path, PathBuf};

use selvedge_model::error::{Classify, Kind};
use selvedge_model::outside::Ids;

use super::guarded::{ANY_OTHER, Failure, Folder, OTHER_WRITE, Trouble};
use super::{PublicKey, Signer};

const PRIVATE: &str = "private_key.pem";
const PUBLIC: &str = "public_key.pem";
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is none.
    #[error("there is no signing key at `{}`", .path.display())]
    Absent {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is one already.
    #[error("`{}` exists already and is never overwritten", .path.display())]
    Exists {
        /// The file in the way.
        path: PathBuf,
    },
    /// Somebody else could read or replace it.
    #[error("`{}` can't be used as a key: {why}", .path.display())]
    Unsafe {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is no key, or the two files don't belong together.
    #[error("`{}` is damaged: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system failed.
    #[error("can't use the key at `{}`", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Classify for KeyError {
    fn kind(&self) -> Kind {
        match self {
            Self::Absent { .. } => Kind::Absent,
            Self::Exists { .. } => Kind::Conflict,
            Self::Unsafe { .. } => Kind::Denied,
            Self::Damaged { .. } => Kind::Integrity,
            Self::Io { .. } => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Absent { .. } => "key_absent",
            Self::Exists { .. } => "key_exists",
            Self::Unsafe { .. } => "key_unsafe",
            Self::Damaged { .. } => "key_damaged",
            Self::Io { .. } => "key_io",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Absent { .. } => "make one with `selvedge init`".to_owned(),
            Self::Exists { path } => {
                format!("use the key that is there, or move `{}` to a safe place first", path.display())
            }
            Self::Unsafe { path, .. } => format!(
                "make `{}` a real file or folder of your own and take other people's rights away with `chmod go= {0}`",
                path.display()
            ),
            Self::Damaged { path, .. } => format!("restore `{}` from a backup", path.display()),
            Self::Io { path, .. } => format!("check that `{}` is on a disk that works and has room", path.display()),
        })
    }
}

impl From<Failure> for KeyError {
    fn from(Failure { path, trouble }: Failure) -> Self {
        match trouble {
            Trouble::Absent => Self::Absent { path },
            Trouble::Exists => Self::Exists { path },
            Trouble::Unsafe(why) => Self::Unsafe { path, why },
            Trouble::Damaged(why) => Self::Damaged { path, why },
            Trouble::Io(source) => Self::Io { path, source },
        }
    }
}

/// The folder of one signing key.
#[derive(Debug)]
pub struct KeyFolder;

impl KeyFolder {
    /// Makes a new key at `path`, where there is none yet. It is on the disk when this returns.
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

    /// Reads the key at `path`, if nobody but the user who runs this can have read or replaced it.
    pub fn load(path: &Path) -> Result<Signer, KeyError> {
        let folder = Folder::open(path, ANY_OTHER)?;
        let damaged = |name: &str, why: &str| KeyError::Damaged { path: folder.path_of(name), why: why.to_owned() };
        let bytes = folder.read(PRIVATE, ANY_OTHER, MAX_FILE_BYTES)?;
        let pem = std::str::from_utf8(&bytes).map_err(|_| damaged(PRIVATE, "it is not text"))?;
        let signer = Signer::from_pem(pem).map_err(|e| damaged(PRIVATE, &e.to_string()))?;

        let public = match folder.read(PUBLIC, OTHER_WRITE, MAX_FILE_BYTES) {
            Err(Failure { trouble: Trouble::Absent, .. }) => return Ok(signer),
            bytes => bytes?,
        };
        let pem = std::str::from_utf8(&public).map_err(|_| damaged(PUBLIC, "it is not text"))?;
        let public = PublicKey::from_pem(pem).map_err(|e| damaged(PUBLIC, &e.to_string()))?;
        if public != signer.public() {
            return Err(damaged(PUBLIC, "it is not the public half of the private key beside it"));
        }
        Ok(signer)
    }
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

    /// A folder with a key in it, and the folder that is removed with it.
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
    fn a_created_key_is_loaded_again_and_lies_where_only_its_owner_looks() {
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
        assert_eq!(KeyFolder::create(&path, &Fill(2)).unwrap_err().code(), "key_exists", "its public half is there");
        fs::write(path.join(PRIVATE), before).unwrap();
        symlink("elsewhere", path.join("dangling")).unwrap();
        assert_eq!(KeyFolder::create(&path.join("dangling"), &Fill(2)).unwrap_err().code(), "key_unsafe");
    }

    #[test]
    fn an_absent_key_is_told_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let error = KeyFolder::load(&root.path().join("none")).unwrap_err();
        assert_eq!((error.code(), error.hint().unwrap().as_str()), ("key_absent", "make one with `selvedge init`"));
        let (_root, path) = made();
        fs::remove_file(path.join(PRIVATE)).unwrap();
        assert_eq!(loading(&path), "key_absent");
    }

    #[test]
    fn a_key_that_others_can_reach_is_refused() {
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
    fn damage_is_told_and_a_missing_public_half_is_none() {
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
