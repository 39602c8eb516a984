//! Messages sent twice, concurrently, and to threads that another process runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use selvedge_engine::{Input, RunEvent};
use selvedge_model::event::EffectClass;
use selvedge_model::{
    AgentId, Batch, Cancel, Classify, Event, Message, MessageId, NewThread, Reason, Request, Role, Status, Stop,
};
use selvedge_store::conformance::support::{part, starts};
use selvedge_store::{Acquire, Commit, Inbox, Leases, Logs};
use serde_json::json;

use crate::support::{CountingTool, Harness, Reply, agent, die, request, roles};

fn said(id: &str, text: &str) -> Input {
    Input::messages(vec![Message::text(Role::User, text).with_id(MessageId::new(id).unwrap())])
}

#[test]
fn a_message_sent_again_is_not_answered_again() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("hello"), Reply::Says("again?")], Vec::new());
    harness.send(&thread, said("m1", "hi"), &work).0.unwrap();
    let again = harness.send(&thread, said("m1", "hi"), &work).0.unwrap();
    assert_eq!(
        (again.run_id, again.code.as_deref().unwrap(), again.status.status().unwrap()),
        (None, "already_recorded", Status::Completed)
    );
    assert_eq!(roles(&harness.loaded(&thread)), "ua");
}

/// The lease stayed with a process that could not read the thread, when another one had posted a message for it.
#[test]
fn a_process_that_can_not_read_a_thread_does_not_keep_it() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("hello")], Vec::new());
    for left in [None, Some(request(&thread, "send-1", Request::Send(Input::text("before"))))] {
        left.into_iter().for_each(|posted| drop(harness.store.post(posted).unwrap()));
        harness.store.is_unreadable.store(true, Ordering::SeqCst);
        let refused = harness.send(&thread, said("m1", "hi"), &work).0.unwrap_err();
        assert!(refused.to_string().contains("the disk is gone"), "{refused}");
        assert_eq!(harness.store.holder(&thread).unwrap(), None);
        harness.store.is_unreadable.store(false, Ordering::SeqCst);
    }
}

#[test]
fn two_concurrent_sends_are_served_one_after_the_other() {
    for processes in [1, 2] {
        let harness = Harness::new();
        let thread = harness.thread();
        let other = harness.another();
        let at_once = Arc::new(AtomicUsize::new(0));
        let slow = || {
            let mut tool = CountingTool::new("look", EffectClass::Pure);
            let at_once = at_once.clone();
            tool.meanwhile = Arc::new(move |_| {
                assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "one run at a time");
                std::thread::sleep(std::time::Duration::from_millis(60));
                at_once.fetch_sub(1, Ordering::SeqCst);
            });
            let call = |id| Reply::Calls(vec![(id, "look", json!({}))]);
            agent(vec![call("a"), Reply::Says("one"), call("b"), Reply::Says("two")], vec![Arc::new(tool)])
        };
        let first = slow();
        let second = slow();
        let harness = &harness;
        let second_harness = if processes == 2 { &other } else { harness };
        std::thread::scope(|scope| {
            let one = scope.spawn(|| harness.send(&thread, said("m1", "first"), &first).0);
            while selvedge_store::Registry::get(&*harness.store, &thread).unwrap().manifest.status != Status::Running {
                std::thread::yield_now();
            }
            let two = scope.spawn(|| second_harness.send(&thread, said("m2", "second"), &second).0);
            assert_eq!(one.join().unwrap().unwrap().status, Status::Completed);
            assert_eq!(two.join().unwrap().unwrap().status, Status::Completed);
        });
        let loaded = harness.loaded(&thread);
        assert_eq!(roles(&loaded), "uatauata", "{processes} processes");
        assert_eq!(loaded.runs.len(), 2);
        assert!(harness.waiting(&thread).is_empty());
    }
}

