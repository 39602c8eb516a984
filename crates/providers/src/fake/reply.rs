//! What a fake server sends.

use std::time::Duration;

/// One step of a reply.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Sends bytes this many times.
    Send(Vec<u8>, usize),
    /// Waits.
    Pause(Duration),
    /// Sends nothing more until the client closes the connection.
    Stall,
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
}

/// A reply to one request, byte for byte.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub(super) steps: Vec<Step>,
    /// Whether the body is sent in chunks.
    is_chunked: bool,
}

impl Reply {
    /// A whole response with a body.
    pub fn whole(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut head = head(status, headers);
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        Self { steps: vec![Step::Send([head.as_bytes(), body].concat(), 1)], is_chunked: false }
    }

    /// The beginning of a stream of events.
    pub fn stream() -> Self {
        Self::stream_of(&[("content-type", "text/event-stream; charset=utf-8")])
    }

    /// The beginning of a stream with these headers.
    pub fn stream_of(headers: &[(&str, &str)]) -> Self {
        let head = head(200, headers) + "transfer-encoding: chunked\r\n\r\n";
        Self { steps: vec![Step::Send(head.into_bytes(), 1)], is_chunked: true }
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
        self.steps.push(Step::Send(bytes.as_ref().to_vec(), 1));
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
        self.steps.push(Step::Send(framed, times));
        self
    }

    /// Pieces of the body.
    #[must_use]
    pub fn pieces(self, pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        pieces.into_iter().fold(self, Self::piece)
    }

    /// Bytes of the body in pieces of this size, with a pause after each.
    #[must_use]
    pub fn dripping(self, bytes: impl AsRef<[u8]>, size: usize, pause: Duration) -> Self {
        bytes.as_ref().chunks(size).fold(self, |reply, piece| reply.piece(piece).pause(pause))
    }

    /// A pause.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.steps.push(Step::Pause(pause));
        self
    }

    /// The end of the body.
    #[must_use]
    pub fn end(mut self) -> Self {
        if self.is_chunked {
            self.steps.push(Step::Send(b"0\r\n\r\n".to_vec(), 1));
        }
        self
    }

    /// From here on, nothing is sent until the client closes the connection.
    #[must_use]
    pub fn stall(mut self) -> Self {
        self.steps.push(Step::Stall);
        self
    }

    /// The connection is closed here, without the end of the body.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.steps.push(Step::Close);
        self
    }

    /// The connection is reset here.
    #[must_use]
    pub fn reset(mut self) -> Self {
        self.steps.push(Step::Reset);
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
