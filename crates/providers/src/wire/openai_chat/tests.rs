use std::sync::Arc;

use selvedge_model::Digest;
use selvedge_model::answer::{Answer, Draft, End, Usage};
use selvedge_model::message::{Block, Message, Role};
use serde_json::{Value, json};

use super::openai::testing::{call, message, said, tool};
use super::*;

fn dialect(provider: &str) -> Dialect {
    Dialect { provider: provider.to_owned(), ..Dialect::default() }
}

fn sent(messages: &[Arc<Message>], dialect: &Dialect) -> Value {
    let prompt = Prompt::new("m", messages);
    OpenAiChat.request("m", &prompt, &Images::new(), dialect).unwrap().body
}

/// Reads a stream of events without names.
struct Read {
    reader: Box<dyn Reader>,
    drafts: Vec<Draft>,
}

impl Read {
    fn new(tools: &[ToolSpec]) -> Self {
        Self { reader: OpenAiChat.reader(&Dialect::default(), tools), drafts: Vec::new() }
    }

    fn event(&mut self, data: &str) -> Result<(), ModelError> {
        self.reader.event("", data, &mut |draft| self.drafts.push(draft))
    }

    fn delta(&mut self, delta: &Value) {
        self.event(&json!({"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": delta}]}).to_string())
            .unwrap();
    }

    fn end(&mut self, reason: &str) {
        self.event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string()).unwrap();
        self.event("[DONE]").unwrap();
    }

    fn answer(self) -> Answer {
        assert!(self.reader.is_complete());
        self.reader.answer().unwrap()
    }
}

fn arguments(text: &str) -> Draft {
    Draft::Arguments { id: Some(call("c.1")), text: text.to_owned() }
}

#[test]
fn a_conversation_with_thinking_and_two_parallel_calls_is_sent_as_the_format_demands() {
    let signed = Block::Thinking {
        text: "hm".to_owned(),
        signature: Some("sig".to_owned()),
        provider: Some("anthropic".to_owned()),
    };
    let messages = [
        said(Role::User, "compare them"),
        message(
            Role::Assistant,
            vec![
                Block::thinking("two files"),
                signed,
                Block::Opaque { provider: "openai".to_owned(), data: json!({"type": "reasoning"}) },
                Block::text("I read both."),
                Block::tool_call(call("c.1"), "files/read", json!({"path": "a"})),
                Block::tool_call(call("c.2"), "files/read", Value::String("{\"path\": ".to_owned())),
            ],
        ),
        message(Role::Tool, vec![Block::tool_result(call("c.1"), json!({"text": "A"}))]),
        message(Role::Tool, vec![Block::tool_error(call("c.2"), json!("the arguments are not JSON"))]),
        said(Role::Assistant, "They differ."),
        said(Role::User, "thanks"),
    ];
    let tools = [tool("files/read")];
    let mut prompt = Prompt::new("gpt-x", &messages);
    prompt.system = "Be brief.";
    prompt.tools = &tools;
    prompt.output_tokens_max = Some(500);
    let dialect = Dialect { effort: Some("low".to_owned()), ..dialect("openai") };
    let request = OpenAiChat.request("gpt-x", &prompt, &Images::new(), &dialect).unwrap();
    assert_eq!(request.path, "chat/completions");
    assert_eq!(
        request.body,
        json!({
            "model": "gpt-x",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "compare them"},
                {"role": "assistant", "content": "I read both.", "tool_calls": [
                    {"id": "c.1", "type": "function", "function": {"name": "files_read", "arguments": "{\"path\":\"a\"}"}},
                    {"id": "c.2", "type": "function", "function": {"name": "files_read", "arguments": "{\"path\": "}},
                ]},
                {"role": "tool", "tool_call_id": "c.1", "content": "{\"text\":\"A\"}"},
                {"role": "tool", "tool_call_id": "c.2", "content": "error: the arguments are not JSON"},
                {"role": "assistant", "content": "They differ."},
                {"role": "user", "content": "thanks"},
            ],
            "stream": true,
            "stream_options": {"include_usage": true},
            "tools": [{"type": "function", "function": {
                "name": "files_read",
                "description": "does files/read",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            }}],
            "max_completion_tokens": 500,
            "reasoning_effort": "low",
        })
    );
}

