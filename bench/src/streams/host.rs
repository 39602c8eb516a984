//! The host of the streams, in a process of its own, and a client that only reads.

use std::fmt;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use selvedge_providers::fake::{
    AnthropicDialogue, Dialogue, FakeAnswer, OpenAiChatDialogue, OpenAiResponsesDialogue, Received, Reply, Server,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::Outcome;
use crate::child::{read_line, say};

/// What the host streams: the name of the model says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// How many chunks of text.
    pub(crate) chunks: usize,
    /// How many bytes of text each has.
    pub(crate) bytes: usize,
    /// The pause after each, in milliseconds.
    pub(crate) pause_ms: u64,
    /// After its first chunk it waits until this many streams of this form have begun.
    pub(crate) together: usize,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}x{}", self.chunks, self.bytes, self.pause_ms, self.together)
    }
}

impl FromStr for Stream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<usize>> = text.split('x').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some([chunks, bytes, pause, together]) => {
                Ok(Self { chunks: *chunks, bytes: *bytes, pause_ms: *pause as u64, together: *together })
            }
            _ => Err(format!("`{text}` is no stream, such as 100x6x0x1")),
        }
    }
}

/// The process of the host. It ends with its standard input.
pub(crate) struct Host {
    process: Child,
    url: String,
}

impl Host {
    pub(crate) fn start() -> Outcome<Self> {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        let mut process = command.arg("stream-host").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = process.stdout.take().ok_or("the host has no output")?;
        let told: Value = serde_json::from_str(&read_line(&mut BufReader::new(stdout))?)?;
        Ok(Self { process, url: told["url"].as_str().ok_or("the host has no address")?.to_owned() })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It may have ended already.
        _ = self.process.wait();
    }
}

/// Serves until standard input ends.
pub(crate) fn serve() -> Outcome<()> {
    let server = Server::start()?;
    let begun = AtomicUsize::new(0);
    let gate = watch::Sender::new(false);
    server.handle(move |request| {
        let Ok(stream) = request.json()["model"].as_str().unwrap_or_default().parse::<Stream>() else {
            return Reply::whole(400, &[], "the model is no stream");
        };
        if stream.together > 1 && begun.fetch_add(1, Ordering::SeqCst) + 1 == stream.together {
            gate.send_replace(true);
        }
        reply(request, stream, &gate)
    });
    say(&json!({ "url": server.url() }))?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn reply(request: &Received, stream: Stream, gate: &watch::Sender<bool>) -> Reply {
    let dialogue: &dyn Dialogue = match request.path.as_str() {
        "/v1/messages" => &AnthropicDialogue,
        "/v1/responses" => &OpenAiResponsesDialogue,
        _ => &OpenAiChatDialogue,
    };
    let text = "word ".repeat(stream.bytes.div_ceil(5))[..stream.bytes].to_owned();
    let events = dialogue.answer(&FakeAnswer::text(&[&text]));
    // The first event with the text is its delta.
    let delta = events.iter().position(|event| event.contains(&text)).unwrap_or(0);
    let head = Reply::stream().pieces(&events[..delta]);
    let streamed = if stream.pause_ms == 0 {
        head.repeat(&events[delta], stream.chunks)
    } else {
        let pause = Duration::from_millis(stream.pause_ms);
        let first = head.piece(&events[delta]);
        let held = if stream.together > 1 { first.until(gate.subscribe()) } else { first };
        (1..stream.chunks).fold(held, |reply, _| reply.pause(pause).piece(&events[delta]))
    };
    streamed.pieces(&events[delta + 1..]).end()
}

/// Reads the same stream from a socket, without looking at it.
pub(crate) fn read_bare(url: &str, stream: Stream) -> Outcome<()> {
    let address = url.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address)?;
    let body = json!({ "model": stream.to_string() }).to_string();
    let length = body.len();
    write!(socket, "POST /v1/messages HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n{body}")?;
    let mut buffer = vec![0; 16 * 1024];
    let mut end = Vec::new();
    loop {
        let read = socket.read(&mut buffer)?;
        if read == 0 {
            return Err("the stream of the bench has no end".into());
        }
        end.extend_from_slice(&buffer[read.saturating_sub(8)..read]);
        if end.ends_with(b"\r\n0\r\n\r\n") {
            return Ok(());
        }
        end.drain(..end.len().saturating_sub(8));
    }
}
