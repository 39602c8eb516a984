//! Which conversation `selvedge chat` continues.
//!
//! The active thread of each agent, and the agent of the last chat, are remembered in small files of the user, by store. Nothing depends on
//! them: if a file is lost, or names a thread that is gone, the newest conversation of the agent is continued, and a project with several
//! agents asks for one.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use selvedge::project::is_conversation;
use selvedge_model::{AgentId, ThreadId};
use selvedge_store::{Backend, Filter};

use crate::context::User;
use crate::error::{Failure, Result};

/// How many threads are looked at in one go.
const PAGE: usize = 200;
/// The file that names the agent of the last chat. No agent's name begins with a dot.
const LAST: &str = ".last";

/// The conversation that is continued with an agent; none if there is none yet.
pub(crate) fn find(store: &dyn Backend, agent: &AgentId) -> Result<Option<ThreadId>> {
    match remembered(store, agent) {
        Some(thread) => Ok(Some(thread)),
        None => newest(store, agent),
    }
}

/// The agent of a chat that names none: the only one, or that of the last chat.
pub(crate) fn agent(store: &dyn Backend, agents: &[AgentId]) -> Result<AgentId> {
    if let [only] = agents {
        return Ok(only.clone());
    }
    let last = folder(store).and_then(|folder| fs::read_to_string(folder.join(LAST)).ok());
    let last = last.and_then(|last| agents.iter().find(|agent| agent.as_str() == last.trim()));
    last.cloned().ok_or_else(|| {
        let names: Vec<String> = agents.iter().map(|agent| format!("`{agent}`")).collect();
        let first = agents.first().map_or("AGENT", AgentId::as_str);
        Failure::usage(format!("the project has several agents: {}", names.join(", ")))
            .hint(format!("name the one to talk with: `selvedge chat {first}`"))
    })
}

/// Remembers the conversation that is continued with an agent, and the agent. What can't be remembered is found again as the newest one, so
/// trouble is no error.
pub(crate) fn remember(store: &dyn Backend, agent: &AgentId, thread: &ThreadId) {
    let Some(folder) = folder(store) else { return };
    if DirBuilder::new().recursive(true).mode(0o700).create(&folder).is_ok() {
        write(&folder.join(name(agent)), thread.as_str());
        write(&folder.join(LAST), agent.as_str());
    }
}

/// Writes a line. A file that was torn names nothing that exists.
fn write(file: &Path, line: &str) {
    let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file);
    _ = opened.and_then(|mut file| writeln!(file, "{line}"));
}

fn remembered(store: &dyn Backend, agent: &AgentId) -> Option<ThreadId> {
    let text = fs::read_to_string(folder(store)?.join(name(agent))).ok()?;
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

/// The name of the file of an agent.
fn name(agent: &AgentId) -> String {
    agent.as_str().replace('/', "~")
}

/// `chats/<store>` in the user's folder.
fn folder(store: &dyn Backend) -> Option<PathBuf> {
    let is_name =
        |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let store = store.store_id().ok().filter(is_name)?;
    Some(User::find().ok()?.folder.join("chats").join(store))
}
