//! Signs of life on disk: one small file beside the log that can be lost or spoiled at the cost of a little time that is not counted.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use selvedge_store::{Acquire, Alive, Leases};

use crate::support::{Home, thread_with};

#[test]
fn a_sign_of_life_that_was_spoiled_is_none_and_the_next_one_stands_in_its_place() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    let lease = store.acquire(&one, Acquire::default()).unwrap();
    let file = home.threads().join("one/alive.json");
    let alive = Alive { version: 1, ran_ms: 12_000 };
    store.keep_alive(&lease, alive).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let whole = fs::read_to_string(&file).unwrap();
    for spoiled in ["", "{", &whole[..20], "{\"version\":-1,\"ran_ms\":5}", "[]", &"x".repeat(5000)] {
        fs::write(&file, spoiled).unwrap();
        assert_eq!(store.last_alive(&one).unwrap(), None, "{spoiled:.30}");
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(store.last_alive(&one).unwrap(), None);
    store.keep_alive(&lease, alive).unwrap();
    // Each is as long as the other, so that nothing of a longer one is left behind a shorter one.
    let shorter = Alive { version: 2, ran_ms: 1 };
    store.keep_alive(&lease, shorter).unwrap();
    assert_eq!((store.last_alive(&one).unwrap(), fs::metadata(&file).unwrap().len()), (Some(shorter), 80));
}

#[test]
fn a_link_in_its_place_is_not_followed() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &["hello"]);
    let lease = store.acquire(&one, Acquire::default()).unwrap();
    let elsewhere = home.threads().join("elsewhere.txt");
    fs::write(&elsewhere, "mine").unwrap();
    symlink(&elsewhere, home.threads().join("one/alive.json")).unwrap();
    assert!(store.keep_alive(&lease, Alive { version: 1, ran_ms: 1 }).is_err());
    assert_eq!((store.last_alive(&one).unwrap(), fs::read_to_string(&elsewhere).unwrap().as_str()), (None, "mine"));
}