#[test]
fn a_host_gets_back_the_reasoning_and_the_signatures_that_it_sent() {
    let signed = json!({"google": {"thought_signature": "AY89"}});
    for (first, field, value) in [
        (json!({"reasoning_content": "hm"}), "reasoning_content", json!("hm")),
        (json!({"reasoning": "hm"}), "reasoning", json!("hm")),
        (
            json!({"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}),
            "reasoning_details",
            json!([{"type": "reasoning.text", "text": "hm", "signature": "s"}]),
        ),
    ] {
        let dialect = dialect("host");
        let mut read = Read { reader: OpenAiChat.reader(&dialect, &[tool("files/read")]), drafts: Vec::new() };
        read.delta(&first);
        read.delta(&json!({"tool_calls": [
            {"index": 0, "id": "c.1", "function": {"name": "files_read", "arguments": "{}"}, "extra_content": signed},
            {"index": 1, "id": "c.2", "function": {"name": "files_read", "arguments": "{}"}},
        ]}));
        read.end("tool_calls");
        let answer = message(Role::Assistant, read.answer().content);
        let body = sent(&[said(Role::User, "x"), answer.clone()], &dialect);
        let restored = &body["messages"][1];
        assert_eq!(restored[field], value);
        assert_eq!(restored.as_object().unwrap().len(), 4, "role, content, calls and one field: {restored}");
        assert_eq!(restored["tool_calls"][0]["extra_content"], signed);
        assert_eq!(restored["tool_calls"][1].get("extra_content"), None);
        // Another host gets nothing of it.
        let other = sent(&[said(Role::User, "x"), answer], &Dialect { provider: "other".to_owned(), ..dialect });
        let text = other.to_string();
        assert!(!text.contains("reasoning") && !text.contains("extra_content"), "{text}");
    }
}

#[test]
fn images_are_data_urls_and_those_of_tools_follow_all_results() {
    let blob = Digest([7; 32]);
    let image = || Block::Image { blob, media_type: "image/png".to_owned() };
    let messages = [
        message(Role::User, vec![Block::text("look"), image()]),
        message(Role::Assistant, ["c.1", "c.2"].map(|id| Block::tool_call(call(id), "shoot", json!({}))).to_vec()),
        message(Role::Tool, vec![Block::tool_result(call("c.1"), json!("done")), image()]),
        message(Role::Tool, vec![Block::tool_result(call("c.2"), json!("done"))]),
        said(Role::User, "well?"),
    ];
    let prompt = Prompt::new("m", &messages);
    let images = Images::from([(blob, b"png".to_vec())]);
    let body = OpenAiChat.request("m", &prompt, &images, &dialect("openai")).unwrap().body;
    let url = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}});
    assert_eq!(body["messages"][0]["content"], json!([{"type": "text", "text": "look"}, url]));
    assert_eq!(body["messages"][1]["content"], Value::Null);
    let roles: Vec<&str> =
        body["messages"].as_array().unwrap().iter().map(|sent| sent["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"]);
    assert_eq!(body["messages"][4]["content"], json!([url, {"type": "text", "text": "well?"}]));
    let missing = OpenAiChat.request("m", &prompt, &Images::new(), &dialect("openai"));
    assert!(matches!(missing, Err(ModelError::Permanent { .. })));
}

#[test]
fn two_messages_of_the_user_are_joined_and_an_empty_answer_is_left_out() {
    let messages =
        [said(Role::User, "one"), message(Role::Assistant, vec![Block::thinking("hm")]), said(Role::User, "two")];
    let body = sent(&messages, &dialect("openai"));
    assert_eq!(body["messages"], json!([{"role": "user", "content": "one\n\ntwo"}]));
}

#[test]
fn compatible_hosts_get_the_limit_under_the_name_that_all_of_them_know() {
    let limited = |provider: &str, removed: Option<&str>| {
        let mut dialect = Dialect { output_tokens_max: Some(9), ..dialect(provider) };
        dialect.extra.extend(removed.map(|field| (field.to_owned(), Value::Null)));
        let body = sent(&[said(Role::User, "x")], &dialect);
        let fields = ["max_completion_tokens", "max_tokens"].into_iter().filter(|field| body.get(field).is_some());
        fields.collect::<Vec<_>>()
    };
    assert_eq!(limited("openai", None), ["max_completion_tokens"]);
    assert_eq!(limited("ollama", None), ["max_tokens"]);
    assert_eq!(limited("openai", Some("max_completion_tokens")), ["max_tokens"]);
    assert_eq!(limited("azure", Some("max_tokens")), ["max_completion_tokens"]);
}

