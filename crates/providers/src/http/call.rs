//! One call: a prompt becomes a request, and the response to it an answer or an error.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use selvedge_model::answer::{Drafts, Usage};
use selvedge_model::message::Block;
use selvedge_model::{Answer, Cancel, ModelError, Prompt};
use serde_json::Value;
use tokio::time::Instant;

use super::limit::{WaitEnd, until};
use super::messages::{brief, reword};
use super::sse::Splitter;
use super::{Body, Incoming, Outgoing, Timeouts, Transport, retry_after};
use crate::wire::{Adjustment, Dialect, Images, Reader, Refusal, Request, Wire};

/// The most bytes that are read of a response that is not an answer.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
/// How long the body of such a response may take.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(10);
/// The most bytes of a whole response.
const RESPONSE_BYTES_MAX: usize = 128 * 1024 * 1024;
/// How often one call is sent again without a field that the host rejects.
const ADJUSTMENTS_MAX: usize = 3;
/// How long the end of the body may take after the last event, so that the connection can be used again.
const END_TIME_MAX: Duration = Duration::from_millis(100);

/// Everything that one call needs.
pub(crate) struct Caller<'a> {
    pub(crate) wire: &'a dyn Wire,
    pub(crate) model: &'a str,
    pub(crate) dialect: &'a Dialect,
    /// The changes to requests that the host has made necessary so far.
    pub(crate) adjustments: &'a Mutex<Vec<Adjustment>>,
    pub(crate) timeouts: Timeouts,
    pub(crate) transport: &'a dyn Transport,
    pub(crate) cancel: &'a Cancel,
}

/// A response that is not a stream of events.
struct ErrorResponse {
    error: ModelError,
    status: u16,
    body: String,
}

