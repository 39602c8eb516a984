//! What only Anthropic's Messages API has: the exact form of its requests, thinking, and its reasons to stop.

mod requests;
mod stops;
mod thinking;

use std::collections::HashMap;
use std::sync::Arc;

use selvedge_model::answer::{Blobs, Drafts};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::EffectClass;
use selvedge_model::message::Block;
use selvedge_model::tool::Risk;
use selvedge_model::{Answer, CallId, Cancel, Digest, Message, Model, ModelError, Prompt, Role, ToolSpec};
use selvedge_providers::fake::{AnthropicDialogue, Dialogue, FakeAnswer, Reply, Server};
use selvedge_providers::wire::Dialect;
use selvedge_providers::{Connections, Format, Host, Remote};
use serde_json::{Value, json};

/// A conversation with a fake host.
struct Talk {
    server: Server,
    dialect: Dialect,
    system: &'static str,
    messages: Vec<Arc<Message>>,
    tools: Vec<ToolSpec>,
    output_tokens_max: Option<u64>,
    images: Images,
}

#[derive(Default)]
struct Images(HashMap<Digest, Vec<u8>>);

impl Blobs for Images {
    fn read<'a>(&'a self, blob: &'a Digest) -> BoxFuture<'a, Result<Vec<u8>, String>> {
        let bytes = self.0.get(blob).cloned().ok_or_else(|| format!("blob `{blob}` is gone"));
        Box::pin(async move { bytes })
    }
}

impl Talk {
    fn new() -> Self {
        Self {
            server: Server::start().unwrap(),
            dialect: Dialect { provider: "anthropic".to_owned(), ..Dialect::default() },
            system: "",
            messages: Vec::new(),
            tools: Vec::new(),
            output_tokens_max: None,
            images: Images::default(),
        }
    }

    fn say(&mut self, role: Role, content: Vec<Block>) {
        self.messages.push(Arc::new(Message { content, ..Message::text(role, "") }));
    }

    fn user(&mut self, text: &str) {
        self.say(Role::User, vec![Block::text(text)]);
    }

    fn result(&mut self, id: &str, content: Value) {
        self.say(Role::Tool, vec![Block::tool_result(CallId::new(id).unwrap(), content)]);
    }

    /// Sends the conversation; the host says this.
    fn ask(&self, said: &FakeAnswer) -> Answer {
        self.server.push(Reply::events(AnthropicDialogue.answer(said)));
        self.answer().unwrap()
    }

    fn answer(&self) -> Result<Answer, ModelError> {
        self.answer_drafting(&mut |_| {}, &Cancel::new())
    }

    fn answer_drafting(&self, draft: &mut Drafts<'_>, cancel: &Cancel) -> Result<Answer, ModelError> {
        let host = Host::new("anthropic", Format::Anthropic, self.server.url());
        let model = Remote::new(&Connections::new(), host, "claude-fake", self.dialect.clone());
        let mut prompt = Prompt::new("claude-fake", &self.messages);
        prompt.system = self.system;
        prompt.tools = &self.tools;
        prompt.output_tokens_max = self.output_tokens_max;
        prompt.blobs = &self.images;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(model.answer(&prompt, draft, cancel))
    }

    /// Sends the conversation, and adds the answer to it.
    fn go_on(&mut self, said: &FakeAnswer) -> Answer {
        let answer = self.ask(said);
        self.say(Role::Assistant, answer.content.clone());
        answer
    }

    /// The body of the last request.
    fn sent(&self) -> Value {
        self.server.received().last().unwrap().json()
    }
}

fn tool(name: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: format!("Does {name}."),
        input_schema: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
        class: EffectClass::Pure,
        capability: String::new(),
        risk: Risk::Safe,
        hash: Digest([0; 32]),
    }
}
