//! The state of a thread, in one word, and the process that runs it.
//!
//! Everything here only reads: it is what people, programs and agents get, through the library, the CLI or HTTP.

use std::cmp::Reverse;

use selvedge_log::Trust;
use selvedge_model::event::Process;
use selvedge_model::tool::Processes;
use selvedge_model::{DirectiveId, Manifest, OwnerId, RunId, Status, ThreadId, Timestamp};
use selvedge_store::{Error as StoreError, Filter, Store, Summary};
use serde::Serialize;

use crate::error::Result;
use crate::fold::Fold;
use crate::wait::is_about_to_run;

/// How many threads are read at a time.
const PAGE: usize = 200;

/// The state of a thread, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadState {
    /// Its status; if that is running, a live process runs it.
    Is(Status),
    /// It should run, and no live process runs it.
    Stalled,
    /// It was deleted.
    Deleted,
    /// It does not exist.
    NotFound,
    /// Its log was changed after it was signed, or is not signed with a trusted key: nothing of it is shown.
    Unverified,
    /// It had not ended when the time was up.
    Timeout,
    /// The wait for it was cancelled.
    Interrupted,
}

impl ThreadState {
    /// Its name, as in JSON.
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

    /// The status of the thread, if this is one.
    pub fn status(self) -> Option<Status> {
        match self {
            Self::Is(status) => Some(status),
            _ => None,
        }
    }
}

impl PartialEq<Status> for ThreadState {
    fn eq(&self, status: &Status) -> bool {
        *self == Self::Is(*status)
    }
}

impl From<&Summary> for ThreadState {
    /// The state of a thread. One that an engine runs and that no live process holds is stalled; a run that is made by another program is
    /// not.
    fn from(thread: &Summary) -> Self {
        if thread.is_stalled() { Self::Stalled } else { Self::Is(thread.manifest.status) }
    }
}

impl From<Status> for ThreadState {
    fn from(status: Status) -> Self {
        Self::Is(status)
    }
}

impl Serialize for ThreadState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl std::fmt::Display for ThreadState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The process that was started to run a thread, or its chain: for a child, as its parent's log names it; for a chain without a parent, as
/// the root's own log does. None if the process that created the thread runs it, too, or if that log is gone.
pub(crate) fn started_for(store: &dyn Store, trust: &Trust, manifest: &Manifest) -> Result<Option<Process>> {
    let root = &manifest.chain_root_id;
    match Fold::load(store, manifest.parent_id.as_ref().unwrap_or(root), trust) {
        Ok(fold) if manifest.parent_id.is_some() => Ok(fold.process_of(root).cloned()),
        Ok(fold) => Ok(fold.thread().process.clone()),
        // A process id alone identifies no process.
        Err(StoreError::Deleted(_) | StoreError::NoThread(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The live process that holds a thread; none for a thread that does not exist.
pub(crate) fn holder(store: &dyn Store, thread: &ThreadId) -> Result<Option<OwnerId>> {
    match store.get(thread) {
        Ok(found) => Ok(found.holder),
        Err(StoreError::NoThread(_) | StoreError::Deleted(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A thread that a live process runs, or is about to run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Active {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: Option<DirectiveId>,
    /// Its title.
    pub title: Option<String>,
    /// Its parent.
    pub parent_id: Option<ThreadId>,
    /// The active run; none if it is about to begin.
    pub run_id: Option<RunId>,
    /// The process that runs it; none if a process was started for it and does not hold it yet.
    pub holder: Option<OwnerId>,
    /// When it last committed.
    pub updated_at: Timestamp,
}

impl From<Summary> for Active {
    fn from(Summary { manifest, holder, .. }: Summary) -> Self {
        Self {
            thread_id: manifest.thread_id,
            directive: manifest.directive,
            title: manifest.title,
            parent_id: manifest.parent_id,
            run_id: manifest.run_id,
            holder,
            updated_at: manifest.updated_at,
        }
    }
}

/// The threads that live processes run, or are about to run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActiveThreads {
    /// Always true, even if there are none.
    pub success: bool,
    /// The threads, newest first.
    pub active_threads: Vec<Active>,
    /// How many there are.
    pub count: usize,
}

/// The threads that live processes run, in any process, and the children that they are about to run: a child is listed from the moment on at
/// which its parent has started it.
pub fn list_active(store: &dyn Store, trust: &Trust, processes: &dyn Processes) -> Result<ActiveThreads> {
    let mut found = Vec::new();
    for status in [Status::Created, Status::Running] {
        let filter = Filter { status: Some(status), ..Filter::default() };
        let mut after = None;
        loop {
            let page = store.list(&filter, after, PAGE)?;
            for thread in page.items {
                let is_active = if status == Status::Running {
                    thread.holder.is_some()
                } else {
                    thread.manifest.parent_id.is_some() && is_about_to_run(store, trust, processes, &thread)?
                };
                if is_active {
                    found.push(thread);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    found.sort_by_key(|thread| Reverse(thread.manifest.created_at));
    let active_threads: Vec<Active> = found.into_iter().map(Active::from).collect();
    Ok(ActiveThreads { success: true, count: active_threads.len(), active_threads })
}

/// What `of` makes of all threads that a filter finds, page by page, newest first.
pub(crate) fn listed<T>(
    store: &dyn Store,
    filter: &Filter,
    of: impl Fn(Summary) -> Option<T>,
) -> selvedge_store::Result<Vec<T>> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(filter, after, PAGE)?;
        found.extend(page.items.into_iter().filter_map(&of));
        after = page.next;
        if after.is_none() {
            return Ok(found);
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
