//! Streams through LiteLLM's proxy, a server of other authors, in front of a fake host.
//!
//! `cargo xtask test` installs the proxy and passes its program in `SELVEDGE_TEST_LITELLM`. Without it the test is skipped, except in
//! continuous integration.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use selvedge_model::answer::{End, Usage};
use selvedge_model::event::EffectClass;
use selvedge_model::message::{Block, Message, Role};
use selvedge_model::tool::Risk;
use selvedge_model::{Answer, Cancel, Digest, Draft, Model, ModelError, Prompt, ToolSpec};
use selvedge_providers::fake::{Dialogue, FakeAnswer, OpenAiChatDialogue, Reply, Server};
use selvedge_providers::wire::Dialect;
use selvedge_providers::{Connections, Format, Host, Key, Remote};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Builder;

const PROGRAM: &str = "SELVEDGE_TEST_LITELLM";
const MASTER_KEY: &str = "sk-master-of-the-test";
/// It imports much; on a busy machine that takes long.
const STARTED_WITHIN: Duration = Duration::from_secs(240);

/// A running proxy. It ends when it is dropped.
struct Proxy {
    child: Child,
    port: u16,
    _home: TempDir,
}

impl Proxy {
    fn start(program: &Path, server: &Server) -> Self {
        let home = TempDir::new().unwrap();
        let config = home.path().join("config.yaml");
        let text = format!(
            "model_list:\n  - model_name: tiny\n    litellm_params:\n      model: hosted_vllm/tiny\n      api_base: {}/v1\n      \
             api_key: none\nlitellm_settings:\n  telemetry: false\n  num_retries: 0\ngeneral_settings:\n  master_key: {MASTER_KEY}\n",
            server.url()
        );
        fs::write(&config, text).unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let log = fs::File::create(home.path().join("log")).unwrap();
        let child = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--config"])
            .arg(&config)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home.path())
            // Its table of prices comes with it; otherwise it would be fetched.
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("LITELLM_TELEMETRY", "False")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut proxy = Self { child, port, _home: home };
        let until = Instant::now() + STARTED_WITHIN;
        while !proxy.is_alive() {
            let ended = proxy.child.try_wait().unwrap();
            let log = || fs::read_to_string(proxy._home.path().join("log")).unwrap_or_default();
            assert!(ended.is_none(), "the proxy ended: {ended:?}\n{}", log());
            assert!(Instant::now() < until, "the proxy did not start in time\n{}", log());
            std::thread::sleep(Duration::from_millis(200));
        }
        proxy
    }

    fn is_alive(&self) -> bool {
        let Ok(mut tcp) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) else { return false };
        let asked = tcp.write_all(b"GET /health/liveliness HTTP/1.0\r\nhost: localhost\r\n\r\n");
        let mut answer = String::new();
        asked.and_then(|()| tcp.read_to_string(&mut answer)).is_ok() && answer.contains(" 200 ")
    }

    fn model(&self, format: Format) -> Remote {
        let base = format!("http://127.0.0.1:{}", self.port);
        let base = if format == Format::Anthropic { base } else { format!("{base}/v1") };
        let mut host = Host::new("litellm", format, base);
        host.key = Some(Key::Value(MASTER_KEY.into()));
        Remote::new(&Connections::new(), host, "tiny", Dialect::default())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn ask(model: &Remote, messages: &[Arc<Message>]) -> (Result<Answer, ModelError>, Vec<Draft>) {
    let tools = [ToolSpec {
        name: "files/read".to_owned(),
        description: "reads a file".to_owned(),
        input_schema: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
        class: EffectClass::Pure,
        capability: String::new(),
        risk: Risk::Safe,
        hash: Digest([0; 32]),
    }];
    let mut prompt = Prompt::new("tiny", messages);
    prompt.system = "Be brief.";
    prompt.tools = &tools;
    prompt.output_tokens_max = Some(100);
    let mut drafts = Vec::new();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(model.answer(&prompt, &mut |draft| drafts.push(draft), &Cancel::new()));
    (answer, drafts)
}

/// Two turns: two parallel calls, then an answer to their results.
fn converse(server: &Server, model: &Remote) {
    let calls = FakeAnswer::text(&["Grü", "ße."]).call("call_a", "files_read", &["{\"path\":", "\"a\"}"]);
    let calls = calls.call("call_b", "files_read", &["{\"path\":\"b\"}"]);
    server.push(Reply::events(OpenAiChatDialogue.answer(&calls)));
    let mut messages = vec![Arc::new(Message::text(Role::User, "compare"))];
    let (answer, drafts) = ask(model, &messages);
    let answer = answer.unwrap();
    assert_eq!(answer.end, End::ToolCalls);
    assert_eq!(answer.content[0], Block::text("Grüße."));
    let called = answer.content.iter().filter_map(|block| match block {
        Block::ToolCall { id, name, arguments, .. } => Some((id.as_str(), name.as_str(), arguments.clone())),
        _ => None,
    });
    let expected = [("call_a", "files/read", json!({"path": "a"})), ("call_b", "files/read", json!({"path": "b"}))];
    assert_eq!(called.collect::<Vec<_>>(), expected);
    let usage = Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() };
    assert_eq!(answer.usage, Some(usage));
    let texts = drafts.iter().filter(|draft| matches!(draft, Draft::Text { .. })).count();
    assert_eq!(texts, 2, "it is streamed: {drafts:?}");

    messages.push(Arc::new(Message { content: answer.content.clone(), ..Message::text(Role::Assistant, "") }));
    for block in &answer.content {
        if let Block::ToolCall { id, .. } = block {
            let result = Block::tool_result(id.clone(), json!(format!("content of {id}")));
            messages.push(Arc::new(Message { content: vec![result], ..Message::text(Role::Tool, "") }));
        }
    }
    server.push(Reply::events(OpenAiChatDialogue.answer(&FakeAnswer::text(&["They ", "differ."]))));
    let answer = ask(model, &messages).0.unwrap();
    assert_eq!((answer.content, answer.end), (vec![Block::text("They differ.")], End::Finished));
    // The host behind the proxy sees both calls and both results.
    let received = server.received();
    let sent = received.last().unwrap().json();
    let sent = sent["messages"].as_array().unwrap();
    let calls = sent.iter().flat_map(|message| message["tool_calls"].as_array().cloned().unwrap_or_default());
    assert_eq!(calls.map(|call| call["id"].clone()).collect::<Vec<_>>(), ["call_a", "call_b"]);
    let results =
        sent.iter().filter(|message| message["role"] == "tool").map(|message| message["tool_call_id"].clone());
    assert_eq!(results.collect::<Vec<_>>(), ["call_a", "call_b"]);
}

