//! Leases: one holder, an epoch that only rises, and no commits by a former holder.

use std::time::{Duration, Instant};

use selvedge_model::{Batch, Classify, Kind, Part, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Acquire, Commit, Lease, Leases, Logs};
use crate::error::Error;

const AT_ONCE: Acquire = Acquire { wait: Duration::ZERO, take_over: false };
const BY_FORCE: Acquire = Acquire { wait: Duration::ZERO, take_over: true };

fn under(lease: &Lease) -> Batch {
    Batch::of(leased(lease))
}

fn leased(lease: &Lease) -> Part {
    part(&lease.thread, says("under a lease")).under(lease.epoch)
}

fn brief(thread: &ThreadId) -> Batch {
    Batch::of(part(thread, says("without one")))
}

/// A lease is acquired, renewed, released, and then acquired by another handle.
pub fn a_lease_is_acquired_renewed_and_released<H: Harness>(harness: &H) {
    let one = harness.open();
    let two = harness.open();
    let thread = create(&one, "leased");
    let first = one.acquire(&thread, AT_ONCE).unwrap();
    assert_eq!(first.thread, thread);
    one.renew(&first).unwrap();
    let answer = two.acquire(&thread, AT_ONCE);
    assert_refused!(answer, Error::LeaseHeld { holder, .. } if holder == first.owner, "a lease of another holder");
    one.release(&first).unwrap();
    assert_refused!(one.renew(&first), Error::StaleEpoch { .. }, "a released lease");
    let second = two.acquire(&thread, AT_ONCE).unwrap();
    assert_ne!(second.owner, first.owner, "each handle is an owner of its own");
    assert!(second.epoch >= first.epoch, "epochs never decrease");
    two.renew(&second).unwrap();
}

/// A heartbeat is valid until the next one and visible to other handles; a takeover names the former holder.
pub fn a_heartbeat_is_seen_by_other_processes<H: Harness>(harness: &H) {
    let old = harness.open();
    let new = harness.open();
    let thread = create(&old, "alive");
    let first = old.acquire(&thread, AT_ONCE).unwrap();
    assert_eq!(first.owner, *old.owner());
    assert_eq!((new.last_beat(old.owner()).unwrap(), first.taken_from), (None, None), "it had no holder yet");
    for at in [9_000_000, 7_000_000].map(selvedge_model::Timestamp::from_micros) {
        old.beat(at).unwrap();
        assert_eq!(new.last_beat(old.owner()).unwrap(), Some(at));
    }
    let owner = old.owner().clone();
    drop(old);
    let second = new.acquire(&thread, AT_ONCE).unwrap();
    assert_eq!(second.taken_from.as_ref(), Some(&owner), "a takeover names the former holder");
    // A handle that is closed cleanly may remove its heartbeat.
    assert!(new.last_beat(&owner).unwrap().is_none_or(|at| at == selvedge_model::Timestamp::from_micros(7_000_000)));
}

/// A commit under a lease has its epoch.
pub fn a_commit_under_a_lease_carries_its_epoch<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "carried");
    let lease = store.acquire(&thread, AT_ONCE).unwrap();
    assert_eq!(commit(&store, under(&lease)).version_of(&thread), Some(1));
    assert_eq!(commit(&store, under(&lease)).version_of(&thread), Some(2), "a lease is good for more than one commit");
    assert_eq!(store.head(&thread).unwrap().epoch, lease.epoch);
    let entries = verified(&store, &harness.trust(), &thread);
    assert_eq!(entries[1].checkpoint().unwrap().epoch, lease.epoch);
}

/// A former holder can't write any more, whatever version it expects.
pub fn a_stale_epoch_cannot_write<H: Harness>(harness: &H) {
    let old = harness.open();
    let new = harness.open();
    let thread = create(&old, "fenced");
    let stale = old.acquire(&thread, AT_ONCE).unwrap();
    commit(&old, under(&stale));
    let lease = new.acquire(&thread, BY_FORCE).unwrap();
    assert!(lease.epoch > stale.epoch, "a takeover raises the epoch");
    leaves_no_trace(&new, &[&thread], || {
        for late in [leased(&stale), part_at(&thread, 1, empty()).under(stale.epoch)] {
            let answer = old.commit(Batch::of(late));
            let expected = (stale.epoch, lease.epoch);
            assert_refused!(answer, Error::StaleEpoch { held, current, .. } if (held, current) == expected, "a stale epoch");
        }
        assert_refused!(old.renew(&stale), Error::StaleEpoch { .. }, "a lease that was taken over");
    });
    commit(&new, under(&lease));
    verified(&new, &harness.trust(), &thread);
}

