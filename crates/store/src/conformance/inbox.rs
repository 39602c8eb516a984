//! Requests from callers without the lease: posted once, answered once.

use std::time::Duration;

use selvedge_model::{
    Answered, Batch, Changeset, Event, Input, Posted, Request, RequestId, RequestKind, ThreadId, Verdict,
};

use super::Harness;
use super::support::*;
use crate::contract::{Acquire, Commit, Delivery, Feed, Inbox, Leases, Position, Registry};
use crate::error::Error;

const AT_ONCE: Acquire = Acquire { wait: Duration::ZERO, take_over: false };

fn ids(store: &impl Inbox, thread: &ThreadId) -> Vec<RequestId> {
    waiting(store, thread).into_iter().map(|posted| posted.id).collect()
}

/// The waiting requests of a thread; every request that was posted through a store is sealed.
fn waiting(store: &impl Inbox, thread: &ThreadId) -> Vec<Posted> {
    let waiting = store.pending(thread).unwrap();
    assert!(waiting.iter().all(|waiting| waiting.is_sealed), "{waiting:?}");
    waiting.into_iter().map(|waiting| waiting.posted).collect()
}

pub(super) fn verdict(name: &str) -> Event {
    let kind = RequestKind::Send;
    Event::RequestAnswered(Answered { request_id: id(name), kind, verdict: Verdict::Applied, why: None })
}

fn consuming(thread: &ThreadId, name: &str) -> Batch {
    let answered = Changeset { events: vec![verdict(name)], ..says("answered") };
    Batch { consumed: vec![(thread.clone(), id(name))], ..Batch::of(part(thread, answered)) }
}

/// A posted request waits for its thread, visible to every handle, until it is answered; its sender may die.
pub fn a_posted_request_waits<H: Harness>(harness: &H) {
    let sender = harness.open();
    let store = harness.open();
    let thread = create(&sender, "asked");
    assert_eq!(waiting(&store, &thread), []);
    let sent = request(&thread, "n1", "send");
    assert_eq!(sender.post(sent.clone()).unwrap(), Delivery { thread: thread.clone(), answered: None });
    assert_eq!(waiting(&store, &thread), std::slice::from_ref(&sent));
    drop(sender);
    assert_eq!(waiting(&store, &thread), [sent]);
    assert_eq!(store.get(&thread).unwrap().version, 0, "a request adds no version");
}

/// A request posted twice is one request.
pub fn a_request_posted_twice_is_one<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "asked");
    for handle in [&store, &other, &store] {
        handle.post(request(&thread, "n1", "send")).unwrap();
    }
    assert_eq!(ids(&store, &thread), [id("n1")]);
}

/// Different content under a known id is refused.
pub fn another_request_under_a_known_id_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "asked");
    let first = request(&thread, "n1", "send");
    store.post(first.clone()).unwrap();
    let other_words = Posted { request: Request::Send(Input::text("else")), ..first.clone() };
    for changed in [other_words, request(&thread, "n1", "cancel")] {
        let answer = store.post(changed.clone());
        assert_refused!(answer, Error::RequestReused { id, .. } if id.as_str() == "n1", "{changed:?}");
        let posting = Batch { posted: vec![changed.clone()], ..Batch::of(part(&thread, empty())) };
        leaves_no_trace(&store, &[&thread], || {
            assert_refused!(store.commit(posting), Error::RequestReused { .. }, "a batch that posts {changed:?}");
        });
    }
    assert_eq!(waiting(&store, &thread), [first]);
}

/// A batch can't post two requests under one id: one of them would be lost.
pub fn a_batch_cannot_post_two_requests_under_one_id<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "asked");
    let two = vec![request(&thread, "n1", "send"), request(&thread, "n1", "cancel")];
    leaves_no_trace(&store, &[&thread], || {
        let posting = Batch { posted: two, ..Batch::of(part(&thread, empty())) };
        assert_refused!(store.commit(posting), Error::RequestReused { .. }, "two requests under one key");
    });
    let same = vec![request(&thread, "n2", "send"), request(&thread, "n2", "send")];
    commit(&store, Batch { posted: same, ..Batch::of(part(&thread, empty())) });
    assert_eq!(ids(&store, &thread), [id("n2")], "the same request twice is one");
}

/// An id belongs to its thread: the same one to two threads is two requests.
pub fn the_same_id_to_two_threads_is_two_requests<H: Harness>(harness: &H) {
    let store = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    store.post(request(&one, "n1", "send")).unwrap();
    store.post(request(&two, "n1", "cancel")).unwrap();
    commit(&store, consuming(&one, "n1"));
    assert_eq!((ids(&store, &one), ids(&store, &two)), (vec![], vec![id("n1")]));
}

