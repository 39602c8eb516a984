//! Waiting for a lease: in order, bounded, and with the holder in the error.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::Harness;
use super::support::*;
use crate::contract::{Acquire, Feed, Leases};
use crate::error::Error;

const AT_ONCE: Acquire = Acquire { wait: Duration::ZERO, take_over: false };
const BY_FORCE: Acquire = Acquire { wait: Duration::ZERO, take_over: true };
const PATIENT: Acquire = Acquire { wait: TIMEOUT, take_over: false };

/// Time enough for another OS thread to enter the queue.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Waiting for a lease ends when the time is up, and the error has the holder.
pub fn waiting_is_bounded_and_names_the_holder<H: Harness>(harness: &H) {
    let holder = harness.open();
    let other = harness.open();
    let thread = create(&holder, "held");
    let lease = holder.acquire(&thread, AT_ONCE).unwrap();
    for store in [&other, &holder] {
        let wait = Duration::from_millis(150);
        let began = Instant::now();
        let answer = store.acquire(&thread, Acquire { wait, take_over: false });
        let waited = began.elapsed();
        assert_refused!(answer, Error::LeaseHeld { holder, .. } if holder == lease.owner, "a lease that stays held");
        assert!(waited >= wait && waited < TIMEOUT, "it waited {waited:?} of {wait:?}");
    }
    holder.renew(&lease).unwrap();
}

/// A caller that does not wait is answered at once.
pub fn a_caller_that_does_not_wait_is_answered_at_once<H: Harness>(harness: &H) {
    let holder = harness.open();
    let other = harness.open();
    let thread = create(&holder, "held");
    let _lease = holder.acquire(&thread, AT_ONCE).unwrap();
    let began = Instant::now();
    assert_refused!(other.acquire(&thread, AT_ONCE), Error::LeaseHeld { .. }, "a lease that is held");
    assert!(began.elapsed() < TIMEOUT / 4, "it waited {:?}", began.elapsed());
}

/// A released lease goes to a waiter, in this process or another.
pub fn a_released_lease_goes_to_a_waiter<H: Harness>(harness: &H) {
    let holder = harness.open();
    let other = harness.open();
    let thread = create(&holder, "passed");
    for waiter in [&other, &holder] {
        let lease = holder.acquire(&thread, AT_ONCE).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.acquire(&thread, PATIENT));
            thread::sleep(A_MOMENT);
            let began = Instant::now();
            holder.release(&lease).unwrap();
            let next = waiting.join().unwrap().unwrap_or_else(|error| panic!("it was released: {error}"));
            assert!(began.elapsed() < TIMEOUT / 2, "it took {:?}", began.elapsed());
            waiter.release(&next).unwrap();
        });
    }
}

/// The lease of a dead holder goes to a waiter.
pub fn a_dead_holders_lease_goes_to_a_waiter<H: Harness>(harness: &H) {
    let doomed = harness.open();
    let other = harness.open();
    let thread = create(&other, "inherited");
    let lost = doomed.acquire(&thread, AT_ONCE).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.acquire(&thread, PATIENT));
        thread::sleep(A_MOMENT);
        drop(doomed);
        let next = waiting.join().unwrap().unwrap_or_else(|error| panic!("its holder is dead: {error}"));
        assert!(next.epoch > lost.epoch, "a death raises the epoch");
    });
}

/// Waiters of one process are served in the order of arrival.
pub fn waiters_of_one_process_are_served_in_order<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "queued");
    for holder in [&store, &other] {
        let held = holder.acquire(&thread, AT_ONCE).unwrap();
        let served = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for number in 0..5 {
                let store = &store;
                let thread = &thread;
                let served = &served;
                let (comes, came) = mpsc::channel();
                scope.spawn(move || {
                    comes.send(()).unwrap();
                    let lease = store.acquire(thread, PATIENT).unwrap_or_else(|error| panic!("{number}: {error}"));
                    served.lock().unwrap().push(number);
                    store.release(&lease).unwrap();
                });
                // However late it is scheduled, it is in the queue a moment after it arrived.
                came.recv().unwrap();
                thread::sleep(A_MOMENT);
            }
            holder.release(&held).unwrap();
        });
        assert_eq!(served.into_inner().unwrap(), [0, 1, 2, 3, 4], "first come, first served");
    }
}

/// A waiter that gives up blocks no other.
pub fn a_waiter_that_gives_up_blocks_no_other<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "abandoned");
    let held = store.acquire(&thread, AT_ONCE).unwrap();
    let brief = Acquire { wait: A_MOMENT, take_over: false };
    thread::scope(|scope| {
        let gives_up = scope.spawn(|| store.acquire(&thread, brief));
        let waits = scope.spawn(|| store.acquire(&thread, PATIENT));
        assert_refused!(gives_up.join().unwrap(), Error::LeaseHeld { .. }, "a lease that stays held");
        store.release(&held).unwrap();
        let next = waits.join().unwrap().unwrap_or_else(|error| panic!("it was released: {error}"));
        store.release(&next).unwrap();
    });
    store.acquire(&thread, AT_ONCE).unwrap_or_else(|error| panic!("it is free: {error}"));
}

/// Waiters for different threads do not block each other.
pub fn different_threads_are_leased_in_parallel<H: Harness>(harness: &H) {
    let store = harness.open();
    let threads: Vec<_> = (0..10).map(|number| create(&store, &format!("side-{number}"))).collect();
    let leases: Vec<_> = threads.iter().map(|thread| store.acquire(thread, AT_ONCE).unwrap()).collect();
    for lease in leases.iter().rev() {
        store.renew(lease).unwrap();
        store.release(lease).unwrap();
    }
}

