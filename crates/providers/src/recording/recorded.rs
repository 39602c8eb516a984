//! A model that answers from recorded calls.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use selvedge_model::answer::Drafts;
use selvedge_model::blocking::{BoxFuture, on_thread};
use selvedge_model::{Answer, Cancel, Digest, Model, ModelError, Prompt};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{Call, Files, RecordError, VERSION};
use crate::http::{Body, Caller, Incoming, Outgoing, Timeouts, Transport};
use crate::wire::Adjustment;

/// How much of a recorded response is given at once.
const PIECE_BYTES: usize = 16 * 1024;

/// A model that answers from the calls in a folder, without a network.
pub struct Recorded {
    folder: PathBuf,
    /// The calls that were not used yet, in order. A plain lock: it is held for a lookup.
    left: Mutex<Vec<RecordedCall>>,
    /// What the recorded hosts rejected. A plain lock as well.
    adjustments: Mutex<Vec<Adjustment>>,
}

/// One recorded call.
#[derive(Clone, Debug)]
struct RecordedCall {
    number: u32,
    call: Call,
    /// SHA-256 of the request's body.
    digest: Digest,
}

impl Recorded {
    /// Reads the recorded calls of a folder. This blocks.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, RecordError> {
        let folder = folder.as_ref();
        let read = |path: &Path| {
            let failed = |source| RecordError::File { path: path.to_owned(), verb: "read", source };
            fs::read(path).map_err(failed)
        };
        let mut left = Vec::new();
        for number in numbers(folder)? {
            let files = Files::of(folder, number);
            let invalid = |why: String| RecordError::Invalid { path: files.call.clone(), why };
            let call: Call = serde_json::from_slice(&read(&files.call)?).map_err(|error| invalid(error.to_string()))?;
            if call.version != VERSION {
                return Err(invalid(format!("its version is {}; this program reads {VERSION}", call.version)));
            }
            left.push(RecordedCall { number, call, digest: digest(&read(&files.request)?) });
        }
        if left.is_empty() {
            return Err(RecordError::Empty { path: folder.to_owned() });
        }
        Ok(Self { folder: folder.to_owned(), left: Mutex::new(left), adjustments: Mutex::default() })
    }

    fn left(&self) -> MutexGuard<'_, Vec<RecordedCall>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call whose settings a prompt is sent with: the next one of the prompt's model, else the next one.
    fn next(&self, model: &str) -> Result<Call, ModelError> {
        let left = self.left();
        let of_model = left.iter().find(|entry| entry.call.model == model);
        let next = of_model.or_else(|| left.first()).map(|entry| entry.call.clone());
        next.ok_or_else(|| ModelError::Permanent { why: format!("every call in {self} was used") })
    }

    /// Takes the first unused call with this request.
    fn take(&self, request: &Outgoing) -> Result<u32, Option<u32>> {
        let wanted = digest(&request.body);
        let mut left = self.left();
        match left.iter().position(|entry| entry.digest == wanted && entry.call.path == request.path) {
            Some(place) => Ok(left.remove(place).number),
            None => Err(left.first().map(|entry| entry.number)),
        }
    }
}

