//! Events, as subscribers get them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use selvedge_engine::events::{QUEUE_EVENTS_MAX, RunEvent, Subscription, Watched};
use selvedge_engine::{Input, NoticeKind, Redactor, RunConfig};
use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::event::EffectClass;
use selvedge_model::limits::Limits;
use selvedge_model::message::Block;
use selvedge_model::scope::Scopes;
use selvedge_model::{
    AgentId, CallId, Cancel, Draft, ModelError, Prompt, Reason, Request, Role, RunId, Status, Stop, ThreadId,
};
use selvedge_store::{Inbox, Logs, Registry};
use serde_json::json;

use crate::chains::small;
use crate::spawning::{nursery, parent};
use crate::support::{CountingTool, DEATH, Harness, Reply, agent, assert_dies, die, request};

const LONG: Duration = Duration::from_secs(20);

/// A model that drafts these pieces each time it is called, and fails this often first.
struct Drafting {
    pieces: Vec<Draft>,
    answer: Vec<Block>,
    failures: AtomicUsize,
}

impl Drafting {
    fn says(pieces: &[&str]) -> Self {
        let draft = |text: &&str| Draft::Text { text: (*text).to_owned() };
        let answer = vec![Block::text(pieces.concat())];
        Self { pieces: pieces.iter().map(draft).collect(), answer, failures: AtomicUsize::new(0) }
    }

    fn work(self) -> RunConfig {
        let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), Arc::new(self), "drafting");
        work.retries.wait = Duration::from_millis(1);
        work
    }
}

crate::support::as_model!(Drafting);

impl crate::support::Blocking for Drafting {
    fn answer(&self, prompt: &Prompt<'_>, draft: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        let is_answered = prompt.messages.last().is_some_and(|message| message.role == Role::Tool);
        if is_answered {
            let content = vec![Block::text("that is all")];
            return Ok(Answer::new(content, End::Finished));
        }
        self.pieces.iter().for_each(|piece| draft(piece.clone()));
        let fails = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            let partial = Vec::new();
            let usage = Usage::default();
            return Err(ModelError::Cut { why: "the line broke".to_owned(), partial, usage: Some(usage) });
        }
        let has_calls = self.answer.iter().any(|block| matches!(block, Block::ToolCall { .. }));
        let end = if has_calls { End::ToolCalls } else { End::Finished };
        Ok(Answer::new(self.answer.clone(), end))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// Everything in the queue.
fn all(subscription: &mut Subscription) -> Vec<RunEvent> {
    std::iter::from_fn(|| subscription.try_recv()).collect()
}

fn text_of(event: &RunEvent) -> Option<&str> {
    match event {
        RunEvent::Draft { draft: Draft::Text { text } | Draft::Arguments { text, .. }, .. } => Some(text),
        _ => None,
    }
}

/// The text that was drafted for a thread.
fn drafted(events: &[RunEvent], thread: &ThreadId) -> String {
    events.iter().filter(|event| event.thread() == Some(thread)).filter_map(text_of).collect()
}

/// The runs of a thread that were published to have ended.
fn ended(events: &[RunEvent], of: &ThreadId) -> Vec<(RunId, Status, String)> {
    let end = |event: &RunEvent| match event {
        RunEvent::Ended { thread, run, status, code } if thread == of => Some((run.clone(), *status, code.clone())),
        _ => None,
    };
    events.iter().filter_map(end).collect()
}

/// Checks that every line of these threads was published once and in order, from their first to their last.
fn assert_whole(harness: &Harness, events: &[RunEvent], threads: &[ThreadId]) {
    let mut next: BTreeMap<&ThreadId, (u64, u64)> = BTreeMap::new();
    for event in events {
        assert!(!matches!(event, RunEvent::Missed { .. }), "{event:?}");
        let RunEvent::Committed { thread, version, first_line, events, .. } = event else { continue };
        let (line, next_version) = next.entry(thread).or_default();
        assert_eq!((*first_line, *version), (*line, *next_version), "{thread}");
        let stored = harness.store.read(thread, *first_line, events.len()).unwrap();
        assert!(stored.iter().map(|line| &line.event).eq(events.iter()), "{thread}");
        // The line after them is the checkpoint.
        (*line, *next_version) = (*first_line + events.len() as u64 + 1, *version + 1);
    }
    for thread in threads {
        let head = harness.store.head(thread).unwrap();
        assert_eq!(next.get(thread), Some(&(head.lines, head.version + 1)), "{thread}");
    }
}

/// The drafts of a message that was served for another sender were lost.
#[test]
fn a_message_that_is_served_for_another_caller_is_published_with_its_drafts() {
    let harness = Harness::new();
    let mut watching = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    let store = harness.store.clone();
    let busy = thread.clone();
    tool.meanwhile = Arc::new(move |_| {
        while store.pending(&busy).unwrap().is_empty() {
            std::thread::yield_now();
        }
    });
    let call = Reply::Calls(vec![("a", "look", json!({}))]);
    let work = agent(vec![call, Reply::Says("one"), Reply::Says("two")], vec![Arc::new(tool)]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| harness.send(&thread, Input::text("first"), &work).0.unwrap());
        while harness.store.get(&thread).unwrap().manifest.status != Status::Running {
            std::thread::yield_now();
        }
        let second = scope.spawn(|| harness.send(&thread, Input::text("second"), &work).0.unwrap());
        assert_eq!(first.join().unwrap().result.as_deref(), Some("one"));
        assert_eq!(second.join().unwrap().result.as_deref(), Some("two"));
    });
    let events = all(&mut watching);
    assert_whole(&harness, &events, std::slice::from_ref(&thread));
    assert_eq!(drafted(&events, &thread), "onetwo");
    let ends = ended(&events, &thread);
    assert_eq!(ends.len(), 2);
    let runs_of = |wanted: &str| events.iter().find(|event| text_of(event) == Some(wanted)).cloned();
    for (index, text) in ["one", "two"].into_iter().enumerate() {
        let Some(RunEvent::Draft { run, attempt, .. }) = runs_of(text) else { panic!("{events:?}") };
        assert_eq!((run, attempt), (ends[index].0.clone(), 1));
    }
    let calls = events.iter().filter(|event| matches!(event, RunEvent::Calling { tool, .. } if tool == "look"));
    assert_eq!(calls.count(), 1);
}

