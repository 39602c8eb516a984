//! A scripted model keeps to its script, and the same conversation gets the same answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use selvedge_model::answer::{End, Session, Usage};
use selvedge_model::message::{Block, Visibility};
use selvedge_model::{Answer, CallId, Cancel, Classify, Draft, Message, Model, ModelError, Prompt, Role, Stop};
use selvedge_providers::scripted::{Price, Repeat};
use selvedge_providers::{Script, Scripted};
use serde_json::{Value, json};

fn model(script: &str) -> Scripted {
    Scripted::new(Script::parse(script).unwrap())
}

/// A conversation that grows with each message.
#[derive(Clone, Default)]
struct Talk {
    messages: Vec<Arc<Message>>,
    session: Option<&'static str>,
}

impl Talk {
    fn user(text: &str) -> Self {
        Self::default().and_user(text)
    }

    fn and_user(mut self, text: &str) -> Self {
        self.messages.push(Arc::new(Message::text(Role::User, text)));
        self
    }

    fn and_result(mut self, call: &str, content: Value) -> Self {
        let block = Block::tool_result(CallId::new(call).unwrap(), content);
        self.add(Role::Tool, vec![block]);
        self
    }

    fn add(&mut self, role: Role, content: Vec<Block>) {
        let visibility = Visibility::All;
        self.messages.push(Arc::new(Message { content, visibility, ..Message::text(role, "") }));
    }

    fn ask(&self, model: &Scripted) -> Result<Answer, ModelError> {
        self.ask_drafting(model, &Cancel::new()).0
    }

    fn ask_drafting(&self, model: &Scripted, cancel: &Cancel) -> (Result<Answer, ModelError>, Vec<Draft>) {
        let mut drafts = Vec::new();
        let mut prompt = Prompt::new("scripted", &self.messages);
        prompt.session = self.session.map(|id| Session { id, covers: 0 });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let answer = runtime.block_on(model.answer(&prompt, &mut |draft| drafts.push(draft), cancel));
        (answer, drafts)
    }

    /// Asks, and adds the answer to the conversation; returns its text.
    fn go_on(&mut self, model: &Scripted) -> String {
        let content = self.ask(model).unwrap().content;
        self.add(Role::Assistant, content);
        self.messages.last().unwrap().plain_text()
    }
}

fn text(text: &str) -> Block {
    Block::text(text)
}

#[test]
fn turns_are_given_in_order_and_a_repeated_one_repeatedly() {
    let model = model("turns:\n  - say: one\n  - {say: two, repeat: 2}\n  - {say: rest, repeat: forever}\n");
    let mut talk = Talk::user("go");
    let said: Vec<_> = (0..5).map(|_| talk.go_on(&model)).collect();
    assert_eq!(said, ["one", "two", "two", "rest", "rest"]);
    assert_eq!(model.script().turns[2].repeat, Repeat::Forever);
}

#[test]
fn a_new_process_continues_where_the_conversation_is() {
    let script = "turns:\n  - say: one\n  - {when: {user: {contains: more}}, say: two}\n  - say: three\n";
    let mut talk = Talk::user("more");
    assert_eq!(talk.go_on(&model(script)), "one");
    assert_eq!(talk.go_on(&model(script)), "two");
    assert_eq!(talk.go_on(&model(script)), "three");
    assert!(
        matches!(talk.ask(&model(script)), Err(ModelError::Permanent { why }) if why.contains("no turn for answer 4"))
    );
    // Asked again at the same place, it gives the same answer.
    talk.messages.truncate(2);
    assert_eq!(talk.go_on(&model(script)), "two");
}

#[test]
fn a_turn_is_chosen_by_the_prompt() {
    let script = "
turns:
  - when: {result: {contains: {paid: true}}}
    say: It was paid.
    repeat: forever
  - when: {result: {equals: refused}}
    say: It was refused.
  - when: {user: {contains: pay}, turns: {at_most: 0}}
    calls: [{tool: pay}]
  - when: {user: {equals: 7}}
    say: Seven.
  - say: What?
    repeat: forever
";
    let model = model(script);
    let mut talk = Talk::user("please pay");
    talk.go_on(&model);
    let paid = json!({"paid": true, "by": "card"});
    assert_eq!(talk.clone().and_result("call_1", paid.clone()).go_on(&model), "It was paid.");
    assert_eq!(talk.clone().and_result("call_1", json!(paid.to_string())).go_on(&model), "It was paid.");
    assert_eq!(talk.clone().and_result("call_1", json!("refused")).go_on(&model), "It was refused.");
    assert_eq!(talk.clone().and_result("call_1", json!({"paid": false})).go_on(&model), "What?");
    // A result that was answered does not count again.
    let mut answered = talk.and_result("call_1", paid);
    answered.go_on(&model);
    assert_eq!(answered.and_user("and now?").go_on(&model), "What?");
    assert_eq!(Talk::user("7").go_on(&model), "Seven.");
}

