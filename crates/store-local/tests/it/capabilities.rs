//! `capabilities.md` is written once, whole, and signed for its thread alone.

use std::fs;

use selvedge_log::document::{Comment, DocumentKind, verify_text};

use crate::support::{Home, id, thread_with};

#[test]
fn what_a_thread_may_call_is_signed_for_it_and_never_written_again() {
    let home = Home::new();
    let store = home.open();
    let (one, other) = (thread_with(&store, "one", &[]), id("other"));
    assert!(store.write_capabilities(&one, || "# First\n".to_owned()).unwrap());
    assert!(!store.write_capabilities(&one, || unreachable!("it is there")).unwrap());
    let bytes = fs::read(home.threads().join("one/capabilities.md")).unwrap();
    let kind = DocumentKind::new("capabilities");
    let verified = verify_text(kind, one.as_str(), Comment::Html, &bytes, &home.trust()).unwrap();
    assert_eq!(verified.value, "# First\n");
    assert!(
        verify_text(kind, other.as_str(), Comment::Html, &bytes, &home.trust()).is_err(),
        "it belongs to one thread"
    );
}

#[test]
fn a_link_in_its_place_is_refused_and_not_followed() {
    let home = Home::new();
    let store = home.open();
    let one = thread_with(&store, "one", &[]);
    let elsewhere = home.folder.path().join("elsewhere");
    fs::write(&elsewhere, "mine").unwrap();
    std::os::unix::fs::symlink(&elsewhere, home.threads().join("one/capabilities.md")).unwrap();
    assert!(store.write_capabilities(&one, || "# First\n".to_owned()).is_err());
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
}
