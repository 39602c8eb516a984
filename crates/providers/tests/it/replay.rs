//! A model that answers from a record.

use std::sync::Arc;

use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::event::TurnUsage;
use selvedge_model::limits::Cost;
use selvedge_model::message::Block;
use selvedge_model::run::{Failure, FailureClass, RunRecorded};
use selvedge_model::{
    AgentId, Cancel, Event, Message, MessageId, Model, ModelError, Prompt, Reason, Role, RunId, RunMeta,
};
use selvedge_providers::Replay;
use selvedge_providers::replay::RecordedEvents;
use serde_json::json;

type Record = Vec<(Reason, Vec<Event>)>;

fn model(record: &Record) -> Replay {
    Replay::new(record.iter().map(|(reason, events)| RecordedEvents { reason: *reason, events }))
}

fn asked(model: &Replay, messages: usize) -> Result<Answer, ModelError> {
    let messages: Vec<_> = (0..messages).map(|_| Arc::new(Message::text(Role::User, "?"))).collect();
    let prompt = Prompt::new("m", &messages);
    selvedge_model::blocking::wait(model.answer(&prompt, &mut |_| {}, &Cancel::new()))
}

fn said(text: &str) -> (Reason, Vec<Event>) {
    (Reason::UserMessage, vec![Event::Message(Message::text(Role::User, text))])
}

fn used(input_tokens: u64) -> Event {
    let cost = Cost { turns: 1, input_tokens, ..Cost::default() };
    Event::Usage(TurnUsage {
        prompt_bytes: 0,
        prompt_tokens: 0,
        model: "m".to_owned(),
        cost,
        cache_read_tokens: 0,
        cache_write_tokens: 0,
        estimated: false,
        answered_by: None,
        provider_id: None,
        charged: None,
        session: None,
        notes: Vec::new(),
    })
}

fn answered(text: &str) -> (Reason, Vec<Event>) {
    (Reason::AssistantTurnCommitted, vec![Event::Message(Message::text(Role::Assistant, text)), used(3)])
}

fn finished(code: &str, failure: Option<Failure>, mut events: Vec<Event>) -> (Reason, Vec<Event>) {
    let mut meta = RunMeta::started(AgentId::new("a").unwrap(), "user").finished(code);
    meta.failure = failure;
    let run_id = RunId::new("r1").unwrap();
    events.push(Event::RunFinished(RunRecorded { run_id, parent_run_id: None, meta }));
    (Reason::RunFinished, events)
}

fn text(answer: &Answer) -> String {
    Message { content: answer.content.clone(), ..Message::text(Role::Assistant, "") }.plain_text()
}

#[test]
fn a_recorded_answer_is_given_once_at_its_place_and_nowhere_else() {
    let record =
        vec![said("hi"), answered("hello"), finished("completed", None, vec![]), said("more?"), answered("no")];
    let model = model(&record);
    // A model that begins later finds the later answer.
    let later = asked(&model, 3).unwrap();
    assert_eq!((text(&later).as_str(), later.end, later.usage.unwrap().input_tokens), ("no", End::Finished, 3));
    assert_eq!(text(&asked(&model, 1).unwrap()), "hello");
    assert!(matches!(asked(&model, 1), Err(ModelError::Permanent { .. })), "it was given once");
    assert!(matches!(asked(&model, 2), Err(ModelError::Permanent { .. })), "no call is recorded there");
}

#[test]
fn a_message_that_is_stored_once_counts_once() {
    let hi = Event::Message(Message::text(Role::User, "hi").with_id(MessageId::new("m1").unwrap()));
    let record = vec![(Reason::UserMessage, vec![hi.clone()]), (Reason::UserMessage, vec![hi]), answered("hello")];
    assert_eq!(text(&asked(&model(&record), 1).unwrap()), "hello");
}

#[test]
fn how_an_answer_ended_is_read_from_the_end_of_the_run() {
    let failed = |class| Some(Failure { class, why: String::new() });
    for (code, failure, end) in [
        ("output_limit_reached", failed(FailureClass::OutputLimitReached), End::Length),
        ("model_declined", failed(FailureClass::ModelDeclined), End::Refused),
        ("completed", None, End::Finished),
        // The class counts, not the code.
        ("output_limit_reached", None, End::Finished),
    ] {
        let record = vec![said("hi"), answered("hel"), finished(code, failure, vec![])];
        assert_eq!(asked(&model(&record), 1).unwrap().end, end);
    }
}

#[test]
fn a_failed_call_fails_with_the_same_error_and_reports_its_usage_once() {
    let error = ModelError::RateLimited { why: "slowly".to_owned(), retry_after: None };
    let record = vec![said("hi"), finished("model_rate_limited", error.failure(), vec![used(7)])];
    let model = model(&record);
    let Err(ModelError::Cut { usage, .. }) = asked(&model, 1) else {
        panic!("an attempt that broke off reports the usage")
    };
    assert_eq!(usage, Some(Usage { input_tokens: 7, ..Usage::default() }));
    assert_eq!(asked(&model, 1), Err(error));
}

#[test]
fn a_stopped_call_gives_its_partial_text() {
    let fields = [("partial_cognition".to_owned(), json!({"text": "let me"}))];
    let events = vec![Event::ContextInjected(fields.into_iter().collect()), used(7)];
    let record = vec![said("hi"), finished("cancelled", None, events)];
    let partial = vec![Block::text("let me")];
    let usage = Some(Usage { input_tokens: 7, ..Usage::default() });
    assert_eq!(asked(&model(&record), 1), Err(ModelError::Stopped { partial, usage }));
}