#[test]
fn an_answer_has_thoughts_text_calls_usage_and_an_end() {
    let script = r#"
turns:
  - think: hm
    provider: {name: acme, data: {sealed: "{user}"}}
    say: [One moment, {text: " please.", delay_ms: 1}]
    calls:
      - {tool: read, arguments: {path: "{user}", deep: ["{turn}", 7, {"{user}": "{unknown} {"}]}}
      - {tool: write, id: "my.own"}
    usage: {input_tokens: 10, output_tokens: 4, cache_read_tokens: 3}
    session: s1
  - {end: length, say: too lo}
  - {say: a, calls: [{tool: read}]}
"#;
    let model = model(script);
    let mut talk = Talk::user("a{turn}.txt");
    let (answer, drafts) = talk.ask_drafting(&model, &Cancel::new());
    let answer = answer.unwrap();
    let arguments = json!({"path": "a{turn}.txt", "deep": ["1", 7, {"{user}": "{unknown} {"}]});
    let call = |id: &str, name: &str, arguments| Block::ToolCall {
        blob: None,
        id: CallId::new(id).unwrap(),
        name: name.to_owned(),
        arguments,
    };
    let thought = Block::thinking("hm");
    let calls = [call("call_1", "read", arguments.clone()), call("my.own", "write", json!({}))];
    let opaque = Block::Opaque { provider: "acme".to_owned(), data: json!({"sealed": "{user}"}) };
    assert_eq!(answer.content[..3], [thought, opaque, text("One moment please.")]);
    assert_eq!(answer.content[3..], calls);
    assert_eq!((answer.end, answer.session.as_deref()), (End::ToolCalls, Some("s1")));
    let usage = Usage { input_tokens: 10, output_tokens: 4, cache_read_tokens: 3, ..Usage::default() };
    assert_eq!(answer.usage, Some(usage));
    let said = |text: &str| Draft::Text { text: text.to_owned() };
    let asked = |name: &str, id: &str| Draft::ToolCall { name: name.to_owned(), id: CallId::new(id).ok() };
    let given = |id: &str, text: String| Draft::Arguments { id: CallId::new(id).ok(), text };
    let thought = Draft::Thinking { text: "hm".to_owned() };
    assert_eq!(drafts[..3], [thought, said("One moment"), said(" please.")]);
    let first = [asked("read", "call_1"), given("call_1", arguments.to_string())];
    assert_eq!(drafts[3..5], first);
    assert_eq!(drafts[5..], [asked("write", "my.own"), given("my.own", "{}".to_owned())]);
    talk.add(Role::Assistant, answer.content);
    let answer = talk.ask(&model).unwrap();
    assert_eq!(answer.end, End::Length);
    talk.add(Role::Assistant, answer.content);
    // Calls are numbered through the conversation, so no id is used twice.
    assert!(matches!(&talk.ask(&model).unwrap().content[1], Block::ToolCall { id, .. } if id.as_str() == "call_3"));
}

#[test]
fn the_first_attempts_fail_before_the_answer() {
    let script = "
turns:
  - fail:
      - {transient: down}
      - {rate_limited: {why: slow down, retry_after_ms: 1500}}
      - {cut: {why: gone, say: [Pa, i], usage: {output_tokens: 1}}}
      - {unreached: no route}
      - {status: {code: 503, why: busy, retry_after_ms: 1500}}
      - {session_refused: who}
    say: Paid.
";
    let model = model(script);
    let talk = Talk::user("pay");
    assert_eq!(talk.ask(&model), Err(ModelError::Transient { why: "down".to_owned() }));
    let other = Talk::user("another conversation");
    assert_eq!(other.ask(&model), Err(ModelError::Transient { why: "down".to_owned() }));
    let wait = Some(Duration::from_millis(1500));
    assert_eq!(talk.ask(&model), Err(ModelError::RateLimited { why: "slow down".to_owned(), retry_after: wait }));
    let (cut, drafts) = talk.ask_drafting(&model, &Cancel::new());
    let usage = Some(Usage { output_tokens: 1, ..Usage::default() });
    assert_eq!(cut, Err(ModelError::Cut { why: "gone".to_owned(), partial: vec![text("Pai")], usage }));
    assert_eq!(drafts.len(), 2);
    assert_eq!(talk.ask(&model), Err(ModelError::Unreached { why: "no route".to_owned() }));
    let busy = ModelError::Status { status: 503, why: "busy".to_owned(), retry_after: wait };
    assert_eq!(talk.ask(&model), Err(busy));
    // No session was offered, so none is refused.
    assert_eq!(talk.ask(&model).unwrap().content, [text("Paid.")]);
}