#[test]
fn a_child_in_the_same_process_is_published_with_its_drafts() {
    let harness = Harness::new();
    let mut watching = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    let mut own = harness.engine.subscribe(Watched::Thread(thread.clone()));
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(vec![Reply::Says("three")]));
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let child = harness.children_of(&thread).remove(0).thread_id;
    let events = all(&mut watching);
    assert_whole(&harness, &events, &[thread.clone(), child.clone()]);
    assert_eq!((drafted(&events, &child).as_str(), drafted(&events, &thread).as_str()), ("three", "done"));
    assert_eq!((ended(&events, &child).len(), ended(&events, &thread).len()), (1, 1));
    // A child is no part of its parent's chain.
    assert!(all(&mut own).iter().all(|event| event.thread() == Some(&thread)));
}

#[test]
fn commits_outside_of_a_run_are_published() {
    let harness = Harness::new();
    let mut watching = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    let stopped = harness.thread();
    harness.engine.rename(&thread, "stars", Duration::ZERO).unwrap();
    harness.engine.stop(&stopped, Stop::Cancelled).unwrap();
    let events = all(&mut watching);
    assert_whole(&harness, &events, &[thread.clone(), stopped.clone()]);
    // Stopping a thread that has not begun is recorded as a run that ended.
    assert!(
        matches!(&ended(&events, &stopped)[..], [(_, Status::Cancelled, code)] if code == "cancelled"),
        "{events:?}"
    );
    assert_eq!(ended(&events, &thread), []);
    // A dropped request is published, too, with the commit that records it.
    harness.store.post(request(&thread, "forged", Request::Send(Input::text("pay")))).unwrap();
    harness.store.unsealed.lock().unwrap().push(selvedge_model::RequestId::new("forged").unwrap());
    harness.send(&thread, Input::text("hi"), &agent(vec![Reply::Says("hello")], Vec::new())).0.unwrap();
    let events = all(&mut watching);
    let notices = events.iter().filter(|event| matches!(event, RunEvent::Notice { .. })).collect::<Vec<_>>();
    assert!(
        matches!(notices[..], [RunEvent::Notice { kind: NoticeKind::Dropped, why, .. }] if why.contains("forged")),
        "{notices:?}"
    );
}

