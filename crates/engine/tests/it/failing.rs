//! What is published and what is in the log when a commit, a model or a person refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use selvedge_engine::{Input, Redactor};
use selvedge_items::config::{Class, ErrorClass};
use selvedge_model::event::EffectClass;
use selvedge_model::scope::Scopes;
use selvedge_model::{Call, CallId, Cancel, Classify, Event, ModelError, Output, Reason, Status, Stop};
use selvedge_store::{Error as StoreError, Logs, Registry};
use serde_json::json;

use crate::support::{CountingTool, Harness, Reply, agent, roles};

fn one_round() -> Vec<Reply> {
    vec![Reply::Calls(vec![("c1", "look", json!({}))]), Reply::Says("found it")]
}

#[test]
fn an_answer_that_cannot_be_committed_ends_the_run_and_is_not_lost() {
    let harness = Harness::new();
    let thread = harness.thread();
    harness.store.refuse(Some(Reason::AssistantTurnCommitted));
    let (ended, heard) = harness.send(&thread, Input::text("hi"), &agent(vec![Reply::Says("hello")], Vec::new()));
    assert_eq!(ended.unwrap().status, Status::Error);
    assert!(heard.contains(&"state error".to_owned()) && !heard.contains(&"AssistantTurnCommitted".to_owned()));
    // The delta was committed with the next commit that succeeded.
    let loaded = harness.loaded(&thread);
    assert_eq!(roles(&loaded), "uaa");
    assert_eq!(loaded.messages[1].plain_text(), "hello");
    assert!(loaded.messages[2].plain_text().starts_with("(error: "));
}

#[test]
fn results_that_cannot_be_committed_are_not_published() {
    let harness = Harness::new();
    let thread = harness.thread();
    harness.store.refuse(Some(Reason::ToolResultsCommitted));
    let tool = CountingTool::new("look", EffectClass::AtMostOnce);
    let ran = tool.ran.clone();
    let work = agent(one_round(), vec![Arc::new(tool)]);
    let (ended, heard) = harness.send(&thread, Input::text("look"), &work);
    assert_eq!(ended.unwrap().status, Status::Error);
    assert!(!heard.contains(&"ToolResultsCommitted".to_owned()), "{heard:?}");
    assert_eq!(roles(&harness.loaded(&thread)), "uata", "a call has one result");
    // The outcome is in the last commit, so the call is never made again.
    harness.store.refuse(None);
    harness.send(&thread, Input::text("go on"), &work).0.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn an_end_that_cannot_be_committed_is_not_published_and_settled_by_the_next_process() {
    let harness = Harness::new();
    let thread = harness.thread();
    harness.store.refuse(Some(Reason::RunFinished));
    let (ended, heard) = harness.send(&thread, Input::text("hi"), &agent(vec![Reply::Says("hello")], Vec::new()));
    assert_eq!(ended.unwrap_err().code(), "state_error");
    assert_eq!(heard.iter().filter(|heard| *heard == "state error").count(), 1);
    assert!(!heard.contains(&"RunFinished".to_owned()));
    harness.store.refuse(None);
    assert_eq!(harness.loaded(&thread).manifest.status, Status::Running);
    let work = agent(vec![Reply::Says("hello"), Reply::Says("and again")], Vec::new());
    let ended = harness.send(&thread, Input::text("still there?"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("and again")));
}

/// It stayed registered, and would have been stopped instead of the caller's next run.
#[test]
fn a_run_that_could_not_be_prepared_is_not_registered_any_more() {
    let mut harness = Harness::new();
    let thread = harness.thread();
    let refused = |_: &_, _: &_| Err(StoreError::Database { why: "not now".to_owned(), retryable: true });
    harness.prepare(Arc::new(refused));
    let work = agent(vec![Reply::Says("hello")], Vec::new());
    let cancel = Cancel::new();
    let ended = harness.engine.send(&thread, Input::text("hi"), &work, &cancel, &mut |_| {});
    assert!(ended.unwrap_err().to_string().contains("not now"));
    harness.engine.stop(&thread, Stop::Cancelled).unwrap();
    assert_eq!(cancel.said(), None);
}

#[test]
fn a_model_that_fails_for_a_while_is_retried_and_its_drafts_are_void() {
    let harness = Harness::new();
    let thread = harness.thread();
    let failing = ModelError::Transient { why: "busy".to_owned() };
    let work = agent(vec![Reply::Fails(failing)], Vec::new());
    let (ended, heard) = harness.send(&thread, Input::text("hi"), &work);
    let ended = ended.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.code.as_deref().unwrap()), (Status::Suspended, "model_failed"));
    assert!(ended.why.unwrap().contains("busy"));
    assert_eq!(heard.iter().filter(|heard| *heard == "retrying").count(), 2, "three attempts");
    let loaded = harness.loaded(&thread);
    assert_eq!(loaded.messages.len(), 1, "nothing is written that the model would read: {:?}", loaded.messages);
    assert_eq!(loaded.manifest.session_id, None);
    // A resume without a message tries again.
    let work = agent(vec![Reply::Says("here I am")], Vec::new());
    let ended = harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("here I am")));
    assert_eq!(harness.loaded(&thread).messages.len(), 2);
}

