//! Chains: one execution over many threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use selvedge_engine::{Input, NoticeKind, Outcome, RunConfig, RunEvent};
use selvedge_model::ToolKind;
use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::event::{BlobErased, EffectClass, HandoffReason};
use selvedge_model::limits::Limits;
use selvedge_model::message::Block;
use selvedge_model::{
    AgentId, Batch, CallId, Cancel, Changeset, Classify, Draft, Event, Expect, Message, MessageId, ModelError,
    NewThread, Output, Part, Posted, Prompt, Reason, Request, Role, Status, Stop, ThreadId,
};
use selvedge_store::{Acquire, Commit, Inbox, Leases, Logs, Registry};
use serde_json::json;

use crate::support::{CountingTool, Harness, Reply, agent, assert_dies, request};

/// A model with a small window that makes a number of tool calls, over however many threads, and records its prompts.
pub(crate) struct Small {
    window: u64,
    /// How many tokens it counts for every prompt, besides its text.
    added: u64,
    calls: usize,
    asked: AtomicUsize,
    firsts: std::sync::Mutex<Vec<String>>,
}

crate::support::as_model!(Small);

impl crate::support::Blocking for Small {
    fn answer(&self, prompt: &Prompt<'_>, _: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        self.firsts.lock().unwrap().push(prompt.messages[0].plain_text());
        let bytes: usize = prompt.messages.iter().map(|message| message.content_bytes().len()).sum();
        let usage = Usage { input_tokens: self.added + bytes as u64 / 4, output_tokens: 1, ..Usage::default() };
        let (content, end) = if asked < self.calls {
            let id = CallId::new(format!("c{asked}")).unwrap();
            let call = Block::tool_call(id, "look", json!({"n": asked}));
            (vec![call], End::ToolCalls)
        } else {
            (vec![Block::text("that was all")], End::Finished)
        };
        Ok(Answer::new(content, end).using(usage))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        Some(self.window)
    }
}

pub(crate) fn small(window: u64, calls: usize, answer: usize) -> (RunConfig, Arc<Small>) {
    adding(window, calls, answer, 0)
}

fn adding(window: u64, calls: usize, answer: usize, added: u64) -> (RunConfig, Arc<Small>) {
    let model = Arc::new(Small { window, added, calls, asked: AtomicUsize::new(0), firsts: Default::default() });
    let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), model.clone(), "small");
    let mut look = CountingTool::new("look", EffectClass::Pure);
    look.answer = Output::text("x".repeat(answer));
    work.tools = vec![Arc::new(look)];
    (work, model)
}

impl Harness {
    fn chain(&self, thread: &ThreadId) -> Vec<(ThreadId, Status)> {
        let chain = self.store.chain(thread).unwrap();
        chain.into_iter().map(|link| (link.manifest.thread_id, link.manifest.status)).collect()
    }

    fn resume(&self, thread: &ThreadId, input: Input, work: &RunConfig) -> selvedge_engine::Result<Outcome> {
        self.engine.resume(thread, input, work, &Cancel::new(), &mut |_| {})
    }
}

#[test]
fn a_chain_of_many_hops_still_knows_its_first_task_and_ends() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, model) = small(1500, 40, 400);
    work.limits = Limits { turns: Some(100), ..Limits::default() };
    let ended = harness.send(&thread, Input::text("count the stars"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("that was all")));
    let chain = harness.chain(&thread);
    assert!(chain.len() > 5, "{} hops", chain.len());
    assert_eq!(ended.thread_id, chain.last().unwrap().0);
    assert!(chain[..chain.len() - 1].iter().all(|(_, status)| *status == Status::Continued));
    assert!(model.firsts.lock().unwrap().iter().all(|first| first == "count the stars"));
    // No turn was repeated, and the turns of all links count together.
    assert_eq!(model.asked.load(Ordering::SeqCst), 41);
    assert_eq!(harness.loaded(&ended.thread_id).meter.ended.turns, 41);
}

