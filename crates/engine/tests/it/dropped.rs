//! Work that does not stop when it is cancelled: dropped after its grace period, and never reported as stopped.

use std::future::pending;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use selvedge_engine::{Input, Outcome, RunConfig};
use selvedge_model::answer::{Answer, Drafts, Prompt};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{EffectClass, Process};
use selvedge_model::tool::{Dispatch, Reconciled, Risk, Started};
use selvedge_model::{
    Call, CallId, Cancel, Digest, Draft, Event, Model, ModelError, Money, Status, Stop, ThreadId, Tool, ToolError,
    ToolSpec,
};
use selvedge_store::{Ledger, Logs};
use serde_json::json;

use crate::spending::paid;
use crate::support::{Harness, Reply, agent};

/// A model that begins to draft, and ignores a stop.
struct DeafModel(Mutex<Sender<()>>);

impl Model for DeafModel {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            draft(Draft::Text { text: "let me think".to_owned() });
            self.0.lock().unwrap().send(()).unwrap();
            pending().await
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A tool that begins, and ignores a stop.
struct DeafTool(ToolSpec, Mutex<Sender<()>>);

struct Deaf(Sender<()>);

impl Tool for DeafTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn start(&self, _: &Call) -> Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(Deaf(self.1.lock().unwrap().clone())))
    }

    fn reconcile(&self, _: &Call, _: &Cancel) -> Reconciled {
        Reconciled::Unknown
    }
}

impl Started for Deaf {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        self.0.send(()).unwrap();
        Dispatch::Future(Box::pin(pending()))
    }
}

/// Runs a thread, and kills it once its work has begun.
fn killed(harness: &Harness, thread: &ThreadId, work: &RunConfig, has_begun: &dyn Fn()) -> Outcome {
    let cancel = Cancel::new();
    let submitted = harness.engine.submit(thread, Input::text("go"), work, &cancel).unwrap();
    has_begun();
    cancel.say(Stop::Killed);
    submitted.wait(&mut |_| {}).unwrap()
}

#[test]
fn a_model_that_does_not_stop_is_dropped_and_its_attempt_settled_at_its_bound() {
    let harness = Harness::new();
    let thread = harness.thread();
    let (tell, told) = channel();
    let mut work = paid(Vec::new(), "1");
    work.model = Arc::new(DeafModel(Mutex::new(tell)));
    let reserved = Mutex::new(Money::ZERO);
    let ended = killed(&harness, &thread, &work, &|| {
        told.recv().unwrap();
        *reserved.lock().unwrap() = harness.store.account(&thread).unwrap().unwrap().reserved;
    });
    assert_eq!(ended.status, Status::Killed);
    let account = harness.store.account(&thread).unwrap().unwrap();
    let bound = *reserved.lock().unwrap();
    assert!(bound > Money::ZERO);
    assert_eq!((account.settled, account.reserved), (bound, Money::ZERO), "its usage is unknown");
    let cost = harness.loaded(&thread).manifest.cost;
    assert_eq!((cost.spend, cost.spend_unknown), (bound, bound));
    let lines = harness.store.read(&thread, 0, usize::MAX).unwrap();
    let has_partial = lines.iter().any(|line| match &line.event {
        Event::ContextInjected(fields) => fields["partial_cognition"] == json!({"text": "let me think"}),
        _ => false,
    });
    assert!(has_partial, "its partial text is kept");
}

#[test]
fn a_call_that_does_not_stop_is_dropped_and_lost_if_it_may_run_only_once() {
    let expected = [
        (EffectClass::AtMostOnce, "this call was dispatched, and its outcome is unknown"),
        (EffectClass::Idempotent, "the call was stopped; how much of it was executed is unknown"),
    ];
    for (class, text) in expected {
        let harness = Harness::new();
        let thread = harness.thread();
        let (tell, told) = channel();
        let spec = ToolSpec {
            name: "pay".to_owned(),
            description: String::new(),
            input_schema: json!({}),
            class,
            capability: "tool.pay".to_owned(),
            risk: Risk::Safe,
            hash: Digest([7; 32]),
        };
        let calls = Reply::Calls(vec![("p", "pay", json!({}))]);
        let work = agent(vec![calls], vec![Arc::new(DeafTool(spec, Mutex::new(tell)))]);
        let ended = killed(&harness, &thread, &work, &|| told.recv().unwrap());
        assert_eq!(ended.status, Status::Killed);
        let answer = harness.answer_of(&thread, &CallId::new("p").unwrap()).unwrap().to_string();
        assert!(answer.contains(text), "{class:?}: {answer}");
    }
}
