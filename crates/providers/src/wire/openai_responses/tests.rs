use std::sync::Arc;

use selvedge_model::Digest;
use selvedge_model::answer::{Answer, Draft, End, Session, Usage};
use selvedge_model::message::{Block, Message, Role};
use serde_json::{Value, json};

use super::openai::testing::{call, message, said, tool};
use super::*;

fn dialect() -> Dialect {
    Dialect { provider: "openai-responses".to_owned(), ..Dialect::default() }
}

fn with_sessions() -> Dialect {
    Dialect { sessions: true, ..dialect() }
}

fn reasoning() -> Value {
    json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "two files"}],
        "encrypted_content": "gAAA"})
}

fn opaque(provider: &str, data: Value) -> Block {
    Block::Opaque { provider: provider.to_owned(), data }
}

fn conversation() -> Vec<Arc<Message>> {
    vec![
        said(Role::User, "compare them"),
        message(
            Role::Assistant,
            vec![
                Block::thinking("two files"),
                opaque("openai-responses", reasoning()),
                opaque("anthropic", json!({"type": "redacted_thinking"})),
                Block::text("I read both."),
                Block::tool_call(call("call_1"), "files/read", json!({"path": "a"})),
                opaque("openai-responses", json!({"type": "reasoning", "id": "rs_2", "summary": []})),
                Block::tool_call(call("call_2"), "files/read", json!("{\"path\": ")),
            ],
        ),
        message(Role::Tool, vec![Block::tool_result(call("call_1"), json!({"text": "A"}))]),
        message(Role::Tool, vec![Block::tool_error(call("call_2"), json!("the arguments are not JSON"))]),
    ]
}

/// Reads a stream.
struct Read {
    reader: Box<dyn Reader>,
    drafts: Vec<Draft>,
}

impl Read {
    fn new(dialect: &Dialect) -> Self {
        Self { reader: OpenAiResponses.reader(dialect, &[tool("files/read")]), drafts: Vec::new() }
    }

    fn event(&mut self, data: &Value) -> Result<(), ModelError> {
        let name = data["type"].as_str().unwrap_or_default();
        self.reader.event(name, &data.to_string(), &mut |draft| self.drafts.push(draft))
    }

    fn events(&mut self, events: &[Value]) {
        for event in events {
            self.event(event).unwrap();
        }
    }

    fn end(&mut self, kind: &str, response: &Value) {
        self.event(&json!({"type": format!("response.{kind}"), "response": response})).unwrap();
    }

    fn answer(self) -> Answer {
        assert!(self.reader.is_complete());
        self.reader.answer().unwrap()
    }
}

#[test]
fn a_conversation_with_reasoning_and_two_parallel_calls_is_sent_as_the_format_demands() {
    let messages = conversation();
    let tools = [tool("files/read")];
    let mut prompt = Prompt::new("gpt-x", &messages);
    prompt.system = "Be brief.";
    prompt.tools = &tools;
    prompt.output_tokens_max = Some(500);
    // Without the consent of the configuration a session is not used.
    prompt.session = Some(Session { id: "resp_1", covers: 2 });
    let dialect = Dialect { effort: Some("low".to_owned()), ..dialect() };
    let request = OpenAiResponses.request("gpt-x", &prompt, &Images::new(), &dialect).unwrap();
    assert_eq!(request.path, "responses");
    assert_eq!(
        request.body,
        json!({
            "model": "gpt-x",
            "instructions": "Be brief.",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "compare them"}]},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "two files"}],
                    "encrypted_content": "gAAA"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I read both."}]},
                {"type": "function_call", "call_id": "call_1", "name": "files_read", "arguments": "{\"path\":\"a\"}"},
                {"type": "function_call", "call_id": "call_2", "name": "files_read", "arguments": "{\"path\": "},
                {"type": "function_call_output", "call_id": "call_1", "output": "{\"text\":\"A\"}"},
                {"type": "function_call_output", "call_id": "call_2", "output": "error: the arguments are not JSON"},
            ],
            "tools": [{
                "type": "function",
                "name": "files_read",
                "description": "does files/read",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
                "strict": false,
            }],
            "stream": true,
            "store": false,
            "include": ["reasoning.encrypted_content"],
            "max_output_tokens": 500,
            "reasoning": {"effort": "low", "summary": "auto"},
        })
    );
}