#[test]
fn both_sides_of_a_handoff_name_each_other_and_the_successor_is_a_sibling() {
    let harness = Harness::new();
    let parent = harness.thread();
    let new = NewThread {
        parent_id: Some(parent.clone()),
        title: Some("stars".to_owned()),
        inputs: json!({"sky": "north"}).as_object().unwrap().clone(),
        ..NewThread::of(AgentId::new("scribe").unwrap())
    };
    let thread = harness.engine.create(new, Vec::new()).unwrap();
    let (work, _) = small(600, 12, 400);
    let ended = harness.send(&thread, Input::text("count the stars"), &work).0.unwrap();
    let old = harness.loaded(&thread);
    let next = harness.loaded(&harness.chain(&thread)[1].0);
    assert_eq!(old.manifest.continuation_thread_id.as_ref(), Some(&next.manifest.thread_id));
    assert_eq!(next.manifest.continuation_of.as_ref(), Some(&thread));
    assert_eq!(next.manifest.chain_root_id, thread);
    assert_eq!((next.manifest.parent_id, next.manifest.title), (Some(parent), Some("stars".to_owned())));
    assert_eq!(next.manifest.inputs, old.manifest.inputs);
    assert_ne!(ended.thread_id, thread);
    let lines = harness.store.read(&thread, 0, 1000).unwrap();
    let handoff = lines.iter().find_map(|line| match &line.event {
        Event::ThreadHandoff(handoff) => Some(handoff.clone()),
        _ => None,
    });
    let handoff = handoff.unwrap();
    assert!(handoff.trailing_turns > 0 && handoff.details["kept"].as_u64().unwrap() > 1);
    assert!(handoff.details["dropped"].as_u64().unwrap() > 0);
    assert!(lines.iter().any(|line| matches!(line.event, Event::ContextLimitReached(_))));
    assert_eq!(handoff.reason, Some(HandoffReason::ContextFull));
    assert_eq!(harness.reasons(&thread).last(), Some(&Reason::RunFinished));
}

/// A thread that its agent handed off reported that its context was full.
#[test]
fn a_handoff_that_an_agent_asks_for_does_not_report_a_full_context() {
    let harness = Harness::new();
    let thread = harness.thread();
    let replies = vec![Reply::Calls(vec![("h", "hand_over", json!({}))]), Reply::Says("I took over")];
    let work =
        agent(replies, vec![Arc::new(CountingTool::new("hand_over", EffectClass::Pure).of_kind(ToolKind::Handoff))]);
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.result.as_deref(), harness.chain(&thread).len()), (Some("I took over"), 2));
    let lines = harness.store.read(&thread, 0, 1000).unwrap();
    let reason = lines.iter().find_map(|line| match &line.event {
        Event::ThreadHandoff(handoff) => Some(handoff.reason),
        _ => None,
    });
    assert_eq!(reason, Some(Some(HandoffReason::Requested)));
    assert!(!lines.iter().any(|line| matches!(line.event, Event::ContextLimitReached(_))));
}

/// That an agent had asked for a handoff was known to its process alone.
#[test]
fn a_handoff_that_was_asked_for_is_made_by_the_process_that_takes_the_thread_up() {
    let harness = Harness::new();
    let thread = harness.thread();
    let hand_over = || Arc::new(CountingTool::new("hand_over", EffectClass::Pure).of_kind(ToolKind::Handoff));
    let first = vec![Reply::Calls(vec![("h", "hand_over", json!({}))])];
    let work = agent(first, vec![hand_over()]);
    harness.dies_after(Reason::ToolResultsCommitted, || harness.send(&thread, Input::text("go"), &work));
    let later = harness.another();
    let ended = later.resumed(&thread, Input::nothing(), &agent(Vec::new(), vec![hand_over()]));
    assert_eq!((ended.status.status().unwrap(), later.chain(&thread).len()), (Status::Completed, 2));
}

/// After a short first prompt with many tokens of the provider's own, every later byte once counted as many, so that a thread handed itself
/// off, or was suspended because of a too long task, although everything fitted.
#[test]
fn tokens_that_a_provider_adds_to_every_prompt_do_not_fill_a_window() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, model) = adding(20_000, 3, 8000, 3000);
    let ended = harness.send(&thread, Input::text("count"), &work).0.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap()),
        (Status::Completed, "completed"),
        "{ended:?}"
    );
    assert_eq!((harness.chain(&thread).len(), model.asked.load(Ordering::SeqCst)), (1, 4));
    // They do count: with less room the same work fills it.
    let harness = Harness::new();
    let (work, _) = adding(8000, 3, 8000, 3000);
    let thread = harness.thread();
    harness.send(&thread, Input::text("count"), &work).0.unwrap();
    assert!(harness.chain(&thread).len() > 1);
}

#[test]
fn limits_count_through_handoffs() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, model) = small(600, 100, 400);
    work.limits = Limits { turns: Some(12), ..Limits::default() };
    let ended = harness.send(&thread, Input::text("count"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, "turns_exceeded"));
    assert_eq!(model.asked.load(Ordering::SeqCst), 12);
    assert!(harness.chain(&thread).len() > 1);
}

#[test]
fn a_window_that_is_too_small_suspends_with_a_clear_code_and_never_loops() {
    for window in [1, 10, 50] {
        let harness = Harness::new();
        let thread = harness.thread();
        let (mut work, _) = small(window, 50, 2000);
        work.system = "s".repeat(500);
        let ended = harness.send(&thread, Input::text("count the stars"), &work).0.unwrap();
        let why = ended.suspended.unwrap();
        assert_eq!(
            (ended.status.status().unwrap(), why.code.as_deref()),
            (Status::Suspended, Some("context_too_small")),
            "{window}"
        );
        assert_eq!(harness.chain(&thread).len(), 1);
    }
}

