//! Chains of continued threads, and their children.

use std::collections::HashSet;

use selvedge_model::event::{Fields, Handoff, Predecessor};
use selvedge_model::{Batch, Changeset, Digest, Event, NewThread, Status, ThreadId};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Registry, Store, Summary};
use crate::error::Error;

/// A handoff to another thread.
pub(super) fn handoff(to: &ThreadId) -> Handoff {
    Handoff { new_thread_id: to.clone(), reason: None, directive: None, trailing_turns: 0, details: Fields::new() }
}

/// The batch that ends a thread's run and creates its successor.
pub(super) fn hands_off(store: &impl Store, from: &ThreadId, to: &ThreadId) -> Batch {
    let head = store.head(from).unwrap();
    let manifest = store.get(from).unwrap().manifest;
    let new = NewThread {
        continuation_of: Some(Predecessor { thread_id: from.clone(), version: head.version, hash: head.hash }),
        chain_root_id: Some(manifest.chain_root_id),
        parent_id: manifest.parent_id,
        ..new_thread()
    };
    let settling = Changeset { events: vec![Event::ThreadHandoff(handoff(to))], ..finishes("run-1", "natural") };
    batch([part_at(from, head.version, settling), birth(to, new)])
}

/// A chain of threads of these names.
fn chain_of(store: &impl Store, names: &[&str]) -> Vec<ThreadId> {
    let mut threads = vec![create(store, names[0])];
    for name in &names[1..] {
        let from = threads[threads.len() - 1].clone();
        let to = id(name);
        append(store, &from, starts("run-1"));
        commit(store, hands_off(store, &from, &to));
        threads.push(to);
    }
    threads
}

fn ids(summaries: Vec<Summary>) -> Vec<ThreadId> {
    summaries.into_iter().map(|summary| summary.manifest.thread_id).collect()
}

/// Ending a thread and creating its successor is one batch; both refer to each other.
pub fn a_handoff_is_one_batch<H: Harness>(harness: &H) {
    let store = harness.open();
    let threads = chain_of(&store, &["old", "new"]);
    let [old, new] = &threads[..] else { unreachable!() };
    let before = store.get(old).unwrap();
    let after = store.get(new).unwrap();
    assert_eq!((before.manifest.status, before.version), (Status::Continued, 2));
    assert_eq!(before.manifest.continuation_thread_id.as_ref(), Some(new));
    assert_eq!((after.manifest.status, after.version), (Status::Created, 0));
    assert_eq!(after.manifest.continuation_of.as_ref(), Some(old));
    assert_eq!(after.manifest.chain_root_id, *old);
    let entries = verified(&store, &harness.trust(), old);
    let settling = entries[2].checkpoint().unwrap();
    assert_eq!(
        (settling.settled, &settling.with),
        (true, &vec![(new.clone(), 0)]),
        "it is settled, with its successor"
    );
    let born = &verified(&store, &harness.trust(), new)[0];
    assert_eq!(born.checkpoint().unwrap().with, [(old.clone(), 2)]);
    let Event::ThreadCreated(created) = &born.lines[0].event else { panic!("{born:?}") };
    let pinned = created.thread.continuation_of.as_ref().unwrap();
    assert_eq!((pinned.version, pinned.hash), (1, entries[1].head.hash), "the successor pins its predecessor by hash");
}

/// A refused handoff leaves the old thread running and creates none.
pub fn a_refused_handoff_leaves_both<H: Harness>(harness: &H) {
    let store = harness.open();
    let old = create(&store, "old");
    let taken = create(&store, "taken");
    append(&store, &old, starts("run-1"));
    leaves_no_trace(&store, &[&old, &taken], || {
        let answer = store.commit(hands_off(&store, &old, &taken));
        assert_refused!(answer, Error::Exists(_), "a handoff to a thread that exists");
    });
    let late = hands_off(&store, &old, &id("new"));
    append(&store, &old, says("one more"));
    assert_refused!(store.commit(late), Error::Conflict { .. }, "a handoff at an old version");
    assert_refused!(store.get(&id("new")), Error::NoThread(_), "no successor was created");
    assert_eq!(store.get(&old).unwrap().manifest.status, Status::Running);
}

