//! How a wire format writes what a model says.

use selvedge_model::answer::{End, Usage};

use crate::http::Format;

/// What a fake model says.
#[derive(Clone, Debug)]
pub struct FakeAnswer {
    /// Its thinking and the signature of that.
    pub thinking: Option<(String, String)>,
    /// Its text, in pieces.
    pub text: Vec<String>,
    /// Its tool calls.
    pub calls: Vec<FakeCall>,
    /// How it ends.
    pub end: End,
    /// What it counts.
    pub usage: Usage,
}

/// A tool call.
#[derive(Clone, Debug)]
pub struct FakeCall {
    /// Its id.
    pub id: String,
    /// The tool, by its name on the wire.
    pub name: String,
    /// Its arguments as JSON text, in pieces.
    pub arguments: Vec<String>,
}

impl FakeAnswer {
    /// A text in pieces, with a usage of ten tokens in and five out.
    pub fn text(pieces: &[&str]) -> Self {
        Self {
            thinking: None,
            text: pieces.iter().map(|piece| (*piece).to_owned()).collect(),
            calls: Vec::new(),
            end: End::Finished,
            usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
        }
    }

    /// The same with a tool call, whose arguments are JSON text in pieces.
    #[must_use]
    pub fn call(mut self, id: &str, name: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|piece| (*piece).to_owned()).collect();
        self.calls.push(FakeCall { id: id.to_owned(), name: name.to_owned(), arguments });
        self.end = End::ToolCalls;
        self
    }

    /// The same after some thinking.
    #[must_use]
    pub fn thinking(mut self, text: &str, signature: &str) -> Self {
        self.thinking = Some((text.to_owned(), signature.to_owned()));
        self
    }
}

/// A wire format, as a server writes it.
pub trait Dialogue: Send + Sync {
    /// The format.
    fn format(&self) -> Format;

    /// The base address of a host at this server.
    fn base_url(&self, server: &str) -> String;

    /// The path of its requests.
    fn path(&self) -> &'static str;

    /// The name and value of the header that carries this key.
    fn credentials(&self, key: &str) -> (&'static str, String);

    /// The events of an answer, each with its empty line; the last one is the format's end.
    fn answer(&self, said: &FakeAnswer) -> Vec<String>;

    /// How many of the last events a host may leave out of an answer.
    fn optional_events(&self) -> usize {
        0
    }

    /// Events that a client must ignore: pings, and some that it does not know.
    fn noise(&self) -> Vec<String>;

    /// An event that says that the host is overloaded.
    fn overloaded_event(&self) -> String;

    /// The body of an error response.
    fn error_body(&self, status: u16, message: &str) -> String;

    /// The status and body of the refusal of a prompt that is too long.
    fn too_long(&self) -> (u16, String);
}
