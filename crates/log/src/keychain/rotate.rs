//! Key rotation: a new key is made, signed by the old one, trusted, and put in its place.
//!
//! | after a crash following this step | state | effect of calling [`rotate`] again |
//! |---|---|---|
//! | 1. the new key is made in `next/` | the old key signs | continues with that key |
//! | 2. the step is in `chain/` | same; the new key could take over but is not used | same |
//! | 3. the new key is trusted | same | same |
//! | 4. the old private key is copied to `retired/` | same | same |
//! | 5. the old public file is removed | same; a missing public file is not damage | same |
//! | 6. the new private key is in place | the new key signs, and continues what the old one signed | finishes |
//! | 7. the new public file is in place | same | finishes |
//! | 8. `next/` is removed | same; the rotation is complete | rotates once more |
//!
//! There is a complete private key in place at every moment, and everything that was signed stays verifiable: no key loses its trust.
//! The folder of the keys is locked, so that only one rotation runs at a time.

use std::path::Path;

use selvedge_model::clock_and_ids::Ids;
use selvedge_model::time::Timestamp;

use super::{Folders, KeyChain, KeyChainError, MAX_FILE_BYTES, NEXT, Rotation, Statement, name_of};
use crate::keys::folder::replacing;
use crate::keys::secure_folder::{ANY_OTHER, Folder, FolderError, OTHER_WRITE, Problem};
use crate::keys::{Fingerprint, KeyError, KeyFolder, Signer};
use crate::trust::Trust;

/// The owner of a key whose predecessor has no known owner.
const OWNER: &str = "self";

/// The result of a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotated {
    /// The key that signed before.
    pub from: Fingerprint,
    /// The key that signs now.
    pub to: Fingerprint,
    /// Whether this call finished a rotation that was interrupted.
    pub resumed: bool,
}

/// A point at which a rotation can be interrupted; see the table of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrashPoint {
    Made,
    Chained,
    Trusted,
    Retired,
    PublicRemoved,
    PrivateReplaced,
    PublicWritten,
}

/// Makes a new key and puts it in the place of the signing key. When this returns, everything is durable.
pub fn rotate(folders: &Folders, ids: &dyn Ids, at: Timestamp) -> Result<Rotated, KeyChainError> {
    rotate_past(folders, ids, at, &mut |_| Ok(()))
}

/// Rotates, and calls `past` at each point where a crash could happen; an error from it interrupts the rotation.
fn rotate_past(
    folders: &Folders,
    ids: &dyn Ids,
    at: Timestamp,
    past: &mut dyn FnMut(CrashPoint) -> Result<(), KeyChainError>,
) -> Result<Rotated, KeyChainError> {
    let keys = Folder::open(&folders.0, OTHER_WRITE)?;
    if !keys.try_lock()? {
        return Err(KeyChainError::Busy { path: folders.0.clone() });
    }
    let current = KeyFolder::load(&folders.signing())?;
    let (next, resumed) = find_or_make(&folders.next(), ids)?;
    past(CrashPoint::Made)?;
    let from = if next.fingerprint() == current.fingerprint() {
        // An interrupted rotation put it there. If that could not sync it, a power failure would bring the old private key back, beside
        // the public half of this one: so it is put there again.
        let from = taken_over(folders, &next)?.from;
        replacing::remove_public(&folders.signing())?;
        replacing::replace_private(&folders.signing(), &next)?;
        from
    } else {
        hand_over(folders, &current, &next, at, past)?;
        current.fingerprint()
    };
    replacing::write_public(&folders.signing(), &next)?;
    past(CrashPoint::PublicWritten)?;
    replacing::remove_pair(&folders.next())?;
    keys.remove_folder(NEXT)?;
    Ok(Rotated { from, to: next.fingerprint(), resumed })
}

/// The key that takes over: the one that an interrupted rotation left, or a new one.
fn find_or_make(path: &Path, ids: &dyn Ids) -> Result<(Signer, bool), KeyChainError> {
    match KeyFolder::load(path) {
        Ok(next) => {
            // The process that made it may have died before it was durable.
            Folder::open(path, ANY_OTHER)?.sync()?;
            Ok((next, true))
        }
        Err(KeyError::Absent { .. }) => Ok((KeyFolder::create(path, ids)?, false)),
        Err(error) => Err(error.into()),
    }
}

