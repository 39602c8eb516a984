//! What only OpenAI's formats have: hosts that know a part of them, reasoning that is sent back, sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use selvedge_model::answer::Session;
use selvedge_model::event::EffectClass;
use selvedge_model::message::{Block, Message, Role};
use selvedge_model::tool::Risk;
use selvedge_model::{Answer, CallId, Cancel, Digest, Model, ModelError, Prompt, ToolSpec};
use selvedge_providers::fake::{
    Dialogue, FakeAnswer, OpenAiChatDialogue, OpenAiResponsesDialogue, Received, Reply, Server,
};
use selvedge_providers::wire::Dialect;
use selvedge_providers::{Connections, Host, Remote};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

const JSON: (&str, &str) = ("content-type", "application/json");

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn remote(dialogue: &dyn Dialogue, server: &Server, dialect: Dialect) -> Remote {
    let host = Host::new("openai", dialogue.format(), dialogue.base_url(&server.url()));
    Remote::new(&Connections::new(), host, "gpt-x", dialect)
}

fn tool() -> ToolSpec {
    ToolSpec {
        name: "files/read".to_owned(),
        description: String::new(),
        input_schema: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
        class: EffectClass::Pure,
        capability: String::new(),
        risk: Risk::Safe,
        hash: Digest([0; 32]),
    }
}

fn said(text: &str) -> Arc<Message> {
    Arc::new(Message::text(Role::User, text))
}

fn ask(model: &Remote, messages: &[Arc<Message>], session: Option<Session<'_>>) -> Result<Answer, ModelError> {
    let tools = [tool()];
    let mut prompt = Prompt::new("gpt-x", messages);
    prompt.system = "Be brief.";
    prompt.tools = &tools;
    prompt.output_tokens_max = Some(100);
    prompt.session = session;
    runtime().block_on(model.answer(&prompt, &mut |_| {}, &Cancel::new()))
}

fn bodies(server: &Server) -> Vec<Value> {
    server.received().iter().map(Received::json).collect()
}

/// The answer as the next turn has it, and the results of its calls.
fn continued(answer: &Answer) -> Vec<Arc<Message>> {
    let mut messages =
        vec![Arc::new(Message { content: answer.content.clone(), ..Message::text(Role::Assistant, "") })];
    for block in &answer.content {
        if let Block::ToolCall { id, .. } = block {
            let result = Block::tool_result(id.clone(), json!({"of": id.as_str()}));
            messages.push(Arc::new(Message { content: vec![result], ..Message::text(Role::Tool, "") }));
        }
    }
    messages
}

fn two_calls() -> FakeAnswer {
    let said = FakeAnswer::text(&["I read ", "both."]).thinking("two files", "gAAA-sealed");
    said.call("call_a", "files_read", &["{\"path\":", "\"a\"}"]).call("call_b", "files_read", &["{\"path\": oops"])
}

#[test]
fn a_host_that_rejects_two_fields_gets_requests_without_them_in_the_same_attempt_and_later() {
    let server = Server::start().unwrap();
    let answer = OpenAiChatDialogue.answer(&FakeAnswer::text(&["hi"]));
    server.handle(move |request| {
        let body = request.json();
        let refused = |status, message: &str| Reply::whole(status, &[JSON], json!({"detail": message}).to_string());
        if body.get("stream_options").is_some() {
            refused(422, "Extra inputs are not permitted: stream_options")
        } else if body.get("max_completion_tokens").is_some() {
            refused(400, "Unknown field: max_completion_tokens")
        } else {
            Reply::events(&answer)
        }
    });
    let model = remote(&OpenAiChatDialogue, &server, Dialect::default());
    let first = ask(&model, &[said("hello")], None).unwrap();
    assert_eq!(first.notes.len(), 2, "{:?}", first.notes);
    let sent = bodies(&server);
    assert_eq!(sent.len(), 3);
    assert_eq!(
        (&sent[0]["max_completion_tokens"], &sent[0]["stream_options"]["include_usage"]),
        (&json!(100), &json!(true))
    );
    assert_eq!((sent[2].get("stream_options"), &sent[2]["max_tokens"]), (None, &json!(100)));
    // It is remembered.
    ask(&model, &[said("hello")], None).unwrap();
    assert_eq!(bodies(&server).len(), 4);
    assert_eq!(bodies(&server)[3], sent[2]);
}

#[test]
fn a_model_that_rejects_the_older_limit_gets_the_newer_one() {
    let server = Server::start().unwrap();
    let answer = OpenAiChatDialogue.answer(&FakeAnswer::text(&["hi"]));
    server.handle(move |request| match request.json().get("max_tokens") {
        Some(_) => {
            let message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
            let error = json!({"error": {"message": message, "param": "max_tokens", "code": "unsupported_parameter"}});
            Reply::whole(400, &[JSON], error.to_string())
        }
        None => Reply::events(&answer),
    });
    let dialect = Dialect { provider: "gateway".to_owned(), ..Dialect::default() };
    ask(&remote(&OpenAiChatDialogue, &server, dialect), &[said("hello")], None).unwrap();
    let sent = bodies(&server);
    assert_eq!((&sent[0]["max_tokens"], &sent[1]["max_completion_tokens"]), (&json!(100), &json!(100)));
}

