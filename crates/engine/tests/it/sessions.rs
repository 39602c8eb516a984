//! Sessions that a provider keeps of its own accord.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use selvedge_engine::{Input, Redactor, RunConfig};
use selvedge_model::answer::{Answer, End};
use selvedge_model::event::EffectClass;
use selvedge_model::message::Block;
use selvedge_model::scope::Scopes;
use selvedge_model::{AgentId, CallId, Cancel, Draft, ModelError, Prompt, Status, ThreadId};
use serde_json::json;

use crate::support::{CountingTool, Harness};

/// A provider that keeps sessions: it records what each request offered, and forgets all sessions when told to.
#[derive(Default)]
struct Keeps {
    /// The offered session, how many messages it covers, and how many there are.
    offered: Mutex<Vec<(Option<String>, usize, usize)>>,
    answers: AtomicUsize,
    /// The request that is refused, counted from one.
    fails_at: AtomicUsize,
    forgets: Mutex<Vec<String>>,
}

crate::support::as_model!(Keeps);

impl crate::support::Blocking for Keeps {
    fn answer(&self, prompt: &Prompt<'_>, _: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        let id = prompt.session.map(|session| session.id.to_owned());
        let covers = prompt.session.map_or(0, |session| session.covers);
        self.offered.lock().unwrap().push((id.clone(), covers, prompt.messages.len()));
        if self.offered.lock().unwrap().len() == self.fails_at.load(Ordering::SeqCst) {
            return Err(ModelError::Permanent { why: "no".to_owned() });
        }
        if id.is_some_and(|id| self.forgets.lock().unwrap().contains(&id)) {
            return Err(ModelError::SessionRefused { why: "it has expired".to_owned() });
        }
        let number = self.answers.fetch_add(1, Ordering::SeqCst);
        let mut answer = if number == 0 {
            let call = Block::tool_call(CallId::new("c1").unwrap(), "pay", json!({"to": "anna"}));
            Answer::new(vec![call], End::ToolCalls)
        } else {
            Answer::new(vec![Block::text("done")], End::Finished)
        };
        answer.session = Some(format!("resp_{number}"));
        Ok(answer)
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

fn paying(model: &Arc<Keeps>) -> (RunConfig, Arc<CountingTool>) {
    let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), model.clone(), "keeps");
    let pay = Arc::new(CountingTool::new("pay", EffectClass::AtMostOnce));
    work.tools = vec![pay.clone()];
    (work, pay)
}

/// The events of a thread's verified log, as text.
fn logged(harness: &Harness, thread: &ThreadId) -> String {
    let entries = selvedge_store::conformance::support::verified(&harness.store.inner, &harness.trust, thread);
    entries.iter().flat_map(|entry| &entry.lines).map(|line| format!("{:?}\n", line.event)).collect()
}

#[test]
fn a_session_is_offered_with_what_it_covers_and_every_answer_replaces_it() {
    let harness = Harness::new();
    let thread = harness.thread();
    let model = Arc::new(Keeps::default());
    let (work, _) = paying(&model);
    harness.send(&thread, Input::text("pay anna"), &work).0.unwrap();
    harness.send(&thread, Input::text("thank her"), &work).0.unwrap();
    let offered = model.offered.lock().unwrap().clone();
    // user, call, result, answer, user
    let expected = [(None, 0, 1), (Some("resp_0".to_owned()), 2, 3), (Some("resp_1".to_owned()), 4, 5)];
    assert_eq!(offered, expected);
    assert_eq!(harness.loaded(&thread).manifest.session_id.as_deref(), Some("resp_2"));
}

#[test]
fn a_session_that_is_refused_is_given_up_once_and_no_tool_runs_twice() {
    let harness = Harness::new();
    let thread = harness.thread();
    let model = Arc::new(Keeps::default());
    let (work, pay) = paying(&model);
    model.forgets.lock().unwrap().push("resp_0".to_owned());
    let ended = harness.send(&thread, Input::text("pay anna"), &work).0;
    assert_eq!(ended.unwrap().status.status().unwrap(), Status::Completed);
    let log = logged(&harness, &thread);
    assert_eq!(log.matches("session `resp_0` was refused: it has expired").count(), 1, "{log}");
    let offered = model.offered.lock().unwrap().clone();
    assert_eq!(offered, [(None, 0, 1), (Some("resp_0".to_owned()), 2, 3), (None, 0, 3)]);
    assert_eq!(pay.ran.load(Ordering::SeqCst), 1);
}

#[test]
fn a_run_that_failed_leaves_the_session_of_the_manifest_as_it_was() {
    let harness = Harness::new();
    let thread = harness.thread();
    let model = Arc::new(Keeps::default());
    let (work, _) = paying(&model);
    let kept = || harness.loaded(&thread).manifest.session_id;
    model.fails_at.store(2, Ordering::SeqCst);
    let ended = harness.send(&thread, Input::text("pay anna"), &work).0.unwrap();
    assert_eq!((ended.status.status(), kept()), (Some(Status::Error), None), "its first turn had an answer");
    model.fails_at.store(0, Ordering::SeqCst);
    harness.send(&thread, Input::text("again"), &work).0.unwrap();
    assert_eq!(model.offered.lock().unwrap().last().unwrap().0.as_deref(), Some("resp_0"), "the log has it");
    assert_eq!(kept().as_deref(), Some("resp_1"));
    model.fails_at.store(4, Ordering::SeqCst);
    harness.send(&thread, Input::text("and again"), &work).0.unwrap();
    assert_eq!(kept().as_deref(), Some("resp_1"));
}

#[test]
fn a_session_is_not_offered_to_another_model_nor_after_its_answer() {
    let harness = Harness::new();
    let thread = harness.thread();
    let model = Arc::new(Keeps::default());
    let (work, _) = paying(&model);
    harness.send(&thread, Input::text("pay anna"), &work).0.unwrap();
    let other = Arc::new(Keeps { answers: AtomicUsize::new(1), ..Keeps::default() });
    let mut foreign = RunConfig::new(AgentId::new("scribe").unwrap(), other.clone(), "another");
    foreign.tools = work.tools.clone();
    harness.send(&thread, Input::text("and ben"), &foreign).0.unwrap();
    assert_eq!(other.offered.lock().unwrap()[0].0, None);
    // The first model's session does not know what the other one answered.
    harness.send(&thread, Input::text("and cara"), &work).0.unwrap();
    assert_eq!(model.offered.lock().unwrap().last().unwrap().0, None);
}

/// What a provider says about a session is free text, and was written to the log as it came.
#[test]
fn a_secret_in_a_refusal_or_in_a_session_id_reaches_no_log() {
    let secrets = ["has expired", "resp_1"].map(str::to_owned);
    let harness = Harness::with(Redactor::new(secrets, Vec::new()), Scopes::builtin());
    let thread = harness.thread();
    let model = Arc::new(Keeps::default());
    let (work, _) = paying(&model);
    model.forgets.lock().unwrap().push("resp_0".to_owned());
    let ended = harness.send(&thread, Input::text("pay anna"), &work).0;
    ended.unwrap();
    let log = logged(&harness, &thread);
    assert!(log.contains("session `resp_0` was refused: it [redacted]"), "{log}");
    assert!(!log.contains("resp_1"), "{log}");
    // The session with the secret is not offered again.
    harness.send(&thread, Input::text("thank her"), &work).0.unwrap();
    assert_eq!(model.offered.lock().unwrap().last().unwrap().0, None);
}