#[test]
fn a_huge_message_is_shortened_in_the_successor_which_keeps_the_whole_as_a_blob() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, model) = small(2000, 1, 50);
    let long = format!("count the stars {}", "y".repeat(50_000));
    let ended = harness.send(&thread, Input::text(long.as_str()), &work).0.unwrap();
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(harness.chain(&thread).len(), 2);
    let first = model.firsts.lock().unwrap()[0].clone();
    assert!(first.starts_with("count the stars") && first.len() < 5000);
    let blob = first.split("blob ").nth(1).unwrap().split([' ', ';']).next().unwrap().parse().unwrap();
    assert_eq!(harness.store.blob(&ended.thread_id, &blob).unwrap(), long.as_bytes());
}

#[test]
fn chains_have_an_end() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, _) = small(1500, 1000, 400);
    work.continuation.chain_max = 4;
    let ended = harness.send(&thread, Input::text("count"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, "chain_too_deep"));
    assert_eq!(harness.chain(&thread).len(), 4);
}

#[test]
fn the_seed_is_the_configured_one_or_else_the_default_message() {
    for is_made in [true, false] {
        let harness = Harness::new();
        let thread = harness.thread();
        let (mut work, _) = small(600, 12, 400);
        work.continuation.message = "go on".to_owned();
        work.continuation.first_message =
            Arc::new(move |left| is_made.then(|| format!("after {}: {}", left.previous_thread_id, left.message)));
        let ended = harness.send(&thread, Input::text("count"), &work).0.unwrap();
        assert_eq!(ended.status, Status::Completed);
        let messages = harness.loaded(&harness.chain(&thread)[1].0).messages;
        let wanted = if is_made { format!("after {thread}: go on") } else { "go on".to_owned() };
        assert!(messages.iter().any(|message| message.role == Role::User && message.plain_text() == wanted));
    }
}

#[test]
fn an_interrupted_handoff_is_resumed_by_the_successor() {
    let harness = Harness::new().dying_between_threads();
    let thread = harness.thread();
    let (work, model) = small(600, 12, 400);
    assert_dies(|| harness.send(&thread, Input::text("count"), &work));
    let chain = harness.chain(&thread);
    assert_eq!(chain.iter().map(|link| link.1).collect::<Vec<_>>(), [Status::Continued, Status::Created]);
    let later = harness.another();
    let ended = later.resume(&thread, Input::nothing(), &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("that was all")));
    assert_eq!(model.asked.load(Ordering::SeqCst), 13);
}

#[test]
fn a_cancel_during_a_handoff_reaches_the_successor() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let (work, model) = small(600, 1000, 400);
    let told_at = Arc::new(AtomicUsize::new(0));
    let told = told_at.clone();
    let asked = model.clone();
    let at = thread.clone();
    *harness.store.before_successor.lock().unwrap() = Some(Box::new(move |_| {
        told.store(asked.asked.load(Ordering::SeqCst), Ordering::SeqCst);
        other.engine.stop(&at, Stop::Cancelled).unwrap();
    }));
    assert_eq!(harness.send(&thread, Input::text("count"), &work).0.unwrap().status, Status::Cancelled);
    let asked = model.asked.load(Ordering::SeqCst);
    let told_at = told_at.load(Ordering::SeqCst);
    assert!(asked == told_at && asked > 0, "the model was not called again");
    assert_eq!(harness.chain(&thread).len(), 2);
}

/// A sender took over a chain while it was handed off, and the process that had run it reported that it ended as `continued`.
#[test]
fn a_chain_is_run_to_its_end_by_one_process_even_if_it_gets_messages_or_a_stop_in_between() {
    for is_stopped in [false, true] {
        let harness = Harness::new();
        let thread = harness.thread();
        let other = harness.another();
        let (work, model) = small(600, 12, 400);
        let at = thread.clone();
        let said = work.clone();
        let sender = Arc::new(std::sync::Mutex::new(None));
        let begun = sender.clone();
        // The old thread is settled, and its successor has not begun.
        *harness.store.before_successor.lock().unwrap() = Some(Box::new(move |next| {
            assert_eq!(other.store.get(next).unwrap().manifest.status, Status::Created);
            assert_eq!(other.engine.recover().unwrap(), []);
            if is_stopped {
                other.engine.stop(&at, Stop::Cancelled).unwrap();
                return;
            }
            let speak = move || other.engine.send(&at, Input::text("and this"), &said, &Cancel::new(), &mut |_| {});
            *begun.lock().unwrap() = Some(std::thread::spawn(speak));
            std::thread::sleep(Duration::from_millis(250));
        }));
        let ended = harness.engine.send(&thread, Input::text("count"), &work, &Cancel::new(), &mut |_| {}).unwrap();
        let expected = if is_stopped { Status::Cancelled } else { Status::Completed };
        assert_eq!(ended.status.status().unwrap(), expected, "{ended:?}");
        assert_eq!(is_stopped, model.asked.load(Ordering::SeqCst) < 13);
        if let Some(sender) = sender.lock().unwrap().take() {
            assert_eq!(sender.join().unwrap().unwrap().status, Status::Completed);
        }
        let chain = harness.chain(&thread);
        let runs = chain.iter().flat_map(|(link, _)| harness.store.runs(link).unwrap());
        let heard = runs.filter(|run| run.meta.source_mailbox_entry_id.is_some()).count();
        assert_eq!(heard, usize::from(!is_stopped), "once");
        for (link, _) in &chain {
            assert_eq!(harness.store.pending(link).unwrap(), [], "no request is left");
        }
    }
}

