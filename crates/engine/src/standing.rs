//! How a thread stands, in one word, and who runs it.
//!
//! Everything here only reads: it is what people, programs and agents are told, through whichever door they ask.

use selvedge_log::Trust;
use selvedge_model::event::Process;
use selvedge_model::{DirectiveId, Manifest, OwnerId, RunId, Status, ThreadId, Timestamp};
use selvedge_store::{Error as StoreError, Filter, Store, Summary};
use serde::Serialize;

use crate::error::Result;
use crate::fold::Fold;

/// How many threads are looked at in one go.
const PAGE: usize = 200;

/// How a thread stands, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// As its status says; if that is running, somebody alive runs it.
    Is(Status),
    /// It should go on, and nobody is there who does.
    Stalled,
    /// It was deleted.
    Deleted,
    /// Nobody knows it.
    NotFound,
    /// Its log is not what was signed, or nobody who is trusted signed it: nothing of it is shown.
    Unverified,
    /// It had not ended when the time was up.
    Timeout,
    /// Whoever waited for it was stopped.
    Interrupted,
}

impl Standing {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Is(status) => status.as_str(),
            Self::Stalled => "stalled",
            Self::Deleted => "deleted",
            Self::NotFound => "not_found",
            Self::Unverified => "unverified",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
        }
    }

    /// The status of a thread of which this is said, if it has one.
    pub fn status(self) -> Option<Status> {
        match self {
            Self::Is(status) => Some(status),
            _ => None,
        }
    }
}

impl PartialEq<Status> for Standing {
    fn eq(&self, status: &Status) -> bool {
        *self == Self::Is(*status)
    }
}

impl From<&Summary> for Standing {
    /// How a thread stands. One that an engine runs and that no live process holds is stalled; a run that no engine makes is its writer's
    /// own.
    fn from(thread: &Summary) -> Self {
        if thread.is_stalled() { Self::Stalled } else { Self::Is(thread.manifest.status) }
    }
}

impl From<Status> for Standing {
    fn from(status: Status) -> Self {
        Self::Is(status)
    }
}

impl Serialize for Standing {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The process that was started to run a thread, or the chain that it is a part of: the parent's log names that of a child, the root's
/// own log that of a chain which nobody started. None if whoever started it runs it too, or if who said so is gone.
pub(crate) fn started_for(store: &dyn Store, trust: &Trust, manifest: &Manifest) -> Result<Option<Process>> {
    let root = &manifest.chain_root_id;
    match Fold::load(store, manifest.parent_id.as_ref().unwrap_or(root), trust) {
        Ok(fold) if manifest.parent_id.is_some() => Ok(fold.process_of(root).cloned()),
        Ok(fold) => Ok(fold.thread().process.clone()),
        // A number alone names nobody.
        Err(StoreError::Deleted(_) | StoreError::NoThread(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The live process that holds a thread; none holds a thread that is not there.
pub(crate) fn holder(store: &dyn Store, thread: &ThreadId) -> Result<Option<OwnerId>> {
    match store.get(thread) {
        Ok(found) => Ok(found.holder),
        Err(StoreError::NoThread(_) | StoreError::Deleted(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A thread that somebody runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Active {
    /// The thread.
    pub thread_id: ThreadId,
    /// What it is told to do.
    pub directive: Option<DirectiveId>,
    /// What people call it.
    pub title: Option<String>,
    /// The thread that started it.
    pub parent_id: Option<ThreadId>,
    /// The active run.
    pub run_id: Option<RunId>,
    /// Who runs it.
    pub holder: OwnerId,
    /// When something was last heard of it.
    pub updated_at: Timestamp,
}

/// The threads that somebody runs, in whichever process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActiveThreads {
    /// Always: there may be none.
    pub success: bool,
    /// They, the newest first.
    pub active_threads: Vec<Active>,
    /// How many.
    pub count: usize,
}

/// The threads that somebody alive runs, in whichever process.
pub fn list_active(store: &dyn Store) -> Result<ActiveThreads> {
    let running = Filter { status: Some(Status::Running), ..Filter::default() };
    let (mut active_threads, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(&running, after, PAGE)?;
        for Summary { manifest, holder, .. } in page.items {
            if let Some(holder) = holder {
                active_threads.push(Active {
                    thread_id: manifest.thread_id,
                    directive: manifest.directive,
                    title: manifest.title,
                    parent_id: manifest.parent_id,
                    run_id: manifest.run_id,
                    holder,
                    updated_at: manifest.updated_at,
                });
            }
        }
        after = page.next;
        if after.is_none() {
            let count = active_threads.len();
            return Ok(ActiveThreads { success: true, active_threads, count });
        }
    }
}

/// A text of at most this many characters.
pub(crate) fn shortened(mut text: String, chars_max: usize) -> String {
    if let Some((at, _)) = text.char_indices().nth(chars_max) {
        let (last, _) = text[..at].char_indices().next_back().unwrap_or_default();
        text.truncate(last);
        text.push('…');
    }
    text
}
