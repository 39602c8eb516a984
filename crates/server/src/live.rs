//! The event stream: one for each client, over any number of threads.
//!
//! Committed events carry their position in the store's feed as `id`. A client that reconnects sends the last one as `Last-Event-ID` and
//! gets every commit after it, once, in order, whichever process made it. What has no id is a draft or a notice: it comes from runs of this
//! process only, and may be lost.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use selvedge::{RunEvent, Subscription, ThreadId, Watched, json};
use selvedge_store::FeedEntry;
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};

use crate::feed::PAGE;
use crate::listen::App;
use crate::problem::{Parameters, Problem, Result};

/// How often an idle stream shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How many events wait for a slow client before its stream stops reading.
const EVENTS_MAX: usize = 64;
/// How many threads a stream may name.
const THREADS_MAX: usize = 1000;

/// The query of a stream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// The threads, separated by commas; all if absent.
    threads: Option<String>,
    /// The position after which to begin, if the client sends no `Last-Event-ID`; now if absent.
    after: Option<u64>,
    /// Whether drafts and notices are sent too; default: yes.
    #[serde(default = "yes")]
    drafts: bool,
}

fn yes() -> bool {
    true
}

pub(crate) async fn events(
    State(app): State<App>,
    Parameters(query): Parameters<EventsQuery>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let last = match headers.get("last-event-id") {
        Some(id) => {
            let id = id.to_str().ok().and_then(|id| id.parse().ok());
            Some(id.ok_or_else(|| Problem::invalid("`Last-Event-ID` is no position"))?)
        }
        None => query.after,
    };
    let mut threads = BTreeSet::new();
    for name in query.threads.iter().flat_map(|names| names.split(',')).take(THREADS_MAX) {
        threads.insert(app.selvedge.find(name).await?);
    }
    let is_all = query.threads.is_none();
    // Before the position is read, so that no commit falls between the two.
    let receiver = app.feed.subscribe();
    let drafts = query.drafts.then(|| app.selvedge.subscribe(Watched::All));
    let position = match last {
        Some(position) => position,
        None => app.read(|store| store.position()).await?,
    };
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let closing = app.closing.subscribe();
    let stream = ClientStream { app, sender, threads, is_all, position };
    tokio::spawn(stream.run(receiver, drafts, closing));
    let events = stream::poll_fn(move |context| events.poll_recv(context).map(|event| event.map(Ok)));
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

/// The stream of one client.
struct ClientStream {
    app: App,
    sender: mpsc::Sender<Event>,
    threads: BTreeSet<ThreadId>,
    is_all: bool,
    /// The position of the last entry that was handled.
    position: u64,
}

/// Why a stream ended.
struct Ended;

impl ClientStream {
    async fn run(
        mut self,
        feed: Receiver<FeedEntry>,
        drafts: Option<Subscription>,
        mut closing: watch::Receiver<bool>,
    ) {
        let served = self.serve(feed, drafts);
        tokio::select! {
            _ = served => {}
            // The client reconnects, to the next process.
            _ = closing.wait_for(|is_closing| *is_closing) => {}
        }
    }

    async fn serve(&mut self, mut feed: Receiver<FeedEntry>, mut drafts: Option<Subscription>) -> Result<(), Ended> {
        let hello = Event::default().event("hello").json_data(json!({"position": self.position}));
        self.sender.send(hello.map_err(|_| Ended)?).await.map_err(|_| Ended)?;
        self.catch_up().await?;
        loop {
            let draft = async {
                match &mut drafts {
                    Some(drafts) => drafts.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                entry = feed.recv() => match entry {
                    Ok(entry) => self.commit(entry).await?,
                    // It was too slow for the channel: the store has what it missed.
                    Err(RecvError::Lagged(_)) => self.catch_up().await?,
                    Err(RecvError::Closed) => return Err(Ended),
                },
                event = draft => match event {
                    Some(event) => self.notice(&event).await?,
                    None => drafts = None,
                },
                () = self.sender.closed() => return Err(Ended),
            }
        }
    }

    /// Sends what was committed since the last entry, from the store.
    async fn catch_up(&mut self) -> Result<(), Ended> {
        loop {
            let after = self.position;
            let entries = self.app.read(move |store| store.after(after, PAGE)).await.map_err(|_| Ended)?;
            let is_last = entries.len() < PAGE;
            for entry in entries {
                self.commit(entry).await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Sends a commit, unless it was sent before.
    async fn commit(&mut self, entry: FeedEntry) -> Result<(), Ended> {
        if entry.position <= self.position {
            return Ok(());
        }
        self.position = entry.position;
        if !self.is_all && !self.threads.contains(&entry.thread) {
            return Ok(());
        }
        let data = json!({
            "thread_id": entry.thread,
            "version": entry.version,
            "first_line": entry.first_line,
            "lines": entry.lines,
        });
        self.send(Event::default().id(entry.position.to_string()).event("commit"), &data).await
    }

    /// Sends what is not committed. A draft for a client that does not keep up is dropped: the committed answer replaces it.
    async fn notice(&mut self, event: &RunEvent) -> Result<(), Ended> {
        if event.thread().is_some_and(|thread| !self.is_all && !self.threads.contains(thread)) {
            return Ok(());
        }
        let (name, data) = match event {
            RunEvent::Draft { thread, run, attempt, draft } => {
                ("draft", json!({"thread_id": thread, "run_id": run, "attempt": attempt, "draft": draft}))
            }
            RunEvent::Calling { thread, run, call, tool, arguments } => (
                "calling",
                json!({"thread_id": thread, "run_id": run, "call_id": call, "tool": tool, "arguments": **arguments}),
            ),
            RunEvent::Retrying { thread, run, why } => {
                ("retrying", json!({"thread_id": thread, "run_id": run, "why": why}))
            }
            RunEvent::Notice { thread, kind, why } => {
                ("notice", json!({"thread_id": thread, "kind": kind.as_str(), "why": why}))
            }
            RunEvent::Ended { thread, run, status, code } => {
                ("ended", json!({"thread_id": thread, "run_id": run, "status": status, "code": code}))
            }
            RunEvent::Missed { drafts, .. } => ("missed", json!({"drafts": drafts})),
            // Commits come from the feed, so that those of other processes are among them.
            _ => return Ok(()),
        };
        let Ok(event) = Event::default().event(name).json_data(data) else { return Ok(()) };
        match self.sender.try_send(event) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Ended),
        }
    }

    async fn send(&self, event: Event, data: &selvedge::Value) -> Result<(), Ended> {
        let event = event.json_data(data).map_err(|_| Ended)?;
        self.sender.send(event).await.map_err(|_| Ended)
    }
}
