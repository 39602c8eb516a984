//! Following what is committed: every commit, once, in order, and no wake-up lost.

use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::{Batch, Changeset, Message, Role, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Commitment, Feed, Inbox, Logs, Store};
use crate::error::Error;

fn heard(store: &impl Feed, position: u64) -> Vec<Commitment> {
    store.after(position, 1_000).unwrap()
}

/// Each changeset has a place of its own, later ones a greater one, and all handles see the same.
pub fn positions_strictly_rise<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let start = store.position().unwrap();
    let one = create(&store, "one");
    let two = create(&other, "two");
    append(&store, &one, empty());
    commit(&other, batch([part(&two, says("b")), part(&one, says("a"))]));
    append(&store, &two, empty());
    let told = heard(&store, start);
    assert!(told.is_sorted_by(|a, b| a.position < b.position), "positions strictly rise: {told:?}");
    let told_of: Vec<_> = told.iter().map(|commitment| (commitment.thread.clone(), commitment.version)).collect();
    let mut expected: Vec<(ThreadId, u64)> = vec![(one.clone(), 0), (two.clone(), 0), (one.clone(), 1)];
    // The parts of one batch come together; which of them first is the backend's business.
    let in_batch = sorted(told_of[3..5].to_vec());
    let rest = (two.clone(), 2);
    assert_eq!(in_batch, [(one, 2), (two, 1)]);
    expected.extend(told_of[3..5].to_vec());
    expected.push(rest);
    assert_eq!(told_of, expected);
    assert_eq!(heard(&other, start), told, "every handle hears the same");
    assert_eq!(store.position().unwrap(), told[5].position, "the position is the newest commit's");
}

/// What is behind a position comes page by page, and nothing is behind the newest.
pub fn the_feed_comes_page_by_page<H: Harness>(harness: &H) {
    let store = harness.open();
    let start = store.position().unwrap();
    let thread = create(&store, "paged");
    for _ in 0..9 {
        append(&store, &thread, empty());
    }
    let all = heard(&store, start);
    assert_eq!(all.len(), 10);
    for limit in [1, 3, 10, 11] {
        let mut paged = Vec::new();
        let mut position = start;
        loop {
            let page = store.after(position, limit).unwrap();
            assert!(page.len() <= limit);
            let Some(last) = page.last() else { break };
            assert!(last.position > position, "a page is behind its position: {page:?}");
            position = last.position;
            paged.extend(page);
        }
        assert_eq!(paged, all, "pages of {limit}");
    }
    assert_eq!(heard(&store, store.position().unwrap()), []);
    assert_eq!(heard(&store, u64::from(u32::MAX)), [], "nothing is behind what has not been");
    assert_eq!(store.after(start, 0).unwrap(), [], "a page of none is empty");
    let middle = all[4].position;
    assert_eq!(heard(&store, middle), all[5..], "a follower goes on where it was");
}

/// A commit names its lines: they join to those of the commit before without a gap, and reading them gives its changeset, from its first
/// event to its checkpoint. Commits to other threads in between change nothing, and a follower may begin anywhere.
pub fn a_commit_names_its_lines<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let start = store.position().unwrap();
    let one = create(&store, "lines-one");
    let two = create(&store, "lines-two");
    let long = Changeset { messages: (0..150).map(|_| Message::text(Role::User, "more")).collect(), ..says("first") };
    // Alone for longer than any store may take together, then in turns, then in one batch.
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
    let told = heard(&store, start);
    assert_eq!(heard(&other, start), told, "every handle hears the same");
    for thread in [&one, &two] {
        let entries = verified(&store, &harness.trust(), thread);
        let of_thread: Vec<_> = told.iter().filter(|told| told.thread == *thread).collect();
        assert_eq!(of_thread.len(), entries.len());
        let mut end = 0;
        for (told, entry) in of_thread.into_iter().zip(entries) {
            assert_eq!((told.version, told.first_line), (entry.head.version, end), "{told:?}");
            end += told.lines;
            let limit = usize::try_from(told.lines).unwrap();
            assert_eq!(store.read(thread, told.first_line, limit).unwrap(), entry.lines, "{told:?}");
        }
        assert_eq!(end, store.head(thread).unwrap().lines, "the newest commit of `{thread}` ends its log");
    }
    for (before, told_of) in told.iter().zip(&told[1..]) {
        assert_eq!(store.after(before.position, 1).unwrap(), std::slice::from_ref(told_of), "behind {before:?}");
    }
}