#[test]
fn a_lost_run_is_published_as_ended_when_it_is_settled() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut tool = CountingTool::new("pay", EffectClass::Pure);
    tool.meanwhile = Arc::new(|_| die());
    let work = agent(vec![Reply::Calls(vec![("p", "pay", json!({}))])], vec![Arc::new(tool)]);
    let dying = harness.another();
    let died =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dying.send(&thread, Input::text("pay"), &work)));
    assert!(died.is_err());
    let mut watching = harness.engine.subscribe(Watched::Thread(thread.clone()));
    harness.engine.recover().unwrap();
    let events = all(&mut watching);
    let [(run, Status::Suspended, _)] = &ended(&events, &thread)[..] else { panic!("{events:?}") };
    assert!(harness.loaded(&thread).runs.contains_key(run));
}

#[test]
fn two_subscribers_get_the_same() {
    let harness = Harness::new();
    let mut one = harness.engine.subscribe(Watched::All);
    let mut two = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    harness.send(&thread, Input::text("go"), &Drafting::says(&["a", "b", "c"]).work()).0.unwrap();
    let events = all(&mut one);
    assert_eq!(events, all(&mut two));
    assert_eq!(drafted(&events, &thread), "abc");
    assert!(matches!(events.last(), Some(RunEvent::Ended { status: Status::Completed, .. })), "{events:?}");
}

#[test]
fn the_queue_of_a_subscriber_that_never_reads_is_bounded_and_blocks_no_run() {
    let harness = Harness::new();
    let mut idle = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    let pieces = vec!["x"; 3 * QUEUE_EVENTS_MAX];
    let runs = 3;
    for _ in 0..runs {
        let ended = harness.send(&thread, Input::text("go"), &Drafting::says(&pieces).work()).0.unwrap();
        assert_eq!(ended.status, Status::Completed);
    }
    let events = all(&mut idle);
    assert!(events.len() <= QUEUE_EVENTS_MAX + 1, "{}", events.len());
    let missed = events.iter().filter(|event| matches!(event, RunEvent::Missed { .. })).collect::<Vec<_>>();
    let [RunEvent::Missed { drafts, commits: 0, others: 0, .. }] = missed[..] else { panic!("{missed:?}") };
    let seen = drafted(&events, &thread).len() as u64;
    assert_eq!(drafts + seen, (runs * pieces.len()) as u64);
    // Drafts were dropped first: every commit is there.
    let committed = events.into_iter().filter(|event| !matches!(event, RunEvent::Missed { .. })).collect::<Vec<_>>();
    assert_whole(&harness, &committed, std::slice::from_ref(&thread));
}

#[test]
fn missed_commits_can_be_read_from_the_store_by_line() {
    let harness = Harness::new();
    let mut slow = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    for index in 0..=QUEUE_EVENTS_MAX {
        harness.engine.rename(&thread, &format!("title {index}"), Duration::ZERO).unwrap();
    }
    let Some(RunEvent::Missed { first_lines, commits, has_unlisted: false, .. }) = slow.try_recv() else { panic!() };
    let from = first_lines[&thread];
    let Some(RunEvent::Committed { first_line, .. }) = slow.try_recv() else { panic!() };
    let missed = harness.store.read(&thread, from, usize::try_from(first_line - from).unwrap()).unwrap();
    let is_end = |line: &&selvedge_log::Line| matches!(line.event, selvedge_model::Event::Checkpoint(_));
    assert_eq!((from, missed.iter().filter(is_end).count() as u64), (0, commits));
}

