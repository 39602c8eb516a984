//! A server on loopback, on a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::Reply;
use super::reply::ReplyStep;

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct Received {
    /// Its method.
    pub method: String,
    /// Its path; the whole address if the server is used as a proxy.
    pub path: String,
    /// Its headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Received {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; `null` if it is not.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

type Handler = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;

/// A server on loopback. It stops when it is dropped.
pub struct Server {
    address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    replies: VecDeque<Reply>,
    handler: Option<Handler>,
    received: Vec<Received>,
    connections: usize,
    /// How many connections the client closed before its reply was complete.
    hangups: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hangup(&self) {
        self.lock().hangups += 1;
        self.changed.notify_all();
    }
}

impl Server {
    /// Starts a server.
    pub fn start() -> io::Result<Self> {
        Self::start_with(None)
    }

    /// Starts a server with TLS.
    pub fn start_tls(config: ServerConfig) -> io::Result<Self> {
        Self::start_with(Some(config))
    }

    fn start_with(config: Option<ServerConfig>) -> io::Result<Self> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let scheme = if config.is_some() { "https" } else { "http" };
        let acceptor = config.map(|config| TlsAcceptor::from(Arc::new(config)));
        let (stop, stopped) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || {
                runtime.block_on(async move {
                    let serving = tokio::spawn(serve(listener, acceptor, shared));
                    _ = stopped.await;
                    serving.abort();
                });
            }
        });
        Ok(Self { address, scheme, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Its address, such as `http://127.0.0.1:1234`.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Adds the reply to a request. Requests get them in order; one without a reply gets status 500.
    pub fn push(&self, reply: Reply) {
        self.shared.lock().replies.push_back(reply);
    }

    /// Sets what makes the reply to requests for which none was pushed.
    pub fn handle(&self, handler: impl Fn(&Received) -> Reply + Send + Sync + 'static) {
        self.shared.lock().handler = Some(Arc::new(handler));
    }

    /// The requests so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.lock().received.clone()
    }

    /// The connections so far.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// Waits until the client has closed this many connections before their replies were complete; false if it did not in time.
    pub fn saw_hangups(&self, count: usize, most: Duration) -> bool {
        let until = Instant::now() + most;
        let mut state = self.shared.lock();
        while state.hangups < count {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("url", &self.url()).finish_non_exhaustive()
    }
}

async fn serve(listener: StdListener, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    while let Ok((tcp, _)) = listener.accept().await {
        _ = tcp.set_nodelay(true);
        shared.lock().connections += 1;
        let acceptor = acceptor.clone();
        let shared = shared.clone();
        tokio::spawn(async move {
            let stream = match acceptor {
                None => Stream::Plain(tcp),
                Some(acceptor) => match acceptor.accept(tcp).await {
                    Ok(tls) => Stream::Tls(Box::new(tls)),
                    // The client did not like the certificate.
                    Err(_) => return,
                },
            };
            // The end of a connection is its client's business.
            _ = Connection { stream, shared, buffer: Vec::new() }.run().await;
        });
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read_buf(buffer).await,
            Self::Tls(tls) => tls.read_buf(buffer).await,
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.write_all(bytes).await,
            Self::Tls(tls) => {
                tls.write_all(bytes).await?;
                tls.flush().await
            }
        }
    }

    /// Makes the connection end with a reset.
    fn reset(&self) {
        let tcp = match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0,
        };
        _ = tcp.set_zero_linger();
    }
}

struct Connection {
    stream: Stream,
    shared: Arc<Shared>,
    buffer: Vec<u8>,
}

impl Connection {
    /// Answers requests until the connection ends.
    async fn run(mut self) -> io::Result<()> {
        while let Some(request) = self.request().await? {
            let reply = {
                let mut state = self.shared.lock();
                let handler = state.handler.clone();
                let pushed = state.replies.pop_front();
                state.received.push(request.clone());
                drop(state);
                let made = || handler.map(|handler| handler(&request));
                pushed.or_else(made).unwrap_or_else(|| Reply::whole(500, &[], "no reply is left"))
            };
            if !self.send(&reply).await {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends a reply; false if the connection is over.
    async fn send(&mut self, reply: &Reply) -> bool {
        for step in &reply.steps {
            match step {
                ReplyStep::Send(bytes, times) => {
                    for _ in 0..*times {
                        if self.stream.write(bytes).await.is_err() {
                            self.shared.hangup();
                            return false;
                        }
                    }
                }
                ReplyStep::Then(then) => (then.0)(),
                // Without a sender there is nothing to wait for.
                ReplyStep::Until(is_open) => _ = is_open.clone().wait_for(|is_open| *is_open).await,
                ReplyStep::Pause(pause) => {
                    let closed = tokio::time::timeout(*pause, self.closed()).await;
                    if closed.is_ok() {
                        self.shared.hangup();
                        return false;
                    }
                }
                ReplyStep::Stall => {
                    self.closed().await;
                    self.shared.hangup();
                    return false;
                }
                ReplyStep::Close => return false,
                ReplyStep::Reset => {
                    self.stream.reset();
                    return false;
                }
            }
        }
        !reply.steps.is_empty()
    }

    /// Waits until the client closes the connection.
    async fn closed(&mut self) {
        while let Ok(1..) = self.stream.read(&mut self.buffer).await {}
    }

    /// The next request; `None` at the end.
    async fn request(&mut self) -> io::Result<Option<Received>> {
        let head = loop {
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                break self.buffer.drain(..end + 4).collect::<Vec<u8>>();
            }
            if self.stream.read(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        };
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.split("\r\n");
        let mut first = lines.next().unwrap_or_default().split(' ');
        let method = first.next().unwrap_or_default().to_owned();
        let path = first.next().unwrap_or_default().to_owned();
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers: Vec<_> =
            headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length = length.and_then(|(_, value)| value.parse::<usize>().ok()).unwrap_or(0);
        while self.buffer.len() < length {
            if self.stream.read(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
        let body = self.buffer.drain(..length).collect();
        Ok(Some(Received { method, path, headers, body }))
    }
}