impl Model for Recorded {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let call = self.next(prompt.model)?;
            let wire = call.format.wire();
            let caller = Caller {
                wire: wire.as_ref(),
                model: &call.model,
                dialect: &call.dialect,
                adjustments: &self.adjustments,
                timeouts: Timeouts::default(),
                transport: self,
                cancel,
            };
            caller.answer(prompt, draft).await
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

impl Transport for Recorded {
    fn send<'a>(&'a self, request: &'a Outgoing) -> BoxFuture<'a, Result<Incoming, ModelError>> {
        Box::pin(async move {
            let taken = self.take(request);
            let folder = self.folder.clone();
            let body = request.body.clone();
            let shown = self.to_string();
            on_thread(move || match taken {
                Ok(number) => response(&folder, number),
                Err(None) => Err(ModelError::Permanent { why: format!("every call in {shown} was used") }),
                Err(Some(number)) => {
                    let difference = difference(&Files::of(&folder, number).request, &body);
                    let why =
                        format!("no call in {shown} has this request: it differs from {number:04} at {difference}");
                    Err(ModelError::Permanent { why })
                }
            })
            .await
        })
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the recording `{}`", self.folder.display())
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// The body of a recorded response.
pub(crate) struct ResponsePlayer {
    rest: Bytes,
}

impl ResponsePlayer {
    pub(crate) fn new(rest: Bytes) -> Self {
        Self { rest }
    }

    /// The next piece; `None` at the end.
    pub(crate) fn piece(&mut self) -> Option<Bytes> {
        let size = self.rest.len().min(PIECE_BYTES);
        (size > 0).then(|| self.rest.split_to(size))
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// The numbers of the calls in a folder, in order.
fn numbers(folder: &Path) -> Result<Vec<u32>, RecordError> {
    let failed = |source| RecordError::File { path: folder.to_owned(), verb: "read", source };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number: Option<u32> = name.to_str().and_then(|name| name.strip_suffix(".call.json")?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads a recorded response.
fn response(folder: &Path, number: u32) -> Result<Incoming, ModelError> {
    let path = Files::of(folder, number).response;
    let bytes = match fs::read(&path) {
        Ok(bytes) => Bytes::from(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ModelError::Unreached { why: format!("call {number:04} was recorded without a response") });
        }
        Err(error) => return Err(ModelError::Permanent { why: format!("`{}`: {error}", path.display()) }),
    };
    parse(&bytes).ok_or_else(|| {
        let why = format!("`{}` is not a recorded response", path.display());
        ModelError::Permanent { why }
    })
}

fn parse(bytes: &Bytes) -> Option<Incoming> {
    let end = memchr::memmem::find(bytes, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.parse().ok()?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ")?;
        headers.append(HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
    }
    let player = ResponsePlayer::new(bytes.slice(end + 4..));
    Some(Incoming { status, headers, body: Body::Recorded(player) })
}

/// Where a request first differs from a recorded one.
fn difference(recorded: &Path, body: &[u8]) -> String {
    let recorded = fs::read(recorded).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let sent = serde_json::from_slice::<Value>(body).ok();
    let place = match (&recorded, &sent) {
        (Some(recorded), Some(sent)) => place(recorded, sent, String::new()),
        _ => None,
    };
    match place {
        Some(place) if place.is_empty() => "its beginning".to_owned(),
        Some(place) => format!("`{place}`"),
        None => "its bytes".to_owned(),
    }
}

/// The place of the first difference between two values.
fn place(one: &Value, other: &Value, at: String) -> Option<String> {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let mut names: Vec<_> = one.keys().chain(other.keys()).collect();
            names.sort_unstable();
            names.dedup();
            names.into_iter().find_map(|name| {
                let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                match (one.get(name), other.get(name)) {
                    (Some(one), Some(other)) => place(one, other, at),
                    _ => Some(at),
                }
            })
        }
        (Value::Array(one), Value::Array(other)) => {
            let longest = one.len().max(other.len());
            (0..longest).find_map(|index| {
                let at = format!("{at}[{index}]");
                match (one.get(index), other.get(index)) {
                    (Some(one), Some(other)) => place(one, other, at),
                    _ => Some(at),
                }
            })
        }
        (one, other) => (one != other).then_some(at),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_place_of_a_difference_is_named() {
        let one = json!({"a": 1, "messages": [{"role": "user", "content": "hi"}]});
        for (other, expected) in [
            (json!({"a": 2, "messages": [{"role": "user", "content": "hi"}]}), Some("a")),
            (json!({"a": 1, "messages": [{"role": "user", "content": "ho"}]}), Some("messages[0].content")),
            (json!({"a": 1, "messages": []}), Some("messages[0]")),
            (json!({"a": 1, "b": 1, "messages": [{"role": "user", "content": "hi"}]}), Some("b")),
            (json!([]), Some("")),
            (one.clone(), None),
        ] {
            assert_eq!(place(&one, &other, String::new()).as_deref(), expected);
        }
    }
}
