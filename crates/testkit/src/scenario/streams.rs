//! The same agent with a model on the network: a host that speaks a real wire format streams each answer, and charges for each request.
//!
//! The host is a thread of the process and dies with it. Its books are a file in the home, which survives: a line for each request, durable
//! before the first byte of the answer, and one for each piece that it sent. So a process that is struck at a write of the books is struck
//! in the middle of a stream.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_model::account::Record;
use selvedge_model::{Event, Status};
use selvedge_providers::fake::{AnthropicDialogue, Dialogue, FakeAnswer, Received, Reply, Server};
use selvedge_providers::wire::Dialect;
use selvedge_providers::{Connections, Host, Remote};
use selvedge_store::{Logs, Registry};
use selvedge_store_local::LocalStore;
use serde_json::Value;

use super::appends::one;
use super::runs;
use crate::LabResult;
use crate::check::{Breach, CheckResult, Kind, breach, or};
use crate::fact::{Fact, FactRecorder};
use crate::home::Home;

/// The host's books, in the home.
pub(crate) const BOOKS: &str = "books";
const REQUEST: &str = "request";

/// Runs the agent, or resumes its thread.
pub(super) fn run(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let server = Server::start()?;
    let books = home.root().join(BOOKS);
    server.handle(move |request| reply(request, &books));
    let host = Host::new("host", AnthropicDialogue.format(), AnthropicDialogue.base_url(&server.url()));
    let model = Remote::new(&Connections::new(), host, "payer", Dialect::default());
    runs::run_model(home, recorder, Arc::new(model))
}

/// Requests each payment until it gets its receipt, piece by piece.
fn reply(request: &Received, books: &Path) -> Reply {
    // A host that can't write its books charges all the same.
    _ = note(books, REQUEST).and_then(|()| OpenOptions::new().append(true).open(books)?.sync_all());
    let body = request.json();
    let text = body["messages"].to_string();
    let due = runs::AMOUNTS.into_iter().find(|amount| !text.contains(&format!("paid {amount}")));
    let said = match due {
        Some(amount) => {
            let pieces = ["{\"amount\":", &format!("\"{amount}\"}}")];
            FakeAnswer::text(&["I pay ", "what is due."]).call(&format!("call_{}", calls(&body)), "pay", &pieces)
        }
        None => FakeAnswer::text(&["all ", "is ", "paid"]),
    };
    let mut reply = Reply::stream();
    for event in AnthropicDialogue.answer(&FakeAnswer { usage: runs::USAGE, ..said }) {
        let books: PathBuf = books.to_owned();
        reply = reply.piece(event).then(move || _ = note(&books, "piece"));
    }
    reply.end()
}

/// How many calls the conversation has.
fn calls(body: &Value) -> usize {
    let messages = body["messages"].as_array().into_iter().flatten();
    let blocks = messages.flat_map(|message| message["content"].as_array().into_iter().flatten());
    blocks.filter(|block| block["type"] == "tool_use").count()
}

fn note(books: &Path, word: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(books)?.write_all(format!("{word}\n").as_bytes())
}

/// What holds of every run with prices; and each attempt is charged exactly, or as one whose cost is unknown: none that reached the host is
/// missing, and an ended thread leaves none open.
pub(super) fn charged(home: &Home, store: &LocalStore, facts: &[Fact]) -> CheckResult {
    runs::conserved(home, store, facts)?;
    let attempts = Attempts::of(store)?;
    let books = fs::read_to_string(home.root().join(BOOKS)).unwrap_or_default();
    let requests = books.lines().filter(|line| *line == REQUEST).count();
    if requests > attempts.issued {
        let why = format!("the host was asked {requests} times, the ledger has {} attempts", attempts.issued);
        return Err(breach(Kind::Lost, why));
    }
    let exact = runs::price().cost(&runs::USAGE);
    for record in &attempts.settled {
        if !record.unknown && record.amount != Some(exact) {
            return Err(breach(Kind::Blended, format!("an attempt cost {exact}, but the ledger has {record:?}")));
        }
    }
    let manifest = store.get(&one()).map_err(or(Kind::Broken, "the thread can't be found"))?.manifest;
    let unknown: Vec<&Record> = attempts.settled.iter().filter(|record| record.unknown).collect();
    let amount: i64 = unknown.iter().filter_map(|record| record.amount).map(|amount| amount.nanos()).sum();
    if manifest.status == Status::Completed {
        if attempts.settled.len() != attempts.issued {
            let why = format!("{} of {} attempts are settled", attempts.settled.len(), attempts.issued);
            return Err(breach(Kind::Lost, why));
        }
        if manifest.cost.spend_unknown.nanos() != amount {
            let why = format!("{amount} nanodollars are unknown, the thread says {}", manifest.cost.spend_unknown);
            return Err(breach(Kind::Blended, why));
        }
    }
    Ok(())
}

/// The attempts of the thread, as its log has them.
#[derive(Default)]
struct Attempts {
    issued: usize,
    settled: Vec<Record>,
}

impl Attempts {
    fn of(store: &LocalStore) -> Result<Self, Breach> {
        let lines = store.read(&one(), 0, usize::MAX).map_err(or(Kind::Broken, "the log can't be read"))?;
        let mut attempts = Self::default();
        for line in lines {
            match line.event {
                Event::Issued(_) => attempts.issued += 1,
                Event::Settled(record) => attempts.settled.push(record),
                _ => {}
            }
        }
        Ok(attempts)
    }
}
