//! Threads that are created and appended to.

use std::fs::OpenOptions;
use std::time::Duration;

use selvedge_model::{Batch, ThreadId};
use selvedge_store::conformance::support::{batch as of, birth, id, new_thread, part, says};
use selvedge_store::{Acquire, Leases, Logs};

use crate::LabResult;
use crate::fact::{Fact, FactRecorder};
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

pub(super) fn empty(_: &Home) -> LabResult {
    Ok(())
}

/// Two threads of three versions, synced and closed.
pub(super) fn two_threads(home: &Home) -> LabResult {
    let store = home.open()?;
    let mut recorder = FactRecorder::default();
    for (name, thread) in [("first", one()), ("second", two())] {
        recorder.commit(&store, name, Batch::of(birth(&thread, new_thread())))?;
        recorder.commit(&store, &format!("{name}-1"), Batch::of(part(&thread, says(&long("early ")))))?;
        recorder.commit(&store, &format!("{name}-2"), Batch::of(part(&thread, says("and more"))))?;
    }
    Ok(store.close()?)
}

pub(super) fn create(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    recorder.commit(&store, "make-1", Batch::of(birth(&one(), new_thread())))?;
    recorder.commit(&store, "make-2", of([birth(&two(), new_thread()), part(&one(), says(&long("hello ")))]))?;
    recorder.attempt(|| store.head(&one()))?;
    recorder.close(store)
}

pub(super) fn append(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    for (number, thread) in [one(), two(), one()].iter().enumerate() {
        recorder.commit(&store, &format!("append-{number}"), Batch::of(part(thread, says(&long("more and ")))))?;
    }
    recorder.close(store)
}

pub(super) fn batch(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    for number in 0..3 {
        let parts = [part(&one(), says(&long("both "))), part(&two(), says("of us"))];
        recorder.commit(&store, &format!("batch-{number}"), of(parts))?;
    }
    recorder.close(store)
}

/// Two threads whose newest versions are only in the redo: one file is truncated in the middle, the other is complete.
pub(super) fn undrained(home: &Home) -> LabResult {
    two_threads(home)?;
    let path = home.threads().join(one().folder()).join("transcript.jsonl");
    let before = std::fs::metadata(&path)?.len();
    let store = home.open()?;
    let mut recorder = FactRecorder::default();
    recorder.commit(&store, "late-1", of([part(&one(), says(&long("late "))), part(&two(), says("too"))]))?;
    recorder.commit(&store, "late-2", Batch::of(part(&one(), says("later"))))?;
    // Dropped without closing, as if the process had died.
    drop(store);
    OpenOptions::new().write(true).open(&path)?.set_len(before + 700)?;
    Ok(())
}

pub(super) fn drain(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    for thread in [one(), two()] {
        let version = recorder.attempt(|| store.head(&thread))?.version;
        recorder.record(Fact::Reached { thread, version })?;
    }
    recorder.commit(&store, "drained", Batch::of(part(&one(), says("go on"))))?;
    recorder.close(store)
}

/// Enough bytes that the worker does not wait for more, and some time for it to sync them while another thread is written.
pub(super) fn sync(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    let much = "much ".repeat(53_000);
    recorder.commit(&store, "much", Batch::of(part(&one(), says(&much))))?;
    std::thread::sleep(Duration::from_millis(15));
    recorder.commit(&store, "meanwhile", Batch::of(part(&two(), says("meanwhile"))))?;
    recorder.close(store)
}

/// A lease that is acquired, used, taken over by force and released.
pub(super) fn lease(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    let other = recorder.attempt(|| home.open())?;
    let held = recorder.attempt(|| store.acquire(&one(), Acquire::default()))?;
    recorder.commit(&store, "leased-1", Batch::of(part(&one(), says("mine")).under(held.epoch)))?;
    let how = Acquire { take_over: true, ..Acquire::default() };
    let taken = recorder.attempt(|| other.acquire(&one(), how))?;
    recorder.commit(&other, "leased-2", Batch::of(part(&one(), says("ours")).under(taken.epoch)))?;
    recorder.attempt(|| other.release(&taken))?;
    recorder.close(other)?;
    recorder.close(store)
}