/// Steps 2 to 6.
fn hand_over(
    folders: &Folders,
    current: &Signer,
    next: &Signer,
    at: Timestamp,
    past: &mut dyn FnMut(CrashPoint) -> Result<(), KeyChainError>,
) -> Result<(), KeyChainError> {
    write_step(&folders.chain(), current, next, at)?;
    past(CrashPoint::Chained)?;
    let trust = Trust::load(&folders.trusted())?;
    let owner = trust.known(&current.fingerprint()).map_or(OWNER, |known| known.owner.as_str());
    Trust::add(&folders.trusted(), &next.public(), owner, at)?;
    past(CrashPoint::Trusted)?;
    retire(&folders.retired(), current)?;
    past(CrashPoint::Retired)?;
    replacing::remove_public(&folders.signing())?;
    past(CrashPoint::PublicRemoved)?;
    replacing::replace_private(&folders.signing(), next)?;
    past(CrashPoint::PrivateReplaced)
}

fn write_step(path: &Path, current: &Signer, next: &Signer, at: Timestamp) -> Result<(), KeyChainError> {
    let folder = Folder::open_or_create(path, OTHER_WRITE)?;
    let name = name_of(&next.fingerprint());
    let refused = |why: String| KeyChainError::Refused { path: folder.path_of(&name), why };
    let text = Statement::sign(current, next, at).map_err(|error| refused(error.to_string()))?;
    match folder.create(&name, text.as_bytes(), 0o600) {
        Err(FolderError { problem: Problem::Exists, .. }) => {
            let both = Trust::of(&[current.public(), next.public()]);
            let (step, _) = super::read(&folder, &name, &both)?;
            if step.from != current.fingerprint() {
                return Err(refused("it says that the key took over from another one".to_owned()));
            }
            Ok(())
        }
        created => Ok(created?),
    }
}

/// Keeps the old private key: its owner can still prove ownership with it.
fn retire(path: &Path, current: &Signer) -> Result<(), KeyChainError> {
    let folder = Folder::open_or_create(path, ANY_OTHER)?;
    let name = format!("{}.pem", current.fingerprint());
    match folder.create(&name, current.to_pem().as_bytes(), 0o600) {
        // An interrupted rotation left it; it is about to be the only copy, so it is checked.
        Err(FolderError { problem: Problem::Exists, path }) => {
            let bytes = folder.read(&name, ANY_OTHER, MAX_FILE_BYTES)?;
            let kept = std::str::from_utf8(&bytes).ok().and_then(|pem| Signer::from_pem(pem).ok());
            if kept.is_none_or(|kept| kept.fingerprint() != current.fingerprint()) {
                return Err(KeyChainError::Refused { path, why: "it is not the key it is named after".to_owned() });
            }
            Ok(())
        }
        created => Ok(created?),
    }
}

/// The private half of a retired key, if it is kept and no other user can have read or replaced it. Nothing is signed with it: it verifies
/// the seals that it made while it was in place. A read error is returned: without the key, its seals would look forged.
pub fn retired(folders: &Folders, key: &Fingerprint) -> Result<Option<Signer>, KeyChainError> {
    let read = Folder::open(&folders.retired(), ANY_OTHER)
        .and_then(|folder| folder.read(&format!("{key}.pem"), ANY_OTHER, MAX_FILE_BYTES));
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(failure) if matches!(failure.problem, Problem::Io(_)) => return Err(failure.into()),
        Err(_) => return Ok(None),
    };
    let kept = std::str::from_utf8(&bytes).ok().and_then(|text| Signer::from_pem(text).ok());
    Ok(kept.filter(|kept| kept.fingerprint() == *key))
}