#[test]
fn a_session_gets_only_what_is_new_and_the_instructions_again() {
    let messages = conversation();
    let mut prompt = Prompt::new("m", &messages);
    prompt.system = "Be brief.";
    prompt.session = Some(Session { id: "resp_1", covers: 2 });
    let body = OpenAiResponses.request("m", &prompt, &Images::new(), &with_sessions()).unwrap().body;
    assert_eq!(body["previous_response_id"], "resp_1");
    assert_eq!((&body["store"], &body["instructions"]), (&json!(true), &json!("Be brief.")));
    let kinds: Vec<&Value> = body["input"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["function_call_output", "function_call_output"]);
    // With nothing new the conversation is sent.
    prompt.session = Some(Session { id: "resp_1", covers: 4 });
    let body = OpenAiResponses.request("m", &prompt, &Images::new(), &with_sessions()).unwrap().body;
    assert!(body.get("previous_response_id").is_none());
    assert_eq!(body["input"].as_array().unwrap().len(), 7);
}

#[test]
fn images_are_data_urls_and_those_of_tools_follow_all_results() {
    let blob = Digest([7; 32]);
    let image = Block::Image { blob, media_type: "image/png".to_owned() };
    let messages = [
        message(Role::Tool, vec![Block::tool_result(call("call_1"), json!("done")), image]),
        message(Role::Tool, vec![Block::tool_result(call("call_2"), json!("done"))]),
        said(Role::System, "mind the gap"),
    ];
    let prompt = Prompt::new("m", &messages);
    let images = Images::from([(blob, b"png".to_vec())]);
    let body = OpenAiResponses.request("m", &prompt, &images, &dialect()).unwrap().body;
    let image = json!({"type": "input_image", "image_url": "data:image/png;base64,cG5n"});
    assert_eq!(body["input"][2], json!({"type": "message", "role": "user", "content": [image]}));
    assert_eq!(body["input"][3]["role"], "developer");
}

