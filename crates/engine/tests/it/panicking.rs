//! Tools and models that panic: a panic ends a call or an attempt, not the run or the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use selvedge_engine::run_config::RetryPolicy;
use selvedge_engine::spawn::{Children, NewChild};
use selvedge_engine::{Input, RunConfig};
use selvedge_model::answer::{Answer, Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{EffectClass, Event, ToolFailureClass};
use selvedge_model::message::Block;
use selvedge_model::tool::{Call, Reconciled, Started};
use selvedge_model::{
    CallId, Cancel, Draft, Manifest, Model, ModelError, Output, Prompt, Reason, Status, ThreadId, Tool, ToolError,
    ToolSpec,
};
use selvedge_store::{Leases, Logs};
use serde_json::json;

use crate::replay::assert_identical;
use crate::spawning::{nursery, parent};
use crate::support::{CountingTool, Harness, Reply, agent, die};

/// A tool that panics when it is made ready, or when it is reconciled.
struct Bad {
    inner: CountingTool,
    starts: bool,
}

impl Tool for Bad {
    fn spec(&self) -> &ToolSpec {
        self.inner.spec()
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        assert!(self.starts, "no paper");
        self.inner.start(call)
    }

    fn reconcile(&self, _: &Call, _: &Cancel) -> Reconciled {
        panic!("no memory")
    }
}

fn panicking(class: EffectClass) -> CountingTool {
    let mut tool = CountingTool::new("pay", class);
    tool.meanwhile = Arc::new(|_| panic!("no ink"));
    tool
}

/// An agent that pays and looks in one turn, and says that it is done.
fn paying(pay: Arc<dyn Tool>) -> RunConfig {
    let calls = vec![("p", "pay", json!({})), ("l", "look", json!({}))];
    agent(
        vec![Reply::Calls(calls), Reply::Says("done")],
        vec![pay, Arc::new(CountingTool::new("look", EffectClass::Pure))],
    )
}

fn failure(harness: &Harness, thread: &ThreadId) -> Option<ToolFailureClass> {
    let call = CallId::new("p").unwrap();
    harness.loaded(thread).calls.get(&call)?.outcome.as_ref()?.failure.as_ref().map(|failure| failure.class)
}

fn told(harness: &Harness, thread: &ThreadId, call: &str) -> String {
    harness.answer_of(thread, &CallId::new(call).unwrap()).unwrap().to_string()
}

#[test]
fn a_repeatable_tool_that_panics_has_failed_and_the_other_calls_have_results() {
    for class in [EffectClass::Pure, EffectClass::Idempotent] {
        let harness = Harness::new();
        let thread = harness.thread();
        let work = paying(Arc::new(panicking(class)));
        let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
        assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("done")));
        assert!(told(&harness, &thread, "p").contains("tool `pay` panicked: no ink"));
        assert!(told(&harness, &thread, "l").contains("done"));
        assert_eq!(failure(&harness, &thread), Some(ToolFailureClass::Panicked));
        assert_identical(&harness, &thread, &work);
    }
}

#[test]
fn the_outcome_of_a_panicking_call_that_may_run_once_is_unknown() {
    let harness = Harness::new();
    let thread = harness.thread();
    let ended = harness.send(&thread, Input::text("go"), &paying(Arc::new(panicking(EffectClass::AtMostOnce)))).0;
    let ended = ended.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap()),
        (Status::Suspended, "outcome_unknown")
    );
    assert!(told(&harness, &thread, "l").contains("done"), "the other call is done");
    // The outcome that a tool reports counts.
    let thread = harness.thread();
    let mut pay = panicking(EffectClass::AtMostOnce);
    pay.known = Reconciled::Done(Output::text("paid all the same"));
    let ended = harness.send(&thread, Input::text("go"), &paying(Arc::new(pay))).0.unwrap();
    assert_eq!(ended.status, Status::Completed);
    assert!(told(&harness, &thread, "p").contains("paid all the same"));
}

