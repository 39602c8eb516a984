//! Who speaks when: messages sent twice, at once, and to threads that run elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use selvedge_engine::{Input, RunEvent};
use selvedge_model::event::EffectClass;
use selvedge_model::{
    AgentId, Cancel, Classify, Event, Message, MessageId, NewThread, Reason, Request, Role, Status, Stop,
};
use selvedge_store::{Inbox, Leases};
use serde_json::json;

use crate::support::{Counting, House, Reply, agent, die, request, roles};

fn said(id: &str, text: &str) -> Input {
    Input::messages(vec![Message::text(Role::User, text).with_id(MessageId::new(id).unwrap())])
}

#[test]
fn a_message_sent_again_is_not_answered_again() {
    let house = House::new();
    let thread = house.thread();
    let work = agent(vec![Reply::Says("hello"), Reply::Says("again?")], Vec::new());
    house.send(&thread, said("m1", "hi"), &work).0.unwrap();
    let again = house.send(&thread, said("m1", "hi"), &work).0.unwrap();
    assert_eq!(
        (again.run_id, again.code.as_deref().unwrap(), again.status.status().unwrap()),
        (None, "already_said", Status::Completed)
    );
    assert_eq!(roles(&house.loaded(&thread)), "ua");
}

/// The lease stayed with whoever had not been able to read the thread, when somebody else had left a message for it.
#[test]
fn whoever_can_not_read_a_thread_does_not_keep_it() {
    let house = House::new();
    let thread = house.thread();
    let work = agent(vec![Reply::Says("hello")], Vec::new());
    for left in [None, Some(request(&thread, "send-1", Request::Send(Input::text("before"))))] {
        left.into_iter().for_each(|posted| drop(house.store.post(posted).unwrap()));
        house.store.is_unreadable.store(true, Ordering::SeqCst);
        let refused = house.send(&thread, said("m1", "hi"), &work).0.unwrap_err();
        assert!(refused.to_string().contains("the disk is gone"), "{refused}");
        assert_eq!(house.store.holder(&thread).unwrap(), None);
        house.store.is_unreadable.store(false, Ordering::SeqCst);
    }
}

#[test]
fn two_who_send_at_once_are_heard_one_after_the_other() {
    for processes in [1, 2] {
        let house = House::new();
        let thread = house.thread();
        let other = house.another();
        let at_once = Arc::new(AtomicUsize::new(0));
        let slow = || {
            let mut tool = Counting::new("look", EffectClass::Pure);
            let at_once = at_once.clone();
            tool.meanwhile = Arc::new(move |_| {
                assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "one run at a time");
                std::thread::sleep(std::time::Duration::from_millis(60));
                at_once.fetch_sub(1, Ordering::SeqCst);
            });
            let call = |id| Reply::Calls(vec![(id, "look", json!({}))]);
            agent(vec![call("a"), Reply::Says("one"), call("b"), Reply::Says("two")], vec![Arc::new(tool)])
        };
        let (first, second) = (slow(), slow());
        let house = &house;
        let second_house = if processes == 2 { &other } else { house };
        std::thread::scope(|scope| {
            let one = scope.spawn(|| house.send(&thread, said("m1", "first"), &first).0);
            while selvedge_store::Registry::get(&*house.store, &thread).unwrap().manifest.status != Status::Running {
                std::thread::yield_now();
            }
            let two = scope.spawn(|| second_house.send(&thread, said("m2", "second"), &second).0);
            assert_eq!(one.join().unwrap().unwrap().status, Status::Completed);
            assert_eq!(two.join().unwrap().unwrap().status, Status::Completed);
        });
        let loaded = house.loaded(&thread);
        assert_eq!(roles(&loaded), "uatauata", "{processes} processes");
        assert_eq!(loaded.runs.len(), 2);
        assert!(house.waiting(&thread).is_empty());
    }
}

#[test]
fn different_threads_run_side_by_side() {
    let house = House::new();
    let (one, two) = (house.thread(), house.thread());
    let barrier = Arc::new(std::sync::Barrier::new(2));
    let work = || {
        let mut tool = Counting::new("look", EffectClass::Pure);
        let barrier = barrier.clone();
        tool.meanwhile = Arc::new(move |_| _ = barrier.wait());
        agent(vec![Reply::Calls(vec![("a", "look", json!({}))]), Reply::Says("met")], vec![Arc::new(tool)])
    };
    std::thread::scope(|scope| {
        let runs = [&one, &two].map(|thread| scope.spawn(|| house.send(thread, Input::text("go"), &work()).0));
        runs.into_iter().for_each(|run| assert_eq!(run.join().unwrap().unwrap().result.as_deref(), Some("met")));
    });
}

