//! Streams from llama.cpp's server, which speaks all three formats, with a tiny model of random weights.
//!
//! `cargo xtask test` installs the server and passes a Python that can start it in `SELVEDGE_TEST_LLAMACPP`. Without it the test is
//! skipped, except in continuous integration.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use selvedge_model::answer::{End, Usage};
use selvedge_model::message::{Block, Message, Role};
use selvedge_model::{Answer, Cancel, Draft, Model, ModelError, Prompt, Stop};
use selvedge_providers::wire::Dialect;
use selvedge_providers::{Connections, Format, Host, Remote};
use tempfile::TempDir;
use tokio::runtime::Builder;

const PYTHON: &str = "SELVEDGE_TEST_LLAMACPP";
/// What the model can say.
const WORDS: [&str; 12] =
    ["thread", "log", "commit", "lease", "epoch", "Grüße", "wait", "tool", ".", ",", "run", "end"];

/// A running server. It ends when it is dropped.
struct Llama {
    child: Child,
    url: String,
    _folder: TempDir,
}

impl Llama {
    fn start(python: &Path) -> Self {
        let folder = TempDir::new().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/tiny_llama.py");
        let mut child = Command::new(python)
            .arg(script)
            .arg(folder.path().join("tiny.gguf"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("http://"), "the server did not start: {:?}", child.wait());
        Self { child, url: line.trim().to_owned(), _folder: folder }
    }

    fn model(&self, format: Format) -> Remote {
        let base = if format == Format::Anthropic { self.url.clone() } else { format!("{}/v1", self.url) };
        // As the configuration does for a host that is not the vendor's own.
        let dialect = Dialect { compatible: true, ..Dialect::default() };
        Remote::new(&Connections::new(), Host::new("llama", format, base), "tiny", dialect)
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn ask(
    model: &Remote,
    messages: &[Arc<Message>],
    most: Option<u64>,
    on_draft: &mut (dyn FnMut(&str) + Send),
    cancel: &Cancel,
) -> Result<Answer, ModelError> {
    let mut prompt = Prompt::new("tiny", messages);
    prompt.system = "Be brief.";
    prompt.output_tokens_max = most;
    let mut draft = |draft| {
        if let Draft::Text { text } = draft {
            on_draft(&text);
        }
    };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(model.answer(&prompt, &mut draft, cancel))
}

fn said(text: &str) -> Arc<Message> {
    Arc::new(Message::text(Role::User, text))
}

/// Two turns, each streamed to its limit.
fn converse(model: &Remote, end: End) {
    let mut messages = vec![said("hello")];
    for most in [24, 7] {
        let mut drafted = Vec::new();
        let answer =
            ask(model, &messages, Some(most), &mut |text| drafted.push(text.to_owned()), &Cancel::new()).unwrap();
        assert_eq!(answer.end, end);
        let [Block::Text { text, .. }] = &answer.content[..] else { panic!("{answer:?}") };
        let spaced = text.replace(['.', ','], " ");
        // Now and then the model says a byte that is no word.
        assert!(spaced.split_whitespace().any(|word| WORDS.contains(&word)), "{text}");
        assert!(drafted.len() > 1 && drafted.concat() == *text, "{drafted:?}");
        let Some(Usage { input_tokens, output_tokens, estimated: false, .. }) = answer.usage else {
            panic!("{answer:?}")
        };
        assert!(input_tokens > 10 && output_tokens == most, "{:?}", answer.usage);
        messages.push(Arc::new(Message { content: answer.content.clone(), ..Message::text(Role::Assistant, "") }));
        messages.push(said("and more"));
    }
}

/// An answer without a limit is stopped, and the server is free for the next one; a prompt that is too long is told as that.
fn stop_and_fail(model: &Remote, end: End) {
    let cancel = Cancel::new();
    let mut stop = |_: &str| cancel.say(Stop::Cancelled);
    let answer = ask(model, &[said("for ever")], None, &mut stop, &cancel);
    let Err(ModelError::Stopped { partial, .. }) = &answer else { panic!("it was stopped: {answer:?}") };
    assert!(!partial.is_empty());
    let long = "more and more of it ".repeat(2_000);
    let answer = ask(model, &[said(&long)], Some(8), &mut |_| {}, &Cancel::new());
    assert!(matches!(answer, Err(ModelError::ContextTooLong { .. })), "{answer:?}");
    assert_eq!(ask(model, &[said("again")], Some(3), &mut |_| {}, &Cancel::new()).unwrap().end, end);
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that does nothing says so")]
fn all_formats_are_streamed_by_llama_cpp() {
    let Some(python) = std::env::var_os(PYTHON) else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "`{PYTHON}` is not set; run `cargo xtask test`");
        eprintln!("!! SKIPPED: `{PYTHON}` is not set; `cargo xtask test` installs llama.cpp's server");
        return;
    };
    let llama = Llama::start(Path::new(&python));
    // Its responses are `completed` at the limit, too.
    let ends = [End::Length, End::Length, End::Finished];
    for (format, end) in [Format::OpenAiChat, Format::Anthropic, Format::OpenAiResponses].into_iter().zip(ends) {
        let model = llama.model(format);
        converse(&model, end);
        stop_and_fail(&model, end);
    }
}