#[test]
fn a_tool_that_panics_before_it_is_dispatched_never_ran() {
    let harness = Harness::new();
    let thread = harness.thread();
    let inner = CountingTool::new("pay", EffectClass::AtMostOnce);
    let ran = inner.ran.clone();
    let work = paying(Arc::new(Bad { inner, starts: false }));
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ran.load(std::sync::atomic::Ordering::SeqCst)), (Status::Completed, 0));
    assert!(told(&harness, &thread, "p").contains("panicked: no paper"));
    assert_eq!(failure(&harness, &thread), Some(ToolFailureClass::Panicked));
    let lines = harness.store.read(&thread, 0, 100).unwrap();
    assert!(!lines.iter().any(|line| matches!(line.event, Event::ToolIntent(_))));
    assert_identical(&harness, &thread, &work);
}

#[test]
fn a_tool_that_panics_when_it_is_reconciled_leaves_the_outcome_unknown() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut dying = CountingTool::new("pay", EffectClass::AtMostOnce);
    dying.meanwhile = Arc::new(|_| die());
    let run = || harness.another().send(&thread, Input::text("go"), &paying(Arc::new(dying)));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    assert_eq!(harness.reasons(&thread).last(), Some(&Reason::ToolIntentCommitted));
    let bad = Bad { inner: CountingTool::new("pay", EffectClass::AtMostOnce), starts: true };
    let work = paying(Arc::new(bad));
    let ended = harness.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap()),
        (Status::Suspended, "outcome_unknown")
    );
}

/// A model that panics this often, before it begins to answer or in the middle, and then answers.
struct Shaky {
    panics: AtomicUsize,
    is_late: bool,
}

impl Model for Shaky {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        let left = self.panics.load(Ordering::SeqCst);
        self.panics.store(left.saturating_sub(1), Ordering::SeqCst);
        assert!(left == 0 || self.is_late, "no voice");
        Box::pin(async move {
            draft(Draft::Text { text: "well".to_owned() });
            assert!(left == 0, "no voice");
            Ok(Answer::new(vec![Block::text("well")], End::Finished).using(Usage::default()))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

fn shaky(panics: usize, is_late: bool) -> RunConfig {
    let mut work = agent(Vec::new(), Vec::new());
    work.model = Arc::new(Shaky { panics: AtomicUsize::new(panics), is_late });
    work.retries = RetryPolicy { wait: Duration::ZERO, ..RetryPolicy::default() };
    work
}

#[test]
fn a_model_that_panics_is_retried_and_suspends_the_run_when_it_panics_every_time() {
    for is_late in [false, true] {
        let harness = Harness::new();
        let thread = harness.thread();
        let (ended, heard) = harness.send(&thread, Input::text("go"), &shaky(2, is_late));
        let ended = ended.unwrap();
        assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("well")));
        assert_eq!(heard.iter().filter(|heard| *heard == "retrying").count(), 2, "{heard:?}");
        let ended = harness.send(&thread, Input::text("and now?"), &shaky(9, is_late)).0.unwrap();
        assert_eq!((ended.status.status().unwrap(), ended.code.as_deref()), (Status::Suspended, Some("model_failed")));
        assert_eq!(harness.store.holder(&thread).unwrap(), None, "nothing of it is left running");
    }
}

/// Children whose model panics every time.
struct ShakyChildren(Arc<dyn Children>);

impl Children for ShakyChildren {
    fn new_child(&self, call: &Call, parent: &Manifest) -> Result<NewChild, String> {
        self.0.new_child(call, parent)
    }

    fn run_config(&self, _: &Manifest) -> Result<RunConfig, String> {
        Ok(shaky(9, true))
    }

    fn launch(&self, child: &ThreadId) -> Result<Box<dyn Started>, String> {
        self.0.launch(child)
    }
}

/// The panic of a child's model once interrupted its parent's run, too.
#[test]
fn the_panic_of_a_childs_model_ends_neither_run() {
    let harness = Harness::new();
    let thread = harness.thread();
    let mut work = parent(vec![("s", json!({"task": "count"}))], nursery(Vec::new()));
    let children = ShakyChildren(work.spawning.clone().unwrap().children);
    work.spawning.as_mut().unwrap().children = Arc::new(children);
    let ended = harness.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(harness.children_of(&thread)[0].status, Status::Suspended);
}