/// A request to a running chain that could not be served ended its run, or blocked it for ever.
#[test]
fn a_request_that_is_refused_does_not_end_the_run_of_a_chain() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, _) = small(600, 12, 400);
    let turns = selvedge_model::limits::Limits { turns: Some(1), ..Default::default() };
    for (index, input) in [Input::nothing(), Input::nothing().raising(turns)].into_iter().enumerate() {
        harness.store.post(request(&thread, &format!("send-{index}"), Request::Send(input))).unwrap();
    }
    let mut dropped = 0;
    let mut tell =
        |told: RunEvent| dropped += usize::from(matches!(told, RunEvent::Notice { kind: NoticeKind::Dropped, .. }));
    let ended = harness.engine.send(&thread, Input::text("count"), &work, &Cancel::new(), &mut tell).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("that was all")));
    assert_eq!(dropped, 2);
    assert!(harness.chain(&thread).iter().all(|(link, _)| harness.store.pending(link).unwrap().is_empty()));
}

/// It returned that everything was said already, and never the outcome.
#[test]
fn a_sender_to_a_chain_that_hands_itself_off_gets_the_outcome_of_its_end() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let (work, _) = small(600, 12, 400);
    let at = thread.clone();
    let said = work.clone();
    let sender = Arc::new(std::sync::Mutex::new(None));
    let begun = sender.clone();
    harness.once_after(Reason::ToolResultsCommitted, move |_| {
        *begun.lock().unwrap() = Some(std::thread::spawn(move || {
            let mut links = std::collections::HashSet::new();
            let mut tell = |told: RunEvent| {
                if let RunEvent::Committed { thread, .. } = told {
                    links.insert(thread.clone());
                }
            };
            let ended = other.engine.send(&at, Input::text("and this"), &said, &Cancel::new(), &mut tell);
            (ended, links.len())
        }));
        std::thread::sleep(Duration::from_millis(200));
    });
    harness.send(&thread, Input::text("count"), &work).0.unwrap();
    let (told, links) = sender.lock().unwrap().take().unwrap().join().unwrap();
    let told = told.unwrap();
    assert_eq!(
        (told.status.status().unwrap(), told.result.as_deref()),
        (Status::Completed, Some("that was all")),
        "{told:?}"
    );
    assert!(links >= 1);
}

/// It acted on what it had read before it had the lease: the request had been served since, or the thread that had not begun had ended.
#[test]
fn a_sender_that_acquires_the_lease_checks_the_thread_again() {
    for slow in 0..6 {
        let mut harness = Harness::new();
        let thread = harness.thread();
        let other = harness.another();
        let (work, _) = small(600, 12, 400);
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        let (slowly, is_slow) = std::sync::mpsc::channel::<()>();
        let is_over = std::sync::Mutex::new(is_over);
        let await_end = move || _ = is_over.lock().unwrap().recv_timeout(Duration::from_secs(20));
        match slow {
            // The process that finds the unstarted successor gets its lease when everything is over.
            0 => {
                *other.store.before_successor.lock().unwrap() = Some(Box::new(move |_| {
                    slowly.send(()).unwrap();
                    await_end();
                }));
                let is_slow = std::sync::Mutex::new(Some(is_slow));
                harness.prepare(Arc::new(move |manifest, _| {
                    if manifest.continuation_of.is_some() {
                        let slow = is_slow.lock().unwrap().take();
                        _ = slow.map(|slow| slow.recv_timeout(Duration::from_secs(5)));
                    }
                    Ok(())
                }));
            }
            // The n-th attempt to acquire a lease succeeds when everything is over.
            nth => {
                let mut left = nth;
                *other.store.before_lease.lock().unwrap() = Some(Box::new(move |_| {
                    left -= 1;
                    if left == 0 {
                        await_end();
                    }
                }));
            }
        }
        let sender = Arc::new(std::sync::Mutex::new(None));
        let begun = sender.clone();
        let third = harness.another();
        let said = work.clone();
        harness.once_after(Reason::ToolResultsCommitted, move |thread| {
            let at = thread.clone();
            *begun.lock().unwrap() = Some(std::thread::spawn(move || {
                other.engine.send(&at, Input::text("and this"), &said, &Cancel::new(), &mut |_| {})
            }));
            std::thread::sleep(Duration::from_millis(50));
            third.store.post(said_later(&chain_end(&third, thread), "send-later")).unwrap();
        });
        harness.send(&thread, Input::text("count"), &work).0.unwrap();
        drop(over);
        let told = sender.lock().unwrap().take().unwrap().join().unwrap().unwrap();
        assert_eq!(
            (told.status.status().unwrap(), told.result.as_deref()),
            (Status::Completed, Some("that was all")),
            "{slow}: {told:?}"
        );
        let runs =
            harness.chain(&thread).iter().flat_map(|(link, _)| harness.store.runs(link).unwrap()).collect::<Vec<_>>();
        assert_eq!(runs.iter().filter(|run| run.meta.origin == "user").count(), 3, "{slow}: each once");
        let own = runs.iter().find(|run| Some(&run.run_id) == told.run_id.as_ref()).unwrap();
        assert_ne!(
            own.meta.source_mailbox_entry_id.as_deref(),
            Some("send-later"),
            "{slow}: not the answer to another sender"
        );
        for (link, _) in harness.chain(&thread) {
            assert_eq!(harness.store.pending(&link).unwrap(), [], "of {link}");
        }
    }
}

