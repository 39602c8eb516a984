//! The log of a thread: its lines, its exact bytes, what it names, and what its signatures prove.

use std::io::Read;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use selvedge::{Proof, Value, json};
use selvedge_log::trust::Status;
use selvedge_model::Digest;
use serde::Deserialize;
use tokio::sync::mpsc;

use crate::listen::App;
use crate::problem::{Parameters, Problem, Result};

/// The most lines of a page.
const LINES_MAX: usize = 2000;
/// How many bytes of a log are read at a time, and how many of such pieces wait for a slow client.
const PIECE_BYTES: usize = 64 * 1024;
const PIECES_MAX: usize = 4;

/// The query of a page of lines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinesQuery {
    #[serde(default)]
    from: u64,
    #[serde(default = "many")]
    limit: usize,
}

fn many() -> usize {
    500
}

/// Lines of the log, for display: their signatures are not checked here.
pub(crate) async fn lines(
    State(app): State<App>,
    Path(thread): Path<String>,
    Parameters(query): Parameters<LinesQuery>,
) -> Result<Json<Value>> {
    let thread = app.selvedge.find(&thread).await?;
    let limit = query.limit.clamp(1, LINES_MAX);
    let shown = app
        .read(move |store| {
            let head = store.head(&thread)?;
            let lines = store.read(&thread, query.from, limit)?;
            let next = lines.last().map(|line| line.seq + 1).filter(|next| *next < head.lines);
            Ok(json!({"lines": lines, "next": next, "head": head}))
        })
        .await?;
    Ok(Json(shown))
}

/// The exact bytes that were signed. With them and the public key, a client verifies the log itself.
pub(crate) async fn transcript(State(app): State<App>, Path(thread): Path<String>) -> Result<Response> {
    let thread = app.selvedge.find(&thread).await?;
    let (head, mut bytes) = app.read(move |store| store.transcript(&thread)).await?;
    let (sender, mut pieces) = mpsc::channel::<std::io::Result<Vec<u8>>>(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let (read, is_last) = match bytes.read(&mut piece) {
                Ok(0) => return,
                Ok(length) => {
                    piece.truncate(length);
                    (Ok(piece), false)
                }
                Err(error) => (Err(error), true),
            };
            // A client that is gone needs no more.
            if sender.blocking_send(read).is_err() || is_last {
                return;
            }
        }
    });
    let body = Body::from_stream(futures_util::stream::poll_fn(move |context| pieces.poll_recv(context)));
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    let version = (HeaderName::from_static("selvedge-version"), HeaderValue::from(head.version));
    Ok(([kind, version], body).into_response())
}

/// The bytes of a blob, which are those of its name. Whatever they are, a browser saves them and never shows them as a page.
pub(crate) async fn blob(State(app): State<App>, Path((thread, blob)): Path<(String, String)>) -> Result<Response> {
    let thread = app.selvedge.find(&thread).await?;
    let blob: Digest = blob.parse().map_err(|_| Problem::invalid("a blob is named by 64 hex characters"))?;
    let bytes = app.read(move |store| store.blob(&thread, &blob)).await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable")),
    ];
    Ok((headers, bytes).into_response())
}

/// What the signatures of a thread prove, as this server checks them.
pub(crate) async fn verify(State(app): State<App>, Path(thread): Path<String>) -> Result<Json<Value>> {
    let thread = app.selvedge.find(&thread).await?;
    let Proof { thread, is_sound, code, finding, signers, lines, bytes, .. } = app.selvedge.verify(&thread).await?;
    let signers: Vec<Value> = signers.iter().map(|(key, versions)| json!({"key": key, "versions": versions})).collect();
    Ok(Json(json!({
        "thread_id": thread,
        "is_sound": is_sound,
        "code": code,
        "finding": finding,
        "signers": signers,
        "lines": lines,
        "bytes": bytes,
    })))
}

/// The public keys that the user of this server trusts.
pub(crate) async fn keys(State(app): State<App>) -> Json<Value> {
    let trust = app.selvedge.engine().trust();
    let keys: Vec<Value> = trust
        .iter()
        .map(|(fingerprint, key)| {
            json!({
                "fingerprint": fingerprint,
                "public_key": trust.key(fingerprint).map(|key| key.to_pem()),
                "owner": key.owner,
                "is_trusted": trust.status(fingerprint) == Some(Status::Trusted),
            })
        })
        .collect();
    Json(json!({"keys": keys}))
}
