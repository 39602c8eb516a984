//! A call to a host that rejects fields.

use std::collections::VecDeque;
use std::sync::Arc;

use reqwest::header::HeaderMap;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::{Message, Role, ToolSpec};
use serde_json::json;

use super::*;
use crate::recording::ResponsePlayer;
use crate::wire::Credentials;
use crate::wire::anthropic::Anthropic;

/// A format whose requests have a field that a host may reject.
struct Picky;

impl Wire for Picky {
    fn credentials(&self) -> Credentials {
        Credentials::Bearer
    }

    fn request(&self, _: &str, _: &Prompt<'_>, _: &Images, _: &Dialect) -> Result<Request, ModelError> {
        let body = json!({"model": "m", "stream_options": {"usage": true}, "max_completion_tokens": 5});
        Ok(Request { path: "chat", headers: Vec::new(), body, notes: Vec::new() })
    }

    fn reader(&self, dialect: &Dialect, tools: &[ToolSpec]) -> Box<dyn Reader> {
        Anthropic.reader(dialect, tools)
    }

    fn refusal(&self, _: &Refusal<'_>) -> Option<ModelError> {
        None
    }

    fn message(&self, _: &str) -> Option<String> {
        None
    }

    fn without(&self, refusal: &Refusal<'_>) -> Option<Adjustment> {
        if refusal.body.contains("stream_options") {
            return Some(Adjustment::Remove("stream_options".to_owned()));
        }
        let rename = || Adjustment::Rename { from: "max_completion_tokens".to_owned(), to: "max_tokens".to_owned() };
        refusal.body.contains("max_completion_tokens").then(rename)
    }
}

/// A host that gives these responses, and keeps the bodies of its requests.
#[derive(Default)]
struct Scripted {
    responses: Mutex<VecDeque<(u16, &'static str)>>,
    bodies: Mutex<Vec<Value>>,
}

impl Transport for Scripted {
    fn send<'a>(&'a self, request: &'a Outgoing) -> BoxFuture<'a, Result<Incoming, ModelError>> {
        self.bodies.lock().unwrap().push(serde_json::from_slice(&request.body).unwrap());
        let (status, body) = self.responses.lock().unwrap().pop_front().unwrap();
        let body = Body::Recorded(ResponsePlayer::new(Bytes::from_static(body.as_bytes())));
        Box::pin(async move { Ok(Incoming { status, headers: HeaderMap::new(), body }) })
    }
}

const ANSWER: &str = "data: {\"type\":\"message_start\",\"message\":{}}\n\ndata: {\"type\":\"message_stop\"}\n\n";

fn ask(host: &Scripted, adjustments: &Mutex<Vec<Adjustment>>) -> Result<Answer, ModelError> {
    let dialect =
        Dialect { extra: json!({"model": "other", "top_k": 1}).as_object().cloned().unwrap(), ..Dialect::default() };
    let caller = Caller {
        wire: &Picky,
        model: "m",
        dialect: &dialect,
        adjustments,
        timeouts: Timeouts::default(),
        transport: host,
        cancel: &Cancel::new(),
    };
    let messages = [Arc::new(Message::text(Role::User, "hi"))];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(caller.answer(&Prompt::new("m", &messages), &mut |_| {}))
}

#[test]
fn a_field_that_the_host_rejects_is_left_out_once_and_from_then_on() {
    let host = Scripted::default();
    let adjustments = Mutex::default();
    let refused = (400, "unknown field stream_options");
    host.responses.lock().unwrap().extend([refused, (200, ANSWER), (200, ANSWER)]);
    assert_eq!(
        ask(&host, &adjustments).unwrap().notes,
        ["the host rejects the field `stream_options`: sent without it"]
    );
    assert!(ask(&host, &adjustments).unwrap().notes.is_empty());
    let bodies = host.bodies.lock().unwrap();
    let fields = |body: &Value| body.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&bodies[0]), ["max_completion_tokens", "model", "stream_options", "top_k"]);
    assert_eq!(fields(&bodies[1]), ["max_completion_tokens", "model", "top_k"]);
    assert_eq!(bodies[1], bodies[2]);
    assert_eq!(bodies[0]["model"], "other", "the configuration's fields replace those of the format");
}

#[test]
fn several_fields_are_adjusted_and_a_refusal_that_stays_is_an_error() {
    let host = Scripted::default();
    let adjustments = Mutex::default();
    host.responses.lock().unwrap().extend([(400, "stream_options"), (422, "max_completion_tokens"), (200, ANSWER)]);
    assert_eq!(ask(&host, &adjustments).unwrap().notes.len(), 2);
    assert_eq!(host.bodies.lock().unwrap()[2], json!({"model": "other", "top_k": 1, "max_tokens": 5}));
    // The field is not there any more: sending the same again would not help.
    host.responses.lock().unwrap().push_back((400, "stream_options"));
    assert_eq!(ask(&host, &adjustments).unwrap_err().status(), Some(400));
    host.responses.lock().unwrap().push_back((500, "max_completion_tokens"));
    assert_eq!(ask(&host, &adjustments).unwrap_err().status(), Some(500));
    assert_eq!(adjustments.lock().unwrap().len(), 2);
}