#[test]
fn an_answer_is_assembled_from_its_pieces_and_drafted_as_they_arrive() {
    let mut read = Read::new(&[]);
    read.delta(&json!({"role": "assistant", "content": ""}));
    read.delta(&json!({"reasoning_content": "let "}));
    read.delta(&json!({"reasoning": "me"}));
    read.delta(&json!({"content": "Hel"}));
    read.delta(&json!({"content": "lo", "reasoning_content": null, "tool_calls": null, "refusal": null}));
    read.event(r#"{"choices":[{"index":1,"delta":{"content":"another answer"}}],"usage":null}"#).unwrap();
    read.event(r#"{"object":"some.event","unknown":{}}"#).unwrap();
    assert!(read.reader.usage().is_none() && !read.reader.is_complete());
    read.event(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#).unwrap();
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":8}}}"#;
    read.event(usage).unwrap();
    read.event("[DONE]").unwrap();
    let texts = |draft: &Draft| match draft {
        Draft::Text { text } | Draft::Thinking { text } => text.clone(),
        other => format!("{other:?}"),
    };
    assert_eq!(read.drafts.iter().map(texts).collect::<Vec<_>>(), ["let ", "me", "Hel", "lo"]);
    let answer = read.answer();
    assert_eq!(answer.content, [Block::thinking("let me"), Block::text("Hello")]);
    assert_eq!(answer.end, End::Finished);
    let usage = Usage { input_tokens: 20, output_tokens: 5, cache_read_tokens: 8, ..Usage::default() };
    assert_eq!(answer.usage, Some(usage));
    assert_eq!((answer.provider_id.as_deref(), answer.model.as_deref()), (Some("c1"), Some("m-1")));
}

#[test]
fn parallel_calls_are_assembled_by_index() {
    let mut read = Read::new(&[tool("files/read")]);
    read.delta(&json!({"tool_calls": [{"index": 0, "id": "c.1", "type": "function", "function": {"name": "files_read", "arguments": ""}}]}));
    read.delta(&json!({"tool_calls": [{"index": 1, "id": "c.2", "function": {"name": "other", "arguments": "{"}}]}));
    read.delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"path\":"}}]}));
    read.delta(&json!({"tool_calls": [{"index": 1, "id": "", "function": {"name": "", "arguments": "}"}}]}));
    read.delta(&json!({"tool_calls": [{"index": 0, "id": null, "function": {"name": null, "arguments": "\"a\"}"}}]}));
    read.end("tool_calls");
    assert_eq!(read.drafts[0], Draft::ToolCall { name: "files/read".to_owned(), id: Some(call("c.1")) });
    assert_eq!(read.drafts[3], arguments("{\"path\":"));
    assert_eq!(read.drafts[5], arguments("\"a\"}"));
    let answer = read.answer();
    assert_eq!(answer.end, End::ToolCalls);
    assert_eq!(
        answer.content,
        [
            Block::tool_call(call("c.1"), "files/read", json!({"path": "a"})),
            Block::tool_call(call("c.2"), "other", json!({})),
        ]
    );
}

#[test]
fn whole_calls_without_ids_indices_or_text_arguments_are_calls_too() {
    let mut read = Read::new(&[]);
    read.delta(
        &json!({"tool_calls": [{"function": {"name": "a", "arguments": {"x": 1}}}, {"function": {"name": "b"}}]}),
    );
    // A host that numbers every call 0.
    read.delta(&json!({"tool_calls": [{"index": 0, "id": "c.8", "function": {"name": "c", "arguments": "{}"}}]}));
    read.delta(&json!({"tool_calls": [{"index": 0, "id": "c.9", "function": {"name": "d", "arguments": "not JSON"}}]}));
    read.end("stop");
    let answer = read.answer();
    assert_eq!(answer.end, End::ToolCalls);
    assert_eq!(
        answer.content,
        [
            Block::tool_call(call("call_1"), "a", json!({"x": 1})),
            Block::tool_call(call("call_2"), "b", json!({})),
            Block::tool_call(call("c.8"), "c", json!({})),
            Block::tool_call(call("c.9"), "d", json!("not JSON")),
        ]
    );
}

#[test]
fn a_call_of_the_older_form_and_parts_of_content_are_read() {
    let mut read = Read::new(&[]);
    read.delta(&json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}));
    read.delta(&json!({"content": [{"type": "text", "text": "so"}]}));
    read.delta(&json!({"function_call": {"name": "a", "arguments": "{\"x\""}}));
    read.delta(&json!({"function_call": {"arguments": ":1}"}}));
    read.end("function_call");
    let answer = read.answer();
    let expected = [Block::thinking("hm"), Block::text("so"), Block::tool_call(call("call_1"), "a", json!({"x": 1}))];
    assert_eq!(answer.content, expected);
}