#[test]
fn a_host_that_goes_on_rejecting_is_not_asked_for_ever() {
    let server = Server::start().unwrap();
    server.handle(|request| {
        let limit = ["max_tokens", "max_completion_tokens"].into_iter().find(|name| request.json().get(name).is_some());
        let body = json!({"error": {"message": format!("unsupported parameter {}", limit.unwrap_or("none"))}});
        Reply::whole(400, &[JSON], body.to_string())
    });
    let error = ask(&remote(&OpenAiChatDialogue, &server, Dialect::default()), &[said("hello")], None).unwrap_err();
    assert_eq!(error.status(), Some(400));
    assert_eq!(server.received().len(), 4);
}

#[test]
fn the_next_turn_of_a_chat_has_both_calls_and_their_results_and_the_reasoning_of_the_host() {
    let server = Server::start().unwrap();
    server.push(Reply::events(OpenAiChatDialogue.answer(&two_calls())));
    server.push(Reply::events(OpenAiChatDialogue.answer(&FakeAnswer::text(&["done"]))));
    let model = remote(&OpenAiChatDialogue, &server, Dialect::default());
    let mut messages = vec![said("compare")];
    let answer = ask(&model, &messages, None).unwrap();
    assert_eq!(answer.content[0], Block::thinking("two files"));
    messages.extend(continued(&answer));
    ask(&model, &messages, None).unwrap();
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "files_read", "arguments": arguments}});
    assert_eq!(
        bodies(&server)[1]["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "compare"},
            {"role": "assistant", "content": "I read both.", "reasoning_content": "two files",
                "tool_calls": [call("call_a", "{\"path\":\"a\"}"), call("call_b", "{\"path\": oops")]},
            {"role": "tool", "tool_call_id": "call_a", "content": "{\"of\":\"call_a\"}"},
            {"role": "tool", "tool_call_id": "call_b", "content": "{\"of\":\"call_b\"}"},
        ])
    );
}

#[test]
fn the_next_turn_of_responses_has_the_sealed_reasoning_unchanged_before_its_calls() {
    let server = Server::start().unwrap();
    server.push(Reply::events(OpenAiResponsesDialogue.answer(&two_calls())));
    server.push(Reply::events(OpenAiResponsesDialogue.answer(&FakeAnswer::text(&["done"]))));
    let model = remote(&OpenAiResponsesDialogue, &server, Dialect::default());
    let mut messages = vec![said("compare")];
    let answer = ask(&model, &messages, None).unwrap();
    assert_eq!(answer.session, None);
    messages.extend(continued(&answer));
    // A session is not used, because nothing was stored.
    ask(&model, &messages, Some(Session { id: "resp_1", covers: 2 })).unwrap();
    let sent = bodies(&server);
    assert_eq!((&sent[1]["store"], sent[1].get("previous_response_id")), (&json!(false), None));
    assert_eq!(
        sent[1]["input"],
        json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "compare"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "two files"}],
                "encrypted_content": "gAAA-sealed"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I read both."}]},
            {"type": "function_call", "call_id": "call_a", "name": "files_read", "arguments": "{\"path\":\"a\"}"},
            {"type": "function_call", "call_id": "call_b", "name": "files_read", "arguments": "{\"path\": oops"},
            {"type": "function_call_output", "call_id": "call_a", "output": "{\"of\":\"call_a\"}"},
            {"type": "function_call_output", "call_id": "call_b", "output": "{\"of\":\"call_b\"}"},
        ])
    );
}

