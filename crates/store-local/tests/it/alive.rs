//! Heartbeats on disk: a time in the owner's own file; a lost or damaged one only costs a little uncounted time.

use std::fs;

use selvedge_model::{OwnerId, Timestamp};
use selvedge_store::Leases;

use crate::support::Home;

#[test]
fn a_damaged_heartbeat_is_ignored_and_the_next_one_replaces_it() {
    let home = Home::new();
    let store = home.open();
    let file = home.threads().join("owners").join(store.owner().as_str());
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    assert_eq!(store.last_beat(store.owner()).unwrap(), None);
    store.beat(at("2026-11-16T12:00:00.123456Z")).unwrap();
    let whole = fs::read_to_string(&file).unwrap();
    // Another time, written by a program without the key: it would be signed as time that a lost run lasted.
    let forged = whole.replace("12:00:00.1", "13:00:00.1");
    assert_ne!(forged, whole);
    let unsealed = format!("{:<39}\n", "2026-11-16T12:00:00.123456Z");
    for spoiled in ["", "{", &whole[..9], "yesterday", &"x".repeat(5000), &forged, &unsealed] {
        fs::write(&file, spoiled).unwrap();
        assert_eq!(store.last_beat(store.owner()).unwrap(), None, "{spoiled:.30}");
    }
    fs::write(&file, "").unwrap();
    // All have the same length, so that no bytes of an earlier one remain.
    for beat in [at("2026-11-16T12:00:00.123456Z"), at("2026-11-16T12:00:01Z")] {
        store.beat(beat).unwrap();
        assert_eq!(store.last_beat(store.owner()).unwrap(), Some(beat));
    }
    let other = OwnerId::new("process-1-0").unwrap();
    assert_eq!(store.last_beat(&other).unwrap(), None);
    // That of another owner.
    fs::copy(&file, home.threads().join("owners").join(other.as_str())).unwrap();
    assert_eq!(store.last_beat(&other).unwrap(), None);
}
