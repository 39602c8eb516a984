//! Taking a new key: made, vouched for by the old one, trusted, and put in its place.
//!
//! | after a crash behind this step | what is true | calling [`rotate`] again |
//! |---|---|---|
//! | 1. the new key is made in `next/` | the old key signs | goes on with that key |
//! | 2. the step is in `chain/` | same; the new key could go on, nobody uses it | same |
//! | 3. the new key is trusted | same | same |
//! | 4. the old private key is copied to `retired/` | same | same |
//! | 5. the old public file is removed | same; a missing public file is no damage | same |
//! | 6. the new private key is in place | the new key signs, and goes on with what the old one signed | finishes |
//! | 7. the new public file is in place | same | finishes |
//! | 8. `next/` is removed | same; the rotation is over | rotates once more |
//!
//! There is a whole private key in place at every moment, and what was signed stays verifiable throughout: nobody's trust is
//! taken away. One rotation at a time: the folder of the keys is locked meanwhile.

use std::path::Path;

use selvedge_model::outside::Ids;
use selvedge_model::time::Timestamp;

use super::{Folders, KeyChain, KeyChainError, MAX_FILE_BYTES, NEXT, Statement, Step, name_of};
use crate::keys::folder::replacing;
use crate::keys::guarded::{ANY_OTHER, Failure, Folder, OTHER_WRITE, Trouble};
use crate::keys::{Fingerprint, KeyError, KeyFolder, Signer};
use crate::trust::Trust;

/// The name under which a key is trusted whose owner nobody named.
const OWNER: &str = "self";

/// What a rotation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotated {
    /// The key that signed before.
    pub from: Fingerprint,
    /// The key that signs now.
    pub to: Fingerprint,
    /// Whether an earlier call had been cut short, and this one finished it.
    pub resumed: bool,
}

/// A place where a rotation can be cut; see the table of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Made,
    Chained,
    Trusted,
    Retired,
    PublicRemoved,
    PrivateReplaced,
    PublicWritten,
}

/// Makes a new key and puts it in the place of the one that signs. When this returns, everything is on the disk.
pub fn rotate(folders: &Folders, ids: &dyn Ids, at: Timestamp) -> Result<Rotated, KeyChainError> {
    rotate_past(folders, ids, at, &mut |_| Ok(()))
}

/// Rotates, and asks at each place where a crash could come whether to go on.
fn rotate_past(
    folders: &Folders,
    ids: &dyn Ids,
    at: Timestamp,
    past: &mut dyn FnMut(Cut) -> Result<(), KeyChainError>,
) -> Result<Rotated, KeyChainError> {
    let keys = Folder::open(&folders.0, OTHER_WRITE)?;
    if !keys.try_lock()? {
        return Err(KeyChainError::Busy { path: folders.0.clone() });
    }
    let current = KeyFolder::load(&folders.signing())?;
    let (next, resumed) = find_or_make(&folders.next(), ids)?;
    past(Cut::Made)?;
    let from = if next.fingerprint() == current.fingerprint() {
        // It was put there by a rotation that was cut short. If that could not sync it, a power cut would bring the old one back, beside the
        // public half of this one: it is put there again.
        let from = taken_over(folders, &next)?.from;
        replacing::remove_public(&folders.signing())?;
        replacing::replace_private(&folders.signing(), &next)?;
        from
    } else {
        hand_over(folders, &current, &next, at, past)?;
        current.fingerprint()
    };
    replacing::write_public(&folders.signing(), &next)?;
    past(Cut::PublicWritten)?;
    replacing::remove_pair(&folders.next())?;
    keys.remove_folder(NEXT)?;
    Ok(Rotated { from, to: next.fingerprint(), resumed })
}