#[test]
fn a_host_that_parses_the_arguments_of_earlier_calls_gets_objects_and_the_thread_goes_on() {
    let message = "Failed to parse tool call arguments as JSON: unexpected end of input";
    for (dialogue, status) in [(&OpenAiChatDialogue as &dyn Dialogue, 500), (&OpenAiResponsesDialogue, 400)] {
        let server = Server::start().unwrap();
        let first = dialogue.answer(&two_calls());
        let second = dialogue.answer(&FakeAnswer::text(&["done"]));
        let body = dialogue.error_body(status, message);
        server.handle(move |request| {
            let sent = String::from_utf8_lossy(&request.body).into_owned();
            if !sent.contains("call_a") {
                Reply::events(&first)
            } else if sent.contains("invalid_arguments") {
                Reply::events(&second)
            } else {
                Reply::whole(status, &[JSON], &body)
            }
        });
        let model = remote(dialogue, &server, Dialect::default());
        let mut messages = vec![said("compare")];
        let answer = ask(&model, &messages, None).unwrap();
        messages.extend(continued(&answer));
        let answer = ask(&model, &messages, None).unwrap();
        assert_eq!(answer.content, [Block::text("done")]);
        assert_eq!((server.received().len(), answer.notes.len()), (3, 1), "{:?}", answer.notes);
        let text = bodies(&server)[2].to_string();
        assert!(text.contains(r#"{\"path\":\"a\"}"#) && text.contains("oops"), "{text}");
    }
}

fn with_sessions() -> Dialect {
    Dialect { sessions: true, ..Dialect::default() }
}

#[test]
fn a_session_is_kept_and_gets_only_what_is_new() {
    let server = Server::start().unwrap();
    server.push(Reply::events(OpenAiResponsesDialogue.answer(&two_calls())));
    server.push(Reply::events(OpenAiResponsesDialogue.answer(&FakeAnswer::text(&["done"]))));
    let model = remote(&OpenAiResponsesDialogue, &server, with_sessions());
    let mut messages = vec![said("compare")];
    let answer = ask(&model, &messages, None).unwrap();
    assert_eq!(answer.session.as_deref(), Some("resp_1"));
    messages.extend(continued(&answer));
    ask(&model, &messages, Some(Session { id: "resp_1", covers: 2 })).unwrap();
    let sent = bodies(&server);
    assert_eq!((&sent[0]["store"], sent[0].get("previous_response_id")), (&json!(true), None));
    assert_eq!((&sent[1]["store"], &sent[1]["previous_response_id"]), (&json!(true), &json!("resp_1")));
    assert_eq!(sent[1]["instructions"], "Be brief.");
    assert_eq!(
        sent[1]["input"],
        json!([
            {"type": "function_call_output", "call_id": "call_a", "output": "{\"of\":\"call_a\"}"},
            {"type": "function_call_output", "call_id": "call_b", "output": "{\"of\":\"call_b\"}"},
        ])
    );
}

#[test]
fn a_refused_session_is_told_and_the_whole_conversation_is_accepted() {
    let server = Server::start().unwrap();
    let answer = OpenAiResponsesDialogue.answer(&FakeAnswer::text(&["from the log"]));
    let refusals = Arc::new(AtomicUsize::new(0));
    let counted = refusals.clone();
    server.handle(move |request| {
        let Some(id) = request.json().get("previous_response_id").cloned() else { return Reply::events(&answer) };
        let message = format!("Previous response with id {id} not found.");
        let error = json!({"message": message, "type": "invalid_request_error", "param": "previous_response_id",
            "code": "previous_response_not_found"});
        let status = if counted.fetch_add(1, Ordering::Relaxed) == 0 { 400 } else { 404 };
        Reply::whole(status, &[JSON], json!({ "error": error }).to_string())
    });
    let model = remote(&OpenAiResponsesDialogue, &server, with_sessions());
    let messages = [said("one"), Arc::new(Message::text(Role::Assistant, "two")), said("three")];
    for status in [400, 404] {
        let refused = ask(&model, &messages, Some(Session { id: "resp_gone", covers: 2 })).unwrap_err();
        let ModelError::SessionRefused { why } = refused else { panic!("{status}: {refused:?}") };
        assert!(why.contains("resp_gone"), "{why}");
    }
    assert_eq!(refusals.load(Ordering::Relaxed), 2, "the format does not retry by itself");
    let whole = ask(&model, &messages, None).unwrap();
    assert_eq!(whole.content, [Block::text("from the log")]);
    assert_eq!(bodies(&server)[2]["input"].as_array().unwrap().len(), 3);
}

#[test]
fn a_model_without_reasoning_and_one_that_cannot_read_old_reasoning_still_answer() {
    let server = Server::start().unwrap();
    let answer = OpenAiResponsesDialogue.answer(&FakeAnswer::text(&["hi"]));
    server.handle(move |request| {
        let body = request.json();
        let refused = |error: Value| Reply::whole(400, &[JSON], json!({ "error": error }).to_string());
        let items = body["input"].as_array().cloned().unwrap_or_default();
        if body.get("include").is_some() {
            refused(json!({"message": "Encrypted content is not supported with this model.", "param": "include"}))
        } else if items.iter().any(|item| item["type"] == "reasoning") {
            refused(json!({"message": "The encrypted content for item rs_1 could not be verified.",
                "code": "invalid_encrypted_content"}))
        } else {
            Reply::events(&answer)
        }
    });
    let model = remote(&OpenAiResponsesDialogue, &server, Dialect::default());
    let sealed = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "of another key"});
    let content = vec![
        Block::Opaque { provider: "openai".to_owned(), data: sealed },
        Block::tool_call(CallId::new("call_a").unwrap(), "files/read", json!({})),
    ];
    let mut messages = vec![said("one"), Arc::new(Message { content, ..Message::text(Role::Assistant, "") })];
    let result = Block::tool_result(CallId::new("call_a").unwrap(), json!("x"));
    messages.push(Arc::new(Message { content: vec![result], ..Message::text(Role::Tool, "") }));
    let answer = ask(&model, &messages, None).unwrap();
    assert_eq!(server.received().len(), 3);
    assert!(answer.notes.iter().any(|note| note.contains("reasoning")), "{:?}", answer.notes);
}
