//! Connections: how many, how long they may take, and how a server ends.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use selvedge::Selvedge;
use selvedge_model::{Classify, Clock, Ids, Kind};
use selvedge_store::Store;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::access::{Access, hosts};
use crate::feed::FeedHub;
use crate::problem::{Problem, Result};
use crate::routes::router;
use crate::token::Tokens;

/// How many connections are served at once; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of a request's body that are read into memory.
const BODY_BYTES_MAX: usize = 4 << 20;
/// How long responses may take to end after the server was told to.
const GRACE: Duration = Duration::from_secs(5);

/// The options of a server.
#[derive(Debug)]
pub struct Options {
    /// Where it listens; port 0 for any free one.
    pub address: SocketAddr,
    /// Further names under which it is reached, with or without a port.
    pub hosts: Vec<String>,
    /// Whether it may listen beyond loopback without TLS, because a proxy in front of it has it.
    pub is_behind_proxy: bool,
    /// The tokens that it accepts.
    pub tokens: Tokens,
    /// The name of the project, shown on the page.
    pub name: String,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address can't be used.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// It would be reachable by other machines without encryption.
    #[error("{0} can be reached by other machines, and this server has no TLS")]
    NoTls(SocketAddr),
    /// The store can't be followed.
    #[error("can't follow the store")]
    Store,
}

impl Classify for ServeError {
    fn kind(&self) -> Kind {
        match self {
            Self::NoTls(_) => Kind::Denied,
            Self::Listen { .. } | Self::Store => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Listen { .. } => "cannot_listen",
            Self::NoTls(_) => "no_tls",
            Self::Store => "io",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Listen { .. } => Some("`--listen 127.0.0.1:0` takes any free port".to_owned()),
            Self::NoTls(_) => Some(
                "listen on 127.0.0.1 and put a proxy with TLS in front of it; if there is one on another machine, add `--behind-proxy`"
                    .to_owned(),
            ),
            Self::Store => None,
        }
    }
}

/// What handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) selvedge: Selvedge,
    pub(crate) access: Access,
    pub(crate) feed: Arc<FeedHub>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) name: String,
    /// Whether the server ends: streams end then, and their clients reconnect.
    pub(crate) closing: watch::Sender<bool>,
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl App {
    /// Reads the store, on a thread that may block.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Store) -> selvedge_store::Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.selvedge.store();
        match tokio::task::spawn_blocking(move || read(&*store)).await {
            Ok(read) => Ok(read?),
            Err(_) => Err(Problem::new(
                axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                "panic",
                "the server failed; its log says why",
            )),
        }
    }
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    app: App,
    address: SocketAddr,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens. Connections are accepted from now on, and served by [`Server::serve`].
    pub async fn bind(
        selvedge: Selvedge,
        options: Options,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
    ) -> Result<Self, ServeError> {
        let asked = options.address;
        if !asked.ip().is_loopback() && !options.is_behind_proxy {
            return Err(ServeError::NoTls(asked));
        }
        let failed = |source| ServeError::Listen { address: asked, source };
        let listener = TcpListener::bind(asked).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let feed = FeedHub::start(selvedge.store())?;
        let shared = Shared {
            access: Access::new(options.tokens, hosts(address, &options.hosts)),
            selvedge,
            feed,
            clock,
            ids,
            name: options.name,
            closing: watch::Sender::new(false),
        };
        Ok(Self { listener, app: App(Arc::new(shared)), address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The page with a code that is good for one browser. The code stands behind `#`, which no browser sends, so it is in no log.
    pub fn one_time_link(&self) -> String {
        format!("http://{}/#code={}", self.address, self.app.access.one_time_code(&*self.app.ids))
    }

    /// Serves until `ends` resolves, then tells the streams to end and waits a moment for the rest. Runs continue, and are not this
    /// server's: shut down the [`Selvedge`] afterwards.
    pub async fn serve(self, ends: impl Future<Output = ()>) {
        let service = router(&self.app).layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        let mut ends = std::pin::pin!(ends);
        loop {
            let accepted = async {
                // Never closed.
                let place = places.clone().acquire_owned().await.ok();
                (self.listener.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                accepted = accepted => accepted,
                () = &mut ends => break,
            };
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = accepted else {
                // Out of descriptors: wait for connections to end.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let service = TowerToHyperService::new(service.clone());
            let mut closing = self.app.closing.subscribe();
            connections.spawn(async move {
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
                let connection = http.serve_connection(TokioIo::new(stream), service);
                let mut connection = std::pin::pin!(connection);
                let is_told = tokio::select! {
                    // A connection that breaks is its client's matter.
                    _ = connection.as_mut() => false,
                    told = closing.wait_for(|is_closing| *is_closing) => told.is_ok(),
                };
                if is_told {
                    connection.as_mut().graceful_shutdown();
                    _ = connection.await;
                }
                drop(place);
            });
        }
        drop(self.listener);
        self.app.closing.send_replace(true);
        _ = tokio::time::timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    }
}