/// A takeover does not wait, neither for the holder nor for waiters.
pub fn taking_over_does_not_wait<H: Harness>(harness: &H) {
    let holder = harness.open();
    let other = harness.open();
    let thread = create(&holder, "seized");
    let mut stale = holder.acquire(&thread, AT_ONCE).unwrap();
    for store in [&other, &holder, &other] {
        let began = Instant::now();
        let lease = store.acquire(&thread, Acquire { wait: TIMEOUT, take_over: true }).unwrap();
        assert!(began.elapsed() < TIMEOUT / 4, "it waited {:?}", began.elapsed());
        assert!(lease.epoch > stale.epoch);
        assert_refused!(holder.renew(&stale), Error::StaleEpoch { .. }, "a lease that was taken over");
        stale = lease;
    }
}

/// An unbounded wait is possible, and does not wait for a free lease.
pub fn waiting_may_be_for_ever<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "for-ever");
    let lease = store.acquire(&thread, Acquire { wait: Duration::MAX, take_over: false }).unwrap();
    store.acquire(&thread, Acquire { wait: Duration::MAX, take_over: true }).unwrap();
    store.release(&lease).unwrap();
}

/// A waiter that gives up in the queue learns the holder, not its own process, which waits too.
pub fn a_waiter_that_gives_up_learns_the_holder<H: Harness>(harness: &H) {
    let holder = harness.open();
    let store = harness.open();
    let thread = create(&holder, "named");
    let lease = holder.acquire(&thread, AT_ONCE).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| store.acquire(&thread, Acquire { wait: A_MOMENT * 5, take_over: false }));
        thread::sleep(A_MOMENT);
        for wait in [A_MOMENT, Duration::ZERO] {
            let answer = store.acquire(&thread, Acquire { wait, take_over: false });
            assert_refused!(answer, Error::LeaseHeld { holder, .. } if holder == lease.owner, "a lease with other waiters");
        }
        assert_refused!(first.join().unwrap(), Error::LeaseHeld { .. }, "a lease that stays held");
    });
}

/// A lease that was taken over within its own process and released is free, even if its first holder hangs.
pub fn a_holder_that_hangs_does_not_block_its_process<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    for (name, taker) in [("by-itself", &store), ("by-another", &other)] {
        let thread = create(&store, name);
        let _hangs = store.acquire(&thread, AT_ONCE).unwrap();
        let taken = taker.acquire(&thread, BY_FORCE).unwrap();
        taker.release(&taken).unwrap();
        let free = store.acquire(&thread, Acquire { wait: A_MOMENT, take_over: false });
        assert!(free.is_ok(), "taken over {name} and released, the lease is free: {free:?}");
    }
}

/// A waiter behind a hung holder is served when another process took the lease over and released it.
pub fn a_waiter_behind_a_hung_holder_is_served<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "behind");
    let _hangs = store.acquire(&thread, AT_ONCE).unwrap();
    thread::scope(|scope| {
        let began = Instant::now();
        let waiting = scope.spawn(|| store.acquire(&thread, PATIENT));
        thread::sleep(A_MOMENT);
        let taken = other.acquire(&thread, BY_FORCE).unwrap();
        other.release(&taken).unwrap();
        let answer = waiting.join().unwrap();
        assert!(answer.is_ok(), "it has been free for {:?}: {answer:?}", began.elapsed());
        assert!(began.elapsed() < TIMEOUT / 2, "it took {:?}", began.elapsed());
    });
}

/// Of many workers that want a lease, one has it at a time.
pub fn one_worker_has_the_lease_at_a_time<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "alone");
    let inside = Mutex::new(());
    at_once(4, |worker| {
        for _ in 0..5 {
            let lease =
                stores[worker % 2].acquire(&thread, PATIENT).unwrap_or_else(|error| panic!("{worker}: {error}"));
            let alone = inside.try_lock().unwrap_or_else(|_| panic!("worker {worker} is not alone"));
            commit(&stores[worker % 2], batch([part(&thread, empty()).under(lease.epoch)]));
            drop(alone);
            stores[worker % 2].release(&lease).unwrap();
        }
    });
    assert_eq!(verified(&stores[0], &harness.trust(), &thread).len(), 21);
}

/// The end of a lease wakes whoever waits for one: by a release or by the death of its holder, before the wait begins or during it.
pub fn the_end_of_a_lease_wakes_waiters<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "ends");
    // A handle may count leases as freed when it begins to watch.
    store.wait_for_lease(store.leases_freed(), Duration::from_millis(1)).unwrap();
    for dies in [false, true] {
        for during in [false, true] {
            let holder = harness.open();
            let lease = holder.acquire(&thread, AT_ONCE).unwrap();
            let freed = store.leases_freed();
            assert!(store.holder(&thread).unwrap().is_some(), "it is held");
            let end = move || {
                if during {
                    thread::sleep(A_MOMENT);
                }
                if dies { drop(holder) } else { holder.release(&lease).unwrap() }
            };
            let began = Instant::now();
            thread::scope(|scope| {
                if during {
                    scope.spawn(end);
                } else {
                    end();
                }
                let mut seen = freed;
                loop {
                    store.wait_for_lease(seen, TIMEOUT).unwrap();
                    assert!(began.elapsed() < TIMEOUT / 2, "no wake-up; dies: {dies}, during the wait: {during}");
                    seen = store.leases_freed();
                    if store.holder(&thread).unwrap().is_none() {
                        break;
                    }
                }
            });
        }
    }
}
