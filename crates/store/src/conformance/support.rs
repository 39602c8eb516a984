//! What the cases share, and other tests may use: chance from a seed, a clock that follows a script, short builders, and
//! everything that can be seen of a thread at once.
//!
//! The builders panic on what a test got wrong, so that a case reads as what it shows.

use std::fmt::Debug;
use std::io::Read;
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use selvedge_log::scan::{Entry, Scanner, Signatures, examine};
use selvedge_log::{Head, Line, Trust};
use selvedge_model::account::Account;
use selvedge_model::id::InvalidId;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::{
    Batch, Changeset, Classify, Clock, Committed, Event, Expect, Ids, Message, NewThread, Note, Part, Patch, Reason, Role, Run, RunMeta,
    Thread, ThreadId, Timestamp,
};
use serde_json::{Value, json};

use crate::contract::{Commit, Filter, Logs, Store, Summary};
use crate::error::{Error, Result};
use crate::load;

/// Longer than anything here takes; a wait that lasts as long was for nothing.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Chance from a seed: the same seed gives the same values, so a failing test can be repeated.
///
/// A clone goes on where the original is; handles on one store must share one seed's values, or their names collide.
#[derive(Clone, Debug)]
pub struct SeededIds(Arc<Mutex<u64>>);

impl SeededIds {
    /// The values of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// The next value below `limit`, for a test that chooses.
    pub fn below(&self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// SplitMix64: short, and good enough for names.
    fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Ids for SeededIds {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A clock that follows a script: every look at it moves it on by one step, and a test may set it. Clones share one time.
#[derive(Clone, Debug)]
pub struct ScriptedClock {
    micros: Arc<AtomicI64>,
    step: i64,
}

impl ScriptedClock {
    /// Begins at `at` and moves on by `step` at every look.
    pub fn new(at: Timestamp, step: Duration) -> Self {
        let step = i64::try_from(step.as_micros()).unwrap_or(i64::MAX);
        Self { micros: Arc::new(AtomicI64::new(at.as_micros())), step }
    }

    /// Goes to another time, earlier ones included.
    pub fn set(&self, at: Timestamp) {
        self.micros.store(at.as_micros(), Ordering::SeqCst);
    }
}

impl Default for ScriptedClock {
    /// Begins on a day in November 2026 and moves on by a millisecond.
    fn default() -> Self {
        Self::new(Timestamp::from_micros(1_794_700_000_000_000), Duration::from_millis(1))
    }
}

impl Clock for ScriptedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.fetch_add(self.step, Ordering::SeqCst))
    }
}

/// Any kind of name.
pub fn id<T: FromStr<Err = InvalidId>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// A thread of the agent `scribe` of which nothing else is said.
pub fn new_thread() -> NewThread {
    NewThread::of(id("scribe"))
}

/// The part that creates a thread.
pub fn birth(thread: &ThreadId, new: NewThread) -> Part {
    Part::new(thread.clone(), Expect::Absent, Changeset::creating(new))
}

/// The part that adds to a thread, at whatever version it is.
pub fn part(thread: &ThreadId, changeset: Changeset) -> Part {
    Part::new(thread.clone(), Expect::Any, changeset)
}

/// The part that adds to a thread at a version.
pub fn part_at(thread: &ThreadId, version: u64, changeset: Changeset) -> Part {
    Part::new(thread.clone(), Expect::Exact(version), changeset)
}

/// A batch of these parts.
pub fn batch(parts: impl IntoIterator<Item = Part>) -> Batch {
    Batch { key: None, parts: parts.into_iter().collect(), consumed: Vec::new(), posted: Vec::new() }
}

/// A changeset that adds nothing but a version.
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
pub fn tells(event: Event) -> Changeset {
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

/// The changeset that starts a run.
pub fn starts(run: &str) -> Changeset {
    records(run, RunMeta::started(id("scribe"), "user"))
}

/// The changeset that ends a run for this reason.
pub fn finishes(run: &str, termination_code: &str) -> Changeset {
    let meta = RunMeta::started(id("scribe"), "user").finished(termination_code);
    Changeset { reason: Reason::RunFinished, ..records(run, meta) }
}

/// The changeset that says this of a run.
pub fn records(run: &str, meta: RunMeta) -> Changeset {
    Changeset { run_id: Some(id(run)), run_meta: Some(meta), ..Changeset::empty(Reason::UserMessage) }
}

/// A request to a thread.
pub fn note(thread: &ThreadId, key: &str, kind: &str) -> Note {
    Note { thread: thread.clone(), key: id(key), kind: kind.to_owned(), body: json!({"text": key}) }
}

/// Commits what must be committed.
pub fn commit(store: &impl Commit, batch: Batch) -> Committed {
    store.commit(batch).unwrap_or_else(|error| panic!("this must be committed: {error}"))
}

/// Creates a thread.
pub fn create(store: &impl Commit, name: &str) -> ThreadId {
    create_as(store, name, new_thread())
}

/// Creates a thread of which this is said.
pub fn create_as(store: &impl Commit, name: &str, new: NewThread) -> ThreadId {
    let thread = id(name);
    commit(store, Batch::of(birth(&thread, new)));
    thread
}

/// Adds to a thread and gives the version it came to.
pub fn append(store: &impl Commit, thread: &ThreadId, changeset: Changeset) -> u64 {
    let committed = commit(store, Batch::of(part(thread, changeset)));
    committed.version_of(thread).unwrap_or_else(|| panic!("the answer must name `{thread}`: {committed:?}"))
}

/// Tries again while the store says that this may help.
pub fn stubbornly<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..2_000 {
        match attempt() {
            Err(error) if error.retryable() => thread::sleep(Duration::from_millis(1)),
            other => return other,
        }
    }
    attempt()
}