impl Caller<'_> {
    pub(crate) async fn answer(&self, prompt: &Prompt<'_>, draft: &mut Drafts<'_>) -> Result<Answer, ModelError> {
        let deadline = after(self.timeouts.total);
        let mut request = self.prepare(prompt, deadline).await?;
        self.within(deadline, self.transport.ready()).await??;
        let mut has_new_key = false;
        let mut adjusted = 0;
        loop {
            let sent = self.send(&request, deadline).await?;
            if is_stream(&sent) {
                let reader = self.wire.reader(self.dialect, prompt.tools);
                let answer = self.read(sent.body, reader, deadline, draft).await?;
                return Ok(self.finished(answer, request.notes));
            }
            let refused = self.refused(sent, deadline).await?;
            if refused.status == 401 && !has_new_key {
                has_new_key = true;
                if self.within(deadline, self.transport.replace_key()).await?? {
                    continue;
                }
            }
            // The format knows which refusals of the host mean that it did not begin.
            if adjusted < ADJUSTMENTS_MAX
                && let Some(note) = self.adjust(&refused, &mut request.body)
            {
                adjusted += 1;
                request.notes.push(note);
                continue;
            }
            return Err(refused.error);
        }
    }

    /// Builds the request, with the images of the prompt, what the configuration adds and what the host rejects.
    async fn prepare(&self, prompt: &Prompt<'_>, deadline: Instant) -> Result<Request, ModelError> {
        let images = self.within(deadline, images(prompt)).await??;
        let mut request = self.wire.request(self.model, prompt, &images, self.dialect)?;
        if let Some(fields) = request.body.as_object_mut() {
            for (name, value) in &self.dialect.extra {
                if value.is_null() {
                    fields.remove(name);
                } else {
                    fields.insert(name.clone(), value.clone());
                }
            }
        }
        for adjustment in self.adjustments.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            adjustment.apply(&mut request.body);
        }
        Ok(request)
    }

    /// Changes the request so that the host may accept it; returns a note about that.
    fn adjust(&self, refused: &ErrorResponse, body: &mut Value) -> Option<String> {
        let refusal = Refusal { status: Some(refused.status), body: &refused.body };
        let adjustment = self.wire.without(&refusal)?;
        if !adjustment.apply(body) {
            return None;
        }
        let note = adjustment.note();
        let mut adjustments = self.adjustments.lock().unwrap_or_else(PoisonError::into_inner);
        if !adjustments.contains(&adjustment) {
            adjustments.push(adjustment);
        }
        Some(note)
    }

    async fn send(&self, request: &Request, deadline: Instant) -> Result<Incoming, ModelError> {
        let body = serde_json::to_vec(&request.body);
        let body = body.map_err(|error| ModelError::Permanent { why: format!("the request is not JSON: {error}") })?;
        let outgoing = Outgoing { path: request.path, headers: request.headers.clone(), body: Bytes::from(body) };
        if self.cancel.said().is_some() {
            return Err(ModelError::Stopped { partial: Vec::new(), usage: Some(Usage::default()) });
        }
        let limit = deadline.min(after(self.timeouts.first_byte));
        match until(limit, self.cancel, self.transport.send(&outgoing)).await {
            Ok(sent) => sent,
            Err(WaitEnd::Cancelled) => Err(ModelError::Stopped { partial: Vec::new(), usage: None }),
            Err(WaitEnd::Late) => {
                let why = format!("no response within {:?}", self.timeouts.first_byte.min(self.timeouts.total));
                Err(ModelError::Cut { why, partial: Vec::new(), usage: None })
            }
        }
    }

    /// Reads the stream to the end of the answer.
    async fn read(
        &self,
        mut body: Body,
        mut reader: Box<dyn Reader>,
        deadline: Instant,
        draft: &mut Drafts<'_>,
    ) -> Result<Answer, ModelError> {
        let ended = self.events(&mut body, reader.as_mut(), deadline, draft).await;
        if reader.is_complete() {
            // The rest is only the end of the body. Without it the connection is closed.
            let limit = deadline.min(after(END_TIME_MAX));
            while let Ok(Ok(Some(_))) = until(limit, self.cancel, body.piece()).await {}
        }
        let unrecorded = body.close().await;
        let is_closed = ended.is_ok();
        let why = match ended {
            Err(StreamFailure::Stopped) => {
                return Err(ModelError::Stopped { partial: reader.partial(), usage: reader.usage() });
            }
            Err(StreamFailure::Event(error)) => return Err(within_stream(*error, reader.as_ref())),
            Err(StreamFailure::Broken(why)) => why,
            Ok(()) => "the stream ended before its last event".to_owned(),
        };
        let partial = if reader.is_complete() { Vec::new() } else { reader.partial() };
        let usage = reader.usage();
        // What a broken connection has left may look whole in a format that does not always send its end.
        let answer = Some(reader).filter(|reader| is_closed || reader.is_complete()).and_then(Reader::answer);
        let Some(mut answer) = answer else { return Err(ModelError::Cut { why, partial, usage }) };
        answer.notes.extend(unrecorded.map(|why| format!("the recording is not complete: {why}")));
        Ok(answer)
    }

    /// Passes the events of a stream to the reader, until the reader or the stream is complete.
    async fn events(
        &self,
        body: &mut Body,
        reader: &mut dyn Reader,
        deadline: Instant,
        draft: &mut Drafts<'_>,
    ) -> Result<(), StreamFailure> {
        let mut splitter = Splitter::default();
        let mut received = 0;
        while !reader.is_complete() {
            let limit = deadline.min(after(self.timeouts.idle));
            let piece = match until(limit, self.cancel, body.piece()).await {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(why)) => return Err(StreamFailure::Broken(why)),
                Err(WaitEnd::Cancelled) => return Err(StreamFailure::Stopped),
                Err(WaitEnd::Late) => return Err(StreamFailure::Broken(self.lateness(deadline))),
            };
            received += piece.len();
            if received > RESPONSE_BYTES_MAX {
                return Err(StreamFailure::Broken(format!("the response is larger than {RESPONSE_BYTES_MAX} bytes")));
            }
            splitter.push(&piece);
            while let Some(event) = splitter.next().map_err(|broken| StreamFailure::Broken(broken.to_string()))? {
                let taken = reader.event(event.name, event.data, &mut |piece| draft(piece));
                taken.map_err(|error| StreamFailure::Event(Box::new(error)))?;
                if reader.is_complete() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn lateness(&self, deadline: Instant) -> String {
        if Instant::now() >= deadline {
            format!("the call took longer than {:?}", self.timeouts.total)
        } else {
            format!("the stream stalled for {:?}", self.timeouts.idle)
        }
    }

    /// Reads a response that is not a stream of events, and says what it means.
    async fn refused(&self, sent: Incoming, deadline: Instant) -> Result<ErrorResponse, ModelError> {
        let Incoming { status, headers, mut body } = sent;
        let limit = deadline.min(after(REFUSAL_TIME_MAX));
        let mut bytes = Vec::new();
        let mut is_cancelled = false;
        while bytes.len() < REFUSAL_BYTES_MAX {
            match until(limit, self.cancel, body.piece()).await {
                Ok(Ok(Some(piece))) => bytes.extend_from_slice(&piece),
                // What is there is enough.
                Ok(Ok(None) | Err(_)) | Err(WaitEnd::Late) => break,
                Err(WaitEnd::Cancelled) => {
                    is_cancelled = true;
                    break;
                }
            }
        }
        body.close().await;
        if is_cancelled {
            let usage = (!(200..300).contains(&status)).then(Usage::default);
            return Err(ModelError::Stopped { partial: Vec::new(), usage });
        }
        bytes.truncate(REFUSAL_BYTES_MAX);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let error = match status {
            200..=299 => self.no_stream(&header("content-type").unwrap_or_default(), &text),
            300..=399 => redirected(status, header("location")),
            _ => self.status(status, &text, retry_after::of(status, &headers)),
        };
        Ok(ErrorResponse { error, status, body: text })
    }

    /// A success that is not a stream of events: perhaps an error in disguise, and never an answer.
    fn no_stream(&self, content_type: &str, body: &str) -> ModelError {
        if let Some(error) = self.wire.refusal(&Refusal { status: None, body }) {
            return reword(error, brief);
        }
        let said = self.wire.message(body).unwrap_or_else(|| body.to_owned());
        let why = format!("the response is `{content_type}` and not an event stream: {}", brief(&said));
        ModelError::Cut { why, partial: Vec::new(), usage: None }
    }

    fn status(&self, status: u16, body: &str, wait: Option<Duration>) -> ModelError {
        let meant = self.wire.refusal(&Refusal { status: Some(status), body });
        let meant = meant.unwrap_or_else(|| {
            let why = self.wire.message(body).unwrap_or_else(|| body.to_owned());
            ModelError::Status { status, why, retry_after: None }
        });
        let mut error = reword(meant, brief);
        if let ModelError::Status { why, retry_after, .. } | ModelError::RateLimited { why, retry_after } = &mut error {
            *retry_after = retry_after.or(wait);
            if let Some(wait) = retry_after {
                why.push_str(&format!(" (retry after {} s)", wait.as_secs_f64().ceil()));
            }
        }
        error
    }

    fn finished(&self, mut answer: Answer, notes: Vec<String>) -> Answer {
        answer.model = answer.model.filter(|model| model != self.model);
        answer.notes.splice(0..0, notes);
        answer
    }

    /// Waits for something before anything was sent.
    async fn within<T>(&self, deadline: Instant, work: impl Future<Output = T>) -> Result<T, ModelError> {
        until(deadline, self.cancel, work).await.map_err(|ended| match ended {
            WaitEnd::Cancelled => ModelError::Stopped { partial: Vec::new(), usage: Some(Usage::default()) },
            WaitEnd::Late => {
                ModelError::Unreached { why: format!("the call took longer than {:?}", self.timeouts.total) }
            }
        })
    }
}

/// Why a stream was not read to its end.
enum StreamFailure {
    /// The call was cancelled.
    Stopped,
    /// An event says so.
    Event(Box<ModelError>),
    /// The connection or the stream is broken.
    Broken(String),
}

/// The error of an event. If the host had begun its answer, the answer was cut.
fn within_stream(error: ModelError, reader: &dyn Reader) -> ModelError {
    let partial = reader.partial();
    match reword(error, brief) {
        ModelError::Cut { why, .. } => ModelError::Cut { why, partial, usage: reader.usage() },
        error if partial.is_empty() => error,
        error => {
            let why = error.failure().map_or_else(|| error.to_string(), |failure| failure.why);
            ModelError::Cut { why, partial, usage: reader.usage() }
        }
    }
}

fn is_stream(sent: &Incoming) -> bool {
    let content_type = sent.headers.get("content-type").and_then(|value| value.to_str().ok());
    // A host that names no type may still send a stream; the reader finds out.
    let is_event_stream = content_type.is_none_or(|text| {
        text.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("text/event-stream"))
    });
    (200..300).contains(&sent.status) && is_event_stream
}

fn redirected(status: u16, target: Option<String>) -> ModelError {
    let why = match target {
        Some(target) => format!("the host redirects to `{target}`, which is not followed; correct its address"),
        None => "the host redirects without a target".to_owned(),
    };
    ModelError::Status { status, why, retry_after: None }
}

/// The time after a wait; a wait without an end ends in thirty years.
fn after(wait: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    Instant::now() + wait.min(LONG)
}

/// Reads the images that a prompt names.
async fn images(prompt: &Prompt<'_>) -> Result<Images, ModelError> {
    let mut images = Images::new();
    for block in prompt.messages.iter().flat_map(|message| &message.content) {
        if let Block::Image { blob, .. } = block
            && !images.contains_key(blob)
        {
            let bytes = prompt.blobs.read(blob).await;
            let bytes = bytes.map_err(|why| ModelError::Permanent { why: format!("an image can't be read: {why}") })?;
            images.insert(*blob, bytes);
        }
    }
    Ok(images)
}

#[cfg(test)]
mod tests;