#[test]
fn different_threads_run_concurrently() {
    let harness = Harness::new();
    let one = harness.thread();
    let two = harness.thread();
    let barrier = Arc::new(std::sync::Barrier::new(2));
    let work = || {
        let mut tool = CountingTool::new("look", EffectClass::Pure);
        let barrier = barrier.clone();
        tool.meanwhile = Arc::new(move |_| _ = barrier.wait());
        agent(vec![Reply::Calls(vec![("a", "look", json!({}))]), Reply::Says("met")], vec![Arc::new(tool)])
    };
    std::thread::scope(|scope| {
        let runs = [&one, &two].map(|thread| scope.spawn(|| harness.send(thread, Input::text("go"), &work()).0));
        runs.into_iter().for_each(|run| assert_eq!(run.join().unwrap().unwrap().result.as_deref(), Some("met")));
    });
}

/// A message stayed in the inbox when both its sender and the process that ran the thread were killed.
#[test]
fn sends_of_dead_processes_are_served_first_and_block_no_other_sender() {
    let harness = Harness::new();
    let thread = harness.thread();
    let dying = harness.another();
    let send = |id: &str, text: &str| {
        harness.store.post(request(&thread, id, Request::Send(said("m2", text)))).unwrap();
    };
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    tool.meanwhile = Arc::new(|_| die());
    let call = || Reply::Calls(vec![("a", "look", json!({}))]);
    let work = agent(vec![call()], vec![Arc::new(tool)]);
    let died =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dying.send(&thread, said("m1", "first"), &work)));
    assert!(died.is_err());
    drop(dying);
    send("send-m2", "second");
    assert_eq!(harness.engine.recover().unwrap().len(), 1);
    let replies = vec![call(), Reply::Says("one and two"), Reply::Says("three")];
    let work = agent(replies, vec![Arc::new(CountingTool::new("look", EffectClass::Pure))]);
    let ended = harness.send(&thread, said("m3", "third"), &work).0.unwrap();
    assert_eq!(ended.result.as_deref(), Some("three"));
    assert_eq!(roles(&harness.loaded(&thread)), "uautaua", "the second message was served before the third");
    // A request whose message is known already gets a verdict and does nothing.
    send("send-again", "second");
    harness.send(&thread, said("m4", "fourth"), &work).0.unwrap();
    assert!(harness.waiting(&thread).is_empty());
}

/// A send that was repeated because its result was lost was a second message.
#[test]
fn a_send_that_is_repeated_under_its_id_is_answered_and_not_served_again() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("hello"), Reply::Says("hello again")], Vec::new());
    let send = |id: &str| {
        let id = selvedge_model::RequestId::new(id).unwrap();
        harness
            .engine
            .send_as(&thread, id, Input::text("hi"), &work, &selvedge_model::Cancel::new(), &mut |_| {})
            .unwrap()
    };
    let first = send("k1");
    assert_eq!(first.result.as_deref(), Some("hello"));
    let again = send("k1");
    assert_eq!((again.run_id, again.result, again.status), (first.run_id, first.result, first.status));
    assert_eq!(roles(&harness.loaded(&thread)), "ua");
    assert_eq!(send("k2").result.as_deref(), Some("hello again"));
    assert_eq!(roles(&harness.loaded(&thread)), "uaua");
}

/// It was accepted, and never applied.
#[test]
fn a_rename_of_a_running_thread_is_applied() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    let at = thread.clone();
    tool.meanwhile = Arc::new(move |_| {
        let delivered = other.engine.rename(&at, "Tea", std::time::Duration::ZERO).unwrap();
        assert!(matches!(delivered, selvedge_engine::Delivered::Queued(_)), "{delivered:?}");
    });
    let work = agent(vec![Reply::Calls(vec![("a", "look", json!({}))]), Reply::Says("done")], vec![Arc::new(tool)]);
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(harness.loaded(&thread).manifest.title.as_deref(), Some("Tea"));
    assert!(harness.waiting(&thread).is_empty());
    // And at once to one that is free.
    assert!(matches!(
        harness.engine.rename(&thread, "Coffee", std::time::Duration::ZERO).unwrap(),
        selvedge_engine::Delivered::Served(_)
    ));
    assert_eq!(harness.loaded(&thread).manifest.title.as_deref(), Some("Coffee"));
}

