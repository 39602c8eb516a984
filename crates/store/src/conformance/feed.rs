//! Following commits: every commit, once, in order, and no wake-up lost.

use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::{Batch, Changeset, Message, Role, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Feed, FeedEntry, Inbox, Logs, Store};
use crate::error::Error;

fn entries_after(store: &impl Feed, position: u64) -> Vec<FeedEntry> {
    store.after(position, 1_000).unwrap()
}

/// Each changeset has a position of its own, later ones a greater one, and all handles see the same.
pub fn positions_strictly_rise<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let start = store.position().unwrap();
    let one = create(&store, "one");
    let two = create(&other, "two");
    append(&store, &one, empty());
    commit(&other, batch([part(&two, says("b")), part(&one, says("a"))]));
    append(&store, &two, empty());
    let entries = entries_after(&store, start);
    assert!(entries.is_sorted_by(|a, b| a.position < b.position), "positions strictly rise: {entries:?}");
    let versions_seen: Vec<_> = entries.iter().map(|entry| (entry.thread.clone(), entry.version)).collect();
    let mut expected: Vec<(ThreadId, u64)> = vec![(one.clone(), 0), (two.clone(), 0), (one.clone(), 1)];
    // The parts of one batch are consecutive; the backend decides their order.
    let in_batch = sorted(versions_seen[3..5].to_vec());
    let rest = (two.clone(), 2);
    assert_eq!(in_batch, [(one, 2), (two, 1)]);
    expected.extend(versions_seen[3..5].to_vec());
    expected.push(rest);
    assert_eq!(versions_seen, expected);
    assert_eq!(entries_after(&other, start), entries, "every handle sees the same");
    assert_eq!(store.position().unwrap(), entries[5].position, "the position is the newest commit's");
}

/// The feed is read page by page, and nothing is after the newest position.
pub fn the_feed_comes_page_by_page<H: Harness>(harness: &H) {
    let store = harness.open();
    let start = store.position().unwrap();
    let thread = create(&store, "paged");
    for _ in 0..9 {
        append(&store, &thread, empty());
    }
    let all = entries_after(&store, start);
    assert_eq!(all.len(), 10);
    for limit in [1, 3, 10, 11] {
        let mut paged = Vec::new();
        let mut position = start;
        loop {
            let page = store.after(position, limit).unwrap();
            assert!(page.len() <= limit);
            let Some(last) = page.last() else { break };
            assert!(last.position > position, "a page begins after its position: {page:?}");
            position = last.position;
            paged.extend(page);
        }
        assert_eq!(paged, all, "pages of {limit}");
    }
    assert_eq!(entries_after(&store, store.position().unwrap()), []);
    assert_eq!(entries_after(&store, u64::from(u32::MAX)), [], "nothing is after a future position");
    assert_eq!(store.after(start, 0).unwrap(), [], "a page of none is empty");
    let middle = all[4].position;
    assert_eq!(entries_after(&store, middle), all[5..], "a follower continues where it was");
}

/// A commit names its lines: they follow those of the commit before without a gap, and reading them gives its changeset, from its first
/// event to its checkpoint. Commits to other threads in between change nothing, and a follower may begin anywhere.
pub fn a_commit_names_its_lines<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let start = store.position().unwrap();
    let one = create(&store, "lines-one");
    let two = create(&store, "lines-two");
    let long = Changeset { messages: (0..150).map(|_| Message::text(Role::User, "more")).collect(), ..says("first") };
    // Alone for longer than any store may combine, then in turns, then in one batch.
    for number in 0..70 {
        append(&store, &one, if number % 3 == 0 { empty() } else { says("alone") });
    }
    append(&other, &one, long);
    for run in ["r1", "r2", "r3"] {
        append(&other, &two, says("in turns"));
        append(&store, &one, starts(run));
        append(&store, &one, finishes(run, "natural"));
        append(&other, &one, empty());
        append(&other, &one, says("and on"));
    }
    commit(&store, batch([part(&two, says("b")), part(&one, patches([set("turns", 1.into())]))]));
    append(&other, &one, empty());
    let listed = entries_after(&store, start);
    assert_eq!(entries_after(&other, start), listed, "every handle sees the same");
    for thread in [&one, &two] {
        let entries = verified(&store, &harness.trust(), thread);
        let of_thread: Vec<_> = listed.iter().filter(|entry| entry.thread == *thread).collect();
        assert_eq!(of_thread.len(), entries.len());
        let mut end = 0;
        for (one, entry) in of_thread.into_iter().zip(entries) {
            assert_eq!((one.version, one.first_line), (entry.head.version, end), "{one:?}");
            end += one.lines;
            let limit = usize::try_from(one.lines).unwrap();
            assert_eq!(store.read(thread, one.first_line, limit).unwrap(), entry.lines, "{one:?}");
        }
        assert_eq!(end, store.head(thread).unwrap().lines, "the newest commit of `{thread}` ends its log");
    }
    for (before, next) in listed.iter().zip(&listed[1..]) {
        assert_eq!(store.after(before.position, 1).unwrap(), std::slice::from_ref(next), "after {before:?}");
    }
}

