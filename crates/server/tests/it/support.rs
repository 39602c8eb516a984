//! A server in a folder of its own, and a client that speaks HTTP/1.1 by hand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::{Script, Scripted, Selvedge, Status, ThreadId, Tool, Value, json, serde_json};
use selvedge_model::Clock;
use selvedge_server::{Options, Scope, Server, Tokens};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) selvedge: Selvedge,
    pub(crate) address: SocketAddr,
    pub(crate) link: String,
    pub(crate) tokens: Tokens,
    pub(crate) home: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    _project: tempfile::TempDir,
}

/// Asks for approval of one call in the first turn, then answers.
const SCRIPT: &str = "turns: [{say: First.}, {say: Second., repeat: forever}]";
const ASKING: &str =
    "turns: [{calls: [{tool: deploy, arguments: {to: production}}]}, {say: 'Result: {result}.', repeat: forever}]";

pub(crate) async fn world() -> World {
    serve(SCRIPT).await
}

pub(crate) async fn asking() -> World {
    serve(ASKING).await
}

async fn serve(script: &str) -> World {
    let (project, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let schema = json!({"type": "object", "properties": {"to": {"type": "string"}}});
    let deploy =
        Tool::function("deploy", "Deploys.", schema, |arguments, _| format!("deployed to {}", arguments["to"]));
    let selvedge = Selvedge::builder()
        .project(project.path())
        .home(home.path())
        .model("scripted", Scripted::new(Script::parse(script).unwrap()))
        .tool(deploy.needs_approval("production"))
        .open()
        .unwrap();
    let tokens = Tokens::of_home(home.path());
    let options = Options {
        address: ([127, 0, 0, 1], 0).into(),
        hosts: vec!["selvedge.example".to_owned()],
        is_behind_proxy: false,
        tokens: tokens.clone(),
        name: "demo".to_owned(),
    };
    let server = Server::bind(selvedge.clone(), options, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap();
    let (address, link) = (server.address(), server.one_time_link());
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(server.serve(async { _ = stopped.await }));
    World { selvedge, address, link, tokens, home, stop: Some(stop), served: Some(served), _project: project }
}

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// One request. `headers` are whole lines.
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) token: Option<&'a str>,
    pub(crate) headers: &'a [&'a str],
    pub(crate) body: Option<Value>,
}

impl World {
    pub(crate) fn token(&self, scope: Scope) -> String {
        self.tokens.create(scope, None, SystemClock.now(), None, &SystemIds).unwrap().1
    }

    pub(crate) async fn connect(&self, ask: &Ask<'_>) -> TcpStream {
        let Ask { method, path, token, headers, body } = ask;
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|line| line.to_lowercase().starts_with("host:")) {
            text.push_str(&format!("host: {}\r\n", self.address));
        }
        for line in *headers {
            text.push_str(&format!("{line}\r\n"));
        }
        if let Some(token) = token {
            text.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        let body = body.as_ref().map(Value::to_string).unwrap_or_default();
        if *method == "POST" {
            text.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        stream.write_all(format!("{text}\r\n{body}").as_bytes()).await.unwrap();
        stream
    }

    pub(crate) async fn ask(&self, ask: Ask<'_>) -> Response {
        let mut stream = self.connect(&ask).await;
        let mut bytes = Vec::new();
        timeout(LONG, stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = bytes[end + 4..].to_vec();
        let body = if head.contains("transfer-encoding: chunked") { unchunked(&body) } else { body };
        Response { status, head, body }
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> Response {
        self.ask(Ask { method: "GET", path, token: Some(token), headers: &[], body: None }).await
    }

    pub(crate) async fn post(&self, path: &str, token: &str, body: Value) -> Response {
        self.ask(Ask { method: "POST", path, token: Some(token), headers: &[], body: Some(body) }).await
    }

    /// Opens a stream, after a position if one is given.
    pub(crate) async fn events(&self, token: &str, after: Option<u64>) -> Events {
        let last = after.map(|after| format!("last-event-id: {after}"));
        let headers: Vec<&str> = last.iter().map(String::as_str).collect();
        let ask = Ask { method: "GET", path: "/v1/events", token: Some(token), headers: &headers, body: None };
        let stream = self.connect(&ask).await;
        Events { stream, rest: String::new() }
    }

    /// Waits until a thread has this many messages and no run.
    pub(crate) async fn answered(&self, thread: &ThreadId, messages: usize) {
        let look = async {
            loop {
                let is_done = self.selvedge.status(thread).await.unwrap().status != Status::Running;
                if is_done && self.selvedge.messages(thread).await.unwrap().len() >= messages {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, look).await.unwrap_or_else(|_| panic!("{thread} is not answered"));
    }

    pub(crate) async fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        timeout(LONG, self.served.take().unwrap()).await.unwrap().unwrap();
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return whole;
        }
        whole.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 2 + length + 2..];
    }
}

/// A stream of events.
pub(crate) struct Events {
    stream: TcpStream,
    rest: String,
}

/// One event: its name, its id and its data.
pub(crate) type Heard = (String, Option<u64>, Value);

impl Events {
    /// The next event; none once the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Heard> {
        loop {
            while let Some((block, rest)) = self.rest.split_once("\n\n") {
                let field = |name: &str| {
                    block.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
                };
                let heard = field("data:").map(|data| {
                    let id = field("id:").and_then(|id| id.parse().ok());
                    (field("event:").unwrap_or_default(), id, serde_json::from_str(&data).unwrap())
                });
                self.rest = rest.to_owned();
                if heard.is_some() {
                    return heard;
                }
            }
            let mut bytes = [0; 4096];
            let length = timeout(LONG, self.stream.read(&mut bytes)).await.unwrap().unwrap_or(0);
            if length == 0 {
                return None;
            }
            // Sizes of chunks stand on lines of their own, which no event begins with.
            let text = String::from_utf8_lossy(&bytes[..length]).replace("\r\n", "\n");
            let is_size = |line: &str| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let kept: Vec<&str> = text.split('\n').filter(|line| !is_size(line)).collect();
            self.rest.push_str(&kept.join("\n"));
        }
    }

    /// The next commits, at least this many.
    pub(crate) async fn commits(&mut self, count: usize) -> Vec<u64> {
        let mut found = Vec::new();
        while found.len() < count {
            let (name, id, _) = self.next().await.expect("the stream goes on");
            if name == "commit" {
                found.push(id.unwrap());
            }
        }
        found
    }
}