/// A message waited as a note when both its sender and whoever ran the thread were killed.
#[test]
fn what_the_dead_had_sent_is_heard_first_and_keeps_nobody_out() {
    let house = House::new();
    let thread = house.thread();
    let dying = house.another();
    let send = |id: &str, text: &str| {
        house.store.post(request(&thread, id, Request::Send(said("m2", text)))).unwrap();
    };
    let mut tool = Counting::new("look", EffectClass::Pure);
    tool.meanwhile = Arc::new(|_| die());
    let call = || Reply::Calls(vec![("a", "look", json!({}))]);
    let work = agent(vec![call()], vec![Arc::new(tool)]);
    let died =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dying.send(&thread, said("m1", "first"), &work)));
    assert!(died.is_err());
    drop(dying);
    send("send-m2", "second");
    assert_eq!(house.engine.recover().unwrap().len(), 1);
    let replies = vec![call(), Reply::Says("one and two"), Reply::Says("three")];
    let work = agent(replies, vec![Arc::new(Counting::new("look", EffectClass::Pure))]);
    let ended = house.send(&thread, said("m3", "third"), &work).0.unwrap();
    assert_eq!(ended.result.as_deref(), Some("three"));
    assert_eq!(roles(&house.loaded(&thread)), "uautaua", "the second message was heard before the third");
    // A note whose message was heard already is answered and does nothing.
    send("send-again", "second");
    house.send(&thread, said("m4", "fourth"), &work).0.unwrap();
    assert!(house.waiting(&thread).is_empty());
}

/// A send that was repeated because its answer was lost was a second message.
#[test]
fn a_send_that_is_repeated_under_its_id_is_answered_and_not_served_again() {
    let house = House::new();
    let thread = house.thread();
    let work = agent(vec![Reply::Says("hello"), Reply::Says("hello again")], Vec::new());
    let send = |id: &str| {
        let id = selvedge_model::RequestId::new(id).unwrap();
        house
            .engine
            .send_as(&thread, id, Input::text("hi"), &work, &selvedge_model::Cancel::new(), &mut |_| {})
            .unwrap()
    };
    let first = send("k1");
    assert_eq!(first.result.as_deref(), Some("hello"));
    let again = send("k1");
    assert_eq!((again.run_id, again.result, again.status), (first.run_id, first.result, first.status));
    assert_eq!(roles(&house.loaded(&thread)), "ua");
    assert_eq!(send("k2").result.as_deref(), Some("hello again"));
    assert_eq!(roles(&house.loaded(&thread)), "uaua");
}

/// It was promised, and never applied.
#[test]
fn a_title_that_is_given_to_a_running_thread_is_applied() {
    let house = House::new();
    let thread = house.thread();
    let other = house.another();
    let mut tool = Counting::new("look", EffectClass::Pure);
    let at = thread.clone();
    tool.meanwhile = Arc::new(move |_| {
        let delivered = other.engine.rename(&at, "Tea", std::time::Duration::ZERO).unwrap();
        assert!(matches!(delivered, selvedge_engine::Delivered::Left(_)), "{delivered:?}");
    });
    let work = agent(vec![Reply::Calls(vec![("a", "look", json!({}))]), Reply::Says("done")], vec![Arc::new(tool)]);
    house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(house.loaded(&thread).manifest.title.as_deref(), Some("Tea"));
    assert!(house.waiting(&thread).is_empty());
    // And at once to one that is free.
    assert!(matches!(
        house.engine.rename(&thread, "Coffee", std::time::Duration::ZERO).unwrap(),
        selvedge_engine::Delivered::Served(_)
    ));
    assert_eq!(house.loaded(&thread).manifest.title.as_deref(), Some("Coffee"));
}