/// The feed has every commit once, and nothing that was not committed.
pub fn the_feed_has_only_commits<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "quiet");
    let request = Batch::of(part(&thread, empty())).with_key(id("k1"));
    commit(&store, request.clone());
    let position = store.position().unwrap();
    commit(&store, request);
    assert_refused!(store.commit(Batch::of(part_at(&thread, 9, empty()))), Error::Conflict { .. }, "a wrong version");
    store.post(super::support::request(&thread, "n1", "cancel")).unwrap();
    store.put_blob(&thread, b"blob").unwrap();
    assert_eq!((entries_after(&store, position), store.position().unwrap()), (vec![], position));
}

/// Deleting a thread does not free a position that a follower may have reached.
pub fn positions_are_never_reused<H: Harness>(harness: &H) {
    let store = harness.open();
    let gone = create(&store, "gone");
    let thread = create(&store, "kept");
    append(&store, &gone, empty());
    let position = store.position().unwrap();
    store.delete(&gone).unwrap();
    append(&store, &thread, empty());
    let entries = entries_after(&store, position);
    let found = entries.iter().find(|entry| entry.thread == thread).expect("a follower sees the append");
    assert!(found.position > position && found.version == 1, "{entries:?}");
}

/// Waiting for a commit that exists already returns at once.
pub fn a_commit_before_the_wait_ends_it_at_once<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "early");
    let position = store.position().unwrap();
    append(&store, &thread, empty());
    for handle in [&store, &other] {
        let began = Instant::now();
        handle.wait(position, TIMEOUT).unwrap();
        assert!(began.elapsed() < TIMEOUT / 2, "it waited {:?} for an existing commit", began.elapsed());
        assert_eq!(entries_after(handle, position).len(), 1);
    }
}

/// Waiting without a commit ends when the time is up.
pub fn waiting_in_vain_ends_in_time<H: Harness>(harness: &H) {
    let store = harness.open();
    create(&store, "still");
    let position = store.position().unwrap();
    let began = Instant::now();
    store.wait(position, Duration::from_millis(100)).unwrap();
    assert!(began.elapsed() < TIMEOUT / 2, "it waited {:?} of 100 ms", began.elapsed());
    assert_eq!(entries_after(&store, position), []);
}

/// A waiter is woken by a commit of this process or another one.
pub fn a_commit_wakes_a_waiter<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "waking");
    for writer in [&store, &other] {
        let position = store.position().unwrap();
        thread::scope(|scope| {
            let follower = scope.spawn(|| {
                let began = Instant::now();
                while entries_after(&store, position).is_empty() && began.elapsed() < TIMEOUT {
                    store.wait(position, TIMEOUT).unwrap();
                }
                began.elapsed()
            });
            thread::sleep(Duration::from_millis(100));
            append(writer, &thread, empty());
            let waited = follower.join().unwrap();
            assert!(waited < TIMEOUT / 2, "it slept {waited:?}");
        });
    }
}

/// A follower sees every commit of a writer in its own process.
pub fn a_follower_misses_nothing_of_its_own_process<H: Harness>(harness: &H) {
    let store = harness.open();
    follows(&store, &store);
}

/// A follower sees every commit of a writer in another process.
pub fn a_follower_misses_nothing_of_another_process<H: Harness>(harness: &H) {
    let writer = harness.open();
    let follower = harness.open();
    follows(&writer, &follower);
}

fn follows<S: Store>(writer: &S, follower: &S) {
    const COMMITS: u64 = 60;
    let thread = create(writer, "followed");
    let mut position = follower.position().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COMMITS {
                append(writer, &thread, empty());
                // Now and then the follower catches up and has to wait.
                if number % 5 == 0 {
                    thread::sleep(Duration::from_millis(3));
                }
            }
        });
        let mut seen = Vec::new();
        while (seen.len() as u64) < COMMITS {
            let began = Instant::now();
            follower.wait(position, TIMEOUT).unwrap();
            assert!(began.elapsed() < TIMEOUT, "a wake-up was lost after version {:?}", seen.last());
            for entry in follower.after(position, 7).unwrap() {
                assert!(entry.position > position, "positions strictly rise");
                position = entry.position;
                seen.push(entry.version);
            }
        }
        assert_eq!(seen, (1..=COMMITS).collect::<Vec<_>>(), "every version, once, in order");
    });
}

/// A follower that begins in the middle of many writers sees each thread's versions without a gap.
pub fn a_follower_of_many_writers_sees_no_gap<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let threads: Vec<_> = (0..3).map(|number| create(&store, &format!("busy-{number}"))).collect();
    let start = store.position().unwrap();
    let entries = at_once(4, |worker| {
        if let Some(thread) = threads.get(worker) {
            for _ in 0..15 {
                append(if worker == 0 { &store } else { &other }, thread, empty());
            }
            return Vec::new();
        }
        let mut entries = Vec::new();
        let mut position = start;
        while entries.len() < 45 {
            store.wait(position, TIMEOUT).unwrap();
            let page = entries_after(&store, position);
            assert!(!page.is_empty(), "a wake-up was lost after {} commits", entries.len());
            position = page[page.len() - 1].position;
            entries.extend(page);
        }
        entries
    });
    for thread in &threads {
        let versions: Vec<_> =
            entries[3].iter().filter(|entry| entry.thread == *thread).map(|entry| entry.version).collect();
        assert_eq!(versions, (1..=15).collect::<Vec<_>>(), "`{thread}`");
    }
}