#[test]
fn an_answer_is_assembled_from_its_items_and_drafted_as_they_arrive() {
    let mut read = Read::new(&dialect());
    read.end("created", &json!({"id": "resp_1", "model": "m-1", "status": "in_progress", "usage": null, "output": []}));
    read.events(&[
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1", "summary": []}}),
        json!({"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 0}),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "two "}),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "files"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": reasoning()}),
        json!({"type": "response.output_item.added", "output_index": 1, "item": {"type": "message", "role": "assistant", "content": []}}),
        json!({"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "I read"}),
        json!({"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": " it."}),
        json!({"type": "response.output_text.done", "output_index": 1, "content_index": 0, "text": "I read it."}),
        json!({"type": "response.output_item.done", "output_index": 1,
            "item": {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "I read it."}]}}),
        json!({"type": "response.output_item.added", "output_index": 2,
            "item": {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "files_read", "arguments": ""}}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{\"path\":"}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "\"a\"}"}),
        json!({"type": "response.function_call_arguments.done", "output_index": 2, "arguments": "{\"path\":\"a\"}"}),
        json!({"type": "response.output_item.done", "output_index": 2,
            "item": {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "files_read", "arguments": "{\"path\":\"a\"}"}}),
        json!({"type": "response.some.new.event", "x": [1]}),
    ]);
    assert!(!read.reader.is_complete() && read.reader.usage().is_none());
    read.end(
        "completed",
        &json!({"id": "resp_1", "model": "m-1", "status": "completed", "usage": {
            "input_tokens": 30, "input_tokens_details": {"cached_tokens": 10},
            "output_tokens": 12, "output_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 42}}),
    );
    let id = Some(call("call_1"));
    assert_eq!(
        read.drafts,
        [
            Draft::Thinking { text: "two ".to_owned() },
            Draft::Thinking { text: "files".to_owned() },
            Draft::Text { text: "I read".to_owned() },
            Draft::Text { text: " it.".to_owned() },
            Draft::ToolCall { name: "files/read".to_owned(), id: id.clone() },
            Draft::Arguments { id: id.clone(), text: "{\"path\":".to_owned() },
            Draft::Arguments { id, text: "\"a\"}".to_owned() },
        ]
    );
    let answer = read.answer();
    assert_eq!(
        answer.content,
        [
            Block::thinking("two files"),
            opaque("openai-responses", reasoning()),
            Block::text("I read it."),
            Block::tool_call(call("call_1"), "files/read", json!({"path": "a"})),
        ]
    );
    assert_eq!(answer.end, End::ToolCalls);
    let usage = Usage { input_tokens: 30, output_tokens: 12, cache_read_tokens: 10, ..Usage::default() };
    assert_eq!(answer.usage, Some(usage));
    assert_eq!((answer.provider_id.as_deref(), answer.model.as_deref()), (Some("resp_1"), Some("m-1")));
    assert_eq!(answer.session, None);
}

#[test]
fn items_without_pieces_are_drafted_when_they_are_whole() {
    let whole_call = json!({"type": "function_call", "call_id": "call_1", "name": "a", "arguments": "no"});
    let text = json!({"type": "message", "content": [{"type": "output_text", "text": "hi"}]});
    let mut read = Read::new(&dialect());
    read.end("completed", &json!({"id": "resp_1", "output": [text, whole_call]}));
    let id = Some(call("call_1"));
    assert_eq!(
        read.drafts,
        [
            Draft::Text { text: "hi".to_owned() },
            Draft::ToolCall { name: "a".to_owned(), id: id.clone() },
            Draft::Arguments { id, text: "no".to_owned() },
        ]
    );
    assert_eq!(read.answer().content, [Block::text("hi"), Block::tool_call(call("call_1"), "a", json!("no"))]);
}

#[test]
fn items_of_the_hosts_own_tools_are_kept_whole() {
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed"});
    let mut read = Read::new(&dialect());
    read.events(&[json!({"type": "response.output_item.done", "output_index": 0, "item": search})]);
    read.end("completed", &json!({"id": "resp_1"}));
    let answer = read.answer();
    assert_eq!((answer.content, answer.end), (vec![opaque("openai-responses", search)], End::Finished));
}

#[test]
fn only_a_completed_response_is_a_session() {
    let mut read = Read::new(&with_sessions());
    read.end("completed", &json!({"id": "resp_7"}));
    assert_eq!(read.answer().session.as_deref(), Some("resp_7"));
    let mut read = Read::new(&with_sessions());
    read.end("incomplete", &json!({"id": "resp_7", "incomplete_details": {"reason": "max_output_tokens"}}));
    assert_eq!(read.answer().session, None);
}

#[test]
fn the_reason_for_the_end_is_told() {
    for (reason, end) in [("max_output_tokens", End::Length), ("content_filter", End::Refused)] {
        let mut read = Read::new(&dialect());
        read.end("incomplete", &json!({"id": "r", "incomplete_details": {"reason": reason}}));
        assert_eq!(read.answer().end, end);
    }
    let mut read = Read::new(&dialect());
    read.events(&[json!({"type": "response.refusal.delta", "output_index": 0, "delta": "I can't."})]);
    read.end("completed", &json!({"id": "r"}));
    let answer = read.answer();
    assert_eq!((answer.content, answer.end), (vec![Block::text("I can't.")], End::Refused));
    let mut read = Read::new(&dialect());
    let other =
        json!({"type": "response.incomplete", "response": {"id": "r", "incomplete_details": {"reason": "other"}}});
    assert!(matches!(read.event(&other), Err(ModelError::Cut { .. })));
}

#[test]
fn a_stream_without_its_last_event_was_cut() {
    let mut read = Read::new(&dialect());
    read.events(&[json!({"type": "response.output_text.delta", "output_index": 0, "delta": "half"})]);
    read.reader.event("", "[DONE]", &mut |_| {}).unwrap();
    assert_eq!(read.reader.partial(), [Block::text("half")]);
    assert!(!read.reader.is_complete());
    assert!(read.reader.answer().is_none());
}

#[test]
fn errors_and_garbage_inside_a_stream_end_it() {
    let error = |data: Value| Read::new(&dialect()).event(&data).unwrap_err();
    let failed = |code: &str| {
        let error_report = json!({"code": code, "message": "Please try again in 2s."});
        error(json!({"type": "response.failed", "response": {"id": "r", "error": error_report}}))
    };
    assert!(matches!(failed("rate_limit_exceeded"), ModelError::RateLimited { retry_after: Some(_), .. }));
    assert!(matches!(failed("server_error"), ModelError::Transient { .. }));
    assert!(matches!(failed("context_length_exceeded"), ModelError::ContextTooLong { .. }));
    assert!(matches!(failed("previous_response_not_found"), ModelError::SessionRefused { .. }));
    assert!(matches!(failed("invalid_prompt"), ModelError::Permanent { .. }));
    let bare = json!({"type": "response.failed", "response": {"id": "r", "error": null}});
    assert!(matches!(error(bare), ModelError::Transient { .. }));
    let event = json!({"type": "error", "code": "server_error", "message": "oh", "param": null});
    assert!(matches!(error(event), ModelError::Transient { why } if why == "oh"));
    let nested = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "oh"}});
    assert!(matches!(error(nested), ModelError::Permanent { .. }));
    assert!(matches!(error(json!({"error": {"message": "oh", "code": 500}})), ModelError::Status { status: 500, .. }));
    assert!(matches!(error(json!({"type": "response.output_item.done"})), ModelError::Cut { .. }));
    let garbage = Read::new(&dialect()).reader.event("", "{garbage", &mut |_| {});
    assert!(matches!(garbage, Err(ModelError::Cut { .. })));
}

