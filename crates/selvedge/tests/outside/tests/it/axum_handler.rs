//! A server of an outside program: axum handlers on a runtime with one thread, which no call may block.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use selvedge::{
    Answer, Block, BoxFuture, Cancel, Drafts, End, Error, Kind, Model, ModelError, Outcome, Prompt, Selvedge, Status,
    ThreadId, Value, json,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::support::folder;

/// Answers `slow…` when it is told to stop, or after half a second if the message says `soon`; everything else at once.
#[derive(Clone, Default)]
struct Slow {
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

impl Model for Slow {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let text = prompt.messages.last().map(|message| message.plain_text()).unwrap_or_default();
            self.asked.fetch_add(1, Ordering::SeqCst);
            if text.contains("soon") {
                sleep(Duration::from_millis(500)).await;
            } else if text.contains("slow") {
                cancel.stopped().await;
                return Err(ModelError::Stopped { partial: Vec::new(), usage: None });
            }
            self.answered.fetch_add(1, Ordering::SeqCst);
            Ok(Answer::new(vec![Block::text(format!("heard {text}"))], End::Finished))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// How an error becomes a response.
struct Failed(Error);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        let status = match self.0.kind() {
            Kind::Absent => StatusCode::NOT_FOUND,
            Kind::Conflict => StatusCode::CONFLICT,
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Denied => StatusCode::FORBIDDEN,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(json!({ "error": self.0 }))).into_response()
    }
}

async fn start(State(selvedge): State<Selvedge>, text: String) -> Result<(StatusCode, Json<ThreadId>), Failed> {
    Ok((StatusCode::ACCEPTED, Json(selvedge.start(text).await?)))
}

async fn run(State(selvedge): State<Selvedge>, text: String) -> Result<Json<Outcome>, Failed> {
    Ok(Json(selvedge.run(text).await?))
}

async fn status(State(selvedge): State<Selvedge>, Path(id): Path<String>) -> Result<Json<Outcome>, Failed> {
    Ok(Json(selvedge.status(&selvedge.find(&id).await?).await?))
}

async fn wait(State(selvedge): State<Selvedge>, Path(id): Path<String>) -> Result<Json<Outcome>, Failed> {
    Ok(Json(selvedge.wait(&selvedge.find(&id).await?).await?))
}

async fn cancel(State(selvedge): State<Selvedge>, Path(id): Path<String>) -> Result<StatusCode, Failed> {
    selvedge.cancel(&selvedge.find(&id).await?).await?;
    Ok(StatusCode::ACCEPTED)
}

fn router(selvedge: Selvedge) -> Router {
    Router::new()
        .route("/threads", post(start))
        .route("/run", post(run))
        .route("/threads/{id}", get(status))
        .route("/threads/{id}/wait", get(wait))
        .route("/threads/{id}/cancel", post(cancel))
        .with_state(selvedge)
}

/// A server, its model, and what stops it.
struct Server {
    address: SocketAddr,
    selvedge: Selvedge,
    model: Slow,
    stop: tokio::sync::oneshot::Sender<()>,
    served: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

async fn server() -> Server {
    let folder = folder();
    let model = Slow::default();
    let selvedge = Selvedge::builder().project(folder.path()).model("slow", model.clone()).open().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serve = axum::serve(listener, router(selvedge.clone())).with_graceful_shutdown(async { _ = stopped.await });
    let served = tokio::spawn(async move { serve.await.unwrap() });
    Server { address, selvedge, model, stop, served, _folder: folder }
}

async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    stream
}

/// One request over a real socket.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = send(address, method, path, body).await;
    let mut text = String::new();
    timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, selvedge::serde_json::from_str(body).unwrap_or_default())
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let look = async {
        while !is_so().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), look).await.unwrap_or_else(|_| panic!("{what}"));
}

/// The runtime has one thread: a run or a wait that blocked it would keep every cancel from being served.
#[tokio::test]
async fn a_cancel_is_served_while_many_runs_wait() {
    let server = server().await;
    let address = server.address;
    let mut threads = Vec::new();
    for _ in 0..20 {
        let (status, thread) = ask(address, "POST", "/threads", "slow").await;
        assert_eq!(status, 202);
        threads.push(thread.as_str().unwrap().to_owned());
    }
    let waiting: Vec<_> = threads
        .iter()
        .map(|thread| {
            let path = format!("/threads/{thread}/wait");
            tokio::spawn(async move { ask(address, "GET", &path, "").await })
        })
        .collect();
    until("all are asked", async || server.model.asked.load(Ordering::SeqCst) == 20).await;
    // Others are served meanwhile.
    let (status, outcome) = ask(address, "POST", "/run", "quick").await;
    assert_eq!((status, outcome["result"].as_str()), (200, Some("heard quick")));
    for thread in &threads {
        assert_eq!(ask(address, "POST", &format!("/threads/{thread}/cancel"), "").await.0, 202);
    }
    for waiting in waiting {
        let (status, outcome) = waiting.await.unwrap();
        assert_eq!((status, outcome["status"].as_str()), (200, Some("cancelled")));
    }
    let (status, error) = ask(address, "GET", "/threads/missing", "").await;
    assert_eq!((status, error["error"]["code"].as_str()), (404, Some("thread_not_found")));
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_stop_its_thread() {
    let server = server().await;
    let stream = send(server.address, "POST", "/run", "soon").await;
    until("it is asked", async || server.model.asked.load(Ordering::SeqCst) == 1).await;
    // The handler's future is dropped with its connection.
    drop(stream);
    until("it is answered", async || server.model.answered.load(Ordering::SeqCst) == 1).await;
    let page = server.selvedge.threads(selvedge::Filter::default(), None, 10).await.unwrap();
    let thread = &page.items[0].manifest.thread_id;
    let outcome = server.selvedge.wait(thread).await.unwrap();
    assert_eq!((outcome.status.status(), outcome.result.as_deref()), (Some(Status::Completed), Some("heard soon")));
}

#[tokio::test]
async fn a_future_that_is_dropped_at_once_stops_no_thread() {
    let server = server().await;
    drop(server.selvedge.run("quick"));
    until("it is answered", async || server.model.answered.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_server_shuts_down_in_order() {
    let Server { address, selvedge, model, stop, served, _folder } = server().await;
    let (_, ends) = ask(address, "POST", "/threads", "soon").await;
    let (_, lasts) = ask(address, "POST", "/threads", "slow").await;
    let path = format!("/threads/{}/wait", lasts.as_str().unwrap());
    let waiting = tokio::spawn(async move { ask(address, "GET", &path, "").await });
    until("both are asked", async || model.asked.load(Ordering::SeqCst) == 2).await;
    stop.send(()).unwrap();
    // What waits is told, so that the server can end; what runs may end by itself.
    let is_idle = selvedge.shut_down(Duration::from_secs(2)).await.unwrap();
    assert!(!is_idle, "the slow one goes on");
    assert_eq!(waiting.await.unwrap().1["status"], "interrupted");
    timeout(Duration::from_secs(20), served).await.unwrap().unwrap();
    let ends = ThreadId::new(ends.as_str().unwrap()).unwrap();
    assert_eq!(selvedge.status(&ends).await.unwrap().status, Status::Completed);
    // A program that does not leave it to the next process cancels it.
    selvedge.cancel(&ThreadId::new(lasts.as_str().unwrap()).unwrap()).await.unwrap();
    assert!(selvedge.shut_down(Duration::from_secs(10)).await.unwrap());
}