/// The key that is to take over: the one that a rotation left which was cut short, or a new one.
fn find_or_make(path: &Path, ids: &dyn Ids) -> Result<(Signer, bool), KeyChainError> {
    match KeyFolder::load(path) {
        Ok(next) => {
            // Whoever made it may have died before it was durable.
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
    past: &mut dyn FnMut(Cut) -> Result<(), KeyChainError>,
) -> Result<(), KeyChainError> {
    write_step(&folders.chain(), current, next, at)?;
    past(Cut::Chained)?;
    let trust = Trust::load(&folders.trusted())?;
    let owner = trust.known(&current.fingerprint()).map_or(OWNER, |known| known.owner.as_str());
    Trust::add(&folders.trusted(), &next.public(), owner, at)?;
    past(Cut::Trusted)?;
    retire(&folders.retired(), current)?;
    past(Cut::Retired)?;
    replacing::remove_public(&folders.signing())?;
    past(Cut::PublicRemoved)?;
    replacing::replace_private(&folders.signing(), next)?;
    past(Cut::PrivateReplaced)
}

fn write_step(path: &Path, current: &Signer, next: &Signer, at: Timestamp) -> Result<(), KeyChainError> {
    let folder = Folder::open_or_create(path, OTHER_WRITE)?;
    let name = name_of(&next.fingerprint());
    let refused = |why: String| KeyChainError::Refused { path: folder.path_of(&name), why };
    let text = Statement::sign(current, next, at).map_err(|error| refused(error.to_string()))?;
    match folder.create(&name, text.as_bytes(), 0o600) {
        Err(Failure { trouble: Trouble::Exists, .. }) => {
            let both = Trust::of(&[current.public(), next.public()]);
            let (step, _) = super::read(&folder, &name, &both)?;
            match step.from == current.fingerprint() {
                true => Ok(()),
                false => Err(refused("it says that the key took over from another one".to_owned())),
            }
        }
        created => Ok(created?),
    }
}

/// Keeps the old private key: whoever has it can still prove that it was theirs.
fn retire(path: &Path, current: &Signer) -> Result<(), KeyChainError> {
    let folder = Folder::open_or_create(path, ANY_OTHER)?;
    let name = format!("{}.pem", current.fingerprint());
    match folder.create(&name, current.to_pem().as_bytes(), 0o600) {
        // A rotation that was cut short left it; but it is about to be the only copy, so it is looked at.
        Err(Failure { trouble: Trouble::Exists, path }) => {
            let bytes = folder.read(&name, ANY_OTHER, MAX_FILE_BYTES)?;
            let kept = std::str::from_utf8(&bytes).ok().and_then(|pem| Signer::from_pem(pem).ok());
            match kept.is_some_and(|kept| kept.fingerprint() == current.fingerprint()) {
                true => Ok(()),
                false => Err(KeyChainError::Refused { path, why: "it is not the key it is named after".to_owned() }),
            }
        }
        created => Ok(created?),
    }
}

/// The private half of a key that signs no more, if it is kept and nobody else can have read or replaced it. Nothing is signed with it: it
/// shows what was marked with it while it was in place.
pub fn retired(folders: &Folders, key: &Fingerprint) -> Option<Signer> {
    let folder = Folder::open(&folders.retired(), ANY_OTHER).ok()?;
    let bytes = folder.read(&format!("{key}.pem"), ANY_OTHER, MAX_FILE_BYTES).ok()?;
    let kept = Signer::from_pem(std::str::from_utf8(&bytes).ok()?).ok()?;
    Some(kept).filter(|kept| kept.fingerprint() == *key)
}

/// How the key took over that is in place already.
fn taken_over(folders: &Folders, next: &Signer) -> Result<Step, KeyChainError> {
    let chain = KeyChain::load(&folders.chain(), &Trust::load(&folders.trusted())?)?;
    chain.step_to(&next.fingerprint()).cloned().ok_or_else(|| KeyChainError::Refused {
        path: folders.chain().join(name_of(&next.fingerprint())),
        why: "it is missing, although its key is in place".to_owned(),
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

    /// Every key is another one.
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

        /// Rotates and is cut at the `nth` place.
        fn cut(&self, nth: usize) -> Option<Cut> {
            let (count, reached) = (Cell::new(0), Cell::new(None));
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
    fn what_a_killed_process_left_half_written_is_in_nobodys_way() {
        let home = Home::new();
        home.cut(0).unwrap();
        let left = home.folders.next().join(".private_key.pem.1.0.tmp");
        fs::write(&left, "half a key").unwrap();
        assert!(home.rotate().resumed);
        assert!(!home.folders.next().exists());
    }

    #[test]
    fn a_rotation_cut_anywhere_leaves_a_whole_key_and_is_finished_by_the_next_call() {
        let mut seen = Vec::new();
        for nth in 0.. {
            let home = Home::new();
            let first = home.current().fingerprint();
            let Some(place) = home.cut(nth) else { break };
            seen.push(place);
            // Whatever happened: there is a key, it is trusted, and it may go on with what the first one signed.
            let current = home.current().fingerprint();
            assert!(home.trust().key(&current).is_some(), "{place:?}");
            let took_over = matches!(place, Cut::PrivateReplaced | Cut::PublicWritten);
            assert_eq!((current != first, home.predecessors().contains(&first)), (took_over, took_over), "{place:?}");

            let rotated = home.rotate();
            assert_eq!((rotated.from, rotated.to, rotated.resumed), (first, home.current().fingerprint(), true));
            assert_eq!(home.predecessors(), BTreeSet::from([first]), "{place:?}: one rotation, not two");
            assert_eq!(home.trust().iter().count(), 2, "{place:?}");
            assert!(!home.folders.next().exists() && KeyFolder::public(&home.folders.signing()).is_ok());
            assert_ne!(home.rotate().to, rotated.to, "and then keys rotate as ever");
        }
        let all = [
            Cut::Made,
            Cut::Chained,
            Cut::Trusted,
            Cut::Retired,
            Cut::PublicRemoved,
            Cut::PrivateReplaced,
            Cut::PublicWritten,
        ];
        assert_eq!(seen, all);
    }

    /// A power cut brought the old key back, beside the public half of the new one, if the first call could not sync the new one.
    #[test]
    fn what_a_rotation_put_in_place_that_was_cut_short_is_put_there_again() {
        let home = Home::new();
        assert_eq!(home.cut(5), Some(Cut::PrivateReplaced));
        let private = home.folders.signing().join("private_key.pem");
        // Another name keeps its number from being used again.
        fs::hard_link(&private, home.folders.signing().join("kept")).unwrap();
        let before = fs::metadata(&private).unwrap().ino();
        assert!(home.rotate().resumed);
        assert_ne!(fs::metadata(&private).unwrap().ino(), before);
    }

    #[test]
    fn a_rotation_cut_twice_is_still_one() {
        for first_cut in 0..7 {
            for second_cut in 0..7 {
                let home = Home::new();
                let first = home.current().fingerprint();
                home.cut(first_cut);
                // A second call that is cut after the first had almost finished may reach fewer places.
                home.cut(second_cut);
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
    fn the_old_key_is_not_given_up_for_a_copy_that_is_none() {
        let home = Home::new();
        let first = home.current().fingerprint();
        home.cut(4);
        let retired = home.folders.retired().join(format!("{first}.pem"));
        fs::write(&retired, "gone").unwrap();
        let error = rotate(&home.folders, &home.ids, at()).unwrap_err();
        assert!(error.code() == "key_chain_refused" && error.to_string().contains("named after"), "{error}");
        assert_eq!(home.current().fingerprint(), first);
        fs::remove_file(&retired).unwrap();
        assert_eq!(home.rotate().from, first);
    }

    #[test]
    fn without_a_key_there_is_nothing_to_rotate() {
        let home = Home::new();
        fs::remove_file(home.folders.signing().join("private_key.pem")).unwrap();
        assert_eq!(rotate(&home.folders, &home.ids, at()).unwrap_err().code(), "key_lost");
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