#[test]
fn a_refused_session_is_told_from_other_refusals() {
    let refusal = |status: u16, error: Value| {
        let body = json!({ "error": error }).to_string();
        OpenAiResponses.refusal(&Refusal { status: Some(status), body: &body })
    };
    let gone = json!({"message": "Previous response with id 'resp_1' not found.", "param": "previous_response_id",
        "code": "previous_response_not_found"});
    assert!(matches!(refusal(400, gone.clone()), Some(ModelError::SessionRefused { .. })));
    assert!(matches!(refusal(404, gone), Some(ModelError::SessionRefused { .. })));
    assert!(refusal(404, json!({"message": "The model does not exist", "code": "model_not_found"})).is_none());
    let long =
        json!({"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"});
    assert!(matches!(refusal(400, long), Some(ModelError::ContextTooLong { .. })));
}

#[test]
fn what_a_host_refuses_is_left_out() {
    let without = |error: Value| {
        let body = json!({ "error": error }).to_string();
        OpenAiResponses.without(&Refusal { status: Some(400), body: &body })
    };
    let mut body = json!({
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "input": [reasoning(), {"type": "message"}],
    });
    for error in [
        json!({"message": "Encrypted content is not supported with this model.", "param": "include"}),
        json!({"message": "Your organization must be verified to generate reasoning summaries.", "param": "reasoning.summary"}),
        json!({"message": "The encrypted content for item rs_1 could not be verified.", "code": "invalid_encrypted_content"}),
    ] {
        assert!(without(error).unwrap().apply(&mut body));
    }
    assert_eq!(body, json!({"reasoning": {"effort": "low"}, "input": [{"type": "message"}]}));
    assert!(without(json!({"message": "no"})).is_none());
}
