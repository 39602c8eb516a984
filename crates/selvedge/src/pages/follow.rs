//! Pages that are kept current while threads run.
//!
//! One thread of the operating system follows the commits of an engine. It never delays one: between two updates it waits at least
//! [`PAUSE`], and ten times as long as the last one took, so pages take at most a tenth of one core. What was committed meanwhile is one
//! update. What is left when it stops, the effect that follows a run does.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use selvedge_engine::Engine;
use selvedge_engine::events::{RunEvent, Subscription, Watched};
use selvedge_log::Trust;
use selvedge_model::{Cancel, Stop, ThreadId};
use selvedge_store::Backend;
use tokio::runtime::Builder;

use super::update;

/// The least time between two updates.
const PAUSE: Duration = Duration::from_millis(500);
/// How many times as long as an update the pause after it is.
const PAUSE_TIMES: u32 = 10;

/// Keeps pages current until it is dropped, which waits for an update that is being written.
#[derive(Debug)]
pub struct PageFollower {
    stop: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl PageFollower {
    /// Follows the threads that an engine runs.
    pub fn start(store: &Arc<dyn Backend>, engine: &Engine) -> Self {
        let stop = Cancel::new();
        let follow = Follow {
            store: Arc::downgrade(store),
            trust: engine.trust().clone(),
            events: engine.subscribe(Watched::All),
            stop: stop.clone(),
            changed: BTreeSet::new(),
        };
        // Without the thread, pages are written after the run.
        let thread = std::thread::Builder::new().name("pages".to_owned()).spawn(|| follow.run()).ok();
        Self { stop, thread }
    }
}

impl Drop for PageFollower {
    fn drop(&mut self) {
        self.stop.say(Stop::Cancelled);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

struct Follow {
    store: Weak<dyn Backend>,
    trust: Trust,
    events: Subscription,
    stop: Cancel,
    changed: BTreeSet<ThreadId>,
}

impl Follow {
    fn run(mut self) {
        let Ok(runtime) = Builder::new_current_thread().build() else { return };
        let mut pause = PAUSE;
        // Both wake it: an event, and the end.
        while let Some(event) = runtime.block_on(self.next()) {
            self.note(event);
            // What is committed meanwhile is one update.
            if self.stop.wait(pause).is_some() {
                return;
            }
            while let Some(event) = self.events.try_recv() {
                self.note(event);
            }
            let began = Instant::now();
            self.write();
            pause = began.elapsed().saturating_mul(PAUSE_TIMES).max(PAUSE);
        }
    }

    /// The next event; none at the end.
    async fn next(&mut self) -> Option<RunEvent> {
        let mut stopped = self.stop.stopped();
        poll_fn(|context| match Pin::new(&mut stopped).poll(context) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => self.events.poll_recv(context),
        })
        .await
    }

    fn note(&mut self, event: RunEvent) {
        match event {
            RunEvent::Committed { thread, .. } => _ = self.changed.insert(thread),
            RunEvent::Missed { first_lines, .. } => self.changed.extend(first_lines.into_keys()),
            _ => {}
        }
    }

    fn write(&mut self) {
        let Some(store) = self.store.upgrade() else { return };
        for thread in std::mem::take(&mut self.changed) {
            // A failure is that of the effect that follows the run, too, which keeps it.
            _ = update(&*store, &self.trust, &thread);
        }
    }
}