/// Two processes sent under one key concurrently: one ran it, found the other's in its inbox, and ran it again.
#[test]
fn a_request_that_is_posted_while_the_same_one_is_being_served_is_not_served_again() {
    let mut harness = Harness::new();
    let thread = harness.thread();
    let id = selvedge_model::RequestId::new("k1").unwrap();
    let store = harness.store.clone();
    let posted = request(&thread, "k1", Request::Send(Input::text("hi")));
    harness.prepare(Arc::new(move |_, _| store.post(posted.clone()).map(|_| ())));
    let work = agent(vec![Reply::Says("hello"), Reply::Says("hello again")], Vec::new());
    let cancel = selvedge_model::Cancel::new();
    let ended = harness.engine.send_as(&thread, id, Input::text("hi"), &work, &cancel, &mut |_| {}).unwrap();
    assert_eq!(ended.result.as_deref(), Some("hello"));
    assert_eq!(roles(&harness.loaded(&thread)), "ua");
    assert!(harness.waiting(&thread).is_empty());
}

/// It was in the first changeset, which belongs to no run.
#[test]
fn the_first_messages_of_a_thread_are_recorded_by_its_first_run() {
    let harness = Harness::new();
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let thread = harness.engine.create(new, vec![Message::text(Role::User, "count")]).unwrap();
    assert!(harness.loaded(&thread).messages.is_empty());
    assert_eq!(harness.waiting(&thread).len(), 1, "they are pending in the inbox");
    let work = agent(vec![Reply::Says("one, two")], Vec::new());
    let mut heard = Vec::new();
    let ended = harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |told| heard.push(told));
    assert_eq!(ended.unwrap().result.as_deref(), Some("one, two"));
    assert!(harness.waiting(&thread).is_empty());
    let first = heard.iter().find_map(|told| match told {
        RunEvent::Committed { reason: Reason::UserMessage, version, events, .. } => Some((*version, events.clone())),
        _ => None,
    });
    let (version, events) = first.expect("the caller of the first run gets its commit");
    let is_said = |event: &Event| matches!(event, Event::Message(message) if message.plain_text() == "count");
    assert!(version == 1 && events.iter().any(is_said), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::RequestAnswered(_))));
}

#[test]
fn the_first_messages_of_a_thread_are_kept_if_it_is_stopped_before_it_begins() {
    let harness = Harness::new();
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let thread = harness.engine.create(new, vec![Message::text(Role::User, "count")]).unwrap();
    harness.engine.stop(&thread, Stop::Cancelled).unwrap();
    let loaded = harness.loaded(&thread);
    assert_eq!((loaded.manifest.status, roles(&loaded).as_str()), (Status::Cancelled, "u"));
    assert!(harness.waiting(&thread).is_empty());
}

#[test]
fn a_child_that_a_program_creates_belongs_to_its_family() {
    let harness = Harness::new();
    let parent = harness.thread();
    let new = NewThread { parent_id: Some(parent.clone()), ..NewThread::of(AgentId::new("scribe").unwrap()) };
    let child = harness.engine.create(new, Vec::new()).unwrap();
    assert_eq!(harness.loaded(&child).manifest.family_root(), &parent);
}

#[test]
fn a_send_after_the_first_messages_of_a_thread_is_served_after_them() {
    let harness = Harness::new();
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let thread = harness.engine.create(new, vec![Message::text(Role::User, "first")]).unwrap();
    harness.store.post(request(&thread, "later", Request::Send(Input::text("second")))).unwrap();
    let work = agent(vec![Reply::Says("one"), Reply::Says("two")], Vec::new());
    let ended = harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(ended.result.as_deref(), Some("one"));
    let said: Vec<_> = harness.loaded(&thread).messages.iter().map(Message::plain_text).collect();
    assert_eq!(said, ["first", "one", "second", "two"]);
}

