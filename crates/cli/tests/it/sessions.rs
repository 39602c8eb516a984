//! Sessions that a host keeps (`previous_response_id`), from the command line to the real wire format.

use std::fs;
use std::sync::{Arc, Mutex};

use selvedge_providers::fake::{Dialogue, FakeAnswer, OpenAiResponsesDialogue, Received, Reply, Server};
use serde_json::{Value, json};

use crate::running::put;
use crate::support::{Ran, Sandbox, feed};

const KEY: &str = "canary-session-key-77";
const JSON: (&str, &str) = ("content-type", "application/json");

/// A host that keeps conversations until it forgets them: the answers that are left, how many it gave, and the ids that it refuses.
#[derive(Default)]
struct Memory {
    answers: Vec<FakeAnswer>,
    given: usize,
    forgotten: Vec<String>,
    /// The status of every further request.
    fails: Option<u16>,
}

impl Memory {
    fn reply(&mut self, request: &Received) -> Reply {
        let body = request.json();
        let offered = body["previous_response_id"].as_str().unwrap_or_default();
        let refused = |status, message: &str, code: &str| {
            let error =
                json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": code}});
            Reply::whole(status, &[JSON], error.to_string())
        };
        if let Some(status) = self.fails {
            return refused(status, "not now", "unavailable");
        }
        if self.forgotten.iter().any(|id| id == offered) {
            let message = format!("Previous response with id '{offered}' not found.");
            return refused(400, &message, "previous_response_not_found");
        }
        let said = self.answers.remove(0);
        self.given += 1;
        let events = OpenAiResponsesDialogue.answer(&said);
        let id = format!("resp_{}", self.given);
        Reply::events(events.iter().map(|event| event.replace("resp_1", &id)))
    }
}

struct Stage {
    sandbox: Sandbox,
    server: Server,
    memory: Arc<Mutex<Memory>>,
}

impl Stage {
    /// A project with a tool that pays, at most once, and a host that keeps sessions.
    fn new(answers: Vec<FakeAnswer>) -> Self {
        let sandbox = Sandbox::new();
        put(&sandbox, ".ai/directives/pay.md", "---\nname: pay\npermissions: [tool.pay]\n---\nPay anna 20.\n");
        put(
            &sandbox,
            ".ai/tools/pay.yaml",
            "name: pay\ndescription: Pays.\ninput_schema: { type: object, properties: { to: { type: string } } }\n\
             class: at_most_once\ncommand: [sh, -c, \"echo paid | tee -a paid.txt\"]\nenvironment: [PATH]\n",
        );
        let server = Server::start().unwrap();
        let memory = Arc::new(Mutex::new(Memory { answers, ..Memory::default() }));
        server.handle({
            let memory = memory.clone();
            move |request| memory.lock().unwrap().reply(request)
        });
        let file = sandbox.home().join("config/agent/models.yaml");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let config = format!(
            "providers: [{{id: vendor, format: openai-responses, base_url: '{}/v1', api_key_env: VENDOR_KEY, sessions: true}}]\n\
             known: [{{id: 'vendor:m', input: 1, output: 1}}]\n",
            server.url()
        );
        fs::write(file, config).unwrap();
        Self { sandbox, server, memory }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.sandbox.command(args);
        Ran::of(feed(command.env("VENDOR_KEY", KEY).spawn().unwrap(), b""))
    }

    fn bodies(&self) -> Vec<Value> {
        self.server.received().iter().map(Received::json).collect()
    }

    fn session(&self) -> Value {
        self.run(&["thread", "show", "@", "--json"]).json()["session_id"].clone()
    }

    fn log(&self) -> Vec<Value> {
        self.run(&["log", "@", "--json"]).records()
    }

    fn paid(&self) -> usize {
        fs::read_to_string(self.sandbox.project().join("paid.txt")).unwrap_or_default().lines().count()
    }
}

fn call() -> FakeAnswer {
    FakeAnswer::text(&["I pay."]).call("call_a", "pay", &["{\"to\":", "\"anna\"}"])
}

/// The types of the items that were sent.
fn sent(body: &Value) -> Vec<String> {
    let items = body["input"].as_array().unwrap();
    let kind = |item: &Value| item["type"].as_str().or(item["role"].as_str()).unwrap_or_default().to_owned();
    items
        .iter()
        .map(|item| if item["type"] == "message" { item["role"].as_str().unwrap().to_owned() } else { kind(item) })
        .collect()
}