/// The wait was cut to the longest that is configured, and the provider refused the earlier attempts, too.
#[test]
fn a_provider_that_asks_for_a_longer_wait_than_is_configured_is_not_asked_earlier() {
    for (asked, attempts) in [(1, 3), (3600, 1)] {
        let harness = Harness::new();
        let thread = harness.thread();
        let retry_after = Some(Duration::from_secs(asked));
        let failing = ModelError::RateLimited { why: "come back later".to_owned(), retry_after };
        let mut work = agent(vec![Reply::Fails(failing)], Vec::new());
        work.retries.wait_max = Duration::from_secs(2);
        let (ended, heard) = harness.send(&thread, Input::text("hi"), &work);
        let ended = ended.unwrap();
        assert_eq!(
            (ended.status.status(), ended.code.as_deref()),
            (Some(Status::Suspended), Some("model_rate_limited"))
        );
        assert_eq!(1 + heard.iter().filter(|heard| *heard == "retrying").count(), attempts, "{asked} s");
    }
}

/// The deadline of all attempts is the run's own: a wait for the next one does not outlast it.
#[test]
fn the_limit_on_running_time_ends_a_wait_for_the_next_attempt() {
    let harness = Harness::new();
    let thread = harness.thread();
    let retry_after = Some(Duration::from_secs(3600));
    let failing = ModelError::RateLimited { why: "come back later".to_owned(), retry_after };
    let mut work = agent(vec![Reply::Fails(failing)], Vec::new());
    work.retries.wait_max = Duration::from_secs(7200);
    work.limits.duration_seconds = Some(1);
    let (ended, heard) = harness.send(&thread, Input::text("hi"), &work);
    let ended = ended.unwrap();
    assert_eq!((ended.status.status(), ended.code.as_deref()), (Some(Status::Suspended), Some("duration_exceeded")));
    assert_eq!(heard.iter().filter(|heard| *heard == "retrying").count(), 1);
}

#[test]
fn whether_a_retry_helps_follows_from_the_code_unless_a_configured_class_overrides_it() {
    let class =
        |class, codes: &[u16]| ErrorClass { id: "mine".to_owned(), class, codes: codes.to_vec(), texts: Vec::new() };
    let of = |status| ModelError::Status { status, why: "so".to_owned(), retry_after: None };
    let unreached = ModelError::Unreached { why: "so".to_owned() };
    for (failure, classes, attempts, code) in [
        (of(503), vec![], 3, "model_failed"),
        (of(429), vec![], 3, "model_rate_limited"),
        (of(400), vec![], 1, "model_rejected"),
        (unreached.clone(), vec![], 3, "model_failed"),
        (of(503), vec![class(Class::Permanent, &[503])], 1, "model_failed"),
        (of(400), vec![class(Class::Transient, &[400])], 3, "model_rejected"),
        (of(400), vec![class(Class::Transient, &[503])], 1, "model_rejected"),
        (unreached, vec![class(Class::Permanent, &[0])], 1, "model_failed"),
    ] {
        let harness = Harness::new();
        let thread = harness.thread();
        let mut work = agent(vec![Reply::Fails(failure.clone())], Vec::new());
        work.classes = classes;
        let (ended, heard) = harness.send(&thread, Input::text("hi"), &work);
        let tried = 1 + heard.iter().filter(|heard| *heard == "retrying").count();
        assert_eq!((tried, ended.unwrap().code.as_deref().unwrap()), (attempts, code), "{failure}");
    }
}

#[test]
fn a_stopped_run_says_so_and_keeps_its_partial_text() {
    let harness = Harness::new();
    let thread = harness.thread();
    let cancel = Cancel::new();
    let work = agent(vec![Reply::Stops(cancel.clone())], Vec::new());
    let ended = harness.engine.send(&thread, Input::text("hi"), &work, &cancel, &mut |_| {});
    assert_eq!(ended.unwrap().status, Status::Cancelled);
    let loaded = harness.loaded(&thread);
    assert_eq!(loaded.messages.last().unwrap().plain_text(), "(stopped by user)");
}

