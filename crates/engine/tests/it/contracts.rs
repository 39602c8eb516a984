//! The contracts with models, tools and programs, in whole runs.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_engine::{Choice, Error, Input};
use selvedge_model::answer::{Answer, Drafts, End, Prompt, Usage};
use selvedge_model::blocking::{BoxFuture, wait};
use selvedge_model::event::EffectClass;
use selvedge_model::message::Block;
use selvedge_model::{CallId, Cancel, Digest, Event, Model, ModelError, Output, Reason, Status, ThreadId, Tool};
use selvedge_store::{Acquire, Leases, Logs, Registry};
use serde_json::json;

use crate::replay::assert_identical;
use crate::spending::{account, dollars, paid};
use crate::support::{CountingTool, Harness, Reply, agent};

/// A model that answers with this function.
struct By(Box<dyn Fn(&Prompt<'_>) -> Answer + Send + Sync>);

impl Model for By {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async { Ok((self.0)(prompt)) })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

fn by(answer: impl Fn(&Prompt<'_>) -> Answer + Send + Sync + 'static) -> Arc<dyn Model> {
    Arc::new(By(Box::new(answer)))
}

fn says(text: impl Into<String>) -> Answer {
    Answer::new(vec![Block::text(text.into())], End::Finished).using(Usage { output_tokens: 5, ..Usage::default() })
}

#[test]
fn an_engine_is_idle_once_all_its_work_has_ended() {
    let harness = Harness::new();
    let thread = harness.thread();
    assert!(harness.engine.wait_idle(Duration::ZERO), "it has no work");
    let (begun, has_begun) = channel();
    let (go_on, goes_on) = channel::<()>();
    let begun = Mutex::new(begun);
    let goes_on = Mutex::new(goes_on);
    let mut work = agent(Vec::new(), Vec::new());
    work.model = by(move |_| {
        begun.lock().unwrap().send(()).unwrap();
        _ = goes_on.lock().unwrap().recv();
        says("done")
    });
    // Dropped, it continues.
    drop(harness.engine.submit(&thread, Input::text("go"), &work, &Cancel::new()).unwrap());
    has_begun.recv().unwrap();
    assert!(!harness.engine.wait_idle(Duration::ZERO), "its model is being called");
    drop(go_on);
    assert!(harness.engine.wait_idle(Duration::MAX));
    assert_eq!(harness.loaded(&thread).manifest.status, Status::Completed);
    assert_eq!(harness.store.holder(&thread).unwrap(), None);
}

#[test]
fn a_model_reads_the_whole_of_a_shortened_result_through_its_prompt() {
    let harness = Harness::new();
    let thread = harness.thread();
    let whole = "0123456789".repeat(5_000);
    let mut long = CountingTool::new("look", EffectClass::Pure);
    long.answer = Output::text(&whole);
    let mut work = agent(Vec::new(), vec![Arc::new(long)]);
    work.model = by(|prompt| {
        let mut blocks = prompt.messages.iter().flat_map(|message| &message.content);
        let shortened = blocks.find_map(|block| match block {
            Block::ToolResult { content, blob, .. } => Some((content.to_string().len(), *blob)),
            _ => None,
        });
        let Some((shown, blob)) = shortened else {
            let call = Block::tool_call(CallId::new("l").unwrap(), "look", json!({}));
            return Answer::new(vec![call], End::ToolCalls).using(Usage::default());
        };
        let read = wait(prompt.blobs.read(&blob.unwrap())).unwrap();
        assert!(shown < read.len(), "the prompt has less");
        assert!(wait(prompt.blobs.read(&Digest([9; 32]))).is_err(), "only existing blobs can be read");
        says(format!("{} bytes", read.len()))
    });
    let ended = harness.send(&thread, Input::text("look"), &work).0.unwrap();
    assert_eq!(ended.result.as_deref(), Some(format!("{} bytes", whole.len()).as_str()));
}

#[test]
fn the_charge_that_a_provider_reports_is_settled_and_recorded() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = paid(Vec::new(), "1");
    work.model = by(|_| {
        let mut answer = says("cheap");
        answer.charged = Some(dollars("0.000007"));
        answer
    });
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.cost.spend), (Status::Completed, dollars("0.000007")));
    assert_eq!(account(&harness, &thread).settled, dollars("0.000007"));
    let lines = harness.store.read(&thread, 0, usize::MAX).unwrap();
    let charged = lines.iter().find_map(|line| match &line.event {
        Event::Usage(usage) => usage.charged,
        _ => None,
    });
    assert_eq!(charged, Some(dollars("0.000007")));
}