/// Requests wait in the order of posting, whatever their senders and ids.
pub fn requests_wait_in_the_order_of_posting<H: Harness>(harness: &H) {
    let one = harness.open();
    let two = harness.open();
    let thread = create(&one, "asked");
    let other = create(&one, "other");
    let names = ["z", "a", "m", "10", "9", "b"];
    for (number, name) in names.into_iter().enumerate() {
        let handle = if number % 2 == 0 { &one } else { &two };
        match number {
            3 => {
                let posting =
                    Batch { posted: vec![request(&thread, name, "cancel")], ..Batch::of(part(&other, empty())) };
                commit(handle, posting);
            }
            _ => drop(handle.post(request(&thread, name, "cancel")).unwrap()),
        }
    }
    one.post(request(&thread, "z", "cancel")).unwrap();
    assert_eq!(ids(&two, &thread), names.map(id), "a request posted again keeps its position");
    commit(&one, consuming(&thread, "m"));
    assert_eq!(ids(&two, &thread), ["z", "a", "10", "9", "b"].map(id));
}

/// A request is answered by one batch; a second one is refused as a whole.
pub fn a_request_is_consumed_once<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "asked");
    store.post(request(&thread, "n1", "send")).unwrap();
    store.post(request(&thread, "n2", "send")).unwrap();
    commit(&store, consuming(&thread, "n1"));
    assert_eq!(ids(&other, &thread), [id("n2")]);
    leaves_no_trace(&other, &[&thread], || {
        let answer = other.commit(consuming(&thread, "n1"));
        assert_refused!(answer, Error::RequestGone { id, .. } if id.as_str() == "n1", "a second answer");
        let mut both = consuming(&thread, "n2");
        both.consumed.push((thread.clone(), id("never-posted")));
        both.parts[0].changeset.events.push(verdict("never-posted"));
        assert_refused!(other.commit(both), Error::RequestGone { .. }, "an answer to a request that was never posted");
    });
    assert_eq!(append(&store, &thread, empty()), 2);
}

/// Of two handles that answer at once, one succeeds.
pub fn of_two_answers_at_once_one_wins<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open()];
    let thread = create(&stores[0], "asked");
    for round in 1..=5 {
        let key = format!("n{round}");
        stores[0].post(request(&thread, &key, "send")).unwrap();
        let answers = at_once(2, |worker| with_retries(|| stores[worker].commit(consuming(&thread, &key))));
        let winner = answers.iter().position(Result::is_ok).expect("one must answer");
        assert_refused!(&answers[1 - winner], Error::RequestGone { .. }, "the other answer");
        assert_eq!(stores[1].get(&thread).unwrap().version, round, "nothing of the other is visible");
    }
}

/// A refused batch answers nothing and posts nothing; a committed one does both.
pub fn requests_are_consumed_and_posted_with_their_batch<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "asked");
    let parent = create(&store, "parent");
    let child = id("child");
    store.post(request(&thread, "n1", "send")).unwrap();
    let answering = |version| Batch {
        consumed: vec![(thread.clone(), id("n1"))],
        posted: vec![
            request(&parent, "told", "child_settled"),
            request(&child, "hello", "send"),
            request(&thread, "n2", "cancel"),
        ],
        ..batch([
            part_at(&thread, version, Changeset { events: vec![verdict("n1")], ..says("done") }),
            birth(&child, new_thread()),
        ])
    };
    leaves_no_trace(&store, &[&thread, &parent, &child], || {
        assert_refused!(store.commit(answering(7)), Error::Conflict { .. }, "a batch at the wrong version");
    });
    commit(&store, answering(0));
    assert_eq!(ids(&store, &thread), [id("n2")]);
    assert_eq!(ids(&store, &parent), [id("told")], "a batch may post to a thread outside of it");
    assert_eq!(ids(&store, &child), [id("hello")], "and one that the batch creates");
}

/// A request to a missing thread is refused.
pub fn a_request_to_a_missing_thread_is_refused<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "asker");
    assert_refused!(
        store.post(request(&id("missing"), "n1", "send")),
        Error::NoThread(_),
        "a request to a missing thread"
    );
    leaves_no_trace(&store, &[&thread], || {
        let posting =
            Batch { posted: vec![request(&id("missing"), "n1", "send")], ..Batch::of(part(&thread, empty())) };
        assert_refused!(store.commit(posting), Error::NoThread(_), "a batch that posts to a missing thread");
        let answering = Batch { consumed: vec![(id("missing"), id("n1"))], ..Batch::of(part(&thread, empty())) };
        assert!(store.commit(answering).is_err(), "a batch that answers for a missing thread");
    });
}

