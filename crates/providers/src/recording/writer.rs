//! Writes calls into a folder.
//!
//! Disks block, so each call is written by a thread of its own: it takes the pieces of the response in order and ends when the response
//! is complete or the call is dropped.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use selvedge_model::blocking::on_thread;
use serde_json::Value;
use tokio::sync::oneshot;

use super::{Call, Files, RecordError, VERSION};
use crate::http::{Format, Host, Outgoing, ScrubStream, SecretFilter, is_credential};
use crate::wire::Dialect;

/// Records the calls of one model.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    folder: PathBuf,
    host: String,
    format: Format,
    model: String,
    dialect: Dialect,
}

/// A call that is being recorded.
pub(crate) struct CallWriter {
    pieces: mpsc::Sender<RecordedPiece>,
    written: oneshot::Receiver<Result<(), RecordError>>,
}

enum RecordedPiece {
    /// The status line and the headers.
    Head(String),
    /// A part of the body.
    Body(Bytes),
}

impl Recorder {
    pub(crate) fn new(folder: &Path, host: &Host, model: &str, dialect: &Dialect) -> Self {
        Self {
            folder: folder.to_owned(),
            host: host.name.clone(),
            format: host.format,
            model: model.to_owned(),
            dialect: dialect.clone(),
        }
    }

    /// Writes a request, and returns the tape for its response.
    pub(crate) async fn start(&self, request: &Outgoing, filter: SecretFilter) -> Result<CallWriter, RecordError> {
        let headers = request.headers.iter().filter(|(name, _)| !is_credential(name));
        let call = Call {
            version: VERSION,
            host: self.host.clone(),
            format: self.format,
            model: self.model.clone(),
            dialect: self.dialect.clone(),
            path: request.path.to_owned(),
            headers: headers.map(|(name, value)| ((*name).to_owned(), filter.text(value))).collect(),
        };
        let body = request.body.clone();
        let folder = self.folder.clone();
        let (pieces, incoming) = mpsc::channel();
        let (finish, written) = oneshot::channel();
        let (claim, claimed) = oneshot::channel();
        drop(on_thread(move || match begin(&folder, &call, &body, &filter) {
            Ok(response) => {
                _ = claim.send(Ok(()));
                _ = finish.send(write_response(&response, &incoming, filter));
            }
            Err(error) => _ = claim.send(Err(error)),
        }));
        match claimed.await {
            Ok(begun) => begun.map(|()| CallWriter { pieces, written }),
            Err(_) => Err(file_error(&self.folder, "written")(io::Error::other("the writing thread has died"))),
        }
    }
}

impl CallWriter {
    /// The response begins.
    pub(crate) fn response(self, status: u16, headers: &HeaderMap) -> Self {
        let mut head = format!("HTTP/1.1 {status}\r\n");
        for (name, value) in headers {
            // The body is recorded without its transfer encoding.
            let is_kept = !is_credential(name.as_str()) && name != "transfer-encoding" && name != "content-length";
            if let Ok(value) = value.to_str()
                && is_kept
            {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        head.push_str("\r\n");
        _ = self.pieces.send(RecordedPiece::Head(head));
        self
    }

    /// More of the response.
    pub(crate) fn push(&mut self, piece: Bytes) {
        // If the thread has failed, `end` says why.
        _ = self.pieces.send(RecordedPiece::Body(piece));
    }

    /// Waits until everything is written.
    pub(crate) async fn end(self) -> Result<(), RecordError> {
        drop(self.pieces);
        self.written.await.unwrap_or(Ok(()))
    }
}

fn file_error(path: &Path, verb: &'static str) -> impl Fn(io::Error) -> RecordError {
    let path = path.to_owned();
    move |source| RecordError::File { path: path.clone(), verb, source }
}

/// Claims the next number and writes the request; returns the file for the response.
fn begin(folder: &Path, call: &Call, body: &[u8], filter: &SecretFilter) -> Result<PathBuf, RecordError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(file_error(folder, "written"))?;
    let mut number = last_number(folder).map_err(file_error(folder, "read"))? + 1;
    let (files, mut file) = loop {
        let files = Files::of(folder, number);
        match create(&files.request) {
            Ok(file) => break (files, file),
            // Another call has this number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(file_error(&files.request, "written")(error)),
        }
    };
    file.write_all(&filter.bytes(body)).map_err(file_error(&files.request, "written"))?;
    let described = serde_json::to_value(call).unwrap_or(Value::Null);
    let described = format!("{described:#}\n");
    let mut file = create(&files.call).map_err(file_error(&files.call, "written"))?;
    file.write_all(filter.text(&described).as_bytes()).map_err(file_error(&files.call, "written"))?;
    Ok(files.response)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn last_number(folder: &Path) -> io::Result<u32> {
    let mut last = 0;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.split('.').next()?.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    Ok(last)
}

/// Writes the response as it arrives. Without a response there is no file.
fn write_response(
    path: &Path,
    pieces: &mpsc::Receiver<RecordedPiece>,
    filter: SecretFilter,
) -> Result<(), RecordError> {
    let Ok(first) = pieces.recv() else { return Ok(()) };
    let failed = file_error(path, "written");
    let mut file = BufWriter::new(create(path).map_err(&failed)?);
    let mut clean = ScrubStream::new(filter);
    for piece in std::iter::once(first).chain(pieces.iter()) {
        let bytes = match &piece {
            RecordedPiece::Head(head) => clean.push(head.as_bytes()),
            RecordedPiece::Body(body) => clean.push(body),
        };
        file.write_all(&bytes).map_err(&failed)?;
    }
    file.write_all(&clean.end()).map_err(&failed)?;
    file.flush().map_err(&failed)
}
