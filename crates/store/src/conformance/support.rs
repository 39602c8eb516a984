//! What the cases share, and other tests may use: seeded random ids, a scripted clock, short builders, and everything that is visible of a
//! thread at once.
//!
//! The builders panic on a mistake of the test, so that a case stays readable.

mod observed;
mod seeded;

use std::str::FromStr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use selvedge_model::id::InvalidId;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::{
    Batch, Changeset, Classify, Event, Expect, Input, Message, NewThread, Part, Patch, Posted, Reason, Request, Role,
    RunMeta, ThreadId, Timestamp,
};
use serde_json::Value;

use crate::contract::{Commit, Committed};
use crate::error::Result;
pub use observed::{Observed, bytes_of, leaves_no_trace, lines_of, loaded, observe, verified};
pub use seeded::{ScriptedClock, SeededIds};

/// Longer than anything here takes; a wait that lasts this long has failed.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Any kind of name.
pub fn id<T: FromStr<Err = InvalidId>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// A thread of the agent `scribe` without other fields.
pub fn new_thread() -> NewThread {
    NewThread::of(id("scribe"))
}

/// The part that creates a thread.
pub fn birth(thread: &ThreadId, new: NewThread) -> Part {
    Part::new(thread.clone(), Expect::Absent, Changeset::creating(new))
}

/// The part that appends to a thread, at any version.
pub fn part(thread: &ThreadId, changeset: Changeset) -> Part {
    Part::new(thread.clone(), Expect::Any, changeset)
}

/// The part that appends to a thread at a version.
pub fn part_at(thread: &ThreadId, version: u64, changeset: Changeset) -> Part {
    Part::new(thread.clone(), Expect::Exact(version), changeset)
}

/// A batch of these parts.
pub fn batch(parts: impl IntoIterator<Item = Part>) -> Batch {
    Batch { key: None, parts: parts.into_iter().collect(), consumed: Vec::new(), posted: Vec::new() }
}

/// An empty changeset.
pub fn empty() -> Changeset {
    Changeset::empty(Reason::Lifecycle)
}

/// A changeset of one message without an id.
pub fn says(text: &str) -> Changeset {
    Changeset { messages: vec![Message::text(Role::User, text)], ..Changeset::empty(Reason::UserMessage) }
}

/// A changeset of one message with an id.
pub fn says_as(message: &str, text: &str) -> Changeset {
    Changeset { messages: vec![Message::text(Role::User, text).with_id(id(message))], ..says(text) }
}

/// A changeset of one event.
pub fn with_event(event: Event) -> Changeset {
    Changeset::of_event(event)
}

/// A changeset of one patch of these ops.
pub fn patches(ops: impl IntoIterator<Item = Op>) -> Changeset {
    Changeset { patches: vec![Patch::new(ops.into_iter().collect())], ..empty() }
}

/// Puts a value under a key of the state.
pub fn set(key: &str, value: Value) -> Op {
    Op::Set { path: Path::keys([key]), value }
}

/// Adds an element to the list under a key of the state.
pub fn push(key: &str, value: Value) -> Op {
    Op::Append { path: Path::keys([key]), value }
}

/// Adds one to the number under a key of the state.
pub fn count(key: &str) -> Op {
    Op::Increment { path: Path::keys([key]), amount: 1.into() }
}

/// The changeset that starts a run, as an engine does under its lease.
pub fn starts(run: &str) -> Changeset {
    records(run, RunMeta::started(id("scribe"), "user").under_lease())
}

/// The changeset that ends a run for this reason.
pub fn finishes(run: &str, termination_code: &str) -> Changeset {
    let meta = RunMeta::started(id("scribe"), "user").under_lease().finished(termination_code);
    Changeset { reason: Reason::RunFinished, ..records(run, meta) }
}

/// The changeset that records this about a run.
pub fn records(run: &str, meta: RunMeta) -> Changeset {
    Changeset { run_id: Some(id(run)), run_meta: Some(meta), ..Changeset::empty(Reason::UserMessage) }
}

/// A request to a thread.
pub fn request(thread: &ThreadId, key: &str, kind: &str) -> Posted {
    let request = match kind {
        "send" => Request::Send(Input::text(key)),
        "cancel" => Request::Cancel,
        "kill" => Request::Kill,
        "rename" => Request::Rename { title: key.to_owned() },
        "child_settled" => Request::ChildSettled(selvedge_model::request::ChildEnd {
            thread_id: thread.clone(),
            end_thread_id: thread.clone(),
            status: selvedge_model::Status::Completed,
            outputs: None,
        }),
        other => panic!("`{other}` is not a kind of request that is tested here"),
    };
    Posted { thread: thread.clone(), id: id(key), at: Timestamp::from_micros(7), request }
}

/// Commits a batch that must be accepted.
pub fn commit(store: &impl Commit, batch: Batch) -> Committed {
    store.commit(batch).unwrap_or_else(|error| panic!("this must be committed: {error}"))
}

/// Creates a thread.
pub fn create(store: &impl Commit, name: &str) -> ThreadId {
    create_as(store, name, new_thread())
}

/// Creates a thread with these fields.
pub fn create_as(store: &impl Commit, name: &str, new: NewThread) -> ThreadId {
    let thread = id(name);
    commit(store, Batch::of(birth(&thread, new)));
    thread
}

/// Appends to a thread and returns its new version.
pub fn append(store: &impl Commit, thread: &ThreadId, changeset: Changeset) -> u64 {
    let committed = commit(store, Batch::of(part(thread, changeset)));
    committed.version_of(thread).unwrap_or_else(|| panic!("the answer must name `{thread}`: {committed:?}"))
}

/// Retries while the error is retryable.
pub fn with_retries<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..2_000 {
        match attempt() {
            Err(error) if error.retryable() => thread::sleep(Duration::from_millis(1)),
            other => return other,
        }
    }
    attempt()
}

/// Runs `work` on this many OS threads that start together, and returns their results.
pub fn at_once<T: Send>(workers: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(workers);
    let go = |worker| {
        start.wait();
        work(worker)
    };
    thread::scope(|scope| {
        let go = &go;
        let workers: Vec<_> = (0..workers).map(|worker| scope.spawn(move || go(worker))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| panic!("a worker failed"))).collect()
    })
}

/// Checks that a result is an error of this form; otherwise panics with what should have been refused.
macro_rules! assert_refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?, $($why:tt)+) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            other => panic!("{}: expected {}, got {other:?}", format_args!($($why)+), stringify!($pattern)),
        }
    };
}
pub(crate) use assert_refused;

/// The items in order.
pub fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<_> = items.into_iter().collect();
    items.sort();
    items
}