/// A released lease gives no right to write, also when another handle has it now.
pub fn a_released_lease_cannot_write<H: Harness>(harness: &H) {
    let one = harness.open();
    let two = harness.open();
    let thread = create(&one, "returned");
    let lease = one.acquire(&thread, AT_ONCE).unwrap();
    one.release(&lease).unwrap();
    assert_refused!(one.commit(under(&lease)), Error::StaleEpoch { .. }, "a commit under a released lease");
    let other = two.acquire(&thread, AT_ONCE).unwrap();
    assert_refused!(one.commit(under(&lease)), Error::StaleEpoch { .. }, "a commit under another holder's lease");
    two.release(&other).unwrap();
    assert_refused!(one.commit(under(&lease)), Error::StaleEpoch { .. }, "a commit under an old lease");
    let again = one.acquire(&thread, AT_ONCE).unwrap();
    assert_refused!(two.commit(under(&other)), Error::StaleEpoch { .. }, "a commit under a released lease");
    commit(&one, under(&again));
}

/// An epoch that was never assigned gives no right to write.
pub fn an_unassigned_epoch_cannot_write<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "guessed");
    leaves_no_trace(&store, &[&thread], || {
        for epoch in [0, 1, 7, u64::MAX] {
            let guess = Batch::of(part(&thread, empty()).under(epoch));
            assert_refused!(store.commit(guess), Error::StaleEpoch { .. }, "epoch {epoch}, which was never assigned");
        }
    });
}

/// A commit without a lease is refused while the thread is leased to a live holder; a retry may help.
pub fn a_brief_commit_is_refused_while_the_thread_is_leased<H: Harness>(harness: &H) {
    let holder = harness.open();
    let other = harness.open();
    let thread = create(&holder, "busy");
    let lease = holder.acquire(&thread, AT_ONCE).unwrap();
    leaves_no_trace(&other, &[&thread], || {
        for store in [&other, &holder] {
            let Err(error) = store.commit(brief(&thread)) else { panic!("`{thread}` is leased") };
            assert_eq!((error.kind(), error.retryable()), (Kind::Denied, true), "it may be free later");
            let owner = &lease.owner;
            assert_refused!(Err::<(), _>(error), Error::LeaseHeld { holder, .. } if holder == *owner, "a brief commit");
        }
    });
    holder.release(&lease).unwrap();
    assert_eq!(commit(&other, brief(&thread)).version_of(&thread), Some(1));
}

/// A dead holder blocks no writer, and its epoch is over.
pub fn a_dead_holder_blocks_no_writer<H: Harness>(harness: &H) {
    let doomed = harness.open();
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    let leases = [doomed.acquire(&one, AT_ONCE).unwrap(), doomed.acquire(&two, AT_ONCE).unwrap()];
    commit(&doomed, under(&leases[0]));
    drop(doomed);
    commit(&store, brief(&one));
    assert!(store.head(&one).unwrap().epoch > leases[0].epoch, "a death raises the epoch");
    let lease = store.acquire(&two, AT_ONCE).unwrap();
    assert!(lease.epoch > leases[1].epoch, "a death raises the epoch");
    for late in &leases {
        assert_refused!(store.commit(under(late)), Error::StaleEpoch { .. }, "a commit under a dead holder's epoch");
    }
    verified(&store, &harness.trust(), &one);
}

/// Epochs rise with takeovers and deaths, and never decrease in the log.
pub fn epochs_rise_with_takeovers_and_deaths<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "rising");
    let mut last = store.acquire(&thread, AT_ONCE).unwrap();
    commit(&store, under(&last));
    for round in 0..4 {
        let next_store = harness.open();
        let next = next_store.acquire(&thread, if round % 2 == 0 { BY_FORCE } else { AT_ONCE }).unwrap();
        assert!(next.epoch > last.epoch, "round {round}: {} after {}", next.epoch, last.epoch);
        commit(&next_store, under(&next));
        last = next;
        // The handle dies here, and with it the lease.
    }
    commit(&store, brief(&thread));
    assert!(store.head(&thread).unwrap().epoch > last.epoch);
    let entries = verified(&store, &harness.trust(), &thread);
    assert!(entries.iter().map(|entry| entry.head.epoch).is_sorted(), "the log's epochs never decrease");
}