/// A lease is not released while a message waits that only its holder can consume; other requests do not prevent it.
pub fn a_lease_stays_while_a_message_waits<H: Harness>(harness: &H) {
    let holder = harness.open();
    let sender = harness.open();
    let thread = create(&holder, "owed");
    let lease = holder.acquire(&thread, AT_ONCE).unwrap();
    for kind in ["cancel", "rename", "send", "send"] {
        let key = format!("{kind}-{}", ids(&sender, &thread).len());
        sender.post(request(&thread, &key, kind)).unwrap();
    }
    assert_refused!(
        holder.release(&lease),
        Error::RequestsPending { count: 2, .. },
        "a release while two messages wait"
    );
    holder.renew(&lease).unwrap();
    assert_refused!(sender.acquire(&thread, AT_ONCE), Error::LeaseHeld { .. }, "a lease that was not released");
    for key in ["send-2", "send-3"] {
        let mut answer = consuming(&thread, key);
        answer.parts[0] = answer.parts[0].clone().under(lease.epoch);
        commit(&holder, answer);
    }
    holder.release(&lease).unwrap();
    assert_eq!(ids(&sender, &thread).len(), 2, "the other requests still wait");
    sender.acquire(&thread, AT_ONCE).unwrap();
}

/// A message that is posted during a release is either consumed by the holder or finds the thread free.
pub fn no_message_is_lost_between_two_lease_holders<H: Harness>(harness: &H) {
    let holder = harness.open();
    let sender = harness.open();
    for round in 0..20 {
        let thread = create(&holder, &format!("between-{round}"));
        let lease = holder.acquire(&thread, AT_ONCE).unwrap();
        let results = at_once(2, |worker| match worker {
            0 => with_retries(|| holder.release(&lease)),
            _ => with_retries(|| sender.post(request(&thread, "n1", "send"))).map(drop),
        });
        results[1].as_ref().unwrap_or_else(|error| panic!("round {round}: {error}"));
        match &results[0] {
            Ok(()) => drop(sender.acquire(&thread, AT_ONCE).unwrap_or_else(|error| panic!("it is free: {error}"))),
            Err(Error::RequestsPending { .. }) => {
                holder.renew(&lease).unwrap_or_else(|error| panic!("it is held: {error}"))
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        assert_eq!(ids(&sender, &thread), [id("n1")]);
    }
}

/// A request is consumed only with a verdict on it in its thread's log.
pub fn a_request_is_not_consumed_without_a_verdict<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "asked");
    let other = create(&store, "other");
    store.post(request(&thread, "n1", "cancel")).unwrap();
    leaves_no_trace(&store, &[&thread, &other], || {
        let silent = Batch { consumed: vec![(thread.clone(), id("n1"))], ..Batch::of(part(&thread, empty())) };
        assert_refused!(store.commit(silent), Error::NoVerdict { .. }, "a batch without a verdict");
        let elsewhere = Changeset { events: vec![verdict("n1")], ..empty() };
        let elsewhere = Batch { consumed: vec![(thread.clone(), id("n1"))], ..Batch::of(part(&other, elsewhere)) };
        assert_refused!(store.commit(elsewhere), Error::NoVerdict { .. }, "a batch with the verdict in another log");
    });
}

/// A consumed request is not delivered again: its sender learns where the verdict is. The same holds for one that was never posted.
pub fn a_consumed_request_is_not_delivered_again<H: Harness>(harness: &H) {
    let store = harness.open();
    let sender = harness.open();
    let thread = create(&store, "asked");
    let other = create(&store, "other");
    store.post(request(&thread, "n1", "send")).unwrap();
    assert_eq!(store.answered(&thread, &id("n1")).unwrap(), None);
    commit(&store, consuming(&thread, "n1"));
    commit(&store, Batch::of(part(&thread, Changeset { events: vec![verdict("direct")], ..empty() })));
    for (name, version) in [("n1", 1), ("direct", 2)] {
        let left = sender.post(request(&thread, name, "send")).unwrap();
        assert_eq!(left, Delivery { thread: thread.clone(), answered: Some(version) });
        assert_eq!(sender.answered(&thread, &id(name)).unwrap(), Some((thread.clone(), version)));
        assert_eq!(sender.answered(&other, &id(name)).unwrap(), None, "an id belongs to its chain");
    }
    assert_eq!(waiting(&store, &thread), []);
}

