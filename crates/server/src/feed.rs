//! One thread that follows the store, for all streams of a server.
//!
//! It reads each entry of the feed once and hands it to every stream through a bounded channel. A stream that is too slow for the channel is
//! told so by the channel, and reads the store itself from the last entry it had: none is lost or sent twice.

use std::sync::{Arc, Weak};
use std::time::Duration;

use selvedge_store::{FeedEntry, Store};
use tokio::sync::broadcast;

use crate::listen::ServeError;

/// How many entries wait for the slowest stream before it reads the store itself.
const ENTRIES_MAX: usize = 4096;
/// How many entries are read at once.
pub(crate) const PAGE: usize = 1000;
/// How long the thread waits before it checks whether the server is gone.
const CHECK: Duration = Duration::from_secs(1);

/// The feed of a store, for many readers.
#[derive(Debug)]
pub(crate) struct FeedHub {
    sender: broadcast::Sender<FeedEntry>,
}

impl FeedHub {
    /// Follows the store until the hub is dropped.
    pub(crate) fn start(store: Arc<dyn Store>) -> Result<Arc<Self>, ServeError> {
        let seen = store.position().map_err(|_| ServeError::Store)?;
        let hub = Arc::new(Self { sender: broadcast::Sender::new(ENTRIES_MAX) });
        let weak = Arc::downgrade(&hub);
        // Without the thread no stream could be served, so a failure to start it ends the server's start.
        let started = std::thread::Builder::new().name("feed".to_owned()).spawn(move || follow(&*store, seen, &weak));
        started.map(|_| hub).map_err(|_| ServeError::Store)
    }

    /// The entries from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<FeedEntry> {
        self.sender.subscribe()
    }
}

fn follow(store: &dyn Store, mut seen: u64, hub: &Weak<FeedHub>) {
    loop {
        let entries = store.after(seen, PAGE).unwrap_or_default();
        let Some(hub) = hub.upgrade() else { return };
        for entry in entries {
            seen = entry.position;
            // Without a stream there is nothing to send to.
            _ = hub.sender.send(entry);
        }
        drop(hub);
        // A store that can't be watched is looked at once a second.
        if store.wait(seen, CHECK).is_err() {
            std::thread::sleep(CHECK);
        }
    }
}