/// The step by which the key in place took over.
fn taken_over(folders: &Folders, next: &Signer) -> Result<Rotation, KeyChainError> {
    let chain = KeyChain::load(&folders.chain(), &Trust::load(&folders.trusted())?)?;
    chain.step_to(&next.fingerprint()).cloned().ok_or_else(|| KeyChainError::Refused {
        path: folders.chain().join(name_of(&next.fingerprint())),
        why: "it is missing although its key is in place".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use selvedge_model::error::Classify;

    use super::*;
    use crate::trust::Status;

    /// Generates a different key each time.
    struct Counting(std::sync::atomic::AtomicU8);

    impl Ids for Counting {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        }
    }

    fn at() -> Timestamp {
        "2026-11-15T03:28:58Z".parse().unwrap()
    }

    struct Home {
        _root: tempfile::TempDir,
        folders: Folders,
        ids: Counting,
    }

    impl Home {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let folders = Folders::below(root.path().join("keys"));
            let ids = Counting(1.into());
            let first = KeyFolder::create(&folders.signing(), &ids).unwrap();
            Trust::add(&folders.trusted(), &first.public(), "Ada", at()).unwrap();
            Self { _root: root, folders, ids }
        }

        fn current(&self) -> Signer {
            KeyFolder::load(&self.folders.signing()).unwrap()
        }

        fn trust(&self) -> Trust {
            Trust::load(&self.folders.trusted()).unwrap()
        }

        fn predecessors(&self) -> BTreeSet<Fingerprint> {
            let chain = KeyChain::load(&self.folders.chain(), &self.trust()).unwrap();
            chain.predecessors(&self.current().fingerprint())
        }

        fn rotate(&self) -> Rotated {
            rotate(&self.folders, &self.ids, at()).unwrap()
        }

        /// Rotates, interrupted at the `nth` point.
        fn interrupt(&self, nth: usize) -> Option<CrashPoint> {
            let count = Cell::new(0);
            let reached = Cell::new(None);
            let cut = rotate_past(&self.folders, &self.ids, at(), &mut |place| {
                count.set(count.get() + 1);
                if count.get() <= nth {
                    return Ok(());
                }
                reached.set(Some(place));
                Err(KeyChainError::Busy { path: "cut".into() })
            });
            assert_eq!(cut.is_err(), reached.get().is_some());
            reached.get()
        }
    }

    #[test]
    fn a_new_key_takes_over_and_the_old_one_is_kept_and_trusted() {
        let home = Home::new();
        let first = home.current();
        let Rotated { from, to, resumed } = home.rotate();
        assert_eq!((from, to, resumed), (first.fingerprint(), home.current().fingerprint(), false));
        assert_ne!(from, to);
        assert_eq!(home.predecessors(), BTreeSet::from([from]));
        let trust = home.trust();
        for key in [from, to] {
            assert_eq!((trust.status(&key), trust.known(&key).unwrap().owner.as_str()), (Some(Status::Trusted), "Ada"));
        }
        let retired = home.folders.retired().join(format!("{from}.pem"));
        assert_eq!(fs::metadata(&retired).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Signer::from_pem(&fs::read_to_string(retired).unwrap()).unwrap().fingerprint(), from);
        assert!(!home.folders.next().exists());
        assert_eq!(KeyFolder::public(&home.folders.signing()).unwrap().fingerprint(), to);
        let third = home.rotate();
        assert_eq!(third.from, to);
        assert_eq!(home.predecessors(), BTreeSet::from([from, to]));
    }

    #[test]
    fn temporary_files_of_a_killed_process_do_not_block_a_rotation() {
        let home = Home::new();
        home.interrupt(0).unwrap();
        let left = home.folders.next().join(".private_key.pem.1.0.tmp");
        fs::write(&left, "half a key").unwrap();
        assert!(home.rotate().resumed);
        assert!(!home.folders.next().exists());
    }

    #[test]
    fn a_rotation_interrupted_anywhere_leaves_a_complete_key_and_is_finished_by_the_next_call() {
        let mut seen = Vec::new();
        for nth in 0.. {
            let home = Home::new();
            let first = home.current().fingerprint();
            let Some(place) = home.interrupt(nth) else { break };
            seen.push(place);
            // In every case there is a trusted key that may continue what the first one signed.
            let current = home.current().fingerprint();
            assert!(home.trust().key(&current).is_some(), "{place:?}");
            let took_over = matches!(place, CrashPoint::PrivateReplaced | CrashPoint::PublicWritten);
            assert_eq!((current != first, home.predecessors().contains(&first)), (took_over, took_over), "{place:?}");

            let rotated = home.rotate();
            assert_eq!((rotated.from, rotated.to, rotated.resumed), (first, home.current().fingerprint(), true));
            assert_eq!(home.predecessors(), BTreeSet::from([first]), "{place:?}: one rotation, not two");
            assert_eq!(home.trust().iter().count(), 2, "{place:?}");
            assert!(!home.folders.next().exists() && KeyFolder::public(&home.folders.signing()).is_ok());
            assert_ne!(home.rotate().to, rotated.to, "further rotations work");
        }
        let all = [
            CrashPoint::Made,
            CrashPoint::Chained,
            CrashPoint::Trusted,
            CrashPoint::Retired,
            CrashPoint::PublicRemoved,
            CrashPoint::PrivateReplaced,
            CrashPoint::PublicWritten,
        ];
        assert_eq!(seen, all);
    }

    /// A power failure brought the old key back, beside the public half of the new one, if the first call could not sync the new one.
    #[test]
    fn a_key_that_an_interrupted_rotation_put_in_place_is_put_there_again() {
        let home = Home::new();
        assert_eq!(home.interrupt(5), Some(CrashPoint::PrivateReplaced));
        let private = home.folders.signing().join("private_key.pem");
        // A second link keeps the inode number from being reused.
        fs::hard_link(&private, home.folders.signing().join("kept")).unwrap();
        let before = fs::metadata(&private).unwrap().ino();
        assert!(home.rotate().resumed);
        assert_ne!(fs::metadata(&private).unwrap().ino(), before);
    }

    #[test]
    fn a_rotation_interrupted_twice_is_still_one_rotation() {
        for first_cut in 0..7 {
            for second_cut in 0..7 {
                let home = Home::new();
                let first = home.current().fingerprint();
                home.interrupt(first_cut);
                // If the first call had almost finished, the second one may reach fewer points.
                home.interrupt(second_cut);
                let rotated = home.rotate();
                assert_eq!(rotated.to, home.current().fingerprint());
                assert!(home.predecessors().contains(&first), "{first_cut} {second_cut}");
            }
        }
    }

    #[test]
    fn one_rotation_at_a_time() {
        let home = Home::new();
        let cut = rotate_past(&home.folders, &home.ids, at(), &mut |_| {
            let error = rotate(&home.folders, &home.ids, at()).unwrap_err();
            assert_eq!((error.code(), error.retryable()), ("key_chain_busy", true));
            Ok(())
        });
        cut.unwrap();
    }

    #[test]
    fn the_old_key_is_kept_if_its_retired_copy_is_damaged() {
        let home = Home::new();
        let first = home.current().fingerprint();
        home.interrupt(4);
        let retired = home.folders.retired().join(format!("{first}.pem"));
        fs::write(&retired, "gone").unwrap();
        let error = rotate(&home.folders, &home.ids, at()).unwrap_err();
        assert!(error.code() == "key_rotation_invalid" && error.to_string().contains("named after"), "{error}");
        assert_eq!(home.current().fingerprint(), first);
        fs::remove_file(&retired).unwrap();
        assert_eq!(home.rotate().from, first);
    }

    #[test]
    fn a_rotation_needs_a_key() {
        let home = Home::new();
        fs::remove_file(home.folders.signing().join("private_key.pem")).unwrap();
        assert_eq!(rotate(&home.folders, &home.ids, at()).unwrap_err().code(), "private_key_missing");
        assert!(!home.folders.chain().exists() && !home.folders.next().exists());
    }

    #[test]
    fn a_revoked_key_hands_nothing_over() {
        let home = Home::new();
        let first = home.current().fingerprint();
        Trust::revoke(&home.folders.trusted(), &first, at()).unwrap();
        let rotated = home.rotate();
        assert!(home.trust().key(&rotated.to).is_some() && home.predecessors().is_empty());
        assert_eq!(home.trust().status(&first), Some(Status::Revoked));
    }
}