/// It got the answer to a later sender.
#[test]
fn a_sender_that_acquires_the_lease_after_later_sends_were_served_gets_its_own_outcome() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let (work, _) = small(60_000, 3, 40);
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let mut asked = 0;
    *other.store.before_lease.lock().unwrap() = Some(Box::new(move |_| {
        asked += 1;
        // The first attempt finds it held; the second comes when everything is over.
        if asked == 2 {
            _ = is_over.recv_timeout(Duration::from_secs(20));
        }
    }));
    let sender = Arc::new(std::sync::Mutex::new(None));
    let begun = sender.clone();
    let third = harness.another();
    let said = work.clone();
    harness.once_after(Reason::ToolResultsCommitted, move |thread| {
        let at = thread.clone();
        *begun.lock().unwrap() = Some(std::thread::spawn(move || {
            other.engine.send(&at, Input::text("and this"), &said, &Cancel::new(), &mut |_| {})
        }));
        while third.store.pending(thread).unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        third.store.post(said_later(thread, "send-later")).unwrap();
    });
    harness.send(&thread, Input::text("count"), &work).0.unwrap();
    drop(over);
    let told = sender.lock().unwrap().take().unwrap().join().unwrap().unwrap();
    let runs = harness.store.runs(&thread).unwrap();
    let own = runs.iter().find(|run| Some(&run.run_id) == told.run_id.as_ref()).unwrap();
    let answered = own.meta.source_mailbox_entry_id.as_deref();
    assert!(answered.is_some_and(|note| note != "send-later"), "{answered:?}");
}

fn said_later(thread: &ThreadId, id: &str) -> Posted {
    request(thread, id, Request::Send(Input::text("and later this")))
}

fn chain_end(harness: &Harness, thread: &ThreadId) -> ThreadId {
    harness.chain(thread).last().unwrap().0.clone()
}

