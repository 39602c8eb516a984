//! Threads that are made and grow.

use std::fs::OpenOptions;
use std::time::Duration;

use selvedge_model::{Batch, ThreadId};
use selvedge_store::conformance::support::{batch as of, birth, id, new_thread, part, says};
use selvedge_store::{Acquire, Leases, Logs};

use crate::Tried;
use crate::fact::{Fact, Teller};
use crate::home::Home;

/// Longer than a sector and not a multiple of one.
pub(super) fn long(text: &str) -> String {
    text.repeat(1 + 1300 / text.len())
}

pub(super) fn one() -> ThreadId {
    id("one-0123456789ab")
}

pub(super) fn two() -> ThreadId {
    id("two-0123456789ab")
}

pub(super) fn empty(_: &Home) -> Tried {
    Ok(())
}

/// Two threads of three versions, everything synced and closed.
pub(super) fn two_threads(home: &Home) -> Tried {
    let store = home.open()?;
    let mut teller = Teller::default();
    for (name, thread) in [("first", one()), ("second", two())] {
        teller.commit(&store, name, Batch::of(birth(&thread, new_thread())))?;
        teller.commit(&store, &format!("{name}-1"), Batch::of(part(&thread, says(&long("early ")))))?;
        teller.commit(&store, &format!("{name}-2"), Batch::of(part(&thread, says("and more"))))?;
    }
    Ok(store.close()?)
}

pub(super) fn create(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    teller.commit(&store, "make-1", Batch::of(birth(&one(), new_thread())))?;
    teller.commit(&store, "make-2", of([birth(&two(), new_thread()), part(&one(), says(&long("hello ")))]))?;
    teller.attempt(|| store.head(&one()))?;
    teller.close(store)
}

pub(super) fn append(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    for (number, thread) in [one(), two(), one()].iter().enumerate() {
        teller.commit(&store, &format!("append-{number}"), Batch::of(part(thread, says(&long("more and ")))))?;
    }
    teller.close(store)
}

pub(super) fn batch(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    for number in 0..3 {
        let parts = [part(&one(), says(&long("both "))), part(&two(), says("of us"))];
        teller.commit(&store, &format!("batch-{number}"), of(parts))?;
    }
    teller.close(store)
}

/// Two threads whose newest versions are only in the redo: one file is cut in the middle, of the other nothing is missing.
pub(super) fn undrained(home: &Home) -> Tried {
    two_threads(home)?;
    let path = home.threads().join(one().folder()).join("transcript.jsonl");
    let before = std::fs::metadata(&path)?.len();
    let store = home.open()?;
    let mut teller = Teller::default();
    teller.commit(&store, "late-1", of([part(&one(), says(&long("late "))), part(&two(), says("too"))]))?;
    teller.commit(&store, "late-2", Batch::of(part(&one(), says("later"))))?;
    // Dropped, not closed: as if the process had died.
    drop(store);
    OpenOptions::new().write(true).open(&path)?.set_len(before + 700)?;
    Ok(())
}

pub(super) fn drain(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    for thread in [one(), two()] {
        let version = teller.attempt(|| store.head(&thread))?.version;
        teller.tell(Fact::Reached { thread, version })?;
    }
    teller.commit(&store, "drained", Batch::of(part(&one(), says("go on"))))?;
    teller.close(store)
}

/// Enough bytes that the worker does not wait for more, and a moment for it to sync them while others are written.
pub(super) fn sync(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    let much = "much ".repeat(53_000);
    teller.commit(&store, "much", Batch::of(part(&one(), says(&much))))?;
    std::thread::sleep(Duration::from_millis(15));
    teller.commit(&store, "meanwhile", Batch::of(part(&two(), says("meanwhile"))))?;
    teller.close(store)
}

/// A lease that is taken, written under, taken over by force and given back.
pub(super) fn lease(home: &Home, teller: &mut Teller) -> Tried {
    let (store, other) = (teller.attempt(|| home.open())?, teller.attempt(|| home.open())?);
    let held = teller.attempt(|| store.acquire(&one(), Acquire::default()))?;
    teller.commit(&store, "leased-1", Batch::of(part(&one(), says("mine")).under(held.epoch)))?;
    let how = Acquire { take_over: true, ..Acquire::default() };
    let taken = teller.attempt(|| other.acquire(&one(), how))?;
    teller.commit(&other, "leased-2", Batch::of(part(&one(), says("ours")).under(taken.epoch)))?;
    teller.attempt(|| other.release(&taken))?;
    teller.close(other)?;
    teller.close(store)
}
