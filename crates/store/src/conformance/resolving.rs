//! Resolving a prefix of an id, or of the hex at its end.

use selvedge_model::{Classify, Kind};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Registry};
use crate::error::Error;

/// A prefix of an id or of its hex names the only thread that has it.
pub fn a_unique_prefix_names_its_thread<H: Harness>(harness: &H) {
    let store = harness.open();
    let scribe = create(&store, "scribe-0123456789ab");
    let kiwi = create(&store, "kiwi-fedcba987654");
    let foreign = create(&store, "agency/discover_leads-1739820456");
    for (typed, meant) in [
        ("scribe-0123456789ab", &scribe),
        ("scribe-0", &scribe),
        ("scribe", &scribe),
        ("s", &scribe),
        ("0123456789ab", &scribe),
        ("01", &scribe),
        ("0", &scribe),
        ("fedc", &kiwi),
        ("k", &kiwi),
        ("agency/", &foreign),
        ("agency/discover_leads-1739820456", &foreign),
    ] {
        assert_eq!(store.resolve(typed).unwrap_or_else(|error| panic!("`{typed}`: {error}")), *meant, "`{typed}`");
    }
}

/// A prefix of several threads names none of them, and the candidates are listed.
pub fn an_ambiguous_prefix_lists_the_candidates<H: Harness>(harness: &H) {
    let store = harness.open();
    let names = ["scribe-aaaaaaaaaaaa", "scribe-bbbbbbbbbbbb", "aaaa-cccccccccccc"];
    for name in names {
        create(&store, name);
    }
    let candidates = |typed: &str| match store.resolve(typed) {
        Err(error @ Error::Ambiguous { .. }) => {
            assert_eq!(error.kind(), Kind::Absent);
            let Error::Ambiguous { prefix, candidates } = error else { unreachable!() };
            assert_eq!(prefix, typed);
            sorted(candidates)
        }
        other => panic!("`{typed}` names more than one: {other:?}"),
    };
    assert_eq!(candidates("scribe"), ["scribe-aaaaaaaaaaaa", "scribe-bbbbbbbbbbbb"]);
    assert_eq!(candidates("aaaa"), ["aaaa-cccccccccccc", "scribe-aaaaaaaaaaaa"], "by id or by hex");
    assert_eq!(store.resolve("aaaaa").unwrap(), id("scribe-aaaaaaaaaaaa"), "one more letter decides");
}

/// A thread whose id and hex both have the prefix is one thread.
pub fn a_thread_that_matches_twice_is_one<H: Harness>(harness: &H) {
    let store = harness.open();
    let twice = create(&store, "abc-abcabcabcabc");
    assert_eq!(store.resolve("abc").unwrap(), twice);
}

/// A whole id names that thread, even if it is a prefix of others.
pub fn a_whole_id_wins<H: Harness>(harness: &H) {
    let store = harness.open();
    let short = create(&store, "note");
    create(&store, "note-2");
    create(&store, "note/3");
    let hex = create(&store, "0123456789ab");
    create(&store, "scribe-0123456789ab");
    assert_eq!(store.resolve("note").unwrap(), short);
    assert_eq!(store.resolve("0123456789ab").unwrap(), hex);
    assert_refused!(store.resolve("not"), Error::Ambiguous { .. }, "a prefix of three");
}

/// An unknown prefix names no thread, and no character of it is a wildcard.
pub fn an_unknown_prefix_names_no_thread<H: Harness>(harness: &H) {
    let store = harness.open();
    assert_refused!(store.resolve("anything"), Error::NoThread(_), "an empty store");
    create(&store, "scribe-0123456789ab");
    let hex_in_the_middle = ["1234", "ab", "cribe", "-0123"];
    let no_ids = ["", " ", "*", "%", "?", "S", "SCRIBE", "..", "../", "/", "scribe-0123456789ab/", "é", "\0", "'"];
    let wild = ["s%", "s_ribe", "_cribe", "s*", "[s]cribe", "scribe_0", "scribe-0123456789abc"];
    for typed in hex_in_the_middle.into_iter().chain(no_ids).chain(wild) {
        assert_refused!(store.resolve(typed), Error::NoThread(name) if name == typed, "`{typed}`");
    }
}

/// `@` names the newest thread and `@2` the one before it, as they are listed.
pub fn threads_are_named_by_their_age<H: Harness>(harness: &H) {
    let store = harness.open();
    assert_refused!(store.resolve("@"), Error::NoThread(name) if name == "@", "an empty store");
    let older = create(&store, "scribe-0123456789ab");
    let newer = create(&store, "scribe-1123456789ab");
    for (typed, meant) in [("@", &newer), ("@1", &newer), ("@2", &older)] {
        assert_eq!(store.resolve(typed).unwrap_or_else(|error| panic!("`{typed}`: {error}")), *meant, "`{typed}`");
    }
    for typed in ["@0", "@3", "@-1", "@+1", "@x", "@@", "@ 1", "@99999999999999999999"] {
        assert_refused!(store.resolve(typed), Error::NoThread(name) if name == typed, "`{typed}`");
    }
    store.delete(&newer).unwrap();
    assert_eq!(store.resolve("@").unwrap(), older, "what was deleted has no age");
}

/// A deleted thread is not found any more, and makes no prefix ambiguous.
pub fn a_deleted_thread_makes_no_prefix_ambiguous<H: Harness>(harness: &H) {
    let store = harness.open();
    let gone = create(&store, "scribe-aaaaaaaaaaaa");
    let kept = create(&store, "scribe-bbbbbbbbbbbb");
    assert_refused!(store.resolve("scribe"), Error::Ambiguous { .. }, "a prefix of two");
    store.delete(&gone).unwrap();
    assert_eq!(store.resolve("scribe").unwrap(), kept);
    assert_refused!(store.resolve("aaaa"), Error::NoThread(_), "the hex of a deleted thread");
    assert_refused!(store.resolve(gone.as_str()), Error::Deleted(_), "the whole id of a deleted thread");
}
