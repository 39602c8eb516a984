//! A server that is a program: one JSON message per line on its standard input and output.
//!
//! One thread reads its output, one its error output, one writes: a server that does not read blocks nobody else.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use selvedge_model::Cancel;
use serde_json::{Value, json};

use super::message::{self, Era, Failed, Incoming};
use super::waiting::{Slot, Waited};
use crate::process::bounded_output::KeptTail;
use crate::process::{Ends, Gated, Serving};

/// How long a server may say nothing while it is waited for, and when it is asked whether it is still there.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const SILENCE_ASKED: Duration = Duration::from_secs(15);
/// How long a server has to acknowledge a cancellation.
const GRACE: Duration = Duration::from_secs(2);
const STDERR_BYTES_MAX: usize = 4096;
/// How many messages wait to be written.
const QUEUE_MAX: usize = 64;

type Answer = Result<Value, Failed>;

/// A running server.
pub(super) struct Stdio {
    shared: Arc<Shared>,
    to_server: SyncSender<Vec<u8>>,
    next_id: AtomicU64,
    /// Ended when this is dropped.
    process: Mutex<Option<Serving>>,
}

struct Shared {
    /// The requests without an answer; none once the server has ended.
    pending: Mutex<Option<HashMap<u64, Slot<Answer>>>>,
    heard: Mutex<Instant>,
    /// Why it has ended.
    end: Mutex<Option<String>>,
    stderr: Mutex<KeptTail>,
    have_tools_changed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stdio {
    /// Lets a program run that waits at its gate.
    pub(super) fn start(gated: Gated, message_bytes_max: u64) -> std::io::Result<Self> {
        let (process, (stdin, stdout, stderr)): (Serving, Ends) = gated.serve()?;
        let shared = Arc::new(Shared {
            pending: Mutex::new(Some(HashMap::new())),
            heard: Mutex::new(Instant::now()),
            end: Mutex::new(None),
            stderr: Mutex::new(KeptTail::new(STDERR_BYTES_MAX)),
            have_tools_changed: AtomicBool::new(false),
        });
        let (to_server, queue) = sync_channel::<Vec<u8>>(QUEUE_MAX);
        let named = |name: &str| thread::Builder::new().name(format!("mcp-{name}"));
        named("write").spawn(move || write_all(stdin, &queue))?;
        let kept = shared.clone();
        named("stderr").spawn(move || keep_tail(stderr, &kept))?;
        let (kept, answers) = (shared.clone(), to_server.clone());
        named("read").spawn(move || read_all(stdout, &kept, &answers, message_bytes_max))?;
        Ok(Self { shared, to_server, next_id: AtomicU64::new(1), process: Mutex::new(Some(process)) })
    }

    pub(super) fn is_alive(&self) -> bool {
        lock(&self.shared.pending).is_some()
    }

    pub(super) fn have_tools_changed(&self) -> bool {
        self.shared.have_tools_changed.swap(false, Ordering::SeqCst)
    }

    /// Why it is not alive any more.
    pub(super) fn why_ended(&self) -> String {
        lock(&self.shared.end).clone().unwrap_or_else(|| "the server has ended".to_owned())
    }

    /// Ends the server; every request that waits fails.
    pub(super) fn end(&self, why: &str) {
        self.shared.over(why);
        drop(lock(&self.process).take());
    }

    pub(super) fn notify(&self, method: &str, params: Value) {
        // A server that does not read gets no notice.
        _ = self.to_server.try_send(line(&message::notification(method, params)));
    }

    /// Asks for something and waits for the answer.
    pub(super) fn request(&self, method: &str, params: Value, era: &Era, cancel: &Cancel, most: Duration) -> Answer {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let slot = Slot::new();
        match &mut *lock(&self.shared.pending) {
            Some(pending) => pending.insert(id, slot.clone()),
            None => return Err(Failed::NotSent(self.why_ended())),
        };
        let message = message::request(id, method, params, era);
        if self.to_server.try_send(line(&message)).is_err() {
            self.shared.forget(id);
            return Err(Failed::NotSent("the server does not read what it is sent".to_owned()));
        }
        let answer = self.wait(id, &slot, era, cancel, most);
        self.shared.forget(id);
        answer
    }

    fn wait(&self, id: u64, slot: &Slot<Answer>, era: &Era, cancel: &Cancel, most: Duration) -> Answer {
        let sent = Instant::now();
        let deadline = sent + most;
        let mut asked = sent;
        loop {
            let heard = (*lock(&self.shared.heard)).max(sent);
            let look_up = if asked > heard { heard + SILENCE_MAX } else { heard + SILENCE_ASKED };
            match slot.wait(cancel, deadline.min(look_up)) {
                Waited::Value(answer) => return answer,
                Waited::Cancelled => return self.cancelled(id, slot),
                Waited::Late if Instant::now() >= deadline => {
                    self.notify_cancelled(id);
                    return Err(Failed::TimedOut);
                }
                Waited::Late => {}
            }
            let silence = (*lock(&self.shared.heard)).max(sent).elapsed();
            if silence >= SILENCE_MAX {
                self.end("the server said nothing for 30 seconds");
            } else if silence >= SILENCE_ASKED && asked <= heard {
                // The answer does not matter: that there is one does.
                let method = if *era == Era::Modern { "server/discover" } else { "ping" };
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                _ = self.to_server.try_send(line(&message::request(id, method, json!({}), era)));
                asked = Instant::now();
            }
        }
    }

    /// Passes a cancellation on, and waits a moment: an answer that still comes counts.
    fn cancelled(&self, id: u64, slot: &Slot<Answer>) -> Answer {
        self.notify_cancelled(id);
        match slot.wait(&Cancel::new(), Instant::now() + GRACE) {
            Waited::Value(Ok(answer)) => Ok(answer),
            _ => Err(Failed::Cancelled),
        }
    }

    fn notify_cancelled(&self, id: u64) {
        self.notify("notifications/cancelled", json!({"requestId": id, "reason": "the call was stopped"}));
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        self.end("the server is no longer needed");
    }
}

impl Shared {
    /// Takes the place of a request that is waited for no longer; a late answer finds none.
    fn forget(&self, id: u64) {
        if let Some(pending) = &mut *lock(&self.pending) {
            pending.remove(&id);
        }
    }