/// Its sender got an error, and the next process served it all the same.
#[test]
fn a_submitted_send_that_was_refused_is_not_served_later() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = agent(vec![Reply::Says("never")], Vec::new());
    work.limits.spend = Some("1".parse().unwrap());
    let submitted = harness.engine.submit(&thread, Input::text("spend"), &work, &Cancel::new()).unwrap();
    assert_eq!(submitted.wait(&mut |_| {}).unwrap_err().code(), "price_unknown");
    assert!(harness.waiting(&thread).is_empty());
    let work = agent(vec![Reply::Says("hello")], Vec::new());
    harness.send(&thread, Input::text("hi"), &work).0.unwrap();
    assert_eq!(roles(&harness.loaded(&thread)), "ua");
}

/// Another message under a used key was answered as if it were the first one, and never run.
#[test]
fn another_message_under_a_used_key_is_refused() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("one"), Reply::Says("two")], Vec::new());
    let send = |text: &str| {
        let id = selvedge_model::RequestId::new("today").unwrap();
        harness.engine.send_as(&thread, id, Input::text(text), &work, &selvedge_model::Cancel::new(), &mut |_| {})
    };
    let first = send("pay anna").unwrap();
    assert_eq!(send("pay anna").unwrap().run_id, first.run_id);
    assert_eq!(send("pay ben").unwrap_err().code(), "idempotency_key_reused");
}

/// They waited until a process was asked to run that very thread.
#[test]
fn messages_to_a_process_that_died_are_answered_by_another_one() {
    let harness = Harness::new();
    let [abandoned, new, held] = [(); 3].map(|()| harness.thread());
    let doomed = harness.store.inner.another();
    let other = harness.another();
    for (thread, store) in [(&abandoned, &doomed), (&held, &other.store.inner)] {
        let lease = store.acquire(thread, Acquire::default()).unwrap();
        store.commit(Batch::of(part(thread, starts("r1")).under(lease.epoch))).unwrap();
    }
    for thread in [&abandoned, &new, &held] {
        harness.store.post(request(thread, &format!("to-{thread}"), Request::Send(Input::text("hi")))).unwrap();
    }
    let work = agent(vec![Reply::Says("here")], Vec::new());
    assert!(harness.engine.answer_abandoned(|_| None).unwrap().is_empty(), "nothing is known of their runs");
    // While it lives, its messages are its own.
    let answers = || harness.engine.answer_abandoned(|_| Some(work.clone())).unwrap();
    assert!(answers().is_empty());
    drop(doomed);
    assert_eq!(answers(), std::slice::from_ref(&abandoned));
    assert!(harness.engine.wait_idle(Duration::from_secs(60)));
    let loaded = harness.loaded(&abandoned);
    assert_eq!((loaded.manifest.status, roles(&loaded).as_str()), (Status::Completed, "ua"));
    assert!(harness.waiting(&abandoned).is_empty());
    assert_eq!((harness.waiting(&new).len(), harness.waiting(&held).len()), (1, 1));
    assert!(answers().is_empty());
}

#[test]
fn input_that_is_submitted_twice_under_a_key_runs_once() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("one"), Reply::Says("two")], Vec::new());
    let submit = |text: &str| {
        let id = selvedge_model::RequestId::new("today").unwrap();
        let submitted = harness.engine.submit_as(&thread, id, Input::text(text), &work, &Cancel::new())?;
        submitted.wait(&mut |_| {})
    };
    let first = submit("pay anna").unwrap();
    let again = submit("pay anna").unwrap();
    assert_eq!((again.run_id, again.result.as_deref()), (first.run_id, Some("one")));
    assert_eq!(submit("pay ben").unwrap_err().code(), "idempotency_key_reused");
    let loaded = harness.loaded(&thread);
    assert_eq!(roles(&loaded), "ua");
    let lines = harness.store.read(&thread, 0, usize::MAX).unwrap();
    let answered = lines.iter().filter(|line| matches!(line.event, Event::RequestAnswered(_))).count();
    assert_eq!(answered, 1, "its id and its verdict are on record");
}