/// It was served again by the successor: its verdict was in the predecessor.
#[test]
fn a_request_that_is_posted_again_is_not_served_again_by_the_successor() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, _) = small(60_000, 1, 40);
    harness.store.post(said_later(&thread, "send-once")).unwrap();
    harness.engine.send(&thread, Input::text("count"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    let answered = |harness: &Harness| {
        let runs = harness.chain(&thread).into_iter().flat_map(|(link, _)| harness.store.runs(&link).unwrap());
        runs.filter(|run| run.meta.source_mailbox_entry_id.as_deref() == Some("send-once")).count()
    };
    assert_eq!(answered(&harness), 1);
    // Before it is continued, and afterwards.
    harness.store.post(said_later(&thread, "send-once")).unwrap();
    harness.engine.resume(&thread, Input::text("go on"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    harness.store.post(said_later(&thread, "send-once")).unwrap();
    harness.engine.send(&thread, Input::text("and on"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(answered(&harness), 1);
    assert!(harness.chain(&thread).iter().all(|(link, _)| harness.store.pending(link).unwrap().is_empty()));
}

/// The first blocked for ever: that a message was known already counted as an answer. The second lost the new message.
#[test]
fn a_known_message_neither_blocks_a_thread_nor_hides_new_messages() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, _) = small(60_000, 1, 40);
    let known = Message::text(Role::User, "count").with_id(MessageId::new("m1").unwrap());
    harness.engine.send(&thread, Input::messages(vec![known.clone()]), &work, &Cancel::new(), &mut |_| {}).unwrap();
    let send = |thread: &ThreadId, id: &str, messages: &[&Message]| {
        let messages = messages.iter().map(|message| (*message).clone()).collect();
        harness.store.post(request(thread, id, Request::Send(Input::messages(messages)))).unwrap();
    };
    send(&thread, "send-m1", &[&known]);
    let ended = harness.engine.resume(&thread, Input::text("go on"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("that was all")));
    let new = Message::text(Role::User, "and this").with_id(MessageId::new("m2").unwrap());
    let end = chain_end(&harness, &thread);
    for (id, messages) in [("send-m2", vec![&new]), ("send-m2-again", vec![&new, &known])] {
        send(&end, id, &messages);
        harness.engine.send(&end, Input::text("on"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    }
    let more = Message::text(Role::User, "and more").with_id(MessageId::new("m3").unwrap());
    send(&end, "send-m3", &[&new, &more]);
    harness.engine.send(&end, Input::text("on"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    let loaded = selvedge_store::load::load(&harness.store.inner, &end, &harness.trust, None).unwrap();
    let said = |text: &str| loaded.thread.messages.iter().filter(|message| message.plain_text() == text).count();
    assert_eq!((said("and this"), said("and more")), (1, 1));
}

/// They stayed there for ever: a continued thread has no further commit.
#[test]
fn a_request_that_is_posted_to_a_continued_thread_is_served_once_by_its_successor() {
    for is_known in [false, true] {
        let harness = Harness::new();
        let thread = harness.thread();
        let (work, _) = small(600, 12, 400);
        harness.engine.send(&thread, Input::text("count"), &work, &Cancel::new(), &mut |_| {}).unwrap();
        let chain = harness.chain(&thread);
        let last = &chain[chain.len() - 1].0;
        let before = &chain[chain.len() - 2].0;
        let late = |thread: &ThreadId| request(thread, "send-late", Request::Send(Input::text("late")));
        harness.store.post(late(before)).unwrap();
        harness.store.post(request(before, "cancel-late", Request::Cancel)).unwrap();
        if is_known {
            harness.store.post(late(last)).unwrap();
        }
        harness.engine.send(&thread, Input::text("and this"), &work, &Cancel::new(), &mut |_| {}).unwrap();
        let runs =
            harness.chain(&thread).iter().flat_map(|(link, _)| harness.store.runs(link).unwrap()).collect::<Vec<_>>();
        let heard = runs.iter().filter(|run| run.meta.source_mailbox_entry_id.as_deref() == Some("send-late")).count();
        assert_eq!(heard, 1);
        for (link, _) in harness.chain(&thread) {
            assert_eq!(harness.store.pending(&link).unwrap(), [], "of {link}");
        }
    }
}

/// It was free for a moment, and a process that took it then ran it beside the one that had handed it off.
#[test]
fn a_successor_is_held_from_the_start() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let (work, _) = small(600, 12, 400);
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    *harness.store.before_successor.lock().unwrap() = Some(Box::new(move |next| {
        let refusal = other.store.acquire(next, Acquire::default()).unwrap_err();
        assert_eq!(refusal.code(), "lease_held");
        count.fetch_add(1, Ordering::SeqCst);
    }));
    let ended = harness.engine.send(&thread, Input::text("count"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.result.as_deref()),
        (Status::Completed, Some("that was all")),
        "{ended:?}"
    );
    assert_eq!(refused.load(Ordering::SeqCst), 1);
}

#[test]
fn a_send_to_a_thread_before_it_was_continued_is_served_by_the_successor() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let third = harness.another();
    let (work, _) = small(600, 12, 400);
    let sender = Arc::new(std::sync::Mutex::new(None));
    let begun = sender.clone();
    let said = work.clone();
    harness.once_after(Reason::AssistantTurnCommitted, move |thread| {
        let at = thread.clone();
        let speak = move || _ = other.send(&at, Input::text("and the moons"), &said).0.unwrap();
        *begun.lock().unwrap() = Some(std::thread::spawn(speak));
        while third.store.pending(thread).unwrap().is_empty() {
            std::thread::yield_now();
        }
    });
    harness.send(&thread, Input::text("count"), &work).0.unwrap();
    sender.lock().unwrap().take().unwrap().join().unwrap();
    let heard: Vec<_> = harness
        .chain(&thread)
        .into_iter()
        .flat_map(|(link, _)| harness.loaded(&link).messages)
        .filter(|message| message.role == Role::User && message.plain_text() == "and the moons")
        .collect();
    assert!(!heard.is_empty());
    assert!(harness.chain(&thread).iter().all(|(link, _)| harness.store.pending(link).unwrap().is_empty()));
}

#[test]
fn resuming_the_first_of_a_chain_resumes_its_end_and_reports_both() {
    let harness = Harness::new();
    let first = harness.thread();
    let work = agent(vec![Reply::Says("one"), Reply::Says("two"), Reply::Says("three")], Vec::new());
    harness.send(&first, Input::text("hello"), &work).0.unwrap();
    let needs = harness.resume(&first, Input::nothing(), &work).unwrap_err();
    assert_eq!(needs.code(), "not_runnable");
    let second = harness.resume(&first, Input::text("The key is fixed. Retry."), &work).unwrap();
    let resumed = second.resumed.clone().unwrap();
    assert_eq!((&resumed.old_thread_id, resumed.original_thread_id), (&first, None));
    assert_eq!((second.result.as_deref(), resumed.reconstructed_turns), (Some("two"), 1));
    let third = harness.resume(&first, Input::text("again"), &work).unwrap();
    let resumed = third.resumed.unwrap();
    assert_eq!(resumed.original_thread_id, Some(first.clone()));
    assert_eq!((resumed.resolved_thread_id, resumed.reconstructed_turns), (second.thread_id, 2));
    assert_eq!(third.result.as_deref(), Some("three"));
    assert_eq!(harness.chain(&first).len(), 3);
    let lines = harness.store.read(&first, 0, 100).unwrap();
    let preview = lines.iter().find_map(|line| match &line.event {
        Event::ThreadResumed(resumed) => resumed.details.get("message_preview").cloned(),
        _ => None,
    });
    assert_eq!(preview, Some(json!("The key is fixed. Retry.")));
}

#[test]
fn a_resumed_thread_that_is_too_big_hands_itself_off() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, _) = small(1_000_000, 20, 400);
    harness.send(&thread, Input::text("count"), &work).0.unwrap();
    let (work, model) = small(1500, 1, 40);
    let ended = harness.resume(&thread, Input::text("once more"), &work).unwrap();
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(harness.chain(&thread).len(), 3);
    assert_eq!(model.firsts.lock().unwrap()[0], "count");
}

#[test]
fn a_call_without_a_result_is_shown_as_interrupted_in_the_successor() {
    let harness = Harness::new();
    let block = Block::tool_call(CallId::new("lost").unwrap(), "look", json!({}));
    let dangling = Message { content: vec![block], ..Message::text(Role::Assistant, "") };
    let new = NewThread::of(AgentId::new("scribe").unwrap());
    let thread = harness.engine.create(new, vec![Message::text(Role::User, "go"), dangling]).unwrap();
    harness.engine.stop(&thread, Stop::Cancelled).unwrap();
    let work = agent(vec![Reply::Says("never"), Reply::Says("on")], Vec::new());
    let ended = harness.resume(&thread, Input::text("go on"), &work).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("on")));
    let shown = harness.loaded(&ended.thread_id).messages;
    assert!(shown.iter().any(|message| String::from_utf8(message.content_bytes()).unwrap().contains("interrupted")));
}

#[test]
fn a_successor_has_its_own_copies_of_blobs() {
    let harness = Harness::new();
    let thread = harness.thread();
    // One result of a hundred kilobytes, which goes to a blob; then the window is full.
    let (mut work, _) = small(3000, 2, 100_000);
    work.continuation.threshold = 0.6;
    let ended = harness.send(&thread, Input::text("count"), &work).0.unwrap();
    assert!(harness.chain(&thread).len() > 1);
    let messages = harness.loaded(&ended.thread_id).messages;
    let blocks: Vec<_> = messages.iter().flat_map(|message| &message.content).collect();
    let named: Vec<_> = blocks.iter().filter_map(|block| block.blob()).collect();
    assert!(!named.is_empty());
    assert!(named.iter().all(|blob| harness.store.blob(&ended.thread_id, blob).is_ok()));
    // The text that the model reads names the same blobs, and no other.
    let text = serde_json::to_string(&blocks).unwrap();
    let told: Vec<_> = text.split("the whole is in blob ").skip(1).map(|rest| rest[..64].parse().unwrap()).collect();
    assert!(told.iter().all(|blob| named.contains(&blob)), "{told:?}");
}

/// Blobs of shortened messages were named only in the text of a successor: a deleted one passed `verify`.
#[test]
fn a_log_names_every_blob_that_its_messages_were_shortened_into() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (mut work, _) = small(3000, 2, 100_000);
    work.continuation.threshold = 0.6;
    let task = "t".repeat(50_000);
    let ended = harness.send(&thread, Input::text(&task), &work).0.unwrap();
    for (thread, _) in harness.chain(&thread) {
        let mut named = selvedge_model::blob::NamedBlobs::default();
        let lines = harness.store.read(&thread, 0, usize::MAX).unwrap();
        for line in &lines {
            named.take(0, &line.event);
        }
        let named: Vec<_> = named.must_be_there().map(|(blob, _)| blob).collect();
        let text = serde_json::to_string(&harness.loaded(&thread).messages).unwrap();
        let told = text.split("the whole is in blob ").skip(1).map(|rest| rest[..64].parse().unwrap());
        let told: Vec<selvedge_model::Digest> = told.collect();
        assert!(thread != ended.thread_id || told.len() >= 2, "{told:?}");
        assert!(told.iter().all(|blob| named.contains(blob)), "{thread}: {told:?} {named:?}");
    }
}