/// Two processes sent under one key at once: one ran it, found the other's in its inbox, and ran it again.
#[test]
fn a_request_that_is_posted_while_the_same_one_is_being_served_is_not_served_again() {
    let mut house = House::new();
    let thread = house.thread();
    let id = selvedge_model::RequestId::new("k1").unwrap();
    let (store, posted) = (house.store.clone(), request(&thread, "k1", Request::Send(Input::text("hi"))));
    house.prepare(Arc::new(move |_, _| store.post(posted.clone()).map(|_| ())));
    let work = agent(vec![Reply::Says("hello"), Reply::Says("hello again")], Vec::new());
    let cancel = selvedge_model::Cancel::new();
    let ended = house.engine.send_as(&thread, id, Input::text("hi"), &work, &cancel, &mut |_| {}).unwrap();
    assert_eq!(ended.result.as_deref(), Some("hello"));
    assert_eq!(roles(&house.loaded(&thread)), "ua");
    assert!(house.waiting(&thread).is_empty());
}

/// It stood in the first changeset, which no run had heard.
#[test]
fn what_a_thread_begins_with_is_said_by_its_first_run() {
    let house = House::new();
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let thread = house.engine.create(new, vec![Message::text(Role::User, "count")]).unwrap();
    assert!(house.loaded(&thread).messages.is_empty());
    assert_eq!(house.waiting(&thread).len(), 1, "it waits in the inbox");
    let work = agent(vec![Reply::Says("one, two")], Vec::new());
    let mut heard = Vec::new();
    let ended = house.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |told| heard.push(told));
    assert_eq!(ended.unwrap().result.as_deref(), Some("one, two"));
    assert!(house.waiting(&thread).is_empty());
    let first = heard.iter().find_map(|told| match told {
        RunEvent::Committed { reason: Reason::UserMessage, version, events, .. } => Some((*version, events.clone())),
        _ => None,
    });
    let (version, events) = first.expect("whoever lets it begin sees that");
    let is_said = |event: &Event| matches!(event, Event::Message(message) if message.plain_text() == "count");
    assert!(version == 1 && events.iter().any(is_said), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::RequestAnswered(_))));
}

#[test]
fn what_a_thread_was_to_begin_with_stays_when_it_is_stopped_before() {
    let house = House::new();
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let thread = house.engine.create(new, vec![Message::text(Role::User, "count")]).unwrap();
    house.engine.stop(&thread, Stop::Cancelled).unwrap();
    let loaded = house.loaded(&thread);
    assert_eq!((loaded.manifest.status, roles(&loaded).as_str()), (Status::Cancelled, "u"));
    assert!(house.waiting(&thread).is_empty());
}

#[test]
fn a_child_that_a_program_creates_belongs_to_its_family() {
    let house = House::new();
    let parent = house.thread();
    let new = NewThread { parent_id: Some(parent.clone()), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let child = house.engine.create(new, Vec::new()).unwrap();
    assert_eq!(house.loaded(&child).manifest.family_root(), &parent);
}

#[test]
fn what_was_sent_after_what_a_thread_begins_with_is_answered_after_it() {
    let house = House::new();
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let thread = house.engine.create(new, vec![Message::text(Role::User, "first")]).unwrap();
    house.store.post(request(&thread, "later", Request::Send(Input::text("second")))).unwrap();
    let work = agent(vec![Reply::Says("one"), Reply::Says("two")], Vec::new());
    let ended = house.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(ended.result.as_deref(), Some("one"));
    let said: Vec<_> = house.loaded(&thread).messages.iter().map(Message::plain_text).collect();
    assert_eq!(said, ["first", "one", "second", "two"]);
}

/// Its sender was told that it failed, and the next process served it all the same.
#[test]
fn what_was_submitted_and_refused_is_not_served_later() {
    let house = House::new();
    let thread = house.thread();
    let mut work = agent(vec![Reply::Says("never")], Vec::new());
    work.limits.spend = Some("1".parse().unwrap());
    let submitted = house.engine.submit(&thread, Input::text("spend"), &work, &Cancel::new()).unwrap();
    assert_eq!(submitted.wait(&mut |_| {}).unwrap_err().code(), "no_price");
    assert!(house.waiting(&thread).is_empty());
    let work = agent(vec![Reply::Says("hello")], Vec::new());
    house.send(&thread, Input::text("hi"), &work).0.unwrap();
    assert_eq!(roles(&house.loaded(&thread)), "ua");
}