#[test]
fn the_reason_for_the_end_is_told() {
    for (reason, end) in
        [("stop", End::Finished), ("length", End::Length), ("content_filter", End::Refused), ("eos", End::Finished)]
    {
        let mut read = Read::new(&[]);
        read.delta(&json!({"content": "x"}));
        read.end(reason);
        assert_eq!(read.answer().end, end, "{reason}");
    }
    let mut read = Read::new(&[]);
    read.delta(&json!({"refusal": "I can't"}));
    read.delta(&json!({"refusal": " do that."}));
    read.end("stop");
    let answer = read.answer();
    assert_eq!((answer.content, answer.end), (vec![Block::text("I can't do that.")], End::Refused));
}

#[test]
fn a_stream_without_a_reason_for_its_end_was_cut() {
    let mut read = Read::new(&[]);
    read.delta(&json!({"content": "x"}));
    assert_eq!(read.reader.partial(), [Block::text("x")]);
    read.event("[DONE]").unwrap();
    assert!(!read.reader.is_complete());
    assert!(read.reader.answer().is_none());
    // Some hosts close the stream without its last event.
    let mut read = Read::new(&[]);
    read.delta(&json!({"content": "x"}));
    read.event(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#).unwrap();
    assert!(!read.reader.is_complete());
    assert_eq!(read.reader.answer().unwrap().content, [Block::text("x")]);
    let mut read = Read::new(&[]);
    let given_up = read.event(r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"error"}]}"#);
    assert!(matches!(given_up, Err(ModelError::Cut { partial, .. }) if partial == [Block::text("x")]));
}

#[test]
fn errors_and_garbage_inside_a_stream_end_it() {
    let error = |data: &str| Read::new(&[]).event(data).unwrap_err();
    assert!(matches!(error(r#"{"error":{"message":"busy","code":503}}"#), ModelError::Status { status: 503, .. }));
    assert!(matches!(
        error(r#"{"object":"error","message":"no","type":"BadRequestError","code":400}"#),
        ModelError::Status { status: 400, .. }
    ));
    let long = error(r#"{"error":{"message":"long","code":"context_length_exceeded"},"choices":[]}"#);
    assert!(matches!(long, ModelError::ContextTooLong { .. }));
    assert!(matches!(error("{not JSON"), ModelError::Cut { .. }));
    assert!(matches!(error(r#"{"choices":7}"#), ModelError::Cut { .. }));
}

#[test]
fn usage_before_the_end_is_an_estimate_and_zeros_are_no_report() {
    let mut read = Read::new(&[]);
    let counted = json!({"choices": [{"index": 0, "delta": {"content": "x"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}});
    read.event(&counted.to_string()).unwrap();
    assert!(read.reader.usage().unwrap().estimated);
    let mut read = Read::new(&[]);
    let zeros = json!({"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}});
    read.event(&zeros.to_string()).unwrap();
    assert!(read.reader.usage().is_none());
}

#[test]
fn fields_that_a_host_refuses_are_left_out_or_renamed() {
    let without = |status: u16, message: &str| {
        let body = json!({"error": {"message": message}}).to_string();
        OpenAiChat.without(&Refusal { status: Some(status), body: &body })
    };
    let mut body = json!({"stream_options": {}, "max_completion_tokens": 7});
    assert!(without(400, "Unknown field: stream_options").unwrap().apply(&mut body));
    assert!(without(422, "unsupported parameter max_completion_tokens").unwrap().apply(&mut body));
    assert_eq!(body, json!({"max_tokens": 7}));
    let newer =
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
    assert!(without(400, newer).unwrap().apply(&mut body));
    assert_eq!(body, json!({"max_completion_tokens": 7}));
    let mut body = json!({"messages": [{"role": "user"}, {"role": "assistant", "reasoning_content": "hm"}]});
    let unsupported = "'messages.1' : property 'reasoning_content' is unsupported";
    assert!(without(400, unsupported).unwrap().apply(&mut body));
    assert_eq!(body["messages"][1], json!({"role": "assistant"}));
    assert!(!without(400, unsupported).unwrap().apply(&mut body));
    assert!(without(400, "The `reasoning_content` in the thinking mode must be passed back to the API.").is_none());
    assert!(without(400, "Unknown model").is_none());
    assert!(without(500, "unknown stream_options").is_none());
}