/// Waiting requests move to the successor in the batch that continues their thread; later ones are delivered there too.
pub fn requests_move_with_their_chain<H: Harness>(harness: &H) {
    let store = harness.open();
    let sender = harness.open();
    let old = create(&store, "old");
    let new = id("new");
    append(&store, &old, starts("run-1"));
    for (name, kind) in [("n1", "send"), ("n2", "cancel"), ("n3", "send")] {
        sender.post(request(&old, name, kind)).unwrap();
    }
    let mut handoff = super::chains::hands_off(&store, &old, &new);
    handoff.parts[0].changeset.events.push(verdict("n1"));
    handoff.consumed.push((old.clone(), id("n1")));
    handoff.posted.push(request(&old, "n4", "rename"));
    commit(&store, handoff);
    assert_eq!((ids(&sender, &old), ids(&sender, &new)), (vec![], ["n2", "n3", "n4"].map(id).to_vec()));
    assert!(waiting(&sender, &new).iter().all(|posted| posted.thread == new));
    let late = sender.post(request(&old, "n5", "send")).unwrap();
    assert_eq!(late, Delivery { thread: new.clone(), answered: None });
    let again = sender.post(request(&old, "n1", "send")).unwrap();
    assert_eq!(
        (again.thread, again.answered.is_some()),
        (old.clone(), true),
        "it was consumed before its chain continued"
    );
    assert_eq!(ids(&sender, &new), ["n2", "n3", "n4", "n5"].map(id));
    assert_eq!(sender.post(request(&old, "n2", "cancel")).unwrap(), Delivery { thread: new, answered: None });
}

/// Posting a request wakes followers, and names its thread.
pub fn a_posted_request_wakes_followers<H: Harness>(harness: &H) {
    let store = harness.open();
    let sender = harness.open();
    let one = create(&store, "one");
    let two = create(&store, "two");
    let before = store.newest().unwrap();
    assert_eq!(store.arrivals(before, 10).unwrap(), []);
    sender.post(request(&two, "n1", "cancel")).unwrap();
    let posting = Batch { posted: vec![request(&one, "n2", "cancel")], ..Batch::of(part(&two, empty())) };
    commit(&sender, posting);
    let told = store.arrivals(before, 10).unwrap();
    assert_eq!(told.iter().map(|arrival| &arrival.thread).collect::<Vec<_>>(), [&two, &one]);
    assert!(told[0].number > before && told[1].number > told[0].number);
    assert_eq!(store.arrivals(told[0].number, 10).unwrap(), told[1..]);
    assert_eq!(store.arrivals(before, 1).unwrap(), told[..1]);
    let now = Position { commits: store.position().unwrap(), requests: store.newest().unwrap(), leases: u64::MAX };
    assert_eq!(now.requests, told[1].number);
    // A hint comes at once for a request that exists, and for one that is posted.
    store.watch(Position { requests: before, ..now }, Duration::from_secs(60)).unwrap();
    let waited = at_once(2, |worker| match worker {
        0 => with_retries(|| store.watch(now, Duration::from_secs(60))),
        _ => with_retries(|| sender.post(request(&one, "n3", "cancel"))).map(drop),
    });
    assert!(waited.iter().all(Result::is_ok), "{waited:?}");
    assert_eq!(store.arrivals(now.requests, 10).unwrap().len(), 1);
}

/// A thread that is created under a lease is leased by its creator from the start.
pub fn a_thread_can_be_created_under_a_lease<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = id("held");
    let committed = commit(&store, Batch::of(birth(&thread, new_thread()).under(1)));
    assert_eq!(committed.part_of(&thread).unwrap().head.epoch, 1);
    assert_eq!(store.holder(&thread).unwrap().as_ref(), Some(store.owner()));
    assert_refused!(
        other.acquire(&thread, AT_ONCE),
        Error::LeaseHeld { .. },
        "a thread that was created under a lease"
    );
    assert_eq!(commit(&store, Batch::of(part(&thread, says("mine")).under(1))).version_of(&thread), Some(1));
    let lease = crate::Lease { thread: thread.clone(), owner: store.owner().clone(), epoch: 1, taken_from: None };
    store.renew(&lease).unwrap();
    store.release(&lease).unwrap();
    other.acquire(&thread, AT_ONCE).unwrap();
    assert_refused!(
        store.commit(Batch::of(part(&thread, empty()).under(1))),
        Error::StaleEpoch { .. },
        "its lease was released"
    );
}

/// A commit returns the events as they are in the log.
pub fn a_commit_returns_what_it_wrote<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "told");
    let committed = commit(&store, Batch::of(part(&thread, says("hello"))));
    let told = committed.part_of(&thread).unwrap();
    assert_eq!(told.head, crate::Logs::head(&store, &thread).unwrap());
    let lines = crate::Logs::read(&store, &thread, told.first_line, usize::MAX).unwrap();
    let (checkpoint, events) = lines.split_last().unwrap();
    assert!(matches!(checkpoint.event, Event::Checkpoint(_)));
    assert_eq!(events.iter().map(|line| &line.event).collect::<Vec<_>>(), told.events.iter().collect::<Vec<_>>());
}
