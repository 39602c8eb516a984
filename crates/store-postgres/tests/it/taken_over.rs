//! A worker that is paused beyond its lease.

use std::time::Duration;

use selvedge_model::Batch;
use selvedge_store::conformance::support::{create, part, says};
use selvedge_store::{Acquire, Commit, Error, Leases};
use selvedge_store_postgres::test_server;

use crate::support::Home;

#[test]
fn a_worker_without_a_sign_of_life_is_taken_over_and_can_not_write() {
    let home = Home::new();
    let paused = home.open();
    let other = home.open();
    let thread = create(&paused, "paused");
    let lease = paused.acquire(&thread, Acquire::default()).unwrap();
    let held = other.acquire(&thread, Acquire::default());
    assert!(matches!(held, Err(Error::LeaseHeld { .. })), "{held:?}");
    // As the database sees a worker whose process is stopped.
    let (address, schema) = home.address.split_once("?schema=").unwrap();
    let sql = format!("UPDATE {schema}.owners SET alive_until = now() - interval '1 second'");
    test_server::execute(address, &sql).unwrap();
    assert_eq!(other.expired().unwrap(), std::slice::from_ref(&lease));
    let taken = other.acquire(&thread, Acquire::default()).unwrap();
    assert_eq!((taken.epoch, taken.taken_from.as_ref()), (lease.epoch + 1, Some(&lease.owner)));
    let late = paused.commit(Batch::of(part(&thread, says("late")).under(lease.epoch)));
    assert!(matches!(late, Err(Error::StaleEpoch { .. })), "{late:?}");
    other.commit(Batch::of(part(&thread, says("in time")).under(taken.epoch))).unwrap();
}

#[test]
fn a_lease_outlives_its_time_while_its_worker_lives() {
    let home = Home { lease: Duration::from_millis(400), ..Home::new() };
    let holder = home.open();
    let other = home.open();
    let thread = create(&holder, "long");
    let lease = holder.acquire(&thread, Acquire::default()).unwrap();
    // It waits for several times of the lease, in vain: one renewal of the worker's row is enough for all its threads.
    let held = other.acquire(&thread, Acquire { wait: Duration::from_millis(1500), take_over: false });
    assert!(matches!(held, Err(Error::LeaseHeld { .. })), "{held:?}");
    holder.commit(Batch::of(part(&thread, says("still mine")).under(lease.epoch))).unwrap();
}