/// Nobody hears of what was not committed, nor twice of what was.
pub fn the_feed_tells_only_of_commits<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "quiet");
    let request = Batch::of(part(&thread, empty())).with_key(id("k1"));
    commit(&store, request.clone());
    let position = store.position().unwrap();
    commit(&store, request);
    assert_refused!(store.commit(Batch::of(part_at(&thread, 9, empty()))), Error::Conflict { .. }, "a wrong version");
    store.post(super::support::request(&thread, "n1", "cancel")).unwrap();
    store.put_blob(&thread, b"blob").unwrap();
    assert_eq!((heard(&store, position), store.position().unwrap()), (vec![], position));
}

/// Deleting a thread takes no place back that a follower may have reached.
pub fn positions_are_never_given_twice<H: Harness>(harness: &H) {
    let store = harness.open();
    let gone = create(&store, "gone");
    let thread = create(&store, "kept");
    append(&store, &gone, empty());
    let position = store.position().unwrap();
    store.delete(&gone).unwrap();
    append(&store, &thread, empty());
    let told = heard(&store, position);
    let told_of = told.iter().find(|commitment| commitment.thread == thread).expect("a follower hears of the append");
    assert!(told_of.position > position && told_of.version == 1, "{told:?}");
}

/// Waiting for what is there already ends at once.
pub fn a_commit_before_the_wait_ends_it_at_once<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "early");
    let position = store.position().unwrap();
    append(&store, &thread, empty());
    for handle in [&store, &other] {
        let began = Instant::now();
        handle.wait(position, PATIENCE).unwrap();
        assert!(began.elapsed() < PATIENCE / 2, "it waited {:?} for what was there", began.elapsed());
        assert_eq!(heard(handle, position).len(), 1);
    }
}

/// Waiting for what does not come ends when the time is up.
pub fn waiting_in_vain_ends_in_time<H: Harness>(harness: &H) {
    let store = harness.open();
    create(&store, "still");
    let position = store.position().unwrap();
    let began = Instant::now();
    store.wait(position, Duration::from_millis(100)).unwrap();
    assert!(began.elapsed() < PATIENCE / 2, "it waited {:?} of 100 ms", began.elapsed());
    assert_eq!(heard(&store, position), []);
}

/// Whoever waits is woken by a commit, of this process or another.
pub fn a_commit_wakes_whoever_waits<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "waking");
    for writer in [&store, &other] {
        let position = store.position().unwrap();
        thread::scope(|scope| {
            let follower = scope.spawn(|| {
                let began = Instant::now();
                while heard(&store, position).is_empty() && began.elapsed() < PATIENCE {
                    store.wait(position, PATIENCE).unwrap();
                }
                began.elapsed()
            });
            thread::sleep(Duration::from_millis(100));
            append(writer, &thread, empty());
            let waited = follower.join().unwrap();
            assert!(waited < PATIENCE / 2, "it slept {waited:?}");
        });
    }
}

/// A follower hears of every commit of a writer in its own process.
pub fn a_follower_misses_nothing_of_its_own_process<H: Harness>(harness: &H) {
    let store = harness.open();
    follows(&store, &store);
}

/// A follower hears of every commit of a writer in another process.
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
            follower.wait(position, PATIENCE).unwrap();
            assert!(began.elapsed() < PATIENCE, "a wake-up was lost after version {:?}", seen.last());
            for commitment in follower.after(position, 7).unwrap() {
                assert!(commitment.position > position, "positions strictly rise");
                position = commitment.position;
                seen.push(commitment.version);
            }
        }
        assert_eq!(seen, (1..=COMMITS).collect::<Vec<_>>(), "every version, once, in order");
    });
}

/// Followers that begin in the middle of many writers see each thread's versions without a gap.
pub fn a_follower_of_many_writers_sees_no_gap<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let threads: Vec<_> = (0..3).map(|number| create(&store, &format!("busy-{number}"))).collect();
    let start = store.position().unwrap();
    let told = at_once(4, |worker| {
        if let Some(thread) = threads.get(worker) {
            for _ in 0..15 {
                append(if worker == 0 { &store } else { &other }, thread, empty());
            }
            return Vec::new();
        }
        let mut told = Vec::new();
        let mut position = start;
        while told.len() < 45 {
            store.wait(position, PATIENCE).unwrap();
            let page = heard(&store, position);
            assert!(!page.is_empty(), "a wake-up was lost after {} commits", told.len());
            position = page[page.len() - 1].position;
            told.extend(page);
        }
        told
    });
    for thread in &threads {
        let versions: Vec<_> = told[3].iter().filter(|told| told.thread == *thread).map(|told| told.version).collect();
        assert_eq!(versions, (1..=15).collect::<Vec<_>>(), "`{thread}`");
    }
}
