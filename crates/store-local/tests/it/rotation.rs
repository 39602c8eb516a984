//! Key rotation: threads continue with the new key, the log records it, and the old key can't sign any more.

use std::collections::BTreeSet;
use std::fs;

use selvedge_log::{Signer, Trust};
use selvedge_model::error::Classify;
use selvedge_model::event::KeyRotated;
use selvedge_model::{Batch, Event, Expect, Part, ThreadId};
use selvedge_store::{Commit, Logs};
use selvedge_store_local::system::SystemIds;
use selvedge_store_local::{Access, LocalStore};

use crate::support::{Home, says, thread_with};

/// Keys that succeeded each other, in order.
struct Keys(Vec<String>);

impl Keys {
    fn of(home: &Home, more: usize) -> Self {
        let new = (0..more).map(|_| Signer::generate(&SystemIds).to_pem().to_string());
        Self(std::iter::once(home.pem().to_owned()).chain(new).collect())
    }

    fn bare(&self, index: usize) -> Signer {
        Signer::from_pem(&self.0[index]).unwrap()
    }

    /// The key with all its predecessors.
    fn signer(&self, index: usize) -> Signer {
        let before: BTreeSet<_> = (0..index).map(|before| self.bare(before).fingerprint()).collect();
        let former = (0..index).map(|before| self.bare(before).seal_key()).collect();
        self.bare(index).succeeding(before).opening(former)
    }

    fn trust(&self) -> Trust {
        let publics: Vec<_> = (0..self.0.len()).map(|index| self.bare(index).public()).collect();
        Trust::of(&publics)
    }

    fn open(&self, home: &Home, index: usize) -> LocalStore {
        let mut options = home.options(Access::ReadWrite);
        options.signer = Some(self.signer(index));
        options.trust = self.trust();
        LocalStore::open(options).unwrap()
    }
}

fn say(store: &LocalStore, thread: &ThreadId, text: &str) -> selvedge_store::Result<u64> {
    let committed = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, says(text))))?;
    Ok(committed.version_of(thread).unwrap())
}

#[test]
fn a_successor_continues_and_the_log_records_the_rotation() {
    let home = Home::new();
    let keys = Keys::of(&home, 2);
    let store = home.open();
    let busy = thread_with(&store, "busy", &["one"]);
    let idle = thread_with(&store, "idle", &["one"]);
    store.close().unwrap();

    let store = keys.open(&home, 1);
    assert_eq!(say(&store, &busy, "two").unwrap(), 2);
    assert_eq!(say(&store, &busy, "three").unwrap(), 3);
    store.close().unwrap();
    // The third key meets one thread of the second and one of the first.
    let store = keys.open(&home, 2);
    assert_eq!(say(&store, &busy, "four").unwrap(), 4);
    let [first, second, third] = [0, 1, 2].map(|index| keys.bare(index).fingerprint());
    let verdict = store.verify(&busy, &mut |_| {}).unwrap();
    assert_eq!(
        (verdict.judgement.unchanged_up_to, verdict.signers),
        (Some(4), vec![(first, 2), (second, 2), (third, 1)])
    );
    assert_eq!(store.verify(&idle, &mut |_| {}).unwrap().signers, [(first, 2)], "an idle thread is not changed");
    assert_eq!(say(&store, &idle, "two").unwrap(), 2);
    let mut rotations = Vec::new();
    for thread in [&busy, &idle] {
        let verdict = store.verify(thread, &mut |entry| {
            let leads = entry.lines.iter().enumerate().filter_map(|(place, line)| match &line.event {
                Event::KeyRotated(KeyRotated { from, to }) => Some((entry.head.version, place, *from, *to)),
                _ => None,
            });
            rotations.extend(leads);
        });
        assert!(verdict.is_ok());
    }
    assert_eq!(rotations, [(2, 0, first, second), (4, 0, second, third), (2, 0, first, third)]);
    store.close().unwrap();
}

#[test]
fn a_holder_of_the_old_key_gets_an_error_and_never_signs_after_the_new_one() {
    let home = Home::new();
    let keys = Keys::of(&home, 1);
    let old = home.open();
    let taken = thread_with(&old, "taken", &["one"]);
    let free = thread_with(&old, "free", &["one"]);
    let new = keys.open(&home, 1);
    say(&new, &taken, "two").unwrap();
    // The old process does not know the new key; the error names another key, not damage.
    for _ in 0..2 {
        let refused = say(&old, &taken, "three").unwrap_err();
        assert_eq!(refused.code(), "row_unsealed", "{refused}");
        assert!(refused.hint().unwrap().contains("rotated"), "{:?}", refused.hint());
    }
    assert_eq!(say(&old, &free, "two").unwrap(), 2, "a thread that the new key has not signed belongs to the old one");
    assert_eq!(say(&new, &free, "three").unwrap(), 3);
    assert_eq!(say(&old, &free, "four").unwrap_err().code(), "row_unsealed");
    assert_eq!(say(&new, &taken, "three").unwrap(), 3);
    old.close().unwrap();
    for thread in [&taken, &free] {
        assert_eq!(new.verify(thread, &mut |_| {}).unwrap().judgement.unchanged_up_to, Some(3));
    }
    new.close().unwrap();
}

#[test]
fn a_trusted_key_that_is_no_successor_is_refused() {
    let home = Home::new();
    let keys = Keys::of(&home, 1);
    let store = home.open();
    let thread = thread_with(&store, "scribe", &["one"]);
    store.close().unwrap();
    let mut options = home.options(Access::ReadWrite);
    options.signer = Some(keys.bare(1));
    options.trust = keys.trust();
    let store = LocalStore::open(options).unwrap();
    assert_eq!(say(&store, &thread, "two").unwrap_err().code(), "row_unsealed");
    store.close().unwrap();
    assert_eq!(home.open().head(&thread).unwrap().version, 1);
}

#[test]
fn continuing_after_a_rotation_verifies_the_log_again() {
    let home = Home::new();
    let keys = Keys::of(&home, 1);
    let store = home.open();
    let thread = thread_with(&store, "scribe", &["one", "two"]);
    store.close().unwrap();
    // The saved hash was sealed with the old key and is not used with the new one, so the file is read.
    let path = home.transcript(&thread);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("two", "owt")).unwrap();
    let store = keys.open(&home, 1);
    assert_eq!(say(&store, &thread, "three").unwrap_err().code(), "log_damaged");
}