/// A model that counts a token for every byte.
struct Dense {
    asked: AtomicUsize,
}

crate::support::as_model!(Dense);

impl crate::support::Blocking for Dense {
    fn answer(&self, prompt: &Prompt<'_>, _: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let bytes: usize = prompt.messages.iter().map(|message| message.plain_text().len()).sum();
        let usage = Usage { input_tokens: bytes as u64, output_tokens: 1, ..Usage::default() };
        Ok(Answer::new(vec![Block::text("so")], End::Finished).using(usage))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        Some(2400)
    }
}

/// What a run had learnt about its provider's token counts was lost with it: the next one sent a prompt that was known to fill the context.
#[test]
fn the_next_run_knows_the_token_counts_of_the_provider() {
    let harness = Harness::new();
    let thread = harness.thread();
    let model = Arc::new(Dense { asked: AtomicUsize::new(0) });
    let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), model.clone(), "dense");
    work.continuation.threshold = 0.8;
    harness.send(&thread, Input::text("x".repeat(2000)), &work).0.unwrap();
    assert_eq!(harness.chain(&thread).len(), 1);
    let ended = harness.send(&thread, Input::text("and now?"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), harness.chain(&thread).len()), (Status::Completed, 2));
    assert_eq!(model.asked.load(Ordering::SeqCst), 2);
    // A process that reads the log knows the same.
    let lines = harness.store.read(&thread, 0, usize::MAX).unwrap();
    let usage = lines.iter().find_map(|line| match &line.event {
        Event::Usage(usage) => Some((usage.prompt_tokens, usage.prompt_bytes >= 2000)),
        _ => None,
    });
    assert_eq!(usage, Some((2000, true)));
}