#[test]
fn a_secret_that_is_cut_in_two_is_not_published() {
    let harness = Harness::with(Redactor::new(["canary-1234".to_owned()], Vec::new()), Scopes::builtin());
    let mut watching = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    let call = CallId::new("c").unwrap();
    let arguments = json!({"key": "canary-1234"});
    let piece = |text: &str| Draft::Arguments { id: Some(call.clone()), text: text.to_owned() };
    let mut model = Drafting::says(&["the token is can", "ary-12", "34"]);
    model.pieces.push(Draft::ToolCall { name: "put".to_owned(), id: Some(call.clone()) });
    model.pieces.extend([piece(r#"{"key":"cana"#), piece(r#"ry-1234"}"#)]);
    model.answer.push(Block::tool_call(call.clone(), "put", arguments));
    let mut work = model.work();
    work.tools = vec![Arc::new(CountingTool::new("put", EffectClass::Pure))];
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let events = all(&mut watching);
    assert!(!format!("{events:?}").contains("canary"), "{events:?}");
    assert_eq!(drafted(&events, &thread), r#"the token is [redacted]{"key":"[redacted]"}"#);
    assert_whole(&harness, &events, &[thread]);
    // The text that was held back came before its answer.
    let is_answer = |event: &RunEvent| matches!(event, RunEvent::Committed { reason, .. } if *reason == Reason::AssistantTurnCommitted);
    let answered = events.iter().position(is_answer).unwrap();
    assert!(events[answered..].iter().all(|event| text_of(event).is_none()), "{events:?}");
}

#[test]
fn drafts_of_a_failed_attempt_are_distinguished_from_those_of_the_next() {
    let harness = Harness::new();
    let mut watching = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    let model = Drafting::says(&["hello"]);
    model.failures.store(2, Ordering::SeqCst);
    harness.send(&thread, Input::text("go"), &model.work()).0.unwrap();
    let said = all(&mut watching).into_iter().filter_map(|event| match event {
        RunEvent::Draft { attempt, draft: Draft::Void, .. } => Some(format!("void {attempt}")),
        RunEvent::Draft { attempt, .. } => Some(format!("draft {attempt}")),
        RunEvent::Retrying { why, .. } => Some(why.rsplit(' ').next().unwrap_or_default().to_owned()),
        _ => None,
    });
    assert_eq!(said.collect::<Vec<_>>().join(", "), "draft 1, void 1, broke, draft 2, void 2, broke, draft 3");
}

/// Counts how often it was woken, and wakes a sleeping thread.
struct Counter {
    woken: AtomicUsize,
    sleeper: std::thread::Thread,
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        self.sleeper.unpark();
    }
}

impl Counter {
    fn new() -> Arc<Self> {
        Arc::new(Self { woken: AtomicUsize::new(0), sleeper: std::thread::current() })
    }
}

#[test]
fn a_dropped_subscription_gets_no_more_events() {
    let harness = Harness::new();
    let thread = harness.thread();
    let counter = Counter::new();
    let work = Drafting::says(&["a"]).work();
    let waker = Waker::from(counter.clone());
    let mut subscription = harness.engine.subscribe(Watched::Thread(thread.clone()));
    assert!(subscription.poll_recv(&mut Context::from_waker(&waker)).is_pending());
    harness.engine.rename(&thread, "stars", Duration::ZERO).unwrap();
    assert_eq!(counter.woken.load(Ordering::SeqCst), 1);
    assert!(subscription.poll_recv(&mut Context::from_waker(&waker)).is_ready());
    assert!(subscription.poll_recv(&mut Context::from_waker(&waker)).is_pending());
    drop(subscription);
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(counter.woken.load(Ordering::SeqCst), 1);
    // Its queue is gone, and its waker with it.
    drop(waker);
    assert_eq!(Arc::strong_count(&counter), 1);
    // A later one gets what happens from then on.
    let mut later = harness.engine.subscribe(Watched::Thread(thread.clone()));
    assert_eq!(later.try_recv(), None);
    harness.engine.rename(&thread, "moons", Duration::ZERO).unwrap();
    assert!(matches!(later.recv(LONG), Some(RunEvent::Committed { run: None, .. })));
}

#[test]
fn a_subscription_can_be_awaited_without_a_runtime() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut watching = harness.engine.subscribe(Watched::Thread(thread.clone()));
    let work = Drafting::says(&["a", "b"]).work();
    let counter = Counter::new();
    let waker = Waker::from(counter.clone());
    let mut events = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            harness.send(&thread, Input::text("go"), &work).0.unwrap();
            // The engine is dropped with the harness.
            drop(harness);
        });
        loop {
            match watching.poll_recv(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(event)) => events.push(event),
                Poll::Ready(None) => break,
                Poll::Pending => std::thread::park(),
            }
        }
    });
    assert!(counter.woken.load(Ordering::SeqCst) > 0);
    let has_ended = events.iter().any(|event| matches!(event, RunEvent::Ended { .. }));
    assert!(has_ended && events.iter().filter_map(text_of).eq(["a", "b"]), "{events:?}");
    assert!(watching.is_closed() && watching.recv(LONG).is_none());
}