#[test]
fn a_session_is_offered_kept_after_success_and_not_changed_by_a_run_that_failed() {
    let stage = Stage::new(vec![call(), FakeAnswer::text(&["Paid."]), FakeAnswer::text(&["You are welcome."])]);
    let ran = stage.run(&["run", "pay", "--model", "vendor:m"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let bodies = stage.bodies();
    assert_eq!((bodies[0].get("previous_response_id"), sent(&bodies[0])), (None, vec!["user".to_owned()]));
    assert_eq!(bodies[1]["previous_response_id"], "resp_1");
    assert_eq!(sent(&bodies[1]), ["function_call_output"], "only what the session does not know is sent");
    assert_eq!(bodies[1]["instructions"], bodies[0]["instructions"], "instructions are no part of a session");
    assert!(bodies.iter().all(|body| body["store"] == true), "the host keeps what it answered");
    assert_eq!(stage.session(), "resp_2");

    stage.memory.lock().unwrap().fails = Some(400);
    let failed = stage.run(&["send", "@", "Thank you."]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert_eq!(stage.bodies()[2]["previous_response_id"], "resp_2");
    assert_eq!(stage.session(), "resp_2");
    stage.memory.lock().unwrap().fails = None;

    // The failed message and the note of its failure are in the conversation, and the session does not know them.
    let ran = stage.run(&["send", "@", "Once more: thank you."]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let last = stage.bodies().pop().unwrap();
    assert_eq!(last["previous_response_id"], "resp_2");
    assert!(
        last["input"].to_string().contains("Thank you.") && last["input"].to_string().contains("Once more"),
        "{last}"
    );
    assert_eq!((stage.session(), stage.paid()), (json!("resp_3"), 1));
    assert_eq!(stage.run(&["verify", "@"]).code, Some(0));
}

#[test]
fn a_refused_session_leads_to_one_request_from_the_log_and_nothing_happens_twice() {
    let stage = Stage::new(vec![call(), FakeAnswer::text(&["Paid."])]);
    stage.memory.lock().unwrap().forgotten = vec!["resp_1".to_owned()];
    let ran = stage.run(&["run", "pay", "--model", "vendor:m"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let bodies = stage.bodies();
    assert_eq!(bodies.len(), 3, "one retry");
    assert_eq!(
        (&bodies[1]["previous_response_id"], sent(&bodies[1])),
        (&json!("resp_1"), vec!["function_call_output".to_owned()])
    );
    assert_eq!(bodies[2].get("previous_response_id"), None);
    assert_eq!(
        sent(&bodies[2]),
        ["user", "assistant", "function_call", "function_call_output"],
        "the whole conversation"
    );
    assert_eq!((stage.session(), stage.paid()), (json!("resp_2"), 1));
    let log = stage.log();
    let count = |kind: &str| log.iter().filter(|line| line["event_type"] == kind).count();
    // user, call, result, answer
    assert_eq!((count("message"), count("tool_intent"), count("tool_outcome"), count("usage")), (4, 1, 1, 2));
    let notes: Vec<String> = log
        .iter()
        .filter(|line| line["event_type"] == "usage")
        .map(|line| line["payload"]["notes"].to_string())
        .collect();
    assert!(
        notes[1].contains("session `resp_1` was refused: Previous response with id 'resp_1' not found."),
        "{notes:?}"
    );
    // The refused attempt cost nothing, and what the others cost is all that is charged.
    let audit = stage.run(&["budget", "@", "--verify"]);
    assert_eq!(audit.code, Some(0), "{audit:?}");
    let ended = stage.run(&["thread", "show", "@", "--json"]).json();
    assert_eq!((&ended["cost"]["input_tokens"], &ended["cost"]["output_tokens"]), (&json!(20), &json!(10)), "{ended}");
    assert_eq!(stage.run(&["verify", "@"]).code, Some(0));
}

#[test]
fn without_the_setting_no_session_is_asked_for() {
    let stage = Stage::new(vec![call(), FakeAnswer::text(&["Paid."])]);
    let file = stage.sandbox.home().join("config/agent/models.yaml");
    let config = fs::read_to_string(&file).unwrap().replace(", sessions: true", "");
    fs::write(file, config).unwrap();
    let ran = stage.run(&["run", "pay", "--model", "vendor:m"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for body in stage.bodies() {
        assert_eq!((&body["store"], body.get("previous_response_id")), (&json!(false), None));
    }
    assert_eq!(stage.session(), Value::Null);
}