/// Does `work` on this many OS threads that start together, and gives what each came to.
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

/// The exact bytes of a log, and the head they end at.
pub fn bytes_of(store: &impl Logs, thread: &ThreadId) -> (Head, Vec<u8>) {
    let (head, mut reader) = store.transcript(thread).unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    (head, bytes)
}

/// All lines of a log.
pub fn lines_of(store: &impl Logs, thread: &ThreadId) -> Vec<Line> {
    store.read(thread, 0, usize::MAX).unwrap()
}

/// Checks every signature of a log and that it ends at its head; gives its changesets.
pub fn verified(store: &impl Logs, trust: &Trust, thread: &ThreadId) -> Vec<Entry> {
    let (head, bytes) = bytes_of(store, thread);
    let mut entries = Vec::new();
    let scanner = Scanner::new(thread, trust, Signatures::Every);
    let examined = examine(bytes.as_slice(), scanner, |entry| entries.push(entry)).unwrap();
    assert_eq!(examined.damage, None, "every line of `{thread}` must hold");
    assert_eq!(examined.head(), Some(&head), "the log of `{thread}` must end at its head");
    assert_eq!(bytes.len() as u64, head.bytes, "the log of `{thread}` must have as many bytes as its head says");
    entries
}

/// A thread as its log tells it.
pub fn loaded(store: &impl Logs, trust: &Trust, thread: &ThreadId) -> Thread {
    load::load(store, thread, trust, None).unwrap_or_else(|error| panic!("`{thread}` must load: {error}")).thread
}

/// Everything that can be seen of some threads, and of the accounts and the feed beside them.
#[derive(Debug, PartialEq)]
pub struct Sight {
    threads: Vec<Result<Seen, &'static str>>,
    accounts: Vec<Option<Account>>,
    listed: Vec<Summary>,
    position: u64,
}

#[derive(Debug, PartialEq)]
struct Seen {
    summary: Summary,
    head: Head,
    log: String,
    runs: Vec<Run>,
    notes: Vec<Note>,
}

/// Looks at everything there is of `threads`.
pub fn sight(store: &impl Store, threads: &[&ThreadId]) -> Sight {
    let seen = |thread: &ThreadId| -> Result<Seen> {
        let summary = store.get(thread)?;
        let (head, bytes) = bytes_of(store, thread);
        let log = String::from_utf8(bytes).unwrap();
        Ok(Seen { summary, head, log, runs: store.runs(thread)?, notes: store.pending(thread)? })
    };
    Sight {
        threads: threads.iter().map(|thread| seen(thread).map_err(|error: Error| error.code())).collect(),
        accounts: threads.iter().map(|thread| store.account(thread).unwrap()).collect(),
        listed: store.list(&Filter::default(), None, 1_000).unwrap().items,
        position: store.position().unwrap(),
    }
}

/// Checks that `attempt` changes nothing that can be seen of `threads`.
#[track_caller]
pub fn leaves_no_trace(store: &impl Store, threads: &[&ThreadId], attempt: impl FnOnce()) {
    let before = sight(store, threads);
    attempt();
    assert_eq!(sight(store, threads), before, "what was refused must leave no trace");
}

/// Checks that a result is an error of this form, and says what should have been refused if it is not.
macro_rules! assert_refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?, $($why:tt)+) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            other => panic!("{}: this came instead of {}: {other:?}", format_args!($($why)+), stringify!($pattern)),
        }
    };
}
pub(crate) use assert_refused;

/// What `T` shows when it is not what was expected.
pub(crate) fn sorted<T: Ord + Debug>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<_> = items.into_iter().collect();
    items.sort();
    items
}
