//! Which conversation `selvedge chat` continues.
//!
//! The active thread of each agent is remembered in a small file of the user, by store. Nothing depends on it: if the file is lost, or names
//! a thread that is gone, the newest conversation of the agent is continued.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use selvedge::workshop::is_conversation;
use selvedge_model::{AgentId, ThreadId};
use selvedge_store::{Backend, Filter};

use crate::context::User;
use crate::error::Result;

/// How many threads are looked at in one go.
const PAGE: usize = 200;

/// The conversation that is continued with an agent; none if there is none yet.
pub(crate) fn find(store: &dyn Backend, agent: &AgentId) -> Result<Option<ThreadId>> {
    match remembered(store, agent) {
        Some(thread) => Ok(Some(thread)),
        None => newest(store, agent),
    }
}

/// Remembers the conversation that is continued with an agent. What can't be remembered is found again as the newest one, so trouble is
/// no error.
pub(crate) fn remember(store: &dyn Backend, agent: &AgentId, thread: &ThreadId) {
    let Some(file) = file(store, agent) else { return };
    let Some(folder) = file.parent() else { return };
    if DirBuilder::new().recursive(true).mode(0o700).create(folder).is_ok() {
        // A file that was torn names no thread.
        let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file);
        _ = opened.and_then(|mut file| writeln!(file, "{thread}"));
    }
}

fn remembered(store: &dyn Backend, agent: &AgentId) -> Option<ThreadId> {
    let text = fs::read_to_string(file(store, agent)?).ok()?;
    let thread = ThreadId::new(text.trim()).ok()?;
    let manifest = store.get(&thread).ok()?.manifest;
    (manifest.agent_id == *agent).then_some(thread)
}

fn newest(store: &dyn Backend, agent: &AgentId) -> Result<Option<ThreadId>> {
    let filter = Filter { agent_id: Some(agent.clone()), ..Filter::default() };
    let mut cursor = None;
    loop {
        let page = store.list(&filter, cursor, PAGE)?;
        let found = page.items.into_iter().map(|one| one.manifest).find(is_conversation);
        cursor = page.next;
        if found.is_some() || cursor.is_none() {
            return Ok(found.map(|manifest| manifest.thread_id));
        }
    }
}

/// `chats/<store>/<agent>` in the user's folder.
fn file(store: &dyn Backend, agent: &AgentId) -> Option<PathBuf> {
    let is_name =
        |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let store = store.store_id().ok().filter(is_name)?;
    Some(User::find().ok()?.folder.join("chats").join(store).join(agent.as_str().replace('/', "~")))
}