/// A chain is the same from each of its threads, root first.
pub fn a_chain_is_the_same_from_each_member<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let threads = chain_of(&store, &["m", "z", "a", "k", "b"]);
    let alone = create(&store, "alone");
    for member in &threads {
        assert_eq!(ids(other.chain(member).unwrap()), threads, "from `{member}`");
    }
    let shown = other.chain(&threads[2]).unwrap();
    assert!(
        shown.iter().all(|summary| *summary == store.get(&summary.manifest.thread_id).unwrap()),
        "as `get` shows them"
    );
    assert!(shown.iter().all(|summary| summary.manifest.chain_root_id == threads[0]));
    assert_eq!(ids(store.chain(&alone).unwrap()), [alone], "a thread that continues nothing is a chain of one");
}

/// A cycle of links ends the walk, and shows each thread once.
pub fn a_cycle_of_links_ends<H: Harness>(harness: &H) {
    let store = harness.open();
    let settled = |name: &str| {
        let thread = create(&store, name);
        append(&store, &thread, finishes("run-1", "natural"));
        thread
    };
    let own = settled("own");
    let one = settled("one");
    let two = settled("two");
    let three = settled("three");
    for (from, to) in [(&own, &own), (&one, &two), (&two, &three), (&three, &one)] {
        append(&store, from, with_event(Event::ThreadHandoff(handoff(to))));
    }
    let born_of = |name: &str, of: &str| {
        let predecessor = Predecessor { thread_id: id(of), version: 0, hash: Digest([0; 32]) };
        create_as(&store, name, NewThread { continuation_of: Some(predecessor), ..new_thread() })
    };
    let hen = born_of("hen", "egg");
    let egg = born_of("egg", "hen");
    let odd = born_of("odd", "odd");
    for (start, size) in [(&own, 1), (&one, 3), (&two, 3), (&three, 3), (&hen, 2), (&egg, 2), (&odd, 1)] {
        let found = ids(store.chain(start).unwrap());
        let distinct: HashSet<_> = found.iter().collect();
        assert_eq!((found.len(), distinct.len()), (size, size), "from `{start}`: {found:?}");
        assert!(distinct.contains(start), "`{start}` is part of its own chain: {found:?}");
    }
}

/// A link to a missing thread ends the chain.
pub fn a_missing_link_ends_the_chain<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "last");
    append(&store, &thread, finishes("run-1", "natural"));
    append(&store, &thread, with_event(Event::ThreadResumed(handoff(&id("missing")))));
    assert_eq!(ids(store.chain(&thread).unwrap()), [thread]);
    let predecessor = Predecessor { thread_id: id("missing"), version: 3, hash: Digest([1; 32]) };
    let orphan = create_as(&store, "orphan", NewThread { continuation_of: Some(predecessor), ..new_thread() });
    assert_eq!(ids(store.chain(&orphan).unwrap()), [orphan]);
}

/// The children of a thread are those it started, oldest first, and not their children.
pub fn children_come_oldest_first<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let parent = create(&store, "parent");
    let child_of = |name: &str, parent: &ThreadId| {
        create_as(&store, name, NewThread { parent_id: Some(parent.clone()), ..new_thread() })
    };
    let children = ["z", "a", "m"].map(|name| child_of(name, &parent));
    child_of("grandchild", &children[0]);
    assert_eq!(ids(other.children(&parent).unwrap()), children);
    assert_eq!(ids(other.children(&children[0]).unwrap()), [id("grandchild")]);
    assert_eq!(ids(other.children(&children[1]).unwrap()), [], "a thread without children");
    append(&store, &children[1], starts("run-1"));
    commit(&store, hands_off(&store, &children[1], &id("sibling")));
    let with_sibling = [children.to_vec(), vec![id("sibling")]].concat();
    assert_eq!(ids(store.children(&parent).unwrap()), with_sibling, "a successor is a sibling");
    let shown = store.children(&parent).unwrap();
    assert_eq!(shown[1].manifest.status, Status::Continued, "children have their current status");
}