fn fail(server: &Server, model: &Remote) {
    let messages = [Arc::new(Message::text(Role::User, "hello"))];
    let (status, body) = OpenAiChatDialogue.too_long();
    server.push(Reply::whole(status, &[("content-type", "application/json")], body));
    let error = ask(model, &messages).0.unwrap_err();
    assert!(matches!(error, ModelError::ContextTooLong { .. }), "{error:?}");
    let events = OpenAiChatDialogue.answer(&FakeAnswer::text(&["half", "never"]));
    let half = events.iter().position(|event| event.contains("half")).unwrap() + 1;
    // The proxy gets the time to pass on what it has.
    server.push(Reply::stream().pieces(&events[..half]).pause(Duration::from_millis(500)).cut());
    let answer = ask(model, &messages).0;
    let Err(ModelError::Cut { partial, .. }) = &answer else { panic!("it is cut: {answer:?}") };
    assert_eq!(*partial, [Block::text("half")]);
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that does nothing says so")]
fn chat_completions_and_messages_are_streamed_through_litellm() {
    let Some(program) = std::env::var_os(PROGRAM) else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "`{PROGRAM}` is not set; run `cargo xtask test`");
        eprintln!("!! SKIPPED: `{PROGRAM}` is not set; `cargo xtask test` installs LiteLLM's proxy");
        return;
    };
    let server = Server::start().unwrap();
    let proxy = Proxy::start(Path::new(&program), &server);
    for format in [Format::OpenAiChat, Format::Anthropic] {
        converse(&server, &proxy.model(format));
        fail(&server, &proxy.model(format));
    }
}