#[test]
fn a_blob_that_was_erased_is_not_named_in_the_successor() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut look = CountingTool::new("look", EffectClass::Pure);
    look.answer = Output::text("x".repeat(100_000));
    let work = agent(vec![Reply::Calls(vec![("a", "look", json!({}))]), Reply::Says("read")], vec![Arc::new(look)]);
    harness.send(&thread, Input::text("read it"), &work).0.unwrap();
    let blob =
        harness.loaded(&thread).messages.iter().flat_map(|m| &m.content).find_map(|b| b.blob().copied()).unwrap();
    let erased = Event::BlobErased(BlobErased { blob, reason: "asked to".to_owned() });
    harness.store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, Changeset::of_event(erased)))).unwrap();
    let work = agent(vec![Reply::Says("never"), Reply::Says("never"), Reply::Says("on")], Vec::new());
    let ended = harness.resume(&thread, Input::text("go on"), &work).unwrap();
    let messages = harness.loaded(&ended.thread_id).messages;
    assert!(messages.iter().flat_map(|message| &message.content).all(|block| block.blob().is_none()));
    assert!(serde_json::to_string(&messages).unwrap().contains(&format!("{blob} (gone)")));
}

#[test]
fn stopping_a_chain_whose_end_is_deleted_does_not_block() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (work, _) = small(600, 12, 400);
    let ended = harness.send(&thread, Input::text("count"), &work).0.unwrap();
    selvedge_store::Commit::delete(&*harness.store, &ended.thread_id).unwrap();
    assert_eq!(harness.engine.stop(&thread, Stop::Cancelled).unwrap().status, Status::Continued);
}

/// A model whose window is much smaller than it says: it refuses longer prompts.
struct Misjudged {
    bytes_max: usize,
    asked: AtomicUsize,
    refused: AtomicUsize,
}

crate::support::as_model!(Misjudged);

impl crate::support::Blocking for Misjudged {
    fn answer(&self, prompt: &Prompt<'_>, _: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        let bytes: usize = prompt.messages.iter().map(|message| message.content_bytes().len()).sum();
        if bytes > self.bytes_max {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(ModelError::ContextTooLong { why: format!("{bytes} bytes") });
        }
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        if asked < 12 {
            let id = CallId::new(format!("c{asked}")).unwrap();
            return Ok(Answer::new(vec![Block::tool_call(id, "look", json!({"n": asked}))], End::ToolCalls));
        }
        Ok(Answer::new(vec![Block::text("that was all")], End::Finished))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        Some(1_000_000)
    }
}

/// A prompt that the provider found too long ended the run with an error, and every further run of the thread too.
#[test]
fn a_prompt_that_is_too_long_for_the_provider_is_continued_by_a_successor() {
    let harness = Harness::new();
    let thread = harness.thread();
    let model = Arc::new(Misjudged { bytes_max: 6000, asked: AtomicUsize::new(0), refused: AtomicUsize::new(0) });
    let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), model.clone(), "misjudged");
    let mut look = CountingTool::new("look", EffectClass::Pure);
    look.answer = Output::text("x".repeat(1000));
    work.tools = vec![Arc::new(look)];
    let ended = harness.send(&thread, Input::text("count the stars"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("that was all")));
    let chain = harness.chain(&thread);
    assert!(chain.len() > 1 && model.refused.load(Ordering::SeqCst) > 0);
    let lines = harness.store.read(&thread, 0, 1000).unwrap();
    assert!(lines.iter().any(|line| matches!(line.event, Event::ContextLimitReached(_))));
}
