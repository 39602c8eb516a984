//! What a fake server sends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// One step of a reply.
#[derive(Clone, Debug)]
pub(super) enum ReplyStep {
    /// Sends bytes this many times.
    Send(Vec<u8>, usize),
    /// Does something.
    Then(Then),
    /// Waits.
    Pause(Duration),
    /// Waits until this is true.
    Until(watch::Receiver<bool>),
    /// Sends nothing more until the client closes the connection.
    Stall,
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
}

/// Something that is done between two pieces.
#[derive(Clone)]
pub(super) struct Then(pub(super) Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Then")
    }
}

/// A reply to one request, byte for byte.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub(super) steps: Vec<ReplyStep>,
    /// Whether the body is sent in chunks.
    is_chunked: bool,
}

impl Reply {
    /// A whole response with a body.
    pub fn whole(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut head = head(status, headers);
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        Self { steps: vec![ReplyStep::Send([head.as_bytes(), body].concat(), 1)], is_chunked: false }
    }

    /// The beginning of a stream of events.
    pub fn stream() -> Self {
        Self::stream_of(&[("content-type", "text/event-stream; charset=utf-8")])
    }

    /// The beginning of a stream with these headers.
    pub fn stream_of(headers: &[(&str, &str)]) -> Self {
        let head = head(200, headers) + "transfer-encoding: chunked\r\n\r\n";
        Self { steps: vec![ReplyStep::Send(head.into_bytes(), 1)], is_chunked: true }
    }

    /// A whole stream of events.
    pub fn events(events: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        Self::stream().pieces(events).end()
    }

    /// Nothing at all.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Bytes as they are, without any framing.
    #[must_use]
    pub fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.steps.push(ReplyStep::Send(bytes.as_ref().to_vec(), 1));
        self
    }

    /// A piece of the body.
    #[must_use]
    pub fn piece(self, bytes: impl AsRef<[u8]>) -> Self {
        self.repeat(bytes, 1)
    }

    /// The same piece many times.
    #[must_use]
    pub fn repeat(mut self, bytes: impl AsRef<[u8]>, times: usize) -> Self {
        let bytes = bytes.as_ref();
        let framed = if self.is_chunked {
            [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
        } else {
            bytes.to_vec()
        };
        self.steps.push(ReplyStep::Send(framed, times));
        self
    }

    /// Pieces of the body.
    #[must_use]
    pub fn pieces(self, pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        pieces.into_iter().fold(self, Self::piece)
    }

    /// From here on, nothing is sent until this is true; if its sender is gone, the rest is sent.
    #[must_use]
    pub fn until(mut self, is_open: watch::Receiver<bool>) -> Self {
        self.steps.push(ReplyStep::Until(is_open));
        self
    }

    /// Bytes of the body in pieces of this size, with a pause after each.
    #[must_use]
    pub fn dripping(self, bytes: impl AsRef<[u8]>, size: usize, pause: Duration) -> Self {
        bytes.as_ref().chunks(size).fold(self, |reply, piece| reply.piece(piece).pause(pause))
    }

    /// Something that is done here, on the server's thread.
    #[must_use]
    pub fn then(mut self, work: impl Fn() + Send + Sync + 'static) -> Self {
        self.steps.push(ReplyStep::Then(Then(Arc::new(work))));
        self
    }

    /// A pause.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.steps.push(ReplyStep::Pause(pause));
        self
    }

    /// The end of the body.
    #[must_use]
    pub fn end(mut self) -> Self {
        if self.is_chunked {
            self.steps.push(ReplyStep::Send(b"0\r\n\r\n".to_vec(), 1));
        }
        self
    }

    /// From here on, nothing is sent until the client closes the connection.
    #[must_use]
    pub fn stall(mut self) -> Self {
        self.steps.push(ReplyStep::Stall);
        self
    }

    /// The connection is closed here, without the end of the body.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.steps.push(ReplyStep::Close);
        self
    }

    /// The connection is reset here.
    #[must_use]
    pub fn reset(mut self) -> Self {
        self.steps.push(ReplyStep::Reset);
        self
    }
}

fn head(status: u16, headers: &[(&str, &str)]) -> String {
    let mut head = format!("HTTP/1.1 {status} Fake\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head
}