    fn over(&self, why: &str) {
        let left = lock(&self.pending).take();
        let stderr = lock(&self.stderr).text();
        let said = stderr.trim();
        let why = if said.is_empty() { why.to_owned() } else { format!("{why}; stderr: {said}") };
        let why = lock(&self.end).get_or_insert(why).clone();
        for slot in left.into_iter().flatten().map(|(_, slot)| slot) {
            slot.fill(Err(Failed::Lost(why.clone())));
        }
    }

    fn take(&self, incoming: Incoming, answers: &SyncSender<Vec<u8>>) {
        match incoming {
            Incoming::Answer { id, outcome } => {
                // An answer that nobody waits for, or a second one, is dropped.
                let slot = lock(&self.pending).as_mut().and_then(|pending| pending.remove(&id));
                if let Some(slot) = slot {
                    slot.fill(outcome);
                }
            }
            Incoming::Asked { answer } => _ = answers.try_send(line(&answer)),
            Incoming::ToolsChanged => self.have_tools_changed.store(true, Ordering::SeqCst),
            Incoming::Other => {}
        }
    }
}

fn line(message: &Value) -> Vec<u8> {
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

fn write_all(mut stdin: ChildStdin, queue: &std::sync::mpsc::Receiver<Vec<u8>>) {
    while let Ok(line) = queue.recv() {
        if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn keep_tail(mut stderr: ChildStderr, shared: &Shared) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        lock(&shared.stderr).add(&buffer[..count]);
    }
}

fn read_all(stdout: ChildStdout, shared: &Shared, answers: &SyncSender<Vec<u8>>, bytes_max: u64) {
    let mut reader = BufReader::new(stdout);
    let mut text = Vec::new();
    let why = loop {
        text.clear();
        match (&mut reader).take(bytes_max + 1).read_until(b'\n', &mut text) {
            Ok(0) => break "the server has ended".to_owned(),
            Ok(_) if text.len() as u64 > bytes_max => {
                break format!("the server sent a message of more than {bytes_max} bytes");
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => break error.to_string(),
        }
        *lock(&shared.heard) = Instant::now();
        for incoming in message::read(&text) {
            shared.take(incoming, answers);
        }
    };
    // What it still writes to its error output says why.
    thread::sleep(Duration::from_millis(20));
    shared.over(&why);
}