#[test]
fn another_process_can_stop_a_run() {
    let harness = Harness::new();
    let thread = harness.thread();
    let other = harness.another();
    let work = agent(vec![Reply::Waits], Vec::new());
    let ended = std::thread::scope(|scope| {
        let run = scope.spawn(|| harness.send(&thread, Input::text("hi"), &work).0);
        while selvedge_store::Registry::get(&*other.store, &thread).unwrap().manifest.status != Status::Running {
            std::thread::sleep(Duration::from_millis(5));
        }
        other.engine.stop(&thread, Stop::Killed).unwrap();
        run.join().unwrap()
    });
    assert_eq!(ended.unwrap().status, Status::Killed);
    assert!(harness.waiting(&thread).is_empty(), "the request is consumed");
}

#[test]
fn secrets_are_in_no_log_and_no_blob() {
    let redactor = Redactor::new(["hunter22-canary".to_owned()], Vec::new());
    let harness = Harness::with(redactor, Scopes::builtin());
    let thread = harness.thread();
    let mut tool = CountingTool::new("look", EffectClass::Pure);
    tool.answer = Output::text(format!("{} hunter22-canary", "x".repeat(40_000)));
    let replies = vec![
        Reply::Calls(vec![("c1", "look", json!({"password": "hunter22-canary"}))]),
        Reply::Says("it is hunter22-canary"),
    ];
    harness
        .send(&thread, Input::text("my password is hunter22-canary"), &agent(replies, vec![Arc::new(tool)]))
        .0
        .unwrap();
    let (_, bytes) = selvedge_store::conformance::support::bytes_of(&harness.store.inner, &thread);
    assert!(!String::from_utf8(bytes).unwrap().contains("hunter22"));
    let blob = harness.loaded(&thread).calls.values().next().unwrap().outcome.clone().unwrap().blob.unwrap();
    let blob = selvedge_store::Logs::blob(&*harness.store, &thread, &blob).unwrap();
    assert!(!String::from_utf8(blob).unwrap().contains("hunter22"));
}

/// Its outcome was only recorded once all calls of the round were back: after a death before that, it had to be probed.
#[test]
fn a_call_that_may_run_once_is_recorded_while_the_rest_of_its_round_still_runs() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut look = CountingTool::new("look", EffectClass::Pure);
    let store = harness.store.clone();
    look.meanwhile = Arc::new(move |call: &Call| {
        let is_paid = || {
            let lines = store.read(&call.thread, 0, usize::MAX).unwrap();
            lines
                .iter()
                .any(|line| matches!(&line.event, Event::ToolOutcome(outcome) if outcome.call_id.as_str() == "p"))
        };
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while !is_paid() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(is_paid(), "the payment is on record before this call ends");
    });
    let pay = Arc::new(CountingTool::new("pay", EffectClass::AtMostOnce));
    let calls = vec![("l", "look", json!({})), ("p", "pay", json!({}))];
    let work = agent(vec![Reply::Calls(calls), Reply::Says("done")], vec![Arc::new(look), pay.clone()]);
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.result.as_deref(), Some("done"));
    assert_eq!(harness.answer_of(&thread, &CallId::new("l").unwrap()), Some(json!("done")));
    assert_eq!(pay.ran.load(Ordering::SeqCst), 1);
}

#[test]
fn a_run_that_fails_while_a_call_is_in_flight_waits_for_it() {
    let harness = Harness::new();
    let thread = harness.thread();
    harness.store.refuse(Some(Reason::ToolResultsCommitted));
    let refused = Arc::new(AtomicBool::new(false));
    let store = harness.store.clone();
    let noted = refused.clone();
    *harness.store.before_refusal.lock().unwrap() = Some(Box::new(move |_| noted.store(true, Ordering::SeqCst)));
    let mut look = CountingTool::new("look", EffectClass::Pure);
    look.meanwhile = Arc::new(move |call: &Call| {
        while !refused.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // The payment could not be recorded. The run would end now, if it did not wait.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(store.get(&call.thread).unwrap().manifest.status, Status::Running);
        store.refuse(None);
    });
    let pay = Arc::new(CountingTool::new("pay", EffectClass::AtMostOnce));
    let calls = vec![("l", "look", json!({})), ("p", "pay", json!({}))];
    let work = agent(vec![Reply::Calls(calls), Reply::Says("done")], vec![Arc::new(look), pay]);
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status(), ended.code.as_deref()), (Some(Status::Error), Some("state_error")));
    for call in ["l", "p"] {
        assert_eq!(harness.answer_of(&thread, &CallId::new(call).unwrap()), Some(json!("done")), "{call} is on record");
    }
}
