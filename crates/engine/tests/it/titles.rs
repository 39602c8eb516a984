//! Titles that the system makes, and a person who renames at the same moment.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use selvedge_engine::titles::Titled;
use selvedge_model::Event;
use selvedge_model::event::TurnUsage;
use selvedge_store::{Logs, Registry};
use serde_json::json;

use crate::support::Harness;

fn usage() -> TurnUsage {
    serde_json::from_value(json!({"model": "m", "turns": 1, "input_tokens": 9})).unwrap()
}

/// Retries while the lease is held by the other.
fn rename(harness: &Harness, thread: &selvedge_model::ThreadId) {
    harness.engine.rename(thread, "Mine", Duration::from_secs(10)).unwrap();
}

#[test]
fn a_title_is_set_once_and_never_over_a_person_s() {
    let harness = Harness::new();
    let thread = harness.thread();
    let engine = &harness.engine;
    assert_eq!(engine.title_untitled(&thread, None, Some("One two three"), usage()).unwrap(), Titled::Set);
    assert_eq!(engine.title_untitled(&thread, None, Some("Four five six"), usage()).unwrap(), Titled::Unneeded);
    let title = || harness.store.get(&thread).unwrap().manifest.title;
    let calls = || {
        let lines = harness.store.read(&thread, 0, usize::MAX).unwrap();
        let is_call = |event: &Event| matches!(event, Event::ManifestChanged(changed) if changed.title_usage.is_some());
        lines.iter().filter(|line| is_call(&line.event)).count()
    };
    assert_eq!(title().as_deref(), Some("One two three"));
    rename(&harness, &thread);
    assert_eq!(engine.title_untitled(&thread, None, Some("Four five six"), usage()).unwrap(), Titled::Unneeded);
    assert_eq!(title().as_deref(), Some("Mine"));
    assert_eq!(calls(), 3, "each call is on record, also one without a title that is used");
    assert_eq!(engine.title_untitled(&thread, Some("Mine"), Some("Four five six"), usage()).unwrap(), Titled::Set);
    assert_eq!(title().as_deref(), Some("Four five six"), "a title that the caller knows to be nobody's choice");
    let untitled = harness.thread();
    assert_eq!(engine.title_untitled(&untitled, None, None, usage()).unwrap(), Titled::Unneeded);
    assert_eq!(harness.store.get(&untitled).unwrap().manifest.title, None);
}

/// Two processes: one makes a title while a person renames in the other. Whichever is first, the person's title is the last.
#[test]
fn a_person_who_renames_at_the_same_moment_wins() {
    let harness = Harness::new();
    let other = harness.another();
    for round in 0..200 {
        let thread = harness.thread();
        let start = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                if round % 2 == 0 {
                    thread::yield_now();
                }
                rename(&other, &thread);
            });
            start.wait();
            harness.engine.title_untitled(&thread, None, Some("One two three"), usage()).unwrap();
        });
        // A request that waited is applied by whoever takes the thread next.
        _ = harness.engine.title_untitled(&thread, None, Some("Four five six"), usage()).unwrap();
        let title = harness.store.get(&thread).unwrap().manifest.title;
        assert_eq!(title.as_deref(), Some("Mine"), "round {round}");
    }
}