#[test]
fn a_subscription_to_a_thread_follows_its_chain() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.thread();
    let mut watching = harness.engine.subscribe(Watched::Thread(thread.clone()));
    let (mut work, _) = small(1500, 40, 400);
    work.limits = Limits { turns: Some(100), ..Limits::default() };
    harness.send(&thread, Input::text("count the stars"), &work).0.unwrap();
    harness.send(&other, Input::text("hi"), &agent(vec![Reply::Says("hello")], Vec::new())).0.unwrap();
    let chain: Vec<ThreadId> =
        harness.store.chain(&thread).unwrap().into_iter().map(|link| link.manifest.thread_id).collect();
    assert!(chain.len() > 2, "{chain:?}");
    let events = all(&mut watching);
    let threads: BTreeSet<&ThreadId> = events.iter().filter_map(RunEvent::thread).collect();
    assert_eq!(threads, chain.iter().collect());
    // The end of a thread is published before its successor.
    let first_of = |thread: &ThreadId| events.iter().position(|event| event.thread() == Some(thread)).unwrap();
    let last_of = |thread: &ThreadId| events.iter().rposition(|event| event.thread() == Some(thread)).unwrap();
    assert!(chain.windows(2).all(|pair| last_of(&pair[0]) < first_of(&pair[1])));
    assert!(chain.iter().all(|link| ended(&events, link).len() == 1), "{events:?}");
    // A subscription to a thread that is continued already gets the events of its successors.
    let mut late = harness.engine.subscribe(Watched::Thread(thread));
    harness.engine.rename(chain.last().unwrap(), "stars", Duration::ZERO).unwrap();
    assert_eq!(late.try_recv().unwrap().thread(), chain.last());
}

/// The result of a commit was lost, but the commit was not: it is published as it is in the log, including new threads.
#[test]
fn a_commit_whose_result_was_lost_is_published() {
    let harness = Harness::new();
    let mut watching = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    let work = parent(vec![("s", json!({"task": "count"}))], nursery(vec![Reply::Says("three")]));
    harness.store.are_answers_lost.store(true, Ordering::SeqCst);
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    let child = harness.children_of(&thread).remove(0).thread_id;
    assert_whole(&harness, &all(&mut watching), &[thread, child]);
}

/// A run that dies after a commit does not take the published commit back.
#[test]
fn a_commit_is_published_even_if_its_run_dies_right_after_it() {
    let harness = Harness::new();
    let mut watching = harness.engine.subscribe(Watched::All);
    let thread = harness.thread();
    let work = Drafting::says(&["a"]).work();
    let store = Arc::downgrade(&harness.store);
    harness.once_after(Reason::AssistantTurnCommitted, move |_| {
        // The result is lost: the run looks up what was committed, and dies when it reads the time of it.
        let store = store.upgrade().unwrap();
        store.are_answers_lost.store(true, Ordering::SeqCst);
        *store.before_read.lock().unwrap() = Some(Box::new(|_| panic!("{DEATH}")));
    });
    assert_dies(|| harness.send(&thread, Input::text("go"), &work));
    let events = all(&mut watching);
    assert_whole(&harness, &events, &[thread]);
    assert!(matches!(events.last(), Some(RunEvent::Committed { version: 2, .. })), "{events:?}");
}