#[test]
fn a_session_is_refused_only_if_the_prompt_names_one() {
    let model = model("turns:\n  - {error: {session_refused: who are you}, say: Hello.}\n");
    let mut talk = Talk::user("go");
    talk.session = Some("s1");
    assert_eq!(talk.ask(&model), Err(ModelError::SessionRefused { why: "who are you".to_owned() }));
    assert_eq!(talk.ask(&model), Err(ModelError::SessionRefused { why: "who are you".to_owned() }));
    talk.session = None;
    assert_eq!(talk.ask(&model).unwrap().content, [text("Hello.")]);
}

#[test]
fn an_error_in_place_of_an_answer_stays() {
    let model = model("turns:\n  - error: {permanent: never}\n  - say: unreached\n");
    for _ in 0..3 {
        assert_eq!(Talk::user("go").ask(&model), Err(ModelError::Permanent { why: "never".to_owned() }));
    }
}

#[test]
fn a_stop_ends_the_answer_with_its_partial_text() {
    let model = model("turns:\n  - say: [begun, {text: never, delay_ms: 60000}]\n");
    let cancel = Cancel::new();
    let begun = Instant::now();
    let (answer, drafts) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| Talk::user("go").ask_drafting(&model, &cancel));
        std::thread::sleep(Duration::from_millis(30));
        cancel.say(Stop::Cancelled);
        asked.join().unwrap()
    });
    assert_eq!(answer, Err(ModelError::Stopped { partial: vec![text("begun")], usage: None }));
    assert_eq!(drafts.len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_offline_model_says_what_it_is_and_repeats_what_it_was_sent() {
    let model = Scripted::offline();
    let mut talk = Talk::user("count {turn} threads");
    assert!(talk.go_on(&model).ends_with("You told me: count {turn} threads"));
    let mut talk = talk.and_result("c", json!({"threads": 7}));
    assert!(talk.go_on(&model).ends_with(r#"A tool answered: {"threads":7}"#));
    assert!(talk.and_user("bye").go_on(&model).contains("scripted model"));
    assert_eq!(model.context_tokens_max("any"), Some(200_000));
}

#[test]
fn a_price_is_kept() {
    let script = "price: {input_per_million_tokens: 3, output_per_million_tokens: \"15.50\"}\nturns: [{say: x}]\n";
    let price = Price {
        input_per_million_tokens: "3".parse().unwrap(),
        output_per_million_tokens: "15.5".parse().unwrap(),
        cache_read_per_million_tokens: None,
        cache_write_per_million_tokens: None,
    };
    assert_eq!(Script::parse(script).unwrap().price, Some(price));
}

#[test]
fn a_bad_script_is_refused_with_its_line() {
    for (script, line, why) in [
        ("turns: []\n", None, "no turn"),
        ("", None, ""),
        ("turns:\n  - say: a\n  - sya: b\n", Some(3), "sya"),
        ("turns:\n  - say: a\n    say: b\n", Some(3), "say"),
        ("turns:\n  - say: a\n  - say: b\n    error: {permanent: no}\n", Some(3), "not both"),
        ("turns:\n  - say: a\n  - repeat: 2\n", Some(3), "says nothing"),
        ("turns:\n  - {say: a, repeat: 0}\n", Some(2), "never"),
        ("turns:\n  - {say: a, repeat: often}\n", Some(2), "`forever`"),
        ("turns:\n  - {say: a, repeat: -1}\n", Some(2), "negative"),
        ("turns:\n  - {say: a, when: {}}\n", Some(2), "asks for nothing"),
        ("turns:\n  - {say: a, end: tool_calls}\n", Some(2), "no `calls`"),
        ("turns:\n  - {error: {explosion: no}}\n", Some(2), "explosion"),
        ("turns:\n  - {calls: [{tool: x, id: \"\"}]}\n", Some(2), "empty"),
        ("turns:\n  - &a {say: a}\n  - *a\n", None, ""),
        ("turns: [{say: a}]\n---\nturns: [{say: b}]\n", None, ""),
        ("turns: [\n", None, ""),
    ] {
        let error = Script::parse(script).expect_err(script);
        assert!(error.why.contains(why), "{script}: {error}");
        if line.is_some() {
            assert_eq!(error.line, line, "{script}: {error}");
        }
        assert_eq!(error.code(), "script_invalid");
        assert!(!error.why.contains("line "), "the line is reported once: {error}");
    }
    let error = Script::parse("turns:\n  - say: a\n  - repeat: 2\n").unwrap_err();
    assert!(error.to_string().starts_with("the script, line 3, is not a valid model script: "), "{error}");
}

#[test]
fn the_documented_script_is_valid() {
    let source = include_str!("../../src/scripted/script.rs");
    let (_, example) = source.split_once("//! ```yaml\n").unwrap();
    let (example, _) = example.split_once("//! ```\n").unwrap();
    let script: String = example.lines().map(|line| format!("{}\n", line.trim_start_matches("//! "))).collect();
    assert_eq!(Script::parse(&script).unwrap().turns.len(), 3);
}
