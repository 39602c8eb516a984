//! Tools that panic: the end of a call, not of the run or of the process.

use std::sync::Arc;

use selvedge_engine::{Assignment, Input};
use selvedge_model::event::{EffectClass, Event, ToolFailureClass};
use selvedge_model::tool::{Call, Reconciled, Started};
use selvedge_model::{CallId, Cancel, Output, Reason, Status, ThreadId, Tool, ToolError, ToolSpec};
use selvedge_store::Logs;
use serde_json::json;

use crate::replay::assert_identical;
use crate::support::{Counting, House, Reply, agent, die};

/// A tool that panics when it is made ready, or when it is asked after.
struct Bad {
    inner: Counting,
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

fn panicking(class: EffectClass) -> Counting {
    let mut tool = Counting::new("pay", class);
    tool.meanwhile = Arc::new(|_| panic!("no ink"));
    tool
}

/// An agent that pays and looks in one turn, and says that it is done.
fn paying(pay: Arc<dyn Tool>) -> Assignment {
    let calls = vec![("p", "pay", json!({})), ("l", "look", json!({}))];
    agent(vec![Reply::Calls(calls), Reply::Says("done")], vec![pay, Arc::new(Counting::new("look", EffectClass::Pure))])
}

fn failure(house: &House, thread: &ThreadId) -> Option<ToolFailureClass> {
    let call = CallId::new("p").unwrap();
    house.loaded(thread).calls.get(&call)?.outcome.as_ref()?.failure.as_ref().map(|failure| failure.class)
}

fn told(house: &House, thread: &ThreadId, call: &str) -> String {
    house.answer_of(thread, &CallId::new(call).unwrap()).unwrap().to_string()
}

#[test]
fn a_tool_that_may_run_again_and_panics_has_failed_and_the_others_have_answered() {
    for class in [EffectClass::Pure, EffectClass::Idempotent] {
        let house = House::new();
        let thread = house.thread();
        let work = paying(Arc::new(panicking(class)));
        let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
        assert_eq!((ended.status.status().unwrap(), ended.result.as_deref()), (Status::Completed, Some("done")));
        assert!(told(&house, &thread, "p").contains("tool `pay` panicked: no ink"));
        assert!(told(&house, &thread, "l").contains("done"));
        assert_eq!(failure(&house, &thread), Some(ToolFailureClass::Panicked));
        assert_identical(&house, &thread, &work);
    }
}

#[test]
fn what_became_of_a_call_that_panicked_on_the_way_and_may_run_once_is_not_known() {
    let house = House::new();
    let thread = house.thread();
    let ended = house.send(&thread, Input::text("go"), &paying(Arc::new(panicking(EffectClass::AtMostOnce)))).0;
    let ended = ended.unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap()),
        (Status::Suspended, "outcome_unknown")
    );
    assert!(told(&house, &thread, "l").contains("done"), "the other call is done");
    // A tool that knows is believed.
    let thread = house.thread();
    let mut pay = panicking(EffectClass::AtMostOnce);
    pay.known = Reconciled::Done(Output::text("paid all the same"));
    let ended = house.send(&thread, Input::text("go"), &paying(Arc::new(pay))).0.unwrap();
    assert_eq!(ended.status, Status::Completed);
    assert!(told(&house, &thread, "p").contains("paid all the same"));
}

#[test]
fn a_tool_that_panics_before_it_is_dispatched_never_ran() {
    let house = House::new();
    let thread = house.thread();
    let inner = Counting::new("pay", EffectClass::AtMostOnce);
    let ran = inner.ran.clone();
    let work = paying(Arc::new(Bad { inner, starts: false }));
    let ended = house.send(&thread, Input::text("go"), &work).0.unwrap();
    assert_eq!((ended.status.status().unwrap(), ran.load(std::sync::atomic::Ordering::SeqCst)), (Status::Completed, 0));
    assert!(told(&house, &thread, "p").contains("panicked: no paper"));
    assert_eq!(failure(&house, &thread), Some(ToolFailureClass::Panicked));
    let lines = house.store.read(&thread, 0, 100).unwrap();
    assert!(!lines.iter().any(|line| matches!(line.event, Event::ToolIntent(_))));
    assert_identical(&house, &thread, &work);
}

#[test]
fn a_tool_that_panics_when_it_is_asked_after_does_not_know() {
    let house = House::new();
    let thread = house.thread();
    let mut dying = Counting::new("pay", EffectClass::AtMostOnce);
    dying.meanwhile = Arc::new(|_| die());
    let run = || house.another().send(&thread, Input::text("go"), &paying(Arc::new(dying)));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    assert_eq!(house.reasons(&thread).last(), Some(&Reason::ToolIntentCommitted));
    let bad = Bad { inner: Counting::new("pay", EffectClass::AtMostOnce), starts: true };
    let work = paying(Arc::new(bad));
    let ended = house.engine.resume(&thread, Input::nothing(), &work, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(
        (ended.status.status().unwrap(), ended.code.as_deref().unwrap()),
        (Status::Suspended, "outcome_unknown")
    );
}