#[test]
fn a_resume_waits_briefly_for_a_process_that_only_reads() {
    let harness = Harness::new();
    let thread = harness.thread();
    let work = agent(vec![Reply::Says("first"), Reply::Says("second")], Vec::new());
    harness.store.refuse(Some(Reason::AssistantTurnCommitted));
    _ = harness.send(&thread, Input::text("go"), &work).0;
    harness.store.refuse(None);
    let other = harness.another();
    let lease = other.store.acquire(&thread, Acquire::default()).unwrap();
    // It is held when it is first tried, and released then.
    *harness.store.after_holder.lock().unwrap() = Some(Box::new(move |_| other.store.abandon(&lease).unwrap()));
    let ended = harness.engine.resume(&thread, Input::text("again"), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(ended.status, Status::Completed);
}

/// It was run again: the other process had ended it between the first check and the lease.
#[test]
fn a_resume_of_a_thread_that_another_process_has_just_ended_runs_nothing() {
    let harness = Harness::new();
    let thread = harness.thread();
    let failing = ModelError::Transient { why: "busy".to_owned() };
    let suspended =
        harness.send(&thread, Input::text("go"), &agent(vec![Reply::Fails(failing)], Vec::new())).0.unwrap();
    assert_eq!(suspended.status, Status::Suspended);
    let work = agent(vec![Reply::Says("done")], Vec::new());
    let other = harness.another();
    let own = work.clone();
    let mut ends = Some(move |thread: &ThreadId| {
        let ended = other.engine.resume(thread, Input::nothing(), &own, &Cancel::new(), &mut |_| {}).unwrap();
        assert_eq!(ended.status, Status::Completed);
    });
    *harness.store.before_lease.lock().unwrap() = Some(Box::new(move |thread| {
        if let Some(ends) = ends.take() {
            ends(thread);
        }
    }));
    let refused = harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {});
    assert!(matches!(refused, Err(Error::NotRunnable { status: Status::Completed, .. })), "{refused:?}");
    assert_eq!(harness.store.runs(&thread).unwrap().len(), 2, "the failed run, and that of the other process");
}

#[test]
fn a_turn_of_several_calls_of_which_one_was_lost_replays_identically() {
    let harness = Harness::new();
    let thread = harness.thread();
    let calls = vec![("p1", "pay", json!({})), ("l", "look", json!({})), ("p2", "pay2", json!({}))];
    let mut lost = CountingTool::new("pay", EffectClass::AtMostOnce);
    lost.meanwhile = Arc::new(|_| panic!("the line is cut"));
    let replies = vec![Reply::Calls(calls), Reply::Says("done")];
    let tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(lost),
        Arc::new(CountingTool::new("look", EffectClass::Pure)),
        Arc::new(CountingTool::new("pay2", EffectClass::AtMostOnce)),
    ];
    let work = agent(replies, tools);
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ended.code.as_deref()), (Status::Suspended, Some("outcome_unknown")));
    assert_identical(&harness, &thread, &work);
    let call = CallId::new("p1").unwrap();
    harness.engine.decide(&thread, &call, Choice::Done(json!("paid")), "ann", &work).unwrap();
    let ended = harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(ended.status, Status::Completed);
    assert_identical(&harness, &thread, &work);
}