/// The leases of dead holders are listed, and only those.
pub fn leases_of_dead_holders_are_listed<H: Harness>(harness: &H) {
    let doomed = harness.open();
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    let three = create(&store, "three");
    let left = doomed.acquire(&one, AT_ONCE).unwrap();
    let returned = doomed.acquire(&two, AT_ONCE).unwrap();
    let _alive = store.acquire(&three, AT_ONCE).unwrap();
    assert_eq!(store.expired().unwrap(), [], "everybody lives");
    doomed.release(&returned).unwrap();
    drop(doomed);
    assert_eq!(store.expired().unwrap(), [left], "one died holding one lease");
    let taken = store.acquire(&one, AT_ONCE).unwrap();
    assert_eq!(store.expired().unwrap(), [], "it has a live holder again");
    store.release(&taken).unwrap();
    assert_eq!(store.expired().unwrap(), []);
}

/// The holder of a lease is visible to every handle, as long as it is alive and holds it.
pub fn a_live_lease_holder_is_named<H: Harness>(harness: &H) {
    let doomed = harness.open();
    let store = harness.open();
    let thread = create(&store, "named");
    assert_eq!(store.holder(&thread).unwrap(), None, "it has no holder");
    let lease = doomed.acquire(&thread, AT_ONCE).unwrap();
    for handle in [&doomed, &store] {
        assert_eq!(Leases::holder(handle, &thread).unwrap().as_ref(), Some(&lease.owner));
    }
    drop(doomed);
    assert_eq!(store.holder(&thread).unwrap(), None, "a dead holder holds nothing");
    let lease = store.acquire(&thread, AT_ONCE).unwrap();
    assert_eq!(store.holder(&thread).unwrap(), Some(lease.owner.clone()));
    store.release(&lease).unwrap();
    assert_eq!(store.holder(&thread).unwrap(), None, "it was released");
    assert_refused!(store.holder(&id("missing")), Error::NoThread(_), "a missing thread");
}

/// A batch needs the right to write to each of its threads.
pub fn a_batch_needs_every_right<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    let mine = store.acquire(&one, AT_ONCE).unwrap();
    let theirs = other.acquire(&two, AT_ONCE).unwrap();
    leaves_no_trace(&store, &[&one, &two], || {
        let answer = store.commit(batch([leased(&mine), part(&two, empty())]));
        assert_refused!(answer, Error::LeaseHeld { thread, .. } if thread == two, "a batch over a thread leased to another");
        let answer = store.commit(batch([part(&two, empty()).under(theirs.epoch + 1), leased(&mine)]));
        assert_refused!(answer, Error::StaleEpoch { thread, .. } if thread == two, "a batch under a wrong epoch");
    });
    other.release(&theirs).unwrap();
    commit(&store, batch([leased(&mine), part(&two, empty())]));
}

/// A former holder that releases its lease takes nothing from the new holder.
pub fn releasing_a_stale_lease_releases_nothing<H: Harness>(harness: &H) {
    let old = harness.open();
    let new = harness.open();
    let third = harness.open();
    let thread = create(&old, "robbed");
    let stale = old.acquire(&thread, AT_ONCE).unwrap();
    let lease = new.acquire(&thread, BY_FORCE).unwrap();
    old.release(&stale).unwrap();
    new.renew(&lease).unwrap();
    assert_refused!(third.acquire(&thread, AT_ONCE), Error::LeaseHeld { .. }, "a lease that is still held");
    commit(&new, under(&lease));
}

/// A lease that is released during a takeover belongs to the new holder afterwards.
pub fn release_and_takeover_at_once_leave_the_new_holder<H: Harness>(harness: &H) {
    let old = harness.open();
    let new = harness.open();
    let thread = create(&old, "crossed");
    // The race window of a fast store is narrow, so it is tried more often.
    let mut round = 0;
    let began = Instant::now();
    while round < 20 || began.elapsed() < Duration::from_millis(500) {
        round += 1;
        let given = old.acquire(&thread, AT_ONCE).unwrap();
        let taken = at_once(2, |worker| match worker {
            0 => old.release(&given).map(|()| None),
            _ => new.acquire(&thread, BY_FORCE).map(Some),
        });
        let lease = taken.into_iter().find_map(|taken| taken.unwrap()).unwrap();
        new.renew(&lease).unwrap_or_else(|error| panic!("round {round}: {error}"));
        new.release(&lease).unwrap();
    }
}

/// A missing thread has no lease.
pub fn a_missing_thread_has_no_lease<H: Harness>(harness: &H) {
    let store = harness.open();
    let gone = create(&store, "gone");
    store.delete(&gone).unwrap();
    for how in [AT_ONCE, BY_FORCE] {
        assert_refused!(store.acquire(&id("missing"), how), Error::NoThread(_), "a lease on a missing thread");
        assert_refused!(store.acquire(&gone, how), Error::Deleted(_), "a lease on a deleted thread");
    }
}
